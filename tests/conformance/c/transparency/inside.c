/* A library that makes system calls with instructions of its own; and, compiled
 * with OUTSIDE, one that needs it. */
#include "../raw.h"

#ifdef OUTSIDE
long inside_write(int fd, const char *at, long len);
long outside_write(int fd, const char *at, long len) { return inside_write(fd, at, len); }
#else

/* Nothing of what stands around the call may change: six registers, and 128 bytes
 * below the stack pointer of a function that calls nobody. */
long inside_write(int fd, const char *at, long len)
{
    volatile char zone[96];
    for (int k = 0; k < 96; k++)
        zone[k] = (char)k;
    long kept = (long)at ^ len;
    long result = RAW3(SYS_write, fd, at, len);
    for (int k = 0; k < 96; k++)
        if (zone[k] != (char)k)
            return -100 - k;
    return ((long)at ^ len) == kept ? result : -99;
}

/* The number is not known before. */
long inside_any(long nr, long a, long b, long c) { return raw6(nr, a, b, c, 0, 0, 0); }

/* Four bytes and the function is over: nothing behind the call can be replaced. */
__asm__(".globl inside_close\n"
        ".type inside_close, @function\n"
        "inside_close:\n\t"
        "mov $3, %eax\n\t"
        "syscall\n\t"
        "ret\n\t"
        ".size inside_close, . - inside_close\n"
        /* A loop whose branch leads between the number and the call: stays. */
        ".globl inside_twice\n"
        ".type inside_twice, @function\n"
        "inside_twice:\n\t"
        "mov $110, %eax\n\t"
        "mov $2, %r8d\n"
        "1:\tnop\n\t"
        "syscall\n\t"
        "mov $110, %eax\n\t"
        "dec %r8d\n\t"
        "jnz 1b\n\t"
        "ret\n\t"
        ".size inside_twice, . - inside_twice\n");
#endif
