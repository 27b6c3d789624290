/* A parent that holds a lease forks children; all write under one limit:
 * forks CHILDREN BYTES (each, in pieces of 256). */
#define _GNU_SOURCE
#include "probe.h"

#include <sys/wait.h>
#include <unistd.h>

static void write_all(int fd, long bytes)
{
    static char block[256];
    for (long at = 0; at < bytes; at += (long)sizeof block)
        if (write(fd, block, sizeof block) != (ssize_t)sizeof block)
            _exit(9);
}

int main(int argc, char **argv)
{
    int children = argc > 1 ? atoi(argv[1]) : 8;
    long bytes = argc > 2 ? atol(argv[2]) : 32768;
    int fd = raw_open("/dev/null", O_WRONLY);
    int bad = 0;
    guard(30);
    uint64_t from = raw_now();
    /* Small writes in quick succession are what leases are made for. */
    write_all(fd, bytes);
    for (int k = 0; k < children; k++) {
        if (fork() == 0) {
            write_all(fd, bytes);
            _exit(0);
        }
    }
    for (int k = 0; k < children; k++) {
        int status = 0;
        wait(&status);
        bad += status != 0;
    }
    say("%d children, %d of them failed", children, bad);
    say("# bytes %ld", (children + 1) * bytes);
    say("# elapsed %ld ms", milliseconds(from));
    return 0;
}
