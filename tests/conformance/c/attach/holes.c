/* A program without a loader that reads by an instruction which cannot be replaced: a branch leads between the number and the call.
 *
 *   holes      reads once and ends
 *   holes N    prints a line, and reads for N seconds */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

long hole_read(int fd, char *to, long len);
__asm__(".globl hole_read\n"
        ".type hole_read, @function\n"
        "hole_read:\n\t"
        "mov $1, %r8d\n\t"
        "mov $0, %eax\n"
        "1:\tnop\n\t"
        "syscall\n\t"
        "dec %r8d\n\t"
        "jnz 1b\n\t"
        "ret\n\t"
        ".size hole_read, . - hole_read\n");

int main(int argc, char **argv)
{
    static char block[65536];
    int fd = open("/dev/zero", O_RDONLY);
    time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 0);
    if (argc > 1) {
        puts("reads");
        fflush(stdout);
    }
    do {
        if (hole_read(fd, block, sizeof block) != sizeof block)
            return 1;
        usleep(1000);
    } while (time(NULL) < end);
    return 0;
}
