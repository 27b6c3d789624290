/* Cancelling a thread that waits: for the other end, and for its limit
 * (`cancel limited`: 10 kB/s on write, send and recv, burst 1 kB). */
#define _GNU_SOURCE
#include "probe.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

static int pipes[2];
static int sockets[2];
static volatile int cleaned;
static volatile int started;
static char block[65536];

static void clean(void *arg)
{
    (void)arg;
    cleaned = 1;
}

static long blocked_read(void) { return read(pipes[0], block, 16); }
static long blocked_recv(void) { return recv(sockets[0], block, 16, 0); }
static long blocked_poll(void) { return poll(&(struct pollfd){pipes[0], POLLIN, 0}, 1, -1); }
static long blocked_write(void) { return write(pipes[1], block, sizeof block) + write(pipes[1], block, 1); }
static long blocked_send(void)
{
    while (send(sockets[1], block, sizeof block, 0) > 0)
        ;
    return 0;
}

/* 30 kB are 3 s away. */
static long limited_write(void) { return write(pipes[1], block, 30000); }
static long limited_send(void) { return send(sockets[1], block, 30000, 0); }

static void *thread_main(void *arg)
{
    long (*call)(void);
    memcpy(&call, &arg, sizeof call);
    pthread_cleanup_push(clean, NULL);
    started = 1;
    call();
    /* A call that ended before it was cancelled: the next point is here. */
    pthread_testcancel();
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancelled(const char *name, long (*call)(void))
{
    pthread_t thread;
    void *arg;
    void *result = NULL;
    raw_pipe(pipes);
    raw_socketpair(SOCK_STREAM, sockets);
    memcpy(&arg, &call, sizeof arg);
    cleaned = started = 0;
    pthread_create(&thread, NULL, thread_main, arg);
    while (!started)
        raw_sleep(1000000);
    raw_sleep(60000000);
    uint64_t from = raw_now();
    pthread_cancel(thread);
    pthread_join(thread, &result);
    say("%s: %s, cleanup %s", name, result == PTHREAD_CANCELED ? "cancelled" : "ended",
        cleaned ? "ran" : "did not run");
    say("# join %s %ld ms", name, milliseconds(from));
    for (int k = 0; k < 2; k++) {
        raw_close(pipes[k]);
        raw_close(sockets[k]);
    }
}

int main(int argc, char **argv)
{
    guard(20);
    if (argc > 1 && strcmp(argv[1], "limited") == 0) {
        cancelled("limited write", limited_write);
        cancelled("limited send", limited_send);
        return 0;
    }
    cancelled("read", blocked_read);
    cancelled("recv", blocked_recv);
    cancelled("poll", blocked_poll);
    cancelled("write", blocked_write);
    cancelled("send", blocked_send);
    return 0;
}
