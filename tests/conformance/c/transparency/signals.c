/* A signal during a call that waits.
 *
 *   signals blocked   calls that wait for the other end
 *   signals limited   calls that wait for their limit: 20 kB/s, burst 1 kB
 *   signals never     calls that no signal interrupts: 20 calls/s
 *   signals progress  calls that wait longer than it is from signal to signal */
#define _GNU_SOURCE
#include "probe.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t handled;
static volatile int help_fd = -1;
static volatile int help_writes;

/* The second signal lets a call go on that was restarted after the first. */
static void handler(int signal)
{
    char block[8192];
    (void)signal;
    handled++;
    if (handled == 2 && help_fd >= 0) {
        if (help_writes)
            raw_write(help_fd, "help", 4);
        else
            raw_read(help_fd, block, sizeof block);
    }
}

static void arm(int flags, long first_ms, long then_ms)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    struct itimerval timer = {{0, then_ms * 1000}, {0, first_ms * 1000}};
    handled = 0;
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void disarm(void)
{
    struct itimerval none = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &none, NULL);
}

static void fill_up(int fd)
{
    static const char block[4096];
    int flags = raw_fcntl(fd, F_GETFL, 0);
    raw_nonblock(fd);
    while (raw_write(fd, block, sizeof block) > 0 || raw_write(fd, block, 1) > 0)
        ;
    raw_fcntl(fd, F_SETFL, flags);
}

static void empty(int fd)
{
    static char block[65536];
    int flags = raw_fcntl(fd, F_GETFL, 0);
    raw_nonblock(fd);
    while (raw_read(fd, block, sizeof block) > 0)
        ;
    raw_fcntl(fd, F_SETFL, flags);
}

static void blocked(const char *name, int fd[2], int flags)
{
    char block[64] = {0};
    const char *way = flags & SA_RESTART ? "restart" : "no restart";

    empty(fd[0]);
    help_fd = fd[1];
    help_writes = 1;
    arm(flags, 40, 40);
    long n = read(fd[0], block, sizeof block);
    disarm();
    say("%s read %s: %ld %s", name, way, n, error_name(n));

    fill_up(fd[1]);
    help_fd = fd[0];
    help_writes = 0;
    arm(flags, 40, 40);
    n = write(fd[1], block, sizeof block);
    disarm();
    say("%s write %s: %ld %s", name, way, n, error_name(n));
}

/* More than the burst has just been written: the next call has to wait for 100 ms and more. */
static void in_debt(int fd[2])
{
    static char block[2048];
    empty(fd[0]);
    write(fd[1], block, sizeof block);
    empty(fd[0]);
}

static void limited(const char *name, int fd[2], int flags)
{
    static char block[16384];
    const char *way = flags & SA_RESTART ? "restart" : "no restart";
    help_fd = -1;

    /* One piece: nothing of it has gone. On a busy machine the debt may be over before the call,
     * which then is not there to be interrupted: again. */
    long n;
    uint64_t began;
    int tries = 50;
    do {
        in_debt(fd);
        arm(flags, 10, 0);
        began = raw_now();
        n = write(fd[1], block, 1000);
        disarm();
    } while (handled == 0 && milliseconds(began) < 10 && --tries > 0);
    struct pollfd ready = {.fd = fd[0], .events = POLLIN};
    long arrived = RAW3(SYS_poll, &ready, 1, 0) == 1 ? raw_read(fd[0], block, sizeof block) : 0;
    say("%s write %s: %ld %s, %ld arrived, %d signals", name, way, n, error_name(n), arrived, (int)handled);

    /* Several pieces: what had gone is the result. */
    in_debt(fd);
    arm(flags, 300, 0);
    n = write(fd[1], block, 12000);
    disarm();
    long total = 0;
    for (long got; RAW3(SYS_poll, &ready, 1, 0) == 1 && (got = raw_read(fd[0], block, sizeof block)) > 0;)
        total += got;
    /* A slow call that has begun ends with what it did, also with SA_RESTART. */
    say("%s pieces %s: %s, %s", name, way, n > 0 ? "some" : error_name(n),
        total == (n < 0 ? 0 : n) ? "as many arrived" : "another number arrived");
    say("# %s pieces %s %ld", name, way, n);
}

/* Calls that are never interrupted stay so; whatever they do is done once. */
static void never(void)
{
    struct stat st;
    help_fd = -1;
    int fds[3];
    for (int k = 0; k < 3; k++)
        fds[k] = open("/dev/null", O_RDONLY);
    arm(0, 20, 20);
    int failed = 0;
    for (int k = 0; k < 8; k++)
        failed += stat("/dev/null", &st) != 0;
    say("stat under signals: %d failed", failed);
    int leaked = 0;
    for (int k = 0; k < 3; k++) {
        close(fds[k]);
        leaked += raw_fcntl(fds[k], F_GETFD, 0) != -EBADF;
    }
    disarm();
    say("# handled %d", (int)handled);
    say("close under signals: %d left open", leaked);
}

/* Who tries again after EINTR gets through, however many signals come: each wait
 * is 100 ms, each signal 20 ms after the one before. */
static void progress(const char *name, int fd[2])
{
    static char block[2000];
    help_fd = -1;
    arm(0, 20, 20);
    long out = 0;
    long in = 0;
    int interrupted = 0;
    uint64_t from = raw_now();
    while (in < 16000 && milliseconds(from) < 6000) {
        long n = out < 16000 ? write(fd[1], block, sizeof block) : 0;
        if (n > 0)
            out += n;
        interrupted += n < 0 && errno == EINTR;
        struct pollfd ready = {.fd = fd[0], .events = POLLIN};
        if (RAW3(SYS_poll, &ready, 1, 0) != 1)
            continue;
        n = read(fd[0], block, sizeof block);
        if (n > 0)
            in += n;
        interrupted += n < 0 && errno == EINTR;
    }
    disarm();
    say("%s progress: %ld written, %ld read, %s", name, out, in, interrupted ? "interrupted" : "not interrupted");
    say("# %s progress %ld ms", name, milliseconds(from));
}

int main(int argc, char **argv)
{
    int pipes[2];
    int sockets[2];
    if (argc < 2)
        return 2;
    guard(40);
    raw_pipe(pipes);
    raw_socketpair(SOCK_STREAM, sockets);
    for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
        if (strcmp(argv[1], "blocked") == 0) {
            blocked("pipe", pipes, flags);
            blocked("socket", sockets, flags);
        } else if (strcmp(argv[1], "limited") == 0) {
            limited("pipe", pipes, flags);
            limited("socket", sockets, flags);
        }
    }
    if (strcmp(argv[1], "never") == 0)
        never();
    if (strcmp(argv[1], "progress") == 0) {
        progress("pipe", pipes);
        progress("socket", sockets);
    }
    return 0;
}
