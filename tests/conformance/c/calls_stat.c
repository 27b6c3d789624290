/* What is known of a file: stat, access, readlink, folders. */
#define _GNU_SOURCE
#include "harness.h"

#include <dirent.h>
#include <sys/statfs.h>
#include <unistd.h>

/* A file of 10 bytes, a link to it, a folder; fd[0] is the file, fd[1] the folder of all. */
static void three(struct run *r)
{
    r->fd[0] = raw_file(r, "ten", 10);
    raw_mkdir(path_in(r, "folder"));
    RAW3(SYS_symlinkat, "ten", AT_FDCWD, path_in(r, "link"));
    r->fd[1] = raw_open(r->dir, O_RDONLY | O_DIRECTORY);
}

/* The answer goes to `data`; `fd` is the file. */
static long stat_op(struct run *r, unsigned i)
{
    struct stat *st = (struct stat *)r->data;
    memset(st, 0, sizeof *st);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, r->fd[0], path_in(r, i & 1 ? "link" : "ten"), 0, 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    /* Of a link itself the size is the length of "ten". */
    CHECK(r, st->st_size == (S_ISLNK(st->st_mode) ? 3 : 10));
    mix(r, i, (uint64_t)st->st_mode);
    return 0;
}

static void path_errors(struct run *r)
{
    mover *go = r->test->go;
    const char *entry = r->test->entry;
    EXPECT(r, entry, ENOENT, go(r, 0, path_in(r, "none"), 0, 0));
    EXPECT(r, entry, ENOENT, go(r, 0, "", 0, 0));
    EXPECT(r, entry, ENOTDIR, go(r, 0, path_in(r, "ten/x"), 0, 0));
    EXPECT(r, entry, EFAULT, go(r, 0, NOWHERE, 0, 0));
}

static void stat_errors(struct run *r)
{
    path_errors(r);
    unsigned char *data = r->data;
    r->data = NOWHERE;
    EXPECT(r, r->test->entry, EFAULT, r->test->go(r, r->fd[0], path_in(r, "ten"), 0, 0));
    r->data = data;
}

static void fd_errors(struct run *r)
{
    mover *go = r->test->go;
    EXPECT(r, r->test->entry, EBADF, go(r, -1, NULL, 0, 0));
    EXPECT(r, r->test->entry, EBADF, go(r, 9999, NULL, 0, 0));
}

#define STAT(id, sym, entry, errors, expression) COUNTED(id, sym, entry, three, stat_op, errors, expression)

STAT(stat, "stat", "stat", stat_errors, stat(at, (void *)r->data));
STAT(stat64, "stat64", "stat", stat_errors, stat64(at, (void *)r->data));
STAT(syscall_stat, "syscall", "stat", stat_errors, syscall(SYS_stat, at, r->data));
STAT(lstat, "lstat", "lstat", stat_errors, lstat(at, (void *)r->data));
STAT(lstat64, "lstat64", "lstat", stat_errors, lstat64(at, (void *)r->data));
STAT(syscall_lstat, "syscall", "lstat", stat_errors, syscall(SYS_lstat, at, r->data));
STAT(fstat, "fstat", "fstat", fd_errors, fstat(fd, (void *)r->data));
STAT(fstat64, "fstat64", "fstat", fd_errors, fstat64(fd, (void *)r->data));
STAT(syscall_fstat, "syscall", "fstat", fd_errors, syscall(SYS_fstat, fd, r->data));
STAT(fstatat, "fstatat", "newfstatat", stat_errors,
     fstatat(AT_FDCWD, at, (void *)r->data, AT_SYMLINK_NOFOLLOW));
STAT(fstatat64, "fstatat64", "newfstatat", stat_errors, fstatat64(AT_FDCWD, at, (void *)r->data, 0));
STAT(syscall_newfstatat, "syscall", "newfstatat", stat_errors,
     syscall(SYS_newfstatat, AT_FDCWD, at, r->data, 0));

static long statx_op(struct run *r, unsigned i)
{
    struct statx *st = (struct statx *)r->data;
    memset(st, 0, sizeof *st);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, 0, path_in(r, "link"), 0, 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, st->stx_size == 10);
    mix(r, i, st->stx_mode);
    return 0;
}

COUNTED(statx, "statx", "statx", three, statx_op, stat_errors,
        statx(AT_FDCWD, at, 0, STATX_BASIC_STATS, (void *)r->data));
COUNTED(syscall_statx, "syscall", "statx", three, statx_op, stat_errors,
        syscall(SYS_statx, AT_FDCWD, at, 0, STATX_BASIC_STATS, r->data));

static long statfs_op(struct run *r, unsigned i)
{
    struct statfs *st = (struct statfs *)r->data;
    memset(st, 0, sizeof *st);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, r->fd[0], path_in(r, "ten"), 0, 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, st->f_type != 0 && st->f_bsize > 0);
    mix(r, i, (uint64_t)st->f_bsize);
    return 0;
}

COUNTED(statfs, "statfs", "statfs", three, statfs_op, stat_errors, statfs(at, (void *)r->data));
COUNTED(statfs64, "statfs64", "statfs", three, statfs_op, stat_errors, statfs64(at, (void *)r->data));
COUNTED(syscall_statfs, "syscall", "statfs", three, statfs_op, stat_errors, syscall(SYS_statfs, at, r->data));
COUNTED(fstatfs, "fstatfs", "fstatfs", three, statfs_op, fd_errors, fstatfs(fd, (void *)r->data));
COUNTED(fstatfs64, "fstatfs64", "fstatfs", three, statfs_op, fd_errors, fstatfs64(fd, (void *)r->data));
COUNTED(syscall_fstatfs, "syscall", "fstatfs", three, statfs_op, fd_errors,
        syscall(SYS_fstatfs, fd, r->data));

/* Nobody may execute it, not even root. */
static long access_op(struct run *r, unsigned i)
{
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, 0, path_in(r, "ten"), i & 1 ? R_OK | W_OK : F_OK, 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    mix(r, i, 1);
    return 0;
}

static void access_errors(struct run *r)
{
    path_errors(r);
    EXPECT(r, r->test->entry, EACCES, r->test->go(r, 0, path_in(r, "ten"), X_OK, 0));
    EXPECT(r, r->test->entry, EINVAL, r->test->go(r, 0, path_in(r, "ten"), 0100, 0));
}

COUNTED(access, "access", "access", three, access_op, access_errors, access(at, (int)len));
COUNTED(syscall_access, "syscall", "access", three, access_op, access_errors, syscall(SYS_access, at, len));
COUNTED(faccessat, "faccessat", "faccessat", three, access_op, access_errors,
        faccessat(AT_FDCWD, at, (int)len, 0));
COUNTED(syscall_faccessat, "syscall", "faccessat", three, access_op, access_errors,
        syscall(SYS_faccessat, AT_FDCWD, at, len));
COUNTED(syscall_faccessat2, "syscall", "faccessat2", three, access_op, access_errors,
        syscall(SYS_faccessat2, AT_FDCWD, at, len, AT_EACCESS));

static long readlink_op(struct run *r, unsigned i)
{
    memset(r->data, 0, 16);
    errno = ERRNO_CANARY;
    long n = r->test->go(r, 0, path_in(r, "link"), i & 1 ? 2 : 16, 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, n == (i & 1 ? 2 : 3) && memcmp(r->data, "ten", (size_t)n) == 0);
    mix_bytes(r, i, r->data, 16);
    return 0;
}

static void readlink_errors(struct run *r)
{
    mover *go = r->test->go;
    const char *entry = r->test->entry;
    EXPECT(r, entry, ENOENT, go(r, 0, path_in(r, "none"), 16, 0));
    EXPECT(r, entry, EINVAL, go(r, 0, path_in(r, "ten"), 16, 0));
    EXPECT(r, entry, EINVAL, go(r, 0, path_in(r, "link"), 0, 0));
    EXPECT(r, entry, EFAULT, go(r, 0, NOWHERE, 16, 0));
}

COUNTED(readlink, "readlink", "readlink", three, readlink_op, readlink_errors, readlink(at, (char *)r->data, len));
COUNTED(syscall_readlink, "syscall", "readlink", three, readlink_op, readlink_errors,
        syscall(SYS_readlink, at, r->data, len));
COUNTED(readlinkat, "readlinkat", "readlinkat", three, readlink_op, readlink_errors,
        readlinkat(AT_FDCWD, at, (char *)r->data, len));
COUNTED(syscall_readlinkat, "syscall", "readlinkat", three, readlink_op, readlink_errors,
        syscall(SYS_readlinkat, AT_FDCWD, at, r->data, len));

/* Five entries: two dots, two files, a folder. */
static long getdents_op(struct run *r, unsigned i)
{
    raw_seek(r->fd[1], 0, SEEK_SET);
    errno = ERRNO_CANARY;
    long n = r->test->go(r, r->fd[1], r->data, 4096, 0);
    CHECK(r, n > 0 && errno == ERRNO_CANARY);
    unsigned entries = 0;
    for (long at = 0; at < n; entries++)
        at += ((struct dirent64 *)(r->data + at))->d_reclen;
    CHECK(r, entries == 5);
    mix(r, i, (uint64_t)n);
    return 0;
}

static void getdents_errors(struct run *r)
{
    mover *go = r->test->go;
    EXPECT(r, "getdents64", EBADF, go(r, -1, r->data, 4096, 0));
    EXPECT(r, "getdents64", ENOTDIR, go(r, r->fd[0], r->data, 4096, 0));
    raw_seek(r->fd[1], 0, SEEK_SET);
    EXPECT(r, "getdents64", EINVAL, go(r, r->fd[1], r->data, 1, 0));
    EXPECT(r, "getdents64", EFAULT, go(r, r->fd[1], NOWHERE, 4096, 0));
    while (RAW3(SYS_getdents64, r->fd[1], r->data, 4096) > 0)
        ;
    EXPECT(r, "getdents64", 0, go(r, r->fd[1], r->data, 4096, 0));
}

COUNTED(getdents64, "getdents64", "getdents64", three, getdents_op, getdents_errors, getdents64(fd, at, len));
COUNTED(syscall_getdents64, "syscall", "getdents64", three, getdents_op, getdents_errors,
        syscall(SYS_getdents64, fd, at, len));
