/* Threads created as fast as possible, each with one write; three rounds of 64, or
 * (`threads relay`) one after the other. */
#define _GNU_SOURCE
#include "probe.h"

#include <pthread.h>
#include <unistd.h>

#define THREADS 64

static int fd;

static void *thread_main(void *arg)
{
    char block[1024];
    memset(block, (int)(long)arg, sizeof block);
    return (void *)(long)write(fd, block, sizeof block);
}

/* Each begins when the one before it has ended. */
static int relay(void)
{
    int bad = 0;
    for (long k = 0; k < 3 * THREADS; k++) {
        pthread_t thread;
        void *n = NULL;
        if (pthread_create(&thread, NULL, thread_main, (void *)k) != 0)
            return 3 * THREADS;
        pthread_join(thread, &n);
        bad += (long)n != 1024;
    }
    return bad;
}

int main(int argc, char **argv)
{
    (void)argv;
    pthread_t threads[THREADS];
    int bad = 0;
    guard(30);
    fd = raw_open("/dev/null", O_WRONLY);
    uint64_t from = raw_now();
    if (argc > 1)
        bad = relay();
    for (int round = 0; round < 3 && argc == 1; round++) {
        for (long k = 0; k < THREADS; k++)
            if (pthread_create(&threads[k], NULL, thread_main, (void *)k) != 0)
                return 3;
        for (int k = 0; k < THREADS; k++) {
            void *n = NULL;
            pthread_join(threads[k], &n);
            bad += (long)n != 1024;
        }
    }
    say("%d writes, %d of them bad", 3 * THREADS, bad);
    say("# elapsed %ld ms", milliseconds(from));
    return 0;
}
