/* Large sends on stream sockets: what is bytes alone may be made in pieces, what is
 * said of the call itself may not. */
#define _GNU_SOURCE
#include "probe.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#define LARGE 65536
#define MIDDLE 20000

static char data[LARGE], got[LARGE + 1];

struct reader {
    int fd;
    long bytes, reads;
};

static void *reading(void *at)
{
    struct reader *r = at;
    long n;
    while ((n = raw_read(r->fd, got + r->bytes, sizeof got - (size_t)r->bytes)) > 0) {
        r->bytes += n;
        r->reads++;
    }
    return NULL;
}

/* Five vectors, one of them empty. */
static void in_vectors(void)
{
    int fd[2];
    pthread_t thread;
    struct iovec v[] = {{data, 1}, {data + 1, 9999}, {NULL, 0}, {data + 10000, 40000}, {data + 50000, LARGE - 50000}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 5};
    struct msghdr before = m;
    raw_socketpair(SOCK_STREAM, fd);
    struct reader r = {.fd = fd[1]};
    pthread_create(&thread, NULL, reading, &r);
    long sent = sendmsg(fd[0], &m, 0);
    raw_close(fd[0]);
    pthread_join(thread, NULL);
    raw_close(fd[1]);
    say("sendmsg: %ld sent, %ld arrived, %s, the message is %s", sent, r.bytes,
        memcmp(got, data, LARGE) ? "other bytes" : "the same bytes",
        memcmp(&m, &before, sizeof m) ? "changed" : "as it was");
    say("# sendmsg in reads %ld", r.reads);
}

/* A descriptor goes along once, with the first byte. */
static void with_descriptor(void)
{
    int fd[2], sent, n = 0;
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec v = {data, MIDDLE};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    raw_socketpair(SOCK_STREAM, fd);
    control.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.head), &fd[0], sizeof(int));
    sent = (int)sendmsg(fd[0], &m, 0);
    for (long all = 0; all < sent;) {
        m.msg_controllen = sizeof control;
        long part = RAW3(SYS_recvmsg, fd[1], &m, 0);
        all += part;
        if (m.msg_controllen) {
            int other;
            memcpy(&other, CMSG_DATA(&control.head), sizeof other);
            raw_close(other);
            n++;
        }
    }
    say("with a descriptor: %d sent, %d descriptors", sent, n);
    raw_close(fd[0]);
    raw_close(fd[1]);
}

/* A connection over the loopback interface. */
static void connected(int fd[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    unsigned len = sizeof address;
    int listener = raw_socket(AF_INET, SOCK_STREAM);
    RAW3(SYS_bind, listener, &address, len);
    RAW2(SYS_listen, listener, 1);
    RAW3(SYS_getsockname, listener, &address, &len);
    fd[0] = raw_socket(AF_INET, SOCK_STREAM);
    RAW3(SYS_connect, fd[0], &address, len);
    fd[1] = (int)RAW3(SYS_accept, listener, NULL, NULL);
    raw_close(listener);
}

static long send_by(int way, int fd, int flags)
{
    struct iovec v = {data, MIDDLE};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    return way ? sendmsg(fd, &m, flags) : send(fd, data, MIDDLE, flags);
}

/* Only the last byte is urgent, and not among those that are read. */
static void urgent(int way)
{
    int fd[2];
    pthread_t thread;
    connected(fd);
    struct reader r = {.fd = fd[1]};
    pthread_create(&thread, NULL, reading, &r);
    long sent = send_by(way, fd[0], MSG_OOB);
    raw_close(fd[0]);
    pthread_join(thread, NULL);
    say("%s, urgent: %ld sent, %ld read", way ? "sendmsg" : "send", sent, r.bytes);
    raw_close(fd[1]);
}

/* One call is answered once, with the number 0. */
static void without_copy(int way)
{
    int fd[2], yes = 1;
    char room[200];
    connected(fd);
    long set = RAW5(SYS_setsockopt, fd[0], SOL_SOCKET, SO_ZEROCOPY, &yes, sizeof yes);
    long sent = send_by(way, fd[0], set == 0 ? MSG_ZEROCOPY : 0);
    unsigned first = ~0u, last = 0;
    while (set == 0 && first != 0) {
        struct pollfd p = {.fd = fd[0]};
        struct msghdr m = {.msg_control = room, .msg_controllen = sizeof room};
        RAW3(SYS_poll, &p, 1, 5000);
        if (RAW3(SYS_recvmsg, fd[0], &m, MSG_ERRQUEUE) < 0)
            break;
        struct sock_extended_err *e = (void *)CMSG_DATA(CMSG_FIRSTHDR(&m));
        first = e->ee_info;
        last = e->ee_data;
    }
    say("%s, without copy: %s, %ld sent, answered %u to %u", way ? "sendmsg" : "send",
        set == 0 ? "set" : "not known", sent, first, last);
    raw_close(fd[0]);
    raw_close(fd[1]);
}

#define MESSAGES 24
#define LENGTH 1400

/* Takes messages until there is one of a single byte; `reads` is how often none was
 * there. */
static void *receiving(void *at)
{
    struct reader *r = at;
    static char room[LENGTH + 1];
    for (int i = 0;; i++) {
        long n = RAW6(SYS_recvfrom, r->fd, room, sizeof room, MSG_DONTWAIT, NULL, NULL);
        if (n < 0) {
            r->reads++;
            n = RAW6(SYS_recvfrom, r->fd, room, sizeof room, 0, NULL, NULL);
        }
        if (n < 2)
            return NULL;
        r->bytes += memcmp(room, data + i, (size_t)n) ? 1000000 : n;
    }
}

/* Messages stay whole and in their order, and the call says how many went, also if
 * the kernel refuses one of them. */
static void messages(int bad)
{
    int fd[2];
    pthread_t thread;
    struct iovec v[MESSAGES];
    struct mmsghdr m[MESSAGES] = {0};
    for (int i = 0; i < MESSAGES; i++) {
        v[i] = (struct iovec){i == bad ? (char *)8 : data + i, (size_t)LENGTH - (size_t)i};
        m[i].msg_hdr = (struct msghdr){.msg_iov = &v[i], .msg_iovlen = 1};
    }
    raw_socketpair(SOCK_DGRAM, fd);
    struct reader r = {.fd = fd[1]};
    pthread_create(&thread, NULL, receiving, &r);
    int sent = sendmmsg(fd[0], m, MESSAGES, 0);
    long lengths = 0;
    for (int i = 0; i < MESSAGES; i++)
        lengths += m[i].msg_len;
    RAW6(SYS_sendto, fd[0], data, 1, 0, NULL, 0);
    pthread_join(thread, NULL);
    say("%d messages sent, %ld bytes of them arrived, %ld by their lengths", sent, r.bytes, lengths);
    say("# pauses between messages %ld", r.reads);
    raw_close(fd[0]);
    raw_close(fd[1]);
}

int main(void)
{
    guard(30);
    for (int i = 0; i < LARGE; i++)
        data[i] = (char)(i * 7 + i / 251);
    uint64_t from = raw_now();
    in_vectors();
    with_descriptor();
    for (int way = 0; way < 2; way++) {
        urgent(way);
        without_copy(way);
    }
    messages(17);
    messages(-1);
    say("# elapsed %ld ms", milliseconds(from));
    return 0;
}
