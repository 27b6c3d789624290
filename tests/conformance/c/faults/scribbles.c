/* A member of a service that writes anything into the service's memory.
 *
 *   scribbles SEED      0: ones everywhere behind the header; others: random words there */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char *path = getenv("BONSAI_LEDGER");
    struct stat of;
    int fd = path ? open(path, O_RDWR) : -1;
    uint64_t state = argc > 1 ? strtoull(argv[1], NULL, 0) : 0, seed = state;
    if (fd < 0 || fstat(fd, &of))
        return 3;
    uint64_t *all = mmap(NULL, of.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (all == MAP_FAILED)
        return 3;
    for (size_t i = 4096 / 8; i < (size_t)of.st_size / 8; i++) {
        state = state * 0x5851f42d4c957f2d + 0x14057b7ef767814f;
        all[i] = seed ? state ^ state >> 31 : UINT64_MAX;
    }
    puts("written");
    fflush(stdout);
    char byte;
    (void)!read(0, &byte, 1);
    _exit(0);
}
