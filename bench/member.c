/* A member of a group: writes as much as it can, and notes in a file, which is mapped, how
   much it had written when, at most once in 100 us.

     member FILE SIZE MS [ON_MS OFF_MS]

   It writes SIZE bytes at a time for MS; with pauses of OFF_MS after each ON_MS. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SAMPLES = 1 << 17 };

struct notes {
    uint64_t count;
    struct { uint64_t ns, bytes; } samples[SAMPLES];
};

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    int file = open(argv[1], O_RDWR);
    int sink = open("/dev/zero", O_WRONLY);
    if (file < 0 || sink < 0 || ftruncate(file, sizeof(struct notes)) != 0) return 3;
    struct notes *notes = mmap(NULL, sizeof *notes, PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_POPULATE, file, 0);
    if (notes == MAP_FAILED) return 4;
    size_t size = strtoul(argv[2], NULL, 10);
    uint64_t for_ns = strtoull(argv[3], NULL, 10) * 1000000;
    uint64_t on = argc > 5 ? strtoull(argv[4], NULL, 10) * 1000000 : 0;
    uint64_t off = argc > 5 ? strtoull(argv[5], NULL, 10) * 1000000 : 0;
    char *block = calloc(1, size);
    uint64_t start = now(), at = start, bytes = 0, next = 0, pause = start + on;
    while (at < start + for_ns) {
        int ends = on && at >= pause;
        if ((at >= next || ends) && notes->count < SAMPLES) {
            notes->samples[notes->count].ns = at;
            notes->samples[notes->count].bytes = bytes;
            notes->count++;
            next = at + 100000;
        }
        if (ends) {
            struct timespec rest = {(time_t)(off / 1000000000), (long)(off % 1000000000)};
            nanosleep(&rest, NULL);
            at = now();
            pause = at + on;
            next = at;
            continue;
        }
        if (write(sink, block, size) != (ssize_t)size) return 6;
        bytes += size;
        at = now();
    }
    return 0;
}
