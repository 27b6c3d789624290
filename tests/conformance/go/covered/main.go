// Moves a megabyte into a file by one kind of call: covered CALLS FILE LIBRARY [wait], as
// the program of C does. With cgo, calls of C are made by C; all others are Go's own
// system calls.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

const (
	piece  = 16 << 10
	pieces = 64
	mode   = syscall.O_RDWR | syscall.O_CREAT | syscall.O_TRUNC
)

// By C, if there is C in this program: whether it was.
var inC = func([]string) bool { return false }

func check(what string, err error) {
	if err != nil {
		var errno syscall.Errno
		errors.As(err, &errno)
		fmt.Printf("%s: denied %d\n", what, int(errno))
		os.Exit(3)
	}
}

func call(what string, nr, a, b, c, d, e uintptr) uintptr {
	result, _, errno := syscall.Syscall6(nr, a, b, c, d, e, 0)
	if errno != 0 {
		check(what, errno)
	}
	return result
}

func address(bytes []byte) uintptr { return uintptr(unsafe.Pointer(&bytes[0])) }

// Each kind prepares what is there before the first byte moves, and returns what moves.
var kinds = map[string]func(file *os.File) func(){"own": own, "ring": ring, "aio": aio, "mapped": mapped}

func own(file *os.File) func() {
	return func() {
		for i := 0; i < pieces; i++ {
			_, err := file.Write(make([]byte, piece))
			check("write", err)
		}
	}
}

// struct iocb and struct io_event of linux/aio_abi.h.
type iocb struct {
	data            uint64
	key, flags      uint32
	opcode          uint16
	priority        int16
	fd              uint32
	at, len, offset uint64
	more            [2]uint64
}

func aio(file *os.File) func() {
	var context uintptr
	call("io_setup", 206, 4, uintptr(unsafe.Pointer(&context)), 0, 0, 0)
	bytes := make([]byte, piece)
	return func() {
		for i := 0; i < pieces; i++ {
			one := iocb{opcode: 1, fd: uint32(file.Fd()), at: uint64(address(bytes)), len: piece, offset: uint64(i * piece)}
			list, event := &one, [4]uint64{}
			call("io_submit", 209, context, 1, uintptr(unsafe.Pointer(&list)), 0, 0)
			call("io_getevents", 208, context, 1, 1, uintptr(unsafe.Pointer(&event)), 0)
		}
		runtime.KeepAlive(bytes)
	}
}

// Words of struct io_uring_params (io_uring_setup(2)).
const (
	sqEntries = 0
	sqTail    = 11
	sqMask    = 12
	sqArray   = 16
	cqHead    = 20
)

func ring(file *os.File) func() {
	var p [30]uint32
	fd := call("io_uring_setup", 425, 4, uintptr(unsafe.Pointer(&p)), 0, 0, 0)
	part := func(offset int64) []byte {
		bytes, err := syscall.Mmap(int(fd), offset, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
		check("mmap", err)
		return bytes
	}
	sq, cq, sqes := part(0), part(0x8000000), part(0x10000000)
	word := func(bytes []byte, at uint32) *uint32 { return (*uint32)(unsafe.Pointer(&bytes[at])) }
	bytes := make([]byte, piece)
	return func() {
		for i := 0; i < pieces; i++ {
			tail := word(sq, p[sqTail])
			at := *tail & *word(sq, p[sqMask])
			entry := sqes[64*at : 64*at+64]
			clear(entry)
			entry[0] = 23 // IORING_OP_WRITE
			*word(entry, 4) = uint32(file.Fd())
			*(*uint64)(unsafe.Pointer(&entry[8])) = uint64(i * piece)
			*(*uint64)(unsafe.Pointer(&entry[16])) = uint64(address(bytes))
			*word(entry, 24) = piece
			*word(sq, p[sqArray]+4*at) = at
			*tail++
			call("io_uring_enter", 426, fd, 1, 1, 1, 0)
			*word(cq, p[cqHead])++
		}
		runtime.KeepAlive(bytes)
	}
}

func mapped(file *os.File) func() {
	cold, err := os.Open(os.Args[3])
	check(os.Args[3], err)
	return func() {
		from, err := syscall.Mmap(int(cold.Fd()), 0, piece*pieces, syscall.PROT_READ, syscall.MAP_SHARED)
		check("mmap", err)
		sum := byte(0)
		for i := 0; i < len(from); i += piece {
			sum += from[i]
		}
		runtime.KeepAlive(sum)
		check("truncate", file.Truncate(piece*pieces))
		bytes, err := syscall.Mmap(int(file.Fd()), 0, piece*pieces, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
		check("mmap", err)
		for i := range bytes {
			bytes[i] = 'x'
		}
	}
}

func main() {
	calls, waits := os.Args[1], len(os.Args) > 4 && os.Args[4] == "wait"
	if calls != "own" && inC(os.Args) {
		return
	}
	file, err := os.OpenFile(os.Args[2], mode, 0666)
	check(os.Args[2], err)
	prepare, known := kinds[calls]
	if !known {
		check(calls, syscall.ENOSYS)
	}
	move := prepare(file)
	var byte [1]byte
	if waits {
		fmt.Println("ready")
		_, err := os.Stdin.Read(byte[:])
		check("read", err)
	}
	move()
	fmt.Println("done")
	if waits {
		os.Stdin.Read(byte[:])
	}
}
