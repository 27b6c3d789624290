// A server and its clients in one process: each connection gets the same bytes, whose
// sum the client checks. The argument is the file that shows how far it is, as in
// c/attach/busy.c. It ends when its standard input does.
package main

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
)

const blocks = 64

var sent, got, wrong, rounds, zero uint64

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		atomic.AddUint64(&wrong, 1)
	}
}

func block() []byte {
	b := make([]byte, 65536)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

func serve(c net.Conn) {
	b := block()
	for i := 0; i < blocks; i++ {
		n, err := c.Write(b)
		check(err)
		atomic.AddUint64(&sent, uint64(n))
	}
	runtime.GC()
	check(c.Close())
}

func main() {
	file, err := os.Create(os.Args[1])
	check(err)
	// What is shown never goes back: counting and writing it are one step.
	var showing sync.Mutex
	show := func() {
		showing.Lock()
		defer showing.Unlock()
		var all [48]byte
		for i, n := range []*uint64{&sent, &got, &wrong, &rounds, &zero, &zero} {
			binary.LittleEndian.PutUint64(all[8*i:], atomic.LoadUint64(n))
		}
		_, err := file.WriteAt(all[:], 0)
		check(err)
	}
	sum := sha256.New()
	for i := 0; i < blocks; i++ {
		sum.Write(block())
	}
	want := string(sum.Sum(nil))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	var over atomic.Bool
	var clients sync.WaitGroup
	for i := 0; i < 3; i++ {
		clients.Add(1)
		go func() {
			defer clients.Done()
			for !over.Load() {
				c, err := net.Dial("tcp", l.Addr().String())
				check(err)
				sum := sha256.New()
				b := make([]byte, 16384)
				for {
					n, err := c.Read(b)
					sum.Write(b[:n])
					atomic.AddUint64(&got, uint64(n))
					show()
					if err == io.EOF {
						break
					}
					check(err)
				}
				if string(sum.Sum(nil)) != want {
					check(fmt.Errorf("other bytes arrived"))
				}
				check(c.Close())
			}
		}()
	}
	clients.Add(1)
	go func() {
		defer clients.Done()
		for !over.Load() {
			out, err := exec.Command("echo", "child").Output()
			check(err)
			if string(out) != "child\n" {
				check(fmt.Errorf("a child said %q", out))
			}
			atomic.AddUint64(&rounds, 1)
		}
	}()
	_, err = io.ReadAll(os.Stdin)
	check(err)
	over.Store(true)
	clients.Wait()
	show()
	if wrong != 0 {
		os.Exit(1)
	}
}
