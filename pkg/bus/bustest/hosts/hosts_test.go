package hosts_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"conclave/pkg/bus/bustest/hosts"
)

// The test binary is a server or a client on a host when its environment says so.
const partEnv = "CONCLAVE_TEST_HOST"

func TestMain(m *testing.M) {
	part, addr, _ := strings.Cut(os.Getenv(partEnv), " ")
	switch part {
	case "":
		os.Exit(m.Run())
	case "server":
		serve(addr)
	case "client":
		conn, err := net.DialTimeout("tcp", addr, time.Minute)
		if err != nil {
			fmt.Fprintln(os.Stdout, err)
			os.Exit(1)
		}
		go io.Copy(conn, os.Stdin)
		io.Copy(os.Stdout, conn)
	}
}

// serve returns every byte of every connection.
func serve(addr string) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		fmt.Fprintln(os.Stdout, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stdout, "ready")
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go io.Copy(conn, conn)
	}
}

// TestHosts connects two hosts over real addresses: a cut link carries nothing and its connection survives, and a lossy
// one delivers everything later.
func TestHosts(t *testing.T) {
	if os.Getenv("CONCLAVE_CHAOS") == "" {
		t.Skip("needs root and nftables: runs with CONCLAVE_CHAOS=1")
	}
	t.Parallel()
	all := hosts.Start(t, "hub", "laptop")
	hub, laptop := all[0], all[1]
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	addr := net.JoinHostPort(hub.Addr.String(), "7000")
	start := func(h *hosts.Host, part string) (io.Writer, *bufio.Scanner) {
		ctx, cancel := context.WithCancel(t.Context())
		cmd := h.Command(ctx, exe)
		cmd.Env = append(os.Environ(), partEnv+"="+part+" "+addr)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cancel(); cmd.Wait() })
		return in, bufio.NewScanner(out)
	}
	if _, out := start(hub, "server"); !out.Scan() || out.Text() != "ready" {
		t.Fatalf("the server says %q", out.Text())
	}
	in, out := start(laptop, "client")
	replies := make(chan string, 100)
	go func() {
		for out.Scan() {
			replies <- out.Text()
		}
		close(replies)
	}()
	send := func(line string) { fmt.Fprintln(in, line) }
	expect := func(line string) {
		t.Helper()
		select {
		case got := <-replies:
			if got != line {
				t.Fatalf("received %q, not %q", got, line)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%q did not arrive", line)
		}
	}
	send("one")
	expect("one")
	laptop.Cut()
	send("two")
	select {
	case got := <-replies:
		t.Errorf("%q arrived over a link that is cut", got)
	case <-time.After(300 * time.Millisecond):
	}
	laptop.Heal()
	expect("two")
	laptop.SetLoss(0.3)
	for n := range 20 {
		send(fmt.Sprint(n))
		expect(fmt.Sprint(n))
	}
	laptop.SetLoss(0)
	send("end")
	expect("end")
}
