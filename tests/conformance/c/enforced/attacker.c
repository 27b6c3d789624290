// A program that does all it can to move more bytes through standard output (or in from
// standard input, or to start more processes) than it may, for a second; each way is a
// trick with a name. What it moved is counted by whoever is at the other end.
//
// Standard error says what was denied ("denied ERRNO"), or went wrong.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "attacker.h"

char bytes[LARGE];
static double end;
static const char *self;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int on(void) { return now() < end; }

static void finish(const char *what, int error) {
    char line[80];
    int len = snprintf(line, sizeof line, "%s %d\n", what, error);
    if (write(2, line, len) < 0)
        _exit(3);
    _exit(0);
}

static long raw(long nr, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(nr), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

static void plain(void) {
    while (on())
        if (write(1, bytes, PIECE) < 0 && errno != EINTR)
            break;
}

static void raw_calls(void) {
    while (on())
        if (raw(SYS_write, 1, (long)bytes, PIECE) < 0)
            break;
}

static void again(const char *trick, char *const environment[]) {
    char rest[32];
    snprintf(rest, sizeof rest, "%.6f", end);
    char *arguments[] = {(char *)self, (char *)trick, rest, NULL};
    execve(self, arguments, environment);
    finish("exec", errno);
}

static void no_environment(void) {
    clearenv();
    char *none[] = {NULL};
    again("plain", none);
}

// Whatever can be mapped for writing that it has not mapped itself, and may be a ledger.
static void scribble_file(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat st;
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= 4096) {
        char name[300], link[400];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t len = readlink(link, name, sizeof name - 1);
        name[len > 0 ? len : 0] = 0;
        if (strstr(name, "ledger")) {
            char *at = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (at != MAP_FAILED)
                for (int i = 4096; i < 20000; i++)
                    at[i] = -1;
        }
    }
    close(fd);
}

static void scribble_folder(const char *folder, int depth) {
    DIR *all = opendir(folder);
    struct dirent *each;
    while (all && (each = readdir(all))) {
        char path[600];
        if (each->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, each->d_name);
        if (each->d_type == DT_DIR && depth > 0)
            scribble_folder(path, depth - 1);
        else
            scribble_file(path);
    }
    if (all)
        closedir(all);
}

static void scribble(void) {
    scribble_folder("/dev/shm", 2);
    scribble_folder("/run/bonsai", 2);
    if (getenv("BONSAI_RUNTIME_DIR"))
        scribble_folder(getenv("BONSAI_RUNTIME_DIR"), 2);
    char folder[64];
    for (int i = 0, pid = getppid(); i < 3 && pid > 1; i++, pid++) {
        snprintf(folder, sizeof folder, "/proc/%d/fd", pid);
        scribble_folder(folder, 0);
    }
    plain();
}

static void int80(void) {
    char *low = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    while (on()) {
        int result;
        __asm__ volatile("int $0x80" : "=a"(result) : "a"(4), "b"(1), "c"((int)(long)low), "d"(PIECE) : "memory");
        if (result < 0)
            finish("denied", -result);
    }
}

static void x32(void) {
    while (on()) {
        long result = raw(SYS_write | 0x40000000, 1, (long)bytes, PIECE);
        if (result < 0)
            finish("denied", -result);
    }
}

static void child_program(void) {
    if (vfork() == 0)
        again("raw", environ);
    wait(NULL);
}

static void *one_write(void *unused) {
    if (on() && write(1, bytes, PIECE) < 0)
        return unused;
    return NULL;
}

// One thread after another, each for one call.
void by_threads(void *(*one)(void *)) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 32768);
    pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    while (on())
        if (pthread_create(&thread, &small, one, NULL))
            usleep(1000);
}

static void threads(void) { by_threads(one_write); }

// Whoever is not under a filter is not to harm others.
static int is_confined(void) { return prctl(PR_GET_SECCOMP) == 2; }

static int parent_of(int pid) {
    char path[64], line[512] = {0};
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC), parent = 0;
    if (fd >= 0 && read(fd, line, sizeof line - 1) > 0) {
        char *name = strrchr(line, ')');
        if (name)
            sscanf(name, ") %*c %d", &parent);
    }
    close(fd);
    return parent;
}

// The supervisor, and the guard above it.
static void attack_others(void) {
    char path[64];
    int pid = getppid();
    for (int i = 0; i < 2 && pid > 1 && is_confined(); i++, pid = parent_of(pid)) {
        struct iovec mine = {bytes, 8}, theirs = {(void *)0x400000, 8};
        struct rlimit none = {0, 0};
        if (ptrace(PTRACE_SEIZE, pid, 0, 0) == 0)
            finish("traced", pid);
        process_vm_writev(pid, &mine, 1, &theirs, 1, 0);
        if (syscall(SYS_prlimit64, pid, RLIMIT_CPU, &none, NULL) == 0)
            finish("limited", pid);
        snprintf(path, sizeof path, "/proc/%d/mem", pid);
        if (open(path, O_RDWR | O_CLOEXEC) >= 0)
            finish("opened the memory of", pid);
        fcntl(0, F_SETOWN, pid);
        kill(pid, SIGSTOP);
        kill(pid, SIGTERM);
        syscall(SYS_tgkill, pid, pid, SIGKILL);
        if (kill(pid, SIGKILL) == 0)
            finish("killed", pid);
    }
    plain();
}

static void close_all(void) {
    for (int fd = 3; fd < 4096; fd++)
        close(fd);
    syscall(SYS_close_range, 3, ~0U, 0);
    plain();
}

static void ring(void) {
    char parameters[120] = {0};
    if (syscall(SYS_io_uring_setup, 8, parameters) < 0)
        finish("denied", errno);
    plain();
}

static void aio(void) {
    unsigned long context = 0;
    if (syscall(SYS_io_setup, 8, &context) < 0)
        finish("denied", errno);
    plain();
}

static int file_of_bytes(void) {
    int fd = memfd_create("bytes", 0);
    if (fd < 0 || ftruncate(fd, LARGE) < 0)
        finish("no file", errno);
    return fd;
}

static void by_splice(void) {
    int fd = file_of_bytes();
    while (on()) {
        off_t at = 0;
        if (splice(fd, &at, 1, NULL, LARGE, 0) < 0 && errno != EAGAIN)
            finish("splice", errno);
    }
}

static void by_sendfile(void) {
    int fd = file_of_bytes();
    while (on()) {
        off_t at = 0;
        if (sendfile(1, fd, &at, LARGE) < 0)
            finish("sendfile", errno);
    }
}

static void by_vmsplice(void) {
    while (on()) {
        struct iovec all = {bytes, LARGE};
        if (vmsplice(1, &all, 1, 0) < 0)
            finish("vmsplice", errno);
    }
}

static void by_tee(void) {
    int ends[2];
    if (pipe(ends) < 0 || write(ends[1], bytes, PIECE) < 0)
        finish("pipe", errno);
    while (on())
        if (tee(ends[0], 1, PIECE, 0) < 0)
            finish("tee", errno);
}

struct iovec raced;

void *flip_length(void *unused) {
    while (on()) {
        *(volatile size_t *)&raced.iov_len = 1;
        *(volatile size_t *)&raced.iov_len = LARGE;
    }
    return unused;
}

// Begins another thread, which changes what this one is about to name.
void against(void *(*other)(void *)) {
    pthread_t thread;
    raced = (struct iovec){bytes, 1};
    pthread_create(&thread, NULL, other, NULL);
}

static void vector_race(void) {
    against(flip_length);
    while (on())
        if (writev(1, &raced, 1) < 0)
            finish("writev", errno);
}

static void message_race(void) {
    pthread_t thread;
    raced = (struct iovec){bytes, 1};
    struct msghdr message = {.msg_iov = &raced, .msg_iovlen = 1};
    pthread_create(&thread, NULL, flip_length, NULL);
    while (on())
        if (sendmsg(1, &message, 0) < 0)
            finish("sendmsg", errno);
}

enum { RACED = 77 };

static void *flip_descriptor(void *unused) {
    int file = file_of_bytes();
    while (on()) {
        dup2(file, RACED);
        dup2(1, RACED);
    }
    return unused;
}

// The limit is on sockets: what is looked at is a file, what is written to is not.
static void descriptor_race(void) {
    dup2(1, RACED);
    against(flip_descriptor);
    while (on())
        if (write(RACED, bytes, PIECE) < 0)
            finish("write", errno);
}

// The same for a call that the supervisor makes: it has the number, and takes what it
// stands for by then.
static void vector_descriptor_race(void) {
    dup2(1, RACED);
    against(flip_descriptor);
    struct iovec two[2] = {{bytes, PIECE / 2}, {bytes, PIECE / 2}};
    while (on())
        if (writev(RACED, two, 2) < 0)
            finish("writev", errno);
}

// No other thread: a number that was a file as often as it takes to be believed one.
static void number_again(void) {
    int file = file_of_bytes();
    for (int i = 0; on(); i++) {
        dup2(file, RACED);
        for (int j = 0; j < 4; j++)
            if (write(RACED, "f", 1) < 0)
                finish("file", errno);
        if (i % 2)
            close(RACED);
        dup2(1, RACED);
        if (write(RACED, bytes, PIECE) < 0)
            finish("write", errno);
    }
}

// The same number in a process that has the parent's memory, but descriptors of its own,
// and after an exec that has closed what was there.
static void number_of_a_child(void) {
    int file = file_of_bytes();
    dup2(file, RACED);
    for (int j = 0; j < 4; j++)
        if (write(RACED, "f", 1) < 0)
            finish("file", errno);
    while (on()) {
        int pid = fork();
        if (pid == 0) {
            if (write(RACED, "f", 1) < 0 || write(RACED, "f", 1) < 0)
                finish("file", errno);
            dup2(1, RACED);
            if (write(RACED, bytes, PIECE) < 0)
                finish("write", errno);
            struct iovec one = {bytes, PIECE};
            if (writev(RACED, &one, 1) < 0)
                finish("writev", errno);
            _exit(0);
        }
        waitpid(pid, NULL, 0);
    }
    close(file);
    fcntl(RACED, F_SETFD, FD_CLOEXEC);
    end = now() + 0.2;
    again("plain", environ);
}

// Nobody may look what its descriptors are.
static void closed_descriptors(void) {
    prctl(PR_SET_DUMPABLE, 0);
    plain();
}

static void quiet(int unused) { (void)unused; }

static void interruptions(void) {
    struct sigaction action = {.sa_handler = quiet};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, NULL);
    plain();
}

static void interrupted_vectors(void) {
    struct sigaction action = {.sa_handler = quiet};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, NULL);
    struct iovec two[2] = {{bytes, PIECE}, {bytes, PIECE}};
    while (on())
        if (writev(1, two, 2) < 0 && errno != EINTR)
            finish("writev", errno);
}

// One call, as often as it takes: each time it is interrupted long before its turn.
static void interrupted_call(void) {
    struct sigaction action = {.sa_handler = quiet};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, NULL);
    struct iovec two[2] = {{bytes, PIECE}, {bytes, PIECE}};
    end = now() + 40;
    while (on() && writev(1, two, 2) < 0)
        if (errno != EINTR)
            finish("writev", errno);
}

static void daemon_of_its_own(void) {
    if (fork() == 0) {
        setsid();
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, 0);
            plain();
        }
        _exit(0);
    }
    wait(NULL);
    while (on())
        usleep(10000);
}

static void filters_of_its_own(void) {
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &allow};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program) < 0 && errno != EBUSY)
        finish("filter", errno);
    plain();
}

static void name_spaces(void) {
    unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS);
    if (fork() == 0) {
        plain();
        _exit(0);
    }
    wait(NULL);
}

static void priorities(void) {
    if (!is_confined())
        return plain();
    setpriority(PRIO_PROCESS, 0, -20);
    prctl(PR_SET_TIMERSLACK, 1);
    struct sched_param most = {.sched_priority = 99};
    sched_setscheduler(0, SCHED_FIFO, &most);
    plain();
}

static void large(void) {
    char *all = mmap(NULL, 1 << 28, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    while (on())
        if (write(1, all, 1 << 28) < 0)
            break;
}

static void closed_memory(void) {
    prctl(PR_SET_DUMPABLE, 0);
    struct iovec two[2] = {{bytes, PIECE}, {bytes, PIECE}};
    while (on()) {
        if (write(1, bytes, PIECE) < 0)
            break;
        if (writev(1, two, 2) < 0 && errno != EPERM)
            finish("writev", errno);
    }
}

static void set_user(void) {
    // A copy of this with the bit set: it may not become another user.
    if (geteuid() != getuid())
        finish("became another user", geteuid());
    plain();
}

static void traced(void) {
    // A tracer changes the number of the call at its entry.
    int pid = fork();
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        while (on())
            raw(SYS_getppid, 1, (long)bytes, PIECE);
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD);
    while (on() && ptrace(PTRACE_SYSCALL, pid, 0, 0) == 0 && waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        long nr = ptrace(PTRACE_PEEKUSER, pid, 8 * 15, 0);
        if (nr == SYS_getppid)
            ptrace(PTRACE_POKEUSER, pid, 8 * 15, SYS_write);
    }
    kill(pid, SIGKILL);
}

static const struct {
    const char *name;
    void (*run)(void);
} tricks[] = {
    {"plain", plain}, {"raw", raw_calls}, {"no-environment", no_environment}, {"scribble", scribble},
    {"int80", int80}, {"x32", x32}, {"child", child_program}, {"threads", threads},
    {"attack-others", attack_others}, {"close-all", close_all}, {"io_uring", ring}, {"aio", aio},
    {"splice", by_splice}, {"sendfile", by_sendfile}, {"vmsplice", by_vmsplice}, {"tee", by_tee},
    {"vector-race", vector_race}, {"message-race", message_race}, {"descriptor-race", descriptor_race},
    {"vector-descriptor-race", vector_descriptor_race}, {"number-again", number_again},
    {"number-of-a-child", number_of_a_child}, {"closed-descriptors", closed_descriptors},
    {"interruptions", interruptions}, {"interrupted-vectors", interrupted_vectors},
    {"interrupted-call", interrupted_call}, {"daemon", daemon_of_its_own},
    {"filters", filters_of_its_own}, {"name-spaces", name_spaces}, {"priorities", priorities}, {"large", large},
    {"closed-memory", closed_memory}, {"set-user", set_user}, {"traced", traced}, {"forks", forks},
    {"thread-bomb", thread_bomb}, {"read", read_in}, {"read-threads", read_by_threads},
    {"read-children", read_by_children}, {"read-race", read_race},
};

int main(int count, char **arguments) {
    signal(SIGPIPE, SIG_DFL);
    self = arguments[0];
    // Whoever is made to wait for long ends all the same.
    alarm(2);
    end = count > 2 ? atof(arguments[2]) : now() + 1.0;
    for (size_t i = 0; count > 1 && i < sizeof tricks / sizeof *tricks; i++)
        if (strcmp(tricks[i].name, arguments[1]) == 0) {
            tricks[i].run();
            _exit(0);
        }
    return 2;
}
