/* Limits on some descriptors, or on each:
 *   narrowed streams N BYTES        N connections, each with a thread that sends
 *   narrowed files BYTES A B        reads of A, then of B, by read, pread, readv and sendfile
 *   narrowed peers BYTES PORT       TCP and UDP to 127.0.0.1, 127.0.0.2 and PORT
 *   narrowed shared BYTES A         A by two processes, a duplicate, and opened twice
 *   narrowed reuse ROUNDS A B       numbers given out anew while other threads use them
 *   narrowed storm BYTES A          reads of A while signals come all the time
 *   narrowed paths CALLS A B        opens of A, then of B
 *   narrowed many N                 N streams that are all in debt
 *   narrowed renamed 0 A B          B, when its path has become one beside A: renamed,
 *                                   linked, and its folder renamed
 * Each part prints what it took. */
#define _GNU_SOURCE
#include "probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static char block[16384];

static void took(const char *what, uint64_t from)
{
    say("# %s %ld ms", what, milliseconds(from));
}

static int check(long result, const char *what)
{
    if (result < 0) {
        say("%s failed: %s", what, strerror(errno));
        exit(1);
    }
    return (int)result;
}

/* Takes all connections, and whatever comes, as long as its parent lives. */
static void sink(int listener)
{
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            return;
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            static char into[65536];
            while (recv(fd, into, sizeof into, 0) > 0)
                ;
            _exit(0);
        }
        close(fd);
    }
}

static void listening(const char *ip, int port, struct sockaddr_in *at)
{
    int fd = check(socket(AF_INET, SOCK_STREAM, 0), "socket"), on = 1;
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, ip, &at->sin_addr);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    check(bind(fd, (struct sockaddr *)at, sizeof *at), "bind");
    check(listen(fd, 64), "listen");
    socklen_t len = sizeof *at;
    getsockname(fd, (struct sockaddr *)at, &len);
    /* In a process of its own, which no limit on sending holds up. */
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        sink(fd);
        _exit(0);
    }
    close(fd);
}

static void send_all(int fd, long bytes)
{
    for (long done = 0; done < bytes;) {
        long part = bytes - done < (long)sizeof block ? bytes - done : (long)sizeof block;
        done += check(send(fd, block, (size_t)part, 0), "send");
    }
}

static struct sockaddr_in target;
static long amount;

static void *stream(void *arg)
{
    char name[32];
    int fd = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
    check(connect(fd, (struct sockaddr *)&target, sizeof target), "connect");
    uint64_t from = raw_now();
    send_all(fd, amount);
    snprintf(name, sizeof name, "stream %c", 'a' + (int)(long)arg);
    took(name, from);
    return NULL;
}

static void streams(int n, long bytes)
{
    pthread_t threads[64];
    amount = bytes;
    listening("127.0.0.1", 0, &target);
    uint64_t from = raw_now();
    for (long k = 0; k < n; k++)
        pthread_create(&threads[k], NULL, stream, (void *)k);
    for (long k = 0; k < n; k++)
        pthread_join(threads[k], NULL);
    took("elapsed", from);
}

/* All of a file, by one call; the number of bytes. */
static long whole(const char *path, int how)
{
    int fd = check(open(path, O_RDONLY), path), pair[2] = {-1, -1};
    long done = 0, got = 1;
    if (how == 3) {
        check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
        if (fork() == 0) {
            close(pair[0]);
            while (read(pair[1], block, sizeof block) > 0)
                ;
            _exit(0);
        }
        close(pair[1]);
    }
    while (got > 0) {
        struct iovec vectors[2] = {{block, 4096}, {block + 4096, 4096}};
        switch (how) {
        case 0: got = read(fd, block, sizeof block); break;
        case 1: got = pread(fd, block, sizeof block, done); break;
        case 2: got = readv(fd, vectors, 2); break;
        default: got = sendfile(pair[0], fd, NULL, sizeof block);
        }
        done += check(got, "reading");
    }
    if (how == 3) {
        close(pair[0]);
        wait(NULL);
    }
    close(fd);
    return done;
}

static void files(const char *a, const char *b)
{
    static const char *const ways[] = {"read", "pread", "readv", "sendfile"};
    for (int how = 0; how < 4; how++)
        for (int which = 0; which < 2; which++) {
            char name[32];
            uint64_t from = raw_now();
            long bytes = whole(which ? b : a, how);
            say("%s %s %ld", ways[how], which ? "b" : "a", bytes);
            snprintf(name, sizeof name, "%s %s", ways[how], which ? "b" : "a");
            took(name, from);
        }
}

static void peers(long bytes, int port)
{
    static const struct {
        const char *name, *ip;
        int port;
    } ends[] = {{"a", "127.0.0.1", 0}, {"b", "127.0.0.2", 0}, {"c", "127.0.0.3", 1}, {"d", "127.0.0.4", 0}};
    struct sockaddr_in at[4];
    char name[32];
    for (int k = 0; k < 4; k++)
        listening(ends[k].ip, ends[k].port ? port : 0, &at[k]);
    for (int k = 0; k < 4; k++) {
        int fd = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
        check(connect(fd, (struct sockaddr *)&at[k], sizeof at[k]), "connect");
        uint64_t from = raw_now();
        send_all(fd, bytes);
        snprintf(name, sizeof name, "tcp %s", ends[k].name);
        took(name, from);
        close(fd);
        /* The same peer by IPv6. */
        struct sockaddr_in6 mapped = {.sin6_family = AF_INET6, .sin6_port = at[k].sin_port};
        memcpy(mapped.sin6_addr.s6_addr + 10, "\xff\xff", 2);
        memcpy(mapped.sin6_addr.s6_addr + 12, &at[k].sin_addr, 4);
        fd = socket(AF_INET6, SOCK_STREAM, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&mapped, sizeof mapped) == 0) {
            from = raw_now();
            send_all(fd, bytes);
            snprintf(name, sizeof name, "mapped %s", ends[k].name);
            took(name, from);
        }
        close(fd);
    }
    /* One socket, which is connected to nobody. */
    int udp = check(socket(AF_INET, SOCK_DGRAM, 0), "socket");
    for (int k = 0; k < 4; k++) {
        struct iovec vector = {block, 1000};
        struct msghdr message = {.msg_name = &at[k], .msg_namelen = sizeof at[k], .msg_iov = &vector, .msg_iovlen = 1};
        uint64_t from = raw_now();
        for (long done = 0; done < bytes; done += 2000) {
            check(sendto(udp, block, 1000, 0, (struct sockaddr *)&at[k], sizeof at[k]), "sendto");
            check(sendmsg(udp, &message, 0), "sendmsg");
        }
        snprintf(name, sizeof name, "udp %s", ends[k].name);
        took(name, from);
    }
}

static void read_all(int fd, long bytes)
{
    for (long done = 0; done < bytes; done += 4096)
        check(pread(fd, block, 4096, 0), "pread");
}

static void shared(long bytes, const char *path)
{
    int fd = check(open(path, O_RDONLY), path);
    read_all(fd, 4096);
    uint64_t from = raw_now();
    if (fork() == 0) {
        read_all(fd, bytes);
        _exit(0);
    }
    read_all(fd, bytes);
    wait(NULL);
    took("forked", from);
    int copy = check(dup(fd), "dup"), other = check(dup2(fd, 700), "dup2");
    from = raw_now();
    read_all(copy, bytes);
    read_all(other, bytes);
    took("duplicated", from);
    /* Two of them at once, each of which has its own. */
    int again = check(open(path, O_RDONLY), path);
    from = raw_now();
    if (fork() == 0) {
        read_all(again, bytes);
        _exit(0);
    }
    read_all(fd, bytes);
    wait(NULL);
    took("apart", from);
}

static const char *first, *second;
static int rounds;
static long of_first;

static void *reuser(void *arg)
{
    (void)arg;
    for (int k = 0; k < rounds; k++) {
        /* Every other one is of the file with the limit. */
        int limited = k & 1, fd = check(open(limited ? first : second, O_RDONLY), "open");
        if (k % 3 == 0)
            check(dup2(fd, fd), "dup2");
        check(pread(fd, block, 4096, 0), "pread");
        if (limited)
            __atomic_add_fetch(&of_first, 4096, __ATOMIC_RELAXED);
        close(fd);
    }
    return NULL;
}

static void reuse(int n, const char *a, const char *b)
{
    pthread_t threads[4];
    first = a, second = b, rounds = n;
    uint64_t from = raw_now();
    for (int k = 0; k < 4; k++)
        pthread_create(&threads[k], NULL, reuser, NULL);
    for (int k = 0; k < 4; k++)
        pthread_join(threads[k], NULL);
    say("of the first: %ld", of_first);
    took("elapsed", from);
}

static void handler(int signal)
{
    (void)signal;
}

static void storm(long bytes)
{
    struct sigaction action = {.sa_handler = handler};
    struct itimerval every = {{0, 2000}, {0, 2000}};
    int pair[2];
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
    if (fork() == 0) {
        close(pair[0]);
        while (read(pair[1], block, sizeof block) > 0)
            ;
        _exit(0);
    }
    close(pair[1]);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    uint64_t from = raw_now();
    for (long done = 0; done < bytes;) {
        /* Longer to wait for than there is between two signals. */
        long got = send(pair[0], block, 4096, 0);
        if (got < 0 && errno != EINTR)
            check(got, "send");
        done += got > 0 ? got : 0;
    }
    took("sent", from);
    every = (struct itimerval){0};
    setitimer(ITIMER_REAL, &every, NULL);
    close(pair[0]);
    wait(NULL);
}

static void paths(int calls, const char *a, const char *b)
{
    for (int which = 0; which < 2; which++) {
        uint64_t from = raw_now();
        for (int k = 0; k < calls; k++)
            close(check(open(which ? b : a, O_RDONLY), "open"));
        took(which ? "open b" : "open a", from);
    }
}

/* Reads a file again and again: by then it has not changed for a while. */
static void get_used_to(const char *path)
{
    usleep(150000);
    for (int k = 0; k < 3; k++)
        whole(path, 0);
}

static void renamed(const char *a, const char *b)
{
    char beside[512], from[512], to[512], inside[512];
    int folder_a = (int)(strrchr(a, '/') - a), folder_b = (int)(strrchr(b, '/') - b);
    snprintf(beside, sizeof beside, "%.*s/y", folder_a, a);
    snprintf(from, sizeof from, "%.*s", folder_b, b);
    snprintf(to, sizeof to, "%.*s/b", folder_a, a);
    snprintf(inside, sizeof inside, "%s%s", to, b + folder_b);

    get_used_to(b);
    check(rename(b, beside), "rename");
    uint64_t began = raw_now();
    say("renamed %ld", whole(beside, 0));
    took("renamed", began);
    check(rename(beside, b), "rename back");

    get_used_to(b);
    check(link(b, beside), "link");
    began = raw_now();
    say("linked %ld", whole(beside, 0));
    took("linked", began);
    unlink(beside);

    get_used_to(b);
    check(rename(from, to), "rename a folder");
    usleep(150000);
    began = raw_now();
    say("folder %ld", whole(inside, 0));
    took("folder", began);
    check(rename(to, from), "rename a folder back");
}

static void many(int n)
{
    struct rlimit most = {(rlim_t)n + 100, (rlim_t)n + 100};
    if (setrlimit(RLIMIT_NOFILE, &most) != 0) {
        say("too few descriptors");
        return;
    }
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(9)};
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    long sent = 0;
    for (int k = 0; k < n; k++) {
        int fd = check(socket(AF_INET, SOCK_DGRAM, 0), "socket");
        sent += sendto(fd, block, 100, 0, (struct sockaddr *)&at, sizeof at) == 100;
    }
    say("sent %ld", sent);
}

int main(int argc, char **argv)
{
    const char *what = argc > 2 ? argv[1] : "";
    long n = argc > 2 ? atol(argv[2]) : 0;
    guard(60);
    if (strcmp(what, "streams") == 0)
        streams((int)n, atol(argv[3]));
    else if (strcmp(what, "files") == 0)
        files(argv[3], argv[4]);
    else if (strcmp(what, "peers") == 0)
        peers(n, atoi(argv[3]));
    else if (strcmp(what, "shared") == 0)
        shared(n, argv[3]);
    else if (strcmp(what, "reuse") == 0)
        reuse((int)n, argv[3], argv[4]);
    else if (strcmp(what, "storm") == 0)
        storm(n);
    else if (strcmp(what, "paths") == 0)
        paths((int)n, argv[3], argv[4]);
    else if (strcmp(what, "renamed") == 0)
        renamed(argv[3], argv[4]);
    else if (strcmp(what, "many") == 0)
        many((int)n);
    else
        return 2;
    return 0;
}
