package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/sandbox"
)

// roleEnv has the test binary run as a process of [TestKilledProcess].
const roleEnv = "CONCLAVE_TEST_EGRESS"

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "":
		os.Exit(m.Run())
	case "proxy": // prints the socket and waits to be killed
		p, err := Start(Settings{Limit: 1})
		if err != nil {
			panic(err)
		}
		fmt.Fprintln(os.Stdout, p.Socket)
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "next": // is the start of a later process
		_ = sandbox.SelfTest(context.Background())
	}
}

// TestKilledProcess: what a killed process leaves is removed at the next start. The socket of a process that lives
// stays, and so does a folder of another user.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	command := func(role string) *exec.Cmd {
		c := exec.Command(os.Args[0])
		c.Env = []string{"TMPDIR=" + temp, roleEnv + "=" + role}
		return c
	}
	start := func() (c *exec.Cmd, socket string) {
		c = command("proxy")
		if _, err := c.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = c.Process.Kill()
			_ = c.Wait()
		})
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return c, strings.TrimSpace(line)
	}
	killed, left := start()
	_, alive := start()
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait()
	foreign := filepath.Join(temp, "conclave-sandbox-foreign")
	if err := os.Mkdir(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(foreign, 65533, 65533); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(left); err != nil {
		t.Fatalf("the killed process left no socket: %v", err)
	}
	if out, err := command("next").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := os.Stat(filepath.Dir(left)); !os.IsNotExist(err) {
		t.Errorf("the folder of the killed process: %v, want it removed", err)
	}
	c, err := net.Dial("unix", alive)
	if err != nil {
		t.Fatalf("the proxy of a live process: %v", err)
	}
	c.Close()
	if _, err := os.Stat(foreign); err != nil && os.Geteuid() == 0 {
		t.Errorf("the folder of another user: %v", err)
	}
}

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
	c, r, status := connect(t, p, address)
	if status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	return c, r
}

// connect requests a tunnel to address, and returns the status of the response.
func connect(t *testing.T, p *Proxy, address string) (net.Conn, *bufio.Reader, int) {
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
	if err != nil {
		t.Fatal(err)
	}
	return c, r, resp.StatusCode
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

// Only a host of the settings is connected to, and only at an address that Check accepts.
func TestDeniedHostsAndAddresses(t *testing.T) {
	t.Parallel()
	var asked []string
	p, address := startEcho(t, Settings{Limit: 1 << 20, Check: func(host string, a netip.Addr) error {
		asked = append(asked, host+" "+a.String())
		return errors.New("denied")
	}})
	if _, _, status := connect(t, p, address); status != http.StatusBadGateway ||
		!slices.Equal(asked, []string{"127.0.0.1 127.0.0.1"}) {
		t.Errorf("an address that is denied: %d, asked for %q", status, asked)
	}
	other, otherAddress := startEcho(t, Settings{Limit: 1 << 20})
	if _, _, status := connect(t, other, address); status != http.StatusForbidden {
		t.Errorf("a host of other settings: %d", status)
	}
	openTunnel(t, other, otherAddress)
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
	for end := time.Now().Add(time.Minute); ; <-time.After(time.Millisecond) {
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
