/* An event loop, in each way of waiting for readiness: `loops WAY TRIGGER DIRECTION`
 * moves BYTES over one greedy connection, while a polite one goes to and fro. What the
 * other end does is unseen. A limit on the greedy one shows itself as readiness that
 * comes later: never as a call that takes long, an event without anything to do, or a
 * loop that turns for nothing. The direction `splice-out` or `splice-in` moves them by
 * splice, through a pipe, as proxies do. `loops WAY TRIGGER DIRECTION before` stops before it
 * makes its epoll set, `after` behind that. */
#define _GNU_SOURCE
#include "probe.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __GLIBC__
/* musl has no function of this name. */
static int epoll_pwait2(int set, struct epoll_event *events, int max,
                        const struct timespec *time, const sigset_t *mask)
{
    return (int)syscall(SYS_epoll_pwait2, set, events, max, time, mask, 8);
}
#endif

enum { BYTES = 120000, CHUNK = 65536, PING = 16 };

static char block[CHUNK];
static const char *way, *trigger;
static int epoll = -1;

static unsigned char at(long i) { return (unsigned char)(i * 31 + (i >> 8)); }

/* One descriptor that is waited for. */
struct watched {
    int fd;
    short asked, got;
};

static uint32_t flags_of(const struct watched *w)
{
    uint32_t flags = (w->asked & POLLIN ? EPOLLIN : 0) | (w->asked & POLLOUT ? EPOLLOUT : 0);
    if (strcmp(trigger, "edge") == 0)
        return flags | EPOLLET;
    return strcmp(trigger, "oneshot") == 0 ? flags | EPOLLONESHOT : flags;
}

static void arm(struct watched *w, int operation)
{
    struct epoll_event event = {.events = flags_of(w), .data.ptr = w};
    if (epoll >= 0 && epoll_ctl(epoll, operation, w->fd, &event) != 0)
        say("epoll_ctl %d: %s", operation, error_name(-1));
}

/* Waits for either; returns what the call has. */
static int wait_for(struct watched *w, int count, int ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    struct timeval tv = {ms / 1000, ms % 1000 * 1000L};
    int n;
    for (int k = 0; k < count; k++)
        w[k].got = 0;
    if (epoll >= 0) {
        struct epoll_event events[4];
        if (strcmp(way, "epoll_wait") == 0)
            n = epoll_wait(epoll, events, 4, ms);
        else if (strcmp(way, "epoll_pwait") == 0)
            n = epoll_pwait(epoll, events, 4, ms, 0);
        else
            n = epoll_pwait2(epoll, events, 4, &time, 0);
        for (int k = 0; k < n; k++) {
            struct watched *of = events[k].data.ptr;
            of->got = (short)((events[k].events & EPOLLIN ? POLLIN : 0) |
                              (events[k].events & EPOLLOUT ? POLLOUT : 0));
        }
        return n;
    }
    if (strstr(way, "poll")) {
        struct pollfd fds[4];
        for (int k = 0; k < count; k++)
            fds[k] = (struct pollfd){.fd = w[k].fd, .events = w[k].asked};
        n = strcmp(way, "poll") == 0 ? poll(fds, (nfds_t)count, ms)
                                     : ppoll(fds, (nfds_t)count, &time, 0);
        for (int k = 0; k < count; k++) {
            w[k].got = fds[k].revents;
            if (fds[k].fd != w[k].fd || fds[k].events != w[k].asked)
                say("the array was changed");
        }
        return n;
    }
    fd_set in, out;
    int high = 0;
    FD_ZERO(&in);
    FD_ZERO(&out);
    for (int k = 0; k < count; k++) {
        if (w[k].asked & POLLIN)
            FD_SET(w[k].fd, &in);
        if (w[k].asked & POLLOUT)
            FD_SET(w[k].fd, &out);
        high = w[k].fd >= high ? w[k].fd + 1 : high;
    }
    n = strcmp(way, "select") == 0 ? select(high, &in, &out, 0, &tv)
                                   : pselect(high, &in, &out, 0, &time, 0);
    for (int k = 0; k < count && n > 0; k++)
        w[k].got = (short)((FD_ISSET(w[k].fd, &in) ? POLLIN : 0) |
                           (FD_ISSET(w[k].fd, &out) ? POLLOUT : 0));
    return n;
}

/* The other ends: takes and checks, or gives, the greedy one's bytes. */
static int other_end(int fd, int takes)
{
    static char bytes[BYTES];
    long done = 0;
    for (long i = 0; i < BYTES; i++)
        bytes[i] = (char)at(i);
    while (done < BYTES) {
        long n = takes ? raw_read(fd, block, sizeof block)
                       : raw_write(fd, bytes + done, BYTES - (size_t)done);
        if (n <= 0 || (takes && memcmp(block, bytes + done, (size_t)n) != 0))
            return 1;
        done += n;
    }
    if (takes && raw_read(fd, block, 1) != 0)
        return 2;
    return 0;
}

/* Over pipes, which no limit here is for: in static programs its calls are seen, too. */
static int echoes(int from, int to)
{
    long n;
    while ((n = raw_read(from, block, PING)) > 0)
        if (raw_write(to, block, (size_t)n) != n)
            return 1;
    return 0;
}

/* A process that has these two of all descriptors given; the parent keeps the others. */
static int in_child(const int fds[6], int mine, int second, int (*run)(int, int), int argument)
{
    int pid = raw_fork();
    if (pid == 0) {
        for (int k = 0; k < 6; k++)
            if (fds[k] != mine && fds[k] != second)
                raw_close(fds[k]);
        raw_exit(run(mine, argument));
    }
    return pid;
}

/* The same as send or recv, through a pipe, which keeps what a socket did not take. */
static long by_splice(int fd, const char *from, size_t asked, int sends)
{
    static int ends[2] = {-1, -1};
    static size_t kept;
    if (ends[0] < 0)
        raw_pipe(ends);
    if (sends) {
        if (kept == 0)
            kept = (size_t)raw_write(ends[1], from, asked);
        long moved = splice(ends[0], 0, fd, 0, kept, SPLICE_F_NONBLOCK);
        kept -= moved > 0 ? (size_t)moved : 0;
        return moved;
    }
    long moved = splice(fd, 0, ends[1], 0, asked, SPLICE_F_NONBLOCK);
    for (long done = 0; done < moved;)
        done += raw_read(ends[0], block + done, (size_t)(moved - done));
    return moved;
}

static double cpu(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e3 +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e3;
}

/* If told so, says that it is there, and waits until it may go on: for whoever attaches. */
static void stop(int argc, char **argv, const char *where)
{
    char byte;
    if (argc > 4 && strcmp(argv[4], where) == 0) {
        say("%s", where);
        fflush(stdout);
        RAW3(SYS_read, 0, &byte, 1);
    }
}

int main(int argc, char **argv)
{
    int greedy[2], there[2], back[2], status, sends = strstr(argv[3], "out") != 0;
    int splices = strncmp(argv[3], "splice", 6) == 0;
    static char bytes[BYTES];
    way = argv[1];
    trigger = argv[2];
    guard(40);
    raw_socketpair(SOCK_STREAM, greedy);
    raw_pipe(there);
    raw_pipe(back);
    for (int k = 0; k < 2; k++) {
        int small = 1 << 16;
        setsockopt(greedy[k], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    }
    const int all[6] = {greedy[0], greedy[1], there[0], there[1], back[0], back[1]};
    int first = in_child(all, greedy[1], -1, other_end, sends);
    int second = in_child(all, there[0], back[1], echoes, back[1]);
    raw_close(greedy[1]);
    raw_close(there[0]);
    raw_close(back[1]);
    raw_nonblock(greedy[0]);
    raw_nonblock(back[0]);
    for (long i = 0; i < BYTES; i++)
        bytes[i] = (char)at(i);
    struct watched w[2] = {{.fd = greedy[0], .asked = sends ? POLLOUT : POLLIN},
                           {.fd = back[0], .asked = POLLIN}};
    stop(argc, argv, "before");
    if (strncmp(way, "epoll", 5) == 0) {
        epoll = epoll_create1(EPOLL_CLOEXEC);
        arm(&w[0], EPOLL_CTL_ADD);
        arm(&w[1], EPOLL_CTL_ADD);
    }
    stop(argc, argv, "after");
    long done = 0, rounds = 0, turns = 0, in_vain = 0, events = 0, refused = 0, wrong = 0, slow = 0;
    double cpu_before = cpu();
    uint64_t from = raw_now();
    raw_write(there[1], block, PING);
    while (done < BYTES) {
        int n = wait_for(w, 2, 20000);
        turns++;
        if (n <= 0) {
            say("the wait ended with %d after %ld bytes", n, done);
            break;
        }
        if (w[1].got) {
            char pong[PING];
            long got = raw_read(back[0], pong, PING);
            if (got > 0) {
                rounds++;
                raw_sleep(1000000);
                raw_write(there[1], pong, (size_t)got);
            }
            if (strcmp(trigger, "oneshot") == 0)
                arm(&w[1], EPOLL_CTL_MOD);
        }
        if (w[0].got == 0)
            continue;
        events++;
        /* A short count means drained, or full, to a loop of edges. */
        for (int tries = 0; done < BYTES; tries++) {
            size_t asked = BYTES - (size_t)done < CHUNK ? BYTES - (size_t)done : CHUNK;
            uint64_t before = raw_now();
            long slept = sleeps();
            long moved = splices ? by_splice(greedy[0], bytes + done, asked, sends)
                         : sends ? send(greedy[0], bytes + done, asked, 0)
                                 : recv(greedy[0], block, asked, 0);
            slow += milliseconds(before) > 15 && sleeps() > slept;
            if (moved <= 0) {
                if (moved == 0 || errno != EAGAIN)
                    say("%s after %ld bytes", error_name(moved), done);
                refused++;
                in_vain += tries == 0;
                break;
            }
            wrong += !sends && memcmp(block, bytes + done, (size_t)moved) != 0;
            done += moved;
            if ((size_t)moved < asked && strcmp(trigger, "edge") == 0)
                break;
        }
        if (strcmp(trigger, "oneshot") == 0)
            arm(&w[0], EPOLL_CTL_MOD);
    }
    long elapsed = milliseconds(from);
    double used = cpu() - cpu_before;
    raw_close(greedy[0]);
    raw_close(there[1]);
    raw_wait(first, &status);
    say("%ld bytes, %ld wrong, the other end: %d", done, wrong, status);
    raw_wait(second, &status);
    say("the polite one went on: %s", rounds * 10 >= elapsed ? "yes" : "no");
    say("# rounds %ld", rounds);
    say("# turns %ld", turns);
    say("# events %ld", events);
    say("# refused %ld", refused);
    say("# in-vain %ld", in_vain);
    say("# slow %ld", slow);
    say("# cpu %ld ms", (long)used);
    say("# elapsed %ld ms", elapsed);
    return 0;
}
