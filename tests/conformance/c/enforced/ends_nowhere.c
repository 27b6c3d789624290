// Lists that end at memory that is not there, to a pipe and a FIFO with a page that was begun: bytes that each call moves, and what comes out.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, MOST = 8 * PAGE };

static void try(const char *name, int from, int to, char *end, size_t there, size_t missing) {
    static char out[1 << 16];
    if (write(to, "begun", 5) != 5)
        exit(1);
    // Flags and an offset have the supervisor look at the list, too.
    struct iovec list[] = {{end - there, there}, {end, missing}};
    ssize_t put = pwritev2(to, list, 2, -1, RWF_SYNC);
    int error = put < 0 ? errno : 0;
    ssize_t got = read(from, out, sizeof out);
    unsigned sum = 0;
    for (ssize_t i = 0; i < got; i++)
        sum = sum * 31 + (unsigned char)out[i];
    printf("%s %zu %zu: %zd %s, %zd %08x\n", name, there, missing, put, error ? strerror(error) : "-", got, sum);
}

int main(void) {
    static const size_t there[] = {1, 300, PAGE - 5, PAGE, PAGE + 300, 2 * PAGE + 2000, 5 * PAGE + 77};
    static const size_t missing[] = {1, 100, 1941, PAGE, 3 * PAGE + 9};
    char folder[] = "/tmp/ends-XXXXXX", path[64], *all;
    int ends[2], fifo;
    all = mmap(NULL, MOST + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || mprotect(all + MOST, PAGE, PROT_NONE) != 0 || pipe(ends) != 0 || mkdtemp(folder) == NULL)
        return 1;
    for (int i = 0; i < MOST; i++)
        all[i] = (char)(i * 7 + i / 256);
    snprintf(path, sizeof path, "%s/fifo", folder);
    if (mkfifo(path, 0600) != 0 || (fifo = open(path, O_RDWR)) < 0)
        return 1;
    unlink(path);
    rmdir(folder);
    for (size_t i = 0; i < sizeof there / sizeof *there; i++)
        for (size_t j = 0; j < sizeof missing / sizeof *missing; j++) {
            try("pipe", ends[0], ends[1], all + MOST, there[i], missing[j]);
            try("fifo", fifo, fifo, all + MOST, there[i], missing[j]);
        }
    return 0;
}
