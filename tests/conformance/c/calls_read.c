/* Bytes in through read and its relatives: from a file, a socket, a pipe. */
#define _GNU_SOURCE
#include "harness.h"

#include <sys/uio.h>
#include <unistd.h>

ssize_t __read(int, void *, size_t);
ssize_t __pread64(int, void *, size_t, off_t);
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
ssize_t __pread64_chk(int, void *, size_t, off_t, size_t);

void in_file(struct run *r)
{
    r->fd[0] = raw_file(r, "source", 0);
    for (unsigned i = 0; i < r->ops; i++) {
        pattern(r->want, r->test->unit, r->first + i);
        raw_write(r->fd[0], r->want, r->test->unit);
    }
    raw_seek(r->fd[0], 0, SEEK_SET);
}

void in_socket(struct run *r)
{
    CHECK(r, raw_socketpair(SOCK_STREAM, r->fd) == 0);
}

void in_datagrams(struct run *r)
{
    CHECK(r, raw_socketpair(SOCK_DGRAM, r->fd) == 0);
}

void in_pipe(struct run *r)
{
    CHECK(r, raw_pipe(r->fd) == 0);
}

long in_op(struct run *r, unsigned i)
{
    size_t len = r->test->unit;
    pattern(r->want, len, i);
    if (r->fd[1] >= 0) {
        if (r->test->setup == in_datagrams) {
            raw_write(r->fd[1], r->want, len / 2);
            raw_write(r->fd[1], r->want + len / 2, len - len / 2);
        } else {
            raw_write(r->fd[1], r->want, len);
        }
    }
    memset(r->data, 0, len);
    errno = ERRNO_CANARY;
    long got = r->test->go(r, r->fd[0], r->data, len, (off_t)(i - r->first) * (off_t)len);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, got == (long)len);
    CHECK(r, memcmp(r->data, r->want, len) == 0);
    mix(r, i, (uint64_t)got);
    mix_bytes(r, i, r->data, len);
    return got;
}

/* What reading from anything must refuse or answer with nothing. */
static void in_errors(struct run *r)
{
    mover *go = r->test->go;
    const char *other = of_kind(r, "other");
    EXPECT(r, other, EBADF, go(r, -1, r->data, 16, 0));
    EXPECT(r, other, EBADF, go(r, 9999, r->data, 16, 0));
    int closed = raw_dup(0);
    raw_close(closed);
    EXPECT(r, other, EBADF, go(r, closed, r->data, 16, 0));
    int dir = raw_open(r->dir, O_RDONLY | O_DIRECTORY);
    EXPECT(r, other, EISDIR, go(r, dir, r->data, 16, 0));
    raw_close(dir);
    int out = raw_open(path_in(r, "writeonly"), O_WRONLY | O_CREAT);
    EXPECT(r, of_kind(r, "file"), EBADF, go(r, out, r->data, 16, 0));
    raw_close(out);
}

static void file_errors(struct run *r)
{
    mover *go = r->test->go;
    const char *file = of_kind(r, "file");
    in_errors(r);
    int fd = raw_file(r, "short", 10);
    EXPECT(r, file, EFAULT, go(r, fd, NOWHERE, 16, 0));
    EXPECT(r, file, 0, go(r, fd, r->data, 0, 0));
    raw_seek(fd, 0, SEEK_SET);
    errno = ERRNO_CANARY;
    CHECK(r, go(r, fd, r->data, 100, 0) == 10);
    CHECK(r, errno == ERRNO_CANARY);
    tally(r, file, 1, 10);
    EXPECT(r, file, 0, go(r, fd, r->data, 100, 10));
    raw_close(fd);
}

static void positioned_errors(struct run *r)
{
    mover *go = r->test->go;
    file_errors(r);
    int fd[2];
    raw_pipe(fd);
    EXPECT(r, r->test->entry, ESPIPE, go(r, fd[0], r->data, 16, 0));
    EXPECT(r, r->test->entry, EINVAL, go(r, r->fd[0], r->data, 16, -5));
    raw_close(fd[0]);
    raw_close(fd[1]);
}

static void stream_errors(struct run *r)
{
    mover *go = r->test->go;
    int sockets = r->test->setup == in_socket;
    const char *entry = r->test->entry;
    int fd[2];
    in_errors(r);
    if (sockets)
        raw_socketpair(SOCK_STREAM, fd);
    else
        raw_pipe(fd);
    raw_write(fd[1], "0123456789", 10);
    EXPECT(r, entry, EFAULT, go(r, fd[0], NOWHERE, 16, 0));
    EXPECT(r, entry, 0, go(r, fd[0], r->data, 0, 0));
    /* Less than was asked for. */
    raw_read(fd[0], r->want, 10);
    raw_write(fd[1], "0123456789", 10);
    CHECK(r, go(r, fd[0], r->data, 100, 0) == 10);
    CHECK(r, memcmp(r->data, "0123456789", 10) == 0);
    tally(r, entry, 1, 10);
    raw_nonblock(fd[0]);
    EXPECT(r, entry, EAGAIN, go(r, fd[0], r->data, 100, 0));
    EXPECT(r, entry, EAGAIN, go(r, fd[0], r->data, 100, 0));
    raw_close(fd[1]);
    EXPECT(r, entry, 0, go(r, fd[0], r->data, 100, 0));
    raw_close(fd[0]);
}

/* One symbol, one case. `kind_` names set-up and error calls. */
#define IN(id, sym, entry_, kind_, errors_, expression)                              \
    MOVER(id, expression)                                                            \
    CASE(id, .symbol = sym, .entry = entry_, .unit = 4096, .ops = 64, .go = go_##id, \
         .setup = in_##kind_, .op = in_op, .errors = errors_, .finish = close_all)

#define IN_KINDS(id, sym, name, expression)                                  \
    IN(id##_file, sym, name ".file", file, file_errors, expression);         \
    IN(id##_socket, sym, name ".socket", socket, stream_errors, expression); \
    IN(id##_other, sym, name ".other", pipe, stream_errors, expression)

IN_KINDS(read, "read", "read", read(fd, at, len));
IN_KINDS(__read, "__read", "read", __read(fd, at, len));
IN_KINDS(__read_chk, "__read_chk", "read", __read_chk(fd, at, len, ROOM));
IN_KINDS(readv, "readv", "readv", readv(fd, VECTORS(at, len)));
IN_KINDS(syscall_read, "syscall", "read", syscall(SYS_read, fd, at, len));
IN_KINDS(syscall_readv, "syscall", "readv", syscall(SYS_readv, fd, VECTORS(at, len)));

#define IN_AT(id, sym, entry, expression) \
    IN(id, sym, entry, file, positioned_errors, expression)

IN_AT(pread, "pread", "pread64", pread(fd, at, len, pos));
IN_AT(pread64, "pread64", "pread64", pread64(fd, at, len, pos));
IN_AT(__pread64, "__pread64", "pread64", __pread64(fd, at, len, pos));
IN_AT(__pread_chk, "__pread_chk", "pread64", __pread_chk(fd, at, len, pos, ROOM));
IN_AT(__pread64_chk, "__pread64_chk", "pread64", __pread64_chk(fd, at, len, pos, ROOM));
IN_AT(syscall_pread64, "syscall", "pread64", syscall(SYS_pread64, fd, at, len, pos));
IN_AT(preadv, "preadv", "preadv", preadv(fd, VECTORS(at, len), pos));
IN_AT(preadv64, "preadv64", "preadv", preadv64(fd, VECTORS(at, len), pos));
IN_AT(syscall_preadv, "syscall", "preadv", syscall(SYS_preadv, fd, VECTORS(at, len), pos, 0));

/* With flags; position -1 is the file's own. */
static void flag_errors(struct run *r)
{
    positioned_errors(r);
    EXPECT(r, r->test->entry, EOPNOTSUPP, preadv2(r->fd[0], VECTORS(r->data, 16), 0, 1 << 30));
}

static void flag64_errors(struct run *r)
{
    positioned_errors(r);
    EXPECT(r, r->test->entry, EOPNOTSUPP, preadv64v2(r->fd[0], VECTORS(r->data, 16), 0, 1 << 30));
}

IN(preadv2, "preadv2", "preadv2", file, flag_errors, preadv2(fd, VECTORS(at, len), pos, RWF_HIPRI));
IN(preadv64v2, "preadv64v2", "preadv2", file, flag64_errors,
   preadv64v2(fd, VECTORS(at, len), pos, RWF_HIPRI));
IN_AT(syscall_preadv2, "syscall", "preadv2",
      syscall(SYS_preadv2, fd, VECTORS(at, len), pos, 0, RWF_HIPRI));
IN(preadv2_here_pipe, "preadv2", "preadv2", pipe, stream_errors, preadv2(fd, VECTORS(at, len), -1, 0));

/* A device and a large read: more than the burst, so it is paced in pieces. */
static void in_zero(struct run *r)
{
    r->fd[0] = raw_open("/dev/zero", O_RDONLY | O_CLOEXEC);
}

static long zero_op(struct run *r, unsigned i)
{
    memset(r->data, 1, ROOM);
    memset(r->want, 0, ROOM);
    long got = read(r->fd[0], r->data, ROOM);
    CHECK(r, got == ROOM);
    CHECK(r, memcmp(r->data, r->want, ROOM) == 0);
    mix(r, i, (uint64_t)got);
    return got;
}

CASE(read_large_device, .symbol = "read", .entry = "read.other", .unit = ROOM, .ops = 4,
     .setup = in_zero, .op = zero_op, .finish = close_all);

/* The operation's bytes come from a real TCP connection's other end. */
static void in_tcp(struct run *r)
{
    /* struct sockaddr_in: family, port 0 of this machine. */
    unsigned char address[16] = {AF_INET, 0, 0, 0, 127, 0, 0, 1};
    unsigned len = sizeof address;
    int listener = raw_socket(AF_INET, SOCK_STREAM);
    RAW3(SYS_bind, listener, address, sizeof address);
    RAW2(SYS_listen, listener, 1);
    RAW3(SYS_getsockname, listener, address, &len);
    r->fd[0] = raw_socket(AF_INET, SOCK_STREAM);
    CHECK(r, RAW3(SYS_connect, r->fd[0], address, sizeof address) == 0);
    r->fd[1] = raw_accept(listener);
    CHECK(r, r->fd[1] >= 0);
    raw_close(listener);
}

static ssize_t go_tcp(struct run *r, int fd, void *at, size_t len, off_t pos)
{
    (void)r;
    (void)pos;
    size_t got = 0;
    /* The kernel may hand a stream over in parts; here each part is one call. */
    while (got < len) {
        ssize_t n = read(fd, (char *)at + got, len - got);
        if (n <= 0)
            return n;
        tally(r, "read.socket", 1, (uint64_t)n);
        got += (size_t)n;
    }
    return (ssize_t)got;
}

CASE(read_tcp, .symbol = "read", .entry = "read.socket", .unit = 4096, .ops = 64, .flags = OWN_TALLY,
     .go = go_tcp, .setup = in_tcp, .op = in_op, .finish = close_all);
