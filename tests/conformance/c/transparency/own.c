/* Writes and reads by system call instructions of the program's own, in several
 * shapes, on several threads. */
#include "../raw.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1024, CALLS = 48, THREADS = 4 };

static char piece[PIECE];

/* The number is in a register only. */
static __attribute__((noinline, noclone)) long any(long nr, long a, long b, long c)
{
    return raw6(nr, a, b, c, 0, 0, 0);
}

/* With PASCAL no other instruction makes calls, and the start files seem to be those of Free Pascal. */
#ifdef PASCAL
__asm__(".pushsection .note.ABI-tag, \"a\", @note\n"
        ".balign 4; .long 4, 16, 1; .asciz \"GNU\"; .long 0, 2, 4, 0\n"
        ".popsection");
#define CALL(nr, a, b, c) any(nr, (long)(a), (long)(b), (long)(c))
#else
#define CALL RAW3
#endif

static void *work(void *at)
{
    long fd = (long)at, sum = 0;
    for (int i = 0; i < CALLS; i++)
        sum += i % 2 ? CALL(SYS_write, fd, piece, PIECE) : any(SYS_write, fd, (long)piece, PIECE);
    return (void *)sum;
}

int main(void)
{
    memset(piece, 'x', sizeof piece);
    long fd = CALL(SYS_open, "/dev/null", O_WRONLY, 0);
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    pthread_t threads[THREADS];
    long sum = 0;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)fd);
    for (int i = 0; i < THREADS; i++) {
        void *one = NULL;
        pthread_join(threads[i], &one);
        sum += (long)one;
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    printf("# elapsed %ld ms\n",
           (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000);
    printf("%ld bytes, then %ld\n", sum, CALL(SYS_write, -1, piece, 1));
    return 0;
}
