// Reads a file in parts of 4 KiB, and prints what was read and how long it took.
//
//	moves FILE
package main

import (
	"fmt"
	"os"
	"time"
)

func main() {
	file, err := os.Open(os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	part := make([]byte, 4096)
	moved, begin := 0, time.Now()
	for {
		n, err := file.Read(part)
		moved += n
		if err != nil {
			break
		}
	}
	fmt.Printf("moved %d\n# elapsed %.3f ms\n", moved, time.Since(begin).Seconds()*1e3)
}
