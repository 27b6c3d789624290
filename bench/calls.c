/* What one call costs.
 *
 *   calls OPERATION THREADS FIRST_CPU FILE
 *
 * For each line `N BATCHES` on standard input, every thread makes BATCHES batches
 * of N operations, all threads at the same time, and one line of JSON says what
 * each batch took, in ns: [wall, CPU of the thread]. Thread i runs on the CPU
 * FIRST_CPU + i, modulo their number. A single thread is the main thread of a
 * process without others, as libc takes a shorter way there. */
#include "raw.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { MOST_BATCHES = 64, FILE_LEN = 1 << 20, DATAGRAM = 1448 };

struct context {
    int fd, socket;
    off_t at;
    FILE *file;
    char *bytes;
    struct iovec vectors[4];
    struct msghdr message;
};

typedef void loop(struct context *c, unsigned long n);

static volatile long sink;

#define LOOP(name, ...)                                              \
    static void name(struct context *c, unsigned long n)             \
    {                                                                \
        long got = 0;                                                \
        (void)c;                                                     \
        for (unsigned long i = 0; i < n; i++) { __VA_ARGS__; }       \
        sink = got;                                                  \
    }

/* The loop itself, whose cost is taken off all others. */
LOOP(nothing, __asm__ volatile("" ::: "memory"))
/* A call that no limit can be on. */
LOOP(own_parent, got += getppid())
/* The emptiest call that is counted: the kernel looks at a number and refuses. */
LOOP(empty, got += close(-1))
LOOP(read_1, got += read(c->fd, c->bytes, 1))
LOOP(pread_4k, got += pread(c->fd, c->bytes, 4096, c->at); c->at = (c->at + 4096) & (FILE_LEN - 1))
LOOP(write_4k, got += write(c->fd, c->bytes, 4096))
LOOP(readv_4k, got += readv(c->fd, c->vectors, 4))
LOOP(writev_4k, got += writev(c->fd, c->vectors, 4))
LOOP(send_1448, got += send(c->socket, c->bytes, DATAGRAM, 0))
LOOP(sendmsg_1448, got += sendmsg(c->socket, &c->message, 0))
LOOP(pwrite_4k, got += pwrite(c->fd, c->bytes, 4096, c->at); c->at = (c->at + 4096) & (FILE_LEN - 1))
LOOP(pread_64k, got += pread(c->fd, c->bytes, 65536, c->at); c->at = (c->at + 65536) & (FILE_LEN - 1))
/* Two calls: what is sent is there when it is asked for. */
LOOP(tcp_1448, got += send(c->socket, c->bytes, DATAGRAM, 0); got += recv(c->fd, c->bytes, DATAGRAM, 0))
/* The floor of every site that is replaced: the same call where it stands, and by a jump to
 * another page and back that decides nothing. */
long parent_here(void), parent_there(void);
__asm__(".pushsection .text.floor,\"ax\",@progbits\n"
        ".balign 64\nparent_here: mov $110, %eax\nsyscall\nret\n"
        ".balign 64\nparent_there: mov $110, %eax\njmp 1f\n2: ret\n"
        ".skip 4096, 0xcc\n1: syscall\njmp 2b\n"
        ".popsection\n");
LOOP(here, got += parent_here())
LOOP(there, got += parent_there())
/* 64 operations of stdio make one system call. */
LOOP(fread_64, if (fread(c->bytes, 1, 64, c->file) != 64) rewind(c->file))
LOOP(fwrite_64, got += (long)fwrite(c->bytes, 1, 64, c->file))

static const struct operation {
    const char *name, *path; /* an empty path: the file of the last argument */
    int flags;
    loop *run;
} operations[] = {
    {"nothing", NULL, 0, nothing},
    {"getppid", NULL, 0, own_parent},
    {"empty", NULL, 0, empty},
    {"read-1", "/dev/zero", O_RDONLY, read_1},
    {"pread-4k", "", O_RDONLY, pread_4k},
    {"write-4k", "/dev/null", O_WRONLY, write_4k},
    {"readv-4k", "/dev/zero", O_RDONLY, readv_4k},
    {"writev-4k", "/dev/null", O_WRONLY, writev_4k},
    {"pwrite-4k", "", O_RDWR, pwrite_4k},
    {"pread-64k", "", O_RDONLY, pread_64k},
    {"tcp-1448", NULL, 0, tcp_1448},
    {"here", NULL, 0, here},
    {"there", NULL, 0, there},
    {"send-1448", NULL, 0, send_1448},
    {"sendmsg-1448", NULL, 0, sendmsg_1448},
    {"fread-64", "", O_RDONLY, fread_64},
    {"fwrite-64", "/dev/null", O_WRONLY, fwrite_64},
};

static const struct operation *operation;
static const char *cached_file;
static unsigned threads, first_cpu;
static unsigned long count, batches;
static pthread_barrier_t barrier;
static uint64_t (*results)[MOST_BATCHES][2];

/* Both ends of a connection are ours. */
static void set_up_connection(struct context *c)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof to;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&to, len) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&to, &len))
        fail("listener");
    c->socket = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->socket, (struct sockaddr *)&to, len)) fail("connect");
    c->fd = accept(listener, NULL, NULL);
    if (c->fd < 0 || setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one)) fail("accept");
    close(listener);
}

static void set_up(struct context *c)
{
    memset(c, 0, sizeof *c);
    c->bytes = aligned_alloc(4096, 65536);
    if (!c->bytes) fail("memory");
    memset(c->bytes, 'x', 65536);
    for (int i = 0; i < 4; i++) c->vectors[i] = (struct iovec){c->bytes + 1024 * i, 1024};
    c->message = (struct msghdr){.msg_iov = &c->vectors[0], .msg_iovlen = 1};
    c->fd = c->socket = -1;
    if (operation->path) {
        const char *path = operation->path[0] ? operation->path : cached_file;
        c->fd = open(path, operation->flags);
        if (c->fd < 0) fail(path);
        if (strncmp(operation->name, "f", 1) == 0) {
            c->file = fdopen(c->fd, operation->flags == O_RDONLY ? "r" : "w");
            if (!c->file || setvbuf(c->file, NULL, _IOFBF, 4096)) fail("stdio");
        }
    }
    if (strncmp(operation->name, "tcp", 3) == 0) set_up_connection(c);
    if (strncmp(operation->name, "send", 4) == 0) {
        /* To a socket that nobody reads: once its queue is full, all datagrams
         * take the same way, and are dropped at its end. */
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof to;
        int receiver = socket(AF_INET, SOCK_DGRAM, 0);
        if (bind(receiver, (struct sockaddr *)&to, sizeof to) ||
            getsockname(receiver, (struct sockaddr *)&to, &len))
            fail("receiver");
        c->socket = socket(AF_INET, SOCK_DGRAM, 0);
        if (connect(c->socket, (struct sockaddr *)&to, sizeof to)) fail("connect");
        c->vectors[0].iov_len = DATAGRAM;
        for (int i = 0; i < 4096; i++) send(c->socket, c->bytes, DATAGRAM, 0);
    }
}

static void measure(struct context *c, unsigned thread)
{
    operation->run(c, count / 8 + 1);
    for (unsigned long b = 0; b < batches; b++) {
        uint64_t cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID), wall = now_ns();
        operation->run(c, count);
        results[thread][b][0] = now_ns() - wall;
        results[thread][b][1] = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
    }
}

static void *worker(void *arg)
{
    unsigned thread = (unsigned)(uintptr_t)arg;
    struct context c;
    pin_to((first_cpu + thread) % (unsigned)sysconf(_SC_NPROCESSORS_CONF));
    set_up(&c);
    for (;;) {
        pthread_barrier_wait(&barrier);
        measure(&c, thread);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    end_with_parent();
    if (argc != 5) return 2;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        if (strcmp(operations[i].name, argv[1]) == 0) operation = &operations[i];
    threads = (unsigned)atoi(argv[2]);
    first_cpu = (unsigned)atoi(argv[3]);
    cached_file = argv[4];
    if (!operation || threads < 1) return 2;
    results = calloc(threads, sizeof *results);
    struct context c;
    if (threads == 1) {
        pin_to(first_cpu % (unsigned)sysconf(_SC_NPROCESSORS_CONF));
        set_up(&c);
    } else {
        pthread_barrier_init(&barrier, NULL, threads + 1);
        for (unsigned t = 0; t < threads; t++) {
            pthread_t id;
            if (pthread_create(&id, NULL, worker, (void *)(uintptr_t)t)) fail("thread");
        }
    }
    char line[64];
    while (read_line(line, sizeof line)) {
        if (sscanf(line, "%lu %lu", &count, &batches) != 2 || batches > MOST_BATCHES) return 2;
        if (threads == 1) {
            measure(&c, 0);
        } else {
            pthread_barrier_wait(&barrier);
            pthread_barrier_wait(&barrier);
        }
        say("[");
        for (unsigned t = 0; t < threads; t++)
            for (unsigned long b = 0; b < batches; b++)
                say("%s[%lu,%lu]", t + b ? "," : "", results[t][b][0], results[t][b][1]);
        say("]\n");
        flush_said();
    }
    _exit(0);
}
