/* Becomes a daemon, says under which process id (in a file, as daemons do),
 * writes 16 KiB, says so, and waits to be ended: background FILE */
#define _GNU_SOURCE
#include "probe.h"

#include <unistd.h>

static void note(const char *file, const char *text)
{
    char line[64];
    int n = snprintf(line, sizeof line, "%ld %s\n", RAW0(SYS_getpid), text);
    int fd = raw_open(file, O_WRONLY | O_CREAT | O_APPEND);
    raw_write(fd, line, (size_t)n);
    raw_close(fd);
}

int main(int argc, char **argv)
{
    static char block[1024];
    if (argc < 2 || daemon(1, 1) != 0)
        return 2;
    /* Twice, as the older ones do. */
    if (fork() != 0)
        _exit(0);
    guard(30);
    note(argv[1], "started");
    uint64_t from = raw_now();
    int fd = open("/dev/null", O_WRONLY);
    for (int k = 0; k < 16; k++)
        write(fd, block, sizeof block);
    char text[32];
    snprintf(text, sizeof text, "%ld", milliseconds(from));
    note(argv[1], text);
    for (;;)
        raw_sleep(1000000000);
}
