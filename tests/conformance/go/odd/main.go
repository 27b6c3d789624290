// Random and hostile calls by Go's own instructions, and many goroutines that move bytes through Go's event loop: the same
// for a seed bare and under limits. c/transparency/odd_calls.c does that for C and has the output explained.
//
//	odd SEED FIRST COUNT [all] [held]
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	page  = 4096
	pages = 64
	size  = page * pages
	step  = 4000
	room  = 4 << 20
)

// Go's syscall package has no numbers for calls newer than Linux 3.
const (
	sysSendmmsg      = 307
	sysMemfdCreate   = 319
	sysCopyFileRange = 326
	sysPreadv2       = 327
	sysPwritev2      = 328
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

// splitmix64.
type source uint64

func (s *source) draw() uint64 {
	*s += 0x9e3779b97f4a7c15
	x := uint64(*s)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (s *source) below(n int) int { return int(s.draw() % uint64(n)) }

func (s *source) one(of ...uint64) uint64 { return of[s.below(len(of))] }

func mixed(hash uint64, bytes []byte) uint64 {
	for ; len(bytes) >= 8; bytes = bytes[8:] {
		hash = (hash ^ *(*uint64)(unsafe.Pointer(&bytes[0]))) * 0x9e3779b97f4a7c15
		hash ^= hash >> 29
	}
	for _, b := range bytes {
		hash = (hash ^ uint64(b)) * 0x100000001b3
	}
	return hash
}

func mixedWord(hash, word uint64) uint64 {
	hash = (hash ^ word) * 0x9e3779b97f4a7c15
	return hash ^ hash>>29
}

// Bytes by entry of the table of calls.
var moved sync.Map

func noted(name string, n int) {
	if n > 0 {
		of, isThere := moved.Load(name)
		if !isThere {
			of, _ = moved.LoadOrStore(name, new(atomic.Int64))
		}
		of.(*atomic.Int64).Add(int64(n))
	}
}

const (
	file, socket, other = ".file", ".socket", ".other"
)

// One descriptor, and the other end of it.
type end struct {
	fd, peer int
	kind     string
	isQueue  bool
	isTCP    bool
	at       int
}

type world struct {
	source
	arena []byte
	ends  []end
	hash  uint64
	all   bool
	// Bits of the ends that calls named, or sent to, since these were looked at.
	named, filled uint64
	buffer        [1 << 20]byte
}

func (w *world) add(fd, peer int, kind string, isQueue, isTCP bool) {
	w.ends = append(w.ends, end{fd, peer, kind, isQueue, isTCP, len(w.ends)})
}

func (w *world) open(name string, flags int) {
	fd, err := syscall.Open(name, flags, 0o600)
	check(err)
	w.add(fd, -1, file, false, false)
}

func (w *world) pair(family, kind int) {
	both, err := syscall.Socketpair(family, kind|syscall.SOCK_NONBLOCK, 0)
	check(err)
	w.addPair(both[0], both[1], false)
}

func (w *world) addPair(a, b int, isTCP bool) {
	for _, fd := range []int{a, b} {
		if syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUFFORCE, room) != nil {
			syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, room)
		}
		if syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUFFORCE, room) != nil {
			syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, room)
		}
	}
	w.add(a, b, socket, true, isTCP)
	w.add(b, a, socket, true, isTCP)
}

var local = syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}

func (w *world) tcp() {
	listener, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	check(err)
	check(syscall.Bind(listener, &local))
	check(syscall.Listen(listener, 1))
	at, err := syscall.Getsockname(listener)
	check(err)
	a, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	check(err)
	check(syscall.Connect(a, at))
	b, _, err := syscall.Accept(listener)
	check(err)
	syscall.Close(listener)
	for _, fd := range []int{a, b} {
		check(syscall.SetNonblock(fd, true))
		check(syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1))
		check(syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1}))
	}
	w.addPair(a, b, true)
}

func (w *world) udp() {
	var fds [2]int
	var at [2]syscall.Sockaddr
	for i := range fds {
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_NONBLOCK, 0)
		check(err)
		check(syscall.Bind(fd, &local))
		fds[i] = fd
		at[i], err = syscall.Getsockname(fd)
		check(err)
	}
	check(syscall.Connect(fds[0], at[1]))
	check(syscall.Connect(fds[1], at[0]))
	w.addPair(fds[0], fds[1], false)
}

const bad = 1000

func (w *world) begin(seed uint64) {
	w.source = source(seed)
	for i := 0; i < size; i += 8 {
		*(*uint64)(unsafe.Pointer(&w.arena[i])) = (seed + uint64(i)) * 0x9e3779b97f4a7c15
	}
	w.ends, w.named, w.filled = w.ends[:0], 0, 0
	w.open("go.rw", syscall.O_RDWR|syscall.O_CREAT|syscall.O_TRUNC)
	w.open("go.appended", syscall.O_RDWR|syscall.O_CREAT|syscall.O_TRUNC|syscall.O_APPEND)
	w.open("go.synced", syscall.O_RDWR|syscall.O_CREAT|syscall.O_TRUNC|syscall.O_DSYNC)
	w.open("go.constant", syscall.O_RDONLY)
	w.open("go.written", syscall.O_WRONLY|syscall.O_CREAT|syscall.O_TRUNC)
	name := []byte("memory\x00")
	memory, _, errno := syscall.Syscall(sysMemfdCreate, uintptr(unsafe.Pointer(&name[0])), 0, 0)
	if errno != 0 {
		check(errno)
	}
	w.add(int(memory), -1, file, false, false)
	null, err := syscall.Open("/dev/null", syscall.O_RDWR, 0)
	check(err)
	w.add(null, -1, other, false, false)
	var pipe [2]int
	check(syscall.Pipe2(pipe[:], syscall.O_NONBLOCK))
	w.add(pipe[0], pipe[1], other, true, false)
	w.add(pipe[1], pipe[0], other, false, false)
	w.pair(syscall.AF_UNIX, syscall.SOCK_STREAM)
	w.pair(syscall.AF_UNIX, syscall.SOCK_DGRAM)
	w.pair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET)
	w.tcp()
	w.udp()
	n, err := syscall.Pwrite(w.ends[0].fd, w.arena[:100000], 0)
	check(err)
	noted("pwrite64", n)
	w.add(bad, -1, other, false, false)
}

func (w *world) finish() {
	for _, of := range w.ends {
		if of.fd != bad {
			syscall.Close(of.fd)
		}
	}
}

func (w *world) base() uintptr { return uintptr(unsafe.Pointer(&w.arena[0])) }

func (w *world) pointer(isWhole bool) uintptr {
	if isWhole {
		return w.base() + uintptr(w.below(size-20000))
	}
	switch w.below(16) {
	case 0:
		return 0
	case 1:
		return ^uintptr(0)
	case 2:
		return 0xffff800000000000
	case 3:
		return 1
	case 4:
		return w.base() - 1 - uintptr(w.below(page))
	case 5:
		return w.base() + size - uintptr(w.below(9))
	case 6:
		return w.base() + size - uintptr(w.below(3*page))
	}
	return w.base() + uintptr(w.below(size-20000))
}

func (w *world) length(isWhole bool) uintptr {
	if isWhole {
		return uintptr(w.below(5000))
	}
	switch w.below(14) {
	case 0:
		return ^uintptr(0)
	case 1:
		return 1 << 63
	case 2:
		return 1<<63 - 1
	case 3:
		return 1 << 47
	case 4:
		return 0
	case 5:
		return uintptr(w.below(200000))
	case 6:
		return page * uintptr(1+w.below(4))
	}
	return uintptr(w.below(3000))
}

func (w *world) place() uintptr {
	switch w.below(10) {
	case 0:
		return ^uintptr(0)
	case 1:
		return 1 << 63
	case 2:
		return 1<<63 - 1
	}
	return uintptr(w.below(110000))
}

type vector struct{ base, len uintptr }

type header struct {
	name    uintptr
	nameLen uint32
	_       uint32
	list    *vector
	count   uint64
	control uintptr
	ctlLen  uint64
	flags   int32
	_       int32
}

type message struct {
	header
	len uint32
	_   uint32
}

// Memory that Go's collector does not move, and that calls are given.
var (
	vectors  [1100]vector
	one      header
	messages [20]message
	offset   int64
)

func (w *world) list(isWhole bool) (uintptr, uintptr) {
	count := int(int32(w.one(0, 1, 1, 2, 2, 3, 5, 9, 40, 1024, 1025, 1<<32-1, 1<<31)))
	if count >= 1024 && w.below(8) != 0 {
		count -= 1008
	}
	some := count
	if some < 0 {
		some = 3
	}
	for i := 0; i < some; i++ {
		vectors[i] = vector{w.pointer(isWhole || w.below(4) != 0), w.length(true)}
		if some > 5 {
			vectors[i].len %= 64
		}
	}
	if w.below(24) == 0 {
		return w.pointer(false), uintptr(count)
	}
	return uintptr(unsafe.Pointer(&vectors[0])), uintptr(count)
}

// One call: its name in the table, result, and the descriptor that counts.
func (w *world) call() (string, int, syscall.Errno, end) {
	of, from := w.ends[w.below(len(w.ends))], w.ends[w.below(len(w.ends))]
	which := w.below(21)
	if which >= 10 && which <= 15 && w.below(8) != 0 {
		of = w.ends[9+w.below(10)]
	}
	if (which >= 2 && which <= 9 || which == 19) && w.below(4) != 0 {
		of, from = w.ends[w.below(6)], w.ends[w.below(6)]
	}
	w.named |= 1<<of.at | 1<<from.at
	switch which {
	case 0, 4, 11, 13, 15:
		w.feed(of)
	case 17, 18:
		w.feed(from)
	}
	isWhole := of.isQueue && of.kind == socket || of.fd == w.ends[8].fd
	fd := uintptr(of.fd)
	at, n, where := w.pointer(isWhole), w.length(isWhole), w.place()
	flags := uintptr(w.one(0, 0, 0, syscall.MSG_PEEK, syscall.MSG_NOSIGNAL, syscall.MSG_WAITALL))
	effects := uintptr(w.one(0, 0, 0, 2, 4, 16, 0x8000))
	rest := [3]uintptr{}
	number, name := uintptr(0), ""
	args := func(n uintptr, as string, a, b, c uintptr) { number, name, rest = n, as, [3]uintptr{a, b, c} }
	switch which {
	case 0:
		args(syscall.SYS_READ, "read"+of.kind, at, n, 0)
	case 1:
		args(syscall.SYS_WRITE, "write"+of.kind, at, n, 0)
	case 2:
		args(syscall.SYS_PREAD64, "pread64", at, n, where)
	case 3:
		args(syscall.SYS_PWRITE64, "pwrite64", at, n, where)
	case 4, 5, 6, 7, 8, 9:
		list, count := w.list(isWhole)
		args([]uintptr{syscall.SYS_READV, syscall.SYS_WRITEV, syscall.SYS_PREADV, syscall.SYS_PWRITEV, sysPreadv2, sysPwritev2}[which-4],
			[]string{"readv" + of.kind, "writev" + of.kind, "preadv", "pwritev", "preadv2", "pwritev2"}[which-4], list, count, where)
		if which == 8 {
			effects &^= 16
		}
	case 10:
		args(syscall.SYS_SENDTO, "sendto", at, n, flags&^syscall.MSG_PEEK)
	case 11:
		args(syscall.SYS_RECVFROM, "recvfrom", at, n, flags|syscall.MSG_DONTWAIT)
	case 12, 13:
		list, count := w.list(isWhole)
		one = header{list: (*vector)(unsafe.Pointer(list)), count: uint64(int64(count))}
		if which == 12 {
			args(syscall.SYS_SENDMSG, "sendmsg", uintptr(unsafe.Pointer(&one)), flags&^syscall.MSG_PEEK, 0)
		} else {
			args(syscall.SYS_RECVMSG, "recvmsg", uintptr(unsafe.Pointer(&one)), flags|syscall.MSG_DONTWAIT, 0)
		}
	case 14, 15:
		count := 1 + w.below(6)
		for i := range messages {
			vectors[i] = vector{w.pointer(isWhole || w.below(20) != 0), uintptr(w.below(3000))}
			messages[i] = message{header: header{list: &vectors[i], count: 1}}
		}
		if which == 14 {
			args(sysSendmmsg, "sendmmsg", uintptr(unsafe.Pointer(&messages[0])), uintptr(count), syscall.MSG_DONTWAIT)
		} else {
			args(syscall.SYS_RECVMMSG, "recvmmsg", uintptr(unsafe.Pointer(&messages[0])), uintptr(count), syscall.MSG_DONTWAIT)
		}
	case 16, 17, 18, 19:
		if n < 1<<62 {
			n &= 0xffff
		}
		switch which {
		case 16:
			args(syscall.SYS_SENDFILE, "sendfile"+of.kind, uintptr(from.fd), 0, n)
		case 17:
			counted := of.kind
			if of.fd == w.ends[8].fd && from.fd != bad {
				counted = from.kind
			}
			return w.six(syscall.SYS_SPLICE, "splice"+counted, uintptr(from.fd), 0, fd, 0, n, 2, of)
		case 18:
			return w.six(syscall.SYS_TEE, "tee", uintptr(from.fd), fd, n, 2, 0, 0, of)
		case 19:
			offset = int64(w.place())
			return w.six(sysCopyFileRange, "copy_file_range", uintptr(from.fd), uintptr(unsafe.Pointer(&offset)), fd, 0, n, 0, of)
		}
	default:
		list, count := w.list(isWhole)
		return w.six(syscall.SYS_VMSPLICE, "vmsplice", uintptr(w.ends[8].fd), list, count&15, 2, 0, 0, w.ends[8])
	}
	if which == 8 || which == 9 {
		return w.six(number, name, fd, rest[0], rest[1], rest[2], 0, effects, of)
	}
	return w.six(number, name, fd, rest[0], rest[1], rest[2], 0, 0, of)
}

func (w *world) six(number uintptr, name string, a, b, c, d, e, f uintptr, of end) (string, int, syscall.Errno, end) {
	r, _, errno := syscall.Syscall6(number, a, b, c, d, e, f)
	n := int(r)
	if errno != 0 {
		n = -1
	}
	switch {
	case number == sysSendmmsg || number == syscall.SYS_RECVMMSG:
		for i := 0; i < n; i++ {
			noted(name, int(messages[i].len))
		}
	case name == "recvfrom" && d&syscall.MSG_PEEK != 0 || name == "recvmsg" && c&syscall.MSG_PEEK != 0:
	default:
		noted(name, n)
	}
	return name, n, errno, of
}

// All that was sent has arrived (struct tcp_info, linux/tcp.h: 144 is what has not gone, 200, 208 and 128 are bytes).
func settle(of end) {
	get := func(fd int) (info [256]byte) {
		length := uint32(len(info))
		syscall.Syscall6(syscall.SYS_GETSOCKOPT, uintptr(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO,
			uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&length)), 0)
		return
	}
	word := func(info *[256]byte, at int) uint64 { return *(*uint64)(unsafe.Pointer(&info[at])) }
	for of.isTCP {
		sent, come := get(of.fd), get(of.peer)
		if uint32(word(&sent, 144)) == 0 && word(&sent, 200)-word(&sent, 208) == word(&come, 128) {
			return
		}
		time.Sleep(20 * time.Microsecond)
	}
}

// Reads what is in the queues whose bits are given.
func (w *world) emptied(queues uint64) {
	for _, of := range w.ends {
		for of.isQueue && queues>>of.at&1 != 0 {
			n, err := syscall.Read(of.fd, w.buffer[:1<<16])
			if err == syscall.EINTR {
				continue
			}
			if err != nil {
				break
			}
			noted("read"+of.kind, n)
			w.hash = mixed(mixedWord(w.hash, uint64(n)), w.buffer[:n])
		}
	}
	w.filled &^= queues
}

// Position and length of the files whose bits are given.
func (w *world) files(files uint64) {
	for i := 0; i < 6; i++ {
		if files>>i&1 == 0 {
			continue
		}
		fd := w.ends[i].fd
		now, err := syscall.Seek(fd, 0, io.SeekCurrent)
		check(err)
		var of syscall.Stat_t
		check(syscall.Fstat(fd, &of))
		w.hash = mixedWord(mixedWord(w.hash, uint64(now)), uint64(of.Size))
		if of.Size > 1<<20 && i != 3 {
			check(syscall.Ftruncate(fd, 70000))
			_, err = syscall.Seek(fd, int64(w.below(70000)), io.SeekStart)
			check(err)
		}
	}
	w.named &^= files
}

func (w *world) contents() {
	for i := 0; i < 6; i++ {
		n, _ := syscall.Pread(w.ends[i].fd, w.buffer[:], 0)
		noted("pread64", n)
		if n > 0 {
			w.hash = mixed(w.hash, w.buffer[:n])
		}
	}
	w.hash = mixed(w.hash, w.arena)
}

// Something to receive, half of the time.
func (w *world) feed(reader end) {
	if !reader.isQueue || w.below(2) != 0 {
		return
	}
	n := 1 + w.below(3000)
	from := w.below(100000)
	done, _ := syscall.Write(reader.peer, constant[from:from+n])
	noted("write"+reader.kind, done)
	w.filled |= 1 << reader.at
	settle(end{fd: reader.peer, peer: reader.fd, isTCP: reader.isTCP})
}

func isSent(name string) bool {
	return !strings.Contains(name, "read") && !strings.HasPrefix(name, "recv")
}

// What the last calls may have changed, some of it a few calls later: nothing but a call changes it back. A file that was written is
// looked at, as one may have become longer than memory; so is a pipe that still has the program's own memory (vmsplice).
func (w *world) look(name string, n int, of end, i int) {
	hasSent := n > 0 && isSent(name)
	if hasSent && of.peer >= 0 {
		for _, there := range w.ends {
			if there.fd == of.peer {
				w.filled |= 1 << there.at
			}
		}
		settle(of)
	}
	if i%8 == 7 || hasSent && of.kind == file {
		w.files(w.named)
	}
	if hasSent && name == "vmsplice" {
		w.emptied(1 << 7)
	}
	if i%120 == 119 {
		w.emptied(^uint64(0))
		w.hash = mixed(w.hash, w.arena)
	} else if i%20 == 19 {
		w.emptied(w.filled)
	}
}

func (w *world) calls(at uint64) {
	for i := 0; i < step; i++ {
		name, n, errno, of := w.call()
		w.look(name, n, of, i)
		w.hash = mixedWord(mixedWord(w.hash, uint64(n)), uint64(errno))
		if w.all {
			print(fmt.Sprintf("%d %s(%d) = %d %v %016x\n", at+uint64(i), name, of.fd, n, errno, mixed(w.hash, w.arena)))
		}
	}
	w.files(^uint64(0))
	w.emptied(^uint64(0))
}

var constant []byte

func print(line string) {
	n, err := syscall.Write(1, []byte(line))
	check(err)
	noted("write.file", n)
}

// Goroutines write and read at a time; each stream arrives as it was sent.
func goroutines(seed uint64, hash *atomic.Uint64) {
	var done sync.WaitGroup
	flow := func(writer io.WriteCloser, reader io.ReadCloser, kind string, seed uint64) {
		done.Add(2)
		go func() {
			defer done.Done()
			s := source(seed)
			for i := 0; i < 40; i++ {
				from, n := s.below(50000), 1+s.below(s.below(2)*20000+100)
				n, err := writer.Write(constant[from : from+n])
				check(err)
				noted("write"+kind, n)
			}
			if half, ok := writer.(interface{ CloseWrite() error }); ok {
				check(half.CloseWrite())
			} else {
				check(writer.Close())
			}
		}()
		go func() {
			defer done.Done()
			s, buffer, whole := source(seed^1), make([]byte, 30000), []byte{}
			for {
				n, err := reader.Read(buffer[:1+s.below(30000)])
				noted("read"+kind, n)
				whole = append(whole, buffer[:n]...)
				if err == io.EOF {
					break
				}
				check(err)
			}
			hash.Add(mixed(seed, whole))
		}()
	}
	for i := uint64(0); i < 3; i++ {
		reader, writer, err := os.Pipe()
		check(err)
		flow(writer, reader, other, seed+i*8)
		for j, network := range []string{"tcp", "unix"} {
			address := "127.0.0.1:0"
			if network == "unix" {
				address = fmt.Sprintf("go.socket.%d", i)
			}
			listener, err := net.Listen(network, address)
			check(err)
			there, err := net.Dial(network, listener.Addr().String())
			check(err)
			back, err := listener.Accept()
			check(err)
			flow(there.(io.WriteCloser), back, socket, seed+i*8+uint64(j)+1)
			flow(back.(io.WriteCloser), there, socket, seed+i*8+uint64(j)+4)
			check(listener.Close())
			defer there.Close()
			defer back.Close()
		}
	}
	done.Wait()
}

func main() {
	number := func(i int) uint64 {
		n, err := strconv.ParseUint(os.Args[i], 10, 64)
		check(err)
		return n
	}
	seed, first, count := number(1), number(2), number(3)
	isHeld := false
	w := &world{}
	for _, word := range os.Args[4:] {
		isHeld = isHeld || word == "held"
		w.all = w.all || word == "all"
	}
	// Go reads how long its queue may be, once.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	check(listener.Close())
	byteOfInput := []byte{0}
	if isHeld {
		syscall.Read(0, byteOfInput)
	}
	whole, err := syscall.Mmap(-1, 0, size+2*page, syscall.PROT_NONE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	check(err)
	w.arena = whole[page : page+size]
	check(syscall.Mprotect(w.arena, syscall.PROT_READ|syscall.PROT_WRITE))
	constant = make([]byte, 150000)
	s := source(7)
	for i := range constant {
		constant[i] = byte(s.draw())
	}
	fd, err := syscall.Open("go.constant", syscall.O_RDWR|syscall.O_CREAT|syscall.O_TRUNC, 0o600)
	check(err)
	n, err := syscall.Write(fd, constant)
	check(err)
	noted("write.file", n)
	syscall.Close(fd)
	for at := first; at < first+count; at += step {
		w.begin(seed ^ at*0x2545f4914f6cdd1d)
		w.hash = 0
		w.calls(at)
		w.contents()
		w.finish()
		var together atomic.Uint64
		if at/step%4 == 0 {
			goroutines(seed+at, &together)
		}
		print(fmt.Sprintf("%d: %016x\n", at, w.hash+together.Load()))
	}
	text := ""
	moved.Range(func(name, of any) bool {
		if name != "vmsplice" {
			text += fmt.Sprintf("# moved %s %d\n", name, of.(*atomic.Int64).Load())
		}
		return true
	})
	last, _ := moved.LoadOrStore("vmsplice", new(atomic.Int64))
	text += fmt.Sprintf("# moved vmsplice %d\n", last.(*atomic.Int64).Load())
	syscall.Write(1, []byte(text))
	if isHeld {
		syscall.Read(0, byteOfInput)
	}
}
