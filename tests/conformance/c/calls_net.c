/* Sockets come and go; pipes and copies of descriptors. */
#define _GNU_SOURCE
#include "harness.h"

#include <netinet/in.h>
#include <stdio.h>
#include <sys/un.h>
#include <unistd.h>

int __connect(int, const struct sockaddr *, socklen_t);

static void fd_errors(struct run *r)
{
    EXPECT(r, r->test->entry, EBADF, r->test->go(r, -1, r->data, 0, 0));
    EXPECT(r, r->test->entry, EBADF, r->test->go(r, 9999, r->data, 0, 0));
}

static void no_socket_errors(struct run *r)
{
    int fd[2];
    fd_errors(r);
    raw_pipe(fd);
    EXPECT(r, r->test->entry, ENOTSOCK, r->test->go(r, fd[0], r->data, 0, 0));
    raw_close(fd[0]);
    raw_close(fd[1]);
}

static int is_socket(int fd)
{
    struct stat st;
    return raw_fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode);
}

static long socket_op(struct run *r, unsigned i)
{
    errno = ERRNO_CANARY;
    int fd = (int)r->test->go(r, i & 1 ? AF_INET : AF_UNIX, NULL, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, fd > 2 && is_socket(fd) && raw_fcntl(fd, F_GETFD, 0) == FD_CLOEXEC);
    raw_close(fd);
    mix(r, i, 1);
    return 0;
}

static void socket_errors(struct run *r)
{
    EXPECT(r, "socket", EAFNOSUPPORT, r->test->go(r, 4000, NULL, SOCK_STREAM, 0));
    EXPECT(r, "socket", EINVAL, r->test->go(r, AF_INET, NULL, 4000, 0));
    EXPECT(r, "socket", EPROTONOSUPPORT, r->test->go(r, AF_INET, NULL, SOCK_STREAM, IPPROTO_UDP));
}

COUNTED(socket, "socket", "socket", NULL, socket_op, socket_errors, socket(fd, (int)len, (int)pos));
COUNTED(syscall_socket, "syscall", "socket", NULL, socket_op, socket_errors, syscall(SYS_socket, fd, len, pos));

static long pair_op(struct run *r, unsigned i)
{
    int fd[2] = {-1, -1};
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, AF_UNIX, fd, SOCK_STREAM, 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, raw_write(fd[0], "x", 1) == 1 && raw_read(fd[1], r->data, 1) == 1);
    raw_close(fd[0]);
    raw_close(fd[1]);
    mix(r, i, 1);
    return 0;
}

static void pair_errors(struct run *r)
{
    EXPECT(r, "socketpair", EAFNOSUPPORT, r->test->go(r, 4000, r->data, SOCK_STREAM, 0));
    EXPECT(r, "socketpair", EOPNOTSUPP, r->test->go(r, AF_INET, r->data, SOCK_STREAM, 0));
    EXPECT(r, "socketpair", EFAULT, r->test->go(r, AF_UNIX, NOWHERE, SOCK_STREAM, 0));
}

COUNTED(socketpair, "socketpair", "socketpair", NULL, pair_op, pair_errors, socketpair(fd, (int)len, 0, at));
COUNTED(syscall_socketpair, "syscall", "socketpair", NULL, pair_op, pair_errors,
        syscall(SYS_socketpair, fd, len, 0, at));

/* In the abstract name space: nothing remains of it. */
static struct sockaddr_un *address(struct run *r, unsigned which)
{
    static __thread struct sockaddr_un name;
    memset(&name, 0, sizeof name);
    name.sun_family = AF_UNIX;
    snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "conformance-%d-%u-%u", (int)RAW0(SYS_getpid),
             r->thread, which);
    return &name;
}

/* fd[0] listens. */
static void listener(struct run *r)
{
    r->fd[0] = raw_socket(AF_UNIX, SOCK_STREAM);
    CHECK(r, RAW3(SYS_bind, r->fd[0], address(r, 0), sizeof(struct sockaddr_un)) == 0);
    CHECK(r, RAW2(SYS_listen, r->fd[0], 8) == 0);
}

static long connect_op(struct run *r, unsigned i)
{
    int fd = raw_socket(AF_UNIX, SOCK_STREAM);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, fd, address(r, 0), sizeof(struct sockaddr_un), 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    int peer = raw_accept(r->fd[0]);
    CHECK(r, peer >= 0 && raw_write(fd, "x", 1) == 1 && raw_read(peer, r->data, 1) == 1);
    raw_close(fd);
    raw_close(peer);
    mix(r, i, 1);
    return 0;
}

static void connect_errors(struct run *r)
{
    mover *go = r->test->go;
    no_socket_errors(r);
    int fd = raw_socket(AF_UNIX, SOCK_STREAM);
    EXPECT(r, "connect", ECONNREFUSED, go(r, fd, address(r, 9), sizeof(struct sockaddr_un), 0));
    EXPECT(r, "connect", EFAULT, go(r, fd, NOWHERE, sizeof(struct sockaddr_un), 0));
    EXPECT(r, "connect", EINVAL, go(r, fd, address(r, 0), 1, 0));
    raw_close(fd);
}

COUNTED(connect, "connect", "connect", listener, connect_op, connect_errors, connect(fd, at, (socklen_t)len));
COUNTED(__connect, "__connect", "connect", listener, connect_op, connect_errors,
        __connect(fd, at, (socklen_t)len));
COUNTED(syscall_connect, "syscall", "connect", listener, connect_op, connect_errors,
        syscall(SYS_connect, fd, at, len));

static long bind_op(struct run *r, unsigned i)
{
    int fd = raw_socket(AF_UNIX, SOCK_STREAM);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, fd, address(r, 1), sizeof(struct sockaddr_un), 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, RAW3(SYS_bind, fd, address(r, 1), sizeof(struct sockaddr_un)) == -EINVAL);
    raw_close(fd);
    mix(r, i, 1);
    return 0;
}

static void bind_errors(struct run *r)
{
    mover *go = r->test->go;
    no_socket_errors(r);
    int fd = raw_socket(AF_UNIX, SOCK_STREAM);
    EXPECT(r, "bind", EADDRINUSE, go(r, fd, address(r, 0), sizeof(struct sockaddr_un), 0));
    EXPECT(r, "bind", EFAULT, go(r, fd, NOWHERE, sizeof(struct sockaddr_un), 0));
    raw_close(fd);
}

COUNTED(bind, "bind", "bind", listener, bind_op, bind_errors, bind(fd, at, (socklen_t)len));
COUNTED(syscall_bind, "syscall", "bind", listener, bind_op, bind_errors, syscall(SYS_bind, fd, at, len));

static long listen_op(struct run *r, unsigned i)
{
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, r->fd[0], NULL, 4 + (i & 1), 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    mix(r, i, 1);
    return 0;
}

COUNTED(listen, "listen", "listen", listener, listen_op, no_socket_errors, listen(fd, (int)len));
COUNTED(syscall_listen, "syscall", "listen", listener, listen_op, no_socket_errors, syscall(SYS_listen, fd, len));

static long accept_op(struct run *r, unsigned i)
{
    struct sockaddr_un from;
    socklen_t len = sizeof from;
    int fd = raw_socket(AF_UNIX, SOCK_STREAM);
    CHECK(r, RAW3(SYS_connect, fd, address(r, 0), sizeof from) == 0);
    r->extra = &len;
    errno = ERRNO_CANARY;
    int peer = (int)r->test->go(r, r->fd[0], &from, 0, 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, peer >= 0 && from.sun_family == AF_UNIX && len == 2);
    CHECK(r, raw_write(fd, "x", 1) == 1 && raw_read(peer, r->data, 1) == 1);
    raw_close(fd);
    raw_close(peer);
    r->extra = NULL;
    mix(r, i, 1);
    return 0;
}

static void accept_errors(struct run *r)
{
    mover *go = r->test->go;
    no_socket_errors(r);
    raw_nonblock(r->fd[0]);
    EXPECT(r, r->test->entry, EAGAIN, go(r, r->fd[0], NULL, 0, 0));
    int fd = raw_socket(AF_UNIX, SOCK_STREAM);
    EXPECT(r, r->test->entry, EINVAL, go(r, fd, NULL, 0, 0));
    raw_close(fd);
}

COUNTED(accept, "accept", "accept", listener, accept_op, accept_errors, accept(fd, r->extra ? at : NULL, r->extra));
COUNTED(syscall_accept, "syscall", "accept", listener, accept_op, accept_errors,
        syscall(SYS_accept, fd, r->extra ? at : NULL, r->extra));
COUNTED(accept4, "accept4", "accept4", listener, accept_op, accept_errors,
        accept4(fd, r->extra ? at : NULL, r->extra, SOCK_CLOEXEC));
COUNTED(syscall_accept4, "syscall", "accept4", listener, accept_op, accept_errors,
        syscall(SYS_accept4, fd, r->extra ? at : NULL, r->extra, SOCK_CLOEXEC));

static long shutdown_op(struct run *r, unsigned i)
{
    int fd[2];
    raw_socketpair(SOCK_STREAM, fd);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, fd[0], NULL, SHUT_WR, 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, raw_read(fd[1], r->data, 1) == 0);
    raw_close(fd[0]);
    raw_close(fd[1]);
    mix(r, i, 1);
    return 0;
}

COUNTED(shutdown, "shutdown", "shutdown", NULL, shutdown_op, no_socket_errors, shutdown(fd, (int)len));
COUNTED(syscall_shutdown, "syscall", "shutdown", NULL, shutdown_op, no_socket_errors,
        syscall(SYS_shutdown, fd, len));

static long pipe_op(struct run *r, unsigned i)
{
    int fd[2] = {-1, -1};
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, 0, fd, 0, 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, raw_write(fd[1], "x", 1) == 1 && raw_read(fd[0], r->data, 1) == 1);
    mix(r, i, (uint64_t)raw_fcntl(fd[0], F_GETFD, 0));
    raw_close(fd[0]);
    raw_close(fd[1]);
    return 0;
}

static void pipe_errors(struct run *r)
{
    EXPECT(r, r->test->entry, EFAULT, r->test->go(r, 0, NOWHERE, 0, 0));
    if (strcmp(r->test->entry, "pipe2") == 0)
        EXPECT(r, "pipe2", EINVAL, r->test->go(r, 0, r->data, 1 << 30, 0));
}

COUNTED(pipe, "pipe", "pipe", NULL, pipe_op, pipe_errors, pipe(at));
COUNTED(syscall_pipe, "syscall", "pipe", NULL, pipe_op, pipe_errors, syscall(SYS_pipe, at));
COUNTED(pipe2, "pipe2", "pipe2", NULL, pipe_op, pipe_errors, pipe2(at, O_CLOEXEC | (int)len));
COUNTED(syscall_pipe2, "syscall", "pipe2", NULL, pipe_op, pipe_errors, syscall(SYS_pipe2, at, O_CLOEXEC | len));

static long dup_op(struct run *r, unsigned i)
{
    errno = ERRNO_CANARY;
    int fd = (int)r->test->go(r, r->fd[0], NULL, 800 + r->thread, 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, fd > 2 && is_socket(fd));
    mix(r, i, (uint64_t)raw_fcntl(fd, F_GETFD, 0));
    raw_close(fd);
    return 0;
}

static void dup_errors(struct run *r)
{
    fd_errors(r);
    if (strcmp(r->test->entry, "dup") != 0)
        EXPECT(r, r->test->entry, EBADF, r->test->go(r, r->fd[0], NULL, 1u << 30, 0));
    if (strcmp(r->test->entry, "dup2") == 0) {
        CHECK(r, r->test->go(r, r->fd[0], NULL, (size_t)r->fd[0], 0) == r->fd[0]);
        tally(r, "dup2", 1, 0);
    }
    if (strcmp(r->test->entry, "dup3") == 0)
        EXPECT(r, "dup3", EINVAL, r->test->go(r, r->fd[0], NULL, (size_t)r->fd[0], 0));
}

COUNTED(dup, "dup", "dup", listener, dup_op, dup_errors, dup(fd));
COUNTED(syscall_dup, "syscall", "dup", listener, dup_op, dup_errors, syscall(SYS_dup, fd));
COUNTED(dup2, "dup2", "dup2", listener, dup_op, dup_errors, dup2(fd, (int)len));
COUNTED(syscall_dup2, "syscall", "dup2", listener, dup_op, dup_errors, syscall(SYS_dup2, fd, len));
COUNTED(dup3, "dup3", "dup3", listener, dup_op, dup_errors, dup3(fd, (int)len, O_CLOEXEC));
COUNTED(syscall_dup3, "syscall", "dup3", listener, dup_op, dup_errors, syscall(SYS_dup3, fd, len, O_CLOEXEC));
