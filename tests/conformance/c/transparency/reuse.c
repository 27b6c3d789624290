/* One descriptor number that stands for a file, a socket, a pipe, in turn. */
#define _GNU_SOURCE
#include "probe.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

static char block[4096];

static void put(int fd, size_t len)
{
    if (write(fd, block, len) != (ssize_t)len)
        say("write of %zu to %d failed: %s", len, fd, strerrorname_np(errno));
}

/* A descriptor that comes in a message, under the lowest free number. */
static int received(int fd[2], int sent)
{
    char control[CMSG_SPACE(sizeof sent)] = {0};
    struct iovec v = {block, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof sent);
    memcpy(CMSG_DATA(c), &sent, sizeof sent);
    RAW3(SYS_sendmsg, fd[0], &m, 0);
    recvmsg(fd[1], &m, 0);
    memcpy(&sent, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof sent);
    return sent;
}

int main(int argc, char **argv)
{
    int pair[2];
    int keep[2];
    const char *file = argc > 1 ? argv[1] : "/dev/null";
    raw_socketpair(SOCK_STREAM, keep);

    int n = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
    put(n, 100);
    close(n);
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    /* Keeps the connection when its number goes to another. */
    int end = raw_dup(pair[0]);
    say("a socket has the file's number: %d", pair[0] == n);
    put(n, 200);
    /* Over the open socket. */
    int other = open(file, O_RDWR);
    dup2(other, n);
    put(n, 10);
    dup3(pair[1], n, O_CLOEXEC);
    put(n, 20);
    close(n);
    raw_close(end);
    int pipes[2];
    pipe(pipes);
    say("a pipe has it: %d", pipes[0] == n || pipes[1] == n);
    put(pipes[1], 1000);
    close_range((unsigned)n, (unsigned)n, 0);
    n = dup(other);
    put(n, 30);
    close(n);
    /* Numbers that calls give which nobody watches. */
    int e = eventfd(0, 0);
    put(e, 8);
    close(e);
    int d = fcntl(other, F_DUPFD, e);
    say("a copy has it: %d", d == e);
    put(d, 40);
    close(d);
    int got = received(keep, other);
    say("a message has brought it: %d", got == e);
    put(got, 50);
    close(got);
    int accepted;
    unsigned char address[16] = {AF_INET, 0, 0, 0, 127, 0, 0, 1};
    socklen_t len = sizeof address;
    int listener = raw_socket(AF_INET, SOCK_STREAM);
    RAW3(SYS_bind, listener, address, sizeof address);
    RAW2(SYS_listen, listener, 1);
    RAW3(SYS_getsockname, listener, address, &len);
    int client = raw_socket(AF_INET, SOCK_STREAM);
    RAW3(SYS_connect, client, address, sizeof address);
    accepted = accept4(listener, NULL, NULL, 0);
    say("a connection has it: %d", accepted == e);
    put(accepted, 400);
    close(accepted);
    n = open(file, O_RDWR);
    put(n, 60);
    say("file %d, socket %d, other %d", 100 + 10 + 30 + 40 + 50 + 60, 200 + 20 + 400, 1000 + 8);
    return 0;
}
