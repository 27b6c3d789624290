/* Runs a program under a filter that denies one call, as a container's or a unit's may.
 *
 *   denied NUMBER kill|ERRNO PROGRAM [ARGUMENT...] */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int n, char **words)
{
    if (n < 4)
        return 2;
    unsigned number = (unsigned)atoi(words[1]);
    unsigned action = !strcmp(words[2], "kill") ? SECCOMP_RET_KILL_PROCESS
                                                : SECCOMP_RET_ERRNO | (unsigned)atoi(words[2]);
    struct sock_filter code[] = {
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, 0},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, number},
        {BPF_RET | BPF_K, 0, 0, action},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("denied");
        return 1;
    }
    execvp(words[3], words + 3);
    perror(words[3]);
    return 127;
}
