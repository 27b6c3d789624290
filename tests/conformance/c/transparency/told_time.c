/* Writes while its clock is a false one. */
#define _GNU_SOURCE
#include "probe.h"

#include <unistd.h>

int main(void)
{
    static char block[1000];
    struct timespec told, is;
    guard(50);
    clock_gettime(CLOCK_MONOTONIC, &told);
    RAW2(SYS_clock_gettime, CLOCK_MONOTONIC, &is);
    say("false: %d", labs(told.tv_sec - is.tv_sec) > 1000000);
    int fd = open("/dev/null", O_WRONLY), done = 0;
    for (int k = 0; k < 64; k++)
        done += write(fd, block, sizeof block) == (ssize_t)sizeof block;
    say("%d writes of 64", done);
    return 0;
}
