/* Which descriptor is ready, and calls that belong nowhere else. */
#define _GNU_SOURCE
#include "harness.h"
#include <stdio.h>

#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <unistd.h>

int __poll(struct pollfd *, nfds_t, int);

static const struct timespec *const at_once = &(const struct timespec){0, 0};

/* What the kernel takes as pselect6's last argument. */
struct mask {
    const sigset_t *set;
    size_t len;
};

/* Ready in every second operation. `len` is the number of descriptors asked for. */
static long poll_op(struct run *r, unsigned i)
{
    struct pollfd p = {.fd = r->fd[0], .events = POLLIN};
    if (i & 1)
        raw_write(r->fd[1], "x", 1);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, 0, &p, 1, 0) == (long)(i & 1));
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, p.revents == (i & 1 ? POLLIN : 0));
    if (i & 1)
        raw_read(r->fd[0], r->data, 1);
    mix(r, i, (uint64_t)p.revents);
    return 0;
}

static void poll_errors(struct run *r)
{
    struct pollfd bad = {.fd = 9999, .events = POLLIN};
    EXPECT(r, r->test->entry, EFAULT, r->test->go(r, 0, NOWHERE, 1, 0));
    CHECK(r, r->test->go(r, 0, &bad, 1, 0) == 1 && bad.revents == POLLNVAL);
    tally(r, r->test->entry, 1, 0);
    EXPECT(r, r->test->entry, 0, r->test->go(r, 0, &bad, 0, 0));
}

COUNTED(poll, "poll", "poll", in_pipe, poll_op, poll_errors, poll(at, len, 0));
COUNTED(__poll, "__poll", "poll", in_pipe, poll_op, poll_errors, __poll(at, len, 0));
COUNTED(syscall_poll, "syscall", "poll", in_pipe, poll_op, poll_errors, syscall(SYS_poll, at, len, 0));
COUNTED(ppoll, "ppoll", "ppoll", in_pipe, poll_op, poll_errors, ppoll(at, len, at_once, NULL));
COUNTED(syscall_ppoll, "syscall", "ppoll", in_pipe, poll_op, poll_errors,
        syscall(SYS_ppoll, at, len, &(struct timespec){0, 0}, NULL, 8));

static long select_op(struct run *r, unsigned i)
{
    fd_set set;
    FD_ZERO(&set);
    FD_SET(r->fd[0], &set);
    if (i & 1)
        raw_write(r->fd[1], "x", 1);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, r->fd[0] + 1, &set, 0, 0) == (long)(i & 1));
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, !!FD_ISSET(r->fd[0], &set) == (i & 1));
    if (i & 1)
        raw_read(r->fd[0], r->data, 1);
    mix(r, i, 1);
    return 0;
}

static void select_errors(struct run *r)
{
    fd_set set;
    FD_ZERO(&set);
    /* Not open; one beyond all open ones the kernel would not even look at. */
    FD_SET(60, &set);
    EXPECT(r, r->test->entry, EBADF, r->test->go(r, 61, &set, 0, 0));
    EXPECT(r, r->test->entry, EINVAL, r->test->go(r, -1, NULL, 0, 0));
    EXPECT(r, r->test->entry, 0, r->test->go(r, 0, NULL, 0, 0));
}

COUNTED(select, "select", "select", in_pipe, select_op, select_errors,
        select(fd, at, NULL, NULL, &(struct timeval){0, 0}));
COUNTED(syscall_select, "syscall", "select", in_pipe, select_op, select_errors,
        syscall(SYS_select, fd, at, NULL, NULL, &(struct timeval){0, 0}));
COUNTED(pselect, "pselect", "pselect6", in_pipe, select_op, select_errors,
        pselect(fd, at, NULL, NULL, at_once, NULL));
COUNTED(syscall_pselect6, "syscall", "pselect6", in_pipe, select_op, select_errors,
        syscall(SYS_pselect6, fd, at, NULL, NULL, &(struct timespec){0, 0}, &(struct mask){NULL, 8}));

/* fd[2] watches the pipe. */
static void watched(struct run *r)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 77};
    in_pipe(r);
    r->fd[2] = (int)RAW1(SYS_epoll_create1, 0);
    CHECK(r, RAW4(SYS_epoll_ctl, r->fd[2], EPOLL_CTL_ADD, r->fd[0], &event) == 0);
}

static long epoll_op(struct run *r, unsigned i)
{
    struct epoll_event event = {0};
    if (i & 1)
        raw_write(r->fd[1], "x", 1);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, r->fd[2], &event, 1, 0) == (long)(i & 1));
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, event.data.u32 == (i & 1 ? 77u : 0u));
    if (i & 1)
        raw_read(r->fd[0], r->data, 1);
    mix(r, i, event.events);
    return 0;
}

static void epoll_errors(struct run *r)
{
    mover *go = r->test->go;
    EXPECT(r, r->test->entry, EBADF, go(r, -1, r->data, 1, 0));
    EXPECT(r, r->test->entry, EINVAL, go(r, r->fd[0], r->data, 1, 0));
    EXPECT(r, r->test->entry, EINVAL, go(r, r->fd[2], r->data, 0, 0));
    raw_write(r->fd[1], "x", 1);
    EXPECT(r, r->test->entry, EFAULT, go(r, r->fd[2], NOWHERE, 1, 0));
}

COUNTED(epoll_wait, "epoll_wait", "epoll_wait", watched, epoll_op, epoll_errors, epoll_wait(fd, at, (int)len, 0));
COUNTED(syscall_epoll_wait, "syscall", "epoll_wait", watched, epoll_op, epoll_errors,
        syscall(SYS_epoll_wait, fd, at, len, 0));
COUNTED(epoll_pwait, "epoll_pwait", "epoll_pwait", watched, epoll_op, epoll_errors,
        epoll_pwait(fd, at, (int)len, 0, NULL));
COUNTED(syscall_epoll_pwait, "syscall", "epoll_pwait", watched, epoll_op, epoll_errors,
        syscall(SYS_epoll_pwait, fd, at, len, 0, NULL, 8));
COUNTED(epoll_pwait2, "epoll_pwait2", "epoll_pwait2", watched, epoll_op, epoll_errors,
        epoll_pwait2(fd, at, (int)len, at_once, NULL));
COUNTED(syscall_epoll_pwait2, "syscall", "epoll_pwait2", watched, epoll_op, epoll_errors,
        syscall(SYS_epoll_pwait2, fd, at, len, at_once, NULL, 8));

static long epoll_ctl_op(struct run *r, unsigned i)
{
    struct epoll_event event = {.events = EPOLLIN | (i & 1 ? EPOLLPRI : 0)};
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, r->fd[2], &event, EPOLL_CTL_MOD, r->fd[0]) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    mix(r, i, 1);
    return 0;
}

static void epoll_ctl_errors(struct run *r)
{
    mover *go = r->test->go;
    EXPECT(r, "epoll_ctl", EBADF, go(r, -1, r->data, EPOLL_CTL_MOD, r->fd[0]));
    EXPECT(r, "epoll_ctl", EEXIST, go(r, r->fd[2], r->data, EPOLL_CTL_ADD, r->fd[0]));
    EXPECT(r, "epoll_ctl", ENOENT, go(r, r->fd[2], r->data, EPOLL_CTL_MOD, r->fd[1]));
    EXPECT(r, "epoll_ctl", EFAULT, go(r, r->fd[2], NOWHERE, EPOLL_CTL_MOD, r->fd[0]));
}

COUNTED(epoll_ctl, "epoll_ctl", "epoll_ctl", watched, epoll_ctl_op, epoll_ctl_errors,
        epoll_ctl(fd, (int)len, (int)pos, at));
COUNTED(syscall_epoll_ctl, "syscall", "epoll_ctl", watched, epoll_ctl_op, epoll_ctl_errors,
        syscall(SYS_epoll_ctl, fd, len, pos, at));

static long getppid_op(struct run *r, unsigned i)
{
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, 0, NULL, 0, 0) == RAW0(SYS_getppid));
    CHECK(r, errno == ERRNO_CANARY);
    mix(r, i, 1);
    return 0;
}

COUNTED(getppid, "getppid", "getppid", NULL, getppid_op, NULL, getppid());
COUNTED(syscall_getppid, "syscall", "getppid", NULL, getppid_op, NULL, syscall(SYS_getppid));

/* A number that no table has goes through unchanged, with all its arguments. */
static void unknown_errors(struct run *r)
{
    EXPECT(r, NULL, ENOSYS, syscall(1000, 1, 2, 3, 4, 5, 6));
    CHECK(r, syscall(SYS_gettid) == RAW0(SYS_gettid));
    long at = syscall(SYS_mmap, NULL, 4096, PROT_READ, MAP_PRIVATE, r->fd[0], 4096);
    CHECK(r, at > 0 && memcmp((void *)at, r->want, 16) == 0);
    EXPECT(r, NULL, EINVAL, syscall(SYS_mmap, NULL, 4096, PROT_READ, MAP_PRIVATE, r->fd[0], 1));
}

static void two_pages(struct run *r)
{
    r->fd[0] = raw_file(r, "pages", 8192);
    pattern(r->want, 16, 0);
}

COUNTED(syscall_unknown, "syscall", "getppid", two_pages, getppid_op, unknown_errors, syscall(SYS_getppid));

/* Looked at, because a program may take new system calls away from itself by it;
 * passed on, and not counted. The call that is counted comes after it. */
static long prctl_op(struct run *r, unsigned i)
{
    char name[16] = "conformance-0";
    name[12] = (char)('a' + i % 26);
    errno = ERRNO_CANARY;
    CHECK(r, prctl(PR_SET_NAME, name) == 0);
    CHECK(r, RAW2(SYS_prctl, PR_GET_NAME, r->data) == 0 && strcmp((char *)r->data, name) == 0);
    CHECK(r, prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 1);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, getppid() == RAW0(SYS_getppid));
    mix_bytes(r, i, r->data, 13);
    return 0;
}

static void prctl_errors(struct run *r)
{
    EXPECT(r, NULL, EINVAL, prctl(-1, 0, 0, 0, 0));
    EXPECT(r, NULL, EFAULT, prctl(PR_SET_NAME, NOWHERE));
    EXPECT(r, NULL, EFAULT, prctl(PR_SET_SECCOMP, 2, NOWHERE));
}

CASE(prctl, .symbol = "prctl", .entry = "getppid", .ops = 24, .op = prctl_op, .errors = prctl_errors);

typedef void *mapping(void *, size_t, int, int, int, off_t);

/* Looked at, because what is read in a mapped file makes no call; passed on, and not counted. */
static long map_with(struct run *r, unsigned i, mapping *map)
{
    errno = ERRNO_CANARY;
    unsigned char *file = map(NULL, 4096, PROT_READ, MAP_SHARED, r->fd[0], 4096);
    CHECK(r, file != MAP_FAILED && memcmp(file, r->want, 16) == 0);
    unsigned char *memory = map(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(r, memory != MAP_FAILED && memory[8191] == 0);
    CHECK(r, map(memory, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED, r->fd[0], 0) == (void *)memory);
    CHECK(r, memcmp(memory, r->want, 16) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    mix_bytes(r, i, file, 64);
    CHECK(r, RAW2(SYS_munmap, file, 4096) == 0 && RAW2(SYS_munmap, memory, 8192) == 0);
    CHECK(r, getppid() == RAW0(SYS_getppid));
    return 0;
}

static long mmap_op(struct run *r, unsigned i) { return map_with(r, i, mmap); }
static long mmap64_op(struct run *r, unsigned i) { return map_with(r, i, mmap64); }

static void map_errors(struct run *r)
{
    EXPECT(r, NULL, EBADF, mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 1000000, 0));
    EXPECT(r, NULL, EINVAL, mmap(NULL, 0, PROT_READ, MAP_PRIVATE, r->fd[0], 0));
    EXPECT(r, NULL, EINVAL, mmap64(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 1));
}

CASE(mmap, .symbol = "mmap", .entry = "getppid", .ops = 24, .setup = two_pages, .op = mmap_op, .errors = map_errors);
CASE(mmap64, .symbol = "mmap64", .entry = "getppid", .ops = 24, .setup = two_pages, .op = mmap64_op);

typedef FILE *opening(const char *, const char *);

/* Passed on with another mode, which lets stdio map nothing. */
static long open_with(struct run *r, unsigned i, opening *open_file)
{
    char path[64];
    unsigned char first[16];
    snprintf(path, sizeof path, "/proc/self/fd/%d", r->fd[0]);
    FILE *file = open_file(path, i % 2 ? "rm" : "re");
    CHECK(r, file != NULL);
    CHECK(r, fread(first, 1, 16, file) == 16 && memcmp(first, r->want, 16) == 0);
    CHECK(r, fclose(file) == 0);
    CHECK(r, open_file("/nowhere/at/all", "rm") == NULL && errno == ENOENT);
    CHECK(r, open_file(path, "m") == NULL && errno == EINVAL);
    mix_bytes(r, i, first, 16);
    CHECK(r, getppid() == RAW0(SYS_getppid));
    return 0;
}

static long fopen_op(struct run *r, unsigned i) { return open_with(r, i, fopen); }
static long fopen64_op(struct run *r, unsigned i) { return open_with(r, i, fopen64); }

CASE(fopen, .symbol = "fopen", .entry = "getppid", .ops = 24, .setup = two_pages, .op = fopen_op);
CASE(fopen64, .symbol = "fopen64", .entry = "getppid", .ops = 24, .setup = two_pages, .op = fopen64_op);

/* number is the context; one read of a file per operation. */
static void aio_context(struct run *r)
{
    aio_context_t context = 0;
    r->fd[0] = raw_file(r, "source", 4096);
    if (RAW2(SYS_io_setup, 4, &context) == -ENOSYS)
        r->skip = "this kernel has no asynchronous I/O";
    r->number = context;
}

static long io_submit_op(struct run *r, unsigned i)
{
    struct iocb cb = {.aio_lio_opcode = IOCB_CMD_PREAD,
                      .aio_fildes = (uint32_t)r->fd[0],
                      .aio_buf = (uint64_t)r->data,
                      .aio_nbytes = 64,
                      .aio_offset = i};
    struct iocb *list[1] = {&cb};
    struct io_event event;
    pattern(r->want, 256, 0);
    errno = ERRNO_CANARY;
    CHECK(r, syscall(SYS_io_submit, r->number, 1, list) == 1);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, RAW5(SYS_io_getevents, r->number, 1, 1, &event, 0) == 1 && event.res == 64);
    CHECK(r, memcmp(r->data, r->want + i, 64) == 0);
    mix_bytes(r, i, r->data, 64);
    return 0;
}

static void io_submit_errors(struct run *r)
{
    EXPECT(r, "io_submit", EINVAL, syscall(SYS_io_submit, 0, 1, r->data));
    EXPECT(r, "io_submit", EFAULT, syscall(SYS_io_submit, r->number, 1, NOWHERE));
    EXPECT(r, "io_submit", 0, syscall(SYS_io_submit, r->number, 0, NULL));
}

static void aio_finish(struct run *r)
{
    RAW1(SYS_io_destroy, r->number);
    close_all(r);
}

CASE(syscall_io_submit, .symbol = "syscall", .entry = "io_submit", .ops = 24, .setup = aio_context,
     .op = io_submit_op, .errors = io_submit_errors, .finish = aio_finish);

/* A program's own instructions that enter rings are found, unless their number is known
 * when they are executed only. */
static volatile long setup_unseen = SYS_io_uring_setup, register_unseen = SYS_io_uring_register;

/* The two rings and the entries of an io_uring with room for four. */
struct ring {
    unsigned char *rings;
    struct io_uring_sqe *entries;
    struct io_uring_params params;
};

static void ring(struct run *r)
{
    static __thread struct ring ring;
    memset(&ring, 0, sizeof ring);
    r->fd[0] = (int)RAW2(setup_unseen, 4, &ring.params);
    if (r->fd[0] < 0) {
        r->skip = "this kernel does not let us have an io_uring";
        return;
    }
    CHECK(r, ring.params.features & IORING_FEAT_SINGLE_MMAP);
    ring.rings = (void *)RAW6(SYS_mmap, 0, 4096 * 4, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd[0],
                              IORING_OFF_SQ_RING);
    ring.entries = (void *)RAW6(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd[0],
                                IORING_OFF_SQES);
    r->extra = &ring;
}

static long ring_op(struct run *r, unsigned i)
{
    struct ring *ring = r->extra;
    const struct io_sqring_offsets *sq = &ring->params.sq_off;
    const struct io_cqring_offsets *cq = &ring->params.cq_off;
    unsigned *tail = (unsigned *)(ring->rings + sq->tail);
    unsigned *head = (unsigned *)(ring->rings + cq->head);
    unsigned slot = *tail & *(unsigned *)(ring->rings + sq->ring_mask);
    memset(&ring->entries[slot], 0, sizeof *ring->entries);
    ring->entries[slot].opcode = IORING_OP_NOP;
    ring->entries[slot].user_data = 1000 + i;
    ((unsigned *)(ring->rings + sq->array))[slot] = slot;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    errno = ERRNO_CANARY;
    CHECK(r, syscall(SYS_io_uring_enter, r->fd[0], 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, __atomic_load_n((unsigned *)(ring->rings + cq->tail), __ATOMIC_ACQUIRE) == *head + 1);
    const struct io_uring_cqe *done = (struct io_uring_cqe *)(ring->rings + cq->cqes);
    unsigned at = *head & *(unsigned *)(ring->rings + cq->ring_mask);
    CHECK(r, done[at].user_data == 1000 + i && done[at].res == 0);
    mix(r, i, done[at].user_data);
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return 0;
}

static void ring_errors(struct run *r)
{
    EXPECT(r, "io_uring_enter", EBADF, syscall(SYS_io_uring_enter, -1, 0, 0, 0, NULL, 0));
    EXPECT(r, "io_uring_enter", EOPNOTSUPP, syscall(SYS_io_uring_enter, 0, 0, 0, 0, NULL, 0));
    EXPECT(r, "io_uring_enter", 0, syscall(SYS_io_uring_enter, r->fd[0], 0, 0, 0, NULL, 0));
}

CASE(syscall_io_uring_enter, .symbol = "syscall", .entry = "io_uring_enter", .ops = 24, .setup = ring,
     .op = ring_op, .errors = ring_errors, .finish = close_all);

static long ring_setup_op(struct run *r, unsigned i)
{
    struct io_uring_params params = {0};
    errno = ERRNO_CANARY;
    long fd = syscall(SYS_io_uring_setup, 4, &params);
    CHECK(r, fd >= 0 && errno == ERRNO_CANARY && params.sq_entries == 4);
    mix(r, i, params.cq_entries);
    RAW1(SYS_close, fd);
    return 0;
}

static void ring_setup_errors(struct run *r)
{
    struct io_uring_params params = {0};
    EXPECT(r, "io_uring_setup", EINVAL, syscall(SYS_io_uring_setup, 0, &params));
    EXPECT(r, "io_uring_setup", EFAULT, syscall(SYS_io_uring_setup, 4, NOWHERE));
}

CASE(syscall_io_uring_setup, .symbol = "syscall", .entry = "io_uring_setup", .ops = 24, .setup = ring,
     .op = ring_setup_op, .errors = ring_setup_errors, .finish = close_all);

/* A descriptor for events is registered, and taken away again unseen. */
static long ring_register_op(struct run *r, unsigned i)
{
    errno = ERRNO_CANARY;
    CHECK(r, syscall(SYS_io_uring_register, r->fd[0], IORING_REGISTER_EVENTFD, &r->fd[1], 1) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, RAW4(register_unseen, r->fd[0], IORING_UNREGISTER_EVENTFD, 0, 0) == 0);
    mix(r, i, 1);
    return 0;
}

static void ring_and_events(struct run *r)
{
    ring(r);
    if (!r->skip)
        r->fd[1] = (int)RAW2(SYS_eventfd2, 0, 0);
}

static void ring_register_errors(struct run *r)
{
    EXPECT(r, "io_uring_register", EBADF, syscall(SYS_io_uring_register, 9999, IORING_REGISTER_EVENTFD, &r->fd[1], 1));
    EXPECT(r, "io_uring_register", EINVAL, syscall(SYS_io_uring_register, r->fd[0], IORING_REGISTER_EVENTFD, &r->fd[1], 2));
}

CASE(syscall_io_uring_register, .symbol = "syscall", .entry = "io_uring_register", .ops = 24,
     .setup = ring_and_events, .op = ring_register_op, .errors = ring_register_errors, .finish = close_all);
