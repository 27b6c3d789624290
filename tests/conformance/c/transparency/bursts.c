// Threads that write in bursts and pause: `bursts FILE THREADS SIZE SECONDS RATE [stopped]`.
//
// Each has so many calls to make in each 160 ms as a stream with key frames has, now few and now
// many, and makes those that it is late with at once. Prints by the monotonic clock the most bytes
// that were written in any window beyond what RATE bytes a second let through, and all bytes.
//
// With `stopped` no thread pauses, and the process is stopped for 150 ms of each 350, like a machine
// that stands still.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 400000, PERIOD = 160000000 };

static int file;
static int stopped;
static size_t size;
static uint64_t begin, end;
static atomic_size_t made;
static uint64_t at[MOST];

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void pause_for(uint64_t ns) {
    struct timespec t = {0, (long)ns};
    nanosleep(&t, NULL);
}

static void *stream(void *of) {
    unsigned seed = 17 + (unsigned)(uintptr_t)of;
    char buffer[8192];
    memset(buffer, 'b', sizeof buffer);
    uint64_t next = begin + (unsigned)rand_r(&seed) % PERIOD;
    while (now() < end) {
        // Half of the pictures are small, and some are large.
        unsigned die = (unsigned)rand_r(&seed) % 8;
        unsigned calls = die < 4 ? 1 : die < 7 ? 4 : 24;
        for (unsigned i = 0; i < calls && now() < end; i++) {
            if (write(file, buffer, size) != (ssize_t)size)
                exit(3);
            size_t i_made = atomic_fetch_add(&made, 1);
            if (i_made < MOST)
                at[i_made] = now();
        }
        next += (uint64_t)PERIOD;
        uint64_t here = now();
        if (next > here && !stopped)
            pause_for(next - here);
    }
    return NULL;
}

// A process that stops its parent again and again, until that ends it.
static pid_t stop_again_and_again(void) {
    pid_t parent = getpid(), child = fork();
    if (child != 0)
        return child;
    for (;;) {
        pause_for(200000000);
        if (getppid() != parent)
            _exit(0);
        kill(parent, SIGSTOP);
        pause_for(150000000);
        kill(parent, SIGCONT);
    }
}

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    if (argc != 6 && argc != 7)
        return 2;
    stopped = argc == 7;
    file = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0600);
    size_t threads = strtoul(argv[2], NULL, 10);
    size = strtoul(argv[3], NULL, 10);
    if (file < 0 || size > 8192 || threads > 1000)
        return 2;
    begin = now();
    end = begin + strtoul(argv[4], NULL, 10) * 1000000000u;
    double rate = strtod(argv[5], NULL);
    pid_t child = stopped ? stop_again_and_again() : 0;
    if (child < 0)
        return 3;
    pthread_t all[1000];
    for (size_t i = 0; i < threads; i++)
        if (pthread_create(&all[i], NULL, stream, (void *)(uintptr_t)i) != 0)
            return 3;
    for (size_t i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    if (stopped) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    size_t count = made < MOST ? made : MOST;
    qsort(at, count, sizeof *at, compare);
    double lowest = 0, most = 0;
    for (size_t i = 0; i < count; i++) {
        double gained = rate * (double)(at[i] - begin) / 1e9;
        double before = (double)(i * size) - gained;
        if (i == 0 || before < lowest)
            lowest = before;
        if (before + (double)size - lowest > most)
            most = before + (double)size - lowest;
    }
    printf("%.0f %zu\n", most, (size_t)made * size);
    return 0;
}
