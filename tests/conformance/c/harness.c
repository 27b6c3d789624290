/* Runs one case: calls CASE [-t THREADS] [-n OPERATIONS] [--wait] [--no-errors]
 *
 *   --list       one line of JSON for each case
 *   --exit N     what a case of the exec family runs: ends with status N
 *   --wait       after the line of results, wait until standard input ends:
 *                time to look at the counters of a process that still lives
 *   --no-errors  leave out the calls that must fail */
#define _GNU_SOURCE
#include "harness.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

extern const struct test *const __start_cases[];
extern const struct test *const __stop_cases[];

#define MOST_THREADS 16u

char self[512];
/* Volatile, so that no compiler warns of what is meant. */
void *volatile nowhere = (void *)8;
static char base[400];
static struct run runs[MOST_THREADS];
static pthread_barrier_t start_line;
static char line[16384];
static unsigned used;

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line + used, sizeof line - used, format, args);
    va_end(args);
    if (n > 0)
        used += (unsigned)n;
    if (used > sizeof line - 1)
        used = sizeof line - 1;
}

static void flush_line(void)
{
    for (unsigned at = 0; at < used;) {
        long n = raw_write(1, line + at, used - at);
        if (n <= 0)
            raw_exit(3);
        at += (unsigned)n;
    }
    used = 0;
}

void fail(struct run *r, const char *what, int at, long value)
{
    if (r->failure[0])
        return;
    snprintf(r->failure, sizeof r->failure, "line %d: %s (%ld)", at, what, value);
    for (char *c = r->failure; *c; c++)
        if (*c == '"' || *c == '\\' || *c < ' ')
            *c = '\'';
}

void mix(struct run *r, unsigned i, uint64_t value)
{
    uint64_t h = 1469598103934665603u ^ i;
    for (unsigned k = 0; k < 8; k++) {
        h ^= value >> (8 * k) & 0xff;
        h *= 1099511628211u;
    }
    r->hash += h;
}

void mix_bytes(struct run *r, unsigned i, const void *at, size_t len)
{
    const unsigned char *bytes = at;
    uint64_t h = 1469598103934665603u;
    for (size_t k = 0; k < len; k++) {
        h ^= bytes[k];
        h *= 1099511628211u;
    }
    mix(r, i, h);
}

void tally(struct run *r, const char *entry, uint64_t calls, uint64_t bytes)
{
    for (unsigned k = 0; k < TALLIES; k++) {
        struct tally *t = &r->tally[k];
        if (!t->entry)
            t->entry = entry;
        if (strcmp(t->entry, entry) == 0) {
            t->calls += calls;
            t->bytes += bytes;
            return;
        }
    }
    fail(r, "more entries than a case has room for", __LINE__, 0);
}

void expect_errno(struct run *r, const char *entry, int want, long value, const char *what, int at)
{
    int got = value == -1 ? errno : 0;
    if (entry)
        tally(r, entry, 1, 0);
    if (r->errno_count < ERRNOS)
        r->errnos[r->errno_count++] = got;
    if (got != want)
        fail(r, what, at, got);
}

void pattern(unsigned char *at, size_t len, unsigned i)
{
    for (size_t k = 0; k < len; k++)
        at[k] = (unsigned char)(i * 131u + k * 7u + (k >> 8) * 13u + 1u);
}

char *path_in(struct run *r, const char *name)
{
    static __thread char paths[4][600];
    static __thread unsigned turn;
    char *path = paths[turn++ & 3];
    snprintf(path, sizeof paths[0], "%s/%s", r->dir, name);
    return path;
}

int raw_file(struct run *r, const char *name, size_t len)
{
    static __thread unsigned char block[4096];
    int fd = raw_open(path_in(r, name), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC);
    if (fd < 0) {
        fail(r, "cannot make a file", __LINE__, -fd);
        return fd;
    }
    pattern(block, sizeof block, 0);
    for (size_t at = 0; at < len; at += sizeof block)
        raw_write(fd, block, len - at < sizeof block ? len - at : sizeof block);
    raw_seek(fd, 0, SEEK_SET);
    return fd;
}

void fill(int fd)
{
    static const char block[4096];
    raw_nonblock(fd);
    while (raw_write(fd, block, sizeof block) > 0)
        ;
    while (raw_write(fd, block, 1) > 0)
        ;
}

const char *of_kind(const struct run *r, const char *kind)
{
    static __thread char names[4][40];
    static __thread unsigned turn;
    const char *dot = strchr(r->test->entry, '.');
    if (!dot)
        return r->test->entry;
    for (unsigned k = 0; k < TALLIES; k++) {
        const char *known = r->tally[k].entry;
        size_t n = (size_t)(dot + 1 - r->test->entry);
        if (known && strncmp(known, r->test->entry, n) == 0 && strcmp(known + n, kind) == 0)
            return known;
    }
    char *name = names[turn++ & 3];
    snprintf(name, 40, "%.*s%s", (int)(dot + 1 - r->test->entry), r->test->entry, kind);
    return name;
}

void close_all(struct run *r)
{
    for (unsigned k = 0; k < sizeof r->fd / sizeof *r->fd; k++)
        if (r->fd[k] >= 0)
            raw_close(r->fd[k]);
}

static void prepare(struct run *r)
{
    if (r->test->setup)
        r->test->setup(r);
}

static void operate(struct run *r)
{
    for (unsigned i = r->first; i < r->first + r->ops && !r->skip && !r->failure[0]; i++) {
        long bytes = r->test->op(r, i);
        if (!(r->test->flags & OWN_TALLY))
            tally(r, r->test->entry, 1, bytes > 0 ? (uint64_t)bytes : 0);
    }
}

static void *thread_main(void *arg)
{
    struct run *r = arg;
    prepare(r);
    /* All are ready; then the clock is read; then all go. */
    pthread_barrier_wait(&start_line);
    pthread_barrier_wait(&start_line);
    operate(r);
    pthread_barrier_wait(&start_line);
    return NULL;
}

/* What cases leave in their folders goes, whatever it is. */
static void remove_below(const char *dir)
{
    int fd = raw_open(dir, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return;
    char block[4096];
    for (long n; (n = RAW3(SYS_getdents64, fd, block, sizeof block)) > 0; raw_seek(fd, 0, SEEK_SET)) {
        unsigned gone = 0;
        for (long at = 0; at < n;) {
            /* struct linux_dirent64: the record's length at 16, its name at 19. */
            unsigned short len;
            memcpy(&len, block + at + 16, sizeof len);
            const char *name = block + at + 19;
            if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0) {
                char path[1000];
                snprintf(path, sizeof path, "%s/%s", dir, name);
                if (raw_unlink(path) == -EISDIR)
                    remove_below(path);
                gone++;
            }
            at += len;
        }
        if (gone == 0)
            break;
    }
    raw_close(fd);
    raw_rmdir(dir);
}

static void report(const struct test *t, unsigned threads, uint64_t elapsed)
{
    uint64_t hash = 0, bytes = 0;
    unsigned ops = 0;
    static struct run sum;
    sum.test = t;
    for (unsigned k = 0; k < threads; k++) {
        hash += runs[k].hash;
        ops += runs[k].ops;
        for (unsigned n = 0; n < TALLIES && runs[k].tally[n].entry; n++) {
            struct tally *one = &runs[k].tally[n];
            tally(&sum, one->entry, one->calls, one->bytes);
        }
        if (runs[k].failure[0] && !sum.failure[0])
            memcpy(sum.failure, runs[k].failure, sizeof sum.failure);
        if (runs[k].skip)
            sum.skip = runs[k].skip;
    }
    say("{\"case\":\"%s\",\"threads\":%u,\"ops\":%u,\"elapsed_ns\":%llu,\"hash\":\"%016llx\",", t->name, threads,
        ops, (unsigned long long)elapsed, (unsigned long long)hash);
    say("\"errnos\":[");
    for (unsigned k = 0; k < runs[0].errno_count; k++)
        say("%s%d", k ? "," : "", runs[0].errnos[k]);
    say("],\"counts\":{");
    for (unsigned n = 0; n < TALLIES && sum.tally[n].entry; n++) {
        bytes += sum.tally[n].bytes;
        say("%s\"%s\":[%llu,%llu]", n ? "," : "", sum.tally[n].entry,
            (unsigned long long)sum.tally[n].calls, (unsigned long long)sum.tally[n].bytes);
    }
    say("},\"bytes\":%llu,\"skip\":", (unsigned long long)bytes);
    say(sum.skip ? "\"%s\"" : "null%s", sum.skip ? sum.skip : "");
    say(",\"failure\":");
    say(sum.failure[0] ? "\"%s\"}\n" : "null%s}\n", sum.failure);
    flush_line();
}

static void list(void)
{
    for (const struct test *const *t = __start_cases; t < __stop_cases; t++) {
        say("{\"case\":\"%s\",\"symbol\":\"%s\",\"entry\":\"%s\",\"unit\":%u,\"ops\":%u,"
            "\"inside\":%s,\"single\":%s}\n",
            (*t)->name, (*t)->symbol, (*t)->entry, (*t)->unit, (*t)->ops,
            (*t)->flags & INSIDE ? "true" : "false", (*t)->flags & SINGLE ? "true" : "false");
        flush_line();
    }
}

static void run_case(const struct test *t, unsigned threads, unsigned ops, int errors)
{
    unsigned first = 0;
    snprintf(base, sizeof base, "%s/case-%d", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp",
             (int)RAW0(SYS_getpid));
    raw_mkdir(base);
    for (unsigned k = 0; k < threads; k++) {
        struct run *r = &runs[k];
        r->test = t;
        r->thread = k;
        r->threads = threads;
        r->first = first;
        r->ops = ops / threads + (k < ops % threads);
        first += r->ops;
        r->data = raw_map(2 * ROOM);
        r->want = r->data + ROOM;
        snprintf(r->dir, sizeof r->dir, "%s/%u", base, k);
        raw_mkdir(r->dir);
        for (unsigned n = 0; n < sizeof r->fd / sizeof *r->fd; n++)
            r->fd[n] = -1;
    }
    uint64_t from;
    uint64_t to;
    if (threads == 1) {
        prepare(&runs[0]);
        from = raw_now();
        operate(&runs[0]);
        to = raw_now();
    } else {
        pthread_t ids[MOST_THREADS];
        pthread_barrier_init(&start_line, NULL, threads + 1);
        for (unsigned k = 0; k < threads; k++)
            pthread_create(&ids[k], NULL, thread_main, &runs[k]);
        pthread_barrier_wait(&start_line);
        from = raw_now();
        pthread_barrier_wait(&start_line);
        pthread_barrier_wait(&start_line);
        to = raw_now();
        for (unsigned k = 0; k < threads; k++)
            pthread_join(ids[k], NULL);
    }
    if (errors && t->errors && !runs[0].skip && !runs[0].failure[0])
        t->errors(&runs[0]);
    for (unsigned k = 0; k < threads; k++)
        if (t->finish)
            t->finish(&runs[k]);
    remove_below(base);
    report(t, threads, to - from);
}

int main(int argc, char **argv)
{
    unsigned threads = 1;
    unsigned ops = 0;
    int ops_given = 0;
    int wait = 0;
    int errors = 1;
    // The modes of new files are compared with what this leaves.
    umask(022);
    if (argc >= 3 && strcmp(argv[1], "--exit") == 0)
        raw_exit(atoi(argv[2]) + (getenv("CONFORMANCE_EXTRA") ? 1 : 0));
    long n = RAW3(SYS_readlink, "/proc/self/exe", self, sizeof self - 1);
    if (argc < 2 || n <= 0)
        return 2;
    if (strcmp(argv[1], "--list") == 0) {
        list();
        return 0;
    }
    for (int k = 2; k < argc; k++) {
        if (strcmp(argv[k], "-t") == 0 && k + 1 < argc)
            threads = (unsigned)atoi(argv[++k]);
        else if (strcmp(argv[k], "-n") == 0 && k + 1 < argc)
            ops = (unsigned)atoi(argv[++k]), ops_given = 1;
        else if (strcmp(argv[k], "--wait") == 0)
            wait = 1;
        else if (strcmp(argv[k], "--no-errors") == 0)
            errors = 0;
        else
            return 2;
    }
    if (threads < 1 || threads > MOST_THREADS)
        return 2;
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &ignore, NULL);
    for (const struct test *const *t = __start_cases; t < __stop_cases; t++) {
        if (strcmp((*t)->name, argv[1]) != 0)
            continue;
        run_case(*t, threads, ops_given ? ops : (*t)->ops, errors);
        char byte;
        while (wait && raw_read(0, &byte, 1) > 0)
            ;
        return 0;
    }
    return 2;
}
