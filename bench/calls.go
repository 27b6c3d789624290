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

func operation(name, file string) func() {
	bytes := make([]byte, 4096)
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
		return func() { syscall.Pread(fd, bytes, 0) }
	case "write-4k":
		fd := open("/dev/null", syscall.O_WRONLY)
		return func() { syscall.Write(fd, bytes) }
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
