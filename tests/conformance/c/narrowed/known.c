/* Calls of all lengths by four threads on descriptors that they share, and on numbers that are given out anew: partial sends, short
 * reads, looks (MSG_PEEK), empty and refused calls. Prints the bytes that each kind of call has moved, and stays until its input ends.
 *
 *   known CALLS FILE        so many calls of each thread
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { THREADS = 4, LENGTH = 20000, FILE_LENGTH = 100000 };

static int pairs[2][2], shared, calls;
static const char *path;
static atomic_llong moved[5];
/* The last are reads from what is closed in the end, and not printed. */
enum { SEND, RECV, READ, WRITE, OTHER };

static void add(int what, ssize_t result)
{
    if (result > 0)
        moved[what] += result;
}

static void *worker(void *number)
{
    static const int flags[] = { MSG_DONTWAIT, MSG_DONTWAIT | MSG_PEEK, MSG_DONTWAIT, 0 };
    unsigned seed = 77 + (unsigned)(intptr_t)number;
    int own = open(path, O_RDWR);
    char *bytes = calloc(1, LENGTH);
    for (int i = 0; i < calls; i++) {
        int *pair = pairs[rand_r(&seed) % 2], flag = flags[rand_r(&seed) % 4];
        size_t len = rand_r(&seed) % 3 ? rand_r(&seed) % 300 : rand_r(&seed) % LENGTH;
        off_t at = rand_r(&seed) % (FILE_LENGTH + 1000);
        ssize_t got;
        switch (rand_r(&seed) % 8) {
        case 0:
        case 1:
            add(SEND, send(pair[0], bytes, len, MSG_NOSIGNAL));
            break;
        case 2:
        case 3:
            got = recv(pair[1], bytes, len, flag);
            add(RECV, flag & MSG_PEEK ? 0 : got);
            break;
        case 4:
            add(READ, pread(shared, bytes, len, at));
            break;
        case 5:
            add(WRITE, pwrite(shared, bytes, len, at % (FILE_LENGTH - LENGTH)));
            break;
        case 6:
            got = read(own, bytes, len);
            add(OTHER, got);
            if (!got)
                lseek(own, 0, SEEK_SET);
            break;
        default:
            /* The same number, another stream. */
            if (i % 64 == 0) {
                close(own);
                own = open(path, O_RDWR);
            }
            add(OTHER, read(own, (char *)(rand_r(&seed) % 4 ? (uintptr_t)bytes : 8), len % 100));
        }
    }
    close(own);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    if (argc != 3)
        return 2;
    calls = atoi(argv[1]);
    path = argv[2];
    shared = open(path, O_RDWR | O_CREAT, 0600);
    if (ftruncate(shared, FILE_LENGTH) < 0)
        return 3;
    for (int i = 0; i < 2; i++)
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pairs[i]) < 0)
            return 3;
    for (intptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, worker, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    static const char *names[] = { "send", "recv", "read", "write" };
    for (int i = 0; i < 4; i++)
        printf("%s %lld\n", names[i], (long long)moved[i]);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
