/* io_uring through liburing, which makes its system calls with instructions of its
 * own. With DLOPEN the library comes by dlopen, otherwise with the program.
 * `uring COUNT`: submits and waits COUNT times. */
#define _GNU_SOURCE
#include "probe.h"

#include <dlfcn.h>
#include <liburing.h>

/* Whatever is not an inline function of the header. */
#ifdef DLOPEN
static void *library;
#define OF(name) ((__typeof__(&name))dlsym(library, #name))
#else
#define OF(name) (&name)
#endif

int main(int argc, char **argv)
{
    struct io_uring ring;
    int count = argc > 1 ? atoi(argv[1]) : 1;
    guard(30);
#ifdef DLOPEN
    library = dlopen("liburing.so.2", RTLD_NOW);
    if (!library) {
        say("%s", dlerror());
        return 1;
    }
#endif
    uint64_t from = raw_now();
    int error = OF(io_uring_queue_init)(4, &ring, 0);
    say("init %s", error ? strerrorname_np(-error) : "none");
    if (error)
        return 0;
    struct io_uring_probe *probe = calloc(1, sizeof *probe + 256 * sizeof probe->ops[0]);
    say("probe %d", OF(io_uring_register_probe)(&ring, probe, 256));
    for (int i = 0; i < count; i++) {
        struct io_uring_sqe *entry = OF(io_uring_get_sqe)(&ring);
        struct io_uring_cqe *done = NULL;
        io_uring_prep_nop(entry);
        entry->user_data = 1000 + (unsigned)i;
        errno = 4242;
        int submitted = OF(io_uring_submit_and_wait)(&ring, 1);
        int got = OF(io_uring_peek_batch_cqe)(&ring, &done, 1);
        if (submitted != 1 || got != 1 || done->user_data != 1000 + (unsigned)i || errno != 4242)
            say("%d: %d submitted, %d done, %s", i, submitted, got, strerrorname_np(errno));
        io_uring_cqe_seen(&ring, done);
    }
    say("%d done", count);
    say("# elapsed %ld", milliseconds(from));
    OF(io_uring_queue_exit)(&ring);
    free(probe);
    return 0;
}
