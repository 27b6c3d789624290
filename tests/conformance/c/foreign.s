# The same for 32-bit x86, without a libc: 64 times 16 KiB into a file.
        .globl _start
        .bss
piece:  .space 16384
        .text
_start: mov 12(%esp), %ebx      # covered CALLS FILE
        mov $5, %eax            # open(FILE, O_WRONLY | O_CREAT | O_TRUNC, 0666)
        mov $01101, %ecx
        mov $0666, %edx
        int $0x80
        mov %eax, %ebx
        mov $64, %esi
1:      mov $4, %eax            # write
        mov $piece, %ecx
        mov $16384, %edx
        int $0x80
        dec %esi
        jnz 1b
        mov $1, %eax            # exit(0)
        xor %ebx, %ebx
        int $0x80
