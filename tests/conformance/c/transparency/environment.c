/* Programs started with environments of their own: each prints what it finds in its
 * environment, writes 1 KiB, and starts two more with what it has. The first process
 * starts twelve such families. */
#define _GNU_SOURCE
#include "probe.h"

#include <spawn.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char self[512];

static void wait_for(int pid)
{
    int status = -1;
    raw_wait(pid, &status);
    if (status != 0)
        say("ended with %d", status);
}

static int show(const char *who, char **envp, int more)
{
    static char block[1024];
    char command[1200];
    char *next[] = {self, "show", (char *)who, "0", NULL};
    int pid, n = 0, gaps = 0;
    for (; envp[n]; n++) {
        char *value = strchr(envp[n], '=');
        if (n && envp[n] != envp[n - 1] + strlen(envp[n - 1]) + 1)
            gaps++;
        say("%s %d: %s", who, more, envp[n]);
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(value - envp[n]), envp[n]);
        if (getenv(name) != value + 1)
            say("%s is another one", name);
    }
    /* Programs that write their title over these strings look for the first gap. */
    say("%s %d: %d variables, %d gaps, %s, pages of %lu", who, more, n, gaps,
        envp == environ ? "the same array" : "another array", getauxval(AT_PAGESZ));
    if (write(raw_open("/dev/null", O_WRONLY), block, sizeof block) != (ssize_t)sizeof block)
        return 1;
    if (!more)
        return 0;
    if (posix_spawn(&pid, self, NULL, NULL, next, environ) != 0)
        return 2;
    wait_for(pid);
    snprintf(command, sizeof command, "exec '%s' show '%s' 0", self, who);
    return system(command) != 0;
}

int main(int argc, char **argv, char **envp)
{
    char *none[] = {NULL}, *one[] = {"A=1", NULL};
    char *emptied[] = {"A=1", "LD_PRELOAD=", "B=2", "ASAN_OPTIONS=", NULL};
    char *others[] = {"LD_PRELOAD=libm.so.6", "ASAN_OPTIONS=abort_on_error=1:halt_on_error=1", "B=2", NULL};
    char **environments[] = {none, one, emptied, others};
    const char *ways[] = {"fork", "vfork", "posix_spawn"};
    uint64_t from = raw_now();
    int pid;
    guard(30);
    RAW3(SYS_readlink, "/proc/self/exe", self, sizeof self - 1);
    if (argc > 3)
        return show(argv[2], envp, atoi(argv[3]));
    for (int way = 0; way < 3; way++)
        for (int i = 0; i < 4; i++) {
            char *first[] = {self, "show", (char *)ways[way], "1", NULL};
            if (way == 2) {
                if (posix_spawn(&pid, self, NULL, NULL, first, environments[i]) != 0)
                    return 3;
            } else if ((pid = way == 0 ? fork() : vfork()) == 0) {
                execve(self, first, environments[i]);
                _exit(9);
            }
            wait_for(pid);
        }
    say("# elapsed %ld ms", milliseconds(from));
    return 0;
}
