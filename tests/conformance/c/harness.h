/* What a case is, and what it may use.
 *
 * A case makes operations through exactly one libc symbol, checks what they
 * did, then makes calls that must fail in a known way. Everything else it does
 * goes through raw.h. The harness runs it on one thread or several, and prints
 * one line of JSON: operations, bytes, time, a hash over all results and
 * contents, the errno of each call that had to fail, and how often each entry
 * of the table of calls was used. */
#ifndef HARNESS_H
#define HARNESS_H

#include "raw.h"

#include <errno.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>

/* The call is made by libc itself: seen only where libc's call sites are patched. */
#define INSIDE 1u
/* Cannot be divided among threads. */
#define SINGLE 2u
/* The operation says itself, by tally(), what it used. */
#define OWN_TALLY 4u

struct run;

/* Moves up to `len` bytes between `at` and a descriptor; `pos` is a file position. */
typedef ssize_t mover(struct run *r, int fd, void *at, size_t len, off_t pos);

struct test {
    const char *name;
    const char *symbol; /* in libc's dynamic symbol table; "" with INSIDE */
    const char *entry;  /* NAME, or NAME.KIND with file, socket, other */
    unsigned unit;      /* bytes that one operation moves; 0: calls count */
    unsigned ops;       /* operations where nothing else is said */
    unsigned flags;
    mover *go;
    void (*setup)(struct run *r);
    /* Operation number `i` of all threads together; returns the bytes moved. */
    long (*op)(struct run *r, unsigned i);
    void (*errors)(struct run *r);
    void (*finish)(struct run *r);
};

struct tally {
    const char *entry;
    uint64_t calls, bytes;
};

#define TALLIES 12u
#define ERRNOS 64u
#define ROOM 65536u

/* One thread's share of a case. */
struct run {
    const struct test *test;
    unsigned thread, threads, first, ops;
    char dir[480]; /* a folder of its own, removed at the end */
    int fd[6];
    unsigned char *data, *want; /* ROOM bytes each */
    void *extra;
    uint64_t number;
    uint64_t hash;
    struct tally tally[TALLIES];
    int errnos[ERRNOS];
    unsigned errno_count;
    const char *skip;
    char failure[240];
};

#define CASE(id, ...)                                                       \
    static const struct test test_##id = {.name = #id, __VA_ARGS__};        \
    static const struct test *const listed_##id                            \
        __attribute__((section("cases"), used)) = &test_##id

/* go_ID: one way to make the call; `expression` uses what it needs of the arguments. */
#define MOVER(id, expression)                                                        \
    static ssize_t go_##id(struct run *r, int fd, void *at, size_t len, off_t pos)   \
    {                                                                                \
        (void)r, (void)fd, (void)at, (void)len, (void)pos;                           \
        return expression;                                                           \
    }

/* A case whose calls are counted, not its bytes. */
#define COUNTED(id, sym, entry_, setup_, op_, errors_, expression)                   \
    MOVER(id, expression)                                                            \
    CASE(id, .symbol = sym, .entry = entry_, .ops = 24, .go = go_##id,               \
         .setup = setup_, .op = op_, .errors = errors_, .finish = close_all)

/* Stored in errno before a call that must succeed: it must still be there after it. */
#define ERRNO_CANARY 4242

/* The file name of this program. */
extern char self[512];
extern char **environ;

void fail(struct run *r, const char *what, int line, long value);
/* Goes into the hash; the sum over all operations does not depend on their order. */
void mix(struct run *r, unsigned i, uint64_t value);
void mix_bytes(struct run *r, unsigned i, const void *at, size_t len);
void tally(struct run *r, const char *entry, uint64_t calls, uint64_t bytes);
void expect_errno(struct run *r, const char *entry, int want, long value, const char *what, int line);

#define CHECK(r, condition)                                       \
    do {                                                          \
        if (!(condition))                                         \
            fail(r, #condition, __LINE__, errno);                 \
    } while (0)

/* A call that fails with `want`, or for 0 succeeds without bytes; one use of `entry`. */
#define EXPECT(r, entry, want, call)                              \
    do {                                                          \
        errno = 0;                                                \
        long value_ = (long)(call);                               \
        expect_errno(r, entry, want, value_, #call, __LINE__);    \
    } while (0)

/* Contents of operation `i`. */
void pattern(unsigned char *at, size_t len, unsigned i);
/* `dir` and a name; the answer stays valid until the fourth next call of this thread. */
char *path_in(struct run *r, const char *name);
/* A new file of `len` bytes of pattern 0, open for reading and writing. */
int raw_file(struct run *r, const char *name, size_t len);
/* Fills a pipe or socket until it takes no more, leaving it non-blocking. */
void fill(int fd);
/* The name of this entry for another kind of descriptor: "read.other" for "read.file". */
const char *of_kind(const struct run *r, const char *kind);

/* Families with one form of operation: calls_read.c, calls_write.c. */
void in_file(struct run *r), in_socket(struct run *r), in_pipe(struct run *r);
void in_datagrams(struct run *r);
long in_op(struct run *r, unsigned i);
void out_file(struct run *r), out_socket(struct run *r), out_pipe(struct run *r);
void out_datagrams(struct run *r);
long out_op(struct run *r, unsigned i);
void close_all(struct run *r);

/* An address that no program may use. */
extern void *volatile nowhere;
#define NOWHERE ((void *)nowhere)
/* Three vectors over `len` bytes, the middle one empty. */
#define VECTORS(at, len)                                                     \
    (struct iovec[]){{(at), (len) / 2},                                      \
                     {NULL, 0},                                              \
                     {(char *)(at) + (len) / 2, (len) - (len) / 2}},         \
        3

#endif
