// A wall clock that a test sets: to the machine's, the seconds are added that stand in the file
// which CLOCK_FILE names. Nothing else sees it.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile long *ahead;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("CLOCK_FILE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *at = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED)
        ahead = at;
    close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int done = (int)syscall(SYS_clock_gettime, clock, now);
    if (done == 0 && clock == CLOCK_REALTIME && ahead)
        now->tv_sec += *ahead;
    return done;
}
