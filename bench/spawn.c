/* What it costs to start a program.
 *
 *   spawn ROUNDS SEED PROGRAM [LIBRARY LEDGER]...
 *
 * Starts PROGRAM bare and once with each pair of library and ledger, in an order
 * drawn anew each round, and says in ns what posix_spawn and the wait for its end
 * took: a line of JSON per round, bare first. */
#include "raw.h"

#include <spawn.h>
#include <sys/wait.h>

enum { MOST = 8 };

int main(int argc, char **argv)
{
    end_with_parent();
    if (argc < 4) return 2;
    unsigned rounds = (unsigned)atoi(argv[1]), variants = 1 + (unsigned)(argc - 4) / 2;
    if (variants > MOST) return 2;
    srandom((unsigned)atoi(argv[2]));
    char library[MOST][512], ledger[MOST][512];
    char *environments[MOST][4] = {{"PATH=/usr/bin:/bin"}};
    for (unsigned v = 1; v < variants; v++) {
        snprintf(library[v], sizeof library[v], "LD_PRELOAD=%s", argv[2 + 2 * v]);
        snprintf(ledger[v], sizeof ledger[v], "BONSAI_LEDGER=%s", argv[3 + 2 * v]);
        environments[v][0] = environments[0][0];
        environments[v][1] = library[v];
        environments[v][2] = ledger[v];
    }
    char *child[] = {argv[3], NULL};
    const unsigned warm_up = 5;
    for (unsigned round = 0; round < rounds + warm_up; round++) {
        unsigned order[MOST];
        uint64_t took[MOST];
        for (unsigned i = 0; i < variants; i++) {
            unsigned j = (unsigned)random() % (i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        for (unsigned i = 0; i < variants; i++) {
            pid_t pid;
            int status;
            uint64_t from = now_ns();
            if (posix_spawn(&pid, child[0], NULL, NULL, child, environments[order[i]]) ||
                waitpid(pid, &status, 0) != pid || status != 0)
                fail("spawn");
            took[order[i]] = now_ns() - from;
        }
        if (round < warm_up) continue;
        for (unsigned v = 0; v < variants; v++) say("%s%lu", v ? "," : "[", took[v]);
        say("]\n");
    }
    flush_said();
    return 0;
}
