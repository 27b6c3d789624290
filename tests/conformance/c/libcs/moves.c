/* Moves a file's bytes by each way that a C library has to its system calls: its functions, stdio inside of it, and both again once
 * there has been a second thread.
 *
 *   moves READ|WRITE FILE LENGTH [thread|waits]
 *
 * READ is read, pread, aio or fread; WRITE is write, pwrite, fwrite or send. Prints what was moved, and how long it took. `waits`: prints a
 * line, begins when its standard input ends, and is there for a minute. */
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static char bytes[4096];

static void *nothing(void *arg)
{
    return arg;
}

/* Takes what is sent. */
static void *receiver(void *arg)
{
    char taken[4096];
    while (recv(*(int *)arg, taken, sizeof taken, 0) > 0)
        ;
    return NULL;
}

/* One read by POSIX AIO, which libc makes in a thread of its own. */
static ssize_t by_aio(int fd, off_t at)
{
    struct aiocb call = {.aio_fildes = fd, .aio_buf = bytes, .aio_nbytes = sizeof bytes, .aio_offset = at};
    const struct aiocb *calls[] = {&call};
    if (aio_read(&call) != 0)
        return -1;
    while (aio_error(&call) == EINPROGRESS)
        aio_suspend(calls, 1, NULL);
    return aio_return(&call);
}

static long by_call(const char *how, int fd, long length)
{
    long moved = 0;
    while (moved < length) {
        ssize_t part = strcmp(how, "read") == 0     ? read(fd, bytes, sizeof bytes)
                       : strcmp(how, "pread") == 0  ? pread(fd, bytes, sizeof bytes, moved)
                       : strcmp(how, "aio") == 0    ? by_aio(fd, moved)
                       : strcmp(how, "write") == 0  ? write(fd, bytes, sizeof bytes)
                       : strcmp(how, "pwrite") == 0 ? pwrite(fd, bytes, sizeof bytes, moved)
                                                    : send(fd, bytes, sizeof bytes, 0);
        if (part <= 0)
            break;
        moved += part;
    }
    return moved;
}

static long by_stream(const char *how, const char *file, long length)
{
    int reads = strcmp(how, "fread") == 0;
    FILE *stream = fopen(file, reads ? "r" : "w");
    long moved = 0;
    while (stream && moved < length) {
        size_t part = reads ? fread(bytes, 1, sizeof bytes, stream) : fwrite(bytes, 1, sizeof bytes, stream);
        if (part == 0)
            break;
        moved += (long)part;
    }
    if (stream)
        fclose(stream);
    return moved;
}

int main(int count, char **args)
{
    if (count < 4)
        return 2;
    const char *how = args[1], *file = args[2];
    long length = atol(args[3]);
    pthread_t thread;
    int waits = count > 4 && strcmp(args[4], "waits") == 0;
    if (waits) {
        alarm(60);
        puts("waits");
        fflush(stdout);
        while (getchar() != EOF)
            ;
    } else if (count > 4) {
        pthread_create(&thread, NULL, nothing, NULL);
        pthread_join(thread, NULL);
    }
    int ends[2] = {-1, -1};
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    long moved;
    if (strcmp(how, "send") == 0) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 || pthread_create(&thread, NULL, receiver, &ends[1]) != 0)
            return 1;
        moved = by_call(how, ends[0], length);
        close(ends[0]);
        pthread_join(thread, NULL);
    } else if (how[0] == 'f') {
        moved = by_stream(how, file, length);
    } else {
        int fd = open(file, strstr(how, "read") || strcmp(how, "aio") == 0 ? O_RDONLY : O_WRONLY | O_CREAT | O_TRUNC, 0600);
        moved = by_call(how, fd, length);
        close(fd);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ms = (double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) / 1e6;
    printf("moved %ld\n# elapsed %.3f ms\n", moved, ms);
    fflush(stdout);
    if (waits)
        pause();
    return 0;
}
