/*
 * A client with 16 threads, and the server it downloads from.
 *
 *   threads16 serve FILE          writes its port to FILE, serves until its standard
 *                                 input ends
 *   threads16 fetch PORT BYTES    16 threads download BYTES each; exits 0 when every
 *                                 thread got every byte as it was sent
 *
 * The threads are created as fast as possible, receive in four different ways, and half
 * of them are detached, so that they end while others are created or wait.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { THREADS = 16, BLOCK = 65536 };

/* The byte that stands at `at`: no period that a buffer size divides. */
static unsigned char byte_at(uint64_t at)
{
    return (unsigned char)(at % 251);
}

static void *serve_one(void *argument)
{
    int fd = (int)(intptr_t)argument;
    static __thread unsigned char block[251 * 256];
    uint32_t wanted;
    uint64_t at = 0;
    if (recv(fd, &wanted, sizeof wanted, MSG_WAITALL) == sizeof wanted) {
        for (size_t i = 0; i < sizeof block; i++)
            block[i] = byte_at(i);
        while (at < wanted) {
            size_t in_block = at % sizeof block;
            size_t part = sizeof block - in_block;
            if (part > wanted - at)
                part = (size_t)(wanted - at);
            ssize_t sent = send(fd, block + in_block, part, MSG_NOSIGNAL);
            if (sent <= 0)
                break;
            at += (uint64_t)sent;
        }
    }
    close(fd);
    return NULL;
}

static void *until_input_ends(void *unused)
{
    char c;
    while (read(0, &c, 1) > 0) {
    }
    _exit(0);
    return unused;
}

static int serve(const char *path)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof here;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pthread_t thread;
    pthread_attr_t detached;
    FILE *file;
    if (listener < 0 || bind(listener, (struct sockaddr *)&here, length) != 0 ||
        listen(listener, 128) != 0 || getsockname(listener, (struct sockaddr *)&here, &length) != 0) {
        perror("threads16: cannot listen");
        return 1;
    }
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_create(&thread, &detached, until_input_ends, NULL);
    file = fopen(path, "w");
    if (file == NULL || fprintf(file, "%d\n", ntohs(here.sin_port)) < 0 || fclose(file) != 0) {
        perror(path);
        return 1;
    }
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0 && pthread_create(&thread, &detached, serve_one, (void *)(intptr_t)fd) != 0)
            close(fd);
    }
}

static struct sockaddr_in server;
static uint32_t wanted;
static int good;
static sem_t ended;

/* Receives in the way of thread `number`. */
static ssize_t receive(int number, int fd, unsigned char *to, size_t most)
{
    struct iovec half[2] = {{to, most / 2}, {to + most / 2, most - most / 2}};
    struct msghdr message = {.msg_iov = half, .msg_iovlen = 2};
    switch (number % 4) {
    case 0: return recv(fd, to, most, 0);
    case 1: return read(fd, to, most);
    case 2: return readv(fd, half, 2);
    default: return recvmsg(fd, &message, 0);
    }
}

static int fetch_one(int number)
{
    unsigned char block[BLOCK / 4];
    uint64_t at = 0;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&server, sizeof server) != 0 ||
        write(fd, &wanted, sizeof wanted) != sizeof wanted) {
        fprintf(stderr, "thread %d: %s\n", number, strerror(errno));
        return 0;
    }
    for (;;) {
        ssize_t got = receive(number, fd, block, sizeof block);
        if (got <= 0)
            break;
        for (ssize_t i = 0; i < got; i++)
            if (block[i] != byte_at(at + (uint64_t)i)) {
                fprintf(stderr, "thread %d: wrong byte at %llu\n", number,
                        (unsigned long long)at + (unsigned long long)i);
                return 0;
            }
        at += (uint64_t)got;
    }
    close(fd);
    if (at != wanted)
        fprintf(stderr, "thread %d: %llu of %u bytes\n", number, (unsigned long long)at, wanted);
    return at == wanted;
}

static void *fetch_thread(void *argument)
{
    if (fetch_one((int)(intptr_t)argument))
        __atomic_add_fetch(&good, 1, __ATOMIC_RELAXED);
    sem_post(&ended);
    return NULL;
}

static int fetch(const char *port, const char *bytes)
{
    pthread_t threads[THREADS];
    server.sin_family = AF_INET;
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    server.sin_port = htons((uint16_t)atoi(port));
    wanted = (uint32_t)strtoul(bytes, NULL, 10);
    sem_init(&ended, 0, 0);
    for (intptr_t i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, fetch_thread, (void *)i) != 0) {
            perror("threads16: cannot create a thread");
            return 1;
        }
        if (i % 2 == 1)
            pthread_detach(threads[i]);
    }
    for (int i = 0; i < THREADS; i += 2)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        while (sem_wait(&ended) != 0) {
        }
    return good == THREADS ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "serve") == 0)
        return serve(argv[2]);
    if (argc == 4 && strcmp(argv[1], "fetch") == 0)
        return fetch(argv[2], argv[3]);
    fputs("usage: threads16 serve FILE | threads16 fetch PORT BYTES\n", stderr);
    return 2;
}
