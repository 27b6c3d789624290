/* A member of a service that root has started gives up its rights, and has root's helper look at itself and trace another one: it
 * asks to be entered, and toggles who asks.
 *
 *   enter_race PID    prints whether PID was ever traced
 *
 * Where the words stand is asserted in crates/bonsai-ledger/src/layout.rs: the keeper at 416, its bell, the first question. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BELL = 420, QUESTION = 424, ATTEMPTS = 30 };
/* Words of a question: the number and the namespace of the process that asks, and the state. */
enum { NAMESPACE = 1, STATE = 2 };
enum { ASKED = 1, NAMED = 2, ALLOWED = 3, READY = 4, STARTED = 7 };

static volatile uint32_t *bell, *question;
static uint32_t me, victim;
static volatile int stop;

static void wake(volatile uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 1000, 0, 0, 0);
}

static void *toggle(void *unused)
{
    while (!stop) {
        question[0] = me;
        for (volatile int k = 0; k < 3000; k++)
            ;
        question[0] = victim;
        for (volatile int k = 0; k < 3000; k++)
            ;
    }
    return unused;
}

static int traced(void)
{
    char path[64], line[256];
    int by = 0;
    snprintf(path, sizeof path, "/proc/%u/status", victim);
    FILE *status = fopen(path, "r");
    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        sscanf(line, "TracerPid: %d", &by);
    if (status != NULL)
        fclose(status);
    return by;
}

int main(int argc, char **argv)
{
    char line[512];
    unsigned char *ledger = NULL;
    pthread_t thread;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (argc != 2 || maps == NULL)
        return 2;
    victim = (uint32_t)atoi(argv[1]);
    while (ledger == NULL && fgets(line, sizeof line, maps) != NULL)
        if (strstr(line, "/ledger") != NULL)
            ledger = (unsigned char *)strtoul(line, NULL, 16);
    if (ledger == NULL || setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0)
        return 2;
    bell = (uint32_t *)(ledger + BELL);
    question = (uint32_t *)(ledger + QUESTION);
    me = (uint32_t)getpid();
    struct stat namespace;
    if (stat("/proc/self/ns/pid", &namespace) != 0)
        return 2;
    question[NAMESPACE] = (uint32_t)namespace.st_ino;
    pthread_create(&thread, NULL, toggle, NULL);
    int answered = 0;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        question[STATE] = ASKED;
        __sync_fetch_and_add(bell, 1);
        wake(bell);
        for (int turn = 0; turn < 2000; turn++) {
            if (question[STATE] == NAMED) {
                answered++;
                question[STATE] = ALLOWED;
                wake(&question[STATE]);
            }
            usleep(100);
            if (traced()) {
                printf("it is traced\n");
                return 1;
            }
            uint32_t state = question[STATE];
            /* Where the helper may trace it without being allowed to. */
            if (state == READY)
                answered++;
            if (state != ASKED && state != NAMED && state != ALLOWED && state != STARTED)
                break;
        }
        question[STATE] = 0;
        usleep(2000);
    }
    stop = 1;
    printf("not traced%s\n", answered > 0 ? "" : ", and never answered");
    return 0;
}
