/* Programs started in every way there is; each writes 8 KiB to its own file:
 * programs FOLDER. Under --write FILE it is such a program itself. */
#define _GNU_SOURCE
#include "probe.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char self[512];

static int writer(const char *file)
{
    static char block[1024];
    int fd = raw_open(file, O_WRONLY | O_CREAT | O_TRUNC);
    for (int k = 0; k < 8; k++)
        if (write(fd, block, sizeof block) != (ssize_t)sizeof block)
            return 1;
    return 0;
}

static char **arguments(char *file)
{
    static char *list[4];
    list[0] = "a writer";
    list[1] = "--write";
    list[2] = file;
    return list;
}

static void report(const char *how, char *file, int status)
{
    struct stat st = {0};
    raw_stat(file, &st);
    say("%s: status %d, %ld bytes", how, status, (long)st.st_size);
}

static int status_of(int pid)
{
    int status = -1;
    raw_wait(pid, &status);
    return status;
}

int main(int argc, char **argv)
{
    char file[512];
    char command[1200];
    char *none[] = {NULL};
    int pid;
    if (argc > 2 && strcmp(argv[1], "--write") == 0)
        return writer(argv[2]);
    if (argc < 2)
        return 2;
    guard(30);
    RAW3(SYS_readlink, "/proc/self/exe", self, sizeof self - 1);
    snprintf(file, sizeof file, "%s/a file", argv[1]);
    uint64_t from = raw_now();

    if ((pid = vfork()) == 0) {
        execv(self, arguments(file));
        _exit(9);
    }
    report("vfork and execv", file, status_of(pid));

    if ((pid = fork()) == 0) {
        execve(self, arguments(file), none);
        _exit(9);
    }
    report("fork and execve without environment", file, status_of(pid));

    if ((pid = vfork()) == 0) {
        execve(self, arguments(file), none);
        _exit(9);
    }
    report("vfork and execve without environment", file, status_of(pid));

    if (posix_spawn(&pid, self, NULL, NULL, arguments(file), environ) != 0)
        return 3;
    report("posix_spawn", file, status_of(pid));

    if (posix_spawnp(&pid, self, NULL, NULL, arguments(file), none) != 0)
        return 3;
    report("posix_spawnp without environment", file, status_of(pid));

    snprintf(command, sizeof command, "'%s' --write '%s'", self, file);
    report("system", file, system(command));

    snprintf(command, sizeof command, "env -i '%s' --write '%s'", self, file);
    report("system with env -i", file, system(command));

    snprintf(command, sizeof command, "'%s' --write '%s'", self, file);
    FILE *p = popen(command, "r");
    report("popen", file, p ? pclose(p) : -1);

    if ((pid = fork()) == 0) {
        clearenv();
        execvp(self, arguments(file));
        _exit(9);
    }
    report("clearenv and execvp", file, status_of(pid));

    if ((pid = fork()) == 0) {
        setenv("LD_PRELOAD", "", 1);
        execl(self, "a writer", "--write", file, NULL);
        _exit(9);
    }
    report("emptied LD_PRELOAD and execl", file, status_of(pid));

    /* To another folder before; what was given as a relative path must not get lost. */
    if ((pid = fork()) == 0) {
        if (chdir("/") != 0)
            _exit(8);
        execle(self, "a writer", "--write", file, NULL, environ);
        _exit(9);
    }
    report("chdir and execle", file, status_of(pid));
    say("# elapsed %ld ms", milliseconds(from));
    raw_unlink(file);
    return 0;
}
