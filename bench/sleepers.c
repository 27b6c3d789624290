/* Threads that wait for their turn.
 *
 *   sleepers THREADS SIZE
 *
 * For each line on standard input every thread writes SIZE bytes to /dev/null, once.
 * `asleep` is said when all are about to; when all are through, one line of JSON
 * gives the instants (ns, CLOCK_MONOTONIC) at which their calls returned. */
#include "raw.h"

#include <fcntl.h>
#include <pthread.h>

enum { MOST_THREADS = 256 };

static int fd;
static size_t size;
static char *bytes;
static unsigned entered;
static uint64_t returned[MOST_THREADS];
static pthread_barrier_t barrier;

static void *thread(void *arg)
{
    for (;;) {
        pthread_barrier_wait(&barrier);
        __atomic_fetch_add(&entered, 1, __ATOMIC_SEQ_CST);
        if (write(fd, bytes, size) != (ssize_t)size) fail("write");
        *(uint64_t *)arg = now_ns();
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    end_with_parent();
    if (argc != 3) return 2;
    unsigned threads = (unsigned)atoi(argv[1]);
    size = strtoull(argv[2], NULL, 10);
    bytes = calloc(1, size);
    fd = open("/dev/null", O_WRONLY);
    if (!bytes || threads < 1 || threads > MOST_THREADS) return 2;
    pthread_barrier_init(&barrier, NULL, threads + 1);
    for (unsigned t = 0; t < threads; t++) {
        pthread_t id;
        if (pthread_create(&id, NULL, thread, &returned[t])) fail("thread");
    }
    char line[16];
    while (read_line(line, sizeof line)) {
        entered = 0;
        pthread_barrier_wait(&barrier);
        while (__atomic_load_n(&entered, __ATOMIC_SEQ_CST) < threads) usleep(200);
        say("asleep\n");
        flush_said();
        pthread_barrier_wait(&barrier);
        for (unsigned t = 0; t < threads; t++) say("%s%lu", t ? "," : "[", returned[t]);
        say("]\n");
        flush_said();
    }
    _exit(0);
}
