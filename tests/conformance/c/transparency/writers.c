// Threads that write as much as they can until they are killed, and count it in a file that
// is mapped, a word for each.
//
//   writers FILE THREADS SIZE [UID]
//
// As the user UID, from before its first write.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 64 };

static _Atomic uint64_t *counts;
static int sink;
static size_t size;

static void *writer(void *number) {
    char *block = calloc(1, size);
    for (;;) {
        ssize_t done = write(sink, block, size);
        if (done < 0) _exit(6);
        counts[(uintptr_t)number] += (uint64_t)done;
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    int file = open(argv[1], O_RDWR);
    sink = open("/dev/zero", O_WRONLY);
    if (file < 0 || sink < 0 || ftruncate(file, THREADS * sizeof *counts) != 0) return 3;
    counts = mmap(NULL, THREADS * sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (counts == MAP_FAILED) return 4;
    uintptr_t threads = strtoul(argv[2], NULL, 10);
    size = strtoul(argv[3], NULL, 10);
    if (argc > 4 && setuid((uid_t)strtoul(argv[4], NULL, 10)) != 0) return 5;
    for (uintptr_t i = 1; i < threads && i < THREADS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, writer, (void *)i) != 0) return 7;
    }
    writer(NULL);
}
