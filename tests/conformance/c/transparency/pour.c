/* Writes 192 KiB, and does nothing else: with musl, one instruction makes all of its calls.
   With arguments, it runs those instead. */
#include <unistd.h>

static char bytes[1024];

int main(int argc, char **argv)
{
    if (argc > 1) return execv(argv[1], argv + 1);
    for (int i = 0; i < 192; i++)
        if (write(1, bytes, sizeof bytes) != sizeof bytes) return 1;
    return 0;
}
