/* What odd_calls.c makes calls with: descriptors, memory, lengths and places, drawn by a seed; and how many bytes moved. */
#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define CONSTANT (64 * PAGE)
#define QUEUE (4 << 20)
#define LENGTH(list) (sizeof(list) / sizeof *(list))

static __thread uint64_t state;
static uint64_t draw(void)
{
    uint64_t x = state += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}
static uint64_t below(uint64_t n) { return draw() % n; }

static uint64_t stirred(uint64_t hash, const unsigned char *at)
{
    uint64_t word;
    memcpy(&word, at, 8);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    return hash ^ hash >> 29;
}

/* Four words at a time where there are many: each waits for the product before it. */
static uint64_t mixed(uint64_t hash, const void *from, size_t len)
{
    const unsigned char *at = from, *end = at + len;
    if (len >= 64) {
        uint64_t lanes[4] = { hash, hash + 1, hash + 2, hash + 3 };
        for (; end - at >= 32; at += 32)
            for (int i = 0; i < 4; i++)
                lanes[i] = stirred(lanes[i], at + i * 8);
        hash = mixed(lanes[0], lanes + 1, sizeof lanes - sizeof *lanes);
    }
    for (; end - at >= 8; at += 8)
        hash = stirred(hash, at);
    for (; at < end; at++)
        hash = (hash ^ *at) * 0x100000001b3;
    return hash;
}

/* Calls that a signal may end in the middle are not made. */
static int is_signalled;

/* Bytes that calls have moved, by the kernel's names of them. */
static const char *const names[] = { "read", "write", "pread64", "pwrite64", "readv", "writev", "preadv", "pwritev", "preadv2",
                                     "pwritev2", "sendto", "recvfrom", "sendmsg", "recvmsg", "sendmmsg", "recvmmsg", "sendfile",
                                     "splice", "tee", "copy_file_range", "vmsplice" };
enum { READ, WRITE, PREAD, PWRITE, READV, WRITEV, PREADV, PWRITEV, PREADV2, PWRITEV2, SEND, RECV, SENDMSG, RECVMSG, SENDMMSG,
       RECVMMSG, SENDFILE, SPLICE, TEE, COPY_FILE_RANGE, VMSPLICE, NAMES };
/* Of what kind the descriptor is by which a call is counted. */
static const char *const kinds[] = { ".file", ".socket", ".other" };
enum { OF_FILES, OF_SOCKETS, OF_OTHERS, KINDS_OF };
/* Shared with children. */
static unsigned long long (*moved)[KINDS_OF];
static long noted_of(int call, int kind, long result)
{
    if (result > 0)
        __atomic_fetch_add(&moved[call][kind], result, __ATOMIC_RELAXED);
    return result;
}
static int kind_of(int fd);
static long noted(int call, int fd, long result)
{
    return result > 0 ? noted_of(call, kind_of(fd), result) : result;
}
static int has_kinds(int call)
{
    return call == READ || call == WRITE || call == READV || call == WRITEV || call == SENDFILE || call == SPLICE;
}

static void print(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void print(const char *format, ...)
{
    char line[200];
    va_list args;
    va_start(args, format);
    int len = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    for (int at = 0; at < len;) {
        ssize_t done = noted(WRITE, 1, write(1, line + at, len - at));
        if (done > 0)
            at += done;
        else if (errno != EINTR)
            exit(3);
    }
}

static void die(const char *what)
{
    perror(what);
    exit(3);
}

/* Memory with nothing before and behind it, and a second one that is only read. */
static __thread char *arena;
static char *constant;
/* Length of the first. Less of it is hashed and copied sooner. */
static size_t arena_len = CONSTANT;

static char *guarded(size_t len)
{
    char *all = mmap(NULL, len + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || mprotect(all + PAGE, len, PROT_READ | PROT_WRITE))
        die("memory");
    return all + PAGE;
}

static void fill(char *at, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i += 8) {
        uint64_t word = (seed + i) * 0x9e3779b97f4a7c15;
        memcpy(at + i, &word, 8);
    }
}

#include "odd_descriptors.h"

/* A stream takes what is before a fault in portions of its own making, so that how much of a call goes depends on how
 * it is cut: memory for one is there, or it is not. */
static __thread int is_stream;
/* A call made from a copy of its arguments leaves alone what is behind its bytes, and all where there is no memory for a part of
 * a message; the kernel has begun by then ("Memory behind what comes", docs/07-enforced.md). So there is memory for what is
 * received. */
static int is_copied;
/* What such a call sends to netlink is charged for what it asks, also where it fails ("What is left", docs/07-enforced.md): none fails. */
static __thread int is_charged_as_asked;
/* Long transfers take most of the time. */
static int is_lean;
/* No call asks for more than a mebibyte but what the kernel refuses. */
static int is_small;
/* A device takes all that it is given, which is 2 GiB of more: 21 ms at 100 GB/s. */
static __thread int is_sink;
/* Calls may be made in pieces. */
static int in_pieces;
/* Nor does a transfer, whose end the kernel knows. */
static int in_loops;

static char *pointer(void)
{
    if (is_stream)
        return is_copied || below(8) ? arena + below(arena_len - 20000) : NULL;
    switch (below(16)) {
    case 0: return NULL;
    case 1: return (char *)-1;
    case 2: return (char *)0xffff800000000000;
    case 3: return (char *)0x7fffffffe000;
    case 4: return (char *)1;
    case 5: return arena - 1 - below(PAGE);
    case 6: return arena + arena_len - below(9);
    case 7: return arena + arena_len - below(3 * PAGE);
    case 8: return arena + below(arena_len / PAGE) * PAGE;
    default: return arena + below(arena_len - 20000);
    }
}

/* Enforced, a call waits for all that its registers say: 21 ms for the 2 GiB that the kernel makes of a length such as these. */
static size_t huge(size_t len)
{
    return is_copied && (is_charged_as_asked || below(8)) ? below(2000) : len;
}

static size_t length(void)
{
    if (is_stream)
        return below(is_lean ? 5000 : 20000);
    switch (below(24) + (is_small ? 24 : 0)) {
    case 27: case 28: case 29: case 30: return below(1 << 20);
    case 24: case 0: return huge(-1);
    case 25: case 1: return huge((size_t)1 << 63);
    case 26: case 2: return is_sink ? below(2000) : huge(INT64_MAX);
    case 3: return 0x7ffff000;
    case 4: return 0x7ffff001;
    case 5: return UINT32_MAX;
    case 6: return ((size_t)1 << 32) + below(9);
    case 31: case 7: return is_sink ? below(2000) : huge((size_t)1 << 47);
    case 32: case 8: return 0;
    case 33: case 9: return 8;
    case 34: case 35: case 10: case 11: return below(100);
    case 36: case 12: return PAGE * (1 + below(4));
    case 37: case 13: return arena_len;
    case 38: case 14: return below(200000);
    default: return below(is_lean ? 2000 : 20000);
    }
}

static off_t place(void)
{
    switch (below(12)) {
    case 0: return -1;
    case 1: return -2;
    case 2: return INT64_MIN;
    case 3: return INT64_MAX;
    case 4: return INT64_MAX - below(9000);
    case 5: return 0;
    case 6: return PAGE * below(30);
    default: return below(110000);
    }
}

static int effects(void)
{
    static const int some[] = { 0, 0, 0, 0, RWF_DSYNC, RWF_SYNC, RWF_APPEND, RWF_DSYNC | RWF_APPEND, 0x8000, -1 };
    return some[below(LENGTH(some))];
}

static int options(int which)
{
    static const int some[] = { 0, 0, 0, MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, MSG_PEEK | MSG_TRUNC, MSG_NOSIGNAL, MSG_MORE, MSG_WAITALL | MSG_DONTWAIT };
    /* More would be waited for. */
    return some[below(LENGTH(some))] & (is_tcp(which) ? ~MSG_MORE : -1);
}

/* A question to the kernel, whose bytes are no others. */
static __thread int to_kernel;
static __thread struct iovec vectors[2000];
static __thread struct msghdr message;
static __thread struct mmsghdr messages[40];
static __thread off_t places[2];

static struct iovec *list(int *count)
{
    static const int counts[] = { 0, 1, 1, 2, 2, 3, 5, 9, 40, 1024, 1025, -1, INT32_MIN };
    *count = counts[below(LENGTH(counts))];
    /* Long lists take long. */
    if (is_lean && *count >= 1024 && below(8))
        *count -= 1008;
    int some = *count < 0 || *count > 2000 ? 3 : *count;
    uint64_t odd = below(3);
    /* All of a stream's memory is there, or none of it. */
    char *nothing = is_stream && !is_copied && below(8) == 0 ? NULL : arena;
    for (int i = 0; i < some; i++) {
        if (to_kernel) {
            vectors[i] = (struct iovec){ &questions[below(60)], 32 * below(3) };
            continue;
        }
        vectors[i].iov_base = odd || is_stream ? nothing + (nothing ? below(arena_len - 20000) : 0) : pointer();
        vectors[i].iov_len = some > 5 ? below(some > 50 ? 64 : 700) : odd ? below(is_lean ? 5000 : 20000) : length();
    }
    return to_kernel || is_charged_as_asked || below(24) ? vectors : (struct iovec *)pointer();
}

/* For a descriptor of a kind; nothing is sent to a name that a network understands. */
static void header(struct msghdr *of, int which)
{
    static const unsigned names[] = { 0, 1, 2, 3, 16, 110, 111, 128, 129, 70000, INT32_MAX, UINT32_MAX };
    static const size_t controls[] = { 0, 1, 8, 15, 16, 24, 64, 200, 70000, INT32_MAX, (size_t)INT32_MAX + 1, -1 };
    int count, is_named = below(8) == 0 && !is_charged_as_asked, is_controlled = below(8) == 0 && !is_charged_as_asked;
    memset(of, 0, sizeof *of);
    of->msg_iov = list(&count);
    of->msg_iovlen = count;
    if (is_named && (which < TCP_A || (is_netlink(which) && which != ROUTE) || which == KINDS)) {
        of->msg_name = pointer();
        of->msg_namelen = names[below(LENGTH(names))];
    }
    if (is_controlled) {
        of->msg_control = pointer();
        of->msg_controllen = controls[below(LENGTH(controls))];
    }
}

/* What there is room for; all, where the list is not in our memory. */
static long total(const struct msghdr *of)
{
    size_t sum = 0, count = of->msg_iovlen;
    const char *list = (const char *)of->msg_iov;
    if (count == 0)
        return 0;
    if (count > LENGTH(vectors) || (of->msg_iov != vectors && (list < arena || list > arena + arena_len - count * sizeof *vectors)))
        return LONG_MAX;
    for (size_t i = 0; i < count; i++) {
        struct iovec vector;
        memcpy(&vector, list + i * sizeof vector, sizeof vector);
        if (__builtin_add_overflow(sum, vector.iov_len, &sum))
            return LONG_MAX;
    }
    return sum < LONG_MAX ? sum : LONG_MAX;
}
