/* An HTTP client with threads.
 *
 *   fetch PORT PATH THREADS [MILLISECONDS]
 *
 * Each thread fetches http://127.0.0.1:PORT/PATH once, or again and again for so
 * long, on one connection where the server keeps it. One line of JSON says how many
 * answers came, their bytes without the headers, and the time from the start to the
 * last byte. Uses plain socket, connect, send and recv, as programs do that other
 * tools limit, too. */
#include "raw.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <strings.h>
#include <sys/socket.h>

enum { ROOM = 65536, MOST_THREADS = 256 };

static uint16_t port;
static const char *path;
static uint64_t deadline, answers, body_bytes, last_byte, failures;

static int dial(void)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int s = socket(AF_INET, SOCK_STREAM, 0);
    return connect(s, (struct sockaddr *)&to, sizeof to) ? -1 : s;
}

static void note(ssize_t n)
{
    __atomic_fetch_add(&body_bytes, (uint64_t)n, __ATOMIC_RELAXED);
    uint64_t now = now_ns(), last = __atomic_load_n(&last_byte, __ATOMIC_RELAXED);
    while (now > last && !__atomic_compare_exchange_n(&last_byte, &last, now, 1, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED)) { }
}

static const char *header(const char *head, const char *name)
{
    for (const char *line = strchr(head, '\n'); line; line = strchr(line + 1, '\n'))
        if (strncasecmp(line + 1, name, strlen(name)) == 0) return line + 1 + strlen(name);
    return NULL;
}

/* Whether the connection can be used again; -1 if the answer did not come whole. */
static int answer(int s, char *bytes)
{
    size_t got = 0;
    char *body = NULL;
    while (!body) {
        if (got == ROOM - 1) return -1;
        ssize_t n = recv(s, bytes + got, ROOM - 1 - got, 0);
        if (n <= 0) return -1;
        got += (size_t)n;
        bytes[got] = 0;
        body = strstr(bytes, "\r\n\r\n");
    }
    body[2] = 0;
    size_t here = got - (size_t)(body + 4 - bytes);
    const char *length = header(bytes, "content-length:"), *keep = header(bytes, "connection:");
    int again = strncmp(bytes, "HTTP/1.1", 8) == 0 && !(keep && strstr(keep, "close"));
    size_t left = length ? strtoull(length, NULL, 10) : SIZE_MAX;
    if (!length) again = 0;
    note((ssize_t)here);
    for (left -= here < left ? here : left; left > 0;) {
        ssize_t n = recv(s, bytes, ROOM, 0);
        if (n == 0 && !length) break;
        if (n <= 0) return -1;
        left -= (size_t)n;
        note(n);
    }
    __atomic_fetch_add(&answers, 1, __ATOMIC_RELAXED);
    return again;
}

static void *client(void *arg)
{
    char request[512], *bytes = malloc(ROOM);
    int len = snprintf(request, sizeof request, "GET /%s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", path);
    int s = -1;
    do {
        if (s < 0) s = dial();
        int again = -1;
        if (s >= 0 && send(s, request, (size_t)len, MSG_NOSIGNAL) == len) again = answer(s, bytes);
        if (again < 0) __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
        if (again <= 0 && s >= 0) {
            close(s);
            s = -1;
        }
    } while (now_ns() < deadline);
    return arg;
}

int main(int argc, char **argv)
{
    end_with_parent();
    if (argc < 4) return 2;
    port = (uint16_t)atoi(argv[1]);
    path = argv[2];
    unsigned threads = (unsigned)atoi(argv[3]);
    if (threads < 1 || threads > MOST_THREADS) return 2;
    uint64_t from = now_ns();
    deadline = argc > 4 ? from + strtoull(argv[4], NULL, 10) * 1000000u : 0;
    pthread_t ids[MOST_THREADS];
    for (unsigned t = 0; t < threads; t++)
        if (pthread_create(&ids[t], NULL, client, NULL)) fail("thread");
    for (unsigned t = 0; t < threads; t++) pthread_join(ids[t], NULL);
    say("{\"answers\":%lu,\"bytes\":%lu,\"ns\":%lu,\"failures\":%lu}\n", answers, body_bytes,
        last_byte > from ? last_byte - from : 0, failures);
    flush_said();
    return 0;
}
