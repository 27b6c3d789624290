// The same as calls.c, of one thread, in Go: OPERATION 1 CPU FILE. Go's own instructions
// make the calls.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

func fail(what string, err error) {
	if err != nil {
		fmt.Printf("{\"error\":%q}\n", what+": "+err.Error())
		os.Exit(1)
	}
}

func open(path string, flags int) int {
	fd, err := syscall.Open(path, flags, 0)
	fail(path, err)
	return fd
}

// cpu is the time of this thread, ns; CLOCK_THREAD_CPUTIME_ID.
func cpu() int64 {
	var now syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, 3, uintptr(unsafe.Pointer(&now)), 0)
	return now.Nano()
}

func pinTo(number string) {
	n, err := strconv.Atoi(number)
	fail("CPU", err)
	n %= runtime.NumCPU()
	var set [16]uint64
	set[n/64] = 1 << (n % 64)
	syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(set), uintptr(unsafe.Pointer(&set)))
}

// connection has both its ends here.
func connection() (from, to int) {
	address := &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	listener, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	fail("socket", err)
	fail("bind", syscall.Bind(listener, address))
	fail("listen", syscall.Listen(listener, 1))
	bound, err := syscall.Getsockname(listener)
	fail("getsockname", err)
	from, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	fail("socket", err)
	fail("connect", syscall.Connect(from, bound))
	to, _, err = syscall.Accept(listener)
	fail("accept", err)
	fail("TCP_NODELAY", syscall.SetsockoptInt(from, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1))
	return from, to
}

func operation(name, file string) func() {
	bytes := make([]byte, 65536)
	page := bytes[:4096]
	switch name {
	case "nothing":
		return func() {}
	case "getppid":
		return func() { syscall.Getppid() }
	case "empty":
		return func() { syscall.Close(-1) }
	case "read-1":
		fd := open("/dev/zero", syscall.O_RDONLY)
		return func() { syscall.Read(fd, bytes[:1]) }
	case "pread-4k":
		fd := open(file, syscall.O_RDONLY)
		return func() { syscall.Pread(fd, page, 0) }
	case "write-4k":
		fd := open("/dev/null", syscall.O_WRONLY)
		return func() { syscall.Write(fd, page) }
	case "pwrite-4k":
		fd := open(file, syscall.O_RDWR)
		return func() { syscall.Pwrite(fd, page, 0) }
	case "pread-64k":
		fd := open(file, syscall.O_RDONLY)
		return func() { syscall.Pread(fd, bytes, 0) }
	case "tcp-1448":
		from, to := connection()
		return func() { syscall.Write(from, bytes[:1448]); syscall.Read(to, bytes[:1448]) }
	}
	fail(name, syscall.EINVAL)
	return nil
}

func main() {
	runtime.LockOSThread()
	pinTo(os.Args[3])
	run := operation(os.Args[1], os.Args[4])
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var count, batches int
		_, err := fmt.Sscan(lines.Text(), &count, &batches)
		fail("input", err)
		var said []string
		for range batches {
			from, begin := cpu(), time.Now()
			for range count {
				run()
			}
			said = append(said, fmt.Sprintf("[%d,%d]", time.Since(begin).Nanoseconds(), cpu()-from))
		}
		fmt.Printf("[%s]\n", strings.Join(said, ","))
	}
}
