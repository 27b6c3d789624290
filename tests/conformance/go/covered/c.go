//go:build cgo

package main

// #cgo CFLAGS: -DDLOPEN -Dmain=covered_main -U_FORTIFY_SOURCE
// #include "../../c/covered.c"
import "C"

func init() {
	inC = func(words []string) bool {
		list := make([]*C.char, len(words)+1)
		for i, word := range words {
			list[i] = C.CString(word)
		}
		if C.covered_main(C.int(len(words)), &list[0]) != 0 {
			panic("in C")
		}
		return true
	}
}
