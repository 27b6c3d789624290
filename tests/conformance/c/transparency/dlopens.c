/* Loads a library that makes system calls itself (`inside.c`) while other threads
 * write; `dlopens FILE SYMBOL`. With `late` as a third word, a second time as well,
 * after it has been taken away. */
#define _GNU_SOURCE
#include "probe.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static int pipes[2];
static volatile int stop;

static void *busy(void *arg)
{
    (void)arg;
    while (!stop)
        if (getppid() < 0)
            break;
    return NULL;
}

static int calls(const char *file, const char *symbol)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        say("%s", dlerror());
        return 1;
    }
    long (*put)(int, const char *, long) = (long (*)(int, const char *, long))dlsym(library, symbol);
    for (int k = 0; k < 10; k++) {
        char back[16] = "";
        long result = put(pipes[1], "0123456789", 10);
        raw_read(pipes[0], back, sizeof back);
        if (result != 10 || strcmp(back, "0123456789"))
            say("%d: %ld %s", k, result, back);
    }
    say("written; nowhere: %ld", put(-1, "0", 1));
    long (*any)(long, long, long, long) = (long (*)(long, long, long, long))dlsym(library, "inside_any");
    long (*end)(int) = (long (*)(int))dlsym(library, "inside_close");
    long (*twice)(void) = (long (*)(void))dlsym(library, "inside_twice");
    if (any) {
        int status = 0;
        say("any: write %ld, getpid %d, nonsense %ld", any(SYS_write, pipes[1], (long)"x", 1),
            any(SYS_getpid, 0, 0, 0) == getpid(), any(4000, 0, 0, 0));
        long child = any(SYS_fork, 0, 0, 0);
        if (child == 0)
            _exit(7);
        waitpid((pid_t)child, &status, 0);
        say("child %d", WEXITSTATUS(status));
    }
    if (end)
        say("close %ld, again %ld", end((int)RAW1(SYS_dup, pipes[0])), end(-1));
    if (twice)
        say("parent %d", twice() == RAW0(SYS_getppid));
    dlclose(library);
    return 0;
}

int main(int argc, char **argv)
{
    pthread_t threads[2];
    guard(30);
    raw_pipe(pipes);
    for (int k = 0; k < 2; k++)
        pthread_create(&threads[k], NULL, busy, NULL);
    int failed = argc < 3 || calls(argv[1], argv[2]);
    if (!failed && argc > 3)
        failed = calls(argv[1], argv[2]);
    stop = 1;
    for (int k = 0; k < 2; k++)
        pthread_join(threads[k], NULL);
    return failed;
}
