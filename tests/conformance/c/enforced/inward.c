// The tricks that take bytes in, or start more processes and threads than they may.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attacker.h"

void forks(void) {
    while (on()) {
        int pid = fork();
        if (pid == 0) {
            if (write(1, "f", 1) < 0)
                _exit(1);
            _exit(0);
        }
        if (pid > 0)
            waitpid(pid, NULL, 0);
    }
}

static void *one_byte(void *unused) {
    if (write(1, "t", 1) < 0)
        return unused;
    return NULL;
}

void thread_bomb(void) {
    pthread_t thread;
    while (on())
        if (pthread_create(&thread, NULL, one_byte, NULL) == 0)
            pthread_join(thread, NULL);
}

void read_in(void) {
    while (on())
        if (read(0, bytes, 65536) <= 0)
            break;
}

static void *read_once(void *unused) {
    if (on() && read(0, malloc(65536), 65536) <= 0)
        return unused;
    return NULL;
}

void read_by_threads(void) { by_threads(read_once); }

void read_by_children(void) {
    while (on()) {
        if (fork() == 0) {
            alarm(2);
            if (read(0, bytes, 65536) < 0)
                _exit(1);
            _exit(0);
        }
        usleep(200);
    }
}

void read_race(void) {
    against(flip_length);
    while (on())
        if (readv(0, &raced, 1) <= 0)
            break;
}
