/* What a signal does to a call that waits: for what it is made for, or for its limit.
 *
 *   interrupted CALL restart|plain            the call waits for what never comes
 *   interrupted CALL restart|plain limited    the call could go at once, but for its limit of one call a second
 *
 * Three signals come, 40 ms apart; the last one leaves the call by a jump. Prints whether the call ended with EINTR, went on, or was
 * done. CALL-timed has a time limit on its socket. */
#define _GNU_SOURCE
#include "probe.h"

#include <fcntl.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

static sigjmp_buf out;
static volatile sig_atomic_t handled;

static void handler(int signal)
{
    (void)signal;
    if (++handled == 3)
        siglongjmp(out, 1);
}

static int pipe_none[2], pipe_some[2], pipe_full[2];
static int socket_none[2], socket_some[2], socket_full[2];
static int listening[2], epoll, file, locked, own;
static int queue_none, queue_some, queue_full;
static mqd_t mq_none, mq_some, mq_full;
static char block[4096];

static void fill(int fd)
{
    raw_nonblock(fd);
    while (raw_write(fd, block, sizeof block) > 0 || raw_write(fd, block, 1) > 0)
        ;
    raw_fcntl(fd, F_SETFL, raw_fcntl(fd, F_GETFL, 0) & ~O_NONBLOCK);
}

static void set_timeout(int fd)
{
    struct timeval limit = {30, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

static int listener(int clients)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bind(fd, (struct sockaddr *)&at, sizeof at);
    listen(fd, 8);
    getsockname(fd, (struct sockaddr *)&at, &len);
    for (int k = 0; k < clients; k++)
        connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&at, sizeof at);
    return fd;
}

/* These stay for ever otherwise. */
static void remove_queues(void)
{
    int queues[] = {queue_none, queue_some, queue_full};
    for (int k = 0; k < 3 && queue_some != 0; k++)
        msgctl(queues[k], IPC_RMID, NULL);
}

static mqd_t mq_with(int messages)
{
    char name[64];
    struct mq_attr most = {.mq_maxmsg = 4, .mq_msgsize = 64};
    snprintf(name, sizeof name, "/interrupted-%d-%d", (int)getpid(), messages);
    mqd_t queue = mq_open(name, O_CREAT | O_RDWR, 0600, &most);
    mq_unlink(name);
    for (int k = 0; k < messages; k++)
        RAW5(SYS_mq_timedsend, queue, block, 8, 0, NULL);
    return queue;
}

struct message {
    long kind;
    char text[64];
};

static int queue_with(int messages)
{
    struct message message = {.kind = 1};
    int queue = msgget(IPC_PRIVATE, 0600);
    for (int k = 0; k < messages && RAW5(SYS_msgsnd, queue, &message, sizeof message.text, IPC_NOWAIT, 0) == 0; k++)
        ;
    return queue;
}

/* Everything that a case may need, made by few calls: in a static program all of them are limited. */
static void prepare(const char *call, int timed, int limited)
{
    int *ways[] = {pipe_none, pipe_some, pipe_full, socket_none, socket_some, socket_full};
    for (int k = 0; k < 6; k++) {
        if (k < 3)
            raw_pipe(ways[k]);
        else
            raw_socketpair(SOCK_STREAM, ways[k]);
        for (int end = 0; timed && end < 2; end++)
            set_timeout(ways[k][end]);
    }
    raw_write(pipe_some[1], block, 512);
    raw_write(socket_some[1], block, 512);
    if (!limited) {
        fill(pipe_full[1]);
        fill(socket_full[1]);
    }
    epoll = epoll_create1(0);
    file = fileno(tmpfile());
    if (raw_write(file, block, sizeof block) < 0)
        say("no room");
    if (strncmp(call, "accept", 6) == 0)
        for (int k = 0; k < 2; k++) {
            listening[k] = listener(4 * k);
            if (timed)
                set_timeout(listening[k]);
        }
    if (strncmp(call, "mq_", 3) == 0)
        mq_none = mq_with(0), mq_some = mq_with(2), mq_full = limited ? -1 : mq_with(4);
    if (strncmp(call, "msg", 3) == 0)
        queue_none = queue_with(0), queue_some = queue_with(2), queue_full = limited ? -1 : queue_with(100000);
    if (strcmp(call, "flock") == 0) {
        char name[] = "/tmp/interrupted-XXXXXX";
        locked = mkstemp(name);
        own = open(name, O_RDWR);
        unlink(name);
        RAW3(SYS_flock, locked, LOCK_EX, 0);
    }
}

#define IS(name) (strcmp(call, name) == 0)

/* The call, ready to go at once or not. */
static long make(const char *call, int ready)
{
    struct iovec vector = {block, 8};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
    struct timespec zero = {0, 0};
    struct timeval none = {0, 0};
    struct epoll_event event;
    struct message message = {.kind = 1};
    struct stat st;
    int in = ready ? pipe_some[0] : pipe_none[0];
    int to = ready ? pipe_some[1] : pipe_full[1];
    int from = ready ? socket_some[0] : socket_none[0];
    int peer = ready ? socket_some[1] : socket_full[1];
    if (IS("poll"))
        return poll(NULL, 0, ready ? 0 : -1);
    if (IS("ppoll"))
        return ppoll(NULL, 0, ready ? &zero : NULL, NULL);
    if (IS("select"))
        return select(0, NULL, NULL, NULL, ready ? &none : NULL);
    if (IS("pselect6"))
        return pselect(0, NULL, NULL, NULL, ready ? &zero : NULL, NULL);
    if (IS("epoll_wait"))
        return epoll_wait(epoll, &event, 1, ready ? 0 : -1);
    if (IS("epoll_pwait"))
        return epoll_pwait(epoll, &event, 1, ready ? 0 : -1, NULL);
    if (IS("epoll_pwait2"))
        return syscall(SYS_epoll_pwait2, epoll, &event, 1, ready ? &zero : NULL, NULL, 8);
    if (IS("read"))
        return read(in, block, 8);
    if (IS("readv"))
        return readv(in, &vector, 1);
    if (IS("write"))
        return write(to, block, 8);
    if (IS("writev"))
        return writev(to, &vector, 1);
    if (IS("tee"))
        return tee(in, to, 8, 0);
    if (IS("splice"))
        return splice(in, NULL, socket_some[1], NULL, 8, 0);
    if (IS("vmsplice"))
        return vmsplice(to, &vector, 1, 0);
    if (IS("recvfrom"))
        return recv(from, block, 8, 0);
    if (IS("recvmsg"))
        return recvmsg(from, &header, 0);
    if (IS("sendto"))
        return send(peer, block, 8, 0);
    if (IS("sendmsg"))
        return sendmsg(peer, &header, 0);
    if (IS("read-socket"))
        return read(from, block, 8);
    if (IS("write-socket"))
        return write(peer, block, 8);
    if (IS("accept"))
        return accept(listening[ready], NULL, NULL);
    if (IS("accept4"))
        return accept4(listening[ready], NULL, NULL, 0);
    if (IS("msgrcv"))
        return msgrcv(ready ? queue_some : queue_none, &message, sizeof message.text, 0, 0);
    if (IS("msgsnd"))
        return msgsnd(ready ? queue_none : queue_full, &message, sizeof message.text, 0);
    if (IS("mq_timedreceive"))
        return mq_receive(ready ? mq_some : mq_none, block, sizeof block, NULL);
    if (IS("mq_timedsend"))
        return mq_send(ready ? mq_some : mq_full, block, 8, 0);
    if (IS("flock"))
        return flock(ready ? locked : own, LOCK_EX);
    /* Never interrupted. */
    if (IS("stat"))
        return stat("/dev/null", &st);
    if (IS("pread64"))
        return pread(file, block, 8, 0);
    if (IS("fsync"))
        return fsync(file);
    if (IS("close"))
        return close(dup(file));
    return -1;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    char call[64];
    int timed = strstr(argv[1], "-timed") != NULL;
    int limited = argc > 3;
    static volatile int tries;
    snprintf(call, sizeof call, "%.*s", (int)strcspn(argv[1], "-"), argv[1]);
    if (strstr(argv[1], "-socket") != NULL)
        strcat(call, "-socket");
    atexit(remove_queues);
    prepare(call, timed, limited);
    /* The burst is used up; on a busy machine there may be more by the time that the signal comes: again. */
    for (; tries < 20; tries++) {
        if (limited && tries == 0)
            make(call, 1);
        struct sigaction action = {.sa_handler = handler};
        action.sa_flags = SA_NODEFER | (strcmp(argv[2], "restart") == 0 ? SA_RESTART : 0);
        sigaction(SIGALRM, &action, NULL);
        struct itimerval timer = {{0, 40000}, {0, 40000}}, none = {{0, 0}, {0, 0}};
        handled = 0;
        if (sigsetjmp(out, 1)) {
            setitimer(ITIMER_REAL, &none, NULL);
            say("went on");
            return 0;
        }
        setitimer(ITIMER_REAL, &timer, NULL);
        long result = make(call, limited);
        int error = errno;
        setitimer(ITIMER_REAL, &none, NULL);
        if (result < 0) {
            errno = error;
            say("%s after %s", error_name(result), handled ? "a signal" : "none");
            return 0;
        }
        if (handled > 0 || !limited)
            break;
    }
    say("done after %s", handled ? "signals" : "none");
    return 0;
}
