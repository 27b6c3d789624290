/* Starts a program that ends with the benchmark, in an environment that is its own.
 *
 *   launch [-o FILE] [-e NAME=VALUE]... [-c CPU] PROGRAM ARGUMENT...
 *
 * With -o it waits for the program's end and writes one line of JSON on it into
 * FILE; otherwise it becomes the program. A server is asked to end, so that it
 * ends its workers; -o stands for clients, which are killed. */
#include "raw.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

static uint64_t us(struct timeval t) { return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_usec; }

static void become(char **program, char **settings, int count, int signal)
{
    prctl(PR_SET_PDEATHSIG, signal);
    for (int i = 0; i < count; i++) putenv(settings[i]);
    execvp(program[0], program);
    fprintf(stderr, "%s: %s\n", program[0], strerror(errno));
    _exit(127);
}

int main(int argc, char **argv)
{
    const char *file = NULL;
    char *settings[16];
    int count = 0, option;
    while ((option = getopt(argc, argv, "+o:e:c:")) != -1) {
        if (option == 'o') file = optarg;
        else if (option == 'e' && count < 16) settings[count++] = optarg;
        else if (option == 'c') pin_to((unsigned)atoi(optarg));
        else return 2;
    }
    if (optind >= argc) return 2;
    if (!file) become(argv + optind, settings, count, SIGTERM);
    end_with_parent();
    uint64_t from = now_ns();
    pid_t pid = fork();
    if (pid < 0) fail("fork");
    if (pid == 0) become(argv + optind, settings, count, SIGKILL);
    int status;
    struct rusage used;
    while (wait4(pid, &status, 0, &used) != pid)
        if (errno != EINTR) fail("wait");
    uint64_t wall = now_ns() - from;
    FILE *out = fopen(file, "w");
    if (!out) fail(file);
    fprintf(out, "{\"wall_ns\":%lu,\"cpu_us\":%lu,\"nivcsw\":%ld,\"code\":%d,\"signal\":%d}\n", wall,
            us(used.ru_utime) + us(used.ru_stime), used.ru_nivcsw,
            WIFEXITED(status) ? WEXITSTATUS(status) : 0, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    return fclose(out) != 0;
}
