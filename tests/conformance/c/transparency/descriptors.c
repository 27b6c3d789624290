/* No descriptor can be had any more, from the number of the argument on: what goes on
 * with those that are there, and what fails, is said. */
#define _GNU_SOURCE
#include "probe.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void *thread_main(void *arg)
{
    return (void *)(long)write(*(int *)arg, "thread", 6);
}

int main(int argc, char **argv)
{
    int pair[2];
    char text[16] = "";
    void *wrote = NULL;
    pthread_t thread;
    if (argc < 2) return 2;
    if (strcmp(argv[1], "child") == 0) return 7;
    guard(30);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return 3;
    rlim_t most = (rlim_t)atoi(argv[1]);
    struct rlimit limit = {most, most};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 4;
    say("sent %zd", send(pair[0], "hello", 5, 0));
    say("received %zd", recv(pair[1], text, sizeof text, 0));
    say("open %d errno %d", open("/dev/null", O_RDONLY), errno);
    say("pipe %d errno %d", pipe(pair), errno);
    int created = pthread_create(&thread, NULL, thread_main, &pair[0]);
    if (created == 0) pthread_join(thread, &wrote);
    say("thread %d wrote %ld", created, (long)wrote);
    pid_t child = fork();
    if (child == 0) {
        send(pair[0], "child", 5, 0);
        _exit(6);
    }
    int status = 0;
    waitpid(child, &status, 0);
    say("child %d", WEXITSTATUS(status));
    /* A static program needs no descriptor to start; one with a loader does. */
    if (argc > 2) {
        child = vfork();
        if (child == 0) {
            execl(argv[2], argv[2], "child", (char *)NULL);
            _exit(8);
        }
        waitpid(child, &status, 0);
        say("program %d", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    }
    return 0;
}
