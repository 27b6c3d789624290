/* A read into a buffer that is too small, found by the fortified functions. */
#define _GNU_SOURCE
#include "probe.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    char small[8];
    int fd[2];
    struct rlimit none = {0, 0};
    volatile size_t len = 64;
    setrlimit(RLIMIT_CORE, &none);
    raw_socketpair(SOCK_STREAM, fd);
    raw_write(fd[1], "0123456789", 10);
    if (argc < 2)
        return 2;
    say("%s", argv[1]);
    if (strcmp(argv[1], "read") == 0)
        return (int)read(fd[0], small, len);
    if (strcmp(argv[1], "recv") == 0)
        return (int)recv(fd[0], small, len, 0);
    if (strcmp(argv[1], "pread") == 0)
        return (int)pread(fd[0], small, len, 0);
    if (strcmp(argv[1], "recvfrom") == 0)
        return (int)recvfrom(fd[0], small, len, 0, NULL, NULL);
    len = 4;
    say("%d", (int)read(fd[0], small, len));
    return 0;
}
