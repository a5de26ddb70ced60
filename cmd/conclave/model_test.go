package main

import (
	"os"
	"strings"
	"testing"

	"conclave/cmd/conclave/internal/cli"
)

// TestPullTerminal looks at the line that is drawn over, and at a pull that is broken off.
func TestPullTerminal(t *testing.T) {
	t.Parallel()
	c := newFixture(t)
	if err := c.models(t.Cleanup); err != nil {
		t.Fatal(err)
	}
	p := c.installation(t)
	pull := p.onTerminal("model", "pull", "prometheus:7b")
	if code, err := pull.wait(); code != cli.ExitOK || err != nil {
		t.Fatalf("it ended with %d, %v: %s", code, err, pull.stdout)
	}
	got := pull.stdout.String()
	if !strings.HasPrefix(got, "\r\x1b[Kprometheus:7b: pulling manifest\r\x1b[Kprometheus:7b: pulling   0 %  0 B of "+
		"4 MB  [--------------------]\r\x1b[K") {
		t.Errorf("%q", got)
	}
	if !strings.HasSuffix(got, "\r\x1b[Kprometheus:7b is available\r\n") || strings.Count(got, "\n") != 1 {
		t.Errorf("it leaves something behind: %q", got)
	}

	endless := p.begin("conclave", "model", "pull", "endless")
	p.must(endless.stderr, "^endless: pulling manifest")
	if code, err := endless.end(os.Interrupt); code != cli.ExitFailed || err != nil ||
		!strings.Contains(endless.stderr.String(), "endless was not fetched: stopped: what was fetched is kept; pull "+
			"again to continue") {
		t.Errorf("broken off: %d, %v, %s", code, err, endless.stderr)
	}
}
