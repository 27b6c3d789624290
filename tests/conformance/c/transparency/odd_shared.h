/* Several threads and processes at a time on one open file description. The order of their calls is the scheduler's; the rest is
 * compared: records written whole are never torn, lost or there twice, those of a thread stay in order, reads of a shared position
 * divide the file, results add up to the position and to the size. A line for each round says so, or the first violation. */
#pragma once
#include "odd_arguments.h"

enum { APPENDS, WRITES, READS, BOTH, PLACES, COUNTS, PIPED, STREAM, STREAM_OF_TCP, STREAM_OF_TCP6, PACKETS_OF_PIPE, DATAGRAMS,
       PACKETS, DATAGRAMS_OF_UDP, DATAGRAMS_OF_UDP6, DATAGRAMS_OF_NETLINK, ROUNDS };
static const char *const rounds[] = { "appends", "writes", "reads", "reads and writes", "places", "counts", "pipe", "stream", "tcp", "tcp6",
                                      "packets of a pipe", "datagrams", "packets", "udp", "udp6", "netlink" };
#define PROCESSES 3
#define MAKERS 3
#define WRITERS (PROCESSES * MAKERS)
#define RECORDS 400
#define MOST (256 << 10)
#define SLOT (32 << 10)
#define SLOTS 8
#define SIZE (2 << 20)
#define MAGIC 0x5ec0bd01u
#define LAST 0x1a57bd02u
#define PILL (1ull << 40)

struct record {
    uint32_t magic, len, writer, number;
};

/* Memory of all processes. */
static struct round {
    int kind, processes, makers, readers, records, is_nonblocking, fd, other;
    uint32_t writers, readers_done, sent, received;
    uint64_t written, read, counted;
    uint32_t faults, ranges;
    char fault[120];
    struct { uint32_t at, len; } range[SIZE / 4];
    uint8_t seen[WRITERS][RECORDS];
} *round_of;

static uint64_t salt;

static void fault(const char *what, long of)
{
    if (__atomic_fetch_add(&round_of->faults, 1, __ATOMIC_RELAXED) == 0)
        snprintf(round_of->fault, sizeof round_of->fault, "%s (%ld, errno %d)", what, of, errno);
}

/* Makes a record, or compares one: its head, and bytes that no other has. */
static int record(char *at, uint32_t len, uint32_t writer, uint32_t number, int is_made)
{
    struct record head = { MAGIC, len, writer, number };
    uint64_t word = salt ^ ((uint64_t)writer << 32 | number);
    if (is_made)
        memcpy(at, &head, sizeof head);
    for (uint32_t i = sizeof head; i < len; i += 8) {
        size_t part = len - i < 8 ? len - i : 8;
        word = (word ^ i) * 0x9e3779b97f4a7c15;
        if (is_made)
            memcpy(at + i, &word, part);
        else if (memcmp(at + i, &word, part))
            return 0;
    }
    return 1;
}

/* Length of the record at a place, if it is whole; 0 for the last one, -1 for none. */
static long whole_record(char *at, size_t left)
{
    struct record head;
    if (left < sizeof head)
        return -1;
    memcpy(&head, at, sizeof head);
    if (head.magic == LAST)
        return 0;
    if (head.magic != MAGIC || head.len > left || head.len < sizeof head || head.len > MOST || head.writer >= WRITERS || head.number >= RECORDS)
        return -1;
    if (!record(at, head.len, head.writer, head.number, 0))
        return -1;
    if (round_of->kind != PLACES && __atomic_exchange_n(&round_of->seen[head.writer][head.number], 1, __ATOMIC_RELAXED))
        fault("a record is there twice", head.number);
    return head.len;
}

/* A call that would have blocked is made again when the descriptor is said to be ready. */
static int is_to_be_made_again(int fd, long result, short events)
{
    struct pollfd of = { fd, events, 0 };
    if (result >= 0 || errno != EAGAIN)
        return 0;
    int ready = TEMP_FAILURE_RETRY(poll(&of, 1, 60000));
    if (ready != 1)
        fault("no wake-up", ready);
    return ready == 1;
}

static int is_of_files(int kind) { return kind <= PLACES; }
static int is_of_packets(int kind) { return kind >= PACKETS_OF_PIPE; }
static int is_of_sockets(int kind) { return kind >= STREAM && kind != PACKETS_OF_PIPE; }
static int class_of(void)
{
    return is_of_files(round_of->kind) ? OF_FILES : is_of_sockets(round_of->kind) ? OF_SOCKETS : OF_OTHERS;
}

static uint32_t length_of_record(int kind)
{
    uint32_t head = sizeof(struct record);
    if (kind == PLACES)
        return SLOT;
    if (kind > PLACES)
        return head + below(below(2) ? 300 : 4096 - head + 1);
    return head + below(below(8) ? 3000 : below(4) ? 30000 : MOST - head);
}

/* Writes LEN bytes from AT by a call that is drawn; of messages it may be several. */
static long write_some(char *at, size_t len, long where)
{
    int kind = round_of->kind, fd = round_of->fd;
    size_t cut = below(len + 1);
    struct iovec parts[2] = { { at, cut }, { at + cut, len - cut } };
    struct msghdr one = { .msg_iov = parts, .msg_iovlen = 2 };
    struct mmsghdr several = { .msg_hdr = one };
    long result;
    /* A vector of an eventfd is several writes. */
    int which = below(is_of_sockets(kind) ? 5 : is_of_files(kind) ? 4 : kind == COUNTS ? 1 : 2), made;
    do {
        errno = 0;
        if (kind == PLACES && which < 2)
            result = which ? pwrite(fd, at, len, where) : pwritev(fd, parts, 2, where), made = which ? PWRITE : PWRITEV;
        else if (kind == PLACES)
            result = pwritev2(fd, parts, 2, where, 0), made = PWRITEV2;
        else if (which == 0)
            result = write(fd, at, len), made = WRITE;
        else if (which == 1)
            result = writev(fd, parts, 2), made = WRITEV;
        else if (is_of_files(kind) && which == 3 && kind == APPENDS)
            result = pwrite(fd, at, len, 0), made = PWRITE;
        else if (is_of_files(kind))
            result = pwritev2(fd, parts, 2, -1, kind == APPENDS ? RWF_APPEND : 0), made = PWRITEV2;
        else if (which == 2)
            result = send(fd, at, len, 0), made = SEND;
        else if (which == 3)
            result = sendmsg(fd, &one, 0), made = SENDMSG;
        else
            result = sendmmsg(fd, &several, 1, 0), made = SENDMMSG, result = result == 1 ? several.msg_len : result;
    } while (is_to_be_made_again(fd, result, POLLOUT));
    noted_of(made, class_of(), result);
    if (result > 0)
        __atomic_fetch_add(&round_of->written, result, __ATOMIC_RELAXED);
    return result;
}

/* What has not been received yet fits into queues that would drop it, or take a part. */
static void wait_for_room(void)
{
    int kind = round_of->kind;
    if ((kind == STREAM_OF_TCP || kind == STREAM_OF_TCP6 || kind >= DATAGRAMS_OF_UDP))
        while ((int32_t)(__atomic_load_n(&round_of->sent, __ATOMIC_ACQUIRE) - __atomic_load_n(&round_of->received, __ATOMIC_ACQUIRE)) > 24)
            usleep(50);
    __atomic_fetch_add(&round_of->sent, 1, __ATOMIC_ACQ_REL);
}

static void write_records(int writer, char *buffer)
{
    int kind = round_of->kind;
    for (int i = 0; i < round_of->records; i++) {
        uint64_t value = 1 + below(9);
        uint32_t len = kind == COUNTS ? sizeof value : length_of_record(kind);
        if (kind == COUNTS) {
            memcpy(buffer, &value, sizeof value);
            __atomic_fetch_add(&round_of->counted, value, __ATOMIC_RELAXED);
        } else {
            record(buffer, len, writer, i, 1);
        }
        wait_for_room();
        long result = write_some(buffer, len, (long)below(SLOTS) * SLOT);
        if (result != (long)len)
            fault("a write is short, or failed", result);
    }
}

/* Reads by a call that is drawn, to at most MOST bytes; lengths of messages go to LENS. */
static long read_some(int fd, char *at, size_t len, long lens[4], int *count)
{
    int kind = round_of->kind;
    size_t cut = below(len / 4 + 1) * 4;
    struct iovec parts[2] = { { at, cut }, { at + cut, len - cut } };
    struct msghdr one = { .msg_iov = parts, .msg_iovlen = 2 };
    struct mmsghdr several[4];
    struct iovec each[4];
    int which = below(is_of_sockets(kind) ? 5 : is_of_files(kind) ? 3 : kind == COUNTS ? 1 : 2), made;
    long result;
    memset(several, 0, sizeof several);
    for (int i = 0; i < 4; i++) {
        each[i] = (struct iovec){ at + i * (len / 4), len / 4 };
        several[i].msg_hdr.msg_iov = &each[i], several[i].msg_hdr.msg_iovlen = 1;
    }
    if (which == 4 && !is_of_packets(kind))
        which = 2;
    do {
        errno = 0;
        *count = 1;
        if (which == 0)
            result = read(fd, at, len), made = READ;
        else if (which == 1)
            result = readv(fd, parts, 2), made = READV;
        else if (is_of_files(kind))
            result = preadv2(fd, parts, 2, -1, 0), made = PREADV2;
        else if (which == 2)
            result = recv(fd, at, len, 0), made = RECV;
        else if (which == 3)
            result = recvmsg(fd, &one, 0), made = RECVMSG;
        else
            result = recvmmsg(fd, several, 4, MSG_WAITFORONE, NULL), made = RECVMMSG, *count = result;
    } while (is_to_be_made_again(fd, result, POLLIN));
    lens[0] = result;
    if (made == RECVMMSG && result > 0) {
        result = 0;
        for (int i = 0; i < *count; i++)
            result += lens[i] = several[i].msg_len;
    }
    noted_of(made, class_of(), result);
    if (result > 0)
        __atomic_fetch_add(&round_of->read, result, __ATOMIC_RELAXED);
    return result;
}

/* All that there is of a file whose words say where they are: each call gets one piece of it. */
static void read_file(char *buffer)
{
    long lens[4], result;
    int count;
    while ((result = read_some(round_of->fd, buffer, 4 * (1 + below(below(8) ? 2000 : MOST / 4)), lens, &count)) > 0) {
        uint32_t first, word;
        memcpy(&first, buffer, 4);
        for (long i = 4; i + 4 <= result; i += 4)
            if (memcpy(&word, buffer + i, 4), word != first + i / 4) {
                fault("a read is torn", i);
                break;
            }
        uint32_t slot = __atomic_fetch_add(&round_of->ranges, 1, __ATOMIC_RELAXED);
        round_of->range[slot].at = first * 4, round_of->range[slot].len = result;
    }
    if (result < 0)
        fault("a read failed", result);
}

static void move_position(char *buffer)
{
    long lens[4];
    int count;
    for (int i = 0; i < round_of->records; i++) {
        size_t len = 1 + below(3000);
        if (below(2) ? read_some(round_of->fd, buffer, len, lens, &count) < 0 : write_some(buffer, len, 0) != (long)len)
            fault("a call failed", i);
    }
}

/* The last message says that there are no more, and goes round among all that receive. */
static void pass_on(void)
{
    struct record last = { LAST, sizeof last, 0, 0 };
    uint64_t pill = PILL;
    int fd = round_of->fd, is_count = round_of->kind == COUNTS;
    size_t len = is_count ? sizeof pill : sizeof last;
    long result;
    do
        result = write(fd, is_count ? (void *)&pill : &last, len);
    while (is_to_be_made_again(fd, result, POLLOUT));
    noted_of(WRITE, class_of(), result);
    if (result != (long)len)
        fault("the last message does not go", result);
}

static int is_received(char *at, long len)
{
    long whole = whole_record(at, len);
    __atomic_fetch_add(&round_of->received, 1, __ATOMIC_ACQ_REL);
    if (whole < 0 || (whole > 0 && whole != len))
        fault("a message is not whole", len);
    return whole == 0;
}

static void receive_packets(char *buffer)
{
    long lens[4];
    int count, over = 0;
    while (!over) {
        if (read_some(round_of->other, buffer, MOST, lens, &count) <= 0) {
            fault("nothing received", lens[0]);
            return;
        }
        for (int i = 0; i < count; i++)
            over |= is_received(buffer + i * MOST / 4, lens[i]);
    }
    if (__atomic_add_fetch(&round_of->readers_done, 1, __ATOMIC_ACQ_REL) < (uint32_t)(round_of->readers * round_of->processes))
        pass_on();
}

/* One reader puts together what has no borders. */
static void receive_bytes(char *buffer)
{
    size_t have = 0;
    uint64_t sum = 0;
    long lens[4], result, whole = 1;
    int count;
    while (whole != 0) {
        size_t most = round_of->kind == COUNTS ? 8 : 4 + below(MOST - have - 3);
        result = read_some(round_of->other, buffer + have, most, lens, &count);
        if (round_of->kind == COUNTS && result == 8) {
            uint64_t value;
            memcpy(&value, buffer, 8);
            sum += value;
            whole = sum < PILL;
            continue;
        }
        if (result <= 0) {
            fault("nothing received", result);
            return;
        }
        size_t at = 0;
        have += result;
        while (have - at >= sizeof(struct record)) {
            struct record head;
            memcpy(&head, buffer + at, sizeof head);
            if (head.magic == MAGIC && head.len <= MOST && head.len > have - at)
                break;
            whole = whole_record(buffer + at, have - at);
            if (whole < 0) {
                fault("a record is torn", at);
                return;
            }
            __atomic_fetch_add(&round_of->received, 1, __ATOMIC_ACQ_REL);
            at += whole;
            if (whole == 0)
                break;
        }
        memmove(buffer, buffer + at, have - at);
        have -= at;
    }
    if (round_of->kind == COUNTS && sum - PILL != round_of->counted)
        fault("counts differ", (long)(sum - PILL));
}

struct worker {
    int writer, is_reader;
    uint64_t at;
};

static void look_at_last_calls(void);
static void *work(void *arg)
{
    struct worker of = *(struct worker *)arg;
    char *buffer = malloc(MOST + 8);
    state = of.at * 0x2545f4914f6cdd1d + of.writer * 31 + of.is_reader;
    if (of.is_reader && is_of_packets(round_of->kind))
        receive_packets(buffer);
    else if (of.is_reader)
        receive_bytes(buffer);
    else if (round_of->kind == READS)
        read_file(buffer);
    else if (round_of->kind == BOTH)
        move_position(buffer);
    else
        write_records(of.writer, buffer);
    if (!of.is_reader)
        __atomic_fetch_add(&round_of->writers, 1, __ATOMIC_ACQ_REL);
    look_at_last_calls();
    free(buffer);
    return NULL;
}

/* The threads of one process. The first one's last message follows those of all. */
static void work_together(int process, uint64_t at)
{
    pthread_t threads[2 * MAKERS + 1];
    struct worker of[2 * MAKERS + 1];
    int count = 0, has_queue = round_of->kind >= COUNTS;
    int readers = !has_queue ? 0 : is_of_packets(round_of->kind) ? round_of->readers : process == 0;
    for (int i = 0; i < round_of->makers + readers; i++, count++) {
        of[i] = (struct worker){ process * MAKERS + i, i >= round_of->makers, at };
        if (pthread_create(&threads[i], NULL, work, &of[i]))
            die("thread");
    }
    if (process == 0 && has_queue) {
        while (__atomic_load_n(&round_of->writers, __ATOMIC_ACQUIRE) < (uint32_t)(round_of->processes * round_of->makers))
            usleep(100);
        pass_on();
    }
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static int by_place(const void *a, const void *b)
{
    const uint32_t *one = a, *other = b;
    return *one < *other ? -1 : *one > *other;
}

static void check_file(char *all, long size)
{
    long at = 0, end = lseek(round_of->fd, 0, SEEK_CUR);
    uint32_t last[WRITERS] = { 0 };
    if (round_of->kind == READS) {
        qsort(round_of->range, round_of->ranges, sizeof *round_of->range, by_place);
        for (uint32_t i = 0; i < round_of->ranges && round_of->range[i].at == at; i++)
            at += round_of->range[i].len;
        if (at != size || end != size)
            fault("reads do not divide the file", at);
        return;
    }
    if (round_of->kind == BOTH || round_of->kind == WRITES || round_of->kind == APPENDS) {
        /* A pwrite that appends leaves the position alone. */
        if (round_of->kind != APPENDS && end != (long)(round_of->written + round_of->read))
            fault("the position is not what calls said", end);
        if (round_of->kind != BOTH && size != (long)round_of->written)
            fault("the size is not what calls said", size);
    }
    for (; round_of->kind != BOTH && at < size;) {
        struct record head;
        long len = whole_record(all + at, size - at);
        memcpy(&head, all + at, sizeof head);
        if (len <= 0 && round_of->kind == PLACES && head.magic == 0) {
            at += SLOT;
            continue;
        }
        if (len <= 0) {
            fault("a record is torn", at);
            return;
        }
        if (round_of->kind != PLACES && head.number != last[head.writer]++)
            fault("records of a thread are not in order", at);
        at += len;
    }
}

/* Whole, in order, and the same number everywhere. */
static void check(void)
{
    struct stat of;
    if (is_of_files(round_of->kind)) {
        if (fstat(round_of->fd, &of))
            die("fstat");
        char *all = of.st_size ? mmap(NULL, of.st_size, PROT_READ, MAP_SHARED, round_of->fd, 0) : NULL;
        if (all == MAP_FAILED)
            die("mmap");
        check_file(all, of.st_size);
        munmap(all, of.st_size);
    }
    if (round_of->kind == PLACES || round_of->kind == BOTH || round_of->kind == READS || round_of->kind == COUNTS)
        return;
    for (int i = 0; i < round_of->processes; i++)
        for (int j = 0; j < round_of->makers; j++)
            for (int k = 0; k < round_of->records; k++)
                if (!round_of->seen[i * MAKERS + j][k])
                    fault("a record is lost", k);
}

static void open_descriptors(void)
{
    static const int sockets[] = { [STREAM] = STREAM_A, [STREAM_OF_TCP] = TCP_A, [STREAM_OF_TCP6] = TCP6_A, [DATAGRAMS] = GRAM_A,
                                   [PACKETS] = PACKET_A, [DATAGRAMS_OF_UDP] = UDP_A, [DATAGRAMS_OF_UDP6] = UDP6_A,
                                   [DATAGRAMS_OF_NETLINK] = NETLINK_A };
    int kind = round_of->kind, both[2];
    if (is_of_files(kind)) {
        round_of->fd = round_of->other = opened("shared", O_RDWR | O_TRUNC | (kind == APPENDS ? O_APPEND : 0));
        for (uint32_t i = 0; kind == READS && i < SIZE; i += PAGE) {
            uint32_t words[PAGE / 4];
            for (uint32_t j = 0; j < PAGE / 4; j++)
                words[j] = i / 4 + j;
            if (noted_of(PWRITE, 0, pwrite(round_of->fd, words, PAGE, i)) != (long)PAGE)
                die("words");
        }
        return;
    }
    if (kind == COUNTS)
        both[0] = both[1] = eventfd(0, 0);
    else if (kind == PIPED || kind == PACKETS_OF_PIPE) {
        if (pipe2(both, kind == PIPED ? 0 : O_DIRECT))
            die("pipe");
        int end = both[0];
        both[0] = both[1], both[1] = end;
    } else {
        memcpy(both, fds + sockets[kind], sizeof both);
    }
    for (int i = 0; i < 2; i++)
        fcntl(both[i], F_SETFL, (fcntl(both[i], F_GETFL) & ~O_NONBLOCK) | (round_of->is_nonblocking ? O_NONBLOCK : 0));
    round_of->fd = both[0], round_of->other = both[1];
}

/* Some thousand calls of a kind that is drawn. */
static void share(uint64_t seed, uint64_t at)
{
    pid_t children[PROCESSES];
    begin(salt = seed ^ at * 0x2545f4914f6cdd1d);
    memset(round_of, 0, sizeof *round_of);
    round_of->kind = below(ROUNDS);
    round_of->processes = 1 + below(PROCESSES);
    round_of->makers = round_of->processes == 1 ? 2 + below(MAKERS - 1) : 1 + below(MAKERS);
    round_of->readers = 1 + below(MAKERS);
    round_of->records = 800 / (round_of->processes * round_of->makers * (round_of->kind >= COUNTS ? 2 : 1));
    round_of->is_nonblocking = below(2) && round_of->kind != STREAM && round_of->kind != STREAM_OF_TCP && round_of->kind != STREAM_OF_TCP6;
    open_descriptors();
    alarm(300);
    for (int i = 1; i < round_of->processes; i++)
        if ((children[i] = TEMP_FAILURE_RETRY(fork())) == 0) {
            alarm(300);
            work_together(i, at);
            look_at_last_calls();
            _exit(0);
        } else if (children[i] < 0)
            die("fork");
    work_together(0, at);
    for (int i = 1, status; i < round_of->processes; i++)
        if (TEMP_FAILURE_RETRY(waitpid(children[i], &status, 0)) < 0 || status)
            fault("a process ended", status);
    check();
    print("%llu: shared %s by %d of %d%s: %s\n", (unsigned long long)at, rounds[round_of->kind], round_of->processes, round_of->makers,
          round_of->is_nonblocking ? ", not blocking" : "", round_of->faults ? round_of->fault : "whole");
    if (round_of->fd > fds[ANY])
        close(round_of->fd);
    if (round_of->other > fds[ANY] && round_of->other != round_of->fd)
        close(round_of->other);
    look_at_last_calls();
    end();
}
