/* What the measured programs share. What a program says and how it is steered
 * goes through system call instructions of its own, which no interposer sees:
 * it must neither wait for the limit under test nor use it up. */
#ifndef RAW_H
#define RAW_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline long raw(long nr, long a, long b, long c, long d)
{
    register long r10 __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return result;
}

/* Both are answered without a system call or by one that no limit is on. */
static inline uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
static inline uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

static inline void sleep_until(uint64_t instant_ns)
{
    struct timespec t = {(time_t)(instant_ns / 1000000000u), (long)(instant_ns % 1000000000u)};
    while (raw(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, (long)&t, 0) == -4) { }
}

/* Text that grows, and goes to standard output in one piece. */
static char *said;
static size_t said_len, said_room;

__attribute__((format(printf, 1, 2), unused)) static void say(const char *format, ...)
{
    for (;;) {
        va_list args;
        va_start(args, format);
        size_t room = said_room - said_len;
        int n = vsnprintf(said ? said + said_len : NULL, room, format, args);
        va_end(args);
        if (n >= 0 && (size_t)n < room) {
            said_len += (size_t)n;
            return;
        }
        said_room = said_room * 2 + 65536;
        said = realloc(said, said_room);
        if (!said) abort();
    }
}

__attribute__((unused)) static void flush_said(void)
{
    size_t at = 0;
    while (at < said_len) {
        long n = raw(SYS_write, 1, (long)(said + at), (long)(said_len - at), 0);
        if (n <= 0) break;
        at += (size_t)n;
    }
    said_len = 0;
}

/* One line of standard input; 0 at its end. */
__attribute__((unused)) static int read_line(char *line, size_t room)
{
    size_t n = 0;
    while (n + 1 < room) {
        if (raw(SYS_read, 0, (long)(line + n), 1, 0) != 1) return 0;
        if (line[n] == '\n') {
            line[n] = 0;
            return 1;
        }
        n++;
    }
    return 0;
}

/* Ends with whoever started it, however that ended. */
static inline void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }

static inline void pin_to(unsigned cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

__attribute__((noreturn, unused)) static void fail(const char *what)
{
    say("{\"error\":\"%s: %m\"}\n", what);
    flush_said();
    _exit(1);
}

#endif
