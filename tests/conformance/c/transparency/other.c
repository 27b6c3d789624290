/* Another preloaded library: counts getpid. */
static int count;

extern long syscall(long, ...);

int getpid(void);
int other_count(void);

int getpid(void)
{
    count++;
    return (int)syscall(39);
}

int other_count(void)
{
    return count;
}
