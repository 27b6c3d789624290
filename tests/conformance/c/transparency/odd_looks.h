/* Looks at what the calls of odd_calls.c may have changed: memory, files, their positions, and queues. */
#pragma once
#include "odd_arguments.h"

/* The call, what it is counted by, and what it may change. */
static __thread int call, on, touched[2];
/* What is received stays there, or is cut off: what moves is no more than there is room for. */
static __thread int is_peek;
static __thread long room;
static __thread const struct mmsghdr *given;
/* A bit for each queue that a call named since it was emptied, and for each that bytes went to, and how many did. */
static __thread uint64_t dirty, filled;
static __thread long pending;
/* A bit for each file that a call named since it was looked at. */
static __thread unsigned touched_files;

static void mark(int kind)
{
    if (is_pair(kind))
        dirty |= 1ull << kind | 1ull << (kind ^ 1);
    else if (kind == ROUTE)
        dirty |= 1ull << ROUTE;
}

/* Position and length of a file. */
static uint64_t file(uint64_t hash, int which)
{
    struct stat of;
    int fd = fds[which];
    off_t now = lseek(fd, 0, SEEK_CUR);
    if (fstat(fd, &of))
        die("fstat");
    hash = mixed(hash, &now, sizeof now);
    hash = mixed(hash, &of.st_size, sizeof of.st_size);
    /* Sparse and endless, by places near the end of what there can be. */
    if (of.st_size > 1 << 20 && which != READ_ONLY && (ftruncate(fd, 70000) || lseek(fd, below(70000), SEEK_SET) < 0))
        die("truncated");
    return hash;
}

static uint64_t files(uint64_t hash)
{
    for (size_t i = 0; i < LENGTH(seekable); i++)
        hash = file(hash, seekable[i]);
    touched_files = 0;
    return hash;
}

/* Of those that calls were given since the last look. */
static uint64_t files_touched(uint64_t hash)
{
    for (int which = FILE_RW; which <= MEMORY; which++)
        if (touched_files >> which & 1)
            hash = file(hash, which);
    touched_files = 0;
    return hash;
}

/* Positions and lengths as they are, for a line of each call. */
static uint64_t positions(uint64_t hash)
{
    for (size_t i = 0; i < LENGTH(seekable); i++) {
        off_t now[2] = { lseek(fds[seekable[i]], 0, SEEK_CUR) };
        struct stat of;
        now[1] = fstat(fds[seekable[i]], &of) ? -1 : of.st_size;
        hash = mixed(hash, now, sizeof now);
    }
    return hash;
}

/* Enforced, a read that finds nothing takes long; elsewhere, in a served event loop, it is poll that may say too little. */
static int has_more(int kind)
{
    int left = 0;
    struct pollfd of = { fds[kind], POLLIN, 0 };
    if (is_of_bytes(kind))
        return ioctl(fds[kind], FIONREAD, &left) == 0 && left > 0;
    return !is_copied || poll(&of, 1, 0) == 1;
}

/* Reads from a queue. In a served event loop it may be too early for what is there. */
static ssize_t taken(int fd, char *buffer, size_t len)
{
    int left = 0, tries = in_loops ? 100 : 0;
    ssize_t got;
    while ((got = TEMP_FAILURE_RETRY(read(fd, buffer, len))) < 0 && errno == EAGAIN && tries-- && ioctl(fd, FIONREAD, &left) == 0 && left > 0)
        usleep(100);
    return noted(READ, fd, got);
}

/* Messages, many at a time; of a long one what is at its front. */
static uint64_t emptied_of_messages(uint64_t hash, int kind)
{
    enum { MESSAGES = 16, FRONT = 8192 };
    static __thread char fronts[MESSAGES][FRONT];
    struct iovec parts[MESSAGES];
    struct mmsghdr of[MESSAGES];
    int got;
    memset(of, 0, sizeof of);
    for (int i = 0; i < MESSAGES; i++) {
        parts[i] = (struct iovec){ fronts[i], FRONT };
        of[i].msg_hdr.msg_iov = &parts[i], of[i].msg_hdr.msg_iovlen = 1;
    }
    do {
        int tries = !in_loops || !(filled >> kind & 1) ? 0 : is_netlink(kind) ? 1 : 100, left = 1;
        while ((got = TEMP_FAILURE_RETRY(recvmmsg(fds[kind], of, MESSAGES, MSG_DONTWAIT, NULL))) < 0 && errno == EAGAIN && tries-- &&
               (is_netlink(kind) || (ioctl(fds[kind], FIONREAD, &left) == 0 && left > 0)))
            usleep(100);
        for (int i = 0; i < got; i++) {
            size_t len = of[i].msg_len;
            noted(RECVMMSG, fds[kind], len);
            hash = mixed(mixed(hash, fronts[i], len), &len, sizeof len);
        }
    } while (got == MESSAGES);
    return hash;
}

/* What the queues hold whose bits are given. */
static uint64_t emptied(uint64_t hash, uint64_t of)
{
    static __thread char buffer[1 << 16];
    for (int kind = PIPE_R; kind <= ROUTE; kind++) {
        ssize_t got;
        if (kind == PIPE_W || !(of >> kind & 1))
            continue;
        if (is_lean && !is_of_bytes(kind) && !is_copied && !in_pieces) {
            hash = emptied_of_messages(hash, kind);
            continue;
        }
        while (has_more(kind) && (got = taken(fds[kind], buffer, sizeof buffer)) >= 0) {
            hash = mixed(hash, buffer, got);
            hash = mixed(hash, &got, sizeof got);
        }
    }
    filled &= ~of, dirty &= ~of;
    if (!filled)
        pending = 0;
    return hash;
}

static uint64_t in_memory(uint64_t hash)
{
    hash = mixed(hash, arena, arena_len);
    hash = mixed(hash, places, sizeof places);
    for (int i = 0; i < 40; i++)
        hash = mixed(hash, &messages[i].msg_len, sizeof messages[i].msg_len);
    hash = mixed(hash, &message.msg_namelen, sizeof message.msg_namelen);
    hash = mixed(hash, &message.msg_controllen, sizeof message.msg_controllen);
    return mixed(hash, &message.msg_flags, sizeof message.msg_flags);
}

/* A call, or one that feeds another, has moved bytes to a descriptor of a kind. */
static void arrived(int kind, long result)
{
    if (result <= 0)
        return;
    if (is_pair(kind) || kind == ROUTE) {
        filled |= 1ull << (kind == ROUTE ? ROUTE : kind ^ 1);
        pending += result;
    }
    settle(kind);
}

/* The last call was one that moves bytes to what it names. */
static int is_sent(void)
{
    return call != READ && call != PREAD && call != READV && call != PREADV && call != PREADV2 && call != RECV && call != RECVMSG && call != RECVMMSG;
}

/* Everything that a call may have changed. */
static uint64_t seen(long result)
{
    arrived(touched[0], is_sent() ? result : 0);
    return emptied(files(in_memory(1)), -1);
}

/* What the last calls may have changed, some of it a few calls later: nothing but a call changes it back. A file that was written is
 * looked at, as one may have become longer than memory; so is a pipe that still has the program's own memory (vmsplice). */
static uint64_t seen_lately(long result, int i)
{
    uint64_t hash = 1;
    int has_sent = result > 0 && is_sent();
    for (int j = 0; j < 2; j++)
        if (touched[j] <= MEMORY)
            touched_files |= 1u << touched[j];
    if (has_sent)
        arrived(touched[0], call == SENDMMSG ? result * 3000 : result);
    if (i % 8 == 7 || (has_sent && touched[0] <= MEMORY))
        hash = files_touched(hash);
    if (has_sent && call == VMSPLICE)
        hash = emptied(hash, 1ull << PIPE_R);
    if (i % 120 == 119)
        hash = emptied(in_memory(hash), dirty | filled);
    else if (i % 40 == 39 || pending > 1 << 16 || (in_pieces && filled))
        hash = emptied(hash, filled);
    return hash;
}

static uint64_t contents(uint64_t hash)
{
    static __thread char buffer[1 << 20];
    for (size_t i = 0; i < LENGTH(seekable); i++) {
        ssize_t got = seekable[i] == WRITE_ONLY ? 0 : noted(PREAD, -1, TEMP_FAILURE_RETRY(pread(fds[seekable[i]], buffer, sizeof buffer, 0)));
        hash = mixed(hash, buffer, got < 0 ? 0 : got);
    }
    return hash;
}
