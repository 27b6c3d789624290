// The median time of a call, for programs that count ns a call in groups. CALLS in each
// group is set before this is read.
#ifndef MEDIAN_H
#define MEDIAN_H

#include <stdlib.h>
#include <time.h>

enum { GROUPS = 31 };

static double ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(void (*call)(void)) {
    double groups[GROUPS];
    for (int i = 0; i < GROUPS; i++) {
        double start = ns();
        for (int j = 0; j < CALLS; j++)
            call();
        groups[i] = (ns() - start) / CALLS;
    }
    qsort(groups, GROUPS, sizeof *groups, ascending);
    return groups[GROUPS / 2];
}

#endif
