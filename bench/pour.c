/* Writes to its standard output as long as somebody reads it, by libc. */
#include <unistd.h>

static char bytes[1 << 16];

int main(void)
{
    while (write(1, bytes, sizeof bytes) > 0)
        ;
    return 0;
}
