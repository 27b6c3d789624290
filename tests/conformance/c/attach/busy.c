// A process with a thread in each kind of wait, interrupted by a timer all the time,
// and with a stream of numbers through a pipe, each of which must arrive once.
// Arguments: the file that shows how far it is (struct seen), and "restart" or
// "interrupt" for its signal handler. It ends when its standard input does, with 0 if
// nothing has gone wrong.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// What the test looks at while this runs.
struct seen {
    atomic_ulong sent, got, wrong, rounds, interrupted, ticks;
};
static struct seen *seen;
static int stream[2], silent[2];
static atomic_int over;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t end = PTHREAD_COND_INITIALIZER;

static void wrong(const char *what, long value)
{
    seen->wrong++;
    fprintf(stderr, "%s: %ld, errno %d\n", what, value, errno);
}

// Whether a call is to be made again.
static int again(void)
{
    if (errno != EINTR)
        return 0;
    seen->interrupted++;
    return 1;
}

static void tick(int signal)
{
    int before = errno;
    // Some handlers take their time, with a call of their own.
    if (++seen->ticks % 7 == 0)
        nanosleep(&(struct timespec){0, 200000}, 0);
    errno = before;
}

static void *writes(void *unused)
{
    uint64_t next = 0, block[1024];
    while (!over) {
        size_t count = 1 + next * 7 % 1024;
        for (size_t i = 0; i < count; i++)
            block[i] = next++;
        char *from = (char *)block;
        for (size_t left = count * 8; left;) {
            ssize_t done = write(stream[1], from, left);
            if (done < 0) {
                if (again())
                    continue;
                wrong("write", done);
                return 0;
            }
            from += done;
            left -= done;
            seen->sent += done;
        }
    }
    close(stream[1]);
    return 0;
}

static void *reads(void *unused)
{
    uint64_t next = 0, block[1024 + 1];
    size_t have = 0;
    for (;;) {
        ssize_t done = read(stream[0], (char *)block + have, 8192 - have);
        if (done == 0)
            return 0;
        if (done < 0) {
            if (again())
                continue;
            wrong("read", done);
            return 0;
        }
        seen->got += done;
        have += done;
        for (size_t i = 0; i < have / 8; i++)
            if (block[i] != next++) {
                wrong("a number", block[i]);
                next = block[i] + 1;
            }
        memmove(block, (char *)block + have / 8 * 8, have % 8);
        have %= 8;
    }
}

// Blocked for as long as the process lives.
static void *waits_for_a_byte(void *unused)
{
    char byte;
    ssize_t done;
    while ((done = read(silent[0], &byte, 1)) < 0 && again())
        ;
    if (done != 1 || byte != 'x')
        wrong("the last byte", done);
    return 0;
}

static void *accepts(void *unused)
{
    int s = socket(AF_INET, SOCK_STREAM, 0), taken;
    listen(s, 1);
    while ((taken = accept(s, 0, 0)) < 0 && again())
        ;
    wrong("accept", taken);
    return 0;
}

static void *sleeps(void *unused)
{
    while (!over) {
        struct timespec from, to, left = {0, 20000000};
        clock_gettime(CLOCK_MONOTONIC, &from);
        while (nanosleep(&left, &left))
            if (!again())
                wrong("nanosleep", 0);
        clock_gettime(CLOCK_MONOTONIC, &to);
        long took = (to.tv_sec - from.tv_sec) * 1000000000L + to.tv_nsec - from.tv_nsec;
        if (took < 20000000)
            wrong("a sleep of 20 ms", took);
    }
    return 0;
}

static void *waits_for_the_end(void *unused)
{
    pthread_mutex_lock(&lock);
    while (!over)
        pthread_cond_wait(&end, &lock);
    pthread_mutex_unlock(&lock);
    return 0;
}

static void *polls(void *unused)
{
    int e = epoll_create1(0), n;
    while (!over) {
        struct pollfd none = {-1, 0, 0};
        if ((n = poll(&none, 1, 10)) != 0 && !(n < 0 && again()))
            wrong("poll", n);
        struct epoll_event event;
        if ((n = epoll_wait(e, &event, 1, 10)) != 0 && !(n < 0 && again()))
            wrong("epoll_wait", n);
    }
    return 0;
}

// Registers that nobody may touch, in use around each call.
static void *computes(void *unused)
{
    int zero = open("/dev/zero", O_RDONLY);
    double x = 1.5;
    while (!over) {
        char bytes[64];
        for (int i = 0; i < 50; i++) {
            memset(bytes, 1, sizeof bytes);
            if (pread(zero, bytes, sizeof bytes, 0) != sizeof bytes || bytes[5] || bytes[63])
                wrong("pread", bytes[5]);
            x = x * 1.0000001 + 1e-9;
        }
        seen->rounds++;
    }
    if (!(x >= 1.5))
        wrong("a number", (long)x);
    return 0;
}

static void *has_children(void *unused)
{
    while (!over) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            int null = open("/dev/null", O_WRONLY);
            _exit(write(null, "child", 5) == 5 ? 7 : 1);
        }
        while (waitpid(child, &status, 0) < 0 && again())
            ;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 7)
            wrong("a child", status);
        status = system("exit 3");
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 3)
            wrong("a shell", status);
        usleep(3000);
    }
    return 0;
}

static void *nothing(void *unused)
{
    return 0;
}

static void *has_threads(void *unused)
{
    while (!over) {
        pthread_t thread;
        if (pthread_create(&thread, 0, nothing, 0) == 0)
            pthread_join(thread, 0);
        usleep(500);
    }
    return 0;
}

int main(int count, char **args)
{
    int file = open(args[1], O_RDWR | O_CREAT, 0600);
    if (count < 3 || file < 0 || ftruncate(file, sizeof *seen) || pipe(stream) || pipe(silent))
        return 2;
    seen = mmap(0, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    struct sigaction action = {.sa_handler = tick};
    action.sa_flags = strcmp(args[2], "restart") == 0 ? SA_RESTART : 0;
    sigaction(SIGALRM, &action, 0);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 1700}, {0, 1700}}, 0);
    void *(*all[])(void *) = {writes, reads, waits_for_a_byte, waits_for_a_byte, sleeps,
        polls, computes, has_children, has_threads, waits_for_the_end, accepts};
    enum { JOINED = sizeof all / sizeof *all - 1 };
    pthread_t threads[JOINED + 1];
    for (int i = 0; i <= JOINED; i++)
        pthread_create(&threads[i], 0, all[i], 0);
    char byte;
    while (read(0, &byte, 1) < 0 && again())
        ;
    over = 1;
    if (write(silent[1], "xx", 2) != 2)
        wrong("write", 0);
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&end);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < JOINED; i++)
        pthread_join(threads[i], 0);
    if (seen->sent != seen->got)
        wrong("bytes that arrived", seen->got);
    return seen->wrong != 0;
}
