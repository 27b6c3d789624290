/* Calls before the constructor of any library has run. Some allocators begin with such calls, and the C library of Debian 11 runs
 * constructors of other libraries before those of preloaded ones. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef LIBRARY
int first(void)
{
    return 1;
}
#else
int first(void);
static long said[8];

static void early(void)
{
    static int word;
    char text[8] = "";
    struct stat status;
    struct statfs system;
    said[0] = syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    said[1] = syscall(SYS_getppid) == getppid();
    said[2] = stat("/dev/null", &status);
    said[3] = statfs("/dev", &system);
    int fd = open("/dev/zero", O_RDONLY);
    said[4] = read(fd, text, sizeof text);
    said[5] = ioctl(fd, 0, 0);
    said[6] = close(fd);
    said[7] = access("/nothing", F_OK);
}

__attribute__((section(".preinit_array"), used)) static void (*const before_all)(void) = early;

int main(void)
{
    for (unsigned i = 0; i < sizeof said / sizeof *said; i++)
        printf("%ld\n", said[i]);
    printf("%d\n", first());
    return 0;
}
#endif
