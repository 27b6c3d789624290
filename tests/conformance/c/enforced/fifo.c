// A read of a FIFO that has a name is interrupted by a handler without SA_RESTART, from a process of two threads.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fd;
static volatile int done;

static void handler(int signal) {
    (void)signal;
}

static void *reads(void *unused) {
    char byte;
    ssize_t got = read(fd, &byte, 1);
    printf("%s\n", got < 0 ? strerror(errno) : "bytes");
    done = 1;
    return unused;
}

int main(void) {
    struct sigaction action = {.sa_handler = handler};
    pthread_t thread;
    char folder[] = "/tmp/fifo-XXXXXX", path[64];
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(path, sizeof path, "%s/fifo", folder);
    if (mkfifo(path, 0600) != 0 || (fd = open(path, O_RDWR)) < 0)
        return 1;
    unlink(path);
    rmdir(folder);
    sigaction(SIGUSR1, &action, NULL);
    pthread_create(&thread, NULL, reads, NULL);
    // Again, as one that comes before the call interrupts nothing.
    for (int tries = 0; tries < 100 && !done; tries++) {
        usleep(50000);
        pthread_kill(thread, SIGUSR1);
    }
    if (!done)
        puts("never interrupted");
    return 0;
}
