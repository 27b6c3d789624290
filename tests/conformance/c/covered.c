/* Moves a megabyte into a file, in pieces, by one kind of call, and says how long that
 * took: covered CALLS FILE [LIBRARY]. */
#include "raw.h"

#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef DLOPEN
#include <dlfcn.h>
#endif

enum { PIECE = 16 << 10, PIECES = 64 };

static char piece[PIECE];

static void fail(const char *what)
{
    perror(what);
    exit(3);
}

static void by_ring(int fd)
{
    struct io_uring_params p = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &p);
    if (ring < 0)
        fail("io_uring_setup");
    size_t sq_len = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    size_t cq_len = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    int flags = MAP_SHARED | MAP_POPULATE, prot = PROT_READ | PROT_WRITE;
    char *sq = mmap(NULL, sq_len, prot, flags, ring, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, cq_len, prot, flags, ring, IORING_OFF_CQ_RING);
    struct io_uring_sqe *sqes =
        mmap(NULL, p.sq_entries * sizeof *sqes, prot, flags, ring, IORING_OFF_SQES);
    unsigned *tail = (unsigned *)(sq + p.sq_off.tail), *array = (unsigned *)(sq + p.sq_off.array);
    unsigned mask = *(unsigned *)(sq + p.sq_off.ring_mask);
    unsigned *head = (unsigned *)(cq + p.cq_off.head);
    for (int i = 0; i < PIECES; i++) {
        unsigned at = *tail & mask;
        memset(&sqes[at], 0, sizeof sqes[at]);
        sqes[at].opcode = IORING_OP_WRITE;
        sqes[at].fd = fd;
        sqes[at].addr = (unsigned long)piece;
        sqes[at].len = PIECE;
        sqes[at].off = (unsigned long long)i * PIECE;
        array[at] = at;
        __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
        if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
            fail("io_uring_enter");
        __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    }
}

static void by_aio(int fd)
{
    aio_context_t context = 0;
    if (syscall(SYS_io_setup, 4, &context) != 0)
        fail("io_setup");
    for (int i = 0; i < PIECES; i++) {
        struct iocb one = {.aio_lio_opcode = IOCB_CMD_PWRITE,
                           .aio_fildes = (unsigned)fd,
                           .aio_buf = (unsigned long)piece,
                           .aio_nbytes = PIECE,
                           .aio_offset = (long long)i * PIECE},
                    *list = &one;
        struct io_event event;
        if (syscall(SYS_io_submit, context, 1, &list) != 1)
            fail("io_submit");
        if (syscall(SYS_io_getevents, context, 1, 1, &event, NULL) != 1 || event.res != PIECE)
            fail("io_getevents");
    }
}

static void by_memory(int fd)
{
    if (ftruncate(fd, PIECE * PIECES) != 0)
        fail("ftruncate");
    char *at = mmap(NULL, PIECE * PIECES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (int i = 0; i < PIECES; i++)
        memcpy(at + (long)i * PIECE, piece, PIECE);
}

static long by_library(const char *path, int fd)
{
#ifdef DLOPEN
    void *library = dlopen(path, RTLD_NOW);
    long (*call)(int, const char *, long) = NULL;
    if (library)
        call = (long (*)(int, const char *, long))dlsym(library, "inside_write");
    if (!call)
        fail(path);
    for (int i = 0; i < PIECES; i++)
        if (call(fd, piece, PIECE) != PIECE)
            fail("inside_write");
    return 0;
#else
    (void)fd;
    fail(path);
    return 1;
#endif
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    memset(piece, 'x', sizeof piece);
    const char *calls = argv[1];
    int fd = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0666);
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    if (fd < 0)
        fail(argv[2]);
    if (strcmp(calls, "libc") == 0) {
        for (int i = 0; i < PIECES; i++)
            if (write(fd, piece, PIECE) != PIECE)
                fail("write");
    } else if (strcmp(calls, "inside") == 0) {
        FILE *file = fdopen(fd, "w");
        for (int i = 0; i < PIECES; i++)
            if (fwrite(piece, 1, PIECE, file) != PIECE)
                fail("fwrite");
        fflush(file);
    } else if (strcmp(calls, "own") == 0) {
        for (int i = 0; i < PIECES; i++)
            if (RAW3(SYS_write, fd, piece, PIECE) != PIECE)
                fail("own write");
    } else if (strcmp(calls, "ring") == 0) {
        by_ring(fd);
    } else if (strcmp(calls, "aio") == 0) {
        by_aio(fd);
    } else if (strcmp(calls, "mapped") == 0) {
        by_memory(fd);
    } else if (argc > 3) {
        by_library(argv[3], fd);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    printf("%.3f s\n",
           (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec));
    return 0;
}
