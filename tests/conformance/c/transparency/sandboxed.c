/* Allows itself the calls that it makes, and futex; any other ends it. Then it goes through files,
 * pipes, sockets, readiness, threads and children.
 *
 *   sandboxed before|after|inherited [threads] [fork]
 *
 * The filter comes before anything is opened, after all has been opened and used, or from the
 * program before. */
#define _GNU_SOURCE
#include "probe.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TURNS = 16, SIZE = 4000, LARGE = 100000, THREADS = 3 };

static char block[LARGE];

/* What moves bytes and waits. */
static const int always[] = {
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_sendto, SYS_recvfrom,
    SYS_sendmsg, SYS_recvmsg, SYS_poll, SYS_epoll_wait, SYS_futex, SYS_exit_group, -1,
};
/* What opens. */
static const int opening[] = {
    SYS_openat, SYS_close, SYS_pipe2, SYS_pipe, SYS_socketpair, SYS_epoll_create1, SYS_epoll_ctl, -1,
};
/* What libc needs for threads, and for children. */
static const int threading[] = {
    SYS_mmap, SYS_munmap, SYS_mprotect, SYS_madvise, SYS_clone, SYS_clone3, SYS_set_robust_list,
    SYS_rseq, SYS_rt_sigprocmask, SYS_rt_sigaction, SYS_exit, SYS_brk, SYS_prlimit64, SYS_getrandom, -1,
};
static const int forking[] = {
    SYS_clone, SYS_set_robust_list, SYS_rseq, SYS_wait4, SYS_rt_sigprocmask, -1,
};
/* What the kernel, the loader and libc need to begin. */
static const int beginning[] = {
    SYS_execve, SYS_brk, SYS_mmap, SYS_munmap, SYS_mprotect, SYS_access, SYS_fstat, SYS_newfstatat,
    SYS_arch_prctl, SYS_set_tid_address, SYS_set_robust_list, SYS_rseq, SYS_prlimit64,
    SYS_getrandom, SYS_alarm, -1,
};

static struct sock_filter code[200];
static unsigned short steps;

static void add(unsigned short what, unsigned k, unsigned char no)
{
    code[steps++] = (struct sock_filter){what, 0, no, k};
}

static void allow(const int *numbers)
{
    for (; *numbers >= 0; numbers++) {
        add(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)*numbers, 1);
        add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0);
    }
}

static int has(int n, char **words, const char *word)
{
    for (int i = 2; i < n; i++)
        if (!strcmp(words[i], word))
            return 1;
    return 0;
}

static void confine(const char *when, int n, char **words)
{
    add(BPF_LD | BPF_W | BPF_ABS, 0, 0);
    allow(always);
    if (strcmp(when, "after"))
        allow(opening);
    if (!strcmp(when, "inherited"))
        allow(beginning);
    if (has(n, words, "threads"))
        allow(threading);
    if (has(n, words, "fork"))
        allow(forking);
    add(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS, 0);
    struct sock_fprog program = {steps, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program))
        say("no filter: %s", error_name(-1));
}

static struct {
    int file, null, way[2], pair[2], fast[2], packets[2], loop;
} fd;

static void make(void)
{
    fd.file = open("sandboxed.data", O_RDWR | O_CREAT | O_TRUNC, 0600);
    fd.null = open("/dev/null", O_WRONLY);
    int bad = pipe(fd.way) | socketpair(AF_UNIX, SOCK_STREAM, 0, fd.pair);
    bad |= socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd.fast);
    bad |= socketpair(AF_UNIX, SOCK_DGRAM, 0, fd.packets);
    fd.loop = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd.fast[1]};
    bad |= epoll_ctl(fd.loop, EPOLL_CTL_ADD, fd.fast[1], &event);
    say("made: %d", bad | (fd.file < 0) | (fd.null < 0));
}

/* All of what is asked for, however it comes. */
static long fully(ssize_t (*by)(int, void *, size_t), int of, size_t len)
{
    size_t done = 0;
    while (done < len) {
        ssize_t got = by(of, block + done, len - done);
        if (got <= 0)
            return got;
        done += (size_t)got;
    }
    return (long)done;
}

static ssize_t take(int of, void *at, size_t len) { return recv(of, at, len, 0); }
static ssize_t put(int of, void *at, size_t len) { return send(of, at, len, 0); }

static void use_files(void)
{
    long moved = 0;
    struct iovec halves[2] = {{block, SIZE / 2}, {block + SIZE / 2, SIZE / 2}};
    for (int k = 0; k < TURNS; k++) {
        moved += pwrite(fd.file, block, SIZE, k * SIZE);
        moved += pread(fd.file, block, SIZE, k * SIZE);
        moved += writev(fd.file, halves, 2);
        moved += write(fd.null, block, SIZE);
    }
    moved += pwrite(fd.file, block, LARGE, 0) + pread(fd.file, block, LARGE, 0);
    moved += write(fd.file, block, LARGE);
    say("files: %ld", moved);
}

static void use_pipes(void)
{
    long moved = 0;
    for (int k = 0; k < TURNS; k++)
        moved += write(fd.way[1], block, SIZE) + fully((ssize_t (*)(int, void *, size_t))read, fd.way[0], SIZE);
    say("pipes: %ld", moved);
}

static void use_sockets(void)
{
    long moved = 0;
    struct iovec whole = {block, SIZE};
    struct msghdr message = {.msg_iov = &whole, .msg_iovlen = 1};
    for (int k = 0; k < TURNS; k++) {
        moved += put(fd.pair[0], block, SIZE) + fully(take, fd.pair[1], SIZE);
        moved += sendmsg(fd.pair[1], &message, 0) + recvmsg(fd.pair[0], &message, MSG_WAITALL);
        moved += write(fd.pair[0], block, SIZE) + fully((ssize_t (*)(int, void *, size_t))read, fd.pair[1], SIZE);
        moved += send(fd.packets[0], block, SIZE, 0) + recv(fd.packets[1], block, SIZE, 0);
    }
    moved += put(fd.pair[0], block, LARGE) + fully(take, fd.pair[1], LARGE);
    say("sockets: %ld", moved);
}

static void use_readiness(void)
{
    long sent = 0, got = 0;
    const long all = TURNS * SIZE;
    while (got < all) {
        struct pollfd way = {fd.fast[0], POLLOUT, 0};
        if (sent < all && poll(&way, 1, 1000) == 1) {
            ssize_t n = send(fd.fast[0], block, SIZE, 0);
            sent += n > 0 ? n : 0;
        }
        struct epoll_event event;
        if (epoll_wait(fd.loop, &event, 1, sent < all ? 1 : 1000) == 1) {
            ssize_t n = recv(fd.fast[1], block, SIZE, MSG_DONTWAIT);
            got += n > 0 ? n : 0;
        }
    }
    say("readiness: %ld %ld", sent, got);
}

static void *work(void *unused)
{
    long moved = 0;
    for (int k = 0; k < TURNS; k++)
        moved += write(fd.null, block, SIZE) + send(fd.packets[0], block, 100, 0) + recv(fd.packets[1], unused, 100, 0);
    return (void *)moved;
}

static void use_threads(void)
{
    pthread_t threads[THREADS];
    static char rooms[THREADS][100];
    long moved = 0;
    for (int k = 0; k < THREADS; k++)
        pthread_create(&threads[k], NULL, work, rooms[k]);
    for (int k = 0; k < THREADS; k++) {
        void *of;
        pthread_join(threads[k], &of);
        moved += (long)of;
    }
    say("threads: %ld", moved);
}

static void use_children(int depth)
{
    pid_t child = fork();
    if (child == 0) {
        use_pipes();
        if (depth > 0)
            use_children(depth - 1);
        _exit(7);
    }
    int status = 0;
    pid_t ended = waitpid(child, &status, 0);
    say("child: %d %d", ended == child, WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

static void use(int n, char **words)
{
    use_files();
    use_pipes();
    use_sockets();
    use_readiness();
    if (has(n, words, "threads"))
        use_threads();
    if (has(n, words, "fork"))
        use_children(2);
}

int main(int n, char **words)
{
    const char *when = n > 1 ? words[1] : "before";
    guard(50);
    if (!strcmp(when, "inherited")) {
        confine(when, n, words);
        words[1] = "inside";
        execv(words[0], words);
        say("not run: %s", error_name(-1));
        return 1;
    }
    if (!strcmp(when, "after")) {
        make();
        use(n, words);
        say("%s", "and now");
    }
    if (strcmp(when, "inside"))
        confine(when, n, words);
    if (strcmp(when, "after"))
        make();
    use(n, words);
    return 0;
}
