/* Writes 192 KiB, and does nothing else: with musl, one instruction makes all of its calls. */
#include <unistd.h>

static char bytes[1024];

int main(void)
{
    for (int i = 0; i < 192; i++)
        if (write(1, bytes, sizeof bytes) != sizeof bytes) return 1;
    return 0;
}
