/* Calls on a file that does not answer, and others beside them.
 *
 *   hanging FILE    forty processes wait for FILE; their parent reads and writes elsewhere meanwhile
 *
 * Prints how many calls of the parent went well, and whether all others still waited then. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HANGING = 40, ROUNDS = 50 };

static void hang(const char *file, int how)
{
    static char block[4096];
    struct iovec part = {block, sizeof block};
    int fd = open(file, O_RDONLY), ends[2];
    off_t at = 0;
    if (fd < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        _exit(1);
    char *pages = mmap(NULL, 1 << 22, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    struct iovec slow = {pages + 65536L * how, sizeof block};
    if (pages == MAP_FAILED)
        _exit(1);
    switch (how % 8) {
    case 0:
        readv(fd, &part, 1);
        break;
    case 1:
        preadv(fd, &part, 1, 65536L * how);
        break;
    case 2:
        sendfile(ends[1], fd, &at, sizeof block);
        break;
    case 3:
        if (pipe(ends) != 0)
            _exit(1);
        splice(fd, &at, ends[1], NULL, sizeof block, 0);
        break;
    /* Memory that does not answer. */
    case 4:
        writev(ends[1], &slow, 1);
        break;
    case 5:
        writev(ends[1], (void *)slow.iov_base, 1);
        break;
    case 6:
        write(ends[1], block, sizeof block);
        readv(ends[0], &slow, 1);
        break;
    default:
        /* What it waits for comes later. */
        if (fork() == 0) {
            usleep(300000);
            write(ends[1], block, sizeof block);
            _exit(0);
        }
        readv(ends[0], &slow, 1);
    }
    _exit(0);
}

int main(int argc, char **argv)
{
    static char block[4096];
    struct iovec part = {block, sizeof block};
    pid_t children[HANGING];
    int ends[2], pair[2], went = 0, wait_on = 1;
    FILE *own = tmpfile();
    if (argc != 2 || own == NULL || pipe(ends) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        return 2;
    for (int k = 0; k < HANGING; k++)
        if ((children[k] = fork()) == 0)
            hang(argv[1], k);
    sleep(1);
    for (int k = 0; k < ROUNDS; k++) {
        went += writev(ends[1], &part, 1) == sizeof block && readv(ends[0], &part, 1) == sizeof block;
        went += writev(pair[1], &part, 1) == sizeof block && readv(pair[0], &part, 1) == sizeof block;
        went += pwritev(fileno(own), &part, 1, 4096L * k) == sizeof block && preadv(fileno(own), &part, 1, 4096L * k) == sizeof block;
    }
    for (int k = 0; k < HANGING; k++)
        wait_on &= waitpid(children[k], NULL, WNOHANG) == 0;
    printf("%d of %d went well while others %s\n", went, 3 * ROUNDS, wait_on ? "waited" : "had ended");
    for (int k = 0; k < HANGING; k++)
        kill(children[k], SIGKILL);
    return 0;
}
