/* A signal handler writes while the main flow writes: handler WRITES INTERVAL_US */
#define _GNU_SOURCE
#include "probe.h"

#include <sys/time.h>
#include <unistd.h>

static int fd_main;
static int fd_handler;
static volatile sig_atomic_t handled;
static volatile sig_atomic_t failed;

static void handler(int signal)
{
    int saved = errno;
    (void)signal;
    if (write(fd_handler, "12345678", 8) == 8)
        handled++;
    else
        failed++;
    errno = saved;
}

int main(int argc, char **argv)
{
    int writes = argc > 1 ? atoi(argv[1]) : 2000;
    long interval = argc > 2 ? atol(argv[2]) : 300;
    int pipes[2];
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval timer = {{0, interval}, {0, interval}};
    char block[16] = "0123456789abcde";
    int bad = 0;
    guard(30);
    raw_pipe(pipes);
    fd_main = pipes[1];
    fd_handler = raw_open("/dev/null", O_WRONLY);
    sigaction(SIGVTALRM, &action, NULL);
    sigaction(SIGALRM, &action, NULL);
    uint64_t from = raw_now();
    setitimer(ITIMER_REAL, &timer, NULL);
    for (int k = 0; k < writes; k++) {
        errno = 4242;
        if (write(fd_main, block, sizeof block) != (ssize_t)sizeof block || errno != 4242)
            bad++;
        char back[64];
        raw_read(pipes[0], back, sizeof back);
    }
    timer = (struct itimerval){{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &timer, NULL);
    say("%d writes, %d of them bad; in the handler %d bad", writes, bad, (int)failed);
    say("# handled %d", (int)handled);
    say("# elapsed %ld ms", milliseconds(from));
    return 0;
}
