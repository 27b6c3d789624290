/* Allocates and writes on eight threads: for allocators and sanitizers. */
#define _GNU_SOURCE
#include "probe.h"

#include <pthread.h>
#include <unistd.h>

static int fd;

static void *thread_main(void *arg)
{
    long bad = 0;
    (void)arg;
    for (int k = 0; k < 32; k++) {
        size_t len = 256;
        char *block = malloc(len + (size_t)k);
        char *copy = malloc(len);
        memset(block, k, len);
        memcpy(copy, block, len);
        bad += write(fd, copy, len) != (ssize_t)len;
        free(block);
        free(copy);
    }
    return (void *)bad;
}

int main(void)
{
    pthread_t threads[8];
    long bad = 0;
    guard(50);
    fd = raw_open("/dev/null", O_WRONLY);
    uint64_t from = raw_now();
    for (int k = 0; k < 8; k++)
        pthread_create(&threads[k], NULL, thread_main, NULL);
    for (int k = 0; k < 8; k++) {
        void *result;
        pthread_join(threads[k], &result);
        bad += (long)result;
    }
    FILE *f = fopen("/dev/null", "w");
    fprintf(f, "%ld\n", bad);
    fclose(f);
    say("%ld bad", bad);
    say("# elapsed %ld ms", milliseconds(from));
    return 0;
}
