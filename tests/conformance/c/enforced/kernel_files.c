// Files of the kernel whose writes act on the process that makes them, and whose reads are of its namespaces, from a process that has
// had a second thread.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

static void *nothing(void *unused) {
    return unused;
}

static int put(const char *path, const char *text) {
    int fd = open(path, O_RDWR);
    if (fd < 0)
        return -1;
    ssize_t put = write(fd, text, strlen(text));
    int error = put == (ssize_t)strlen(text) ? 0 : errno;
    close(fd);
    return error;
}

// The name of the host, by each call that reads.
static void hosts(void) {
    static const char *const calls[] = {"read", "readv", "pread", "preadv", "preadv2", "preadv2 at the position"};
    if (unshare(CLONE_NEWUTS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWUTS) != 0) {
        puts("no namespace");
        return;
    }
    if (sethostname("within", 6) != 0)
        perror("sethostname");
    for (int i = 0; i < 6; i++) {
        char text[64] = "";
        struct iovec list[] = {{text, 3}, {text + 3, sizeof text - 4}};
        int fd = open("/proc/sys/kernel/hostname", O_RDONLY);
        ssize_t got = i == 0   ? read(fd, text, sizeof text - 1)
                      : i == 1 ? readv(fd, list, 2)
                      : i == 2 ? pread(fd, text, sizeof text - 1, 0)
                      : i == 3 ? preadv(fd, list, 2, 0)
                               : preadv2(fd, list, 2, i == 4 ? 0 : -1, 0);
        printf("%s: %zd, %s", calls[i], got, text);
        close(fd);
    }
}

int main(void) {
    pthread_t thread;
    char name[16];
    if (pthread_create(&thread, NULL, nothing, NULL) != 0 || pthread_join(thread, NULL) != 0)
        return 1;
    int error = put("/proc/self/comm", "renamed");
    prctl(PR_GET_NAME, name);
    printf("comm: %s, %s\n", strerror(error), name);
    // As pam_loginuid does. Absent without auditing; forbidden to ordinary users.
    error = put("/proc/self/loginuid", "0");
    printf("loginuid: %s\n", error < 0 ? "none" : strerror(error));
    hosts();
    return 0;
}
