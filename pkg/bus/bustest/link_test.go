package bustest_test

import (
	"bufio"
	"io"
	"net"
	"testing"
	"time"

	"conclave/pkg/bus/bustest"
)

// dialEcho connects to a server that returns every line, through a link.
func dialEcho(t *testing.T) (*bustest.Link, func() net.Conn) {
	t.Helper()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	link := bustest.StartLink(t, server.Addr().String())
	return link, func() net.Conn {
		c, err := net.Dial("tcp", link.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		return c
	}
}

func TestLink(t *testing.T) {
	t.Parallel()
	link, dial := dialEcho(t)
	echo := func(c net.Conn, line string) error {
		if _, err := io.WriteString(c, line+"\n"); err != nil {
			return err
		}
		got, err := bufio.NewReader(c).ReadString('\n')
		if err == nil && got != line+"\n" {
			t.Errorf("sent %q, received %q", line, got)
		}
		return err
	}
	c := dial()
	if err := echo(c, "up"); err != nil {
		t.Fatal(err)
	}
	// A frozen link passes nothing and loses nothing.
	link.Freeze()
	if _, err := io.WriteString(c, "frozen\n"); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes came through a frozen link", n)
	}
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	link.Heal()
	if got, err := bufio.NewReader(c).ReadString('\n'); err != nil || got != "frozen\n" {
		t.Errorf("after the freeze: %q, %v", got, err)
	}
	link.SetDelay(20 * time.Millisecond)
	link.SetLoss(0.5, 1)
	begun := time.Now()
	if err := echo(c, "slow"); err != nil || time.Since(begun) < 40*time.Millisecond {
		t.Errorf("a delayed link: %v after %s", err, time.Since(begun))
	}
	link.SetDelay(0)
	link.SetLoss(0, 0)
	// A cut link breaks its connections and rejects new ones.
	link.Cut()
	if err := echo(c, "cut"); err == nil {
		t.Error("a line came through a cut link")
	}
	if c, err := net.Dial("tcp", link.Addr()); err == nil {
		if err := echo(c, "cut"); err == nil {
			t.Error("a new connection came through a cut link")
		}
		c.Close()
	}
	link.Heal()
	if err := echo(dial(), "healed"); err != nil {
		t.Error(err)
	}
}
