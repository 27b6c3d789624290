// A member of a group: writes as much as it can, and notes in a file, which is mapped, how
// much it had written when. What a killed one has noted is there all the same.
//
//   member FILE SIZE MS [ON_MS OFF_MS [UID]]
//
// It writes SIZE bytes at a time for MS; with pauses of OFF_MS after each ON_MS; as the
// user UID, from before its first write.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SAMPLES = 1 << 16 };

struct notes {
    _Atomic uint64_t count;
    struct { uint64_t ns, bytes; } samples[SAMPLES];
};

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void note(struct notes *notes, uint64_t at, uint64_t bytes) {
    if (notes->count < SAMPLES) {
        notes->samples[notes->count].ns = at;
        notes->samples[notes->count].bytes = bytes;
        notes->count++;
    }
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    int file = open(argv[1], O_RDWR);
    // Takes everything, and is open to everybody also where /dev/null is not.
    int sink = open("/dev/zero", O_WRONLY);
    if (file < 0 || sink < 0 || ftruncate(file, sizeof(struct notes)) != 0) return 3;
    struct notes *notes = mmap(NULL, sizeof *notes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (notes == MAP_FAILED) return 4;
    size_t size = strtoul(argv[2], NULL, 10);
    uint64_t for_ns = strtoull(argv[3], NULL, 10) * 1000000;
    uint64_t on = argc > 5 ? strtoull(argv[4], NULL, 10) * 1000000 : 0;
    uint64_t off = argc > 5 ? strtoull(argv[5], NULL, 10) * 1000000 : 0;
    if (argc > 6 && setuid((uid_t)strtoul(argv[6], NULL, 10)) != 0) return 5;
    char *block = calloc(1, size);
    uint64_t start = now(), at = start, bytes = 0, next = 0, pause = start + on;
    while (at < start + for_ns) {
        if (on && at >= pause) {
            struct timespec rest = {(time_t)(off / 1000000000), (long)(off % 1000000000)};
            nanosleep(&rest, NULL);
            at = now();
            pause = at + on;
            next = at;
        }
        // At most one sample in 2 ms, or all of the first 20 ms after a pause.
        if (at >= next || (on && at < pause - on + 20000000)) {
            note(notes, at, bytes);
            next = at + 2000000;
        }
        if (write(sink, block, size) != (ssize_t)size) return 6;
        uint64_t before = at;
        at = now();
        // What was written before a wait is not taken for written after it.
        if (at - before > 500000) note(notes, before, bytes);
        bytes += size;
    }
    return 0;
}
