/* Bytes out through send and its relatives. */
#define _GNU_SOURCE
#include "harness.h"

#include <sys/socket.h>
#include <unistd.h>

ssize_t __send(int, const void *, size_t, int);
int __sendmmsg(int, struct mmsghdr *, unsigned, int);

static void send_errors(struct run *r)
{
    mover *go = r->test->go;
    const char *entry = r->test->entry;
    int datagrams = r->test->setup == out_datagrams;
    int fd[2];
    EXPECT(r, entry, EBADF, go(r, -1, r->data, 16, 0));
    EXPECT(r, entry, EBADF, go(r, 9999, r->data, 16, 0));
    raw_pipe(fd);
    EXPECT(r, entry, ENOTSOCK, go(r, fd[1], r->data, 16, 0));
    raw_close(fd[0]);
    raw_close(fd[1]);
    int file = raw_file(r, "file", 10);
    EXPECT(r, entry, ENOTSOCK, go(r, file, r->data, 16, 0));
    raw_close(file);
    int alone = raw_socket(AF_UNIX, datagrams ? SOCK_DGRAM : SOCK_STREAM);
    EXPECT(r, entry, ENOTCONN, go(r, alone, r->data, 16, 0));
    raw_close(alone);
    raw_socketpair(datagrams ? SOCK_DGRAM : SOCK_STREAM, fd);
    EXPECT(r, entry, EFAULT, go(r, fd[1], NOWHERE, 16, 0));
    if (!datagrams) {
        EXPECT(r, entry, 0, go(r, fd[1], r->data, 0, 0));
        fill(fd[1]);
        EXPECT(r, entry, EAGAIN, go(r, fd[1], r->data, 4096, 0));
        EXPECT(r, entry, EAGAIN, go(r, fd[1], r->data, 1, 0));
    }
    raw_close(fd[0]);
    EXPECT(r, entry, datagrams ? ECONNREFUSED : EPIPE, go(r, fd[1], r->data, 16, 0));
    raw_close(fd[1]);
}

static struct msghdr *message(void *at, size_t len)
{
    static __thread struct iovec v[3];
    static __thread struct msghdr m;
    struct iovec given[] = {{at, len / 2}, {NULL, 0}, {(char *)at + len / 2, len - len / 2}};
    memcpy(v, given, sizeof v);
    m = (struct msghdr){.msg_iov = v, .msg_iovlen = 3};
    return &m;
}

static ssize_t two_messages(int (*call)(int, struct mmsghdr *, unsigned, int), int fd, void *at, size_t len)
{
    struct iovec v[2] = {{at, len / 2}, {(char *)at + len / 2, len - len / 2}};
    struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = v, .msg_iovlen = 1}},
                           {.msg_hdr = {.msg_iov = v + 1, .msg_iovlen = 1}}};
    int n = call(fd, m, 2, 0);
    return n < 0 ? -1 : (ssize_t)((n > 0 ? m[0].msg_len : 0) + (n > 1 ? m[1].msg_len : 0));
}

static int syscall_sendmmsg(int fd, struct mmsghdr *m, unsigned n, int flags)
{
    return (int)syscall(SYS_sendmmsg, fd, m, n, flags);
}

#define SEND(id, sym, entry_, kind_, expression)                                     \
    MOVER(id, expression)                                                            \
    CASE(id, .symbol = sym, .entry = entry_, .unit = 4096, .ops = 64, .go = go_##id, \
         .setup = out_##kind_, .op = out_op, .errors = send_errors, .finish = close_all)

SEND(send, "send", "sendto", socket, send(fd, at, len, 0));
SEND(__send, "__send", "sendto", socket, __send(fd, at, len, 0));
SEND(sendto, "sendto", "sendto", socket, sendto(fd, at, len, 0, NULL, 0));
SEND(sendto_datagram, "sendto", "sendto", datagrams, sendto(fd, at, len, 0, NULL, 0));
SEND(syscall_sendto, "syscall", "sendto", socket, syscall(SYS_sendto, fd, at, len, 0, NULL, 0));
SEND(sendmsg, "sendmsg", "sendmsg", socket, sendmsg(fd, message(at, len), 0));
SEND(syscall_sendmsg, "syscall", "sendmsg", socket, syscall(SYS_sendmsg, fd, message(at, len), 0));
SEND(sendmmsg, "sendmmsg", "sendmmsg", datagrams, two_messages(sendmmsg, fd, at, len));
SEND(__sendmmsg, "__sendmmsg", "sendmmsg", datagrams, two_messages(__sendmmsg, fd, at, len));
SEND(syscall_sendmmsg, "syscall", "sendmmsg", datagrams, two_messages(syscall_sendmmsg, fd, at, len));

/* A datagram is never divided, however long it is and however small the burst. */
static long whole_op(struct run *r, unsigned i)
{
    size_t len = r->test->unit;
    pattern(r->want, len, i);
    CHECK(r, send(r->fd[0], r->want, len, 0) == (ssize_t)len);
    CHECK(r, raw_read(r->fd[1], r->data, ROOM) == (long)len);
    CHECK(r, memcmp(r->data, r->want, len) == 0);
    mix_bytes(r, i, r->data, len);
    return (long)len;
}

CASE(send_datagram_whole, .symbol = "send", .entry = "sendto", .unit = 32768, .ops = 8,
     .setup = out_datagrams, .op = whole_op, .finish = close_all);

/* UDP over the loopback interface, with the address given and asked for. */
static void out_udp(struct run *r)
{
    unsigned char *address = r->want + ROOM / 2;
    unsigned len = 16;
    memcpy(address, (unsigned char[16]){AF_INET, 0, 0, 0, 127, 0, 0, 1}, 16);
    r->fd[0] = raw_socket(AF_INET, SOCK_DGRAM);
    r->fd[1] = raw_socket(AF_INET, SOCK_DGRAM);
    RAW3(SYS_bind, r->fd[0], address, 16);
    RAW3(SYS_bind, r->fd[1], address, 16);
    CHECK(r, RAW3(SYS_getsockname, r->fd[1], address, &len) == 0);
}

static long udp_op(struct run *r, unsigned i)
{
    size_t len = r->test->unit;
    unsigned char from[16] = {0};
    unsigned from_len = sizeof from;
    pattern(r->want, len, i);
    CHECK(r, sendto(r->fd[0], r->want, len, 0, (void *)(r->want + ROOM / 2), 16) == (ssize_t)len);
    CHECK(r, RAW6(SYS_recvfrom, r->fd[1], r->data, ROOM, 0, from, &from_len) == (long)len);
    CHECK(r, from_len == 16 && from[4] == 127);
    CHECK(r, memcmp(r->data, r->want, len) == 0);
    mix_bytes(r, i, r->data, len);
    return (long)len;
}

static void udp_errors(struct run *r)
{
    unsigned char far[16] = {AF_INET};
    EXPECT(r, "sendto", EMSGSIZE, sendto(r->fd[0], r->data, ROOM, 0, (void *)(r->want + ROOM / 2), 16));
    EXPECT(r, "sendto", EDESTADDRREQ, sendto(r->fd[0], r->data, 10, 0, NULL, 0));
    EXPECT(r, "sendto", EINVAL, sendto(r->fd[0], r->data, 10, 0, (void *)far, 2));
    EXPECT(r, "sendto", 0, sendto(r->fd[0], r->data, 0, 0, (void *)(r->want + ROOM / 2), 16));
}

CASE(sendto_udp, .symbol = "sendto", .entry = "sendto", .unit = 1448, .ops = 128, .setup = out_udp,
     .op = udp_op, .errors = udp_errors, .finish = close_all);

/* Three messages of which the second cannot be sent: one goes, and only its bytes count. */
static long partial_op(struct run *r, unsigned i)
{
    size_t len = r->test->unit;
    pattern(r->want, len, i);
    struct iovec v[3] = {{r->want, len}, {NOWHERE, len}, {r->want, len}};
    struct mmsghdr m[3];
    memset(m, 0, sizeof m);
    for (int k = 0; k < 3; k++)
        m[k].msg_hdr = (struct msghdr){.msg_iov = &v[k], .msg_iovlen = 1};
    CHECK(r, sendmmsg(r->fd[0], m, 3, 0) == 1);
    CHECK(r, m[0].msg_len == len);
    CHECK(r, raw_read(r->fd[1], r->data, ROOM) == (long)len);
    CHECK(r, memcmp(r->data, r->want, len) == 0);
    mix_bytes(r, i, r->data, len);
    return (long)len;
}

CASE(sendmmsg_partial, .symbol = "sendmmsg", .entry = "sendmmsg", .unit = 4096, .ops = 64,
     .setup = out_datagrams, .op = partial_op, .finish = close_all);
