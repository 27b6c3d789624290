# Plain 32-bit code: write(fd, bytes, count), by an instruction of its own.
        push %ebx
        mov 8(%esp), %ebx
        mov 12(%esp), %ecx
        mov 16(%esp), %edx
        mov $4, %eax
        int $0x80
        pop %ebx
        ret
