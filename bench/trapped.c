// Calls by an instruction that cannot be replaced, as a branch leads to it; their time is
// measured bare, trapped by nothing but the mechanism, or as `bonsai run --unpatched trap` has it.
//
// trapped bare FILE          also what is run under Bonsai
// trapped floor FILE         under a filter for that instruction, with a handler that makes
//                            the call and decides nothing
//
// One line of JSON: ns per call of each operation, the medians of groups; the last one is a
// call that is not trapped.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { CALLS = 100 };
#include "median.h"

__asm__(".text\n.balign 64\ninline_call:\n"
        "mov %rdi, %rax\n mov %rsi, %rdi\n mov %rdx, %rsi\n mov %rcx, %rdx\n mov %r8, %r10\n"
        "test %rax, %rax\n jmp 1f\n nop\n 1: syscall\n ret\n inline_end:\n");
extern long inline_call(long number, long a, long b, long c, long d);
extern const char inline_end[];

static char bytes[4096];
static int file, null;

static void empty(void) { inline_call(SYS_getppid, 0, 0, 0, 0); }

static void positioned(void) {
    if (inline_call(SYS_pread64, file, (long)bytes, sizeof bytes, 0) != sizeof bytes)
        _exit(3);
}

static void byte(void) {
    if (inline_call(SYS_write, null, (long)bytes, 1, 0) != 1)
        _exit(3);
}

// Not in the table of calls, so that nothing is decided.
static void other(void) { syscall(SYS_getpid); }

static void trapped(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)info;
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    register long r10 __asm__("r10") = r[REG_R10];
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(r[REG_RAX]), "D"(r[REG_RDI]), "S"(r[REG_RSI]), "d"(r[REG_RDX]), "r"(r10)
                     : "rcx", "r11", "memory");
    r[REG_RAX] = result;
}

static void confine(void) {
    uint64_t from = (uintptr_t)inline_call, to = (uintptr_t)inline_end;
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(from >> 32), 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (uint32_t)from, 0, 2),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (uint32_t)to, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART};
    if (sigaction(SIGSYS, &action, NULL) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program))
        _exit(4);
}

int main(int count, char **arguments) {
    if (count != 3)
        return 2;
    file = open(arguments[2], O_RDONLY);
    null = open("/dev/null", O_WRONLY);
    if (strcmp(arguments[1], "floor") == 0)
        confine();
    printf("[%.1f, %.1f, %.1f, %.1f]\n", median(empty), median(positioned), median(byte), median(other));
    return 0;
}
