/* A last word: a program that waits for no readiness sets O_NONBLOCK, so that the end cannot hang, and says goodbye.
 * Bare, the socket has room for that. */
#define _GNU_SOURCE
#include "probe.h"

#include <fcntl.h>
#include <unistd.h>

int main(void)
{
    static char block[20000];
    int fd[2];
    guard(20);
    raw_socketpair(SOCK_STREAM, fd);
    /* More than the burst. */
    say("sent %ld", (long)send(fd[0], block, sizeof block, 0));
    fcntl(fd[0], F_SETFL, fcntl(fd[0], F_GETFL) | O_NONBLOCK);
    for (int i = 0; i < 20; i++) {
        long n = write(fd[0], block, 400);
        if (n != 400)
            say("goodbye %d: %s", i, error_name(n));
    }
    /* A large send that may be refused, and a small one after it. */
    send(fd[0], block, sizeof block, 0);
    for (int i = 0; i < 5; i++) {
        long n = write(fd[0], block, 400);
        if (n != 400)
            say("goodbye after a refused send %d: %s", i, error_name(n));
    }
    say("ended");
    return 0;
}
