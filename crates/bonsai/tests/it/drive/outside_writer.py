"""Writes blocks of a file behind a block server's back, in the ways that programs do.

Each line of standard input is "WAY FILE BLOCK NUMBER": the block of 4 KiB is filled with the number, or punched ("punch").
The answer is "ok", or "no" and why the way is not there. The file is closed again before the answer.
"""
import ctypes, mmap, os, struct, subprocess, sys

BLOCK = 4096
libc = ctypes.CDLL(None, use_errno=True)


def filled(number):
    return struct.pack("<Q", number) * (BLOCK // 8)


def aligned(data):
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory


def pwrite(path, at, data, flags=0):
    fd = os.open(path, os.O_WRONLY | flags)
    try:
        os.pwritev(fd, [aligned(data)], at)
    finally:
        os.close(fd)


def mapped(path, at, data):
    fd = os.open(path, os.O_RDWR)
    memory = mmap.mmap(fd, 0)
    # The map keeps the file open, its descriptor does not.
    os.close(fd)
    memory[at : at + BLOCK] = data
    memory.close()


def aio(path, at, data, flags=0):
    fd = os.open(path, os.O_WRONLY | flags)
    try:
        memory = aligned(data)
        context = ctypes.c_ulong(0)
        if libc.syscall(206, 8, ctypes.byref(context)) != 0:  # io_setup(2)
            raise OSError(ctypes.get_errno(), "io_setup")
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        # struct iocb of linux/aio_abi.h: IOCB_CMD_PWRITE is 1.
        request = struct.pack("<QIIHhIQQqQII", 0, 0, 0, 1, 0, fd, address, BLOCK, at, 0, 0, 0)
        request = ctypes.create_string_buffer(request, 64)
        pointer = (ctypes.c_void_p * 1)(ctypes.addressof(request))
        assert libc.syscall(209, context, 1, pointer) == 1  # io_submit(2)
        event = ctypes.create_string_buffer(32)
        assert libc.syscall(208, context, 1, 1, event, None) == 1  # io_getevents(2)
        libc.syscall(207, context)  # io_destroy(2)
        assert struct.unpack("<QQqq", event.raw)[2] == BLOCK
    finally:
        os.close(fd)


def loop(path, at, data):
    device = subprocess.run(["losetup", "-f", "--show", path], capture_output=True, text=True)
    if device.returncode:
        raise OSError(device.stderr.strip())
    device = device.stdout.strip()
    try:
        fd = os.open(device, os.O_WRONLY)
        os.pwrite(fd, data, at)
        os.fsync(fd)
        os.close(fd)
    finally:
        subprocess.run(["losetup", "-d", device], check=True)


def copied(path, at, data):
    source = os.memfd_create("source")
    os.write(source, data)
    fd = os.open(path, os.O_WRONLY)
    os.lseek(source, 0, os.SEEK_SET)
    os.lseek(fd, at, os.SEEK_SET)
    while os.sendfile(fd, source, None, BLOCK):
        pass
    os.close(fd)
    os.close(source)


def punch(path, at, _):
    fd = os.open(path, os.O_RDWR)
    # FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE
    done = libc.fallocate(fd, 3, ctypes.c_long(at), ctypes.c_long(BLOCK))
    os.close(fd)
    if done:
        raise OSError(ctypes.get_errno(), "fallocate")


def linked(path, at, data):
    other = path + ".link"
    os.link(path, other)
    try:
        aio(other, at, data)
    finally:
        os.unlink(other)


WAYS = {
    "pwrite": pwrite,
    "direct": lambda path, at, data: pwrite(path, at, data, os.O_DIRECT),
    "sync": lambda path, at, data: pwrite(path, at, data, os.O_SYNC),
    "mapped": mapped,
    "aio": aio,
    "aio_direct": lambda path, at, data: aio(path, at, data, os.O_DIRECT),
    "loop": loop,
    "copied": copied,
    "punch": punch,
    "linked": linked,
}

for line in sys.stdin:
    way, path, block, number = line.split()
    try:
        WAYS[way](path, int(block) * BLOCK, filled(int(number)))
        print("ok", flush=True)
    except OSError as error:
        print("no", error, flush=True)
