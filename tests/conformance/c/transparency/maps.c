/* Maps a file and sums its bytes up.
 *
 *   maps read FILE     privately, to be read
 *   maps shared FILE   shared, to be read
 *   maps write FILE    shared, to be written: adds one to the first byte of each page
 *   maps number FILE   as "read", by syscall(2)
 *   maps stdio FILE    by fopen(3) with "m": glibc maps it
 *   maps code FILE     to be executed, too: does not count as data
 *   maps memory N      N times a page of no file: prints the time of one in ns */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void many(long times)
{
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (long i = 0; i < times; i++) {
        void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED || munmap(at, 4096))
            exit(1);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    double ns = (to.tv_sec - from.tv_sec) * 1e9 + (to.tv_nsec - from.tv_nsec);
    printf("# memory %.1f ns\n", ns / (double)times);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    const char *how = argv[1];
    if (!strcmp(how, "memory")) {
        many(atol(argv[2]));
        return 0;
    }
    if (!strcmp(how, "stdio")) {
        FILE *from = fopen(argv[2], "rm");
        unsigned long all = 0;
        for (int c; from && (c = getc(from)) != EOF;)
            all += (unsigned char)c;
        printf("sum %lu\n", all);
        return !from || ferror(from);
    }
    int writes = !strcmp(how, "write");
    int fd = open(argv[2], writes ? O_RDWR : O_RDONLY);
    struct stat file;
    if (fd < 0 || fstat(fd, &file))
        return 1;
    size_t len = (size_t)file.st_size;
    int prot = PROT_READ;
    if (writes)
        prot |= PROT_WRITE;
    if (!strcmp(how, "code"))
        prot |= PROT_EXEC;
    int flags = writes || !strcmp(how, "shared") ? MAP_SHARED : MAP_PRIVATE;
    unsigned char *at = !strcmp(how, "number")
        ? (unsigned char *)syscall(SYS_mmap, NULL, len, prot, flags, fd, 0L)
        : mmap(NULL, len, prot, flags, fd, 0);
    if (at == MAP_FAILED)
        return 1;
    unsigned long sum = 0;
    for (size_t i = 0; i < len; i += 4096) {
        if (writes)
            at[i]++;
        sum += at[i];
    }
    printf("sum %lu\n", sum);
    return 0;
}
