// What the tricks of the attacker share.
#pragma once
#include <sys/uio.h>

enum { PIECE = 16384, LARGE = 1 << 20 };

extern char bytes[LARGE];
extern struct iovec raced;

int on(void);
void by_threads(void *(*one)(void *));
void *flip_length(void *unused);
void against(void *(*other)(void *));

void forks(void);
void thread_bomb(void);
void read_in(void);
void read_by_threads(void);
void read_by_children(void);
void read_race(void);
