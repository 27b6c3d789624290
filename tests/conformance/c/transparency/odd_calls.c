/* Random and hostile calls that move bytes, always the same for a seed: what each returns, what is in memory,
 * in files and in queues afterwards, and where files stand, has to be the same bare and under limits.
 *
 *   odd_calls SEED FIRST COUNT [all [copied]]   calls FIRST to FIRST + COUNT; a line for every 100 calls, with "all" one for each
 *
 * Every hundred begins anew, so that one that differs is found again alone. Nothing blocks: what could is told not to,
 * and queues have room for all that a call moves. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define TOGETHER 100
#define PAGES 64
#define PAGE 4096ul
#define ARENA (PAGES * PAGE)
#define QUEUE (4 << 20)

static uint64_t state;
static uint64_t draw(void)
{
    uint64_t x = state += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}
static uint64_t below(uint64_t n) { return draw() % n; }

static uint64_t mixed(uint64_t hash, const void *at, size_t len)
{
    const unsigned char *bytes = at;
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15;
        hash ^= hash >> 29;
    }
    for (; i < len; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3;
    return hash;
}

static void die(const char *what)
{
    perror(what);
    exit(3);
}

/* Memory with nothing before and behind it, and a second one that is only read. */
static char *arena, *constant;

static char *guarded(void)
{
    char *all = mmap(NULL, ARENA + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || mprotect(all + PAGE, ARENA, PROT_READ | PROT_WRITE))
        die("memory");
    return all + PAGE;
}

static void fill(char *at, uint64_t seed)
{
    for (size_t i = 0; i < ARENA; i += 8) {
        uint64_t word = (seed + i) * 0x9e3779b97f4a7c15;
        memcpy(at + i, &word, 8);
    }
}

enum { FILE_RW, APPENDED, SYNCED, READ_ONLY, WRITE_ONLY, MEMORY, FOLDER, NOTHING, ZEROES, EVENT,
       PIPE_R, PIPE_W, STREAM_A, STREAM_B, GRAM_A, GRAM_B, PACKET_A, PACKET_B, KINDS };
static int fds[KINDS];
static const int seekable[] = { FILE_RW, APPENDED, SYNCED, READ_ONLY, WRITE_ONLY, MEMORY };
/* What is read until it is empty. */
static const int queues[] = { PIPE_R, STREAM_A, STREAM_B, GRAM_A, GRAM_B, PACKET_A, PACKET_B };
#define LENGTH(list) (sizeof(list) / sizeof *(list))

static int opened(const char *name, int flags)
{
    int fd = open(name, flags | O_CREAT, 0600);
    if (fd < 0)
        die(name);
    return fd;
}

static void pair(int kind, int first)
{
    int both[2], room = QUEUE;
    if (socketpair(AF_UNIX, kind | SOCK_NONBLOCK, 0, both))
        die("socketpair");
    for (int i = 0; i < 2; i++) {
        if (setsockopt(both[i], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room))
            setsockopt(both[i], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
        fds[first + i] = both[i];
    }
}

static void begin(uint64_t seed)
{
    int both[2];
    state = seed;
    fill(arena, seed);
    fds[FILE_RW] = opened("rw", O_RDWR | O_TRUNC);
    fds[APPENDED] = opened("appended", O_RDWR | O_TRUNC | O_APPEND);
    fds[SYNCED] = opened("synced", O_RDWR | O_TRUNC | O_DSYNC);
    fds[READ_ONLY] = opened("constant", O_RDONLY);
    fds[WRITE_ONLY] = opened("written", O_WRONLY | O_TRUNC);
    fds[MEMORY] = memfd_create("memory", 0);
    fds[FOLDER] = open(".", O_RDONLY | O_DIRECTORY);
    fds[NOTHING] = open("/dev/null", O_RDWR);
    fds[ZEROES] = open("/dev/zero", O_RDWR);
    fds[EVENT] = eventfd(3, EFD_NONBLOCK);
    if (pipe2(both, O_NONBLOCK))
        die("pipe");
    fcntl(both[1], F_SETPIPE_SZ, 1 << 20);
    fds[PIPE_R] = both[0], fds[PIPE_W] = both[1];
    pair(SOCK_STREAM, STREAM_A);
    pair(SOCK_DGRAM, GRAM_A);
    pair(SOCK_SEQPACKET, PACKET_A);
    for (int i = 0; i < KINDS; i++)
        if (fds[i] < 0)
            die("a descriptor");
    if (pwrite(fds[FILE_RW], constant, 100000, 0) != 100000 ||
        pwrite(fds[MEMORY], constant, 50000, 0) != 50000)
        die("files");
}

static void end(void)
{
    for (int i = 0; i < KINDS; i++)
        close(fds[i]);
}

static int descriptor(void)
{
    switch (below(12)) {
    case 0: return fds[FILE_RW];
    case 1: return fds[MEMORY];
    case 2: return below(8) ? 1000 : -1;
    default: return fds[below(KINDS)];
    }
}

static int of_sockets(int fd)
{
    return below(8) ? fds[STREAM_A + below(6)] : fd;
}

static int of_files(int fd)
{
    return below(4) ? fds[seekable[below(LENGTH(seekable))]] : fd;
}

/* A stream takes what is before a fault in portions of its own making, so that how much of a call goes depends on how
 * it is cut: memory for one is there, or it is not. */
static int is_stream;
/* Whoever makes a call by a copy of its bytes leaves alone what is behind them, and all where there is no memory for a part of a
 * message; the kernel has begun by then. So there is memory for what is received. */
static int is_copied;

static char *pointer(void)
{
    if (is_stream)
        return is_copied || below(8) ? arena + below(ARENA - 20000) : NULL;
    switch (below(16)) {
    case 0: return NULL;
    case 1: return (char *)-1;
    case 2: return (char *)0xffff800000000000;
    case 3: return (char *)0x7fffffffe000;
    case 4: return (char *)1;
    case 5: return arena - 1 - below(PAGE);
    case 6: return arena + ARENA - below(9);
    case 7: return arena + ARENA - below(3 * PAGE);
    case 8: return arena + below(PAGES) * PAGE;
    default: return arena + below(ARENA - 20000);
    }
}

static size_t length(void)
{
    if (is_stream)
        return below(20000);
    switch (below(24)) {
    case 0: return -1;
    case 1: return (size_t)1 << 63;
    case 2: return INT64_MAX;
    case 3: return 0x7ffff000;
    case 4: return 0x7ffff001;
    case 5: return UINT32_MAX;
    case 6: return ((size_t)1 << 32) + below(9);
    case 7: return (size_t)1 << 47;
    case 8: return 0;
    case 9: return 8;
    case 10: case 11: return below(100);
    case 12: return PAGE * (1 + below(4));
    case 13: return ARENA;
    case 14: return below(200000);
    default: return below(20000);
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

static int options(void)
{
    static const int some[] = { 0, 0, 0, MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, MSG_PEEK | MSG_TRUNC, MSG_NOSIGNAL, MSG_MORE, MSG_WAITALL | MSG_DONTWAIT };
    return some[below(LENGTH(some))];
}

static struct iovec vectors[2000];
static struct msghdr message;
static struct mmsghdr messages[40];
static off_t places[2];

static struct iovec *list(int *count)
{
    static const int counts[] = { 0, 1, 1, 2, 2, 3, 5, 33, 40, 1024, 1025, -1, INT32_MIN };
    *count = counts[below(LENGTH(counts))];
    int some = *count < 0 || *count > 2000 ? 3 : *count;
    uint64_t odd = below(3);
    for (int i = 0; i < some; i++) {
        vectors[i].iov_base = odd ? arena + below(ARENA - 20000) : pointer();
        vectors[i].iov_len = some > 5 ? below(700) : odd ? below(20000) : length();
    }
    return below(24) ? vectors : (struct iovec *)pointer();
}

static struct msghdr *header(struct msghdr *of)
{
    int count;
    memset(of, 0, sizeof *of);
    of->msg_iov = list(&count);
    of->msg_iovlen = count;
    return of;
}

/* The call, by its name. */
static const char *name;
static long made(void)
{
    int fd = descriptor(), other = descriptor(), count, i;
    int which = below(22);
    if (which >= 11 && which <= 16)
        fd = of_sockets(fd);
    else if (which == 2 || which == 3 || (which >= 6 && which <= 10) || which == 20)
        fd = of_files(fd), other = of_files(other);
    else if (which == 18 || which == 19)
        fd = below(2) ? fds[PIPE_W] : fd, other = below(2) ? fds[PIPE_R] : other;
    is_stream = fd == fds[STREAM_A] || fd == fds[STREAM_B] || (is_copied && (which == 12 || which >= 14) && which <= 16);
    char *at = pointer();
    size_t len = length();
    off_t where = place();
    places[0] = place(), places[1] = place();
    off_t *from = below(2) ? &places[0] : below(8) ? NULL : (off_t *)pointer();
    off_t *to = below(2) ? &places[1] : NULL;
    struct iovec *of;
#define CALL(x) name = #x; return x
    switch (which) {
    case 0: CALL(read)(fd, at, len);
    case 1: CALL(write)(fd, at, len);
    case 2: CALL(pread)(fd, at, len, where);
    case 3: CALL(pwrite)(fd, at, len, where);
    case 4: of = list(&count); CALL(readv)(fd, of, count);
    case 5: of = list(&count); CALL(writev)(fd, of, count);
    case 6: of = list(&count); CALL(preadv)(fd, of, count, where);
    case 7: of = list(&count); CALL(pwritev)(fd, of, count, where);
    case 8: of = list(&count); i = effects(); CALL(preadv2)(fd, of, count, where, i & ~RWF_APPEND);
    case 9: case 10: of = list(&count); i = effects(); CALL(pwritev2)(fd, of, count, where, i);
    case 11: i = options(); CALL(send)(fd, at, len, i);
    case 12: i = options(); CALL(recv)(fd, at, len, i | MSG_DONTWAIT);
    case 13: header(&message); i = options(); CALL(sendmsg)(fd, &message, i);
    case 14: header(&message); i = options(); CALL(recvmsg)(fd, &message, i | MSG_DONTWAIT);
    case 15: case 16:
        for (i = 0; i < 40; i++) {
            messages[i].msg_hdr.msg_iov = vectors + i;
            messages[i].msg_hdr.msg_iovlen = 1;
            messages[i].msg_len = 0;
            vectors[i].iov_base = below(40) ? arena + below(ARENA - 20000) : pointer();
            vectors[i].iov_len = below(40) ? below(3000) : length();
        }
        count = below(12) ? below(40) : -1 - below(2);
        if (count < 0 && count != -1)
            count = 1;
        if (below(2)) {
            CALL(sendmmsg)(fd, count < 0 ? (void *)pointer() : messages, count, MSG_DONTWAIT);
        }
        CALL(recvmmsg)(fd, count < 0 ? (void *)pointer() : messages, count, MSG_DONTWAIT, NULL);
    case 17:
        /* Zeroes have no end. */
        if (other == fds[ZEROES])
            len &= 0xffff;
        CALL(sendfile)(fd, other, from, len);
    case 18:
        if (other == fds[ZEROES])
            len &= 0xffff;
        i = below(4) ? SPLICE_F_NONBLOCK : 0x80;
        CALL(splice)(other, from, fd, to, len, i);
    case 19: CALL(tee)(other, fd, len, SPLICE_F_NONBLOCK);
    case 20: CALL(copy_file_range)(other, from, fd, to, len, below(8) ? 0 : 1);
    default: of = list(&count); CALL(vmsplice)(fds[PIPE_W], of, count < 0 || count > 16 ? 1 : count, SPLICE_F_NONBLOCK);
    }
}

/* Everything that a call may have changed. */
static uint64_t seen(void)
{
    static char buffer[1 << 16];
    uint64_t hash = mixed(1, arena, ARENA);
    hash = mixed(hash, places, sizeof places);
    for (int i = 0; i < 40; i++)
        hash = mixed(hash, &messages[i].msg_len, sizeof messages[i].msg_len);
    hash = mixed(hash, &message.msg_flags, sizeof message.msg_flags);
    for (size_t i = 0; i < LENGTH(seekable); i++) {
        struct stat of;
        int fd = fds[seekable[i]];
        off_t now = lseek(fd, 0, SEEK_CUR);
        if (fstat(fd, &of))
            die("fstat");
        hash = mixed(hash, &now, sizeof now);
        hash = mixed(hash, &of.st_size, sizeof of.st_size);
        /* Sparse and endless, by places near the end of what there can be. */
        if (of.st_size > 1 << 20 && seekable[i] != READ_ONLY) {
            if (ftruncate(fd, 70000) || lseek(fd, below(70000), SEEK_SET) < 0)
                die("truncated");
        }
    }
    for (size_t i = 0; i < LENGTH(queues); i++) {
        ssize_t got;
        while ((got = read(fds[queues[i]], buffer, sizeof buffer)) > 0)
            hash = mixed(hash, buffer, got);
    }
    return hash;
}

/* Something to receive, not always. */
static void feed(void)
{
    static const int into[] = { PIPE_W, STREAM_A, STREAM_B, GRAM_A, GRAM_B, PACKET_A, PACKET_B };
    for (size_t i = 0; i < LENGTH(into); i++)
        for (int n = below(3); n; n--)
            write(fds[into[i]], constant + below(1000), 1 + below(9000));
}

static uint64_t contents(uint64_t hash)
{
    static char buffer[1 << 20];
    for (size_t i = 0; i < LENGTH(seekable); i++) {
        ssize_t got = seekable[i] == WRITE_ONLY ? 0 : pread(fds[seekable[i]], buffer, sizeof buffer, 0);
        hash = mixed(hash, buffer, got < 0 ? 0 : got);
    }
    return hash;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    uint64_t seed = strtoull(argv[1], NULL, 0), first = strtoull(argv[2], NULL, 0), count = strtoull(argv[3], NULL, 0);
    int all = argc > 4;
    is_copied = argc > 5;
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    arena = guarded();
    constant = guarded();
    fill(constant, 7);
    int fd = opened("constant", O_RDWR | O_TRUNC);
    if (write(fd, constant, 150000) != 150000)
        die("constant");
    close(fd);
    for (uint64_t at = first; at < first + count; at += TOGETHER) {
        uint64_t hash = 0;
        begin(seed ^ at * 0x2545f4914f6cdd1d);
        for (int i = 0; i < TOGETHER; i++) {
            feed();
            errno = 0;
            long result = made();
            int error = result < 0 ? errno : 0;
            uint64_t now = seen();
            hash = mixed(hash, &result, sizeof result);
            hash = mixed(hash, &error, sizeof error);
            hash = mixed(hash, &now, sizeof now);
            if (all)
                printf("%llu %s = %ld %s %016llx\n", (unsigned long long)(at + i), name, result,
                       error ? strerrorname_np(error) : "-", (unsigned long long)now);
        }
        printf("%llu: %016llx\n", (unsigned long long)at, (unsigned long long)contents(hash));
        end();
    }
    return 0;
}
