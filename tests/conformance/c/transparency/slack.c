/* The timer slack that a program has set is its own, also after waits. */
#define _GNU_SOURCE
#include "probe.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

static void wait_a_little(int fd)
{
    static char block[256];
    for (int k = 0; k < 40; k++)
        write(fd, block, sizeof block);
}

static void *thread_main(void *arg)
{
    prctl(PR_SET_TIMERSLACK, 33333);
    wait_a_little(*(int *)arg);
    say("thread: %d", prctl(PR_GET_TIMERSLACK));
    return NULL;
}

int main(void)
{
    pthread_t thread;
    int fd = raw_open("/dev/null", O_WRONLY);
    say("before: %d", prctl(PR_GET_TIMERSLACK));
    wait_a_little(fd);
    say("default: %d", prctl(PR_GET_TIMERSLACK));
    prctl(PR_SET_TIMERSLACK, 77777);
    wait_a_little(fd);
    say("set: %d", prctl(PR_GET_TIMERSLACK));
    pthread_create(&thread, NULL, thread_main, &fd);
    pthread_join(thread, NULL);
    say("after: %d", prctl(PR_GET_TIMERSLACK));
    return 0;
}
