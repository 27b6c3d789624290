/* Random and hostile calls that move bytes, the same for a seed: result, errno, memory, files, their positions and
 * queues have to be the same bare and under limits.
 *
 *   odd_calls SEED FIRST COUNT [WORD]...   calls FIRST to FIRST + COUNT, a line for every 100 of them
 *
 *   all       a line for each call
 *   lean      many more calls a second: a line for every 4,000; memory, files and queues are looked at after several (odd_looks.h)
 *   copied    calls that are made from a copy of their arguments: see `is_copied`
 *   signals   2,000 signals a second, whose handler has SA_RESTART where the seed is even
 *   pieces    calls that may be made in pieces of less than a mebibyte
 *   small     lengths of more than a mebibyte are such as the kernel refuses; if lean, in less memory
 *   wide      in as much memory as ever
 *   loops     transfers of at most a mebibyte; what ends with EAGAIN is made again after a moment
 *   threads   three threads at a time, each with files of its own; lines come in any order
 *   shared    threads and processes at a time on one open file description: odd_shared.h
 *   held      begins, and ends, at a byte of standard input
 *
 * The calls of a line begin anew, so that one that differs is found again alone. Nothing blocks: what could is told
 * not to, and queues have room for all that a call moves. The last lines say how many bytes moved by which entry of
 * the table of calls (docs/reference/calls.md). `make fuzz-calls` runs it in every mode (scripts/fuzz-calls.sh). */
#include "odd_arguments.h"
#include "odd_looks.h"
#include "odd_shared.h"

/* The same call once more, after EINTR or EAGAIN. */
static __thread int is_again;

/* Bytes, or a question, for the other end of INTO. */
static void put(int into)
{
    const char *from = into == ROUTE ? (char *)&questions[below(60)] : constant + below(1000);
    size_t len = into == ROUTE ? 32 : 1 + below(below(4) ? 1000 : 9000);
    int fd = fds[into], tries = in_loops;
    ssize_t done;
    if (is_again)
        return;
    while ((done = TEMP_FAILURE_RETRY(write(fd, from, len))) < 0 && errno == EAGAIN && tries--)
        usleep(1000);
    noted(WRITE, fd, done);
    arrived(into, done);
}

/* Something to receive for a call that reads from KIND, half of the time. */
static void feed_one(int kind)
{
    if ((is_pair(kind) && kind != PIPE_W) || kind == ROUTE)
        if (below(2))
            put(kind == ROUTE ? ROUTE : kind ^ 1);
}

static long made(void)
{
    int fd = descriptor(), other = descriptor(), count, sends, i;
    int which = below(is_signalled ? 17 : 22);
    is_peek = 0, room = LONG_MAX;
    if (which >= 11 && which <= 16)
        fd = of_sockets(fd);
    else if (which == 2 || which == 3 || (which >= 6 && which <= 10) || which == 20)
        fd = of_files(fd), other = of_files(other);
    else if (which == 18 || which == 19)
        fd = below(2) ? fds[PIPE_W] : fd, other = below(2) ? fds[PIPE_R] : other;
    int what = which_of(fd), source = which_of(other);
    if (what == ROUTE && which >= 17)
        fd = fds[NETLINK_A], what = NETLINK_A;
    /* An enforced one sends what a file has at first, though it grows as it is sent to itself ("sendfile returns less"). */
    if (is_copied && which == 17 && source == what)
        other = fds[READ_ONLY], source = READ_ONLY;
    /* Nor does what it sends to UDP stay for the next datagram, if more was asked for than the file has. */
    if (is_copied && which == 17 && is_udp(what))
        fd = fds[PIPE_W], what = PIPE_W;
    on = fd, touched[0] = what, touched[1] = which >= 17 && which <= 20 ? source : KINDS;
    mark(what), mark(touched[1]);
    if (is_lean && (which == 0 || which == 4 || which == 12 || (which >= 14 && which <= 16)))
        feed_one(what);
    if (is_lean && (which == 18 || which == 19))
        feed_one(source);
    is_charged_as_asked = is_copied && is_netlink(what);
    is_sink = is_small && (what == NOTHING || what == ZEROES);
    is_stream = what == STREAM_A || what == STREAM_B || is_tcp(what) || (is_copied && (which == 12 || which >= 14) && which <= 16) ||
                is_charged_as_asked ||
                /* The same of what is read from anything but a file. */
                (is_copied && (which == 0 || which == 4 || which == 8) && what >= EVENT) ||
                /* How much of a pipe's write is before a fault depends on how it is cut, too. */
                ((is_copied || in_pieces) && (which == 1 || which == 5) && what == PIPE_W);
    char *at = pointer();
    size_t len = length();
    off_t where = place();
    if ((in_loops || (is_small && is_lean)) && which >= 17 && which <= 20 && len <= SSIZE_MAX)
        len &= 0xfffff;
    places[0] = place(), places[1] = place();
    off_t *from = below(2) ? &places[0] : below(8) ? NULL : (off_t *)pointer();
    off_t *to = below(2) ? &places[1] : NULL;
    struct iovec *of;
    to_kernel = what == ROUTE && (which == 1 || which == 5 || (which >= 9 && which <= 11) || which == 13 || which == 15 || which == 16);
    if (to_kernel) {
        at = is_copied || below(8) ? (char *)&questions[below(60)] : NULL;
        len = below(8) ? 32 * below(5) : huge(-1);
    }
#define CALL(x, f) call = x; return f
    switch (which) {
    case 0: CALL(READ, read(fd, at, len));
    case 1: CALL(WRITE, write(fd, at, len));
    case 2: CALL(PREAD, pread(fd, at, len, where));
    case 3: CALL(PWRITE, pwrite(fd, at, len, where));
    case 4: of = list(&count); CALL(READV, readv(fd, of, count));
    case 5: of = list(&count); CALL(WRITEV, writev(fd, of, count));
    case 6: of = list(&count); CALL(PREADV, preadv(fd, of, count, where));
    case 7: of = list(&count); CALL(PWRITEV, pwritev(fd, of, count, where));
    case 8: of = list(&count); i = effects(); CALL(PREADV2, preadv2(fd, of, count, where, i & ~RWF_APPEND));
    case 9: case 10: of = list(&count); i = effects(); CALL(PWRITEV2, pwritev2(fd, of, count, where, i));
    case 11: i = options(what); CALL(SEND, send(fd, at, len, i));
    case 12: i = options(what); is_peek = i & MSG_PEEK, room = len < LONG_MAX ? len : LONG_MAX; CALL(RECV, recv(fd, at, len, i | MSG_DONTWAIT));
    case 13: header(&message, what); i = options(what); CALL(SENDMSG, sendmsg(fd, &message, i));
    case 14: header(&message, what); i = options(what); is_peek = i & MSG_PEEK, room = total(&message); CALL(RECVMSG, recvmsg(fd, &message, i | MSG_DONTWAIT));
    case 15: case 16:
        for (i = 0; i < 40; i++) {
            messages[i].msg_hdr.msg_iov = vectors + i;
            messages[i].msg_hdr.msg_iovlen = 1;
            messages[i].msg_len = 0;
            vectors[i].iov_base = below(40) ? arena + below(arena_len - 20000) : pointer();
            vectors[i].iov_len = below(40) ? below(3000) : length();
            /* Netlink refuses what is empty, and what follows it in a list is not sent. */
            vectors[i].iov_len += is_charged_as_asked;
            if (to_kernel)
                vectors[i] = (struct iovec){ &questions[below(60)], 32 * (1 + below(2)) };
        }
        count = below(12) ? below(below(is_lean ? 8 : 4) ? 6 : 40) : -1 - below(2);
        if (count < 0 && count != -1)
            count = 1;
        sends = to_kernel || below(2);
        /* The next call on a socket ends with the error of a message behind the first; not of one that was received from a copy. */
        if (count < 0 && (to_kernel || (is_copied && !sends) || is_charged_as_asked))
            count = 40;
        /* More would wait for acknowledgements. */
        if (is_tcp(what) && count > 6)
            count = 6;
        given = count < 0 ? (void *)pointer() : messages;
        if (sends) {
            CALL(SENDMMSG, sendmmsg(fd, (void *)given, count, MSG_DONTWAIT));
        }
        CALL(RECVMMSG, recvmmsg(fd, (void *)given, count, MSG_DONTWAIT, NULL));
    case 17:
        /* Zeroes have no end, nor has a file that is sent to itself: 2 GiB of it take seconds. */
        if (source == ZEROES || (source == what && (is_small || below(32))))
            len &= 0xffff;
        CALL(SENDFILE, sendfile(fd, other, from, len));
    case 18:
        if (source == ZEROES)
            len &= 0xffff;
        on = what == PIPE_W && source != KINDS ? other : fd;
        i = below(4) ? SPLICE_F_NONBLOCK : 0x80;
        CALL(SPLICE, splice(other, from, fd, to, len, i));
    case 19: CALL(TEE, tee(other, fd, len, SPLICE_F_NONBLOCK));
    case 20: CALL(COPY_FILE_RANGE, copy_file_range(other, from, fd, to, len, below(8) ? 0 : 1));
    default: of = list(&count); touched[0] = PIPE_W; mark(PIPE_W); CALL(VMSPLICE, vmsplice(fds[PIPE_W], of, count < 0 || count > 16 ? 1 : count, SPLICE_F_NONBLOCK));
    }
}

static void count(long result)
{
    if (call != SENDMMSG && call != RECVMMSG)
        noted(call, on, is_peek ? 0 : result < room ? result : room);
    else
        for (long i = 0; i < result; i++)
            noted(call, on, given[i].msg_len);
}

/* A signal that says nothing of its sender, whose number differs from run to run. */
static void usr1_to_this_thread(void)
{
    siginfo_t info = { .si_signo = SIGUSR1, .si_code = SI_QUEUE };
    info.si_value.sival_int = 7;
    syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), SIGUSR1, &info);
}

/* Something to receive in every queue, not always; where a call is on its own, before that one call (`feed_one`). */
static void feed(void)
{
    static const int into[] = { PIPE_W, STREAM_A, STREAM_B, GRAM_A, GRAM_B, PACKET_A, PACKET_B, TCP_A, TCP_B, TCP6_A, TCP6_B,
                                UDP_A, UDP_B, UDP6_A, UDP6_B, NETLINK_A, NETLINK_B, ROUTE };
    for (size_t i = 0; i < LENGTH(into) && !is_lean; i++)
        for (int n = below(3); n; n--)
            put(into[i]);
    if (below(16) == 0) {
        any = below(ANY);
        if (dup2(fds[any], fds[ANY]) < 0)
            die("dup2");
    }
    if (below(64) == 0)
        usr1_to_this_thread();
}

static void ignored(int signal) { (void)signal; }

static void interrupt_often(int flags)
{
    struct sigaction action = { .sa_handler = ignored, .sa_flags = flags };
    struct itimerval often = { { 0, 500 }, { 0, 500 } };
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
}

#define TRIES 2

/* In a served event loop a call may be too early ("Differences", docs/04-transparency.md): the longer the more it asks for. Bare, there
 * is little that cannot be written, and nothing to be read in a queue that nothing went to. */
static int wait_for_a_limit(int try)
{
    int writes = call == WRITE || call == WRITEV || call == SEND || call == SENDMSG || call == SENDMMSG || call == SENDFILE;
    if (!writes && (is_pair(touched[0]) || touched[0] == ROUTE) && !(filled >> touched[0] & 1))
        return 0;
    int error = errno;
    usleep(try == 0 ? 100 : is_small ? 1000 : 30000);
    errno = error;
    return try == 0 || writes;
}

/* Calls, and what was seen after them. `name` is before their lines, if there is one for each. */
static uint64_t calls(uint64_t hash, const char *name, uint64_t at, int most)
{
    for (int i = 0; i < most; i++) {
        feed();
        uint64_t before = state;
        long result;
        int again = in_loops ? 0 : TRIES;
        is_again = 0;
        /* Nothing waits bare. A wait for a limit ends with EINTR where the handler has no SA_RESTART, also on a device and a
         * descriptor that does not block ("Signals", docs/02-how-a-call-waits.md); the call is made again then. */
        do {
            state = before;
            errno = 0;
            result = made();
            is_again = 1;
        } while (result < 0 && ((errno == EINTR && is_signalled) || (errno == EAGAIN && again < TRIES && wait_for_a_limit(again++))));
        is_again = 0;
        int error = result < 0 ? errno : 0;
        count(result);
        uint64_t now = is_lean ? seen_lately(result, i) : seen(result);
        hash = mixed(hash, &result, sizeof result);
        hash = mixed(hash, &error, sizeof error);
        hash = mixed(hash, &now, sizeof now);
        if (name)
            print("%llu%s %s(%d) = %ld %s %016llx\n", (unsigned long long)(at + i), name, names[call], touched[0], result,
                  error ? strerrorname_np(error) : "-", (unsigned long long)(is_lean ? in_memory(positions(now)) : now));
    }
    return hash;
}

/* Of a thread that has ended the kernel does not say how much its last calls moved: an enforced one is charged for all that they
 * asked for. A call of another name has them looked at before. */
static void look_at_last_calls(void)
{
    char byte;
    (void)!TEMP_FAILURE_RETRY(read(fds[NOTHING], &byte, 0));
    (void)!TEMP_FAILURE_RETRY(pread(fds[NOTHING], &byte, 0, 0));
}

/* Calls of a child, by descriptors that it shares. */
static uint64_t of_a_child(uint64_t at, const char *name)
{
    static uint64_t *shared;
    if (!shared)
        shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die("memory");
    *shared = 0;
    pid_t child = TEMP_FAILURE_RETRY(fork());
    if (child < 0)
        die("fork");
    if (child == 0) {
        *shared = calls(1, name, at, 10);
        *shared = in_memory(*shared);
        look_at_last_calls();
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            die("waitpid");
    return *shared + status;
}

static int with_threads, is_shared, step, all;
static uint64_t seed, first, end_of;

/* Calls of one line, from `at` on. */
static void together(uint64_t at)
{
    begin(seed ^ at * 0x2545f4914f6cdd1d);
    uint64_t hash = calls(0, all ? "" : NULL, at, step / 2);
    if (is_lean && !with_threads) {
        uint64_t child = of_a_child(at, all ? " (child)" : NULL);
        hash = mixed(hash, &child, sizeof child);
    }
    hash = calls(hash, all ? "" : NULL, at + step / 2, step - step / 2);
    hash = emptied(files(hash), -1);
    print("%llu: %016llx\n", (unsigned long long)at, (unsigned long long)contents(in_memory(hash)));
    look_at_last_calls();
    end();
}

#define THREADS 3
static void *some(void *arg)
{
    thread = (int)(long)arg;
    int of = with_threads ? THREADS : 1, number = with_threads ? thread - 1 : 0;
    arena = guarded(arena_len);
    for (uint64_t at = first + (uint64_t)number * step; at < end_of; at += (uint64_t)of * step)
        if (is_shared)
            share(seed, at);
        else
            together(at);
    return NULL;
}

int main(int argc, char **argv)
{
    int held = 0, is_wide = 0;
    if (argc < 4)
        return 2;
    for (int i = 4; i < argc; i++) {
        all |= !strcmp(argv[i], "all");
        is_lean |= !strcmp(argv[i], "lean");
        is_signalled |= !strcmp(argv[i], "signals");
        is_small |= !strcmp(argv[i], "small");
        in_loops |= !strcmp(argv[i], "loops");
        in_pieces |= !strcmp(argv[i], "pieces");
        held |= !strcmp(argv[i], "held");
        is_copied |= !strcmp(argv[i], "copied");
        with_threads |= !strcmp(argv[i], "threads");
        is_shared |= !strcmp(argv[i], "shared");
        is_wide |= !strcmp(argv[i], "wide");
    }
    if (is_lean && is_small && !in_pieces && !is_wide)
        arena_len = CONSTANT / 4;
    seed = strtoull(argv[1], NULL, 0), first = strtoull(argv[2], NULL, 0);
    end_of = first + strtoull(argv[3], NULL, 0);
    step = is_shared ? 1000 : is_lean ? 4000 : 100;
    char byte;
    signal(SIGPIPE, SIG_IGN);
    if (held)
        (void)!TEMP_FAILURE_RETRY(read(0, &byte, 1));
    if (is_signalled)
        interrupt_often(seed % 2 ? 0 : SA_RESTART);
    moved = mmap(NULL, sizeof(*moved) * NAMES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (moved == MAP_FAILED)
        die("memory");
    round_of = mmap(NULL, sizeof *round_of, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (round_of == MAP_FAILED)
        die("memory");
    constant = guarded(CONSTANT);
    fill(constant, CONSTANT, 7);
    make_questions();
    int fd = opened("constant", O_RDWR | O_TRUNC);
    if (noted_of(WRITE, OF_FILES, TEMP_FAILURE_RETRY(write(fd, constant, 150000))) != 150000)
        die("constant");
    close(fd);
    /* A bucket starts empty: no call is to be too early in an event loop. */
    usleep(30000);
    if (with_threads) {
        pthread_t threads[THREADS];
        for (long i = 0; i < THREADS; i++)
            if (pthread_create(&threads[i], NULL, some, (void *)(i + 1)))
                die("thread");
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
    } else {
        some(NULL);
    }
    char lines[4000];
    int len = 0;
    for (int i = 0; i < NAMES; i++) {
        unsigned long long *of = moved[i];
        if (!has_kinds(i))
            of[0] += of[1] + of[2];
        for (int kind = 0; kind < (has_kinds(i) ? KINDS_OF : 1); kind++)
            len += snprintf(lines + len, sizeof lines - len, "# moved %s%s %llu\n", names[i], has_kinds(i) ? kinds[kind] : "", of[kind]);
    }
    (void)!TEMP_FAILURE_RETRY(write(1, lines, len));
    if (held)
        (void)!TEMP_FAILURE_RETRY(read(0, &byte, 1));
    return 0;
}
