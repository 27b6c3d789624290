/* A signal handler makes a call under another limit while a call waits in the kernel, so that the lease that the call was to be paid from,
 * or gives back to, is another one when it returns.
 *
 *   handlers in MS FIFO       reads from FIFO; its handler reads from /dev/zero, and then writes to FIFO
 *   handlers out MS FIFO      writes to FIFO, which is full; its handler writes to /dev/null, and the call is interrupted
 *
 * Prints the bytes that were read from FIFO, or written to /dev/null, and for how long.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static char bytes[1 << 20], others[1 << 20];
static int fifo, zero, null, is_in;
static volatile sig_atomic_t waiting;
static volatile double moved;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static void handler(int signal)
{
    (void)signal;
    if (!waiting)
        return;
    waiting = 0;
    if (is_in) {
        if (read(zero, others, 4096) < 0 || write(fifo, others, 68000) < 0)
            _exit(3);
        return;
    }
    for (int i = 0; i < 11; i++) {
        ssize_t sent = write(null, others, 7000);
        moved += sent > 0 ? sent : 0;
    }
}

static void part_in(void)
{
    waiting = 1;
    ssize_t first = read(fifo, bytes, 60000);
    waiting = 0;
    ssize_t rest = read(fifo, bytes, 8000);
    moved += (first > 0 ? first : 0) + (rest > 0 ? rest : 0);
}

static void part_out(void)
{
    for (int i = 0; i < 3; i++) {
        ssize_t sent = write(fifo, bytes, 8000);
        while (sent > 0) {
            ssize_t got = read(fifo, bytes, (size_t)sent);
            sent -= got > 0 ? got : 0;
        }
    }
    fcntl(fifo, F_SETFL, O_RDWR | O_NONBLOCK);
    while (write(fifo, bytes, 4096) > 0)
        ;
    fcntl(fifo, F_SETFL, O_RDWR);
    waiting = 1;
    if (write(fifo, bytes, 60000) > 0)
        waiting = 0;
    waiting = 0;
    fcntl(fifo, F_SETFL, O_RDWR | O_NONBLOCK);
    while (read(fifo, bytes, sizeof bytes) > 0)
        ;
    fcntl(fifo, F_SETFL, O_RDWR);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    is_in = !strcmp(argv[1], "in");
    if (mkfifo(argv[3], 0600) < 0)
        return 2;
    fifo = open(argv[3], O_RDWR);
    zero = open("/dev/zero", O_RDONLY);
    null = open("/dev/null", O_WRONLY);
    if (is_in)
        fcntl(fifo, F_SETPIPE_SZ, 1 << 20);
    struct sigaction action = { .sa_handler = handler, .sa_flags = is_in ? SA_RESTART : 0 };
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = { { 0, 500 }, { 0, 500 } };
    setitimer(ITIMER_REAL, &often, NULL);
    double begin = now(), end = begin + atoi(argv[2]);
    while (now() < end)
        is_in ? part_in() : part_out();
    printf("bytes %.0f\nms %.0f\n", moved, now() - begin);
    return 0;
}
