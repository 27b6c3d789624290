/* A program that wants more than it gets.
 *
 *   flow read|write SIZE THREADS WARM LENGTH SAMPLE PATH
 *
 * Says `ready`, and reads a line with the instant START (ns, CLOCK_MONOTONIC). From
 * then on every thread makes calls of SIZE bytes without a pause: read(2) or write(2),
 * or pread(2) or pwrite(2) if PATH is a regular file, which has SIZE bytes or more. At START + WARM + LENGTH one line
 * of JSON says what happened, and the program ends, whatever its threads wait for.
 *
 *   bins     bytes by the instant at which their call returned, in bins of 10 ms
 *            from START on
 *   kernel   [ns since START, bytes that the kernel has counted for the process
 *            (/proc/self/io: rchar or wchar)], every SAMPLE ms; nothing if SAMPLE
 *            is 0. Pieces of a large call count when they are moved.
 *   calls, cpu_ns, nivcsw   between START + WARM and the end: calls that returned,
 *            CPU of all threads, involuntary context switches
 *   late_ns  how late the sampler woke up at worst */
#include "raw.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { BIN_NS = 10000000, MOST_THREADS = 256 };

static int reading, positioned, fd;
static size_t size;
static off_t file_len;
static char *bytes;
static uint64_t start;
static size_t bins;
static pthread_barrier_t started;

static struct share {
    uint64_t *bin;
    uint64_t calls;
    char apart[112];
} shares[MOST_THREADS];

static void *thread(void *arg)
{
    struct share *s = arg;
    size_t index = (size_t)(s - shares);
    off_t at = file_len ? (off_t)((index * 7919 * size) % (size_t)file_len) : 0;
    pthread_barrier_wait(&started);
    sleep_until(start);
    for (;;) {
        ssize_t n;
        if (positioned) {
            if (at + (off_t)size > file_len) at = 0;
            n = reading ? pread(fd, bytes, size, at) : pwrite(fd, bytes, size, at);
            at += (off_t)size;
        } else {
            n = reading ? read(fd, bytes, size) : write(fd, bytes, size);
        }
        size_t bin = (now_ns() - start) / BIN_NS;
        if (n <= 0 || bin >= bins) break;
        __atomic_store_n(&s->bin[bin], s->bin[bin] + (uint64_t)n, __ATOMIC_RELAXED);
        __atomic_store_n(&s->calls, s->calls + 1, __ATOMIC_RELAXED);
    }
    for (;;) pause();
    return NULL;
}

static uint64_t own_reads;

/* What the kernel has counted, without what asking it takes. */
static uint64_t counted(int io)
{
    char text[512];
    long n = raw(SYS_pread64, io, (long)text, sizeof text - 1, 0);
    if (n <= 0) fail("/proc/self/io");
    text[n] = 0;
    const char *at = strstr(text, reading ? "rchar: " : "wchar: ");
    uint64_t value = at ? strtoull(at + 7, NULL, 10) : 0;
    if (reading) {
        value -= own_reads;
        own_reads += (uint64_t)n;
    }
    return value;
}

int main(int argc, char **argv)
{
    end_with_parent();
    if (argc != 8) return 2;
    reading = strcmp(argv[1], "read") == 0;
    size = strtoull(argv[2], NULL, 10);
    unsigned threads = (unsigned)atoi(argv[3]);
    uint64_t warm = strtoull(argv[4], NULL, 10), length = strtoull(argv[5], NULL, 10);
    uint64_t sample = strtoull(argv[6], NULL, 10) * 1000000u;
    const char *path = argv[7];
    fd = open(path, reading ? O_RDONLY : O_WRONLY);
    struct stat about;
    if (fd < 0 || fstat(fd, &about)) fail(path);
    positioned = S_ISREG(about.st_mode);
    file_len = positioned ? about.st_size : 0;
    if (positioned && file_len < (off_t)size) fail("the file is too short");
    bytes = malloc(size);
    if (!bytes || threads < 1 || threads > MOST_THREADS) return 2;
    memset(bytes, 'x', size);
    bins = (size_t)((warm + length) / BIN_NS) + 1;
    pthread_barrier_init(&started, NULL, threads + 1);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    for (unsigned t = 0; t < threads; t++) {
        pthread_t id;
        shares[t].bin = calloc(bins, sizeof(uint64_t));
        if (!shares[t].bin || pthread_create(&id, &small, thread, &shares[t])) fail("thread");
    }
    int io = (int)raw(SYS_openat, AT_FDCWD, (long)"/proc/self/io", O_RDONLY, 0);
    size_t most = sample ? (size_t)((warm + length) / sample) + 2 : 0, samples = 0;
    uint64_t (*kernel)[2] = calloc(most + 1, sizeof *kernel);
    prctl(PR_SET_TIMERSLACK, 1);
    uint64_t base = sample ? counted(io) : 0, late = 0, calls = 0, cpu = 0;
    struct rusage before = {0}, after;
    int warmed = 0;
    char line[32];
    say("ready\n");
    flush_said();
    if (!read_line(line, sizeof line)) return 2;
    start = strtoull(line, NULL, 10);
    uint64_t end = start + warm + length;
    pthread_barrier_wait(&started);
    for (uint64_t next = start, last = 0; last < end;) {
        sleep_until(next);
        uint64_t now = now_ns();
        if (now - next > late && next > start) late = now - next;
        if (!warmed && next >= start + warm) {
            warmed = 1;
            for (unsigned t = 0; t < threads; t++)
                calls += __atomic_load_n(&shares[t].calls, __ATOMIC_RELAXED);
            cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
            getrusage(RUSAGE_SELF, &before);
        }
        if (sample && samples < most) {
            uint64_t value = counted(io), done = now_ns();
            kernel[samples][0] = now + (done - now) / 2 - start;
            kernel[samples++][1] = value - base;
        }
        last = next;
        next = sample ? next + sample : next < start + warm ? start + warm : end;
        if (next > end) next = end;
    }
    cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    getrusage(RUSAGE_SELF, &after);
    uint64_t made = 0;
    for (unsigned t = 0; t < threads; t++)
        made += __atomic_load_n(&shares[t].calls, __ATOMIC_RELAXED);
    say("{\"calls\":%lu,\"cpu_ns\":%lu,\"nivcsw\":%ld,\"late_ns\":%lu,\"bins\":[", made - calls, cpu,
        after.ru_nivcsw - before.ru_nivcsw, late);
    for (size_t b = 0; b + 1 < bins; b++) {
        uint64_t sum = 0;
        for (unsigned t = 0; t < threads; t++)
            sum += __atomic_load_n(&shares[t].bin[b], __ATOMIC_RELAXED);
        say("%s%lu", b ? "," : "", sum);
    }
    say("],\"kernel\":[");
    for (size_t s = 0; s < samples; s++)
        say("%s[%lu,%lu]", s ? "," : "", kernel[s][0], kernel[s][1]);
    say("]}\n");
    flush_said();
    _exit(0);
}
