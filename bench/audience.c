/* Viewers of a video server.
 *
 *   audience STREAMS START LENGTH SETTLING
 *
 * One socket on the loopback gets the datagrams of all streams, whose first four
 * bytes say which stream they are of. First a line with its port; after LENGTH ns
 * from the instant START on, and a while for what is under way, one line of JSON:
 * the bytes of all, in bins of 10 ms, and those of each stream once SETTLING ns of
 * it are over, all by the instant at which they came. */
#include "raw.h"

#include <arpa/inet.h>
#include <sys/socket.h>

enum { BIN_NS = 10000000, MOST_STREAMS = 256, PACKETS = 64, ROOM = 2048 };

int main(int argc, char **argv)
{
    end_with_parent();
    if (argc != 5) return 2;
    unsigned streams = (unsigned)atoi(argv[1]);
    uint64_t start = strtoull(argv[2], NULL, 10), length = strtoull(argv[3], NULL, 10);
    uint64_t settling = strtoull(argv[4], NULL, 10);
    if (streams < 1 || streams > MOST_STREAMS) return 2;
    size_t bins = length / BIN_NS;
    uint64_t *all = calloc(bins, sizeof *all);
    static uint64_t each[MOST_STREAMS];
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof own;
    int in = socket(AF_INET, SOCK_DGRAM, 0);
    /* What comes while this process does not run is not to be lost here; root may ask for more
       than others. */
    int room = 32 << 20;
    if (setsockopt(in, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room))
        setsockopt(in, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    struct timeval turn = {0, 20000};
    setsockopt(in, SOL_SOCKET, SO_RCVTIMEO, &turn, sizeof turn);
    if (bind(in, (struct sockaddr *)&own, sizeof own) || getsockname(in, (struct sockaddr *)&own, &len))
        fail("socket");
    say("%u\n", ntohs(own.sin_port));
    flush_said();

    static char bytes[PACKETS][ROOM];
    struct iovec parts[PACKETS];
    struct mmsghdr packets[PACKETS];
    memset(packets, 0, sizeof packets);
    for (int i = 0; i < PACKETS; i++) {
        parts[i] = (struct iovec){bytes[i], ROOM};
        packets[i].msg_hdr.msg_iov = &parts[i];
        packets[i].msg_hdr.msg_iovlen = 1;
    }
    uint64_t now;
    while ((now = now_ns()) < start + length) {
        int n = recvmmsg(in, packets, PACKETS, MSG_WAITFORONE, NULL);
        now = now_ns();
        if (n <= 0 || now < start || now >= start + length) continue;
        for (int i = 0; i < n; i++) {
            uint32_t number;
            memcpy(&number, bytes[i], sizeof number);
            all[(now - start) / BIN_NS < bins ? (now - start) / BIN_NS : bins - 1] += packets[i].msg_len;
            if (number < streams && now - start >= settling) each[number] += packets[i].msg_len;
        }
    }
    say("{\"bins\":[");
    for (size_t b = 0; b < bins; b++) say("%s%lu", b ? "," : "", all[b]);
    say("],\"each\":[");
    for (unsigned s = 0; s < streams; s++) say("%s%lu", s ? "," : "", each[s]);
    say("]}\n");
    flush_said();
    _exit(0);
}
