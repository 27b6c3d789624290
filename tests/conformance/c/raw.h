/* System calls made by an instruction of our own: no interposer sees them. What
 * a case needs besides the call under test goes this way, so that it is neither
 * counted nor held back. Results are as the kernel returns them (-errno). */
#ifndef RAW_H
#define RAW_H

#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

static inline long raw6(long nr, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

#define RAW0(nr) raw6(nr, 0, 0, 0, 0, 0, 0)
#define RAW1(nr, a) raw6(nr, (long)(a), 0, 0, 0, 0, 0)
#define RAW2(nr, a, b) raw6(nr, (long)(a), (long)(b), 0, 0, 0, 0)
#define RAW3(nr, a, b, c) raw6(nr, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define RAW4(nr, a, b, c, d) raw6(nr, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define RAW5(nr, a, b, c, d, e) raw6(nr, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define RAW6(nr, a, b, c, d, e, f) \
    raw6(nr, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

/* One counter for all files of a program. */
__attribute__((weak)) unsigned raw_turns;

/* The same descriptor under a number that was not used lately. An interposer
 * remembers what a number stands for until it sees it closed, and it does not
 * see these calls. */
static inline int raw_fresh(int fd)
{
    if (fd < 0)
        return fd;
    unsigned turn = __atomic_fetch_add(&raw_turns, 1, __ATOMIC_RELAXED);
    int fresh = (int)RAW3(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 100 + turn % 600);
    RAW1(SYS_close, fd);
    return fresh;
}

static inline int raw_open(const char *path, int flags)
{
    return raw_fresh((int)RAW4(SYS_openat, AT_FDCWD, path, flags, 0644));
}
static inline int raw_close(int fd) { return (int)RAW1(SYS_close, fd); }
static inline long raw_read(int fd, void *at, size_t len) { return RAW3(SYS_read, fd, at, len); }
static inline long raw_write(int fd, const void *at, size_t len)
{
    return RAW3(SYS_write, fd, at, len);
}
static inline long raw_pread(int fd, void *at, size_t len, off_t from)
{
    return RAW4(SYS_pread64, fd, at, len, from);
}
static inline long raw_pwrite(int fd, const void *at, size_t len, off_t to)
{
    return RAW4(SYS_pwrite64, fd, at, len, to);
}
static inline long raw_seek(int fd, off_t to, int whence)
{
    return RAW3(SYS_lseek, fd, to, whence);
}
static inline int raw_pair(long result, int fd[2])
{
    if (result == 0) {
        fd[0] = raw_fresh(fd[0]);
        fd[1] = raw_fresh(fd[1]);
    }
    return (int)result;
}
static inline int raw_pipe(int fd[2]) { return raw_pair(RAW2(SYS_pipe2, fd, 0), fd); }
static inline int raw_socketpair(int type, int fd[2])
{
    return raw_pair(RAW4(SYS_socketpair, AF_UNIX, type, 0, fd), fd);
}
static inline int raw_socket(int family, int type)
{
    return raw_fresh((int)RAW3(SYS_socket, family, type, 0));
}
static inline int raw_accept(int fd) { return raw_fresh((int)RAW3(SYS_accept, fd, 0, 0)); }
static inline int raw_dup(int fd) { return raw_fresh((int)RAW1(SYS_dup, fd)); }
static inline int raw_dup2(int fd, int to) { return (int)RAW2(SYS_dup2, fd, to); }
static inline int raw_fcntl(int fd, int what, long arg)
{
    return (int)RAW3(SYS_fcntl, fd, what, arg);
}
static inline int raw_nonblock(int fd)
{
    return raw_fcntl(fd, F_SETFL, raw_fcntl(fd, F_GETFL, 0) | O_NONBLOCK);
}
static inline int raw_stat(const char *path, struct stat *st)
{
    return (int)RAW4(SYS_newfstatat, AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}
static inline int raw_fstat(int fd, struct stat *st) { return (int)RAW2(SYS_fstat, fd, st); }
static inline int raw_mkdir(const char *path)
{
    return (int)RAW3(SYS_mkdirat, AT_FDCWD, path, 0755);
}
static inline int raw_unlink(const char *path)
{
    return (int)RAW3(SYS_unlinkat, AT_FDCWD, path, 0);
}
static inline int raw_rmdir(const char *path)
{
    return (int)RAW3(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}
static inline int raw_fork(void) { return (int)RAW1(SYS_clone, SIGCHLD); }
static inline int raw_wait(int pid, int *status) { return (int)RAW4(SYS_wait4, pid, status, 0, 0); }
static inline void raw_exit(int status)
{
    for (;;)
        RAW1(SYS_exit_group, status);
}
static inline void *raw_map(size_t len)
{
    return (void *)RAW6(SYS_mmap, 0, len, 3 /* read, write */, 0x22 /* private, anonymous */, -1, 0);
}
static inline uint64_t raw_now(void)
{
    struct timespec now;
    RAW2(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
static inline void raw_sleep(long ns)
{
    struct timespec span = {ns / 1000000000, ns % 1000000000};
    RAW2(SYS_nanosleep, &span, 0);
}

#endif
