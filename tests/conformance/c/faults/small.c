/* A 32-bit program without libc: says so, and ends with 5. */
void _start(void);

static int call(int number, int a, const void *b, int c)
{
    int result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
    return result;
}

void _start(void)
{
    static const char said[] = "32 bits\n";
    call(4, 1, said, sizeof said - 1);
    call(1, 5, 0, 0);
    for (;;) { }
}
