// A Go program without a loader: its system calls are made by its own instructions,
// on stacks that are a few kilobytes long. It writes 200 kB to the null device in
// goroutines, talks to itself by TCP, and runs another program.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"
)

const (
	goroutines = 20
	writes     = 10
	block      = 1000
)

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func write(null *os.File, done *sync.WaitGroup) {
	defer done.Done()
	for i := 0; i < writes; i++ {
		_, err := null.Write(make([]byte, block))
		check(err)
	}
}

func echo() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	go func() {
		connection, err := listener.Accept()
		check(err)
		io.Copy(connection, connection)
		connection.Close()
	}()
	connection, err := net.Dial("tcp", listener.Addr().String())
	check(err)
	_, err = connection.Write([]byte("there and back"))
	check(err)
	check(connection.(*net.TCPConn).CloseWrite())
	text, err := io.ReadAll(connection)
	check(err)
	fmt.Println(string(text))
}

func main() {
	null, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
	check(err)
	begin := time.Now()
	var done sync.WaitGroup
	for i := 0; i < goroutines; i++ {
		done.Add(1)
		go write(null, &done)
	}
	done.Wait()
	took := time.Since(begin)
	echo()
	_, err = os.Open("/there/is/nothing")
	fmt.Println(err)
	text, err := exec.Command("/bin/echo", "from another program").CombinedOutput()
	check(err)
	fmt.Print(string(text))
	fmt.Printf("# elapsed %d ms\n", took.Milliseconds())
}
