// Transfers to a pipe that takes much less than they ask for: bytes that each moves.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <unistd.h>

enum { SIZE = 1 << 20, ASKED = 16 << 20 };

int main(void) {
    FILE *file = tmpfile();
    int ends[2][2];
    if (!file || ftruncate(fileno(file), SIZE) != 0 || pipe(ends[0]) != 0 || pipe(ends[1]) != 0)
        return 1;
    printf("sendfile %zd\n", sendfile(ends[0][1], fileno(file), NULL, ASKED));
    printf("splice %zd\n", splice(fileno(file), NULL, ends[1][1], NULL, ASKED, 0));
    return 0;
}
