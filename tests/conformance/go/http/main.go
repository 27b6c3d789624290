// A web server of Go's library, and a client.
//
//	http serve           says its port; GET /give?BYTES, POST /take
//	http get PORT BYTES  says how long it took
//	http post PORT BYTES
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"
)

// zeros reads as so many bytes; no file, which would be sent by sendfile.
type zeros int64

func (left *zeros) Read(to []byte) (int, error) {
	if *left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(to)), int64(*left))
	*left -= zeros(n)
	return int(n), nil
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	check(err)
	return n
}

func serve() {
	http.HandleFunc("/give", func(to http.ResponseWriter, from *http.Request) {
		left := zeros(number(from.URL.RawQuery))
		io.Copy(to, &left)
	})
	http.HandleFunc("/take", func(to http.ResponseWriter, from *http.Request) {
		n, err := io.Copy(io.Discard, from.Body)
		fmt.Fprintln(to, n, err)
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	check(http.Serve(listener, nil))
}

func main() {
	if os.Args[1] == "serve" {
		serve()
	}
	address, bytes := "http://127.0.0.1:"+os.Args[2], number(os.Args[3])
	begin := time.Now()
	var answer *http.Response
	var err error
	if os.Args[1] == "get" {
		answer, err = http.Get(fmt.Sprintf("%s/give?%d", address, bytes))
	} else {
		left := zeros(bytes)
		answer, err = http.Post(address+"/take", "application/octet-stream", &left)
	}
	check(err)
	if os.Args[1] == "get" {
		n, err := io.Copy(io.Discard, answer.Body)
		fmt.Println(n, err)
	} else {
		text, err := io.ReadAll(answer.Body)
		fmt.Print(string(text))
		check(err)
	}
	fmt.Printf("# elapsed %d ms\n", time.Since(begin).Milliseconds())
}
