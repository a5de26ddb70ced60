package egress

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// startEcho starts a server that sends back what it gets, and a proxy with a tunnel to it.
func startEcho(t *testing.T, s Settings) (p *Proxy, address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	s.Tunnels = []string{l.Addr().String()}
	if p, err = Start(s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, l.Addr().String()
}

// openTunnel connects to address through p. Reads and writes fail after 10 seconds.
func openTunnel(t *testing.T, p *Proxy, address string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("unix", p.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, "CONNECT "+address+" HTTP/1.1\r\nHost: "+address+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", resp, err)
	}
	return c, r
}

// echo sends text and reports whether it comes back.
func echo(c net.Conn, r io.Reader, text string) bool {
	if _, err := io.WriteString(c, text); err != nil {
		return false
	}
	b := make([]byte, len(text))
	_, err := io.ReadFull(r, b)
	return err == nil && string(b) == text
}

func TestClosedTunnelIsForgotten(t *testing.T) {
	t.Parallel()
	p, address := startEcho(t, Settings{Limit: 1 << 20})
	for range 3 {
		c, r := openTunnel(t, p, address)
		if !echo(c, r, "hello") {
			t.Fatal("the tunnel does not work")
		}
		c.Close()
	}
	for end := time.Now().Add(10 * time.Second); ; <-time.After(time.Millisecond) {
		p.mu.Lock()
		n := len(p.conns)
		p.mu.Unlock()
		if n == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d connections are left", n)
		}
	}
}

func TestIdleTunnelIsClosed(t *testing.T) {
	t.Parallel()
	p, address := startEcho(t, Settings{Limit: 1 << 20, Idle: 20 * time.Millisecond})
	_, r := openTunnel(t, p, address)
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("%v, want the end of the connection", err)
	}
}

func TestTransferLimit(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		window time.Duration
		want   bool // the second exchange passes
	}{
		"for ever":                        {0, false},
		"a window that has not ended":     {time.Hour, false},
		"a window that ends between both": {time.Nanosecond, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, address := startEcho(t, Settings{Limit: 12, Window: tt.window})
			c, r := openTunnel(t, p, address)
			if !echo(c, r, "hello") {
				t.Fatal("the tunnel does not work")
			}
			if got := echo(c, r, "again"); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
