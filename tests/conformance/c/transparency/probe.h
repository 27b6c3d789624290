/* What the programs of this folder share. Each prints lines that must be the
 * same bare and under Bonsai; a line that starts with # is for the test alone:
 * a time, or a number that differs from run to run. */
#ifndef PROBE_H
#define PROBE_H

#include "../raw.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Unseen, as all of raw.h. */
static inline void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

static inline void say(const char *format, ...)
{
    char line[600];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    line[n++] = '\n';
    raw_write(1, line, (size_t)n);
}

static inline const char *error_name(long result)
{
#ifdef __GLIBC__
    return result == -1 ? strerrorname_np(errno) : "none";
#else
    return result == -1 ? strerror(errno) : "none";
#endif
}

/* Ends the program, should something hang, with a signal that says so. */
static inline void guard(unsigned seconds)
{
    RAW1(SYS_alarm, seconds);
}

static inline long milliseconds(uint64_t since)
{
    return (long)((raw_now() - since) / 1000000);
}

/* How often this thread has gone to sleep: a call that takes long without that is held up by other programs. */
static inline long sleeps(void)
{
    struct rusage used;
    getrusage(RUSAGE_THREAD, &used);
    return used.ru_nvcsw;
}

#endif
