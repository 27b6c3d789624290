/* A video server's I/O without its protocol.
 *
 *   streams STREAMS FRAME RATE START LENGTH FILE [PORT]
 *
 * Each stream has a thread that, RATE times a second, reads FRAME bytes of FILE and
 * sends them as datagrams of at most 1250 bytes to a socket on the loopback that
 * nobody reads. A stream that is late catches up as fast as it is let: what is
 * offered stays STREAMS * FRAME * RATE bytes/s. After LENGTH ns from the instant
 * START on, one line of JSON gives the bytes read and sent, in bins of 10 ms, by
 * the instant at which the call returned.
 *
 * With PORT, there are viewers (audience.c): a datagram begins with the number of its
 * stream, streams end after LENGTH, and the server stays, idle, until its input ends. */
#include "raw.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum { BIN_NS = 10000000, PACKET = 1250, MOST_STREAMS = 256 };

static int fd;
static off_t file_len;
static size_t frame, bins;
static unsigned streams;
static uint64_t rate, start, length;
static int has_viewers;
static struct sockaddr_in sink;
static uint64_t *bytes_read, *bytes_sent;

static void note(uint64_t *bin, ssize_t n)
{
    size_t at = (now_ns() - start) / BIN_NS;
    if (n > 0 && at < bins) __atomic_fetch_add(&bin[at], (uint64_t)n, __ATOMIC_RELAXED);
}

static void *stream(void *arg)
{
    uintptr_t number = (uintptr_t)arg;
    int out = socket(AF_INET, SOCK_DGRAM, 0);
    char *bytes = malloc(frame);
    if (out < 0 || !bytes || connect(out, (struct sockaddr *)&sink, sizeof sink)) fail("stream");
    /* Spread over the first frame's time, as viewers do not come all at once. */
    uint64_t first = start + number * (1000000000u / rate) / streams;
    off_t at = (off_t)(number * 1000003u) % (file_len - (off_t)frame);
    for (uint64_t i = 0;; i++) {
        uint64_t due = first + i * 1000000000u / rate;
        if (has_viewers && due >= start + length) return NULL;
        sleep_until(due);
        note(bytes_read, pread(fd, bytes, frame, at));
        at = (at + (off_t)frame) % (file_len - (off_t)frame);
        for (size_t sent = 0; sent < frame; sent += PACKET) {
            size_t n = frame - sent < PACKET ? frame - sent : PACKET;
            uint32_t label = (uint32_t)number;
            if (has_viewers && n >= sizeof label) memcpy(bytes + sent, &label, sizeof label);
            note(bytes_sent, send(out, bytes + sent, n, 0));
        }
    }
    return NULL;
}

static void say_bins(const char *name, const uint64_t *bin)
{
    say("\"%s\":[", name);
    for (size_t b = 0; b < bins; b++)
        say("%s%lu", b ? "," : "", __atomic_load_n(&bin[b], __ATOMIC_RELAXED));
    say("]");
}

int main(int argc, char **argv)
{
    end_with_parent();
    if (argc != 7 && argc != 8) return 2;
    has_viewers = argc == 8;
    streams = (unsigned)atoi(argv[1]);
    frame = strtoull(argv[2], NULL, 10);
    rate = strtoull(argv[3], NULL, 10);
    start = strtoull(argv[4], NULL, 10);
    length = strtoull(argv[5], NULL, 10);
    struct stat about;
    fd = open(argv[6], O_RDONLY);
    if (fd < 0 || fstat(fd, &about) || about.st_size <= (off_t)frame) fail(argv[6]);
    if (streams < 1 || streams > MOST_STREAMS || rate < 1) return 2;
    file_len = about.st_size;
    bins = length / BIN_NS;
    bytes_read = calloc(bins, sizeof *bytes_read);
    bytes_sent = calloc(bins, sizeof *bytes_sent);
    sink = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof sink;
    int receiver = socket(AF_INET, SOCK_DGRAM, 0);
    if (has_viewers) sink.sin_port = htons((uint16_t)atoi(argv[7]));
    else if (bind(receiver, (struct sockaddr *)&sink, sizeof sink) ||
        getsockname(receiver, (struct sockaddr *)&sink, &len))
        fail("sink");
    prctl(PR_SET_TIMERSLACK, 1);
    for (unsigned s = 0; s < streams; s++) {
        pthread_t id;
        if (pthread_create(&id, NULL, stream, (void *)(uintptr_t)s)) fail("thread");
    }
    sleep_until(start + length);
    say("{");
    say_bins("read", bytes_read);
    say(",");
    say_bins("sent", bytes_sent);
    say("}\n");
    flush_said();
    char line[16];
    while (has_viewers && read_line(line, sizeof line)) { }
    _exit(0);
}
