// Unwinding out of a system call: a thread that is cancelled in one runs the
// destructors of its frames, and a stack trace made in a signal handler goes all the
// way up. `unwind limited` waits for its limit instead (10 kB/s on write and send,
// burst 1 kB).
#include <cstdio>
#include <cstring>

#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

extern "C" {
#include "probe.h"
}

static int pipes[2];
static int sockets[2];
static char block[65536];
static volatile int started;
static volatile int destroyed;
static volatile int reached;
static volatile int handled;

struct Guard {
    ~Guard() { destroyed = destroyed + 1; }
};

typedef long Call();

static long blocked_read() { return read(pipes[0], block, 16); }
static long blocked_readv()
{
    iovec vector = {block, 16};
    return readv(pipes[0], &vector, 1);
}
static long blocked_recv() { return recv(sockets[0], block, 16, 0); }
static long blocked_recvmsg()
{
    iovec vector = {block, 16};
    msghdr message = {};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    return recvmsg(sockets[0], &message, 0);
}
static long blocked_accept() { return accept(sockets[0], nullptr, nullptr); }
static long blocked_fgetc()
{
    FILE *in = fdopen(dup(pipes[0]), "r");
    return fgetc(in);
}
static long blocked_write()
{
    return write(pipes[1], block, sizeof block) + write(pipes[1], block, 1);
}
// No cancellation point: it is cancelled when a byte has come.
static long blocked_syscall() { return syscall(SYS_read, pipes[0], block, 16); }
static long blocked_send()
{
    while (send(sockets[1], block, sizeof block, 0) > 0)
        ;
    return 0;
}

// 30 kB are 3 s away.
static long limited_write() { return write(pipes[1], block, 30000); }
static long limited_send() { return send(sockets[1], block, 30000, 0); }

// Five guards stand between the call and the thread's beginning.
static __attribute__((noinline)) long deep(Call *call, int depth)
{
    Guard guard;
    long result = depth == 0 ? call() : deep(call, depth - 1);
    __asm__ volatile("" ::: "memory");
    return result;
}

static __attribute__((noinline)) void *bottom(void *arg)
{
    Guard guard;
    started = 1;
    Call *call;
    memcpy(&call, &arg, sizeof call);
    deep(call, 3);
    pthread_testcancel();
    return nullptr;
}

// Which function the frame of `bottom` belongs to is told by its address.
static void trace(int)
{
    void *frames[64];
    int count = backtrace(frames, 64);
    char *from = reinterpret_cast<char *>(&bottom);
    reached = 0;
    for (int k = 0; k < count; k++) {
        char *at = static_cast<char *>(frames[k]);
        reached = reached || (at > from && at < from + 256);
    }
    handled = handled + 1;
}

static void look(const char *name, Call *call)
{
    pthread_t thread;
    void *arg;
    void *result = nullptr;
    raw_pipe(pipes);
    raw_socketpair(SOCK_STREAM, sockets);
    if (call == blocked_accept) {
        raw_close(sockets[0]);
        sockets[0] = socket(AF_UNIX, SOCK_STREAM, 0);
        sa_family_t any = AF_UNIX;
        bind(sockets[0], reinterpret_cast<sockaddr *>(&any), sizeof any);
        listen(sockets[0], 1);
    }
    memcpy(&arg, &call, sizeof arg);
    destroyed = started = handled = reached = 0;
    pthread_create(&thread, nullptr, bottom, arg);
    while (!started)
        raw_sleep(1000000);
    raw_sleep(50000000);
    pthread_kill(thread, SIGUSR1);
    for (int k = 0; k < 2000 && !handled; k++)
        raw_sleep(1000000);
    raw_sleep(20000000);
    pthread_cancel(thread);
    if (call == blocked_syscall)
        raw_write(pipes[1], "x", 1);
    pthread_join(thread, &result);
    say("%s: trace %s, %s, %d destructors", name, reached ? "complete" : "cut off",
        result == PTHREAD_CANCELED ? "cancelled" : "ended", destroyed);
    for (int k = 0; k < 2; k++) {
        raw_close(pipes[k]);
        raw_close(sockets[k]);
    }
}

int main(int argc, char **argv)
{
    guard(30);
    // Its first call loads libgcc_s.
    void *frames[4];
    backtrace(frames, 4);
    struct sigaction action = {};
    action.sa_handler = trace;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, nullptr);
    if (argc > 1 && strcmp(argv[1], "limited") == 0) {
        look("limited write", limited_write);
        look("limited send", limited_send);
        return 0;
    }
    look("read", blocked_read);
    look("readv", blocked_readv);
    look("recv", blocked_recv);
    look("recvmsg", blocked_recvmsg);
    look("accept", blocked_accept);
    look("fgetc", blocked_fgetc);
    look("write", blocked_write);
    look("send", blocked_send);
    look("syscall", blocked_syscall);
    return 0;
}
