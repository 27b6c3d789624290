/* Unmaps the vDSO, as valgrind does, and goes on under limits. */
#define _GNU_SOURCE
#include "probe.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec at;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1e3 + at.tv_nsec / 1e6;
}

int main(void)
{
    static char bytes[4096];
    unsigned long vdso = getauxval(AT_SYSINFO_EHDR);
    int fd = open("/dev/null", O_WRONLY);
    long written = write(fd, bytes, sizeof bytes);
    printf("unmapped %ld\n", syscall(SYS_munmap, vdso, 4096L));
    double from = now();
    for (int i = 0; i < 30; i++)
        written += write(fd, bytes, sizeof bytes);
    printf("written %ld\n# elapsed %.3f ms\n", written, now() - from);
}
