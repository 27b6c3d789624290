/* Preloaded into a daemon, which it kills in the middle of what it writes.
 *   KILLER_FOLDER=FOLDER   calls on files below it are counted
 *   KILLER=FILE            from the time that it is there: "N HOW", kill at the N-th of them
 * HOW: b before the call, h with half of the bytes written, a after the call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_long calls;
static atomic_long at;
static atomic_int how;

/* The moment of this call: 0 for none of ours or none to die at. */
static int moment(const char *path)
{
    const char *folder = getenv("KILLER_FOLDER"), *file = getenv("KILLER");
    if (!folder || !file || strncmp(path, folder, strlen(folder)))
        return 0;
    if (!atomic_load(&at)) {
        char text[32] = "";
        long number = 0;
        char letter = 0;
        int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return 0;
        ssize_t got = syscall(SYS_read, fd, text, sizeof text - 1);
        syscall(SYS_close, fd);
        if (got <= 0 || sscanf(text, "%ld %c", &number, &letter) != 2)
            return 0;
        atomic_store(&how, letter);
        atomic_store(&at, number);
    }
    return atomic_fetch_add(&calls, 1) + 1 == atomic_load(&at) ? atomic_load(&how) : 0;
}

static int moment_of(int fd)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return 0;
    path[length] = 0;
    return moment(path);
}

static void die(void)
{
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;)
        pause();
}

#define AROUND(how, call)           \
    do {                            \
        int when = how;             \
        if (when && when != 'a')    \
            die();                  \
        long result = call;         \
        if (when)                   \
            die();                  \
        return (int)result;         \
    } while (0)

/* By the library, so that errno is set as usual. */
#define REAL(type, name) ((type)dlsym(RTLD_NEXT, name))

ssize_t write(int fd, const void *bytes, size_t length)
{
    ssize_t (*real)(int, const void *, size_t) = REAL(ssize_t (*)(int, const void *, size_t), "write");
    int when = moment_of(fd);
    if (when == 'b')
        die();
    ssize_t done = real(fd, bytes, when == 'h' ? length / 2 : length);
    if (when)
        die();
    return done;
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t place)
{
    ssize_t (*real)(int, const void *, size_t, off64_t) =
        REAL(ssize_t (*)(int, const void *, size_t, off64_t), "pwrite64");
    int when = moment_of(fd);
    if (when == 'b')
        die();
    ssize_t done = real(fd, bytes, when == 'h' ? length / 2 : length, place);
    if (when)
        die();
    return done;
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t place)
{
    return pwrite64(fd, bytes, length, place);
}

int fsync(int fd)
{
    AROUND(moment_of(fd), REAL(int (*)(int), "fsync")(fd));
}

int fdatasync(int fd)
{
    AROUND(moment_of(fd), REAL(int (*)(int), "fdatasync")(fd));
}

int ftruncate64(int fd, off64_t length)
{
    AROUND(moment_of(fd), REAL(int (*)(int, off64_t), "ftruncate64")(fd, length));
}

int ftruncate(int fd, off_t length)
{
    return ftruncate64(fd, length);
}

int rename(const char *from, const char *to)
{
    AROUND(moment(to), REAL(int (*)(const char *, const char *), "rename")(from, to));
}

int unlink(const char *path)
{
    AROUND(moment(path), REAL(int (*)(const char *), "unlink")(path));
}

int open64(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & (O_CREAT | O_TMPFILE)) {
        va_list more;
        va_start(more, flags);
        mode = va_arg(more, mode_t);
        va_end(more);
    }
    AROUND(flags & O_CREAT ? moment(path) : 0,
           REAL(int (*)(const char *, int, ...), "open64")(path, flags, mode));
}

int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & (O_CREAT | O_TMPFILE)) {
        va_list more;
        va_start(more, flags);
        mode = va_arg(more, mode_t);
        va_end(more);
    }
    return open64(path, flags, mode);
}
