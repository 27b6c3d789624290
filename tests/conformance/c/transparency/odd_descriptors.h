/* The descriptors that odd_calls.c makes calls on: files, devices, pipes, and sockets of each type. */
#pragma once
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/tcp.h>

/* From PIPE_R to NETLINK_B in pairs: the other end of one is its number ^ 1. */
enum { FILE_RW, APPENDED, SYNCED, DIRECT, READ_ONLY, WRITE_ONLY, MEMORY, PROC, FOLDER, NOTHING, ZEROES, EVENT, SIGNALS, TIMER,
       PIPE_R, PIPE_W, STREAM_A, STREAM_B, GRAM_A, GRAM_B, PACKET_A, PACKET_B, TCP_A, TCP_B, TCP6_A, TCP6_B, UDP_A, UDP_B,
       UDP6_A, UDP6_B, NETLINK_A, NETLINK_B, ROUTE, LONELY_TCP, LONELY_UDP, LISTENER, ANY, KINDS };
_Static_assert(PIPE_R % 2 == 0 && NETLINK_B % 2 == 1, "pairs");
static __thread int fds[KINDS];
/* What the number fds[ANY] stands for, which changes. */
static __thread int any;
static const int seekable[] = { FILE_RW, APPENDED, SYNCED, DIRECT, READ_ONLY, WRITE_ONLY, MEMORY };

static int is_pair(int kind) { return kind >= PIPE_R && kind <= NETLINK_B; }
static int is_tcp(int kind) { return kind >= TCP_A && kind <= TCP6_B; }
static int is_udp(int kind) { return (kind >= UDP_A && kind <= UDP6_B) || kind == LONELY_UDP; }
static int is_netlink(int kind) { return kind >= NETLINK_A && kind <= ROUTE; }
/* A queue of bytes without borders. */
static int is_of_bytes(int kind) { return kind == PIPE_R || kind == STREAM_A || kind == STREAM_B || is_tcp(kind); }

/* Which of them a descriptor is; KINDS for another. */
static int which_of(int fd)
{
    for (int i = 0; i < KINDS; i++)
        if (fds[i] == fd)
            return i == ANY ? any : i;
    return KINDS;
}

static int kind_of(int fd)
{
    struct stat of;
    int which = which_of(fd);
    if (which == KINDS)
        return fstat(fd, &of) == 0 && S_ISREG(of.st_mode) ? OF_FILES : OF_OTHERS;
    return which <= PROC ? OF_FILES : which >= STREAM_A ? OF_SOCKETS : OF_OTHERS;
}

/* Files of threads have names of their own. */
static __thread int thread;
static int opened(const char *name, int flags)
{
    char own[40];
    snprintf(own, sizeof own, thread ? "%s.%d" : "%s", name, thread);
    int fd = open(own, flags | O_CREAT, 0600);
    if (fd < 0)
        die(name);
    return fd;
}

/* Room for all that goes into a queue between two looks. An ordinary user has less, the same in each mode. */
static int roomy(int fd)
{
    int room = QUEUE;
    if (fd < 0)
        die("socket");
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room))
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room))
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    return fd;
}

static void pair(int kind, int first)
{
    if (socketpair(AF_UNIX, kind | SOCK_NONBLOCK, 0, fds + first))
        die("socketpair");
    roomy(fds[first]);
    roomy(fds[first + 1]);
}

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

/* This machine's own address, with a free port; of IPv4 where there is no other. */
static socklen_t loopback(union address *to, int *family)
{
    memset(to, 0, sizeof *to);
    if (*family == AF_INET6) {
        int fd = socket(AF_INET6, SOCK_DGRAM, 0);
        to->v6 = (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
        int has = fd >= 0 && bind(fd, &to->any, sizeof to->v6) == 0;
        if (fd >= 0)
            close(fd);
        if (has)
            return sizeof to->v6;
        *family = AF_INET;
    }
    to->v4 = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    return sizeof to->v4;
}

static int bound(int family, int kind, union address *at)
{
    socklen_t len = loopback(at, &family);
    int fd = roomy(socket(family, kind | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (bind(fd, &at->any, len) || getsockname(fd, &at->any, &len))
        die("bind");
    return fd;
}

static void udp_pair(int family, int first)
{
    union address at[2];
    for (int i = 0; i < 2; i++)
        fds[first + i] = bound(family, SOCK_DGRAM, at + i);
    for (int i = 0; i < 2; i++)
        if (connect(fds[first + i], &at[!i].any, sizeof at[!i]))
            die("connected UDP");
}

/* All that was sent has arrived; what has not gone waits for an acknowledgement, which is asked for. */
static void settle(int kind)
{
    /* What goes by UDP may be in its queue a moment later, too; for ever, if more was announced (MSG_MORE). */
    for (int left = 0, tries = 0; is_pair(kind) && is_udp(kind) && tries < 40; tries++) {
        if (ioctl(fds[kind ^ 1], FIONREAD, &left) == 0 && left > 0)
            break;
        sched_yield();
    }
    for (int i = 0; is_tcp(kind) && i < 2; i++) {
        int from = fds[kind ^ i], to = fds[kind ^ i ^ 1], one = 1;
        for (int tries = 0;; tries++) {
            struct tcp_info sent, come;
            socklen_t len = sizeof sent;
            memset(&sent, 0, sizeof sent);
            memset(&come, 0, sizeof come);
            getsockopt(from, IPPROTO_TCP, TCP_INFO, &sent, &len);
            len = sizeof come;
            getsockopt(to, IPPROTO_TCP, TCP_INFO, &come, &len);
            if (sent.tcpi_notsent_bytes == 0 && sent.tcpi_bytes_sent - sent.tcpi_bytes_retrans == come.tcpi_bytes_received)
                break;
            if (tries > 200000)
                die("TCP that does not arrive");
            setsockopt(to, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof one);
            if (tries > 20)
                usleep(20);
        }
    }
}

/* What is small goes at once, and the end of a connection leaves nothing behind. */
static void tcp_pair(int family, int first)
{
    static __thread union address at[2];
    static __thread int listeners[2];
    int *listener = &listeners[family == AF_INET6], one = 1;
    union address *to = &at[family == AF_INET6];
    struct linger none = { 1, 0 };
    if (*listener == 0) {
        *listener = bound(family, SOCK_STREAM, to);
        if (listen(*listener, 4))
            die("listen");
    }
    fds[first] = roomy(socket(to->any.sa_family, SOCK_STREAM, 0));
    if (connect(fds[first], &to->any, sizeof *to))
        die("connect");
    fds[first + 1] = accept(*listener, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        int fd = fds[first + i];
        if (fd < 0 || fcntl(fd, F_SETFL, O_NONBLOCK) || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) ||
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none))
            die("TCP");
    }
}

/* Two of one protocol that talk to each other, and one that asks the kernel about routes. Each has a number that this run's folder
 * alone has, as the answers say it. */
static void netlink(void)
{
    struct stat folder;
    if (stat(".", &folder))
        die("folder");
    for (int i = 0; i < 3; i++) {
        int protocol = i < 2 ? NETLINK_USERSOCK : NETLINK_ROUTE;
        uint32_t number = ((uint32_t)folder.st_ino << 4 & 0x3ffffff0) | 0x40000000;
        struct sockaddr_nl at = { .nl_family = AF_NETLINK, .nl_pid = number + thread * 4 + i };
        struct sockaddr_nl to = { .nl_family = AF_NETLINK, .nl_pid = at.nl_pid ^ 1 };
        int fd = fds[NETLINK_A + i] = roomy(socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK, protocol));
        if (bind(fd, (void *)&at, sizeof at) || (i < 2 && connect(fd, (void *)&to, sizeof to)))
            die("netlink");
    }
}

#define QUESTIONS 64
/* Questions to which the answers are always the same, each of 32 bytes: refused, or without an answer. No other bytes are sent there:
 * those behind are zero, as many as the longest call asks for. */
static struct { struct nlmsghdr head; char rest[16]; } questions[QUESTIONS + 2000 / 32 + 1];
static void make_questions(void)
{
    static const uint16_t types[] = { NLMSG_NOOP, NLMSG_DONE, 7, 15, RTM_GETLINK, RTM_GETLINK, RTM_GETNSID, RTM_GETRULE, 900, 0xffff };
    static const uint16_t flags[] = { NLM_F_REQUEST, NLM_F_REQUEST | NLM_F_ACK, NLM_F_REQUEST | NLM_F_ACK, NLM_F_ACK, 0, NLM_F_REQUEST | NLM_F_ECHO };
    for (size_t i = 0; i < QUESTIONS; i++) {
        struct ifinfomsg link = { .ifi_index = 0x7ffffff0 };
        questions[i].head = (struct nlmsghdr){ .nlmsg_len = i % 13 == 12 ? 4 : i % 17 == 16 ? 4096 : 32, .nlmsg_type = types[i % LENGTH(types)],
                                               .nlmsg_flags = flags[i % LENGTH(flags)], .nlmsg_seq = i };
        memcpy(questions[i].rest, &link, sizeof link);
    }
}

static void begin(uint64_t seed)
{
    int both[2];
    sigset_t usr1, alarm, before;
    state = seed;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, &before);
    fill(arena, arena_len, seed);
    fds[FILE_RW] = opened("rw", O_RDWR | O_TRUNC);
    fds[APPENDED] = opened("appended", O_RDWR | O_TRUNC | O_APPEND);
    fds[SYNCED] = opened("synced", O_RDWR | O_TRUNC | O_DSYNC);
    fds[DIRECT] = opened("direct", O_RDWR | O_TRUNC);
    /* A file system without it refuses. */
    fcntl(fds[DIRECT], F_SETFL, O_DIRECT);
    fds[READ_ONLY] = open("constant", O_RDONLY);
    fds[WRITE_ONLY] = opened("written", O_WRONLY | O_TRUNC);
    fds[PROC] = open("/proc/version", O_RDONLY);
    fds[MEMORY] = memfd_create("memory", 0);
    fds[FOLDER] = open(".", O_RDONLY | O_DIRECTORY);
    fds[NOTHING] = open("/dev/null", O_RDWR);
    /* A signal ends a read of zeroes in the middle. */
    fds[ZEROES] = open(is_signalled ? "/dev/null" : "/dev/zero", O_RDWR);
    fds[EVENT] = eventfd(3, EFD_NONBLOCK);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigaddset(&before, SIGUSR1);
    fds[SIGNALS] = signalfd(-1, &usr1, SFD_NONBLOCK);
    fds[TIMER] = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    fds[LONELY_TCP] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    fds[LONELY_UDP] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    fds[LISTENER] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    /* A name of its own (autobind). */
    struct sockaddr_un nameless = { .sun_family = AF_UNIX };
    if (bind(fds[LISTENER], (void *)&nameless, sizeof nameless.sun_family) || listen(fds[LISTENER], 1))
        die("listener");
    if (pipe2(both, O_NONBLOCK))
        die("pipe");
    fcntl(both[1], F_SETPIPE_SZ, 1 << 20);
    fds[PIPE_R] = both[0], fds[PIPE_W] = both[1];
    pair(SOCK_STREAM, STREAM_A);
    pair(SOCK_DGRAM, GRAM_A);
    pair(SOCK_SEQPACKET, PACKET_A);
    tcp_pair(AF_INET, TCP_A);
    tcp_pair(AF_INET6, TCP6_A);
    udp_pair(AF_INET, UDP_A);
    udp_pair(AF_INET6, UDP6_A);
    netlink();
    any = NOTHING;
    fds[ANY] = dup(fds[any]);
    for (int i = 0; i < KINDS; i++)
        if (fds[i] < 0)
            die("a descriptor");
    if (noted(PWRITE, -1, TEMP_FAILURE_RETRY(pwrite(fds[FILE_RW], constant, 100000, 0))) != 100000 ||
        noted(PWRITE, -1, TEMP_FAILURE_RETRY(pwrite(fds[MEMORY], constant, 50000, 0))) != 50000)
        die("files");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
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
    return below(8) ? fds[STREAM_A + below(below(4) ? ROUTE - STREAM_A : ANY - STREAM_A)] : fd;
}

static int of_files(int fd)
{
    return below(4) ? fds[seekable[below(LENGTH(seekable))]] : fd;
}
