/* Calls that libc makes itself: stdio, folders, asynchronous I/O, names of
 * hosts, and functions looked up by hand. Only patched call sites see them. How
 * many calls stdio makes for its bytes is its own affair: only the bytes are
 * compared, and for entries without bytes the calls. */
#define _GNU_SOURCE
#include "harness.h"

#include <aio.h>
#include <dirent.h>
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* fd[0] is a file, `extra` a stream on it with a buffer of 4096 bytes. */
static void stream(struct run *r, int fd, const char *mode)
{
    FILE *f = fdopen(raw_dup(fd), mode);
    CHECK(r, f != NULL);
    CHECK(r, setvbuf(f, (char *)r->data + ROOM - 4096, _IOFBF, 4096) == 0);
    r->extra = f;
}

static void reader(struct run *r)
{
    in_file(r);
    stream(r, r->fd[0], "r");
}

static void writer(struct run *r)
{
    out_file(r);
    stream(r, r->fd[0], "w");
}

static void done(struct run *r)
{
    if (r->extra)
        fclose(r->extra);
    close_all(r);
}

static ssize_t flushed(struct run *r, size_t len)
{
    return fflush(r->extra) == 0 ? (ssize_t)len : -1;
}

static ssize_t by_character(struct run *r, unsigned char *at, size_t len)
{
    for (size_t k = 0; k < len; k++) {
        int c = fgetc(r->extra);
        if (c == EOF)
            return (ssize_t)k;
        at[k] = (unsigned char)c;
    }
    return (ssize_t)len;
}

#define INSIDE_IN(id, expression)                                                  \
    MOVER(id, expression)                                                          \
    CASE(id, .symbol = "", .entry = "read.file", .unit = 4096, .ops = 64,          \
         .flags = INSIDE, .go = go_##id, .setup = reader, .op = in_op, .finish = done)

#define INSIDE_OUT(id, expression)                                                 \
    MOVER(id, expression)                                                          \
    CASE(id, .symbol = "", .entry = "write.file", .unit = 4096, .ops = 64,         \
         .flags = INSIDE, .go = go_##id, .setup = writer, .op = out_op, .finish = done)

INSIDE_IN(inside_fread, (ssize_t)fread(at, 1, len, r->extra));
INSIDE_IN(inside_fgetc, by_character(r, at, len));
INSIDE_OUT(inside_fwrite, (fwrite(at, 1, len, r->extra), flushed(r, len)));

/* Text without zero bytes, which patterns have: lines of 64 characters. */
static char *text(struct run *r, unsigned i)
{
    for (unsigned k = 0; k < 4096; k++)
        r->want[k] = (unsigned char)(k % 64 == 63 ? '\n' : 'a' + (i + k) % 26);
    r->want[4096] = 0;
    return (char *)r->want;
}

static long written(struct run *r, unsigned i, int fd)
{
    off_t pos = (off_t)(i - r->first) * 4096;
    memset(r->data, 0, 4096);
    CHECK(r, raw_pread(fd, r->data, 4096, pos) == 4096);
    CHECK(r, memcmp(r->data, r->want, 4096) == 0);
    mix_bytes(r, i, r->data, 4096);
    return 4096;
}

static long fputs_op(struct run *r, unsigned i)
{
    CHECK(r, fputs(text(r, i), r->extra) >= 0 && fflush(r->extra) == 0);
    return written(r, i, r->fd[0]);
}

static long fprintf_op(struct run *r, unsigned i)
{
    CHECK(r, fprintf(r->extra, "%s", text(r, i)) == 4096 && fflush(r->extra) == 0);
    return written(r, i, r->fd[0]);
}

static long dprintf_op(struct run *r, unsigned i)
{
    CHECK(r, dprintf(r->fd[0], "%s", text(r, i)) == 4096);
    return written(r, i, r->fd[0]);
}

static void lines(struct run *r)
{
    r->fd[0] = raw_file(r, "lines", 0);
    for (unsigned i = 0; i < r->ops; i++)
        raw_write(r->fd[0], text(r, r->first + i), 4096);
    raw_seek(r->fd[0], 0, SEEK_SET);
    stream(r, r->fd[0], "r");
}

/* The lines' buffer was ours before: nothing is allocated while time is taken. */
static long getline_op(struct run *r, unsigned i)
{
    char room[128];
    size_t got = 0;
    for (unsigned k = 0; k < 64; k++) {
        CHECK(r, fgets(room, sizeof room, r->extra) == room && strlen(room) == 64);
        memcpy(r->data + got, room, 64);
        got += 64;
    }
    CHECK(r, memcmp(r->data, text(r, i), 4096) == 0);
    mix_bytes(r, i, r->data, 4096);
    return 4096;
}

static long getline_grown_op(struct run *r, unsigned i)
{
    char *line = NULL;
    size_t room = 0;
    for (unsigned k = 0; k < 64; k++)
        CHECK(r, getline(&line, &room, r->extra) == 64);
    CHECK(r, memcmp(line, text(r, i) + 63 * 64, 64) == 0);
    mix_bytes(r, i, line, 64);
    free(line);
    return 4096;
}

/* 512 numbers of seven digits, and a newline after each. */
static void numbers(struct run *r)
{
    r->fd[0] = raw_file(r, "numbers", 0);
    for (unsigned i = 0; i < r->ops; i++) {
        char *at = (char *)r->want;
        for (unsigned k = 0; k < 512; k++)
            at += sprintf(at, "%07u\n", 1000000 + (r->first + i) * 512 + k);
        raw_write(r->fd[0], r->want, 4096);
    }
    raw_seek(r->fd[0], 0, SEEK_SET);
    stream(r, r->fd[0], "r");
}

static long fscanf_op(struct run *r, unsigned i)
{
    for (unsigned k = 0; k < 512; k++) {
        unsigned value = 0;
        CHECK(r, fscanf(r->extra, "%u", &value) == 1 && value == 1000000 + i * 512 + k);
        mix(r, i, value);
    }
    return 4096;
}

#define INSIDE_TEXT(id, entry_, setup_, op_)                                       \
    CASE(id, .symbol = "", .entry = entry_, .unit = 4096, .ops = 64,               \
         .flags = INSIDE, .setup = setup_, .op = op_, .finish = done)

INSIDE_TEXT(inside_fputs, "write.file", writer, fputs_op);
INSIDE_TEXT(inside_fprintf, "write.file", writer, fprintf_op);
INSIDE_TEXT(inside_dprintf, "write.file", out_file, dprintf_op);
INSIDE_TEXT(inside_fgets, "read.file", lines, getline_op);
INSIDE_TEXT(inside_getline, "read.file", lines, getline_grown_op);
INSIDE_TEXT(inside_fscanf, "read.file", numbers, fscanf_op);

/* Standard error is a file of ours meanwhile. */
static void errors_to_file(struct run *r)
{
    out_file(r);
    r->fd[1] = raw_dup(2);
    raw_dup2(r->fd[0], 2);
}

static void errors_back(struct run *r)
{
    raw_dup2(r->fd[1], 2);
    close_all(r);
}

static long perror_op(struct run *r, unsigned i)
{
    static const char says[] = "4096 bytes of nothing: No such file or directory\n";
    long len = sizeof says - 1;
    errno = ENOENT;
    perror("4096 bytes of nothing");
    CHECK(r, raw_pread(r->fd[0], r->data, 200, (off_t)i * len) == len);
    CHECK(r, memcmp(r->data, says, (size_t)len) == 0);
    mix_bytes(r, i, r->data, (size_t)len);
    return len;
}

CASE(inside_perror, .symbol = "", .entry = "write.file", .unit = 49, .ops = 64, .flags = INSIDE | SINGLE,
     .setup = errors_to_file, .op = perror_op, .finish = errors_back);

/* One call for the entries, one more for their end. */
static void opened_folder(struct run *r)
{
    raw_close(raw_file(r, "one", 1));
    raw_close(raw_file(r, "two", 1));
    r->extra = opendir(r->dir);
    CHECK(r, r->extra != NULL);
}

static long readdir_op(struct run *r, unsigned i)
{
    unsigned entries = 0;
    rewinddir(r->extra);
    while (readdir(r->extra))
        entries++;
    CHECK(r, entries == 4);
    mix(r, i, entries);
    tally(r, "getdents64", 2, 0);
    return 0;
}

static void close_folder(struct run *r)
{
    if (r->extra)
        closedir(r->extra);
}

CASE(inside_readdir, .symbol = "", .entry = "getdents64", .ops = 12, .flags = INSIDE | OWN_TALLY,
     .setup = opened_folder, .op = readdir_op, .finish = close_folder);

/* A helper thread of libc does them. */
static ssize_t awaited(struct aiocb *cb, int started)
{
    const struct aiocb *list[1] = {cb};
    if (started != 0)
        return -1;
    while (aio_error(cb) == EINPROGRESS)
        aio_suspend(list, 1, NULL);
    return aio_return(cb);
}

static struct aiocb *control(int fd, void *at, size_t len, off_t pos, int operation)
{
    static __thread struct aiocb cb;
    memset(&cb, 0, sizeof cb);
    cb.aio_fildes = fd;
    cb.aio_buf = at;
    cb.aio_nbytes = len;
    cb.aio_offset = pos;
    cb.aio_lio_opcode = operation;
    return &cb;
}

static ssize_t listed(struct aiocb *cb)
{
    struct aiocb *list[1] = {cb};
    return awaited(cb, lio_listio(LIO_WAIT, list, 1, NULL));
}

static ssize_t aio_in(struct run *r, struct aiocb *cb)
{
    ssize_t n = awaited(cb, aio_read(cb));
    CHECK(r, n >= 0);
    errno = ERRNO_CANARY;
    return n;
}

static ssize_t aio_out(struct run *r, struct aiocb *cb)
{
    ssize_t n = awaited(cb, aio_write(cb));
    CHECK(r, n >= 0);
    errno = ERRNO_CANARY;
    return n;
}

#define AIO(id, entry_, setup_, op_, expression)                                   \
    MOVER(id, expression)                                                          \
    CASE(id, .symbol = "", .entry = entry_, .unit = 4096, .ops = 64,               \
         .flags = INSIDE, .go = go_##id, .setup = setup_, .op = op_, .finish = close_all)

AIO(inside_aio_read, "pread64", in_file, in_op, aio_in(r, control(fd, at, len, pos, 0)));
AIO(inside_aio_write, "pwrite64", out_file, out_op, aio_out(r, control(fd, at, len, pos, 0)));
AIO(inside_lio_listio_read, "pread64", in_file, in_op, listed(control(fd, at, len, pos, LIO_READ)));
AIO(inside_lio_listio_write, "pwrite64", out_file, out_op, listed(control(fd, at, len, pos, LIO_WRITE)));

/* libc's own read, not the one that a program would be linked with. */
static ssize_t (*libc_function(const char *name))(int, void *, size_t)
{
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    void *found = libc ? dlsym(libc, name) : NULL;
    ssize_t (*function)(int, void *, size_t);
    memcpy(&function, &found, sizeof function);
    return function;
}

static ssize_t looked_up(struct run *r, const char *name, int fd, void *at, size_t len)
{
    if (!r->extra) {
        ssize_t (*function)(int, void *, size_t) = libc_function(name);
        memcpy(&r->extra, &function, sizeof function);
    }
    ssize_t (*function)(int, void *, size_t);
    memcpy(&function, &r->extra, sizeof function);
    errno = ERRNO_CANARY;
    return function ? function(fd, at, len) : -1;
}

AIO(inside_dlsym_read, "read.file", in_file, in_op, looked_up(r, "read", fd, at, len));
AIO(inside_dlsym_write, "write.file", out_file, out_op, looked_up(r, "write", fd, at, len));

/* A numeric host: libc asks the kernel, in 20 bytes, which addresses this machine has. */
static long resolve_op(struct run *r, unsigned i)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_ADDRCONFIG};
    struct addrinfo *found = NULL;
    CHECK(r, getaddrinfo("127.0.0.1", "80", &hints, &found) == 0 && found != NULL);
    mix_bytes(r, i, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return 20;
}

CASE(inside_getaddrinfo, .symbol = "", .entry = "sendto", .unit = 20, .ops = 12, .flags = INSIDE,
     .op = resolve_op);

/* Files that libc opens and closes for the program. */
static void ten(struct run *r)
{
    raw_close(raw_file(r, "ten", 10));
}

static long fopen_op(struct run *r, unsigned i)
{
    FILE *f = fopen(path_in(r, "ten"), "r");
    CHECK(r, f != NULL && fclose(f) == 0);
    mix(r, i, 1);
    tally(r, "openat", 1, 0);
    tally(r, "close", 1, 0);
    return 0;
}

static long tmpfile_op(struct run *r, unsigned i)
{
    FILE *f = tmpfile();
    CHECK(r, f != NULL && fputs("0123456789", f) >= 0);
    rewind(f);
    CHECK(r, fread(r->data, 1, 100, f) == 10 && memcmp(r->data, "0123456789", 10) == 0);
    CHECK(r, fclose(f) == 0);
    mix(r, i, 1);
    tally(r, "openat", 1, 0);
    return 0;
}

static long remove_op(struct run *r, unsigned i)
{
    raw_close(raw_file(r, "gone", 1));
    CHECK(r, remove(path_in(r, "gone")) == 0);
    mix(r, i, 1);
    return 0;
}

#define INSIDE_COUNT(id, entry_, flags_, setup_, op_)                              \
    CASE(id, .symbol = "", .entry = entry_, .ops = 12, .flags = INSIDE | flags_,   \
         .setup = setup_, .op = op_)

INSIDE_COUNT(inside_fopen, "openat", OWN_TALLY, ten, fopen_op);
INSIDE_COUNT(inside_tmpfile, "openat", OWN_TALLY, NULL, tmpfile_op);
INSIDE_COUNT(inside_remove, "unlink", 0, NULL, remove_op);
