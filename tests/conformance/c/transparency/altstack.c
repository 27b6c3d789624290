/* A thread's handlers run on a signal stack above the thread's own, and make limited calls while
 * they interrupt limited calls. */
#define _GNU_SOURCE
#include "probe.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

enum { STACK = 1 << 19, BYTES = 1500000 };

static char *stack;
static int fd;
static volatile long written, handled;

static void handler(int signal)
{
    static const char block[1000];
    (void)signal;
    written += write(fd, block, sizeof block);
    handled++;
}

static void *thread(void *unused)
{
    static const char block[1000];
    stack_t own = {.ss_sp = stack + STACK, .ss_size = STACK};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK | SA_RESTART};
    struct itimerval timer = {{0, 1500}, {0, 1500}}, none = {{0, 0}, {0, 0}};
    sigaltstack(&own, NULL);
    sigaction(SIGALRM, &action, NULL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
    long all = 0;
    while (all < BYTES)
        all += write(fd, block, sizeof block);
    setitimer(ITIMER_REAL, &none, NULL);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    written += all;
    return unused;
}

int main(void)
{
    pthread_attr_t attr;
    pthread_t it;
    guard(60);
    fd = open("/dev/null", O_WRONLY);
    stack = mmap(NULL, 2 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_attr_init(&attr);
    pthread_attr_setstack(&attr, stack, STACK);
    uint64_t from = raw_now();
    pthread_create(&it, &attr, thread, NULL);
    pthread_join(it, NULL);
    say("# elapsed %.3f ms", (double)(raw_now() - from) / 1e6);
    say("# written %ld", written);
    say("# handled %ld", handled);
    say("done");
}
