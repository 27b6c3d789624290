/* Many connections to one server, in one thread: `crowd PORT PROTOCOL CONNECTIONS RATE
 * MS WHAT GREEDY`. RATE requests per second in all, evenly spread over the connections
 * and timed from when they were due, or 0: each connection asks again at once. GREEDY, if
 * not empty, is asked for over one more connection, again and again, from half a second
 * before on, and not timed.
 * PROTOCOL is http (WHAT is a path) or redis (WHAT is a key). Prints one line of JSON;
 * times in ns. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct connection {
    int fd, asked, head;
    long left;
    uint64_t due, next, bytes;
    char line[512];
    int length;
};

static const char *protocol;
static char question[2][512];
static uint64_t *times;
static long answers, failures, most = 1 << 20;
static char sink[1 << 18];
static int set;

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void make_question(char *to, const char *what)
{
    if (strcmp(protocol, "redis") == 0)
        snprintf(to, 512, "*2\r\n$3\r\nGET\r\n$%zu\r\n%s\r\n", strlen(what), what);
    else
        snprintf(to, 512, "GET /%s HTTP/1.1\r\nHost: x\r\n\r\n", what);
}

static int open_one(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (void *)&at, sizeof at) != 0)
        return -1;
    return fd;
}

static void ask(struct connection *c, int greedy)
{
    size_t len = strlen(question[greedy]);
    c->head = 1;
    c->length = 0;
    c->asked = 1;
    if (send(c->fd, question[greedy], len, MSG_NOSIGNAL) != (ssize_t)len)
        failures++;
}

/* The head of an answer, byte by byte: how long the rest is; -1 for not yet. */
static long head_of(struct connection *c, char byte)
{
    if (c->length + 1 < (int)sizeof c->line)
        c->line[c->length++] = byte;
    c->line[c->length] = 0;
    if (strcmp(protocol, "redis") == 0)
        return byte == '\n' ? atol(c->line + 1) + 2 : -1;
    if (c->length < 4 || memcmp(c->line + c->length - 4, "\r\n\r\n", 4) != 0)
        return -1;
    char *at = strcasestr(c->line, "content-length:");
    return at ? atol(at + 15) : 0;
}

/* Reads what is there; true when an answer is complete. */
static int answered(struct connection *c)
{
    ssize_t n = recv(c->fd, sink, sizeof sink, MSG_DONTWAIT);
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN) {
            failures++;
            epoll_ctl(set, EPOLL_CTL_DEL, c->fd, 0);
        }
        return 0;
    }
    c->bytes += (uint64_t)n;
    for (ssize_t k = 0; k < n;) {
        if (c->head) {
            long rest = head_of(c, sink[k++]);
            if (rest < 0)
                continue;
            c->head = 0;
            c->left = rest;
        }
        ssize_t part = n - k < c->left ? n - k : (ssize_t)c->left;
        c->left -= part;
        k += part;
        if (c->left == 0)
            return 1;
    }
    return 0;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc < 8)
        return 2;
    int port = atoi(argv[1]), count = atoi(argv[3]), is_greedy = argv[7][0] != 0;
    long rate = atol(argv[4]);
    uint64_t span = (uint64_t)atol(argv[5]) * 1000000u;
    struct rlimit files;
    protocol = argv[2];
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    make_question(question[0], argv[6]);
    make_question(question[1], argv[7]);
    struct connection *all = calloc((size_t)count + 1, sizeof *all);
    times = malloc((size_t)most * sizeof *times);
    set = epoll_create1(EPOLL_CLOEXEC);
    for (int k = 0; k < count + is_greedy; k++) {
        all[k].fd = open_one(port);
        if (all[k].fd < 0) {
            perror("connect");
            return 1;
        }
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)k};
        epoll_ctl(set, EPOLL_CTL_ADD, all[k].fd, &event);
    }
    /* The server accepts so many in a while, and what the greedy one asks for may take it
     * another, once: with and without that one, latencies are of what comes after. */
    if (is_greedy)
        ask(&all[count], 1);
    for (uint64_t until = now() + 500000000u; rate && now() < until;) {
        struct timespec pause = {0, 1000000};
        if (is_greedy && answered(&all[count]))
            ask(&all[count], 1);
        nanosleep(&pause, 0);
    }
    all[count].bytes = 0;
    uint64_t from = now(), each = rate ? (uint64_t)count * 1000000000u / (uint64_t)rate : 0;
    for (int k = 0; k < count; k++)
        all[k].next = from + (rate ? each * (uint64_t)k / (uint64_t)count : 0);
    int turn = 0;
    uint64_t t = from;
    while (t < from + span) {
        /* Whoever is due asks; in turn, as they are due in turn. */
        uint64_t wait = 1000000;
        for (int k = 0; k < count; k++) {
            struct connection *c = &all[turn];
            if (c->next > t && !c->asked) {
                wait = c->next - t;
                break;
            }
            if (!c->asked) {
                c->due = rate ? c->next : t;
                c->next += each;
                ask(c, 0);
            } else if (!rate) {
                break;
            }
            turn = (turn + 1) % count;
        }
        struct epoll_event events[256];
        struct timespec span_of_wait = {0, (long)(wait < 1000000 ? wait : 1000000)};
        int n = epoll_pwait2(set, events, 256, &span_of_wait, 0);
        t = now();
        for (int k = 0; k < n; k++) {
            int who = (int)events[k].data.u32;
            struct connection *c = &all[who];
            if (!answered(c))
                continue;
            c->asked = 0;
            if (who == count) {
                ask(c, 1);
                continue;
            }
            if (answers < most)
                times[answers] = t - c->due;
            answers++;
            if (!rate) {
                c->due = t;
                ask(c, 0);
            }
        }
    }
    uint64_t took = now() - from;
    long timed = answers < most ? answers : most;
    qsort(times, (size_t)timed, sizeof *times, by_value);
    uint64_t late = 0;
    for (int k = 0; k < count && rate; k++)
        late += all[k].asked && t - all[k].due > 1000000000u;
#define PART(p) (timed ? times[(size_t)((double)(timed - 1) * (p))] : 0)
    printf("{\"answers\":%ld,\"failures\":%ld,\"unanswered\":%lu,\"ns\":%lu,\"p50\":%lu,\"p99\":%lu,"
           "\"max\":%lu,\"greedy_bytes\":%lu}\n",
           answers, failures, late, took, PART(0.5), PART(0.99), PART(1.0),
           is_greedy ? all[count].bytes : 0);
    return 0;
}
