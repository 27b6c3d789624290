/* Memory of threads: THREADS threads write a byte each to /dev/null, one line of
 * JSON gives the private memory of the process in KiB, and everything stays as it
 * is until standard input ends. */
#include "raw.h"

#include <fcntl.h>
#include <pthread.h>

static int fd;
static pthread_barrier_t barrier;

static void *thread(void *arg)
{
    if (write(fd, "", 1) != 1) fail("write");
    pthread_barrier_wait(&barrier);
    for (;;) pause();
    return arg;
}

int main(int argc, char **argv)
{
    end_with_parent();
    if (argc != 2) return 2;
    unsigned threads = (unsigned)atoi(argv[1]);
    fd = open("/dev/null", O_WRONLY);
    pthread_barrier_init(&barrier, NULL, threads + 1);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    for (unsigned t = 0; t < threads; t++) {
        pthread_t id;
        if (pthread_create(&id, &small, thread, NULL)) fail("thread");
    }
    pthread_barrier_wait(&barrier);
    static char text[8192];
    int rollup = (int)raw(SYS_openat, AT_FDCWD, (long)"/proc/self/smaps_rollup", O_RDONLY, 0);
    if (raw(SYS_read, rollup, (long)text, sizeof text - 1, 0) <= 0) fail("smaps_rollup");
    const char *found = strstr(text, "\nAnonymous:");
    say("{\"anonymous_kib\":%ld}\n", found ? atol(found + 11) : -1);
    flush_said();
    char line[8];
    while (read_line(line, sizeof line)) { }
    _exit(0);
}
