/* What can happen to a descriptor while its readiness is withheld: `withheld CASE`.
 * Each case sends until it is refused, does something, and says whether an event came
 * and the next call went through. */
#define _GNU_SOURCE
#include "probe.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

static char block[1 << 16];
static int greedy[2];
static int epoll;

static void control(int set, int operation, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.fd = fd};
    if (epoll_ctl(set, operation, fd, &event) != 0)
        say("epoll_ctl %d: %s", operation, error_name(-1));
}

/* Takes everything, unseen. */
static void drain(void)
{
    while (RAW6(SYS_recvfrom, greedy[1], block, sizeof block, MSG_DONTWAIT, 0, 0) > 0)
        ;
}

static void pair(uint32_t events)
{
    int fd[2];
    raw_socketpair(SOCK_STREAM, fd);
    greedy[0] = fd[0];
    greedy[1] = fd[1];
    raw_nonblock(greedy[0]);
    control(epoll, EPOLL_CTL_ADD, greedy[0], events);
}

static int event_within(int set, int ms)
{
    struct epoll_event events[4];
    uint64_t from = raw_now();
    int n = epoll_wait(set, events, 4, ms);
    if (n == 0 && milliseconds(from) < ms)
        say("the wait ended early");
    return n;
}

/* Until it is refused: there is nothing in the other end's way. */
static void exhaust(void)
{
    long n;
    while ((n = send(greedy[0], block, 4096, 0)) > 0)
        drain();
    if (n != -1 || errno != EAGAIN)
        say("sent %ld %s", n, error_name(n));
}

static void goes_on(const char *what, int set)
{
    int n = event_within(set, 3000);
    long sent = send(greedy[0], block, 4096, 0);
    say("%s: %s, %s", what, n == 1 ? "an event" : "no event", sent == 4096 ? "sent" : "not sent");
}

/* A connection that has sent nothing, or little, takes a part of much, as bare. */
static void idle(long first)
{
    pair(EPOLLOUT | EPOLLET);
    event_within(epoll, 1000);
    if (first > 0 && send(greedy[0], block, first, 0) != first)
        say("the first %ld bytes were refused", first);
    long n = send(greedy[0], block, sizeof block, 0);
    say("after %ld bytes: %s", first, n > 4000 && n < 40000 ? "a part" : error_name(n));
    exhaust();
    goes_on("the rest", epoll);
    close(greedy[0]);
}

static void *sender(void *unused)
{
    (void)unused;
    raw_sleep(30000000);
    exhaust();
    return 0;
}

static void threads(void)
{
    int came = 0;
    for (int k = 0; k < 8; k++) {
        pthread_t thread;
        while (event_within(epoll, 0) > 0)
            ;
        pthread_create(&thread, 0, sender, 0);
        /* The first may be the kernel's own, before the call was refused. */
        came += event_within(epoll, 3000) == 1;
        pthread_join(thread, 0);
        exhaust();
        came += event_within(epoll, 3000) == 1;
    }
    say("another thread's call: %d events", came);
}

static void fork_and(const char *what, int goes_on_itself)
{
    int status, pid;
    exhaust();
    pid = fork();
    if (pid == 0) {
        if (goes_on_itself) {
            /* Its parent holds it, not the child: that is refused by itself. */
            say("%s: %d events", what, event_within(epoll, 3000));
            exhaust();
            goes_on(what, epoll);
        } else {
            close(greedy[0]);
            close(epoll);
        }
        _exit(0);
    }
    waitpid(pid, &status, 0);
    drain();
    if (!goes_on_itself)
        goes_on(what, epoll);
}

/* In a set that the next program is left: what it finds there. */
static void runs(char *self, const char *what, uint32_t events)
{
    char numbers[2][16];
    char *after[] = {self, "runs", numbers[0], numbers[1], (char *)what, 0};
    char *none[] = {"/nowhere", 0};
    int status, pid = fork();
    if (pid == 0) {
        epoll = epoll_create1(0);
        pair(events);
        event_within(epoll, 1000);
        exhaust();
        say("%s: no such program: %s", what, error_name(execv(none[0], none)));
        exhaust();
        goes_on(what, epoll);
        exhaust();
        for (int i = 0; i < 2; i++)
            fcntl(greedy[i], F_SETFD, 0);
        snprintf(numbers[0], 16, "%d", epoll);
        snprintf(numbers[1], 16, "%d", greedy[0]);
        execv(self, after);
        _exit(1);
    }
    waitpid(pid, &status, 0);
}

/* A hold of seconds: time limits are the program's own. */
static void timeouts(void)
{
    struct pollfd fds = {.fd = greedy[0], .events = POLLOUT};
    struct timeval tv = {0, 200000};
    fd_set out;
    exhaust();
    uint64_t from = raw_now();
    int n = poll(&fds, 1, 120);
    say("poll: %d %s", n, milliseconds(from) >= 120 ? "in time" : "early");
    from = raw_now();
    n = event_within(epoll, 120);
    say("epoll_wait: %d %s", n, milliseconds(from) >= 120 ? "in time" : "early");
    FD_ZERO(&out);
    FD_SET(greedy[0], &out);
    from = raw_now();
    n = select(greedy[0] + 1, 0, &out, 0, &tv);
    say("select: %d %s, %ld us left", n, milliseconds(from) >= 200 ? "in time" : "early", (long)tv.tv_usec);
    say("poll at once: %d", poll(&fds, 1, 0));
    fds.events = POLLOUT | POLLIN;
    raw_write(greedy[1], "x", 1);
    n = poll(&fds, 1, 1000);
    say("poll for both: %d %s", n, fds.revents == POLLIN ? "in" : "wrong");
    raw_close(greedy[1]);
    from = raw_now();
    fds.events = POLLOUT;
    n = poll(&fds, 1, 100);
    say("poll after the end: %d %s", n, milliseconds(from) >= 100 ? "in time" : "early");
}

static void accepts(uint32_t events)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int listener = raw_socket(AF_INET, SOCK_STREAM), got = 0, in_vain = 0, turns = 0;
    bind(listener, (void *)&at, sizeof at);
    listen(listener, 64);
    getsockname(listener, (void *)&at, &len);
    raw_nonblock(listener);
    control(epoll, EPOLL_CTL_ADD, listener, events);
    for (int k = 0; k < 20; k++)
        RAW3(SYS_connect, raw_socket(AF_INET, SOCK_STREAM), &at, sizeof at);
    uint64_t from = raw_now();
    while (got < 20 && event_within(epoll, 3000) == 1) {
        turns++;
        int tries = 0, fd;
        while ((fd = accept4(listener, 0, 0, SOCK_CLOEXEC)) >= 0) {
            tries++;
            got++;
        }
        in_vain += tries == 0;
    }
    say("accepted %d, %s", got, in_vain <= 1 && turns < 40 ? "not in vain" : "in vain");
    say("# elapsed %ld ms", milliseconds(from));
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    guard(30);
    if (strcmp(what, "runs") == 0) {
        struct epoll_event event;
        int n = epoll_wait(atoi(argv[2]), &event, 1, 3000);
        say("%s: in the next program: %d of its events", argv[4],
            n == 1 && event.events == EPOLLOUT && event.data.fd == atoi(argv[3]));
        return 0;
    }
    epoll = epoll_create1(EPOLL_CLOEXEC);
    pair(EPOLLOUT | EPOLLIN | EPOLLET);
    event_within(epoll, 1000);
    if (strcmp(what, "close") == 0) {
        exhaust();
        close(greedy[0]);
        say("closed: %d events", event_within(epoll, 100));
        int fd[2];
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd);
        int old = greedy[0];
        greedy[0] = dup2(fd[0], old);
        greedy[1] = fd[1];
        control(epoll, EPOLL_CTL_ADD, old, EPOLLOUT | EPOLLET);
        say("its number: %d events at once", event_within(epoll, 0));
        exhaust();
        goes_on("its number", epoll);
    } else if (strcmp(what, "change") == 0) {
        exhaust();
        control(epoll, EPOLL_CTL_MOD, greedy[0], EPOLLIN);
        say("for input only: %d events", event_within(epoll, 100));
        control(epoll, EPOLL_CTL_MOD, greedy[0], EPOLLOUT | EPOLLET);
        goes_on("changed", epoll);
        exhaust();
        control(epoll, EPOLL_CTL_DEL, greedy[0], 0);
        say("taken out: %d events", event_within(epoll, 100));
        control(epoll, EPOLL_CTL_ADD, greedy[0], EPOLLOUT | EPOLLONESHOT);
        say("put in: %d events", event_within(epoll, 3000));
        say("one shot: %d events", event_within(epoll, 100));
        exhaust();
        say("not armed: %d events", event_within(epoll, 150));
        control(epoll, EPOLL_CTL_MOD, greedy[0], EPOLLOUT | EPOLLONESHOT);
        goes_on("armed", epoll);
        exhaust();
        control(epoll, EPOLL_CTL_MOD, greedy[0], EPOLLOUT | EPOLLONESHOT);
        struct epoll_event event = {.events = EPOLLOUT};
        int again = epoll_ctl(epoll, EPOLL_CTL_ADD, greedy[0], &event);
        say("put in twice: %s", error_name(again));
        control(epoll, EPOLL_CTL_DEL, greedy[0], 0);
        again = epoll_ctl(epoll, EPOLL_CTL_DEL, greedy[0], 0);
        say("taken out twice: %s", error_name(again));
    } else if (strcmp(what, "end") == 0) {
        control(epoll, EPOLL_CTL_MOD, greedy[0], EPOLLOUT);
        exhaust();
        raw_close(greedy[1]);
        int turns = 0;
        long n = -1;
        uint64_t from = raw_now();
        while (milliseconds(from) < 3000) {
            turns++;
            event_within(epoll, 1000);
            n = send(greedy[0], block, 10, MSG_NOSIGNAL);
            if (n >= 0 || errno != EAGAIN)
                break;
        }
        say("the other end closed: %s, %s", error_name(n), turns < 10 ? "few turns" : "many turns");
    } else if (strcmp(what, "fork") == 0) {
        fork_and("a child closed it", 0);
        fork_and("a child goes on", 1);
    } else if (strcmp(what, "exec") == 0) {
        runs(argv[0], "level", EPOLLOUT);
        runs(argv[0], "edge", EPOLLOUT | EPOLLIN | EPOLLET);
        runs(argv[0], "alone", EPOLLOUT | EPOLLEXCLUSIVE);
    } else if (strcmp(what, "threads") == 0) {
        threads();
    } else if (strcmp(what, "idle") == 0) {
        idle(0);
        idle(200);
    } else if (strcmp(what, "nested") == 0) {
        int outer = epoll_create1(EPOLL_CLOEXEC);
        struct pollfd fds = {.fd = epoll, .events = POLLIN};
        control(outer, EPOLL_CTL_ADD, epoll, EPOLLIN);
        event_within(outer, 0);
        exhaust();
        say("in another set: %d events", event_within(outer, 3000));
        goes_on("in another set", epoll);
        exhaust();
        say("asked by poll: %d", poll(&fds, 1, 3000));
    } else if (strcmp(what, "several") == 0) {
        int second = epoll_create1(EPOLL_CLOEXEC);
        control(second, EPOLL_CTL_ADD, greedy[0], EPOLLOUT | EPOLLET);
        int sent = 0;
        for (int k = 0; k < 6; k++) {
            sent += send(greedy[0], block, 4096, 0) == 4096;
            drain();
        }
        say("in two sets: %d sent", sent);
        char c;
        if (argc > 2)
            raw_read(0, &c, 1);
    } else if (strcmp(what, "timeouts") == 0) {
        timeouts();
    } else if (strcmp(what, "accept") == 0) {
        accepts(EPOLLIN);
    } else if (strcmp(what, "exclusive") == 0) {
        accepts(EPOLLIN | EPOLLEXCLUSIVE);
    } else if (strcmp(what, "told") == 0) {
        /* The test changes the limits at the first line, and says when. */
        char c;
        if (argc > 2)
            exhaust();
        say("ready");
        if (argc > 2) {
            uint64_t from = raw_now();
            say("lifted: %d events", event_within(epoll, 10000));
            say("# elapsed %ld ms", milliseconds(from));
            return 0;
        }
        raw_read(0, &c, 1);
        exhaust();
        goes_on("unseen before", epoll);
    }
    return 0;
}
