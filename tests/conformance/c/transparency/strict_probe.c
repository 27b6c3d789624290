/* As libseccomp does before its first filter: asks for strict mode in a way that the kernel refuses, to learn whether
 * there is the call. Nothing is forbidden by that. */
#define _GNU_SOURCE
#include "probe.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static char block[20000];
    guard(20);
    if (argc == 1) {
        errno = 0;
        say("strict mode: %s", error_name(syscall(SYS_seccomp, 0, 1, 0)));
        say("filter: %s", error_name(syscall(SYS_seccomp, 1, 1, 0)));
        fflush(stdout);
        execl("/proc/self/exe", argv[0], "again", (char *)0);
        return 1;
    }
    int fd = open("/dev/zero", O_RDONLY);
    uint64_t from = raw_now();
    long done = 0;
    for (long n; done < 200000 && (n = read(fd, block, sizeof block)) > 0;)
        done += n;
    say("%ld bytes", done);
    say("# elapsed %ld ms", (long)milliseconds(from));
    return 0;
}
