/* Much offered to a socket that takes little at once: MEGABYTES pass a pair of sockets, by writes of 8 MiB that do not wait.
 *
 *   impatient MEGABYTES   prints how much has passed */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static char block[8 << 20];

int main(int argc, char **argv)
{
    int pair[2];
    long all = argc > 1 ? atol(argv[1]) * 1000000 : 0, left = all, got = 0;
    if (all <= 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        return 2;
    if (fork() == 0) {
        fcntl(pair[1], F_SETFL, O_NONBLOCK);
        while (left > 0) {
            struct pollfd ready = {pair[1], POLLOUT, 0};
            ssize_t put = write(pair[1], block, left < (long)sizeof block ? (size_t)left : sizeof block);
            if (put > 0)
                left -= put;
            else
                poll(&ready, 1, -1);
        }
        _exit(0);
    }
    while (got < all) {
        ssize_t part = read(pair[0], block, 65536);
        if (part <= 0)
            return 1;
        got += part;
    }
    wait(NULL);
    printf("%ld bytes have passed\n", got);
    return 0;
}
