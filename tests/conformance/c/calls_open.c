/* Descriptors come and go: open, creat, close and their relatives. */
#define _GNU_SOURCE
#include "harness.h"

#include <linux/openat2.h>
#include <unistd.h>

int __open(const char *, int, ...);
int __open64(const char *, int, ...);
int __close(int);

/* fd[0] is the folder; in it a file of ten bytes, a link to it, and a folder. */
static void folder(struct run *r)
{
    raw_close(raw_file(r, "ten", 10));
    raw_mkdir(path_in(r, "folder"));
    RAW3(SYS_symlinkat, "ten", AT_FDCWD, path_in(r, "link"));
    r->fd[0] = raw_open(r->dir, O_RDONLY | O_DIRECTORY);
}

static void opened(struct run *r, unsigned i, int fd)
{
    struct stat st;
    CHECK(r, fd > 2);
    CHECK(r, raw_fstat(fd, &st) == 0 && S_ISREG(st.st_mode));
    mix(r, i, (uint64_t)st.st_size);
    mix(r, i, (uint64_t)raw_fcntl(fd, F_GETFL, 0));
    mix(r, i, (uint64_t)raw_fcntl(fd, F_GETFD, 0));
    raw_close(fd);
}

/* `len` carries the flags; the mode is 0640. */
static long open_op(struct run *r, unsigned i)
{
    static const int flags[] = {O_RDONLY, O_RDWR | O_APPEND, O_WRONLY | O_NONBLOCK, O_RDONLY | O_CLOEXEC};
    errno = ERRNO_CANARY;
    int fd = (int)r->test->go(r, r->fd[0], path_in(r, i & 4 ? "link" : "ten"), (size_t)flags[i & 3], 0);
    CHECK(r, errno == ERRNO_CANARY);
    opened(r, i, fd);
    return 0;
}

static void open_errors(struct run *r)
{
    mover *go = r->test->go;
    const char *entry = r->test->entry;
    char long_name[300];
    struct stat st;
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = 0;
    EXPECT(r, entry, ENOENT, go(r, r->fd[0], path_in(r, "none"), O_RDONLY, 0));
    EXPECT(r, entry, ENOENT, go(r, r->fd[0], "", O_RDONLY, 0));
    EXPECT(r, entry, EFAULT, go(r, r->fd[0], NOWHERE, O_RDONLY, 0));
    EXPECT(r, entry, ENOTDIR, go(r, r->fd[0], path_in(r, "ten/x"), O_RDONLY, 0));
    EXPECT(r, entry, EISDIR, go(r, r->fd[0], path_in(r, "folder"), O_WRONLY, 0));
    EXPECT(r, entry, ELOOP, go(r, r->fd[0], path_in(r, "link"), O_RDONLY | O_NOFOLLOW, 0));
    EXPECT(r, entry, ENAMETOOLONG, go(r, r->fd[0], long_name, O_RDONLY, 0));
    EXPECT(r, entry, EEXIST, go(r, r->fd[0], path_in(r, "ten"), O_RDWR | O_CREAT | O_EXCL, 0));
    int fd = (int)go(r, r->fd[0], path_in(r, "new"), O_RDWR | O_CREAT | O_EXCL, 0);
    tally(r, entry, 1, 0);
    CHECK(r, fd >= 0 && raw_fstat(fd, &st) == 0 && (st.st_mode & 0777) == (0640 & ~022));
    raw_close(fd);
}

static void openat_errors(struct run *r)
{
    mover *go = r->test->go;
    open_errors(r);
    /* A relative name is looked up in the folder. */
    int fd = (int)go(r, r->fd[0], "ten", O_RDONLY, 0);
    tally(r, r->test->entry, 1, 0);
    opened(r, 0, fd);
    EXPECT(r, r->test->entry, EBADF, go(r, -1, "ten", O_RDONLY, 0));
}

COUNTED(open, "open", "open", folder, open_op, open_errors, open(at, (int)len, 0640));
COUNTED(open64, "open64", "open", folder, open_op, open_errors, open64(at, (int)len, 0640));
COUNTED(__open, "__open", "open", folder, open_op, open_errors, __open(at, (int)len, 0640));
COUNTED(__open64, "__open64", "open", folder, open_op, open_errors, __open64(at, (int)len, 0640));
COUNTED(syscall_open, "syscall", "open", folder, open_op, open_errors, syscall(SYS_open, at, len, 0640));
COUNTED(openat, "openat", "openat", folder, open_op, openat_errors, openat(fd, at, (int)len, 0640));
COUNTED(openat64, "openat64", "openat", folder, open_op, openat_errors, openat64(fd, at, (int)len, 0640));
COUNTED(syscall_openat, "syscall", "openat", folder, open_op, openat_errors,
        syscall(SYS_openat, fd, at, len, 0640));

static long openat2_call(int fd, const char *at, size_t flags)
{
    struct open_how how = {.flags = flags, .mode = flags & O_CREAT ? 0640 : 0};
    return syscall(SYS_openat2, fd, at, &how, sizeof how);
}

COUNTED(syscall_openat2, "syscall", "openat2", folder, open_op, openat_errors, openat2_call(fd, at, len));

/* A descriptor's number is the lowest that is free, with and without limits. */
static long creat_op(struct run *r, unsigned i)
{
    struct stat st;
    errno = ERRNO_CANARY;
    int fd = (int)r->test->go(r, 0, path_in(r, "made"), 0604, 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, fd >= 0 && raw_fstat(fd, &st) == 0 && (st.st_mode & 0777) == 0604 && st.st_size == 0);
    mix(r, i, st.st_mode);
    CHECK(r, raw_write(fd, "x", 1) == 1);
    raw_close(fd);
    if (i & 1)
        raw_unlink(path_in(r, "made"));
    return 0;
}

static void creat_errors(struct run *r)
{
    mover *go = r->test->go;
    EXPECT(r, "creat", ENOENT, go(r, 0, path_in(r, "none/x"), 0600, 0));
    EXPECT(r, "creat", EFAULT, go(r, 0, NOWHERE, 0600, 0));
    EXPECT(r, "creat", EISDIR, go(r, 0, path_in(r, "folder"), 0600, 0));
    EXPECT(r, "creat", ENOTDIR, go(r, 0, path_in(r, "ten/x"), 0600, 0));
}

COUNTED(creat, "creat", "creat", folder, creat_op, creat_errors, creat(at, (mode_t)len));
COUNTED(creat64, "creat64", "creat", folder, creat_op, creat_errors, creat64(at, (mode_t)len));
COUNTED(syscall_creat, "syscall", "creat", folder, creat_op, creat_errors, syscall(SYS_creat, at, len));

static long close_op(struct run *r, unsigned i)
{
    int fd = raw_dup(0);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, fd, NULL, 0, 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    mix(r, i, 1);
    return 0;
}

static void close_errors(struct run *r)
{
    mover *go = r->test->go;
    EXPECT(r, "close", EBADF, go(r, -1, NULL, 0, 0));
    EXPECT(r, "close", EBADF, go(r, 9999, NULL, 0, 0));
    int fd = raw_dup(0);
    EXPECT(r, "close", 0, go(r, fd, NULL, 0, 0));
    EXPECT(r, "close", EBADF, go(r, fd, NULL, 0, 0));
}

COUNTED(close, "close", "close", NULL, close_op, close_errors, close(fd));
COUNTED(__close, "__close", "close", NULL, close_op, close_errors, __close(fd));
COUNTED(syscall_close, "syscall", "close", NULL, close_op, close_errors, syscall(SYS_close, fd));

/* Numbers above all others, so that nobody else's are closed. */
static long range_op(struct run *r, unsigned i)
{
    int fd = raw_dup2(0, 900 + (int)r->thread);
    CHECK(r, fd >= 900);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, fd, NULL, 0, 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, raw_fcntl(fd, F_GETFD, 0) == -EBADF);
    mix(r, i, 1);
    return 0;
}

static void range_errors(struct run *r)
{
    EXPECT(r, "close_range", EINVAL, close_range(7, 6, 0));
    EXPECT(r, "close_range", EINVAL, close_range(950, 951, 1 << 20));
    /* With this flag they are only closed at the next exec. */
    raw_dup2(0, 950);
    EXPECT(r, "close_range", 0, close_range(950, ~0u, CLOSE_RANGE_CLOEXEC));
    CHECK(r, raw_fcntl(950, F_GETFD, 0) == FD_CLOEXEC);
    raw_close(950);
}

COUNTED(close_range, "close_range", "close_range", NULL, range_op, range_errors,
        close_range((unsigned)fd, (unsigned)fd, 0));
COUNTED(syscall_close_range, "syscall", "close_range", NULL, range_op, NULL,
        syscall(SYS_close_range, fd, fd, 0));
COUNTED(closefrom, "closefrom", "close_range", NULL, range_op, NULL, (closefrom(fd), 0));
