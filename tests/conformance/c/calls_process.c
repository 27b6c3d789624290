/* New processes and new programs. */
#define _GNU_SOURCE
#include "harness.h"

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

pid_t __fork(void);
__attribute__((returns_twice)) pid_t __vfork(void);

/* The status that a child which is this program under --exit ends with. */
static char *const arguments[] = {"calls", "--exit", "7", NULL};
/* With this in its environment it is one more. */
static char *const extra[] = {"CONFORMANCE_EXTRA=1", NULL};

static void ended(struct run *r, unsigned i, int pid, int want)
{
    int status = 0;
    CHECK(r, pid > 0);
    CHECK(r, raw_wait(pid, &status) == pid);
    CHECK(r, WIFEXITED(status) && WEXITSTATUS(status) == want);
    mix(r, i, (uint64_t)status);
}

/* What is written before is there in the child, what the child writes is not here. */
#define FORK(id, sym, entry_, expression)                                               \
    static long op_##id(struct run *r, unsigned i)                                      \
    {                                                                                   \
        r->data[0] = 5;                                                                 \
        errno = ERRNO_CANARY;                                                           \
        int pid = (int)(expression);                                                    \
        if (pid == 0) {                                                                 \
            int same = r->data[0] == 5;                                                 \
            r->data[0] = 6;                                                             \
            raw_exit(same ? 3 : 4);                                                     \
        }                                                                               \
        CHECK(r, errno == ERRNO_CANARY && r->data[0] == 5);                             \
        ended(r, i, pid, 3);                                                            \
        return 0;                                                                       \
    }                                                                                   \
    CASE(id, .symbol = sym, .entry = entry_, .ops = 12, .op = op_##id)

FORK(fork, "fork", "fork", fork());
FORK(__fork, "__fork", "fork", __fork());
FORK(_Fork, "_Fork", "fork", _Fork());
FORK(syscall_fork, "syscall", "fork", syscall(SYS_fork));
FORK(syscall_clone, "syscall", "clone", syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));

/* The child runs in the parent's memory until it ends. */
#define VFORK(id, sym, expression)                                                      \
    static __attribute__((noinline)) long op_##id(struct run *r, unsigned i)            \
    {                                                                                   \
        volatile unsigned char *shared = r->data;                                       \
        shared[0] = 5;                                                                  \
        int pid = (int)(expression);                                                    \
        if (pid == 0) {                                                                 \
            shared[0] = 6;                                                              \
            raw_exit(3);                                                                \
        }                                                                               \
        CHECK(r, shared[0] == 6);                                                       \
        ended(r, i, pid, 3);                                                            \
        return 0;                                                                       \
    }                                                                                   \
    CASE(id, .symbol = sym, .entry = "vfork", .ops = 12, .op = op_##id)

VFORK(vfork, "vfork", vfork());
VFORK(__vfork, "__vfork", __vfork());

/* Each exec is made by a child of its own. */
static long exec_op(struct run *r, unsigned i)
{
    int pid = raw_fork();
    if (pid == 0) {
        r->test->go(r, (int)r->number, self, i & 1, 0);
        raw_exit(99);
    }
    ended(r, i, pid, i & 1 ? 8 : 7);
    return 0;
}

static void exec_errors(struct run *r)
{
    mover *go = r->test->go;
    const char *entry = r->test->entry;
    raw_close(raw_file(r, "plain", 100));
    EXPECT(r, entry, ENOENT, go(r, -1, path_in(r, "none"), 1, 0));
    EXPECT(r, entry, EACCES, go(r, -1, path_in(r, "plain"), 1, 0));
    EXPECT(r, entry, ENOTDIR, go(r, -1, path_in(r, "plain/x"), 1, 0));
    EXPECT(r, entry, EACCES, go(r, -1, r->dir, 1, 0));
}

static void execve_errors(struct run *r)
{
    mover *go = r->test->go;
    const char *entry = r->test->entry;
    exec_errors(r);
    RAW3(SYS_fchmodat, AT_FDCWD, path_in(r, "plain"), 0755);
    EXPECT(r, entry, ENOEXEC, go(r, -1, path_in(r, "plain"), 1, 0));
    EXPECT(r, entry, EFAULT, go(r, -1, NOWHERE, 1, 0));
}

#define EXEC(id, sym, entry_, errors_, expression)                      \
    MOVER(id, expression)                                               \
    CASE(id, .symbol = sym, .entry = entry_, .ops = 8, .go = go_##id,   \
         .op = exec_op, .errors = errors_)

/* `len` says whether the environment has the variable; where a function takes
 * the caller's environment, the child sets that first. */
static char *const *with(size_t len)
{
    static char *const none[] = {NULL};
    return len ? extra : none;
}

static int set(size_t len)
{
    if (len)
        environ = (char **)(uintptr_t)extra;
    return 1;
}

EXEC(execve, "execve", "execve", execve_errors, execve(at, arguments, (char *const *)with(len)));
EXEC(syscall_execve, "syscall", "execve", execve_errors, syscall(SYS_execve, at, arguments, with(len)));
EXEC(execv, "execv", "execve", execve_errors, set(len) ? execv(at, arguments) : 0);
EXEC(execvp, "execvp", "execve", exec_errors, set(len) ? execvp(at, arguments) : 0);
EXEC(execvpe, "execvpe", "execve", exec_errors, execvpe(at, arguments, (char *const *)with(len)));
EXEC(execl, "execl", "execve", execve_errors, set(len) ? execl(at, "calls", "--exit", "7", NULL) : 0);
EXEC(execlp, "execlp", "execve", exec_errors, set(len) ? execlp(at, "calls", "--exit", "7", NULL) : 0);
EXEC(execle, "execle", "execve", execve_errors, execle(at, "calls", "--exit", "7", NULL, with(len)));

/* By a descriptor: number is the one of this program. */
static void by_descriptor(struct run *r)
{
    r->fd[0] = raw_open(self, O_RDONLY | O_CLOEXEC);
    CHECK(r, r->fd[0] >= 0);
    r->number = (uint64_t)r->fd[0];
}

static void fexecve_errors(struct run *r)
{
    mover *go = r->test->go;
    int file = raw_file(r, "plain", 100);
    EXPECT(r, "execveat", EACCES, go(r, file, "", 1, 0));
    raw_close(file);
}

static void execveat_errors(struct run *r)
{
    mover *go = r->test->go;
    fexecve_errors(r);
    EXPECT(r, "execveat", EBADF, go(r, 9999, "", 1, 0));
    EXPECT(r, "execveat", EFAULT, go(r, r->fd[0], NOWHERE, 1, 0));
}

#define EXECAT(id, sym, errors_, expression)                                  \
    MOVER(id, expression)                                                     \
    CASE(id, .symbol = sym, .entry = "execveat", .ops = 8, .go = go_##id,     \
         .setup = by_descriptor, .op = exec_op, .errors = errors_, .finish = close_all)

/* The name: that of the program in exec_op, none in the error calls. */
static const char *name_of(const char *at)
{
    return at == self ? "" : at;
}

EXECAT(fexecve, "fexecve", fexecve_errors, fexecve(fd, arguments, (char *const *)with(len)));
EXECAT(execveat, "execveat", execveat_errors,
       execveat(fd, name_of(at), arguments, (char *const *)with(len), AT_EMPTY_PATH));
EXECAT(syscall_execveat, "syscall", execveat_errors,
       syscall(SYS_execveat, fd, name_of(at), arguments, with(len), AT_EMPTY_PATH));

/* posix_spawn returns its error; the child's failed exec is the parent's error. */
static long spawn_op(struct run *r, unsigned i)
{
    r->number = 0;
    CHECK(r, r->test->go(r, 0, self, i & 1, 0) == 0);
    ended(r, i, (int)r->number, i & 1 ? 8 : 7);
    return 0;
}

static void spawn_errors(struct run *r)
{
    mover *go = r->test->go;
    raw_close(raw_file(r, "plain", 100));
    EXPECT(r, NULL, ENOENT, go(r, 0, path_in(r, "none"), 0, 0));
    EXPECT(r, NULL, EACCES, go(r, 0, path_in(r, "plain"), 0, 0));
    tally(r, "vfork", 2, 0);
}

static long stored(int error)
{
    if (error == 0)
        return 0;
    errno = error;
    return -1;
}

#define SPAWN(id, sym, expression)                                            \
    MOVER(id, expression)                                                     \
    CASE(id, .symbol = sym, .entry = "vfork", .ops = 8, .go = go_##id,        \
         .op = spawn_op, .errors = spawn_errors)

SPAWN(posix_spawn, "posix_spawn",
      stored(posix_spawn((pid_t *)&r->number, at, NULL, NULL, arguments, (char *const *)with(len))));
SPAWN(posix_spawnp, "posix_spawnp",
      stored(posix_spawnp((pid_t *)&r->number, at, NULL, NULL, arguments, (char *const *)with(len))));

/* So does what starts a shell. */
static long shell_op(struct run *r, unsigned i)
{
    int status = r->test->go(r, 0, NULL, i & 1, 0);
    CHECK(r, status == (i & 1 ? 8 : 7) << 8);
    mix(r, i, (unsigned long)status);
    return 0;
}

#define SHELL(id, sym, expression)                                            \
    MOVER(id, expression)                                                     \
    CASE(id, .symbol = sym, .entry = "vfork", .ops = 8, .go = go_##id, .op = shell_op)

SHELL(system, "system", system(len ? "exit 8" : "exit 7"));
SHELL(popen, "popen", pclose(popen(len ? "exit 8" : "exit 7", "r")));

/* A shell is started, and what it writes is the service's, too. */
static long system_op(struct run *r, unsigned i)
{
    char command[300];
    snprintf(command, sizeof command, "printf 0123456789 >> '%s'; exit 3", path_in(r, "said"));
    int status = system(command);
    CHECK(r, status == 3 << 8);
    int fd = raw_open(path_in(r, "said"), O_RDONLY);
    long n = raw_pread(fd, r->data, ROOM, 0);
    raw_close(fd);
    CHECK(r, n == 10 * (long)(i - r->first + 1));
    mix_bytes(r, i, r->data, 10);
    return 10;
}

CASE(child_system, .symbol = "", .entry = "write.file", .unit = 10, .ops = 8, .op = system_op);

static long popen_op(struct run *r, unsigned i)
{
    FILE *f = popen("printf 0123456789", "r");
    CHECK(r, f != NULL);
    CHECK(r, fread(r->data, 1, 100, f) == 10 && memcmp(r->data, "0123456789", 10) == 0);
    CHECK(r, pclose(f) == 0);
    mix_bytes(r, i, r->data, 10);
    return 10;
}

CASE(child_popen, .symbol = "", .entry = "write.other", .unit = 10, .ops = 8, .op = popen_op);
CASE(inside_popen, .symbol = "", .entry = "read.other", .unit = 10, .ops = 8, .flags = INSIDE, .op = popen_op);
