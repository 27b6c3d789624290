/* Rings by hand, without a library: `rings CASE`. Whatever is said here is the same bare
 * and under limits; what is counted is for the test to compare. */
#define _GNU_SOURCE
#include "probe.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SQPOLL (1U << 1)
#define NEED_WAKEUP 1U
#define MULTISHOT 2U

struct ring {
    int fd;
    struct io_uring_params p;
    char *rings;
    struct io_uring_sqe *entries;
    size_t length, entries_length;
    unsigned queued;
};

static unsigned *word(struct ring *r, unsigned at) { return (unsigned *)(r->rings + at); }

static int ring_make(struct ring *r, unsigned entries, unsigned flags)
{
    memset(r, 0, sizeof *r);
    r->p.flags = flags;
    r->fd = (int)syscall(SYS_io_uring_setup, entries, &r->p);
    if (r->fd < 0)
        return -1;
    size_t array = r->p.sq_off.array + r->p.sq_entries * sizeof(unsigned);
    size_t results = r->p.cq_off.cqes + r->p.cq_entries * sizeof(struct io_uring_cqe);
    r->length = array > results ? array : results;
    r->entries_length = r->p.sq_entries * sizeof *r->entries;
    r->rings = mmap(NULL, r->length, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd,
                    IORING_OFF_SQ_RING);
    r->entries = mmap(NULL, r->entries_length, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd,
                      IORING_OFF_SQES);
    return 0;
}

static void ring_end(struct ring *r)
{
    munmap(r->rings, r->length);
    munmap(r->entries, r->entries_length);
    close(r->fd);
}

/* The next free entry. */
static struct io_uring_sqe *next(struct ring *r, int opcode, int fd, const void *at, unsigned len,
                                 uint64_t offset, uint64_t key)
{
    unsigned *tail = word(r, r->p.sq_off.tail);
    unsigned place = *tail & (r->p.sq_entries - 1);
    struct io_uring_sqe *e = &r->entries[place];
    memset(e, 0, sizeof *e);
    e->opcode = (uint8_t)opcode;
    e->fd = fd;
    e->addr = (uintptr_t)at;
    e->len = len;
    e->off = offset;
    e->user_data = key;
    word(r, r->p.sq_off.array)[place] = place;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    r->queued++;
    return e;
}

/* Submits what is queued and waits for so many results. As liburing does where a kernel
 * thread polls: only a thread that sleeps is called. */
static int enter(struct ring *r, unsigned wait)
{
    unsigned n = r->queued, flags = wait ? IORING_ENTER_GETEVENTS : 0;
    r->queued = 0;
    if (r->p.flags & SQPOLL) {
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        if (*word(r, r->p.sq_off.flags) & NEED_WAKEUP)
            flags |= IORING_ENTER_SQ_WAKEUP;
        else if (!wait)
            return (int)n;
    }
    unsigned done = 0;
    do {
        long got = syscall(SYS_io_uring_enter, r->fd, n - done, done < n ? 0 : wait, flags, NULL, 0);
        if (got < 0 && errno != EINTR)
            return -1;
        done += got > 0 ? (unsigned)got : 0;
        if (n == 0 || wait)
            break;
    } while (done < n);
    if (wait && n)
        syscall(SYS_io_uring_enter, r->fd, 0, wait, IORING_ENTER_GETEVENTS, NULL, 0);
    return (int)done;
}

/* Takes a result; false if there is none. */
static int take(struct ring *r, struct io_uring_cqe *to)
{
    unsigned *head = word(r, r->p.cq_off.head);
    if (*head == __atomic_load_n(word(r, r->p.cq_off.tail), __ATOMIC_ACQUIRE))
        return 0;
    struct io_uring_cqe *all = (struct io_uring_cqe *)(r->rings + r->p.cq_off.cqes);
    *to = all[*head & (r->p.cq_entries - 1)];
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return 1;
}

/* A result; its structure ends in an array, which cannot be passed on. */
struct done {
    uint64_t user_data;
    int res;
    unsigned flags;
};

/* Waits for a result. */
static struct done result(struct ring *r)
{
    struct io_uring_cqe done;
    while (!take(r, &done))
        enter(r, 1);
    return (struct done){done.user_data, done.res, done.flags};
}

static char buffer[1 << 20];

static int scratch_file(size_t length)
{
    char name[] = "/tmp/rings-XXXXXX";
    int fd = mkstemp(name);
    unlink(name);
    for (size_t at = 0; at < length; at += sizeof buffer)
        raw_write(fd, buffer, length - at < sizeof buffer ? length - at : sizeof buffer);
    return fd;
}

/* 50 reads that ask for 64 KiB and get 10,000 bytes, nothing, or an error. */
static void shorter(struct ring *r)
{
    int fd = scratch_file(10000);
    long sum = 0;
    for (int i = 0; i < 50; i++) {
        next(r, IORING_OP_READ, i % 5 == 4 ? -1 : fd, buffer, 65536, i % 5 == 3 ? 20000 : 0, 7);
        enter(r, 1);
        struct done done = result(r);
        if (i < 5)
            say("%d", done.res);
        sum += done.res > 0 ? done.res : 0;
    }
    say("sum %ld", sum);
}

/* So many writes in one go. */
static void batch(struct ring *r, unsigned count)
{
    int fd = scratch_file(0);
    uint64_t from = raw_now();
    for (unsigned i = 0; i < count; i++)
        next(r, IORING_OP_WRITE, fd, buffer, 4096, i * 4096, i);
    say("entered %d", enter(r, count));
    long sum = 0;
    for (unsigned i = 0; i < count; i++)
        sum += result(r).res;
    say("sum %ld", sum);
    say("# elapsed %ld", milliseconds(from));
}

/* Of eight that are linked, the fifth fails: the rest is cancelled. */
static void linked(struct ring *r)
{
    int fd = scratch_file(0);
    for (unsigned i = 0; i < 8; i++) {
        struct io_uring_sqe *e =
            next(r, IORING_OP_WRITE, i == 4 ? -1 : fd, buffer, 100000, i * 100000, i);
        e->flags = i < 7 ? IOSQE_IO_LINK : 0;
    }
    enter(r, 8);
    int results[8];
    for (int i = 0; i < 8; i++) {
        struct done done = result(r);
        results[done.user_data & 7] = done.res;
    }
    for (int i = 0; i < 8; i++)
        say("%d", results[i]);
}

/* One receive for all messages, into buffers that the kernel chooses. */
static void many(struct ring *r)
{
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    struct io_uring_sqe *e = next(r, IORING_OP_PROVIDE_BUFFERS, 16, buffer, 4096, 0, 1);
    e->buf_group = 5;
    enter(r, 1);
    say("buffers %d", result(r).res);
    uint64_t from = raw_now();
    e = next(r, IORING_OP_RECV, pair[0], NULL, 0, 0, 2);
    e->ioprio = MULTISHOT;
    e->flags = IOSQE_BUFFER_SELECT;
    e->buf_group = 5;
    enter(r, 0);
    long sum = 0;
    for (int i = 0; i < 50; i++) {
        raw_write(pair[1], buffer, 2000);
        struct done done = result(r);
        if (!(done.flags & IORING_CQE_F_MORE))
            say("%d: it ends with %d", i, done.res);
        sum += done.res;
        unsigned place = done.flags >> IORING_CQE_BUFFER_SHIFT;
        e = next(r, IORING_OP_PROVIDE_BUFFERS, 1, buffer, 4096, place, 1);
        e->buf_group = 5;
        enter(r, 1);
        result(r);
    }
    say("sum %ld", sum);
    say("# elapsed %ld", milliseconds(from));
}

/* A receive that waits for data takes nothing from anybody, and can be cancelled. */
static void cancel(struct ring *r)
{
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    for (int i = 0; i < 20; i++) {
        next(r, IORING_OP_RECV, pair[0], buffer, sizeof buffer, 0, 9);
        enter(r, 0);
        struct io_uring_sqe *e = next(r, IORING_OP_ASYNC_CANCEL, -1, NULL, 0, 0, 10);
        e->addr = 9;
        enter(r, 2);
        int sum = result(r).res;
        sum += result(r).res;
        if (sum != -ECANCELED)
            say("%d: %d", i, sum);
    }
    next(r, IORING_OP_RECV, pair[0], buffer, sizeof buffer, 0, 9);
    enter(r, 0);
    raw_write(pair[1], buffer, 300);
    say("received %d", result(r).res);
}

/* Reads of a pipe that ask for a lot and get little. */
static void pipes(struct ring *r)
{
    int ends[2];
    if (pipe(ends))
        return;
    for (int i = 0; i < 10; i++) {
        next(r, IORING_OP_READ, ends[0], buffer, sizeof buffer, (uint64_t)-1, 3);
        enter(r, 0);
        raw_write(ends[1], buffer, 30);
        if (result(r).res != 30)
            say("%d: not 30", i);
    }
    say("done");
}

/* With one key for all of them, nothing is known again by it. */
static void same_key(struct ring *r)
{
    int fd = scratch_file(0), full = open("/dev/full", O_WRONLY);
    uint64_t from = raw_now();
    long sum = 0;
    for (int i = 0; i < 20; i++) {
        next(r, IORING_OP_WRITE, full, buffer, 100, 0, 0);
        next(r, IORING_OP_WRITE, fd, buffer, 10000, i * 10000, 0);
        enter(r, 2);
        sum += result(r).res + result(r).res;
    }
    say("sum %ld", sum);
    say("# elapsed %ld", milliseconds(from));
}

/* A child uses the ring that it has inherited. */
static void forks(struct ring *r)
{
    int fd = scratch_file(0);
    uint64_t from = raw_now();
    for (int who = 0; who < 2; who++) {
        pid_t child = who ? 0 : fork();
        if (child) {
            int status;
            waitpid(child, &status, 0);
            say("child %d", WEXITSTATUS(status));
            continue;
        }
        for (unsigned i = 0; i < 25; i++) {
            next(r, IORING_OP_WRITE, fd, buffer, 4000, i * 4000, 5);
            enter(r, 1);
            if (result(r).res != 4000)
                _exit(1);
        }
        if (!who)
            _exit(7);
    }
    say("done");
    say("# elapsed %ld", milliseconds(from));
}

/* The end of a ring is the end of what it still does: its receive holds a socket. */
static void closes(struct ring *r)
{
    int pair[2];
    char byte;
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    int file = scratch_file(0);
    next(r, IORING_OP_WRITE, file, buffer, 10, 0, 1);
    next(r, IORING_OP_RECV, pair[0], buffer, 100, 0, 2);
    enter(r, 1);
    say("first %d", result(r).res);
    close(pair[0]);
    ring_end(r);
    say("then %zd", recv(pair[1], &byte, 1, 0));
    struct ring again;
    ring_make(&again, 8, 0);
    say("the same number: %s", again.fd == r->fd ? "yes" : "no");
    next(&again, IORING_OP_WRITE, file, buffer, 1000, 0, 1);
    enter(&again, 1);
    say("again %d", result(&again).res);
    int copy = dup(again.fd);
    close(again.fd);
    again.fd = copy;
    next(&again, IORING_OP_WRITE, file, buffer, 1000, 0, 1);
    enter(&again, 1);
    say("by another number %d", result(&again).res);
    ring_end(&again);
}

/* Files and the ring itself by their places. */
static void places(struct ring *r)
{
    int files[3] = {scratch_file(0), -1, scratch_file(0)}, pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    files[1] = pair[0];
    say("files %ld", syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_FILES, files, 3));
    for (unsigned i = 0; i < 3; i++) {
        next(r, IORING_OP_WRITE, (int)i, buffer, 1000, 0, i)->flags = IOSQE_FIXED_FILE;
        enter(r, 1);
        say("%u: %d", i, result(r).res);
    }
    struct io_uring_rsrc_update at = {.offset = -1U, .data = (unsigned)r->fd};
    say("ring %ld", syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_RING_FDS, &at, 1));
    close(r->fd);
    next(r, IORING_OP_WRITE, 2, buffer, 1000, 0, 4)->flags = IOSQE_FIXED_FILE;
    say("by its place %ld", syscall(SYS_io_uring_enter, at.offset, 1, 1,
                                    IORING_ENTER_GETEVENTS | IORING_ENTER_REGISTERED_RING, 0, 0));
    struct io_uring_cqe done = {0};
    int taken = take(r, &done);
    say("%d %d", taken, done.res);
}

/* A ring that was there before its limit: waits for a line in between. */
static void before(struct ring *r)
{
    char line[10];
    int fd = scratch_file(0);
    next(r, IORING_OP_WRITE, fd, buffer, 1000, 0, 1);
    enter(r, 1);
    say("first %d", result(r).res);
    raw_read(0, line, sizeof line);
    batch(r, 50);
}

/* Queues of the older kind. */
static void queues(void)
{
    aio_context_t context = 0;
    struct iocb all[32], *list[32];
    struct io_event done[32];
    int fd = scratch_file(10000);
    long sum = 0;
    say("setup %ld", syscall(SYS_io_setup, 32, &context));
    uint64_t from = raw_now();
    for (int round = 0; round < 4; round++) {
        memset(all, 0, sizeof all);
        for (unsigned i = 0; i < 32; i++) {
            list[i] = &all[i];
            all[i].aio_fildes = (unsigned)(i == 9 ? -1 : fd);
            all[i].aio_lio_opcode = i % 2 ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
            all[i].aio_buf = (uintptr_t)buffer;
            all[i].aio_nbytes = i % 2 ? 1000 : 5000;
            all[i].aio_offset = i % 2 ? 0 : 8000;
        }
        /* As far as the one that is refused. */
        long n = syscall(SYS_io_submit, context, 32, list);
        long got = syscall(SYS_io_getevents, context, n, 32, done, NULL);
        say("%ld %ld", n, got);
        for (long i = 0; i < got; i++)
            sum += done[i].res;
    }
    /* With nothing in it: what came last is seen. */
    syscall(SYS_io_submit, context, 0, list);
    say("sum %ld", sum);
    say("# elapsed %ld", milliseconds(from));
    syscall(SYS_io_destroy, context);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "none";
    struct ring r;
    guard(50);
    if (!strcmp(name, "queues")) {
        queues();
        return 0;
    }
    int polled = !strncmp(name, "polled", 6);
    if (ring_make(&r, 256, polled ? SQPOLL : 0)) {
        say("no ring: %s", strerrorname_np(errno));
        return 0;
    }
    if (!strcmp(name, "shorter")) shorter(&r);
    if (!strcmp(name, "batch")) batch(&r, 200);
    if (!strcmp(name, "linked")) linked(&r);
    if (!strcmp(name, "many")) many(&r);
    if (!strcmp(name, "cancel")) cancel(&r);
    if (!strcmp(name, "pipes")) pipes(&r);
    if (!strcmp(name, "same-key")) same_key(&r);
    if (!strcmp(name, "forks")) forks(&r);
    if (!strcmp(name, "closes")) closes(&r);
    if (!strcmp(name, "places")) places(&r);
    if (!strcmp(name, "before")) before(&r);
    if (!strcmp(name, "polled-batch")) batch(&r, 100);
    if (strcmp(name, "closes") && strcmp(name, "places"))
        ring_end(&r);
    say("end");
    return 0;
}
