/* Preloaded into a daemon.
 *   FAULTY_FSYNC=FILE   while that is there, an fsync of changes.json does not end, for 30 s at most
 *   FAULTY_CLOCK=FILE   once that is there, clock_gettime fails in the thread that FAULTY_THREAD names
 *   FAULTY_READ=FILE    while that is there, the configuration file cannot be looked at, for 30 s at most
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int is_there(const char *variable)
{
    const char *path = getenv(variable);
    return path && access(path, F_OK) == 0;
}

int fsync(int fd)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    for (int i = 0; i < 3000 && strstr(path, "changes.json") && is_there("FAULTY_FSYNC"); i++)
        usleep(10000);
    return (int)syscall(SYS_fsync, fd);
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    char name[17] = "";
    prctl(PR_GET_NAME, name);
    const char *thread = getenv("FAULTY_THREAD");
    if (thread && !strcmp(name, thread) && is_there("FAULTY_CLOCK")) {
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_clock_gettime, clock, time);
}

/* As std::fs::metadata asks. */
int statx(int fd, const char *path, int flags, unsigned mask, struct statx *about)
{
    for (int i = 0; i < 3000 && path && strstr(path, "bonsai.toml") && is_there("FAULTY_READ"); i++)
        usleep(10000);
    return (int)syscall(SYS_statx, fd, path, flags, mask, about);
}
