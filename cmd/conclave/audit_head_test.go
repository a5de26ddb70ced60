package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/bus"
)

// TestEmptiedHeadIsNoticed: a head file that was emptied while conclave was stopped is gone after the next start, and
// doctor says that the end of its chain is not confirmed.
func TestEmptiedHeadIsNoticed(t *testing.T) {
	t.Parallel()
	p := newInstallation(t)
	start := func() *process {
		up := p.begin("conclave", "up")
		p.must(up.stdout, `"pid"`)
		return up
	}
	stop := func(up *process) {
		if code, err := up.end(os.Interrupt); code != cli.ExitOK || err != nil {
			t.Fatalf("it ended with %d, %v: %s", code, err, up.stderr)
		}
	}
	doctor := func(want string) {
		t.Helper()
		c := p.begin("conclave", "doctor")
		if _, err := c.wait(); err != nil || !strings.Contains(c.stdout.String(), want) {
			t.Errorf("no %q: %v\n%s%s", want, err, c.stdout, c.stderr)
		}
	}
	up := start()
	p.run(cli.ExitOK, "conclave", "call", "get_datetime", `{"timezone":"UTC"}`)
	doctor("ok    records")
	stop(up)
	heads, err := filepath.Glob(filepath.Join(bus.Home{Data: p.data}.Heads(), "broker.*"))
	if err != nil || len(heads) != 1 || os.Truncate(heads[0], 0) != nil {
		t.Fatal(heads, err)
	}
	up = start()
	doctor("warn  records    the audit log has 1 problem, first message broker/")
	doctor("the head file " + filepath.Base(heads[0]) + " of the audit log was emptied")
	stop(up)
	if !strings.Contains(up.stderr.String(), "was emptied") {
		t.Errorf("the log does not say it: %s", up.stderr)
	}
}
