// The event loop of Go's runtime (epoll, by edges): `loop DIRECTION` moves 120,000 bytes over
// one greedy connection, of which the other end is another process, while a polite one, over
// pipes, goes to and fro. One thread runs all goroutines. A limit on the greedy one shows
// itself as readiness that comes later, never as a call that takes long. It says what
// `c/transparency/loops.c` says, but for how long calls took. `loop DIRECTION end` is the other end.
package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	total = 120_000
	chunk = 65_536
	ping  = 16
)

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func at(i int) byte { return byte(i*31 + i>>8) }

// The other end takes and checks, or gives: by calls that block.
func end(takes bool) int {
	block := make([]byte, total)
	if !takes {
		for i := range block {
			block[i] = at(i)
		}
	}
	for done := 0; done < total; {
		var n int
		var err error
		if takes {
			n, err = syscall.Read(0, block)
		} else {
			n, err = syscall.Write(0, block[done:])
		}
		if err == syscall.EINTR {
			continue
		}
		if n <= 0 {
			return 1
		}
		for i := 0; takes && i < n; i++ {
			if block[i] != at(done+i) {
				return 2
			}
		}
		done += n
	}
	return 0
}

// The polite one: to and fro over two pipes.
func politely(rounds *atomic.Int64) {
	near, out, err := os.Pipe()
	check(err)
	back, far, err := os.Pipe()
	check(err)
	go func() {
		block := make([]byte, ping)
		for {
			n, _ := near.Read(block)
			far.Write(block[:n])
		}
	}()
	block := make([]byte, ping)
	for {
		out.Write(block)
		back.Read(block)
		rounds.Add(1)
		time.Sleep(time.Millisecond)
	}
}

func cpu() time.Duration {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// The moved bytes, and what was seen on the way.
type seen struct{ done, wrong, events, refused, vain int }

// What is done at each event; true at the end.
func (s *seen) event(fd int, sends bool, block []byte) bool {
	s.events++
	for tries := 0; s.done < total; tries++ {
		asked := min(total-s.done, chunk)
		for i := 0; sends && i < asked; i++ {
			block[i] = at(s.done + i)
		}
		var n int
		var err error
		if sends {
			n, err = syscall.Write(fd, block[:asked])
		} else {
			n, err = syscall.Read(fd, block[:asked])
		}
		if err == syscall.EINTR {
			continue
		}
		if err == syscall.EAGAIN {
			s.refused++
			if tries == 0 {
				s.vain++
			}
			return false
		}
		check(err)
		if n == 0 {
			fmt.Println("the end after", s.done)
			os.Exit(1)
		}
		for i := 0; !sends && i < n; i++ {
			if block[i] != at(s.done+i) {
				s.wrong++
			}
		}
		s.done += n
	}
	return true
}

func main() {
	sends := os.Args[1] == "out"
	if len(os.Args) > 2 {
		os.Exit(end(sends))
	}
	runtime.GOMAXPROCS(1)
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	check(err)
	for _, fd := range pair {
		check(syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, chunk))
	}
	far := os.NewFile(uintptr(pair[1]), "far")
	other := exec.Command(os.Args[0], os.Args[1], "end")
	other.Stdin = far
	check(other.Start())
	check(far.Close())
	near := os.NewFile(uintptr(pair[0]), "near")
	conn, err := net.FileConn(near)
	check(err)
	check(near.Close())
	raw, err := conn.(syscall.Conn).SyscallConn()
	check(err)
	var rounds atomic.Int64
	go politely(&rounds)
	var s seen
	block := make([]byte, chunk)
	used, start := cpu(), time.Now()
	move := func(fd uintptr) bool { return s.event(int(fd), sends, block) }
	if sends {
		err = raw.Write(move)
	} else {
		err = raw.Read(move)
	}
	check(err)
	elapsed := time.Since(start)
	used = cpu() - used
	check(conn.Close())
	status := 0
	if err := other.Wait(); err != nil {
		status = other.ProcessState.ExitCode()
	}
	fmt.Printf("%d bytes, %d wrong, the other end: %d\n", s.done, s.wrong, status)
	polite := "no"
	if rounds.Load()*10 >= elapsed.Milliseconds() {
		polite = "yes"
	}
	fmt.Printf("the polite one went on: %s\n", polite)
	// The runtime's own turns are not seen; an event is one at least.
	fmt.Printf("# rounds %d\n# turns %d\n# events %d\n# refused %d\n# in-vain %d\n",
		rounds.Load(), s.events, s.events, s.refused, s.vain)
	fmt.Printf("# cpu %d ms\n# elapsed %d ms\n", used.Milliseconds(), elapsed.Milliseconds())
}
