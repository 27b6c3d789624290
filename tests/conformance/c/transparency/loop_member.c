/* A member of a group that sends as much as it can over some connections, and notes in a
 * mapped file how much it had sent when, as `member.c` does.
 *
 *   loop_member FILE HOW MS
 *
 * HOW is `block` (one connection, calls that block), or `poll` or `epoll` (four, calls that do
 * not): then a timer that fires each millisecond is heard of between them, unless a call or
 * the wait for readiness stands still. What the other ends do is unseen. */
#define _GNU_SOURCE
#include "probe.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { SAMPLES = 1 << 16, CONNECTIONS = 4, CHUNK = 65536 };

struct notes {
    _Atomic uint64_t count;
    struct {
        uint64_t ns, bytes;
    } samples[SAMPLES];
};

static struct notes *notes;
static char block[CHUNK];
static uint64_t sent;
static long turns, calls, refused, ticks, slow;

static void note(uint64_t at)
{
    if (notes->count < SAMPLES) {
        notes->samples[notes->count].ns = at;
        notes->samples[notes->count].bytes = sent;
        notes->count++;
    }
}

static long cpu(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000 +
           (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000;
}

/* A connection, of which somebody else reads all that is sent. */
static int connection(void)
{
    static char bytes[1 << 18];
    int pair[2], large = 1 << 19;
    raw_socketpair(SOCK_STREAM, pair);
    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &large, sizeof large);
    if (raw_fork() == 0) {
        for (int fd = 3; fd < 256; fd++)
            if (fd != pair[1])
                raw_close(fd);
        while (raw_read(pair[1], bytes, sizeof bytes) > 0)
            ;
        raw_exit(0);
    }
    raw_close(pair[1]);
    return pair[0];
}

/* Sends once; whether there was room. */
static int pour(int fd)
{
    uint64_t before = raw_now();
    long slept = sleeps();
    long n = send(fd, block, CHUNK, MSG_NOSIGNAL);
    uint64_t after = raw_now();
    calls++;
    slow += after - before > 15000000 && sleeps() > slept;
    if (n < 0) {
        refused++;
        if (errno != EAGAIN)
            say("%s", error_name(n));
        return 0;
    }
    /* What was sent before a wait is not taken for sent after it. */
    note(before);
    sent += (uint64_t)n;
    note(after);
    return 1;
}

static void tick(int timer)
{
    uint64_t times;
    if (raw_read(timer, &times, sizeof times) == sizeof times)
        ticks++;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    int file = open(argv[1], O_RDWR);
    if (file < 0 || ftruncate(file, sizeof *notes) != 0)
        return 3;
    notes = mmap(0, sizeof *notes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (notes == MAP_FAILED)
        return 4;
    int blocks = strcmp(argv[2], "block") == 0, by_epoll = strcmp(argv[2], "epoll") == 0;
    int count = blocks ? 1 : CONNECTIONS;
    struct pollfd fds[CONNECTIONS + 1];
    for (int k = 0; k < count; k++) {
        fds[k] = (struct pollfd){.fd = connection(), .events = POLLOUT};
        if (!blocks)
            raw_nonblock(fds[k].fd);
    }
    struct itimerspec each = {{0, 1000000}, {0, 1000000}};
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    timerfd_settime(timer, 0, &each, 0);
    fds[count] = (struct pollfd){.fd = timer, .events = POLLIN};
    int set = epoll_create1(EPOLL_CLOEXEC);
    for (int k = 0; by_epoll && k <= count; k++) {
        struct epoll_event event = {.events = (uint32_t)fds[k].events, .data.u32 = (uint32_t)k};
        epoll_ctl(set, EPOLL_CTL_ADD, fds[k].fd, &event);
    }
    guard(40);
    long used = cpu();
    uint64_t start = raw_now(), length = strtoull(argv[3], 0, 10) * 1000000;
    while (raw_now() < start + length) {
        if (blocks) {
            pour(fds[0].fd);
            continue;
        }
        turns++;
        if (by_epoll) {
            struct epoll_event events[CONNECTIONS + 1];
            int n = epoll_wait(set, events, CONNECTIONS + 1, 1000);
            for (int i = 0; i < n; i++) {
                int k = (int)events[i].data.u32;
                k == count ? tick(timer) : (void)pour(fds[k].fd);
            }
            continue;
        }
        poll(fds, (nfds_t)count + 1, 1000);
        for (int k = 0; k <= count; k++)
            if (fds[k].revents != 0)
                k == count ? tick(timer) : (void)pour(fds[k].fd);
    }
    used = cpu() - used;
    long elapsed = milliseconds(start);
    for (int k = 0; k < count; k++)
        raw_close(fds[k].fd);
    for (int k = 0, status; k < count; k++)
        raw_wait(-1, &status);
    say("# turns %ld", turns);
    say("# calls %ld", calls);
    say("# refused %ld", refused);
    say("# ticks %ld", ticks);
    say("# slow %ld", slow);
    say("# cpu %ld ms", used);
    say("# elapsed %ld ms", elapsed);
    say("# sent %ld", (long)sent);
    return 0;
}
