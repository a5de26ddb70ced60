package main

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/term/termtest"
	"conclave/config"
)

// spinnerFrames are frames of the spinner of conclave ask, with the end of the last.
var spinnerFrames = regexp.MustCompile(`(\r\x1b\[K[|/\\-] [^\r\n]*)+(\r\x1b\[K)?`)

// onTerminal starts the program on a terminal of 100 columns. Its output comes by lines, without the spinner.
func (p *installation) onTerminal(v ...string) *process {
	return p.startOnTerminal(100, func(r *bufio.Reader, to *output) {
		for {
			l, err := r.ReadString('\n')
			_, _ = to.Write([]byte(spinnerFrames.ReplaceAllString(l, "")))
			if err != nil {
				return
			}
		}
	}, v...)
}

// onRawTerminal starts the program on a terminal of so many columns. Its output comes as it is written, with a line
// break before each carriage return.
func (p *installation) onRawTerminal(columns int, v ...string) *process {
	return p.startOnTerminal(columns, func(r *bufio.Reader, to *output) {
		for {
			b, err := r.ReadByte()
			if err != nil {
				return
			}
			_, _ = to.Write([]byte(strings.ReplaceAll(string([]byte{b}), "\r", "\n\r")))
		}
	}, v...)
}

// startOnTerminal starts the program on a terminal, whose output copy passes on until its end.
func (p *installation) startOnTerminal(columns int, copy func(r *bufio.Reader, to *output), v ...string) *process {
	p.t.Helper()
	master, slave := termtest.OpenSize(p.t, columns, 30)
	c := &process{
		cmd: exec.Command("conclave", v...), stdout: newOutput(), stderr: newOutput(),
		done: make(chan struct{}),
	}
	c.cmd.Env, c.cmd.Stdout, c.cmd.Stderr = p.env, slave, slave
	if err := c.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	slave.Close()
	go func() {
		copy(bufio.NewReader(master), c.stdout)
		c.reap()
	}()
	p.t.Cleanup(c.kill)
	return c
}

// TestTerminal looks at what only a user sees: the banner, colours, a table that is drawn over.
func TestTerminal(t *testing.T) {
	t.Parallel()
	p := newInstallation(t)
	up := p.onTerminal("up")
	p.must(up.stdout, `nats --context conclave micro ls`)
	banner := up.stdout.String()
	cfg, err := config.Load("")
	if err != nil {
		t.Fatal(err)
	}
	all := defaultActors(cfg)
	for _, want := range []string{
		"Conclave is ready after ", "nats://127.0.0.1:", p.data, "system.yaml",
		fmt.Sprintf("%d of %d ready: %s", len(all), len(all), strings.Join(all, ", ")),
		"web_search: no SearXNG answers at http://127.0.0.1:1: start it there",
		"the built-in demo model, not a language model", "http://127.0.0.1:",
		`conclave call get_datetime '{"timezone":"UTC"}'`, "\x1b[1m",
	} {
		if !strings.Contains(banner, want) {
			t.Errorf("the banner does not say %q:\n%s", want, banner)
		}
	}
	link := regexp.MustCompile(`http://127\.0\.0\.1:\d+/login\?code=[0-9a-f]+`).FindString(banner)
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if res, err := client.Get(link); err != nil || res.StatusCode != http.StatusSeeOther || len(res.Cookies()) != 1 {
		t.Errorf("the login link %q: %v %v", link, res, err)
	} else {
		res.Body.Close()
	}
	if strings.Contains(banner, "respondent_b") {
		t.Errorf("it tells of a second respondent that is not there:\n%s", banner)
	}
	if strings.Contains(banner, `"pid"`) {
		t.Errorf("a person gets the line for scripts:\n%s", banner)
	}

	p.run(cli.ExitOK, "conclave", "call", "get_datetime", `{"timezone":"UTC"}`)
	verify := p.onTerminal("audit", "verify")
	p.must(verify.stdout, "\x1b\\[32mok\x1b\\[0m the audit log")
	bare := *p
	bare.env = append(append([]string{}, p.env...), "NO_COLOR=1")
	if got := bare.must(bare.onTerminal("audit", "verify").stdout, "ok the audit log"); strings.Contains(got, "\x1b") {
		t.Errorf("colours with NO_COLOR: %q", got)
	}
	// One row per actor that fits, and the subjects of one actor.
	narrow := p.onRawTerminal(60, "top", "--once")
	p.must(narrow.stdout, "^web_search +ready")
	rows := 0
	for l := range strings.Lines(narrow.stdout.String()) {
		if l = strings.Trim(l, "\r\n"); term.Width(l) > 60 {
			t.Errorf("top does not fit into 60 columns: %q", l)
		}
		if strings.HasPrefix(l, "broker ") {
			rows++
		}
	}
	if rows != 1 {
		t.Errorf("top has %d rows for the broker:\n%s", rows, narrow.stdout)
	}
	p.must(p.onTerminal("top", "broker", "--once").stdout, `^agent\.\*\.broker\.discover +ready`)
	top := p.onTerminal("top", "--interval", "100ms")
	p.must(top.stdout, "\x1b\\[[0-9]+A\x1b\\[J") // up to the head of the table, and again
	if code, err := top.end(os.Interrupt); code != cli.ExitOK || err != nil {
		t.Errorf("top ended with %d, %v", code, err)
	}
	if code, err := up.end(os.Interrupt); code != cli.ExitOK || err != nil {
		t.Errorf("up ended with %d, %v: %s", code, err, up.stdout)
	}
	if !strings.Contains(up.stdout.String(), "stopping") {
		t.Errorf("it does not say that it stops: %s", up.stdout)
	}
}
