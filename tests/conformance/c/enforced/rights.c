/* With whose rights and in whose name calls are made: netlink, Unix sockets, files. Prints what came out, to be compared with a run
 * without Bonsai.
 *
 *   rights plain FILE      as whoever it is
 *   rights changes FILE    as root, who gives up rights on the way: of the process, and of single threads
 *
 * FILE has to have the bit that gives its owner's rights, and be writable. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif
#define SCM_OF_PROCESS 4

static const char *file;

static const char *name_of(long result)
{
    static char text[32];
    if (result >= 0)
        return "done";
    snprintf(text, sizeof text, "errno %d", errno);
    return text;
}

/* The ways to send, numbered. */
static const char *const ways[] = {"send", "sendto", "sendmsg", "sendmmsg", "write", "writev", "pwritev2", "splice", "sendfile"};
enum { WAYS = sizeof ways / sizeof *ways, BY_REFERENCE = 7 };

static long send_by(int way, int to, void *bytes, size_t len)
{
    struct iovec parts[2] = {{bytes, 1}, {(char *)bytes + 1, len - 1}};
    struct mmsghdr list = {.msg_hdr = {.msg_iov = parts, .msg_iovlen = 2}};
    int ends[2], from;
    long sent;
    off_t start = 0;
    switch (way) {
    case 0:
        return send(to, bytes, len, 0);
    case 1:
        return syscall(SYS_sendto, to, bytes, len, 0, NULL, 0);
    case 2:
        return sendmsg(to, &list.msg_hdr, 0);
    case 3:
        sent = sendmmsg(to, &list, 1, 0);
        return sent == 1 ? (long)list.msg_len : sent;
    case 4:
        return write(to, bytes, len);
    case 5:
        return writev(to, parts, 2);
    case 6:
        return pwritev2(to, parts, 2, -1, 0);
    case 7:
        if (pipe(ends) != 0 || write(ends[1], bytes, len) != (ssize_t)len)
            return -1;
        sent = splice(ends[0], NULL, to, NULL, len, 0);
        close(ends[0]), close(ends[1]);
        return sent;
    default:
        from = open("/dev/shm", O_TMPFILE | O_RDWR, 0600);
        if (from < 0 || write(from, bytes, len) != (ssize_t)len)
            return -1;
        sent = sendfile(to, from, &start, len);
        close(from);
        return sent;
    }
}

/* Asks for another size of packets on the loopback interface, and takes it back. */
static long set_mtu(int way, unsigned mtu)
{
    struct {
        struct nlmsghdr header;
        struct ifinfomsg about;
        struct rtattr attribute;
        unsigned mtu;
    } order = {{sizeof order, RTM_NEWLINK, NLM_F_REQUEST | NLM_F_ACK, 1, 0}, {.ifi_index = 1}, {8, IFLA_MTU}, mtu};
    struct {
        struct nlmsghdr header;
        struct nlmsgerr error;
        char rest[512];
    } answer;
    int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (netlink < 0)
        return -1;
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    struct iovec part = {&order, sizeof order};
    struct msghdr named = {.msg_name = &kernel, .msg_namelen = sizeof kernel, .msg_iov = &part, .msg_iovlen = 1};
    long sent = way == WAYS ? sendmsg(netlink, &named, 0) : send_by(way, netlink, &order, sizeof order);
    struct sockaddr_nl own;
    socklen_t room = sizeof own;
    getsockname(netlink, (struct sockaddr *)&own, &room);
    if (sent > 0 && recv(netlink, &answer, sizeof answer, 0) > 0 && answer.error.error != 0) {
        errno = -answer.error.error;
        sent = -1;
    }
    int kept = errno;
    close(netlink);
    errno = kept;
    if (sent > 0 && way < BY_REFERENCE && own.nl_pid != (unsigned)getpid())
        printf("its number is another's: ");
    return sent;
}

static void orders(const char *when)
{
    for (int way = 0; way <= WAYS; way++)
        printf("%s: order by %s: %s\n", when, way == WAYS ? "named sendmsg" : ways[way], name_of(set_mtu(way, 4242)));
}

/* Receives a message, and says whose it is. */
static void whose(int from, int by_reference)
{
    union {
        struct cmsghdr first;
        char room[256];
    } control;
    char bytes[64];
    struct iovec part = {bytes, sizeof bytes};
    struct msghdr got = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (recvmsg(from, &got, MSG_DONTWAIT) < 0) {
        printf("nothing came");
        return;
    }
    for (struct cmsghdr *item = CMSG_FIRSTHDR(&got); item != NULL; item = CMSG_NXTHDR(&got, item)) {
        if (item->cmsg_level == SOL_SOCKET && item->cmsg_type == SCM_CREDENTIALS) {
            struct ucred who;
            memcpy(&who, CMSG_DATA(item), sizeof who);
            const char *process = who.pid == getpid() ? "own" : who.pid == getppid() ? "parent's" : who.pid == 1 ? "first" : "another";
            printf(" from process %s, user %d, group %d", by_reference ? "-" : process, who.uid, who.gid);
        }
        if (item->cmsg_level == SOL_SOCKET && item->cmsg_type == SCM_OF_PROCESS) {
            int process;
            char path[64], line[128] = "";
            memcpy(&process, CMSG_DATA(item), sizeof process);
            snprintf(path, sizeof path, "/proc/self/fdinfo/%d", process);
            FILE *about = fopen(path, "r");
            int pid = 0;
            while (about != NULL && fgets(line, sizeof line, about) != NULL)
                sscanf(line, "Pid: %d", &pid);
            if (about != NULL)
                fclose(about);
            printf(", process by descriptor: %s, %s", by_reference ? "-" : pid == getpid() ? "own" : "another",
                   (fcntl(process, F_GETFD) & FD_CLOEXEC) != 0 ? "closed by exec" : "kept");
            close(process);
        }
    }
}

static void messages(const char *when, int type)
{
    int pair[2], on = 1;
    if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair) != 0)
        return;
    setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    /* Not of every kernel. */
    setsockopt(pair[1], SOL_SOCKET, SO_PASSPIDFD, &on, sizeof on);
    for (int way = 0; way < WAYS; way++) {
        char bytes[16] = "0123456789abcde";
        long sent = send_by(way, pair[0], bytes, sizeof bytes);
        printf("%s: message of type %d by %s: %s", when, type, ways[way], name_of(sent));
        if (sent > 0)
            whose(pair[1], way >= BY_REFERENCE);
        printf("\n");
    }
    struct ucred said[] = {
        {getpid(), getuid(), getgid()}, {getpid(), geteuid(), getegid()}, {getpid(), 0, getgid()}, {getpid(), getuid(), 0},
        {getppid(), getuid(), getgid()}, {1, getuid(), getgid()}, {0x7ffffff0, getuid(), getgid()}, {getpid(), 4242, getgid()},
    };
    for (size_t k = 0; k < sizeof said / sizeof *said; k++)
        for (size_t len = 12; len <= 16; len += 4) {
            union {
                struct cmsghdr first;
                char room[CMSG_SPACE(16)];
            } control = {.first = {CMSG_LEN(len), SOL_SOCKET, SCM_CREDENTIALS}};
            memcpy(CMSG_DATA(&control.first), &said[k], sizeof *said);
            char byte = 'c';
            struct iovec part = {&byte, 1};
            struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(len)};
            long sent = sendmsg(pair[0], &message, 0);
            printf("%s: %zu bytes that say %zu: %s", when, len, k, name_of(sent));
            if (sent > 0)
                whose(pair[1], 0);
            printf("\n");
        }
    close(pair[0]), close(pair[1]);
}

/* Marks packets, which only some may. */
static void marked(const char *when)
{
    int udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    union {
        struct cmsghdr first;
        char room[CMSG_SPACE(4)];
    } control = {.first = {CMSG_LEN(4), SOL_SOCKET, SO_MARK}};
    unsigned mark = 7;
    memcpy(CMSG_DATA(&control.first), &mark, sizeof mark);
    char byte = 'm';
    struct iovec part = {&byte, 1};
    struct msghdr message = {&to, sizeof to, &part, 1, &control, sizeof control, 0};
    printf("%s: a mark: %s\n", when, name_of(sendmsg(udp, &message, 0)));
    close(udp);
}

/* A write by who may not keep it takes a bit away that gives the owner's rights. */
static void rights_of_file(const char *when)
{
    struct stat about;
    char byte = 'f';
    struct iovec part = {&byte, 1};
    int fd = open(file, O_WRONLY | O_CLOEXEC);
    chmod(file, 04777);
    long put = writev(fd, &part, 1);
    stat(file, &about);
    printf("%s: a file of a user: %s, mode %o\n", when, name_of(put), about.st_mode & 07777);
    close(fd);
}

static void all(const char *when)
{
    orders(when);
    messages(when, SOCK_DGRAM);
    messages(when, SOCK_STREAM);
    messages(when, SOCK_SEQPACKET);
    marked(when);
    rights_of_file(when);
    fflush(stdout);
}

/* Of this thread alone. */
static void *other_user(void *unused)
{
    syscall(SYS_setresgid, 65534, 65534, 65534);
    syscall(SYS_setresuid, 65534, 65534, 65534);
    all("a thread as another");
    return unused;
}

static void *less(void *unused)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}, {0}};
    syscall(SYS_capset, &header, none);
    all("a thread without capabilities");
    return unused;
}

static void in_thread(void *(*what)(void *))
{
    pthread_t thread;
    pthread_create(&thread, NULL, what, NULL);
    pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    file = argv[2];
    all("first");
    if (strcmp(argv[1], "changes") == 0) {
        in_thread(other_user);
        all("as before");
        in_thread(less);
        all("as before again");
        if (syscall(SYS_setresuid, -1, 65534, -1) != 0)
            return 1;
        all("acts as another");
        if (syscall(SYS_setresuid, -1, 0, -1) != 0)
            return 1;
        all("acts as itself");
        if (fork() == 0) {
            setgid(65534), setuid(65534);
            all("a child as another");
            _exit(0);
        }
        wait(NULL);
        all("its parent");
    }
    return 0;
}
