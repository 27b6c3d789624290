/* Moves a megabyte into a file, in pieces, by one kind of call: covered CALLS FILE LIBRARY
 * [wait]; by memory, also out of a file in the place of LIBRARY. Told to wait, it says when everything is ready, goes on when it gets a byte, says
 * that it is done, and ends with its input; told to be "late", it makes it ready then. A refused call ends it: "denied ERRNO". */
#include "../raw.h"

#include <errno.h>
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
    printf("%s: denied %d\n", what, errno);
    exit(3);
}

/* What is there before the first byte moves. */
static int ring;
static struct io_uring_params p;
static unsigned *tail, *array, *head, mask;
static struct io_uring_sqe *sqes;
static aio_context_t context;
static long (*of_library)(int, const char *, long);

static void prepare_ring(void)
{
    ring = (int)syscall(SYS_io_uring_setup, 4, &p);
    if (ring < 0)
        fail("io_uring_setup");
    size_t sq_len = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    size_t cq_len = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    int flags = MAP_SHARED | MAP_POPULATE, prot = PROT_READ | PROT_WRITE;
    char *sq = mmap(NULL, sq_len, prot, flags, ring, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, cq_len, prot, flags, ring, IORING_OFF_CQ_RING);
    sqes = mmap(NULL, p.sq_entries * sizeof *sqes, prot, flags, ring, IORING_OFF_SQES);
    tail = (unsigned *)(sq + p.sq_off.tail), array = (unsigned *)(sq + p.sq_off.array);
    mask = *(unsigned *)(sq + p.sq_off.ring_mask);
    head = (unsigned *)(cq + p.cq_off.head);
}

static void by_ring(int fd)
{
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

/* What came in by faults, so that it is looked at. */
static volatile char fetched;
static int cold;

static void by_memory(int fd)
{
    char *from = mmap(NULL, PIECE * PIECES, PROT_READ, MAP_SHARED, cold, 0);
    if (from == MAP_FAILED)
        fail("mmap");
    for (int i = 0; i < PIECES; i++)
        fetched += from[(long)i * PIECE];
    if (ftruncate(fd, PIECE * PIECES) != 0)
        fail("ftruncate");
    char *at = mmap(NULL, PIECE * PIECES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (int i = 0; i < PIECES; i++)
        memcpy(at + (long)i * PIECE, piece, PIECE);
}

static void load(const char *path)
{
#ifdef DLOPEN
    void *library = dlopen(path, RTLD_NOW);
    if (library)
        of_library = (long (*)(int, const char *, long))dlsym(library, "inside_write");
#endif
    if (!of_library)
        fail(path);
}

static void by_library(int fd)
{
    for (int i = 0; i < PIECES; i++)
        if (of_library(fd, piece, PIECE) != PIECE)
            fail("inside_write");
}

static void by_libc(int fd)
{
    for (int i = 0; i < PIECES; i++)
        if (write(fd, piece, PIECE) != PIECE)
            fail("write");
}

static void inside(int fd)
{
    FILE *file = fdopen(fd, "w");
    for (int i = 0; i < PIECES; i++)
        if (fwrite(piece, 1, PIECE, file) != PIECE)
            fail("fwrite");
    fflush(file);
}

static void by_own(int fd)
{
    for (int i = 0; i < PIECES; i++)
        if (RAW3(SYS_write, fd, piece, PIECE) != PIECE)
            fail("own write");
}

/* Code that is made as it runs: write(2), and back. */
static long (*of_made)(int, const char *, long);

static void make(void)
{
    static const unsigned char code[] = {0xb8, SYS_write, 0, 0, 0, 0x0f, 0x05, 0xc3};
    void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        fail("mmap");
    memcpy(at, code, sizeof code);
    if (mprotect(at, 4096, PROT_READ | PROT_EXEC) != 0)
        fail("mprotect");
    memcpy(&of_made, &at, sizeof at);
}

static void by_made(int fd)
{
    for (int i = 0; i < PIECES; i++) {
        long n = of_made(fd, piece, PIECE);
        if (n < 0)
            errno = (int)-n, fail("made write");
        if (n != PIECE)
            fail("made write");
    }
}

static void prepare(const char *calls, const char *library)
{
    if (strcmp(calls, "ring") == 0)
        prepare_ring();
    else if (strcmp(calls, "aio") == 0 && syscall(SYS_io_setup, 4, &context) != 0)
        fail("io_setup");
    else if (strcmp(calls, "library") == 0)
        load(library);
    else if (strcmp(calls, "made") == 0)
        make();
    else if (strcmp(calls, "mapped") == 0 && (cold = open(library, O_RDONLY)) < 0)
        fail(library);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *calls;
        void (*move)(int);
    } kinds[] = {{"libc", by_libc}, {"inside", inside}, {"library", by_library}, {"own", by_own}, {"made", by_made},
                 {"ring", by_ring}, {"aio", by_aio},    {"mapped", by_memory}};
    if (argc < 4)
        return 2;
    memset(piece, 'x', sizeof piece);
    int late = argc > 4 && strcmp(argv[4], "late") == 0, fd;
    int waits = late || (argc > 4 && strcmp(argv[4], "wait") == 0);
    if ((fd = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0666)) < 0)
        fail(argv[2]);
    if (!late)
        prepare(argv[1], argv[3]);
    char byte;
    if (waits && (puts("ready"), fflush(stdout), read(0, &byte, 1)) != 1)
        return 4;
    if (late)
        prepare(argv[1], argv[3]);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(argv[1], kinds[i].calls) == 0)
            kinds[i].move(fd);
    puts("done");
    fflush(stdout);
    return waits && read(0, &byte, 1) != 0 ? 4 : 0;
}
