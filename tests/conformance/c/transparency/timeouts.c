/* SO_SNDTIMEO and SO_RCVTIMEO, 150 ms each: where the other end lets one wait,
 * and (`timeouts limited`: 10 kB/s, burst 1 kB) where the limit does. */
#define _GNU_SOURCE
#include "probe.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static char block[65536];

static void report(const char *name, long n, uint64_t from)
{
    long ms = milliseconds(from);
    say("%s: %ld %s, %s", name, n, error_name(n), ms < 145 ? "too early" : ms < 1000 ? "in time" : "too late");
    say("# %s %ld ms", name, ms);
}

int main(int argc, char **argv)
{
    int fd[2];
    struct timeval limit = {0, 150000};
    guard(20);
    raw_socketpair(SOCK_STREAM, fd);
    for (int k = 0; k < 2; k++) {
        setsockopt(fd[k], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        setsockopt(fd[k], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    }
    if (argc > 1 && strcmp(argv[1], "limited") == 0) {
        /* Each of these has 600 ms of earlier bytes before it. */
        send(fd[1], block, 1000, 0);
        raw_write(fd[0], block, 9000);
        uint64_t from = raw_now();
        /* In one piece: a datagram's worth that cannot be divided. */
        int whole[2];
        raw_socketpair(SOCK_SEQPACKET, whole);
        setsockopt(whole[1], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        long n = send(whole[1], block, 6000, 0);
        report("send", n, from);
        say("nothing of it arrived: %ld", RAW6(SYS_recvfrom, whole[0], block, 6000, MSG_DONTWAIT, 0, 0));
        /* What has come in is not lost, whatever the wait for it does. */
        long got = 0;
        int turns = 0;
        while (got < 9000 && turns++ < 40) {
            n = recv(fd[1], block, 3000, 0);
            if (n > 0)
                got += n;
            else if (errno != EAGAIN)
                break;
        }
        say("received %ld in turns with EAGAIN", got);
        return 0;
    }
    uint64_t from = raw_now();
    report("recv", recv(fd[0], block, 16, 0), from);
    raw_nonblock(fd[1]);
    while (raw_write(fd[1], block, 4096) > 0 || raw_write(fd[1], block, 1) > 0)
        ;
    raw_fcntl(fd[1], F_SETFL, O_RDWR);
    from = raw_now();
    report("send", send(fd[1], block, 16, 0), from);
    from = raw_now();
    report("write", write(fd[1], block, 16), from);
    return 0;
}
