/* One thread sends, and is refused; the event that it may go on comes to others, which were asleep before.
 *
 *   sleepers KIND WAY [late|again]     KIND: level edge added armed exclusive;  WAY: wait pwait2 polled selected nested twin twins duplicate through
 *
 * Kinds: level by turns with nothing, edge once, one-shot added and armed anew, one-shot by a change, exclusive by turns with nothing.
 * Ways: the sleeper is in epoll_wait, in epoll_pwait2, in poll or select on the set, or in a set that the set is in; there are two or four
 * of them; it waits by another number of the set; or registrations are made by another number, as mio does.
 * late: the limits change before anything is sent; again: and once more later. */
#define _GNU_SOURCE
#include "probe.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char *kind, *way;
static int set, outer, waited, made, pair[2];
static sem_t go;

static int is(const char *what, const char *name)
{
    return strcmp(what, name) == 0;
}

/* Until the set may have something. */
static void sleep_outside(void)
{
    struct pollfd asked = {.fd = set, .events = POLLIN};
    struct epoll_event event;
    fd_set sets;
    FD_ZERO(&sets);
    FD_SET(set, &sets);
    if (is(way, "polled"))
        poll(&asked, 1, -1);
    else if (is(way, "selected"))
        select(set + 1, &sets, NULL, NULL, NULL);
    else if (is(way, "nested"))
        epoll_wait(outer, &event, 1, -1);
}

static void *sleeper(void *none)
{
    int outside = is(way, "polled") || is(way, "selected") || is(way, "nested");
    (void)none;
    for (;;) {
        struct epoll_event events[4];
        int n;
        if (outside)
            sleep_outside();
        if (is(way, "pwait2"))
            n = epoll_pwait2(waited, events, 4, NULL, NULL);
        else
            n = epoll_wait(waited, events, 4, outside ? 0 : -1);
        for (int k = 0; k < n; k++)
            if (events[k].data.u64 == 0x1234)
                sem_post(&go);
            else
                say("an event of somebody else");
    }
    return NULL;
}

static void *reader(void *none)
{
    static char block[65536];
    (void)none;
    while (read(pair[1], block, sizeof block) > 0)
        ;
    return NULL;
}

static void control(int operation, unsigned events)
{
    struct epoll_event event = {.events = events, .data.u64 = 0x1234};
    if (epoll_ctl(made, operation, pair[0], &event) != 0)
        say("epoll_ctl: %s", error_name(-1));
}

/* Asks for the event. */
static void arm(int first)
{
    if (is(kind, "level"))
        control(EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
    else if (is(kind, "added"))
        control(first ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, EPOLLOUT | EPOLLONESHOT);
    else if (is(kind, "armed"))
        control(EPOLL_CTL_MOD, EPOLLOUT | EPOLLONESHOT);
    else if (is(kind, "exclusive"))
        control(EPOLL_CTL_ADD, EPOLLOUT | EPOLLEXCLUSIVE);
}

static void disarm(void)
{
    if (is(kind, "level"))
        control(EPOLL_CTL_MOD, EPOLLIN);
    else if (is(kind, "exclusive"))
        control(EPOLL_CTL_DEL, 0);
}

/* Sends so much, and waits for the event whenever it is refused. */
static int send_all(long all)
{
    static char block[65536];
    static int first = 1;
    long done = 0;
    while (done < all) {
        long n = write(pair[0], block, sizeof block);
        if (n > 0) {
            done += n;
            continue;
        }
        arm(first);
        first = 0;
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 10;
        if (sem_timedwait(&go, &until) != 0) {
            say("no event for 10 s after %ld bytes", done);
            return 1;
        }
        disarm();
        while (sem_trywait(&go) == 0)
            ;
    }
    return 0;
}

/* The test changes the limits now. */
static void ready(void)
{
    char byte;
    raw_sleep(100000000);
    say("ready");
    raw_read(0, &byte, 1);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    if (argc < 3)
        return 2;
    kind = argv[1];
    way = argv[2];
    guard(50);
    raw_socketpair(SOCK_STREAM, pair);
    raw_nonblock(pair[0]);
    set = waited = made = epoll_create1(0);
    outer = epoll_create1(0);
    if (is(way, "duplicate"))
        waited = dup(set);
    if (is(way, "through"))
        made = fcntl(set, F_DUPFD_CLOEXEC, 0);
    if (is(way, "nested")) {
        struct epoll_event event = {.events = EPOLLIN};
        epoll_ctl(outer, EPOLL_CTL_ADD, set, &event);
    }
    sem_init(&go, 0, 0);
    if (is(kind, "edge"))
        control(EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    else if (is(kind, "level") || is(kind, "armed"))
        control(EPOLL_CTL_ADD, EPOLLIN);
    for (int k = is(way, "twin") ? 2 : is(way, "twins") ? 4 : 1; k > 0; k--)
        pthread_create(&thread, NULL, sleeper, NULL);
    pthread_create(&thread, NULL, reader, NULL);
    raw_sleep(100000000);
    if (argc > 3)
        ready();
    if (argc > 3 && is(argv[3], "again")) {
        if (send_all(600000) != 0)
            return 1;
        ready();
    }
    if (send_all(600000) != 0)
        return 1;
    say("all was sent");
    return 0;
}
