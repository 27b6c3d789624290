/* Bytes out through write and its relatives: to a file, a socket, a pipe. */
#define _GNU_SOURCE
#include "harness.h"

#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

ssize_t __write(int, const void *, size_t);
ssize_t __pwrite64(int, const void *, size_t, off_t);

void out_file(struct run *r)
{
    r->fd[0] = raw_file(r, "target", 0);
}

void out_socket(struct run *r)
{
    CHECK(r, raw_socketpair(SOCK_STREAM, r->fd) == 0);
}

void out_datagrams(struct run *r)
{
    CHECK(r, raw_socketpair(SOCK_DGRAM, r->fd) == 0);
}

void out_pipe(struct run *r)
{
    int fd[2];
    CHECK(r, raw_pipe(fd) == 0);
    r->fd[0] = fd[1];
    r->fd[1] = fd[0];
}

long out_op(struct run *r, unsigned i)
{
    size_t len = r->test->unit;
    off_t pos = (off_t)(i - r->first) * (off_t)len;
    pattern(r->want, len, i);
    errno = ERRNO_CANARY;
    long put = r->test->go(r, r->fd[0], r->want, len, pos);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, put == (long)len);
    memset(r->data, 0, len);
    if (r->fd[1] < 0) {
        CHECK(r, raw_pread(r->fd[0], r->data, len, pos) == (long)len);
    } else {
        /* A datagram socket hands over message by message. */
        for (size_t got = 0; got < len;) {
            long n = raw_read(r->fd[1], r->data + got, len - got);
            if (n <= 0) {
                fail(r, "what was written does not arrive", __LINE__, n);
                break;
            }
            got += (size_t)n;
        }
    }
    CHECK(r, memcmp(r->data, r->want, len) == 0);
    mix(r, i, (uint64_t)put);
    mix_bytes(r, i, r->data, len);
    return put;
}

static void out_errors(struct run *r)
{
    mover *go = r->test->go;
    const char *other = of_kind(r, "other");
    EXPECT(r, other, EBADF, go(r, -1, r->data, 16, 0));
    EXPECT(r, other, EBADF, go(r, 9999, r->data, 16, 0));
    int closed = raw_dup(0);
    raw_close(closed);
    EXPECT(r, other, EBADF, go(r, closed, r->data, 16, 0));
    int in = raw_file(r, "readonly", 10);
    raw_close(in);
    in = raw_open(path_in(r, "readonly"), O_RDONLY);
    EXPECT(r, of_kind(r, "file"), EBADF, go(r, in, r->data, 16, 0));
    raw_close(in);
    int full = raw_open("/dev/full", O_WRONLY);
    EXPECT(r, other, ENOSPC, go(r, full, r->data, 16, 0));
    raw_close(full);
}

static void file_errors(struct run *r)
{
    mover *go = r->test->go;
    const char *file = of_kind(r, "file");
    out_errors(r);
    int fd = raw_file(r, "errors", 10);
    EXPECT(r, file, EFAULT, go(r, fd, NOWHERE, 16, 0));
    EXPECT(r, file, 0, go(r, fd, r->data, 0, 0));
    /* A file may not grow beyond RLIMIT_FSIZE: first a short write, then EFBIG. */
    struct rlimit before, small = {1000, RLIM_INFINITY};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGXFSZ, &ignore, NULL);
    RAW4(SYS_prlimit64, 0, RLIMIT_FSIZE, NULL, &before);
    small.rlim_max = before.rlim_max;
    RAW4(SYS_prlimit64, 0, RLIMIT_FSIZE, &small, NULL);
    raw_seek(fd, 900, SEEK_SET);
    errno = ERRNO_CANARY;
    CHECK(r, go(r, fd, r->data, 400, 900) == 100);
    CHECK(r, errno == ERRNO_CANARY);
    tally(r, file, 1, 100);
    EXPECT(r, file, EFBIG, go(r, fd, r->data, 400, 1000));
    RAW4(SYS_prlimit64, 0, RLIMIT_FSIZE, &before, NULL);
    raw_close(fd);
}

static void positioned_errors(struct run *r)
{
    mover *go = r->test->go;
    file_errors(r);
    int fd[2];
    raw_pipe(fd);
    EXPECT(r, r->test->entry, ESPIPE, go(r, fd[1], r->data, 16, 0));
    EXPECT(r, r->test->entry, EINVAL, go(r, r->fd[0], r->data, 16, -5));
    raw_close(fd[0]);
    raw_close(fd[1]);
}

static void stream_errors(struct run *r)
{
    mover *go = r->test->go;
    int sockets = r->test->setup == out_socket;
    const char *entry = r->test->entry;
    int fd[2];
    out_errors(r);
    if (sockets)
        raw_socketpair(SOCK_STREAM, fd);
    else
        raw_pipe(fd);
    EXPECT(r, entry, EFAULT, go(r, fd[1], NOWHERE, 16, 0));
    EXPECT(r, entry, 0, go(r, fd[1], r->data, 0, 0));
    fill(fd[1]);
    EXPECT(r, entry, EAGAIN, go(r, fd[1], r->data, 4096, 0));
    EXPECT(r, entry, EAGAIN, go(r, fd[1], r->data, 1, 0));
    if (!sockets) {
        /* One page becomes free: three are offered, one is taken. */
        CHECK(r, raw_read(fd[0], r->data, 4096) == 4096);
        CHECK(r, go(r, fd[1], r->data, 3 * 4096, 0) == 4096);
        tally(r, entry, 1, 4096);
        EXPECT(r, entry, EAGAIN, go(r, fd[1], r->data, 4096, 0));
    }
    raw_close(fd[0]);
    EXPECT(r, entry, EPIPE, go(r, fd[1], r->data, 16, 0));
    raw_close(fd[1]);
}

#define OUT(id, sym, entry_, kind_, errors_, expression)                             \
    MOVER(id, expression)                                                            \
    CASE(id, .symbol = sym, .entry = entry_, .unit = 4096, .ops = 64, .go = go_##id, \
         .setup = out_##kind_, .op = out_op, .errors = errors_, .finish = close_all)

#define OUT_KINDS(id, sym, name, expression)                                  \
    OUT(id##_file, sym, name ".file", file, file_errors, expression);         \
    OUT(id##_socket, sym, name ".socket", socket, stream_errors, expression); \
    OUT(id##_other, sym, name ".other", pipe, stream_errors, expression)

OUT_KINDS(write, "write", "write", write(fd, at, len));
OUT_KINDS(__write, "__write", "write", __write(fd, at, len));
OUT_KINDS(writev, "writev", "writev", writev(fd, VECTORS(at, len)));
OUT_KINDS(syscall_write, "syscall", "write", syscall(SYS_write, fd, at, len));
OUT_KINDS(syscall_writev, "syscall", "writev", syscall(SYS_writev, fd, VECTORS(at, len)));

#define OUT_AT(id, sym, entry, expression) \
    OUT(id, sym, entry, file, positioned_errors, expression)

OUT_AT(pwrite, "pwrite", "pwrite64", pwrite(fd, at, len, pos));
OUT_AT(pwrite64, "pwrite64", "pwrite64", pwrite64(fd, at, len, pos));
OUT_AT(__pwrite64, "__pwrite64", "pwrite64", __pwrite64(fd, at, len, pos));
OUT_AT(syscall_pwrite64, "syscall", "pwrite64", syscall(SYS_pwrite64, fd, at, len, pos));
OUT_AT(pwritev, "pwritev", "pwritev", pwritev(fd, VECTORS(at, len), pos));
OUT_AT(pwritev64, "pwritev64", "pwritev", pwritev64(fd, VECTORS(at, len), pos));
OUT_AT(syscall_pwritev, "syscall", "pwritev", syscall(SYS_pwritev, fd, VECTORS(at, len), pos, 0));

static void flag_errors(struct run *r)
{
    positioned_errors(r);
    EXPECT(r, r->test->entry, EOPNOTSUPP, pwritev2(r->fd[0], VECTORS(r->data, 16), 0, 1 << 30));
}

static void flag64_errors(struct run *r)
{
    positioned_errors(r);
    EXPECT(r, r->test->entry, EOPNOTSUPP, pwritev64v2(r->fd[0], VECTORS(r->data, 16), 0, 1 << 30));
}

OUT(pwritev2, "pwritev2", "pwritev2", file, flag_errors, pwritev2(fd, VECTORS(at, len), pos, RWF_HIPRI));
OUT(pwritev64v2, "pwritev64v2", "pwritev2", file, flag64_errors,
    pwritev64v2(fd, VECTORS(at, len), pos, RWF_HIPRI));
OUT_AT(syscall_pwritev2, "syscall", "pwritev2",
       syscall(SYS_pwritev2, fd, VECTORS(at, len), pos, 0, RWF_HIPRI));
OUT(pwritev2_here_pipe, "pwritev2", "pwritev2", pipe, stream_errors,
    pwritev2(fd, VECTORS(at, len), -1, 0));

/* Much more than the burst in one call. */
static ssize_t go_large(struct run *r, int fd, void *at, size_t len, off_t pos)
{
    (void)r;
    (void)pos;
    return write(fd, at, len);
}

CASE(write_large_file, .symbol = "write", .entry = "write.file", .unit = ROOM, .ops = 4, .go = go_large,
     .setup = out_file, .op = out_op, .errors = NULL, .finish = close_all);

/* Up to PIPE_BUF bytes arrive in one piece, whatever the limit does to the call. */
static long atomic_op(struct run *r, unsigned i)
{
    size_t len = r->test->unit;
    pattern(r->want, len, i);
    CHECK(r, write(r->fd[0], r->want, len) == (ssize_t)len);
    int waiting = 0;
    /* FIONREAD */
    RAW3(SYS_ioctl, r->fd[1], 0x541b, &waiting);
    CHECK(r, waiting == (int)len);
    CHECK(r, raw_read(r->fd[1], r->data, ROOM) == (long)len);
    CHECK(r, memcmp(r->data, r->want, len) == 0);
    mix_bytes(r, i, r->data, len);
    return (long)len;
}

CASE(write_pipe_atomic, .symbol = "write", .entry = "write.other", .unit = 4096, .ops = 64,
     .setup = out_pipe, .op = atomic_op, .finish = close_all);

/* A socket that keeps message boundaries gets each message whole. */
static void out_packets(struct run *r)
{
    CHECK(r, raw_socketpair(SOCK_SEQPACKET, r->fd) == 0);
}

static long packet_op(struct run *r, unsigned i)
{
    size_t len = r->test->unit;
    pattern(r->want, len, i);
    CHECK(r, write(r->fd[0], r->want, len) == (ssize_t)len);
    CHECK(r, raw_read(r->fd[1], r->data, ROOM) == (long)len);
    CHECK(r, memcmp(r->data, r->want, len) == 0);
    mix_bytes(r, i, r->data, len);
    return (long)len;
}

CASE(write_packet_whole, .symbol = "write", .entry = "write.socket", .unit = 32768, .ops = 8,
     .setup = out_packets, .op = packet_op, .finish = close_all);

/* With O_APPEND and several vectors each call's bytes stay together. */
static void out_append(struct run *r)
{
    raw_close(raw_file(r, "log", 0));
    r->fd[0] = raw_open(path_in(r, "log"), O_RDWR | O_APPEND);
}

CASE(writev_append, .symbol = "writev", .entry = "writev.file", .unit = 4096, .ops = 64, .go = go_writev_file,
     .setup = out_append, .op = out_op, .finish = close_all);
