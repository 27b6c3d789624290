/* The same for 32-bit x86, without a libc: foreign CALLS FILE LIBRARY [wait]. What libc would
 * do goes through the kernel's own entry, as there; LIBRARY is plain code, which writes. Where
 * a system call does not exist, nothing can be said either: it ends by an invalid instruction. */
#include <linux/aio_abi.h>
#include <linux/io_uring.h>

enum { PIECE = 16 << 10, PIECES = 64 };
enum { EXIT = 1, READ = 3, WRITE = 4, OPEN = 5, MMAP = 90, FTRUNCATE = 93 };
enum { IO_SETUP = 245, IO_GETEVENTS = 247, IO_SUBMIT = 248, RING_SETUP = 425, RING_ENTER = 426 };
enum { NO_SUCH_CALL = -38, SYSINFO = 32, TO_READ = 1, TO_WRITE = 2, TO_EXECUTE = 4 };
enum { SHARED = 1, PRIVATE = 2, ANONYMOUS = 32, CREATED_EMPTY = 01102 };

static char piece[PIECE];
/* Where the kernel wants to be entered (AT_SYSINFO). */
static long entry;
static long (*of_library)(int, const char *, long);

static long checked(long result)
{
    if (result == NO_SUCH_CALL)
        __asm__ volatile("ud2");
    return result;
}

static long raw(long nr, long a, long b, long c, long d, long e)
{
    long result;
    __asm__ volatile("int $0x80"
                     : "=a"(result)
                     : "a"(nr), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e)
                     : "memory");
    return checked(result);
}

static long as_libc(long nr, long a, long b, long c)
{
    long result;
    __asm__ volatile("call *%1"
                     : "=a"(result)
                     : "m"(entry), "a"(nr), "b"(a), "c"(b), "d"(c)
                     : "memory");
    return checked(result);
}

static void leave(int code)
{
    for (;;)
        raw(EXIT, code, 0, 0, 0, 0);
}

static long need(long result)
{
    if (result < 0 && result > -4096)
        leave(3);
    return result;
}

static void all(long result)
{
    if (result != PIECE)
        leave(3);
}

static char *map(long len, long protection, long flags, long fd, long offset)
{
    long arguments[] = {0, len, protection, flags, fd, offset};
    return (char *)need(raw(MMAP, (long)arguments, 0, 0, 0, 0));
}

static struct io_uring_params p;
static char *sq, *cq;
static struct io_uring_sqe *sqes;
static long ring;

static void prepare_ring(void)
{
    ring = need(raw(RING_SETUP, 4, (long)&p, 0, 0, 0));
    sq = map(4096, TO_READ | TO_WRITE, SHARED, ring, IORING_OFF_SQ_RING);
    cq = map(4096, TO_READ | TO_WRITE, SHARED, ring, IORING_OFF_CQ_RING);
    sqes = (struct io_uring_sqe *)map(4096, TO_READ | TO_WRITE, SHARED, ring, IORING_OFF_SQES);
}

static void by_ring(long fd, int i)
{
    unsigned *tail = (unsigned *)(sq + p.sq_off.tail);
    unsigned at = *tail & *(unsigned *)(sq + p.sq_off.ring_mask);
    sqes[at].opcode = IORING_OP_WRITE;
    sqes[at].fd = fd;
    sqes[at].addr = (unsigned long)piece;
    sqes[at].len = PIECE;
    sqes[at].off = (unsigned long long)i * PIECE;
    ((unsigned *)(sq + p.sq_off.array))[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    if (raw(RING_ENTER, ring, 1, 1, IORING_ENTER_GETEVENTS, 0) != 1)
        leave(3);
    ++*(unsigned *)(cq + p.cq_off.head);
}

static unsigned long context;

static void by_aio(long fd, int i)
{
    struct iocb one = {.aio_lio_opcode = IOCB_CMD_PWRITE,
                       .aio_fildes = fd,
                       .aio_buf = (unsigned long)piece,
                       .aio_nbytes = PIECE,
                       .aio_offset = (long long)i * PIECE},
                *list = &one;
    struct io_event event;
    if (raw(IO_SUBMIT, context, 1, (long)&list, 0, 0) != 1)
        leave(3);
    if (raw(IO_GETEVENTS, context, 1, 1, (long)&event, 0) != 1)
        leave(3);
    all((long)event.res);
}

/* push %ebx; its arguments; int $0x80; pop %ebx; ret */
static void make(void)
{
    static const char code[] = "\x53\x8b\x5c\x24\x08\x8b\x4c\x24\x0c\x8b\x54\x24\x10\xb8\x04\0\0\0\xcd\x80\x5b\xc3";
    char *at = map(4096, TO_READ | TO_WRITE | TO_EXECUTE, PRIVATE | ANONYMOUS, -1, 0);
    for (unsigned i = 0; i < sizeof code; i++)
        at[i] = code[i];
    of_library = (long (*)(int, const char *, long))at;
}

static void prepare(char kind, const char *library, long fd)
{
    if (kind == 'r')
        prepare_ring();
    else if (kind == 'a')
        need(raw(IO_SETUP, 4, (long)&context, 0, 0, 0));
    else if (kind == 'y')
        of_library = (long (*)(int, const char *, long))map(
            4096, TO_READ | TO_EXECUTE, PRIVATE, need(raw(OPEN, (long)library, 0, 0, 0, 0)), 0);
    else if (kind == 'j')
        make();
    else if (kind == 'm')
        need(raw(FTRUNCATE, fd, PIECE * PIECES, 0, 0, 0));
}

static void move(char kind, long fd)
{
    char *at = kind == 'm' ? map(PIECE * PIECES, TO_READ | TO_WRITE, SHARED, fd, 0) : 0;
    for (int i = 0; i < PIECES; i++)
        switch (kind) {
        case 'c': all(as_libc(WRITE, fd, (long)piece, PIECE)); break;
        case 'o': all(raw(WRITE, fd, (long)piece, PIECE, 0, 0)); break;
        case 'j':
        case 'y': all(checked(of_library(fd, piece, PIECE))); break;
        case 'r': by_ring(fd, i); break;
        case 'a': by_aio(fd, i); break;
        default:
            for (int b = 0; b < PIECE; b++)
                at[i * PIECE + b] = 'x';
        }
}

/* By a letter; what libc does and what it does inside itself is the same here. */
static char kind_of(const char *calls)
{
    if (calls[0] == 'l' && calls[3] == 'r')
        return 'y';
    if (calls[0] == 'm' && calls[2] == 'd')
        return 'j';
    return calls[0] == 'l' || calls[0] == 'i' ? 'c' : calls[0];
}

__attribute__((used)) void begin(long *stack)
{
    char **argv = (char **)(stack + 1), byte;
    int waits = stack[0] > 4;
    if (stack[0] < 4)
        leave(2);
    for (stack += stack[0] + 2; *stack; stack++) {
    }
    for (stack++; *stack; stack += 2)
        if (*stack == SYSINFO)
            entry = stack[1];
    long fd = need(raw(OPEN, (long)argv[2], CREATED_EMPTY, 0666, 0, 0));
    char kind = kind_of(argv[1]);
    prepare(kind, argv[3], fd);
    if (waits) {
        raw(WRITE, 1, (long)"ready\n", 6, 0, 0);
        raw(READ, 0, (long)&byte, 1, 0, 0);
    }
    move(kind, fd);
    raw(WRITE, 1, (long)"done\n", 5, 0, 0);
    if (waits)
        raw(READ, 0, (long)&byte, 1, 0, 0);
    leave(0);
}

__asm__(".globl _start\n_start: mov %esp, %eax; and $-16, %esp; sub $12, %esp; push %eax; call begin");
