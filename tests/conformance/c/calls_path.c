/* Names and modes change: rename, unlink, mkdir, link, chmod, chown, times. */
#define _GNU_SOURCE
#include "harness.h"

#include <stdio.h>
#include <unistd.h>

/* fd[0] is the folder; a file, a folder that is not empty. */
static void names(struct run *r)
{
    raw_close(raw_file(r, "a", 10));
    raw_mkdir(path_in(r, "full"));
    raw_close(raw_file(r, "full/x", 1));
    r->fd[0] = raw_open(r->dir, O_RDONLY | O_DIRECTORY);
}

/* The second name, where there is one, is in `extra`. */
static long call_with(struct run *r, const char *first, const char *second)
{
    r->extra = (void *)second;
    return r->test->go(r, r->fd[0], (void *)first, 0, 0);
}

static int there(struct run *r, const char *name)
{
    struct stat st;
    return raw_stat(path_in(r, name), &st) == 0;
}

static long rename_op(struct run *r, unsigned i)
{
    int back = !there(r, "a");
    errno = ERRNO_CANARY;
    CHECK(r, call_with(r, path_in(r, back ? "b" : "a"), path_in(r, back ? "a" : "b")) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, there(r, back ? "a" : "b") && !there(r, back ? "b" : "a"));
    mix(r, i, 1);
    return 0;
}

static void two_errors(struct run *r)
{
    const char *entry = r->test->entry;
    EXPECT(r, entry, ENOENT, call_with(r, path_in(r, "none"), path_in(r, "c")));
    EXPECT(r, entry, EFAULT, call_with(r, NOWHERE, path_in(r, "c")));
    EXPECT(r, entry, ENOENT, call_with(r, path_in(r, "full/x"), path_in(r, "none/c")));
}

COUNTED(rename, "rename", "rename", names, rename_op, two_errors, rename(at, r->extra));
COUNTED(syscall_rename, "syscall", "rename", names, rename_op, two_errors, syscall(SYS_rename, at, r->extra));
COUNTED(renameat, "renameat", "renameat", names, rename_op, two_errors,
        renameat(AT_FDCWD, at, AT_FDCWD, r->extra));
COUNTED(syscall_renameat, "syscall", "renameat", names, rename_op, two_errors,
        syscall(SYS_renameat, AT_FDCWD, at, AT_FDCWD, r->extra));

static void rename2_errors(struct run *r)
{
    two_errors(r);
    raw_close(raw_file(r, "taken", 1));
    EXPECT(r, "renameat2", EEXIST, call_with(r, path_in(r, "full/x"), path_in(r, "taken")));
}

COUNTED(renameat2, "renameat2", "renameat2", names, rename_op, rename2_errors,
        renameat2(AT_FDCWD, at, AT_FDCWD, r->extra, RENAME_NOREPLACE));
COUNTED(syscall_renameat2, "syscall", "renameat2", names, rename_op, rename2_errors,
        syscall(SYS_renameat2, AT_FDCWD, at, AT_FDCWD, r->extra, RENAME_NOREPLACE));

static long link_op(struct run *r, unsigned i)
{
    struct stat st;
    errno = ERRNO_CANARY;
    CHECK(r, call_with(r, path_in(r, "a"), path_in(r, "l")) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, raw_stat(path_in(r, "l"), &st) == 0);
    CHECK(r, S_ISLNK(st.st_mode) || st.st_nlink == 2);
    mix(r, i, st.st_mode);
    raw_unlink(path_in(r, "l"));
    return 0;
}

static void link_errors(struct run *r)
{
    two_errors(r);
    EXPECT(r, r->test->entry, EEXIST, call_with(r, path_in(r, "a"), path_in(r, "full/x")));
    EXPECT(r, r->test->entry, EPERM, call_with(r, path_in(r, "full"), path_in(r, "l")));
}

static void symlink_errors(struct run *r)
{
    EXPECT(r, r->test->entry, EEXIST, call_with(r, "a", path_in(r, "full/x")));
    EXPECT(r, r->test->entry, ENOENT, call_with(r, "a", path_in(r, "none/x")));
    EXPECT(r, r->test->entry, EFAULT, call_with(r, NOWHERE, path_in(r, "l")));
}

COUNTED(link, "link", "link", names, link_op, link_errors, link(at, r->extra));
COUNTED(syscall_link, "syscall", "link", names, link_op, link_errors, syscall(SYS_link, at, r->extra));
COUNTED(linkat, "linkat", "linkat", names, link_op, link_errors, linkat(AT_FDCWD, at, AT_FDCWD, r->extra, 0));
COUNTED(syscall_linkat, "syscall", "linkat", names, link_op, link_errors,
        syscall(SYS_linkat, AT_FDCWD, at, AT_FDCWD, r->extra, 0));
COUNTED(symlink, "symlink", "symlink", names, link_op, symlink_errors, symlink(at, r->extra));
COUNTED(syscall_symlink, "syscall", "symlink", names, link_op, symlink_errors,
        syscall(SYS_symlink, at, r->extra));
COUNTED(symlinkat, "symlinkat", "symlinkat", names, link_op, symlink_errors,
        symlinkat(at, AT_FDCWD, r->extra));
COUNTED(syscall_symlinkat, "syscall", "symlinkat", names, link_op, symlink_errors,
        syscall(SYS_symlinkat, at, AT_FDCWD, r->extra));

static long unlink_op(struct run *r, unsigned i)
{
    raw_close(raw_file(r, "gone", 1));
    errno = ERRNO_CANARY;
    CHECK(r, call_with(r, path_in(r, "gone"), NULL) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, !there(r, "gone"));
    mix(r, i, 1);
    return 0;
}

static void unlink_errors(struct run *r)
{
    EXPECT(r, r->test->entry, ENOENT, call_with(r, path_in(r, "none"), NULL));
    EXPECT(r, r->test->entry, EISDIR, call_with(r, path_in(r, "full"), NULL));
    EXPECT(r, r->test->entry, ENOTDIR, call_with(r, path_in(r, "a/x"), NULL));
    EXPECT(r, r->test->entry, EFAULT, call_with(r, NOWHERE, NULL));
}

COUNTED(unlink, "unlink", "unlink", names, unlink_op, unlink_errors, unlink(at));
COUNTED(syscall_unlink, "syscall", "unlink", names, unlink_op, unlink_errors, syscall(SYS_unlink, at));
COUNTED(unlinkat, "unlinkat", "unlinkat", names, unlink_op, unlink_errors, unlinkat(AT_FDCWD, at, 0));
COUNTED(syscall_unlinkat, "syscall", "unlinkat", names, unlink_op, unlink_errors,
        syscall(SYS_unlinkat, AT_FDCWD, at, 0));

static long rmdir_op(struct run *r, unsigned i)
{
    raw_mkdir(path_in(r, "gone"));
    errno = ERRNO_CANARY;
    CHECK(r, call_with(r, path_in(r, "gone"), NULL) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, !there(r, "gone"));
    mix(r, i, 1);
    return 0;
}

static void rmdir_errors(struct run *r)
{
    EXPECT(r, "rmdir", ENOENT, call_with(r, path_in(r, "none"), NULL));
    EXPECT(r, "rmdir", ENOTEMPTY, call_with(r, path_in(r, "full"), NULL));
    EXPECT(r, "rmdir", ENOTDIR, call_with(r, path_in(r, "a"), NULL));
    EXPECT(r, "rmdir", EFAULT, call_with(r, NOWHERE, NULL));
}

COUNTED(rmdir, "rmdir", "rmdir", names, rmdir_op, rmdir_errors, rmdir(at));
COUNTED(syscall_rmdir, "syscall", "rmdir", names, rmdir_op, rmdir_errors, syscall(SYS_rmdir, at));

static long mkdir_op(struct run *r, unsigned i)
{
    struct stat st;
    errno = ERRNO_CANARY;
    CHECK(r, call_with(r, path_in(r, "new"), NULL) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, raw_stat(path_in(r, "new"), &st) == 0 && S_ISDIR(st.st_mode));
    mix(r, i, st.st_mode);
    raw_rmdir(path_in(r, "new"));
    return 0;
}

static void mkdir_errors(struct run *r)
{
    EXPECT(r, r->test->entry, EEXIST, call_with(r, path_in(r, "full"), NULL));
    EXPECT(r, r->test->entry, ENOENT, call_with(r, path_in(r, "none/x"), NULL));
    EXPECT(r, r->test->entry, ENOTDIR, call_with(r, path_in(r, "a/x"), NULL));
    EXPECT(r, r->test->entry, EFAULT, call_with(r, NOWHERE, NULL));
}

COUNTED(mkdir, "mkdir", "mkdir", names, mkdir_op, mkdir_errors, mkdir(at, 0750));
COUNTED(syscall_mkdir, "syscall", "mkdir", names, mkdir_op, mkdir_errors, syscall(SYS_mkdir, at, 0750));
COUNTED(mkdirat, "mkdirat", "mkdirat", names, mkdir_op, mkdir_errors, mkdirat(AT_FDCWD, at, 0750));
COUNTED(syscall_mkdirat, "syscall", "mkdirat", names, mkdir_op, mkdir_errors,
        syscall(SYS_mkdirat, AT_FDCWD, at, 0750));

/* fd[1] is the file; `len` the mode, or the owner. */
static void owned(struct run *r)
{
    r->fd[1] = raw_file(r, "a", 10);
}

static void path_or_fd_errors(struct run *r)
{
    mover *go = r->test->go;
    const char *entry = r->test->entry;
    if (strcmp(entry, "fchmod") == 0 || strcmp(entry, "fchown") == 0) {
        EXPECT(r, entry, EBADF, go(r, -1, NULL, 0600, 0));
        EXPECT(r, entry, EBADF, go(r, 9999, NULL, 0600, 0));
    } else {
        EXPECT(r, entry, ENOENT, go(r, 0, path_in(r, "none"), 0600, 0));
        EXPECT(r, entry, ENOTDIR, go(r, 0, path_in(r, "a/x"), 0600, 0));
        EXPECT(r, entry, EFAULT, go(r, 0, NOWHERE, 0600, 0));
    }
}

static long chmod_op(struct run *r, unsigned i)
{
    struct stat st;
    mode_t mode = 0600 | (i & 077);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, r->fd[1], path_in(r, "a"), mode, 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, raw_fstat(r->fd[1], &st) == 0 && (st.st_mode & 0777) == mode);
    mix(r, i, st.st_mode);
    return 0;
}

#define CHMOD(id, sym, entry, expression) \
    COUNTED(id, sym, entry, owned, chmod_op, path_or_fd_errors, expression)

CHMOD(chmod, "chmod", "chmod", chmod(at, (mode_t)len));
CHMOD(syscall_chmod, "syscall", "chmod", syscall(SYS_chmod, at, len));
CHMOD(fchmod, "fchmod", "fchmod", fchmod(fd, (mode_t)len));
CHMOD(syscall_fchmod, "syscall", "fchmod", syscall(SYS_fchmod, fd, len));
CHMOD(fchmodat, "fchmodat", "fchmodat", fchmodat(AT_FDCWD, at, (mode_t)len, 0));
CHMOD(syscall_fchmodat, "syscall", "fchmodat", syscall(SYS_fchmodat, AT_FDCWD, at, len));

/* To oneself, which everybody may. */
static long chown_op(struct run *r, unsigned i)
{
    struct stat st;
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, r->fd[1], path_in(r, "a"), (size_t)RAW0(SYS_getuid), 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, raw_fstat(r->fd[1], &st) == 0 && st.st_uid == (uid_t)RAW0(SYS_getuid));
    mix(r, i, 1);
    return 0;
}

#define CHOWN(id, sym, entry, expression) \
    COUNTED(id, sym, entry, owned, chown_op, path_or_fd_errors, expression)

#define SAME ((gid_t)-1)
CHOWN(chown, "chown", "chown", chown(at, (uid_t)len, SAME));
CHOWN(syscall_chown, "syscall", "chown", syscall(SYS_chown, at, len, SAME));
CHOWN(fchown, "fchown", "fchown", fchown(fd, (uid_t)len, SAME));
CHOWN(syscall_fchown, "syscall", "fchown", syscall(SYS_fchown, fd, len, SAME));
CHOWN(lchown, "lchown", "lchown", lchown(at, (uid_t)len, SAME));
CHOWN(syscall_lchown, "syscall", "lchown", syscall(SYS_lchown, at, len, SAME));
CHOWN(fchownat, "fchownat", "fchownat", fchownat(AT_FDCWD, at, (uid_t)len, SAME, 0));
CHOWN(syscall_fchownat, "syscall", "fchownat", syscall(SYS_fchownat, AT_FDCWD, at, len, SAME, 0));

static long times_op(struct run *r, unsigned i)
{
    struct stat st;
    struct timespec times[2] = {{.tv_sec = i}, {.tv_sec = 1000 + i, .tv_nsec = 5}};
    r->extra = times;
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, 0, path_in(r, "a"), 0, 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, raw_fstat(r->fd[1], &st) == 0 && st.st_mtim.tv_sec == 1000 + (long)i && st.st_mtim.tv_nsec == 5);
    r->extra = NULL;
    mix(r, i, (uint64_t)st.st_mtim.tv_sec);
    return 0;
}

COUNTED(utimensat, "utimensat", "utimensat", owned, times_op, path_or_fd_errors,
        utimensat(AT_FDCWD, at, r->extra, 0));
COUNTED(syscall_utimensat, "syscall", "utimensat", owned, times_op, path_or_fd_errors,
        syscall(SYS_utimensat, AT_FDCWD, at, r->extra, 0));
