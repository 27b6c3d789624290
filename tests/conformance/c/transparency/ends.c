/* A program that needs little stack: it moves some bytes through a file of its own, and ends with 7.
 *
 *   ends FOLDER */
#define _GNU_SOURCE
#include "probe.h"

#include <fcntl.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    char path[256], bytes[1000] = {0};
    long moved = 0;
    snprintf(path, sizeof path, "%s/ends-%d", argc > 1 ? argv[1] : ".", (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    for (int i = 0; i < 20; i++)
        moved += write(fd, bytes, sizeof bytes);
    lseek(fd, 0, SEEK_SET);
    while (read(fd, bytes, sizeof bytes) > 0)
        moved -= sizeof bytes;
    unlink(path);
    return moved == 0 ? 7 : 1;
}
