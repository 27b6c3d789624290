/* Calls by instructions that nobody can replace: `1: syscall`, into which a branch leads, in
 * the program (PLACE_PROGRAM), in a library beside it (PLACE_LIBRARY), or in memory that
 * is made executable as it runs. Each part makes COUNT calls of pwrite64 with 1 KiB.
 *
 *   trapped PART COUNT */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef long call_t(long number, long a, long b, long c, long d);

/* From a function's arguments to those of a system call, which a branch leads to. */
#define BODY                                                        \
    "mov %rdi, %rax\n mov %rsi, %rdi\n mov %rdx, %rsi\n"            \
    "mov %rcx, %rdx\n mov %r8, %r10\n test %rax, %rax\n"            \
    "jmp 1f\n nop\n 1: syscall\n ret\n"

#ifdef LIBRARY
__asm__(".globl inline_call\n.type inline_call,@function\ninline_call:\n" BODY);
#else
extern call_t inline_call;
#ifdef PLACE_PROGRAM
__asm__(".globl inline_call\n.type inline_call,@function\ninline_call:\n" BODY);
#endif
__asm__(".pushsection .rodata\nbody: " BODY "body_end:\n.popsection");
extern const char body[] __asm__("body"), body_end[] __asm__("body_end");

static call_t *made_call(void)
{
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return NULL;
    memcpy(page, body, (size_t)(body_end - body));
    if (mprotect(page, 4096, PROT_READ | PROT_EXEC) != 0)
        return NULL;
    return (call_t *)(void *)page;
}

static call_t *call;
static int file;
static char data[1024];

static void writes(int count)
{
    for (int i = 0; i < count; i++)
        if (call(SYS_pwrite64, file, (long)data, sizeof data, 0) != (long)sizeof data)
            puts("a write failed");
}

static void *blocked(void *count)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    writes((int)(long)count);
    return NULL;
}

static void threads(int count)
{
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, blocked, (void *)(long)(count / 4));
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
}

static volatile sig_atomic_t handled, written;
static void on_sys(int signal, siginfo_t *info, void *context)
{
    (void)context;
    handled += signal == SIGSYS && info->si_pid == getpid();
}
static void on_alarm(int signal)
{
    (void)signal;
    written += call(SYS_pwrite64, file, (long)data, sizeof data, 0) == (long)sizeof data;
}

/* The program's own dealings with SIGSYS, handlers that have everything blocked and make
 * such calls, and a call that one interrupts. Makes 1 + COUNT calls. */
static void signals(int count)
{
    struct sigaction old, own = {.sa_sigaction = on_sys, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, NULL, &old);
    printf("at first: %d\n", old.sa_handler == SIG_DFL);
    sigaction(SIGSYS, &own, &old);
    printf("before: %d\n", old.sa_handler == SIG_DFL);
    sigaction(SIGSYS, NULL, &old);
    printf("own: %d\n", old.sa_sigaction == on_sys);
    long bad = syscall(SYS_rt_sigaction, SIGSYS, 8, 0, 8);
    printf("bad: %d\n", bad == -1 && errno == EFAULT);
    kill(getpid(), SIGSYS);
    printf("handled: %d\n", (int)handled);
    writes(count);
    printf("handled: %d\n", (int)handled);
    struct sigaction alarm = {.sa_handler = on_alarm};
    sigfillset(&alarm.sa_mask);
    sigaction(SIGALRM, &alarm, NULL);
    struct itimerval soon = {.it_value = {.tv_usec = 50000}};
    int ends[2];
    if (pipe(ends) == 0) {
        setitimer(ITIMER_REAL, &soon, NULL);
        char byte;
        printf("read: %ld\n", call(SYS_read, ends[0], (long)&byte, 1, 0));
    }
    printf("written: %d\n", (int)written);
    sigset_t mask, was;
    sigfillset(&mask);
    printf("mask: %d\n", sigprocmask(SIG_SETMASK, &mask, NULL));
    sigprocmask(SIG_SETMASK, NULL, &was);
    printf("blocked: %d\n", sigismember(&was, SIGALRM) && sigismember(&was, SIGTERM));
    printf("bad mask: %ld\n", syscall(SYS_rt_sigprocmask, SIG_SETMASK, 8, 0, 8));
}

/* A child by such a call, one by vfork, one that becomes another program, and one that dies
 * of the signal, as it would. */
static void children(const char *self, int count)
{
    fflush(stdout);
    long child = call(SYS_fork, 0, 0, 0, 0);
    if (child == 0) {
        writes(count / 2);
        _exit(7);
    }
    int status = 0;
    waitpid((pid_t)child, &status, 0);
    printf("child: %d\n", WEXITSTATUS(status));
    fflush(stdout);
    char number[16];
    snprintf(number, sizeof number, "%d", count / 2);
    char *args[] = {(char *)self, "made", number, NULL};
    char *place = getenv("NEXT");
    pid_t spawned;
    if (posix_spawn(&spawned, place ? place : self, NULL, NULL, args, environ) == 0)
        waitpid(spawned, &status, 0);
    printf("spawned: %d\n", WEXITSTATUS(status));
    fflush(stdout);
    child = call(SYS_fork, 0, 0, 0, 0);
    if (child == 0) {
        call(SYS_execve, (long)(place ? place : self), (long)args, (long)environ, 0);
        _exit(9);
    }
    waitpid((pid_t)child, &status, 0);
    printf("by itself: %d\n", WEXITSTATUS(status));
    printf("system: %d\n", WEXITSTATUS(system("exit 3")));
    fflush(stdout);
    child = fork();
    if (child == 0) {
        raise(SIGSYS);
        _exit(1);
    }
    waitpid((pid_t)child, &status, 0);
    printf("died: %d\n", WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
}

/* A debugger's child sets handlers and masks before it becomes another program: its first stop is
 * that of the new program. */
static void traced(void)
{
    alarm(30);
    pid_t child = vfork();
    if (child == 0) {
        sigset_t none;
        sigemptyset(&none);
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        signal(SIGINT, SIG_DFL);
        sigprocmask(SIG_SETMASK, &none, NULL);
        execl("/bin/true", "true", NULL);
        _exit(9);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("stopped: %d\n", WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
    ptrace(PTRACE_CONT, child, NULL, NULL);
    waitpid(child, &status, 0);
    printf("ended: %d\n", WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
    struct timespec from, to;
    const char *part = argc > 1 ? argv[1] : "";
    int count = argc > 2 ? atoi(argv[2]) : 0;
    file = memfd_create("data", MFD_CLOEXEC);
    call = made_call();
#if defined(PLACE_PROGRAM) || defined(PLACE_LIBRARY)
    if (getenv("INLINE"))
        call = inline_call;
#endif
    clock_gettime(CLOCK_MONOTONIC, &from);
    if (strcmp(part, "made") == 0)
        writes(count);
    else if (strcmp(part, "threads") == 0)
        threads(count);
    else if (strcmp(part, "signals") == 0)
        signals(count);
    else if (strcmp(part, "children") == 0)
        children(argv[0], count);
    else if (strcmp(part, "traced") == 0) {
        traced();
        writes(count);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    printf("%s done\n", part);
    printf("# elapsed %.3f ms\n",
           (double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) / 1e6);
    return 0;
}
#endif
