/* Kills children around their exec: before it, in it, and after it.
 *
 *   arrivals TIMES PROGRAM   runs PROGRAM so often, and kills each child a bit later than the one before;
 *                            prints how many were killed and how many ended by themselves */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    long times = atol(argv[1]), killed = 0, ended = 0;
    for (long i = 0; i < times; i++) {
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (child == 0) {
            execl(argv[2], argv[2], (char *)NULL);
            _exit(127);
        }
        /* Forwards through the first three milliseconds, again and again. */
        struct timespec wait = { 0, i * 37000 % 3000000 };
        nanosleep(&wait, NULL);
        kill(child, SIGKILL);
        int status;
        if (waitpid(child, &status, 0) != child)
            return 1;
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
            killed++;
        else if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            ended++;
        else
            return 1;
    }
    printf("%ld %ld\n", killed, ended);
    return 0;
}
