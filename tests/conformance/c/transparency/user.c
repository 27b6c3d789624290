/* Becomes another user and runs a program: user REAL EFFECTIVE PROGRAM [ARGUMENT]... */
#define _GNU_SOURCE
#include "probe.h"

#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    if (setresuid((unsigned)atoi(argv[1]), (unsigned)atoi(argv[2]), (unsigned)atoi(argv[2])) != 0)
        return 3;
    execv(argv[3], argv + 3);
    return 4;
}
