/* All descriptors above 2 are closed, in three ways; then it writes. */
#define _GNU_SOURCE
#include "probe.h"

#include <unistd.h>

static void write_some(void)
{
    static char block[1024];
    int fd = open("/dev/null", O_WRONLY);
    for (int k = 0; k < 16; k++)
        write(fd, block, sizeof block);
    say("wrote to %d", fd);
    close(fd);
}

int main(void)
{
    guard(30);
    uint64_t from = raw_now();
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
    write_some();
    say("close_range: %d", close_range(3, ~0u, 0));
    write_some();
    closefrom(3);
    write_some();
    say("# elapsed %ld ms", milliseconds(from));
    return 0;
}
