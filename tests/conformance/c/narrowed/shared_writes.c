/* Counts what calls of three threads write to memory that several of them write: each thread reads from a descriptor of its own, and each
 * write to the ledger and to the data of Bonsai's libraries is caught (read-only pages, and one step at a time for the
 * instruction that writes), with the cache line that it goes to. Also writes that change nothing are counted. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { THREADS = 3, WARM = 200, CALLS = 1000, REGIONS = 64, WRITES = 65536 };

static struct { uintptr_t from, to; } regions[REGIONS];
static int count_of_regions;
static struct { uintptr_t line; int thread; } writes[WRITES];
static int count_of_writes, current;
static int counting;
static sem_t turn[THREADS], done;

static void protect(int rights)
{
    for (int i = 0; i < count_of_regions; i++)
        mprotect((void *)regions[i].from, regions[i].to - regions[i].from, rights);
}

static void on_write(int signal, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr;
    int known = 0;
    for (int i = 0; i < count_of_regions; i++)
        known |= regions[i].from <= at && at < regions[i].to;
    if (!known) {
        static const char text[] = "a fault elsewhere\n";
        if (write(2, text, sizeof text - 1) < 0)
            _exit(4);
        _exit(3);
    }
    if (counting && count_of_writes < WRITES) {
        writes[count_of_writes].line = at & ~(uintptr_t)63;
        writes[count_of_writes++].thread = current;
    }
    protect(PROT_READ | PROT_WRITE);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] |= 0x100;
    (void)signal;
}

static void on_step(int signal, siginfo_t *info, void *context)
{
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~0x100L;
    protect(PROT_READ);
    (void)signal;
    (void)info;
}

static void *reader(void *number)
{
    int own = (int)(intptr_t)number, fd = open("/dev/zero", O_RDONLY);
    for (int i = 0; i < WARM + CALLS; i++) {
        char byte;
        sem_wait(&turn[own]);
        if (i >= WARM) {
            current = own;
            counting = 1;
            protect(PROT_READ);
        }
        ssize_t got = read(fd, &byte, 1);
        protect(PROT_READ | PROT_WRITE);
        counting = 0;
        if (got != 1)
            _exit(2);
        sem_post(&done);
    }
    return NULL;
}

/* The ledger, and what Bonsai's libraries write, with the memory behind it that has no name. */
static void find_regions(void)
{
    char line[512];
    int is_ours = 0;
    uintptr_t last = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char rights[8], name[256] = "";
        if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %255s", &from, &to, rights, name) < 3)
            continue;
        int named = strstr(name, "libbonsai_") || strstr(name, "preload.so") || strstr(name, "/ledger");
        is_ours = named || (is_ours && !*name && from == last);
        last = to;
        if (is_ours && rights[1] == 'w' && rights[2] == '-' && count_of_regions < REGIONS) {
            regions[count_of_regions].from = from;
            regions[count_of_regions++].to = to;
        }
    }
    if (maps)
        fclose(maps);
}

int main(void)
{
    pthread_t threads[THREADS];
    struct sigaction action = { .sa_flags = SA_SIGINFO };
    action.sa_sigaction = on_write;
    sigaction(SIGSEGV, &action, NULL);
    action.sa_sigaction = on_step;
    sigaction(SIGTRAP, &action, NULL);
    sem_init(&done, 0, 0);
    for (int i = 0; i < THREADS; i++) {
        sem_init(&turn[i], 0, 0);
        pthread_create(&threads[i], NULL, reader, (void *)(intptr_t)i);
    }
    for (int call = 0; call < WARM + CALLS; call++) {
        /* By now all is mapped that is going to be. */
        if (call == WARM)
            find_regions();
        for (int i = 0; i < THREADS; i++) {
            sem_post(&turn[i]);
            sem_wait(&done);
        }
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    int shared = 0;
    for (int i = 0; i < count_of_writes; i++) {
        int other = 0;
        for (int j = 0; j < count_of_writes && !other; j++)
            other = writes[j].line == writes[i].line && writes[j].thread != writes[i].thread;
        shared += other;
        if (other && getenv("LINES_TOO"))
            fprintf(stderr, "%lx\n", (unsigned long)writes[i].line);
    }
    printf("regions %d\nwrites %d\nshared %d\n", count_of_regions, count_of_writes, shared);
    return count_of_writes == WRITES;
}
