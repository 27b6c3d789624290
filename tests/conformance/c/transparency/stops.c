/* Stops children at any instant around their exec of this program: each stays stopped
 * until it is continued, and then ends as it should. */
#define _GNU_SOURCE
#include "probe.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 80, STEP_US = 200, LOOKS = 3 };

/* The state in /proc/PID/stat. */
static char state_of(int pid)
{
    char path[40], text[200] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = raw_open(path, O_RDONLY);
    if (fd < 0) return '?';
    syscall(SYS_read, fd, text, sizeof text - 1);
    raw_close(fd);
    const char *at = strrchr(text, ')');
    return at ? at[2] : '?';
}

/* Stopped in so many looks in a row, within some seconds. */
static int stays_stopped(int pid)
{
    int in_a_row = 0;
    for (int i = 0; i < 300 && in_a_row < LOOKS; i++) {
        usleep(10000);
        in_a_row = state_of(pid) == 'T' ? in_a_row + 1 : 0;
    }
    return in_a_row == LOOKS;
}

int main(int argc, char **argv)
{
    int stopped = 0, ended = 0;
    char byte;
    if (argc > 1) return read(0, &byte, 1) == 0 ? 9 : 8;
    guard(50);
    for (int i = 0; i < CHILDREN; i++) {
        int fds[2], status = 0;
        if (pipe2(fds, O_CLOEXEC) != 0) return 3;
        int pid = fork();
        if (pid == 0) {
            dup2(fds[0], 0);
            execl(argv[0], argv[0], "wait", (char *)NULL);
            _exit(7);
        }
        usleep((unsigned)(STEP_US * i));
        kill(pid, SIGSTOP);
        stopped += stays_stopped(pid);
        close(fds[0]);
        close(fds[1]);
        kill(pid, SIGCONT);
        waitpid(pid, &status, 0);
        ended += WIFEXITED(status) && WEXITSTATUS(status) == 9;
    }
    say("%d stopped, %d ended", stopped, ended);
    return 0;
}
