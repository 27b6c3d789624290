/* What is free at once where a program has closed a descriptor: an address, the end of a pipe, a lock, a file that is to be run. Prints
 * how often each was not. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static char bytes[] = "#!/bin/true\n";
static struct iovec parts[2] = { { bytes, 2 }, { bytes + 2, sizeof bytes - 3 } };

static int addresses(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int busy = 0;
    for (int i = 0; i < 2000; i++) {
        int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
        if (bind(fd, (void *)&at, len)) {
            busy += errno == EADDRINUSE;
        } else {
            getsockname(fd, (void *)&at, &len);
            connect(fd, (void *)&at, len);
            (void)!writev(fd, parts, 2);
        }
        close(fd);
    }
    return busy;
}

static int ends(void)
{
    int open = 0;
    char byte[100];
    for (int i = 0; i < 2000; i++) {
        int both[2];
        if (pipe2(both, O_NONBLOCK))
            return -1;
        (void)!writev(both[1], parts, 2);
        close(both[1]);
        (void)!read(both[0], byte, sizeof byte);
        open += read(both[0], byte, sizeof byte) != 0;
        close(both[0]);
    }
    return open;
}

static int locks(const char *name)
{
    int locked = 0;
    for (int i = 0; i < 2000; i++) {
        int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0700);
        locked += flock(fd, LOCK_EX | LOCK_NB) != 0;
        (void)!writev(fd, parts, 2);
        close(fd);
    }
    return locked;
}

static int programs(const char *name)
{
    int busy = 0;
    for (int i = 0; i < 50; i++) {
        int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0700), status;
        (void)!writev(fd, parts, 2);
        close(fd);
        pid_t child = fork();
        if (child == 0) {
            execl(name, name, (char *)0);
            _exit(errno == ETXTBSY ? 1 : 2);
        }
        if (waitpid(child, &status, 0) != child)
            return -1;
        busy += status != 0;
    }
    return busy;
}

int main(void)
{
    char folder[] = "/tmp/closed.XXXXXX", name[sizeof folder + 8];
    if (!mkdtemp(folder))
        return 2;
    snprintf(name, sizeof name, "%s/run", folder);
    printf("%d addresses, %d ends of pipes, %d locks, %d programs were not free\n", addresses(), ends(), locks(name), programs(name));
    unlink(name);
    rmdir(folder);
    return 0;
}
