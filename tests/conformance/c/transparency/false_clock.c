/* Tells a false time, of every clock: years ahead, years behind, or now this and now that, as
 * libraries that fake time do. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static unsigned turn;
    const char *jump = getenv("FALSE_CLOCK");
    long result = syscall(SYS_clock_gettime, clock, now);
    if (jump && !strcmp(jump, "wild"))
        now->tv_sec += ++turn % 2 ? 31536000 : -31536000;
    else if (jump)
        now->tv_sec += atol(jump);
    return (int)result;
}
