/* A library with code in two places and data between (BOLT makes such, and whoever puts code on pages of its own). It makes system
 * calls of its own from both, and changes its data after them. With MAIN it is the program that loads it. */
#ifdef MAIN
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (library == NULL)
        return 2;
    long (*near_write)(int, const char *, long) = (long (*)(int, const char *, long))dlsym(library, "near_write");
    long (*far_write)(int, const char *, long) = (long (*)(int, const char *, long))dlsym(library, "far_write");
    int *counter = (int *)dlsym(library, "counter");
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int codes = 0, wrong = 0;
    near_write(1, "near\n", 5);
    far_write(1, "far\n", 4);
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        char mode[8];
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) != 3)
            continue;
        unsigned long at[] = {(unsigned long)near_write, (unsigned long)far_write, (unsigned long)counter};
        for (int k = 0; k < 3; k++)
            if (from <= at[k] && at[k] < to) {
                codes++;
                wrong += (k < 2) != (mode[2] == 'x') || (k < 2) == (mode[1] == 'w');
            }
    }
    printf("counted %d, %d parts, %d of them wrong\n", *counter, codes, wrong);
    return 0;
}
#else
int counter = 1;

static inline long made(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

long near_write(int fd, const char *text, long len)
{
    long put = made(1, fd, (long)text, len);
    counter += put > 0;
    return put;
}

__attribute__((section(".far,\"ax\",@progbits#"))) long far_write(int fd, const char *text, long len)
{
    long put = made(1, fd, (long)text, len);
    counter += put > 0;
    return put;
}

__attribute__((constructor)) static void begins(void)
{
    counter++;
}
#endif
