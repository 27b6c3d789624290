/* Names that depend on the thread that says them, and limits of a process: what calls come to that are made for it. Prints what came
 * out, to be compared with a run without Bonsai.
 *
 *   places FOLDER */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[80];

static void say(const char *what, long result)
{
    printf("%s: %ld %s\n", what, result, result < 0 ? strerror(errno) : "");
    fflush(stdout);
}

static socklen_t address(struct sockaddr_un *at, const char *path)
{
    memset(at, 0, sizeof *at);
    at->sun_family = AF_UNIX;
    strcpy(at->sun_path, path);
    return offsetof(struct sockaddr_un, sun_path) + strlen(path) + 1;
}

/* Sends to a path by three calls, and says what has come. */
static void send_to(const char *path, int receiver)
{
    struct sockaddr_un at;
    socklen_t len = address(&at, path);
    char text[8] = "hello", got[8];
    struct iovec vector = {text, 5};
    struct mmsghdr list = {.msg_hdr = {.msg_name = &at, .msg_namelen = len, .msg_iov = &vector, .msg_iovlen = 1}};
    int from = socket(AF_UNIX, SOCK_DGRAM, 0);
    say("sendmsg", sendmsg(from, &list.msg_hdr, 0));
    say("sendmmsg", sendmmsg(from, &list, 1, 0));
    say("sendto", sendto(from, text, 5, 0, (void *)&at, len));
    for (int i = 0; i < 4; i++)
        say("came", recv(receiver, got, sizeof got, MSG_DONTWAIT));
    close(from);
}

static int receiver(const char *path)
{
    struct sockaddr_un at;
    socklen_t len = address(&at, path);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    unlink(path);
    say("bind", bind(fd, (void *)&at, len));
    return fd;
}

static void *with_a_folder_of_its_own(void *unused)
{
    char path[100];
    snprintf(path, sizeof path, "%s/thread", folder);
    say("unshare", unshare(CLONE_FS));
    mkdir(path, 0755);
    say("chdir", chdir(path));
    int fd = receiver("socket");
    send_to("socket", fd);
    send_to("../thread/socket", fd);
    close(fd);
    return unused;
}

/* A root of its own, in a user namespace whose users are mapped after it has made calls. */
static void in_a_root(void)
{
    char text[64], outside[100], got[64];
    unsigned user = getuid(), group = getgid();
    snprintf(outside, sizeof outside, "%s/outside", folder);
    int out = receiver(outside);
    mkdir("root", 0755);
    if (fork() == 0) {
        int ends[2];
        struct iovec vector = {text, 1};
        say("unshare", unshare(CLONE_NEWUSER));
        socketpair(AF_UNIX, SOCK_DGRAM, 0, ends);
        say("writev", writev(ends[0], &vector, 1));
        struct { const char *file; unsigned id; } maps[] = {{"uid_map", user}, {"gid_map", group}};
        int fd = open("/proc/self/setgroups", O_WRONLY);
        say("setgroups", write(fd, "deny", 4));
        for (int i = 0; i < 2; i++) {
            snprintf(text, sizeof text, "/proc/self/%s", maps[i].file);
            fd = open(text, O_WRONLY);
            snprintf(text, sizeof text, "5 %u 1", maps[i].id);
            say(maps[i].file, write(fd, text, strlen(text)));
        }
        int on = 1;
        char control[CMSG_SPACE(sizeof(struct ucred))];
        struct iovec into = {got, sizeof got};
        struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        setsockopt(ends[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
        say("writev", writev(ends[0], &vector, 1));
        recv(ends[1], got, sizeof got, 0);
        say("recvmsg", recvmsg(ends[1], &message, 0));
        struct ucred *of = (void *)CMSG_DATA(CMSG_FIRSTHDR(&message));
        printf("from %u %u\n", of->uid, of->gid);
        if (chroot("root") == 0 && chdir("/") == 0) {
            send_to(outside, out);
            int in = receiver("/in");
            send_to("/in", in);
            send_to("in", in);
        } else {
            say("chroot", -1);
        }
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    for (int i = 0; i < 4; i++)
        say("came outside", recv(out, got, sizeof got, MSG_DONTWAIT));
}

/* A largest file holds for each call that writes. */
static void within_a_size(void)
{
    struct rlimit most = {5000, RLIM_INFINITY};
    char bytes[6000] = {0};
    struct iovec vector = {bytes, sizeof bytes};
    int ends[2], from = open("from", O_RDWR | O_CREAT | O_TRUNC, 0600);
    signal(SIGXFSZ, SIG_IGN);
    say("ftruncate", ftruncate(from, 100000));
    setrlimit(RLIMIT_FSIZE, &most);
    for (int way = 0; way < 4; way++) {
        int to = open("to", O_RDWR | O_CREAT | O_TRUNC, 0600);
        loff_t start = 0, start_too = 0;
        for (int twice = 0; twice < 2; twice++) {
            switch (way) {
            case 0: say("sendfile", sendfile(to, from, NULL, 20000)); break;
            case 1: say("copy_file_range", copy_file_range(from, &start, to, &start_too, 20000, 0)); break;
            case 2: say("writev", writev(to, &vector, 1)); break;
            default:
                if (pipe(ends) == 0)
                    say("write", write(ends[1], bytes, sizeof bytes));
                say("splice", splice(ends[0], NULL, to, NULL, sizeof bytes, 0));
            }
        }
        struct stat of;
        fstat(to, &of);
        say("size", of.st_size);
        close(to);
    }
    most.rlim_cur = RLIM_INFINITY;
    say("prlimit", prlimit(getpid(), RLIMIT_FSIZE, &most, NULL));
}

static void odd(void)
{
    char bytes[16];
    struct iovec vector = {bytes, sizeof bytes}, nothing = {bytes, 0};
    int ends[2], set = epoll_create1(0);
    say("readv of a set", readv(set, &vector, 1));
    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends);
    say("writev of nothing", writev(ends[0], &nothing, 1));
    say("writev of no list", writev(ends[0], &vector, 0));
    say("recv", recv(ends[1], bytes, sizeof bytes, 0));
    say("write of nothing", write(ends[0], bytes, 0));
    say("recv", recv(ends[1], bytes, sizeof bytes, 0));
    int from[2], to[2];
    if (pipe(from) || pipe(to) || write(from[1], "12345", 5) != 5)
        say("pipes", -1);
    say("tee", tee(from[0], to[1], 0x7fffffff, 0));
    say("tee of nothing", tee(from[0], to[1], 0, 0));
    say("tee to itself", tee(from[0], from[1], 5, 0));
    say("tee of a set", tee(set, to[1], 5, 0));
    say("tee by wrong flags", tee(from[0], to[1], 5, 0x80));
    close(from[1]);
    say("read", read(from[0], bytes, sizeof bytes));
    say("tee at the end", tee(from[0], to[1], 5, 0));
    say("read", read(to[0], bytes, sizeof bytes));
}

/* A stream that comes in two parts, direct I/O, a name that is no text, and a list at the end of the addresses. */
static void odder(void)
{
    static char pages[3 * 4096] __attribute__((aligned(4096)));
    char bytes[16] = "123456789";
    struct iovec vector = {pages, sizeof pages};
    int ends[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    if (fork() == 0) {
        say("first", write(ends[0], bytes, 3));
        usleep(100000);
        _exit(write(ends[0], bytes + 3, 6) != 6);
    }
    usleep(50000);
    say("recv of all", recv(ends[1], bytes, 9, MSG_WAITALL));
    wait(NULL);
    say("sent", write(ends[0], bytes, 4));
    say("recv of some", recv(ends[1], bytes, 9, 0));
    say("shutdown", shutdown(ends[0], SHUT_WR));
    say("recv at the end", recv(ends[1], bytes, 9, MSG_WAITALL));
    int fd = open("direct", O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    memset(pages, 7, sizeof pages);
    say("pwritev", pwritev(fd, &vector, 1, 0));
    say("preadv", preadv(fd, &vector, 1, 4096));
    say("readv", readv(fd, &vector, 1));
    prctl(PR_SET_NAME, "a part of \xc3");
    vector.iov_len = 5;
    say("writev", writev(ends[1], &vector, 1));
    /* Files that ask which process it is. */
    struct iovec halves[2] = {{"na", 2}, {"me", 2}};
    fd = open("/proc/self/comm", O_RDWR);
    say("writev of a name", writev(fd, halves, 2));
    prctl(PR_GET_NAME, bytes);
    printf("called %s\n", bytes);
    struct iovec counts[2] = {{pages, 4}, {pages + 4, 4}};
    say("writev of a counter", writev(eventfd(0, 0), counts, 2));
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    kill(getpid(), SIGUSR1);
    vector.iov_len = sizeof(struct signalfd_siginfo);
    say("readv of signals", readv(signalfd(-1, &set, SFD_NONBLOCK), &vector, 1));
    say("recvmmsg", recvmmsg(ends[0], (void *)-56, 1, 0, NULL));
    say("sendmmsg", sendmmsg(ends[0], (void *)-56, 1, 0));
}

int main(int argc, char **argv)
{
    pthread_t thread;
    if (argc < 2)
        return 2;
    alarm(40);
    snprintf(folder, sizeof folder, "%s", argv[1]);
    say("chdir", chdir(folder));
    int fd = receiver("here");
    send_to("here", fd);
    send_to("./nothing", fd);
    pthread_create(&thread, NULL, with_a_folder_of_its_own, NULL);
    pthread_join(thread, NULL);
    odd();
    odder();
    within_a_size();
    in_a_root();
    return 0;
}
