/* Calls that others see as one although they are longer than a piece: lists that two processes append to a file, by its flag and by
 * the call's, and files that are sent as datagrams. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef RWF_APPEND
#define RWF_APPEND 16
#endif

enum { RECORD = 3 << 20, RECORDS = 5 };

static char *block;

static int temporary(char *path)
{
    strcpy(path, "/tmp/bonsai-one-XXXXXX");
    int fd = mkstemp(path);
    if (fd < 0)
        exit(2);
    return fd;
}

static void append(const char *name, int by_flag)
{
    char path[64];
    int made = temporary(path), torn = 0, there = 0;
    for (int k = 0; k < 2; k++)
        if (fork() == 0) {
            int fd = open(path, O_WRONLY | (by_flag ? 0 : O_APPEND));
            memset(block, 'A' + k, RECORD);
            struct iovec parts[3] = {{block, 1000}, {block + 1000, RECORD / 2}, {block + 1000 + RECORD / 2, RECORD - 1000 - RECORD / 2}};
            for (int i = 0; i < RECORDS; i++) {
                ssize_t put = by_flag ? pwritev2(fd, parts, 3, 0, RWF_APPEND) : writev(fd, parts, 3);
                if (put != RECORD)
                    _exit(1);
            }
            _exit(0);
        }
    int status = 0, all = 1;
    while (wait(&status) > 0)
        all &= status == 0;
    for (int i = 0; i < 2 * RECORDS; i++) {
        int same = pread(made, block, RECORD, (off_t)i * RECORD) == RECORD;
        there += same;
        for (int j = 1; same && j < RECORD; j++)
            same = block[j] == block[0];
        torn += !same;
    }
    printf("%s: %d of %d records, %d torn, all written: %d\n", name, there, 2 * RECORDS, torn, all);
    unlink(path);
    close(made);
}

static void datagram(const char *name, int out, int in)
{
    char path[64];
    int file = temporary(path);
    if (ftruncate(file, 30000) != 0)
        exit(2);
    ssize_t sent = sendfile(out, file, NULL, 30000);
    printf("%s: %zd sent,", name, sent);
    for (ssize_t got; (got = recv(in, block, RECORD, MSG_DONTWAIT)) >= 0;)
        printf(" %zd", got);
    printf(" received\n");
    unlink(path);
    close(file);
}

int main(void)
{
    if (posix_memalign((void **)&block, 4096, RECORD) != 0)
        return 2;
    append("appended", 0);
    append("appended by flag", 1);
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) != 0)
        return 2;
    datagram("unix", pair[0], pair[1]);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof to;
    int in = socket(AF_INET, SOCK_DGRAM, 0), out = socket(AF_INET, SOCK_DGRAM, 0);
    if (bind(in, (struct sockaddr *)&to, len) != 0 || getsockname(in, (struct sockaddr *)&to, &len) != 0 ||
        connect(out, (struct sockaddr *)&to, len) != 0)
        return 2;
    datagram("udp", out, in);
    return 0;
}
