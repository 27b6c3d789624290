// Waits for the end of its standard input, after having made itself hard to enter:
// "filter" (a seccomp filter that allows everything), "hidden" (not dumpable), "zombie"
// (it has a child that has ended, whose number it prints), "headless" (its first thread
// ends, another one waits), "bare" (nothing).
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void *waits(void *unused)
{
    char byte;
    _exit(read(0, &byte, 1) == 0 ? 0 : 1);
}

int main(int count, char **args)
{
    const char *how = count > 1 ? args[1] : "bare";
    int ready = getpid();
    if (strcmp(how, "filter") == 0) {
        struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
        struct sock_fprog filter = {1, all};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
            return 2;
    } else if (strcmp(how, "hidden") == 0) {
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    } else if (strcmp(how, "zombie") == 0) {
        siginfo_t info;
        ready = fork();
        if (ready == 0)
            _exit(0);
        waitid(P_PID, ready, &info, WEXITED | WNOWAIT);
    }
    printf("%d\n", ready);
    fflush(stdout);
    if (strcmp(how, "headless") == 0) {
        pthread_t thread;
        pthread_create(&thread, 0, waits, 0);
        pthread_exit(0);
    }
    waits(0);
}
