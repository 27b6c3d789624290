/* As many threads as it is told, or as there may be, all alive at the same time: each
 * writes once, waits for the others, and writes again. Says how many there were, and how
 * much memory of its own the process had at most. */
#define _GNU_SOURCE
#include "probe.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static int fd;
static atomic_int bad;
static pthread_barrier_t all;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void one_write(void)
{
    if (write(fd, "x", 1) != 1) atomic_fetch_add(&bad, 1);
}

static void *thread_main(void *arg)
{
    (void)arg;
    one_write();
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    pthread_barrier_wait(&all);
    one_write();
    return NULL;
}

/* VmHWM without what is shared, kB. */
static long memory(void)
{
    char text[4096] = "";
    int from = raw_open("/proc/self/status", O_RDONLY);
    long n = syscall(SYS_read, from, text, sizeof text - 1);
    close(from);
    const char *at = n > 0 ? strstr(text, "RssAnon:") : NULL;
    return at ? atol(at + 8) : -1;
}

int main(int argc, char **argv)
{
    int wanted = argc > 1 ? atoi(argv[1]) : 1000, made = 0;
    pthread_t *threads = calloc((size_t)wanted, sizeof *threads);
    pthread_attr_t small;
    guard(50);
    fd = raw_open("/dev/null", O_WRONLY);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    pthread_mutex_lock(&gate);
    while (made < wanted && pthread_create(&threads[made], &small, thread_main, NULL) == 0) made++;
    pthread_barrier_init(&all, NULL, (unsigned)made + 1);
    pthread_mutex_unlock(&gate);
    pthread_barrier_wait(&all);
    for (int i = 0; i < made; i++) pthread_join(threads[i], NULL);
    say("%d writes failed", atomic_load(&bad));
    say("# threads %d", made);
    say("# memory %ld kB", memory());
    return 0;
}
