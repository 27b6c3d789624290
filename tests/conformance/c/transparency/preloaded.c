/* Calls getpid five times and asks the library that counts it; then the same in
 * a new program, and once more: preloaded TURNS. */
#define _GNU_SOURCE
#include "probe.h"

#include <dlfcn.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static char block[1024];
    char turns[16];
    int left = argc > 1 ? atoi(argv[1]) : 0;
    int (*counted)(void);
    void *found = dlsym(RTLD_DEFAULT, "other_count");
    memcpy(&counted, &found, sizeof counted);
    int fd = raw_open("/dev/null", O_WRONLY);
    for (int k = 0; k < 5; k++)
        if (getpid() != (int)RAW0(SYS_getpid))
            return 3;
    for (int k = 0; k < 8; k++)
        write(fd, block, sizeof block);
    say("turn %d: getpid counted %d times", left, counted ? counted() : -1);
    if (left == 0)
        return 0;
    snprintf(turns, sizeof turns, "%d", left - 1);
    execv(argv[0], (char *[]){argv[0], turns, NULL});
    return 4;
}
