/* A program of two threads: the first reads, the second runs the program anew, and so takes over the number of the first one, again
 * and again.
 *
 *   replaced ROUNDS BYTES     bytes read in each round; the last one says how long all took */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_int is_read;
static char **words;

static void *runs_anew(void *unused)
{
    while (!is_read)
        usleep(100);
    execv("/proc/self/exe", words);
    return unused;
}

int main(int argc, char **argv)
{
    static char bytes[1 << 18];
    char rounds[16], from[32];
    struct timespec now;
    pthread_t thread;
    if (argc < 3)
        return 2;
    alarm(60);
    clock_gettime(CLOCK_MONOTONIC, &now);
    double at = now.tv_sec * 1e3 + now.tv_nsec / 1e6;
    int left = atoi(argv[1]);
    snprintf(from, sizeof from, "%.3f", argc > 3 ? atof(argv[3]) : at);
    if (left == 0) {
        printf("# elapsed %.3f ms\n", at - atof(from));
        return 0;
    }
    snprintf(rounds, sizeof rounds, "%d", left - 1);
    words = (char *[]){argv[0], rounds, argv[2], from, NULL};
    pthread_create(&thread, NULL, runs_anew, NULL);
    int fd = open("/dev/zero", O_RDONLY);
    if (read(fd, bytes, strtoul(argv[2], NULL, 0)) < 0)
        return 3;
    is_read = 1;
    pause();
}
