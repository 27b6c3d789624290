// A Go program with C in it: each writes half of 192 kB to the null device, in turns and
// in several threads, Go by its own instructions and C by libc's function.
package main

/*
#include <unistd.h>

static long c_write(int fd, void *from, long len) {
    return write(fd, from, len);
}
*/
import "C"

import (
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"
)

const (
	goroutines = 4
	rounds     = 24
	block      = 1024
)

func check(what string, wrote int, err error) {
	if wrote != block || err != nil {
		fmt.Println(what, wrote, err)
		os.Exit(1)
	}
}

func main() {
	null, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fd := C.int(null.Fd())
	begin := time.Now()
	var done sync.WaitGroup
	for i := 0; i < goroutines; i++ {
		done.Add(1)
		go func() {
			defer done.Done()
			from := make([]byte, block)
			for j := 0; j < rounds; j++ {
				wrote, err := null.Write(from)
				check("go", wrote, err)
				check("c", int(C.c_write(fd, unsafe.Pointer(&from[0]), block)), nil)
			}
		}()
	}
	done.Wait()
	fmt.Printf("# elapsed %d ms\n", time.Since(begin).Milliseconds())
}
