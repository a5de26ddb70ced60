package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/client"
)

// up starts a system and returns its bus.
func (p *installation) up() *bus.Bus {
	p.t.Helper()
	var r readiness
	line := p.must(p.begin("conclave", "up").stdout, `"pid"`)
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		p.t.Fatal(err)
	}
	return &bus.Bus{URL: r.URL, Keys: bus.Keys{Dir: filepath.Join(p.data, "keys")}}
}

func (p *installation) as(b *bus.Bus, role string) *nats.Conn {
	p.t.Helper()
	return bustest.Dial(p.t, b, role)
}

// feedback says something as the user and returns when it is stored.
func feedback(t *testing.T, nc *nats.Conn, i int) {
	t.Helper()
	m := &nats.Msg{
		Subject: "user.feedback", Header: nats.Header{"Conclave-Session": {"s1"}},
		Data: fmt.Appendf(nil, `{"n": %d}`, i),
	}
	// What a writer puts there must not matter: the tap reads what the server has appended.
	m.Header["Nats-Sequence"], m.Header["Nats-Subject"] = []string{"1"}, []string{"from.broker.user.feedback"}
	if _, err := nc.RequestMsg(m, 30*time.Second); err != nil {
		t.Fatal(err)
	}
}

// TestTapLive shows what the user says itself once, with its author, and goes from the replay to live without a gap or
// a double, while somebody speaks all the time.
func TestTapLive(t *testing.T) {
	t.Parallel()
	p := newInstallation(t)
	nc := p.as(p.up(), "user")
	n := 0
	for ; n < 100; n++ {
		feedback(t, nc, n)
	}
	tap := p.begin("conclave", "tap", "--since", "1", "--json")
	deadline := time.Now().Add(waitTimeout)
	for last := -1; last != 0; n++ { // before, while and after it goes from the replay to live
		feedback(t, nc, n)
		switch {
		case last > 0:
			last--
		case strings.Contains(tap.stderr.String(), "watching"):
			last = 100
		case time.Now().After(deadline):
			t.Fatalf("it does not listen: %s", tap.stderr)
		}
	}
	if err := nc.Publish("query.received", []byte("What is the capital of France?")); err != nil {
		t.Fatal(err)
	}
	p.must(tap.stdout, `"subject":"query.received".*"body":"What is the capital of France\?"`)
	p.must(tap.stdout, fmt.Sprintf(`"body":\{"n":%d\}`, n-1)) // stored messages may come later than others
	if code, err := tap.end(os.Interrupt); code != cli.ExitOK || err != nil {
		t.Errorf("it ended with %d, %v", code, err)
	}
	next, at := 0, uint64(0)
	for l := range strings.Lines(tap.stdout.String()) {
		var s struct {
			client.Event
			Body json.RawMessage `json:"body"`
		}
		if err := json.Unmarshal([]byte(l), &s); err != nil {
			t.Fatal(err)
		}
		if s.Subject != "user.feedback" {
			continue
		}
		// reward has its say in between
		if want := fmt.Sprintf(`{"n":%d}`, next); string(s.Body) != want || s.From != "user" || s.Session != "s1" ||
			s.Seq <= at {
			t.Fatalf("message %d is %s", next, l)
		}
		next, at = next+1, s.Seq
	}
	if next != n {
		t.Errorf("%d of %d messages shown", next, n)
	}
	if strings.Contains(tap.stdout.String(), "_INBOX") || strings.Count(tap.stdout.String(), "query.received") != 1 {
		t.Errorf("it shows too much: %s", tap.stdout)
	}
}

// TestTapPipe closes or forgets the reading end.
func TestTapPipe(t *testing.T) {
	t.Parallel()
	p := newInstallation(t)
	nc := p.as(p.up(), "user")
	start := func() (*exec.Cmd, *output, io.ReadCloser) {
		cmd := exec.Command("conclave", "tap", "--json")
		talk := newOutput()
		cmd.Env, cmd.Stderr = p.env, talk
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		p.must(talk, "watching")
		return cmd, talk, out
	}
	ended := func(cmd *exec.Cmd, talk *output) {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("%v: %s", err, talk)
			}
		case <-time.After(waitTimeout):
			t.Errorf("it hangs: %s", talk)
		}
	}
	t.Run("closed", func(t *testing.T) {
		cmd, talk, out := start()
		out.Close()
		feedback(t, nc, 1)
		ended(cmd, talk)
	})
	t.Run("never read", func(t *testing.T) {
		cmd, talk, out := start()
		defer out.Close()
		big := strings.Repeat("x", 200<<10) // more than a pipe holds
		for range 3 {
			if _, err := nc.Request("query.received", []byte(big), 30*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		ended(cmd, talk)
	})
	t.Run("told twice", func(t *testing.T) {
		cmd, talk, out := start()
		defer out.Close()
		if _, err := nc.Request("query.received", []byte(strings.Repeat("x", 200<<10)), 30*time.Second); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil { // now it is in the middle of the line
			t.Fatal(err)
		}
		for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			if err := cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != cli.ExitFailed {
			t.Errorf("%v: %s", err, talk)
		}
	})
}

// TestAuditFollow sees a record come.
func TestAuditFollow(t *testing.T) {
	t.Parallel()
	p := newInstallation(t)
	p.up()
	tail := p.begin("conclave", "audit", "tail", "-f")
	p.must(tail.stdout, "audit.genesis")
	p.run(cli.ExitOK, "conclave", "call", "get_datetime", `{"timezone":"UTC"}`)
	p.must(tail.stdout, "after .* tool.call get_datetime .* ok ")
	if code, err := tail.end(os.Interrupt); code != cli.ExitOK || err != nil {
		t.Errorf("it ended with %d, %v: %s", code, err, tail.stderr)
	}
}
