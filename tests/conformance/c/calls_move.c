/* Bytes moved inside the kernel: sendfile, splice, tee, vmsplice,
 * copy_file_range, and other processes' memory. */
#define _GNU_SOURCE
#include "harness.h"

#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

/* fd[2] is the source file; fd[0] the destination, fd[1] its other end. */
static void with_source(struct run *r)
{
    r->fd[2] = raw_file(r, "from", 0);
    for (unsigned i = 0; i < r->ops; i++) {
        pattern(r->want, r->test->unit, r->first + i);
        raw_write(r->fd[2], r->want, r->test->unit);
    }
    raw_seek(r->fd[2], 0, SEEK_SET);
}

static void file_to_file(struct run *r)
{
    with_source(r);
    out_file(r);
}

static void file_to_socket(struct run *r)
{
    with_source(r);
    out_socket(r);
}

static void file_to_pipe(struct run *r)
{
    with_source(r);
    out_pipe(r);
}

static void sendfile_errors(struct run *r)
{
    mover *go = r->test->go;
    EXPECT(r, of_kind(r, "other"), EBADF, go(r, -1, NULL, 16, 0));
    int source = r->fd[2];
    r->fd[2] = -1;
    EXPECT(r, r->test->entry, EBADF, go(r, r->fd[0], NULL, 16, 0));
    /* A short source, then its end. */
    r->fd[2] = raw_file(r, "short", 10);
    CHECK(r, go(r, r->fd[0], NULL, 4096, 0) == 10);
    tally(r, r->test->entry, 1, 10);
    EXPECT(r, r->test->entry, 0, go(r, r->fd[0], NULL, 4096, 0));
    EXPECT(r, r->test->entry, 0, go(r, r->fd[0], NULL, 0, 0));
    raw_close(r->fd[2]);
    r->fd[2] = source;
    if (r->fd[1] >= 0) {
        raw_seek(source, 0, SEEK_SET);
        fill(r->fd[0]);
        EXPECT(r, r->test->entry, EAGAIN, go(r, r->fd[0], NULL, 4096, 0));
        raw_close(r->fd[1]);
        r->fd[1] = -1;
        EXPECT(r, r->test->entry, EPIPE, go(r, r->fd[0], NULL, 16, 0));
    }
}

#define MOVE(id, sym, entry_, setup_, errors_, expression)                           \
    MOVER(id, expression)                                                            \
    CASE(id, .symbol = sym, .entry = entry_, .unit = 4096, .ops = 64, .go = go_##id, \
         .setup = setup_, .op = out_op, .errors = errors_, .finish = close_all)

#define SENDFILE(id, sym, expression)                                                       \
    MOVE(id##_file, sym, "sendfile.file", file_to_file, sendfile_errors, expression);       \
    MOVE(id##_socket, sym, "sendfile.socket", file_to_socket, sendfile_errors, expression); \
    MOVE(id##_other, sym, "sendfile.other", file_to_pipe, sendfile_errors, expression)

SENDFILE(sendfile, "sendfile", sendfile(fd, r->fd[2], NULL, len));
SENDFILE(sendfile64, "sendfile64", sendfile64(fd, r->fd[2], NULL, len));
SENDFILE(syscall_sendfile, "syscall", syscall(SYS_sendfile, fd, r->fd[2], NULL, len));

/* With a position of its own: it advances, the file's does not. */
static ssize_t go_at(struct run *r, int fd, void *at, size_t len, off_t pos)
{
    (void)at;
    off_t from = pos;
    ssize_t n = sendfile(fd, r->fd[2], &from, len);
    CHECK(r, from == pos + (off_t)len && raw_seek(r->fd[2], 0, SEEK_CUR) == 0);
    return n;
}

CASE(sendfile_position, .symbol = "sendfile", .entry = "sendfile.socket", .unit = 4096, .ops = 64, .go = go_at,
     .setup = file_to_socket, .op = out_op, .finish = close_all);

static void range_errors(struct run *r)
{
    const char *entry = r->test->entry;
    mover *go = r->test->go;
    EXPECT(r, entry, EBADF, go(r, -1, NULL, 16, 0));
    int fd[2];
    raw_pipe(fd);
    EXPECT(r, entry, EINVAL, go(r, fd[1], NULL, 16, 0));
    raw_close(fd[0]);
    raw_close(fd[1]);
    raw_seek(r->fd[2], 0, SEEK_END);
    EXPECT(r, entry, 0, go(r, r->fd[0], NULL, 16, 0));
    EXPECT(r, entry, 0, go(r, r->fd[0], NULL, 0, 0));
}

MOVE(copy_file_range, "copy_file_range", "copy_file_range", file_to_file, range_errors,
     copy_file_range(r->fd[2], NULL, fd, NULL, len, 0));
MOVE(syscall_copy_file_range, "syscall", "copy_file_range", file_to_file, range_errors,
     syscall(SYS_copy_file_range, r->fd[2], NULL, fd, NULL, len, 0));

/* splice: fd[0] is where the call writes, fd[2] where it reads; fd[1] and fd[3]
 * are their other ends. */
static void pipe_source(struct run *r)
{
    int fd[2];
    CHECK(r, raw_pipe(fd) == 0);
    r->fd[2] = fd[0];
    r->fd[3] = fd[1];
}

static void pipe_to_file(struct run *r)
{
    pipe_source(r);
    out_file(r);
}

static void pipe_to_socket(struct run *r)
{
    pipe_source(r);
    out_socket(r);
}

static void pipe_to_pipe(struct run *r)
{
    pipe_source(r);
    out_pipe(r);
}

static void socket_to_pipe(struct run *r)
{
    CHECK(r, raw_socketpair(SOCK_STREAM, r->fd + 2) == 0);
    out_pipe(r);
}

static long splice_op(struct run *r, unsigned i)
{
    if (r->fd[3] >= 0) {
        pattern(r->want, r->test->unit, i);
        CHECK(r, raw_write(r->fd[3], r->want, r->test->unit) == r->test->unit);
    }
    return out_op(r, i);
}

static void splice_errors(struct run *r)
{
    mover *go = r->test->go;
    const char *entry = r->test->entry;
    int source = r->fd[2];
    int fd[2];
    EXPECT(r, entry, 0, go(r, r->fd[0], NULL, 0, 0));
    if (r->fd[3] >= 0) {
        raw_nonblock(source);
        EXPECT(r, entry, EAGAIN, go(r, r->fd[0], NULL, 16, 0));
        raw_write(r->fd[3], "0123456789", 10);
        CHECK(r, go(r, r->fd[0], NULL, 4096, 0) == 10);
        tally(r, entry, 1, 10);
        raw_close(r->fd[3]);
        r->fd[3] = -1;
        EXPECT(r, entry, 0, go(r, r->fd[0], NULL, 16, 0));
    }
    /* Neither end is a pipe. */
    r->fd[2] = raw_file(r, "no-pipe", 10);
    int file = raw_file(r, "no-pipe-either", 10);
    EXPECT(r, of_kind(r, "file"), EINVAL, go(r, file, NULL, 16, 0));
    raw_close(r->fd[2]);
    raw_close(file);
    raw_pipe(fd);
    r->fd[2] = fd[0];
    EXPECT(r, of_kind(r, "other"), EBADF, go(r, -1, NULL, 16, 0));
    raw_close(fd[0]);
    raw_close(fd[1]);
    r->fd[2] = source;
}

#define SPLICE(id, sym, entry_, setup_, expression)                                  \
    MOVER(id, expression)                                                            \
    CASE(id, .symbol = sym, .entry = entry_, .unit = 4096, .ops = 64, .go = go_##id, \
         .setup = setup_, .op = splice_op, .errors = splice_errors, .finish = close_all)

SPLICE(splice_pipe_to_file, "splice", "splice.file", pipe_to_file, splice(r->fd[2], NULL, fd, NULL, len, 0));
SPLICE(splice_file_to_pipe, "splice", "splice.file", file_to_pipe, splice(r->fd[2], NULL, fd, NULL, len, 0));
SPLICE(splice_pipe_to_socket, "splice", "splice.socket", pipe_to_socket,
       splice(r->fd[2], NULL, fd, NULL, len, 0));
SPLICE(splice_socket_to_pipe, "splice", "splice.socket", socket_to_pipe,
       splice(r->fd[2], NULL, fd, NULL, len, 0));
SPLICE(splice_pipe_to_pipe, "splice", "splice.other", pipe_to_pipe, splice(r->fd[2], NULL, fd, NULL, len, 0));
SPLICE(syscall_splice_file, "syscall", "splice.file", pipe_to_file,
       syscall(SYS_splice, r->fd[2], NULL, fd, NULL, len, 0));
SPLICE(syscall_splice_socket, "syscall", "splice.socket", pipe_to_socket,
       syscall(SYS_splice, r->fd[2], NULL, fd, NULL, len, 0));
SPLICE(syscall_splice_other, "syscall", "splice.other", pipe_to_pipe,
       syscall(SYS_splice, r->fd[2], NULL, fd, NULL, len, 0));

/* What is teed stays in its pipe; it is drained there, too. */
static long tee_op(struct run *r, unsigned i)
{
    long n = splice_op(r, i);
    CHECK(r, raw_read(r->fd[2], r->data, r->test->unit) == r->test->unit);
    CHECK(r, memcmp(r->data, r->want, r->test->unit) == 0);
    return n;
}

static void tee_errors(struct run *r)
{
    mover *go = r->test->go;
    EXPECT(r, "tee", EBADF, go(r, -1, NULL, 16, 0));
    int file = raw_file(r, "no-pipe", 10);
    EXPECT(r, "tee", EINVAL, go(r, file, NULL, 16, 0));
    raw_close(file);
    EXPECT(r, "tee", 0, go(r, r->fd[0], NULL, 0, 0));
    fill(r->fd[0]);
    raw_nonblock(r->fd[2]);
    raw_write(r->fd[3], "0123456789", 10);
    EXPECT(r, "tee", EAGAIN, go(r, r->fd[0], NULL, 16, 0));
}

#define TEE(id, sym, expression)                                                    \
    MOVER(id, expression)                                                           \
    CASE(id, .symbol = sym, .entry = "tee", .unit = 4096, .ops = 64, .go = go_##id, \
         .setup = pipe_to_pipe, .op = tee_op, .errors = tee_errors, .finish = close_all)

TEE(tee, "tee", tee(r->fd[2], fd, len, r->fd[2] < 0 ? 0 : SPLICE_F_NONBLOCK));
TEE(syscall_tee, "syscall", syscall(SYS_tee, r->fd[2], fd, len, SPLICE_F_NONBLOCK));

/* From memory into a pipe, and from a pipe into memory. */
static void vmsplice_errors(struct run *r)
{
    mover *go = r->test->go;
    EXPECT(r, "vmsplice", EBADF, go(r, -1, r->data, 16, 0));
    int file = raw_file(r, "no-pipe", 10);
    EXPECT(r, "vmsplice", EBADF, go(r, file, r->data, 16, 0));
    raw_close(file);
    if (r->test->setup == out_pipe) {
        EXPECT(r, "vmsplice", EFAULT, go(r, r->fd[0], NOWHERE, 16, 0));
        fill(r->fd[0]);
    } else {
        EXPECT(r, "vmsplice", EFAULT, (raw_write(r->fd[1], "0", 1), go(r, r->fd[0], NOWHERE, 16, 0)));
        raw_read(r->fd[0], r->data, 1);
    }
    /* It does not care whether the pipe is non-blocking. */
    r->number = SPLICE_F_NONBLOCK;
    EXPECT(r, "vmsplice", EAGAIN, go(r, r->fd[0], r->data, 16, 0));
}

MOVE(vmsplice, "vmsplice", "vmsplice", out_pipe, vmsplice_errors, vmsplice(fd, VECTORS(at, len), (unsigned)r->number));
MOVE(syscall_vmsplice, "syscall", "vmsplice", out_pipe, vmsplice_errors,
     syscall(SYS_vmsplice, fd, VECTORS(at, len), r->number));

CASE(vmsplice_in, .symbol = "vmsplice", .entry = "vmsplice", .unit = 4096, .ops = 64, .go = go_vmsplice,
     .setup = in_pipe, .op = in_op, .errors = vmsplice_errors, .finish = close_all);

/* This process's own memory, through the door to other processes'. */
static ssize_t own_memory(ssize_t (*call)(pid_t, const struct iovec *, unsigned long, const struct iovec *,
                                          unsigned long, unsigned long),
                          int fd, void *here, void *there, size_t len)
{
    struct iovec far[] = {{there, len / 2}, {(char *)there + len / 2, len - len / 2}};
    return call(fd == -1 ? 0x3fffffff : (pid_t)RAW0(SYS_getpid), VECTORS(here, len), far, 2, 0);
}

static ssize_t syscall_readv(pid_t pid, const struct iovec *here, unsigned long n, const struct iovec *there,
                             unsigned long m, unsigned long flags)
{
    return syscall(SYS_process_vm_readv, pid, here, n, there, m, flags);
}

static ssize_t syscall_writev(pid_t pid, const struct iovec *here, unsigned long n, const struct iovec *there,
                              unsigned long m, unsigned long flags)
{
    return syscall(SYS_process_vm_writev, pid, here, n, there, m, flags);
}

static long memory_op(struct run *r, unsigned i)
{
    size_t len = r->test->unit;
    pattern(r->want, len, i);
    memset(r->data, 0, len);
    errno = ERRNO_CANARY;
    long n = r->test->go(r, 0, NULL, len, 0);
    CHECK(r, n == (long)len && errno == ERRNO_CANARY);
    CHECK(r, memcmp(r->data, r->want, len) == 0);
    mix_bytes(r, i, r->data, len);
    return n;
}

static void memory_errors(struct run *r)
{
    mover *go = r->test->go;
    EXPECT(r, r->test->entry, ESRCH, go(r, -1, NULL, 16, 0));
    EXPECT(r, r->test->entry, 0, go(r, 0, NULL, 0, 0));
    unsigned char *want = r->want;
    r->want = NOWHERE;
    EXPECT(r, r->test->entry, EFAULT, go(r, 0, NULL, 16, 0));
    r->want = want;
}

#define MEMORY(id, sym, entry_, expression)                                          \
    MOVER(id, expression)                                                            \
    CASE(id, .symbol = sym, .entry = entry_, .unit = 4096, .ops = 64, .go = go_##id, \
         .op = memory_op, .errors = memory_errors)

MEMORY(process_vm_readv, "process_vm_readv", "process_vm_readv",
       own_memory(process_vm_readv, fd, r->data, r->want, len));
MEMORY(process_vm_writev, "process_vm_writev", "process_vm_writev",
       own_memory(process_vm_writev, fd, r->want, r->data, len));
MEMORY(syscall_process_vm_readv, "syscall", "process_vm_readv",
       own_memory(syscall_readv, fd, r->data, r->want, len));
MEMORY(syscall_process_vm_writev, "syscall", "process_vm_writev",
       own_memory(syscall_writev, fd, r->want, r->data, len));
