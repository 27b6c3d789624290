/* Writes that others can see as one: how many calls the kernel counts for each (syscw of proc_pid_io(5)), and whether records of two
 * processes with one open file are torn.
 *
 *   whole FOLDER */
#define _GNU_SOURCE
#include "probe.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef RWF_DSYNC
#define RWF_DSYNC 2
#endif
#ifndef RWF_APPEND
#define RWF_APPEND 16
#endif

enum { RECORD = 16384, RECORDS = 20, LARGE = 3 << 20, SMALL = 400000, BLOCKS = 96 * 4096 };

static char *block;
static char path[4096];

static long writes(void)
{
    char line[128];
    long count = -1;
    FILE *io = fopen("/proc/self/io", "r");
    while (io != NULL && fgets(line, sizeof line, io) != NULL)
        sscanf(line, "syscw: %ld", &count);
    if (io != NULL)
        fclose(io);
    return count;
}

static void once(const char *name, int flags, int how, size_t len)
{
    struct iovec parts[3] = {{block, 1000}, {block + 1000, len / 2}, {block + 1000 + len / 2, len - 1000 - len / 2}};
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | flags, 0600);
    if (fd < 0) {
        say("%s: done whole", name);
        return;
    }
    long before = writes(), put = -1;
    switch (how) {
    case 0:
        put = write(fd, block, len);
        break;
    case 1:
        put = writev(fd, parts, 3);
        break;
    case 2:
        put = pwrite(fd, block, len, 4096);
        break;
    case 3:
        put = pwritev(fd, parts, 3, 4096);
        break;
    case 4:
        put = pwritev2(fd, parts, 3, -1, RWF_DSYNC);
        break;
    case 5:
        put = pwritev2(fd, parts, 3, 0, RWF_APPEND);
        break;
    }
    long calls = writes() - before;
    if (put == (long)len && calls == 1)
        say("%s: done whole", name);
    else
        say("%s: %ld of %zu bytes by %ld calls", name, put, len, calls);
    close(fd);
}

static void torn(void)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), bad = 0;
    for (int k = 0; k < 2; k++)
        if (fork() == 0) {
            memset(block, 'A' + k, RECORD);
            for (int i = 0; i < RECORDS; i++)
                if (write(fd, block, RECORD) != RECORD)
                    _exit(1);
            _exit(0);
        }
    while (wait(NULL) > 0)
        ;
    for (int i = 0; i < 2 * RECORDS; i++) {
        int same = pread(fd, block, RECORD, (off_t)i * RECORD) == RECORD;
        for (int j = 1; same && j < RECORD; j++)
            same = block[j] == block[0];
        bad += !same;
    }
    say("%d of %d records torn", bad, 2 * RECORDS);
    close(fd);
}

int main(int argc, char **argv)
{
    if (argc != 2 || posix_memalign((void **)&block, 4096, LARGE) != 0)
        return 2;
    memset(block, 'x', LARGE);
    snprintf(path, sizeof path, "%s/whole-%d", argv[1], (int)getpid());
    once("write", 0, 0, SMALL);
    once("writev", 0, 1, SMALL);
    once("pwrite", 0, 2, SMALL);
    once("pwritev", 0, 3, SMALL);
    once("appended", O_APPEND, 0, LARGE);
    once("appended list", O_APPEND, 1, LARGE);
    once("appended by flag", 0, 5, LARGE);
    once("synchronous", O_DSYNC, 0, LARGE);
    once("synchronous list", O_SYNC, 1, SMALL);
    once("synchronous by flag", 0, 4, LARGE);
    once("direct", O_DIRECT, 0, BLOCKS);
    torn();
    unlink(path);
    return 0;
}
