package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"conclave/config"
)

// terminalFor opens a pseudo-terminal of 100 by 30 and returns both ends.
func terminalFor(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 100}); err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

// onTerminal starts the program on a terminal.
func (p *place) onTerminal(v ...string) *process {
	p.t.Helper()
	master, slave := terminalFor(p.t)
	c := &process{cmd: exec.Command("conclave", v...), stdout: newOutput(), stderr: newOutput(), done: make(chan struct{})}
	c.cmd.Env, c.cmd.Stdout, c.cmd.Stderr = p.env, slave, slave
	if err := c.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	slave.Close()
	go func() {
		r := bufio.NewReader(master)
		for {
			l, err := r.ReadString('\n')
			_, _ = c.stdout.Write([]byte(l))
			if err != nil {
				break
			}
		}
		c.reap()
	}()
	p.t.Cleanup(c.kill)
	return c
}

// TestTerminal looks at what only a user sees: the banner, colours, a table that is drawn over.
func TestTerminal(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	up := p.onTerminal("up")
	p.must(up.stdout, `nats --context conclave micro ls`)
	banner := up.stdout.String()
	cfg, err := config.Load("")
	if err != nil {
		t.Fatal(err)
	}
	all := usual(cfg)
	for _, want := range []string{"Conclave is ready after ", "nats://127.0.0.1:", p.data, "system.yaml", fmt.Sprintf("%d of %d ready: %s", len(all), len(all), strings.Join(all, ", ")), "web_search: SearXNG does not answer at http://127.0.0.1:1: start it there", "a script, NOT a model", "http://127.0.0.1:", `conclave call get_datetime '{"timezone":"UTC"}'`, "\x1b[1m"} {
		if !strings.Contains(banner, want) {
			t.Errorf("the banner does not say %q:\n%s", want, banner)
		}
	}
	if strings.Contains(banner, "respondent_b") {
		t.Errorf("it tells of a second respondent that is not there:\n%s", banner)
	}
	if strings.Contains(banner, `"pid"`) {
		t.Errorf("a person gets the line for scripts:\n%s", banner)
	}

	p.run(exitDone, "conclave", "call", "get_datetime", `{"timezone":"UTC"}`)
	verify := p.onTerminal("audit", "verify")
	p.must(verify.stdout, "\x1b\\[32mok\x1b\\[0m the audit")
	bare := *p
	bare.env = append(append([]string{}, p.env...), "NO_COLOR=1")
	if got := bare.must(bare.onTerminal("audit", "verify").stdout, "ok the audit"); strings.Contains(got, "\x1b") {
		t.Errorf("colours with NO_COLOR: %q", got)
	}
	top := p.onTerminal("top", "--interval", "100ms")
	p.must(top.stdout, "\x1b\\[[0-9]+A\x1b\\[J") // up to the head of the table, and again
	if code, err := top.end(os.Interrupt); code != exitDone || err != nil {
		t.Errorf("top ended with %d, %v", code, err)
	}
	if code, err := up.end(os.Interrupt); code != exitDone || err != nil {
		t.Errorf("up ended with %d, %v: %s", code, err, up.stdout)
	}
	if !strings.Contains(up.stdout.String(), "stopping") {
		t.Errorf("it does not say that it stops: %s", up.stdout)
	}
}
