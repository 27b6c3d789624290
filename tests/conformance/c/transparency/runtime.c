/* A program whose runtime makes its execs by itself, as Go's does, by whose symbol it
 * is known. The one that it runs writes 8 KiB. */
#define _GNU_SOURCE
#include "probe.h"

#include <unistd.h>

extern char **environ;

void crosscall2(void)
{
}

int main(int argc, char **argv)
{
    static char block[1024], self[512];
    char *next[] = {argv[0], "write", NULL};
    if (argc < 2) {
        RAW3(SYS_readlink, "/proc/self/exe", self, sizeof self - 1);
        RAW3(SYS_execve, self, next, environ);
        return 9;
    }
    int fd = raw_open("/dev/null", O_WRONLY);
    for (int i = 0; i < 8; i++)
        if (write(fd, block, sizeof block) != (ssize_t)sizeof block)
            return 1;
    say("%s: done", argv[1]);
    return 0;
}
