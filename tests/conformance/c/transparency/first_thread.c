/* The same calls before there is a second thread, while there is one, and after it
 * has been cancelled: functions that are cancellation points change their way in
 * between. */
#define _GNU_SOURCE
#include "probe.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#define ROUNDS 500

static int pipes[2];
static int sockets[2];
static char byte;

/* One of each: a call that is counted, one that is a cancellation point, bytes in and
 * out, and names that stand for others (recv). */
static int round_trip(void)
{
    return getppid() > 0 && write(pipes[1], &byte, 1) == 1 && read(pipes[0], &byte, 1) == 1 &&
           send(sockets[1], &byte, 1, 0) == 1 && recv(sockets[0], &byte, 1, 0) == 1 &&
           poll(&(struct pollfd){pipes[0], POLLIN, 0}, 1, 0) == 0 && close(-1) == -1 && errno == EBADF;
}

static void rounds(const char *when)
{
    int bad = 0;
    for (int k = 0; k < ROUNDS; k++)
        bad += !round_trip();
    say("%s: %d bad", when, bad);
}

static void *thread_main(void *arg)
{
    (void)arg;
    for (;;)
        read(pipes[0], &byte, 1);
    return NULL;
}

int main(void)
{
    pthread_t thread;
    void *result = NULL;
    guard(20);
    raw_socketpair(SOCK_STREAM, sockets);
    raw_pipe(pipes);
    rounds("alone");
    int mine[2] = {pipes[0], pipes[1]};
    raw_pipe(pipes);
    pthread_create(&thread, NULL, thread_main, NULL);
    /* It waits at the second pipe; the first is for this thread. */
    raw_sleep(60000000);
    int its = pipes[1];
    pipes[0] = mine[0];
    pipes[1] = mine[1];
    rounds("with another");
    pthread_cancel(thread);
    pthread_join(thread, &result);
    say("%s", result == PTHREAD_CANCELED ? "cancelled" : "ended");
    rounds("alone again");
    raw_close(its);
    return 0;
}
