package modeltest

import (
	"bufio"
	"bytes"
	"net"
	"strconv"
	"sync"
)

// Canned starts a server that sends the replies in turn, whatever the request, and returns its URL. It allocates next
// to nothing, so that a benchmark counts the client's allocations.
func Canned(t TB, replies ...string) (url string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("starting the canned server: %v", err)
	}
	var ready [][]byte
	for _, r := range replies {
		head := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(r)) +
			"\r\n\r\n"
		ready = append(ready, []byte(head+r))
	}
	var conns sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		conns.Wait()
	})
	conns.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			conns.Go(func() { serveCanned(c, ready) })
		}
	})
	return "http://" + ln.Addr().String()
}

func serveCanned(c net.Conn, replies [][]byte) {
	defer c.Close()
	r := bufio.NewReaderSize(c, 64<<10)
	length := []byte("content-length:")
	for i := 0; ; i++ {
		size := 0
		for {
			line, err := r.ReadSlice('\n')
			if err != nil {
				return
			}
			line = bytes.TrimSpace(line)
			if len(line) == 0 {
				break
			}
			if len(line) > len(length) && bytes.EqualFold(line[:len(length)], length) {
				for _, d := range bytes.TrimSpace(line[len(length):]) {
					size = 10*size + int(d-'0')
				}
			}
		}
		if _, err := r.Discard(size); err != nil {
			return
		}
		if _, err := c.Write(replies[i%len(replies)]); err != nil {
			return
		}
	}
}
