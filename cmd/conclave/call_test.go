package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"conclave/cmd/conclave/internal/cli"
)

// A call that needs the user's approval says what it waits for and how to decide. When it stops waiting, at its timeout
// or by an interrupt, its request is withdrawn: it is no longer listed, and a later approval says so and runs nothing.
func TestCallWithdrawsApprovalWhenItStopsWaiting(t *testing.T) {
	t.Parallel()
	p := newInstallation(t)
	shipped, err := os.ReadFile("../../config/manifest.yaml")
	if err != nil {
		t.Fatal(err)
	}
	manifest := strings.Replace(string(shipped), "always_ask: [package_install]", "always_ask: [get_datetime]", 1)
	if err := os.WriteFile(filepath.Join(p.dir, "config", "conclave", "manifest.yaml"), []byte(manifest),
		0o600); err != nil {
		t.Fatal(err)
	}
	p.up()
	args := []string{"call", "get_datetime", `{"timezone":"UTC"}`}
	waiting := regexp.MustCompile(
		`^waiting for you: get_datetime \{"timezone":"UTC"\} \(get_datetime needs your approval each ` +
			`time\); decide with: conclave approve ([0-9a-f]{8}), or --deny ([0-9a-f]{8})\n$`)
	begin := func(more ...string) (*process, string) {
		c := p.begin("conclave", append(args, more...)...)
		found := waiting.FindStringSubmatch(p.must(c.stderr, "waiting for"))
		if found == nil {
			t.Fatalf("not announced: %s", c.stderr)
		}
		return c, found[1]
	}
	end := func(c *process, code int, text string) {
		t.Helper()
		if got, err := c.wait(); err != nil || got != code ||
			!strings.Contains(c.stderr.String()+c.stdout.String(), text) {
			t.Errorf("%d, want %d, %v, want %q:\n%s%s", got, code, err, text, c.stderr, c.stdout)
		}
	}

	timedOut, first := begin("--timeout", "2s")
	end(timedOut, cli.ExitDenied, "get_datetime was not run: no decision within --timeout; the request for approval "+
		"is withdrawn")
	interrupted, second := begin()
	if err := interrupted.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	end(interrupted, cli.ExitDenied, "get_datetime was not run: interrupted; the request for approval is withdrawn")
	if list := p.run(cli.ExitOK, "conclave", "approve"); list != "" {
		t.Errorf("still open:\n%s", list)
	}
	for _, id := range []string{first, second} {
		c := p.begin("conclave", "approve", id, "--yes")
		end(c, cli.ExitFailed, "the request was withdrawn and nothing was run")
	}

	approved, third := begin()
	p.run(cli.ExitOK, "conclave", "approve", third, "--yes")
	end(approved, cli.ExitOK, "UTC)")
}
