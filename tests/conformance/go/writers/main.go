// Threads that write as much as they can until they are killed; writers.c tells more.
package main

import (
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"unsafe"
)

func main() {
	file, err := os.OpenFile(os.Args[1], os.O_RDWR, 0)
	if err != nil || file.Truncate(64*8) != nil {
		os.Exit(3)
	}
	sink, err := syscall.Open("/dev/zero", syscall.O_WRONLY, 0)
	if err != nil {
		os.Exit(3)
	}
	counts, err := syscall.Mmap(int(file.Fd()), 0, 64*8,
		syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		os.Exit(4)
	}
	threads, _ := strconv.Atoi(os.Args[2])
	size, _ := strconv.Atoi(os.Args[3])
	writer := func(number int) {
		runtime.LockOSThread()
		block := make([]byte, size)
		for {
			done, err := syscall.Write(sink, block)
			if err != nil {
				os.Exit(6)
			}
			count := (*uint64)(unsafe.Pointer(&counts[8*number]))
			atomic.AddUint64(count, uint64(done))
		}
	}
	for i := 1; i < threads; i++ {
		go writer(i)
	}
	writer(0)
}
