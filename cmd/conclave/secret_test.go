package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"conclave/actors/secrets"
	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term/termtest"
	"conclave/pkg/keyring"
)

// typing is a process on a terminal that a test types on.
type typing struct {
	*process
	shown         *output // what stands on the terminal; more may come after the end of the process
	master, slave *os.File
}

// echoes reports whether the terminal shows what is typed.
func (p *typing) echoes(t *testing.T) bool {
	t.Helper()
	state, err := unix.IoctlGetTermios(int(p.slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return state.Lflag&unix.ECHO != 0
}

// hides waits until it does not: the question comes first, and a terminal does not tell when it has changed.
func (p *typing) hides(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(waitTimeout); p.echoes(t); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("the terminal shows what is typed: %s", p.shown)
		}
	}
}

// typeAt starts a command whose three streams are a terminal.
func (p *installation) typeAt(v ...string) *typing {
	p.t.Helper()
	master, slave := termtest.Open(p.t)
	c := &process{
		cmd: exec.Command("conclave", v...), stdout: newOutput(), stderr: newOutput(),
		done: make(chan struct{}),
	}
	shown := newOutput()
	c.cmd.Env, c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = p.env, slave, slave, slave
	if err := c.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		r := bufio.NewReader(master)
		for {
			b, err := r.ReadByte()
			if err != nil {
				return
			}
			if b == ':' {
				_, _ = shown.Write([]byte{b, '\n'}) // a prompt has no end of its own
				continue
			}
			_, _ = shown.Write([]byte{b})
		}
	}()
	go c.reap()
	p.t.Cleanup(c.kill)
	return &typing{c, shown, master, slave}
}

// noDesktop keeps a test away from the desktop and the pass of whoever runs it.
func (p *installation) noDesktop() {
	p.env = append(p.env, "DBUS_SESSION_BUS_ADDRESS=unix:path="+filepath.Join(p.dir, "nobus"), "PASSWORD_STORE_DIR="+
		filepath.Join(p.dir, "nopass"))
}

// TestSecretTyped types a value at the prompt: it is not shown, and kept as it was typed.
func TestSecretTyped(t *testing.T) {
	t.Parallel()
	p := newInstallation(t)
	p.noDesktop()
	c := p.typeAt("secret", "set", "typed")
	p.must(c.shown, "value of typed .not shown.")
	c.hides(t)
	if _, err := io.WriteString(c.master, "canary-typed\n"); err != nil {
		t.Fatal(err)
	}
	if code, err := c.wait(); code != cli.ExitOK || err != nil {
		t.Fatalf("%d, %v: %s", code, err, c.shown)
	}
	if strings.Contains(c.shown.String(), "canary") {
		t.Errorf("the terminal shows it: %s", c.shown)
	}
	if !c.echoes(t) {
		t.Error("the terminal stays silent")
	}
	r, _, err := keyring.Open(t.Context(), secrets.Config{Backend: keyring.Auto}.Ring(p.data))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.Get(t.Context(), "typed"); err != nil || string(got.Reveal()) != "canary-typed" {
		t.Errorf("%q, %v", got.Reveal(), err)
	}
}

// TestSecretGivenUp interrupts the prompt: nothing is kept, and the terminal is as it was.
func TestSecretGivenUp(t *testing.T) {
	t.Parallel()
	p := newInstallation(t)
	p.noDesktop()
	c := p.typeAt("secret", "set", "typed")
	p.must(c.shown, "value of typed .not shown.")
	c.hides(t)
	if code, err := c.end(os.Interrupt); code != cli.ExitFailed || err != nil {
		t.Errorf("%d, %v: %s", code, err, c.shown)
	}
	if !c.echoes(t) {
		t.Error("the terminal stays silent")
	}
	if _, err := os.Stat(filepath.Join(p.data, "keyring", "file", "typed")); err == nil {
		t.Error("something was kept")
	}
}
