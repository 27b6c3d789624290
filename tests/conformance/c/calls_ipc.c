/* Message queues, POSIX and System V. The bytes of a message count, not its header. */
#define _GNU_SOURCE
#include "harness.h"

#include <mqueue.h>
#include <stdio.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <unistd.h>

#define MESSAGE 4096u

/* fd[0] is the queue. It has no name any more when the case runs. */
static void queue(struct run *r)
{
    char name[64];
    struct mq_attr form = {.mq_maxmsg = 2, .mq_msgsize = MESSAGE};
    snprintf(name, sizeof name, "conformance-%d-%u", (int)RAW0(SYS_getpid), r->thread);
    r->fd[0] = (int)RAW4(SYS_mq_open, name, O_RDWR | O_CREAT | O_EXCL, 0600, &form);
    if (r->fd[0] == -ENOSYS)
        r->skip = "this kernel has no POSIX message queues";
    else
        CHECK(r, r->fd[0] >= 0);
    RAW1(SYS_mq_unlink, name);
}

static long send_op(struct run *r, unsigned i)
{
    unsigned priority = 0;
    pattern(r->want, MESSAGE, i);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, r->fd[0], r->want, MESSAGE, 3) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, RAW5(SYS_mq_timedreceive, r->fd[0], r->data, MESSAGE, &priority, 0) == MESSAGE);
    CHECK(r, priority == 3);
    CHECK(r, memcmp(r->data, r->want, MESSAGE) == 0);
    mix_bytes(r, i, r->data, MESSAGE);
    return MESSAGE;
}

static long receive_op(struct run *r, unsigned i)
{
    pattern(r->want, MESSAGE, i);
    CHECK(r, RAW5(SYS_mq_timedsend, r->fd[0], r->want, MESSAGE, 5, 0) == 0);
    memset(r->data, 0, MESSAGE);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, r->fd[0], r->data, MESSAGE, 5) == MESSAGE);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, memcmp(r->data, r->want, MESSAGE) == 0);
    mix_bytes(r, i, r->data, MESSAGE);
    return MESSAGE;
}

static const struct timespec *const past = &(const struct timespec){1, 0};

static void queue_errors(struct run *r)
{
    mover *go = r->test->go;
    const char *entry = r->test->entry;
    int sends = r->test->op == send_op;
    EXPECT(r, entry, EBADF, go(r, -1, r->data, 16, 0));
    EXPECT(r, entry, EBADF, go(r, 0, r->data, 16, 0));
    /* Longer than a message may be; shorter than a message may become. */
    EXPECT(r, entry, EMSGSIZE, go(r, r->fd[0], r->data, sends ? MESSAGE + 1 : 16, 0));
    EXPECT(r, entry, sends ? EFAULT : ETIMEDOUT, go(r, r->fd[0], NOWHERE, MESSAGE, 0));
    if (sends) {
        EXPECT(r, entry, 0, go(r, r->fd[0], r->data, 0, 0));
        EXPECT(r, entry, 0, go(r, r->fd[0], r->data, 0, 0));
        EXPECT(r, entry, ETIMEDOUT, go(r, r->fd[0], r->data, 1, 0));
    }
    raw_nonblock(r->fd[0]);
    EXPECT(r, entry, EAGAIN, go(r, r->fd[0], r->data, MESSAGE, 0));
}

static ssize_t received(struct run *r, ssize_t n, const unsigned *priority, off_t want)
{
    if (n >= 0)
        CHECK(r, *priority == (unsigned)want);
    return n;
}

#define QUEUE(id, sym, entry_, flags_, op_, expression)                            \
    static ssize_t go_##id(struct run *r, int fd, void *at, size_t len, off_t pos) \
    {                                                                              \
        unsigned priority = 77;                                                    \
        (void)r, (void)pos, (void)priority;                                        \
        return expression;                                                         \
    }                                                                              \
    CASE(id, .symbol = sym, .entry = entry_, .unit = MESSAGE, .ops = 64,           \
         .flags = flags_, .go = go_##id, .setup = queue, .op = op_,                \
         .errors = queue_errors, .finish = close_all)

QUEUE(mq_timedsend, "mq_timedsend", "mq_timedsend", 0, send_op, mq_timedsend(fd, at, len, (unsigned)pos, past));
QUEUE(syscall_mq_timedsend, "syscall", "mq_timedsend", 0, send_op,
      syscall(SYS_mq_timedsend, fd, at, len, (unsigned)pos, past));
QUEUE(mq_timedreceive, "mq_timedreceive", "mq_timedreceive", 0, receive_op,
      received(r, mq_timedreceive(fd, at, len, &priority, past), &priority, pos));
QUEUE(syscall_mq_timedreceive, "syscall", "mq_timedreceive", 0, receive_op,
      received(r, syscall(SYS_mq_timedreceive, fd, at, len, &priority, past), &priority, pos));

/* Their plain forms call the others inside libc. */
static long plain_send_op(struct run *r, unsigned i)
{
    pattern(r->want, MESSAGE, i);
    CHECK(r, mq_send(r->fd[0], (char *)r->want, MESSAGE, 1) == 0);
    CHECK(r, RAW5(SYS_mq_timedreceive, r->fd[0], r->data, MESSAGE, 0, 0) == MESSAGE);
    mix_bytes(r, i, r->data, MESSAGE);
    return MESSAGE;
}

static long plain_receive_op(struct run *r, unsigned i)
{
    pattern(r->want, MESSAGE, i);
    CHECK(r, RAW5(SYS_mq_timedsend, r->fd[0], r->want, MESSAGE, 1, 0) == 0);
    CHECK(r, mq_receive(r->fd[0], (char *)r->data, MESSAGE, NULL) == MESSAGE);
    mix_bytes(r, i, r->data, MESSAGE);
    return MESSAGE;
}

CASE(inside_mq_send, .symbol = "", .entry = "mq_timedsend", .unit = MESSAGE, .ops = 64, .flags = INSIDE,
     .setup = queue, .op = plain_send_op, .finish = close_all);
CASE(inside_mq_receive, .symbol = "", .entry = "mq_timedreceive", .unit = MESSAGE, .ops = 64, .flags = INSIDE,
     .setup = queue, .op = plain_receive_op, .finish = close_all);

struct letter {
    long type;
    unsigned char text[MESSAGE];
};

/* number is the queue. */
static void box(struct run *r)
{
    long id = RAW2(SYS_msgget, IPC_PRIVATE, 0600 | IPC_CREAT);
    CHECK(r, id >= 0);
    r->number = (uint64_t)id;
}

static void remove_box(struct run *r)
{
    RAW3(SYS_msgctl, r->number, IPC_RMID, 0);
}

static long msgsnd_op(struct run *r, unsigned i)
{
    struct letter *out = (struct letter *)r->want;
    struct letter *in = (struct letter *)r->data;
    out->type = 4;
    pattern(out->text, MESSAGE, i);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, (int)r->number, out, MESSAGE, 0) == 0);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, RAW5(SYS_msgrcv, r->number, in, MESSAGE, 4, IPC_NOWAIT) == MESSAGE);
    CHECK(r, memcmp(in->text, out->text, MESSAGE) == 0);
    mix_bytes(r, i, in->text, MESSAGE);
    return MESSAGE;
}

static long msgrcv_op(struct run *r, unsigned i)
{
    struct letter *out = (struct letter *)r->want;
    struct letter *in = (struct letter *)r->data;
    out->type = 4;
    pattern(out->text, MESSAGE, i);
    CHECK(r, RAW4(SYS_msgsnd, r->number, out, MESSAGE, IPC_NOWAIT) == 0);
    errno = ERRNO_CANARY;
    CHECK(r, r->test->go(r, (int)r->number, in, MESSAGE, 0) == MESSAGE);
    CHECK(r, errno == ERRNO_CANARY);
    CHECK(r, in->type == 4 && memcmp(in->text, out->text, MESSAGE) == 0);
    mix_bytes(r, i, in->text, MESSAGE);
    return MESSAGE;
}

static void box_errors(struct run *r)
{
    mover *go = r->test->go;
    const char *entry = r->test->entry;
    int sends = r->test->op == msgsnd_op;
    struct letter *letter = (struct letter *)r->want;
    int id = (int)r->number;
    letter->type = 4;
    EXPECT(r, entry, EINVAL, go(r, -1, letter, 16, 0));
    if (sends) {
        EXPECT(r, entry, EFAULT, go(r, id, NOWHERE, 16, 0));
        /* Above what a queue takes, everywhere. */
        EXPECT(r, entry, EINVAL, go(r, id, letter, 100000, 0));
        letter->type = 0;
        EXPECT(r, entry, EINVAL, go(r, id, letter, 16, 0));
        letter->type = 4;
        while (RAW4(SYS_msgsnd, id, letter, MESSAGE, IPC_NOWAIT) == 0)
            ;
        EXPECT(r, entry, EAGAIN, go(r, id, letter, MESSAGE, IPC_NOWAIT));
    } else {
        EXPECT(r, entry, ENOMSG, go(r, id, letter, 16, IPC_NOWAIT));
        RAW4(SYS_msgsnd, id, letter, 100, IPC_NOWAIT);
        EXPECT(r, entry, E2BIG, go(r, id, letter, 16, IPC_NOWAIT));
        CHECK(r, go(r, id, letter, 16, IPC_NOWAIT | MSG_NOERROR) == 16);
        tally(r, entry, 1, 16);
    }
}

#define BOX(id, sym, entry_, op_, expression)                                           \
    MOVER(id, expression)                                                               \
    CASE(id, .symbol = sym, .entry = entry_, .unit = MESSAGE, .ops = 64, .go = go_##id, \
         .setup = box, .op = op_, .errors = box_errors, .finish = remove_box)

BOX(msgsnd, "msgsnd", "msgsnd", msgsnd_op, msgsnd(fd, at, len, (int)pos));
BOX(syscall_msgsnd, "syscall", "msgsnd", msgsnd_op, syscall(SYS_msgsnd, fd, at, len, (int)pos));
BOX(msgrcv, "msgrcv", "msgrcv", msgrcv_op, msgrcv(fd, at, len, 0, (int)pos));
BOX(syscall_msgrcv, "syscall", "msgrcv", msgrcv_op, syscall(SYS_msgrcv, fd, at, len, 0L, (int)pos));
