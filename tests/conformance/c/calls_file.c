/* Files as a whole: truncate, fallocate, sync, position, locks, control. */
#define _GNU_SOURCE
#include "harness.h"

#include <gnu/libc-version.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

/* fd[0] is a file of two pages, fd[1] and fd[2] a pipe. */
static void pages(struct run *r)
{
    r->fd[0] = raw_file(r, "a", 8192);
    CHECK(r, raw_pipe(r->fd + 1) == 0);
}

static long size_of(struct run *r)
{
    struct stat st;
    CHECK(r, raw_fstat(r->fd[0], &st) == 0);
    return st.st_size;
}

static long truncate_op(struct run *r, unsigned i)
{
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, r->fd[0], path_in(r, "a"), i * 10 + 1, 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, size_of(r) == i * 10 + 1);
    mix(r, i, (uint64_t)size_of(r));
    return 0;
}

static void fd_errors(struct run *r)
{
    mover *go = r->test->go;
    EXPECT(r, r->test->entry, EBADF, go(r, -1, NULL, 16, 0));
    EXPECT(r, r->test->entry, EBADF, go(r, 9999, NULL, 16, 0));
}

static void truncate_errors(struct run *r)
{
    mover *go = r->test->go;
    const char *entry = r->test->entry;
    EXPECT(r, entry, ENOENT, go(r, 0, path_in(r, "none"), 16, 0));
    EXPECT(r, entry, EINVAL, go(r, 0, path_in(r, "a"), (size_t)-1, 0));
    EXPECT(r, entry, EISDIR, go(r, 0, r->dir, 16, 0));
    EXPECT(r, entry, EFAULT, go(r, 0, NOWHERE, 16, 0));
}

static void ftruncate_errors(struct run *r)
{
    fd_errors(r);
    EXPECT(r, "ftruncate", EINVAL, r->test->go(r, r->fd[0], NULL, (size_t)-1, 0));
    EXPECT(r, "ftruncate", EINVAL, r->test->go(r, r->fd[1], NULL, 16, 0));
}

COUNTED(truncate, "truncate", "truncate", pages, truncate_op, truncate_errors, truncate(at, (off_t)len));
COUNTED(truncate64, "truncate64", "truncate", pages, truncate_op, truncate_errors, truncate64(at, (off_t)len));
COUNTED(syscall_truncate, "syscall", "truncate", pages, truncate_op, truncate_errors,
        syscall(SYS_truncate, at, len));
COUNTED(ftruncate, "ftruncate", "ftruncate", pages, truncate_op, ftruncate_errors, ftruncate(fd, (off_t)len));
COUNTED(ftruncate64, "ftruncate64", "ftruncate", pages, truncate_op, ftruncate_errors,
        ftruncate64(fd, (off_t)len));
COUNTED(syscall_ftruncate, "syscall", "ftruncate", pages, truncate_op, ftruncate_errors,
        syscall(SYS_ftruncate, fd, len));

/* The file grows to 8 KiB and one byte more for each operation. */
static long allocate_op(struct run *r, unsigned i)
{
    RAW2(SYS_ftruncate, r->fd[0], 0);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, r->fd[0], NULL, 8192 + i, 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, size_of(r) == 8192 + i);
    mix(r, i, (uint64_t)size_of(r));
    return 0;
}

static void allocate_errors(struct run *r)
{
    fd_errors(r);
    EXPECT(r, "fallocate", EINVAL, r->test->go(r, r->fd[0], NULL, 0, 0));
    EXPECT(r, "fallocate", ESPIPE, r->test->go(r, r->fd[2], NULL, 16, 0));
}

/* They return their error instead of storing it. */
static long stored(int error)
{
    if (error == 0)
        return 0;
    errno = error;
    return -1;
}

COUNTED(fallocate, "fallocate", "fallocate", pages, allocate_op, allocate_errors,
        fallocate(fd, 0, 0, (off_t)len));
COUNTED(fallocate64, "fallocate64", "fallocate", pages, allocate_op, allocate_errors,
        fallocate64(fd, 0, 0, (off_t)len));
COUNTED(syscall_fallocate, "syscall", "fallocate", pages, allocate_op, allocate_errors,
        syscall(SYS_fallocate, fd, 0, 0, len));
COUNTED(posix_fallocate, "posix_fallocate", "fallocate", pages, allocate_op, allocate_errors,
        stored(posix_fallocate(fd, 0, (off_t)len)));
COUNTED(posix_fallocate64, "posix_fallocate64", "fallocate", pages, allocate_op, allocate_errors,
        stored(posix_fallocate64(fd, 0, (off_t)len)));

/* A few only: a disk may take its time. */
static long sync_op(struct run *r, unsigned i)
{
    raw_pwrite(r->fd[0], "x", 1, i);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, r->fd[0], NULL, 16, 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    mix(r, i, 1);
    return 0;
}

static void pipe_sync_errors(struct run *r)
{
    fd_errors(r);
    EXPECT(r, r->test->entry, EINVAL, r->test->go(r, r->fd[2], NULL, 16, 0));
}

static void range_errors(struct run *r)
{
    fd_errors(r);
    EXPECT(r, "sync_file_range", ESPIPE, r->test->go(r, r->fd[2], NULL, 16, 0));
    EXPECT(r, "sync_file_range", EINVAL, r->test->go(r, r->fd[0], NULL, 16, -1));
}

#define SYNC(id, sym, entry_, errors_, expression)                     \
    MOVER(id, expression)                                              \
    CASE(id, .symbol = sym, .entry = entry_, .ops = 4, .go = go_##id,  \
         .setup = pages, .op = sync_op, .errors = errors_, .finish = close_all)

SYNC(fsync, "fsync", "fsync", pipe_sync_errors, fsync(fd));
SYNC(syscall_fsync, "syscall", "fsync", pipe_sync_errors, syscall(SYS_fsync, fd));
SYNC(fdatasync, "fdatasync", "fdatasync", pipe_sync_errors, fdatasync(fd));
SYNC(syscall_fdatasync, "syscall", "fdatasync", pipe_sync_errors, syscall(SYS_fdatasync, fd));
SYNC(syncfs, "syncfs", "syncfs", fd_errors, syncfs(fd));
SYNC(syscall_syncfs, "syscall", "syncfs", fd_errors, syscall(SYS_syncfs, fd));
/* All file systems of the machine. */
SYNC(sync, "sync", "sync", NULL, (sync(), 0));
SYNC(syscall_sync, "syscall", "sync", NULL, syscall(SYS_sync));
SYNC(sync_file_range, "sync_file_range", "sync_file_range", range_errors,
     sync_file_range(fd, pos, (off_t)len, SYNC_FILE_RANGE_WRITE));
SYNC(syscall_sync_file_range, "syscall", "sync_file_range", range_errors,
     syscall(SYS_sync_file_range, fd, pos, len, SYNC_FILE_RANGE_WRITE));
SYNC(readahead, "readahead", "readahead", fd_errors, readahead(fd, pos, len));
SYNC(syscall_readahead, "syscall", "readahead", fd_errors, syscall(SYS_readahead, fd, pos, len));

static void mapped(struct run *r)
{
    r->fd[0] = raw_file(r, "a", 8192);
    long at = RAW6(SYS_mmap, 0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd[0], 0);
    CHECK(r, at > 0);
    r->extra = (void *)at;
}

static long msync_op(struct run *r, unsigned i)
{
    char byte = 0;
    ((volatile char *)r->extra)[i] = (char)i;
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, MS_SYNC, r->extra, 8192, 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, raw_pread(r->fd[0], &byte, 1, i) == 1 && byte == (char)i);
    mix(r, i, 1);
    return 0;
}

static void msync_errors(struct run *r)
{
    mover *go = r->test->go;
    EXPECT(r, "msync", ENOMEM, go(r, MS_SYNC, (void *)4096, 4096, 0));
    EXPECT(r, "msync", EINVAL, go(r, MS_SYNC, (char *)r->extra + 1, 4096, 0));
    EXPECT(r, "msync", EINVAL, go(r, MS_SYNC | MS_ASYNC, r->extra, 4096, 0));
    EXPECT(r, "msync", 0, go(r, MS_ASYNC, r->extra, 4096, 0));
}

MOVER(msync, msync(at, len, fd))
CASE(msync, .symbol = "msync", .entry = "msync", .ops = 8, .go = go_msync, .setup = mapped, .op = msync_op,
     .errors = msync_errors, .finish = close_all);
MOVER(syscall_msync, syscall(SYS_msync, at, len, fd))
CASE(syscall_msync, .symbol = "syscall", .entry = "msync", .ops = 8, .go = go_syscall_msync, .setup = mapped,
     .op = msync_op, .errors = msync_errors, .finish = close_all);

/* What comes differs each time; that it came does not. */
static long random_op(struct run *r, unsigned i)
{
    memset(r->data, 0, 64);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, 0, r->data, 64, 0) == 64);
    CHECK(r, errno == ERRNO_CANARY);
    unsigned set = 0;
    for (unsigned k = 0; k < 64; k++)
        set |= r->data[k];
    CHECK(r, set != 0);
    mix(r, i, 1);
    return 0;
}

/* From 2.41 on, glibc makes it without the kernel, so that a bad address ends the program. */
static int asks_kernel(void)
{
    return strverscmp(gnu_get_libc_version(), "2.41") < 0;
}

static void random_errors(struct run *r)
{
    mover *go = r->test->go;
    if (asks_kernel() || strcmp(r->test->symbol, "syscall") == 0)
        EXPECT(r, "getrandom", EFAULT, go(r, 0, NOWHERE, 16, 0));
    EXPECT(r, "getrandom", EINVAL, go(r, 0, r->data, 16, 1 << 20));
    EXPECT(r, "getrandom", 0, go(r, 0, r->data, 0, 0));
}

static void entropy_errors(struct run *r)
{
    if (asks_kernel())
        EXPECT(r, "getrandom", EFAULT, getentropy(NOWHERE, 16));
    EXPECT(r, "getrandom", EIO, getentropy(r->data, 257));
}

COUNTED(getrandom, "getrandom", "getrandom", NULL, random_op, random_errors, getrandom(at, len, (unsigned)pos));
COUNTED(syscall_getrandom, "syscall", "getrandom", NULL, random_op, random_errors,
        syscall(SYS_getrandom, at, len, pos));
COUNTED(getentropy, "getentropy", "getrandom", NULL, random_op, entropy_errors,
        getentropy(at, len) == 0 ? (ssize_t)len : -1);

static long ioctl_op(struct run *r, unsigned i)
{
    int waiting = -1;
    raw_write(r->fd[2], "abc", 3);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, r->fd[1], &waiting, FIONREAD, 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, waiting == 3);
    raw_read(r->fd[1], r->data, 3);
    mix(r, i, (uint64_t)waiting);
    return 0;
}

static void ioctl_errors(struct run *r)
{
    mover *go = r->test->go;
    EXPECT(r, "ioctl", EBADF, go(r, -1, r->data, FIONREAD, 0));
    EXPECT(r, "ioctl", ENOTTY, go(r, r->fd[0], r->data, TIOCGWINSZ, 0));
    EXPECT(r, "ioctl", EFAULT, go(r, r->fd[1], NOWHERE, FIONREAD, 0));
}

COUNTED(ioctl, "ioctl", "ioctl", pages, ioctl_op, ioctl_errors, ioctl(fd, len, at));
COUNTED(syscall_ioctl, "syscall", "ioctl", pages, ioctl_op, ioctl_errors, syscall(SYS_ioctl, fd, len, at));

static long flock_op(struct run *r, unsigned i)
{
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, r->fd[0], NULL, i & 1 ? LOCK_UN : LOCK_EX, 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    mix(r, i, 1);
    return 0;
}

static void flock_errors(struct run *r)
{
    EXPECT(r, "flock", EBADF, r->test->go(r, -1, NULL, LOCK_EX, 0));
    EXPECT(r, "flock", EBADF, r->test->go(r, 9999, NULL, LOCK_EX, 0));
    int again = raw_open(path_in(r, "a"), O_RDONLY);
    RAW2(SYS_flock, r->fd[0], LOCK_EX);
    EXPECT(r, "flock", EAGAIN, r->test->go(r, again, NULL, LOCK_EX | LOCK_NB, 0));
    EXPECT(r, "flock", EINVAL, r->test->go(r, again, NULL, 0, 0));
    raw_close(again);
}

COUNTED(flock, "flock", "flock", pages, flock_op, flock_errors, flock(fd, (int)len));
COUNTED(syscall_flock, "syscall", "flock", pages, flock_op, flock_errors, syscall(SYS_flock, fd, len));

static long lseek_op(struct run *r, unsigned i)
{
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, r->fd[0], NULL, SEEK_SET, 100 + i) == 100 + (long)i);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, raw_seek(r->fd[0], 0, SEEK_CUR) == 100 + (long)i);
    mix(r, i, 100 + i);
    return 0;
}

static void lseek_errors(struct run *r)
{
    mover *go = r->test->go;
    fd_errors(r);
    EXPECT(r, "lseek", EINVAL, go(r, r->fd[0], NULL, SEEK_SET, -1));
    EXPECT(r, "lseek", EINVAL, go(r, r->fd[0], NULL, 99, 0));
    EXPECT(r, "lseek", ESPIPE, go(r, r->fd[1], NULL, SEEK_SET, 0));
    EXPECT(r, "lseek", ENXIO, go(r, r->fd[0], NULL, SEEK_DATA, 8192));
}

COUNTED(lseek, "lseek", "lseek", pages, lseek_op, lseek_errors, lseek(fd, pos, (int)len));
COUNTED(lseek64, "lseek64", "lseek", pages, lseek_op, lseek_errors, lseek64(fd, pos, (int)len));
COUNTED(syscall_lseek, "syscall", "lseek", pages, lseek_op, lseek_errors, syscall(SYS_lseek, fd, pos, len));
