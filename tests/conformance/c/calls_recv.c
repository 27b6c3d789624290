/* Bytes in through recv and its relatives. */
#define _GNU_SOURCE
#include "harness.h"

#include <sys/socket.h>
#include <unistd.h>

ssize_t __recv(int, void *, size_t, int);
ssize_t __recv_chk(int, void *, size_t, size_t, int);
ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);

/* What every receiver refuses. */
static void recv_errors(struct run *r)
{
    mover *go = r->test->go;
    const char *entry = r->test->entry;
    int fd[2];
    EXPECT(r, entry, EBADF, go(r, -1, r->data, 16, 0));
    EXPECT(r, entry, EBADF, go(r, 9999, r->data, 16, 0));
    raw_pipe(fd);
    EXPECT(r, entry, ENOTSOCK, go(r, fd[0], r->data, 16, 0));
    raw_close(fd[0]);
    raw_close(fd[1]);
    int file = raw_file(r, "file", 10);
    EXPECT(r, entry, ENOTSOCK, go(r, file, r->data, 16, 0));
    raw_close(file);
    int alone = raw_socket(AF_INET, SOCK_STREAM);
    EXPECT(r, entry, ENOTCONN, go(r, alone, r->data, 16, 0));
    raw_close(alone);
    raw_socketpair(r->test->setup == in_datagrams ? SOCK_DGRAM : SOCK_STREAM, fd);
    raw_write(fd[1], "0123456789", 10);
    EXPECT(r, entry, EFAULT, go(r, fd[0], NOWHERE, 16, 0));
    raw_close(fd[0]);
    raw_close(fd[1]);
}

static void stream_errors(struct run *r)
{
    mover *go = r->test->go;
    const char *entry = r->test->entry;
    int fd[2];
    recv_errors(r);
    raw_socketpair(SOCK_STREAM, fd);
    raw_write(fd[1], "0123456789", 10);
    EXPECT(r, entry, 0, go(r, fd[0], r->data, 0, 0));
    CHECK(r, go(r, fd[0], r->data, 100, 0) == 10);
    CHECK(r, memcmp(r->data, "0123456789", 10) == 0);
    tally(r, entry, 1, 10);
    raw_nonblock(fd[0]);
    EXPECT(r, entry, EAGAIN, go(r, fd[0], r->data, 100, 0));
    raw_close(fd[1]);
    EXPECT(r, entry, 0, go(r, fd[0], r->data, 100, 0));
    raw_close(fd[0]);
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

/* Two messages of half the length each; the bytes of both. */
static ssize_t two_messages(int (*call)(int, struct mmsghdr *), int fd, void *at, size_t len)
{
    struct iovec v[2] = {{at, len / 2}, {(char *)at + len / 2, len - len / 2}};
    struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = v, .msg_iovlen = 1}},
                           {.msg_hdr = {.msg_iov = v + 1, .msg_iovlen = 1}}};
    int n = call(fd, m);
    return n < 0 ? -1 : (ssize_t)((n > 0 ? m[0].msg_len : 0) + (n > 1 ? m[1].msg_len : 0));
}

static int recv_two(int fd, struct mmsghdr *m)
{
    return recvmmsg(fd, m, 2, 0, NULL);
}

static int syscall_recv_two(int fd, struct mmsghdr *m)
{
    return (int)syscall(SYS_recvmmsg, fd, m, 2, 0, NULL);
}

#define RECV(id, sym, entry_, kind_, errors_, expression)                            \
    MOVER(id, expression)                                                            \
    CASE(id, .symbol = sym, .entry = entry_, .unit = 4096, .ops = 64, .go = go_##id, \
         .setup = in_##kind_, .op = in_op, .errors = errors_, .finish = close_all)

#define RECV_STREAM(id, sym, entry, expression) \
    RECV(id, sym, entry, socket, stream_errors, expression)

RECV_STREAM(recv, "recv", "recvfrom", recv(fd, at, len, 0));
RECV_STREAM(__recv, "__recv", "recvfrom", __recv(fd, at, len, 0));
RECV_STREAM(__recv_chk, "__recv_chk", "recvfrom", __recv_chk(fd, at, len, ROOM, 0));
RECV_STREAM(recvfrom, "recvfrom", "recvfrom", recvfrom(fd, at, len, 0, NULL, NULL));
RECV_STREAM(__recvfrom_chk, "__recvfrom_chk", "recvfrom",
            __recvfrom_chk(fd, at, len, ROOM, 0, NULL, NULL));
RECV_STREAM(syscall_recvfrom, "syscall", "recvfrom", syscall(SYS_recvfrom, fd, at, len, 0, NULL, NULL));
RECV_STREAM(recvmsg, "recvmsg", "recvmsg", recvmsg(fd, message(at, len), 0));
RECV_STREAM(syscall_recvmsg, "syscall", "recvmsg", syscall(SYS_recvmsg, fd, message(at, len), 0));
RECV(recvmmsg, "recvmmsg", "recvmmsg", datagrams, recv_errors, two_messages(recv_two, fd, at, len));
RECV(syscall_recvmmsg, "syscall", "recvmmsg", datagrams, recv_errors,
     two_messages(syscall_recv_two, fd, at, len));

/* A look at data that stays where it is moves nothing; the call after it does. */
static long peek_op(struct run *r, unsigned i)
{
    size_t len = r->test->unit;
    pattern(r->want, len, i);
    raw_write(r->fd[1], r->want, len);
    CHECK(r, recv(r->fd[0], r->data, len, MSG_PEEK) == (ssize_t)len);
    CHECK(r, memcmp(r->data, r->want, len) == 0);
    memset(r->data, 0, len);
    CHECK(r, recv(r->fd[0], r->data, len, MSG_WAITALL) == (ssize_t)len);
    CHECK(r, memcmp(r->data, r->want, len) == 0);
    mix_bytes(r, i, r->data, len);
    tally(r, "recvfrom", 2, len);
    return (long)len;
}

CASE(recv_peek, .symbol = "recv", .entry = "recvfrom", .unit = 4096, .ops = 32, .flags = OWN_TALLY,
     .setup = in_socket, .op = peek_op, .finish = close_all);

/* A datagram longer than the buffer: the result is its length, what arrived is less. */
static long truncated_op(struct run *r, unsigned i)
{
    size_t len = r->test->unit;
    pattern(r->want, len, i);
    raw_write(r->fd[1], r->want, len);
    raw_write(r->fd[1], r->want, len);
    memset(r->data, 0, len);
    CHECK(r, recv(r->fd[0], r->data, len / 2, MSG_TRUNC) == (ssize_t)len);
    CHECK(r, memcmp(r->data, r->want, len / 2) == 0 && r->data[len / 2] == 0);
    struct msghdr *m = message(r->data, len / 2);
    CHECK(r, recvmsg(r->fd[0], m, 0) == (ssize_t)len / 2);
    CHECK(r, m->msg_flags & MSG_TRUNC);
    mix_bytes(r, i, r->data, len);
    tally(r, "recvfrom", 1, len / 2);
    tally(r, "recvmsg", 1, len / 2);
    return (long)len / 2;
}

CASE(recv_truncated, .symbol = "recv", .entry = "recvfrom", .unit = 2048, .ops = 64,
     .flags = OWN_TALLY, .setup = in_datagrams, .op = truncated_op, .finish = close_all);

/* The sender's address, and a descriptor in the message, come through unchanged. */
static long passed_op(struct run *r, unsigned i)
{
    size_t len = r->test->unit;
    int sent = raw_dup(0);
    char control[CMSG_SPACE(sizeof sent)] = {0};
    struct iovec v = {r->want, len};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof sent);
    memcpy(CMSG_DATA(c), &sent, sizeof sent);
    pattern(r->want, len, i);
    CHECK(r, RAW3(SYS_sendmsg, r->fd[1], &m, 0) == (long)len);
    raw_close(sent);
    memset(control, 0, sizeof control);
    v.iov_base = r->data;
    m.msg_controllen = sizeof control;
    CHECK(r, recvmsg(r->fd[0], &m, 0) == (ssize_t)len);
    c = CMSG_FIRSTHDR(&m);
    int got = -1;
    if (c && c->cmsg_type == SCM_RIGHTS)
        memcpy(&got, CMSG_DATA(c), sizeof got);
    CHECK(r, got >= 0 && raw_close(got) == 0);
    CHECK(r, memcmp(r->data, r->want, len) == 0);
    mix_bytes(r, i, r->data, len);
    return (long)len;
}

CASE(recvmsg_descriptor, .symbol = "recvmsg", .entry = "recvmsg", .unit = 4096, .ops = 64,
     .setup = in_socket, .op = passed_op, .finish = close_all);
