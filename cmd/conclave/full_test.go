package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/cmd/conclave/internal/cli"
	"conclave/pkg/actor"
	"conclave/subjects"
)

// TestFullAudit fills the audit: calls are refused and say what to do, the doctor sees it, a rotation mends it.
func TestFullAudit(t *testing.T) {
	t.Parallel()
	p := newInstallation(t)
	if err := os.WriteFile(filepath.Join(p.dir, "config", "conclave", "system.yaml"), []byte(system+"audit_max: 1MB\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	up := p.begin("conclave", "up")
	var r readiness
	if err := json.Unmarshal([]byte(p.must(up.stdout, `"pid"`)), &r); err != nil {
		t.Fatal(err)
	}
	a := cli.New(nil, os.Stdout, os.Stderr)
	a.Home.Data, a.Server = p.data, r.URL
	c, done, err := a.Connect("operator")
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	out := c.Out()
	ask, err := subjects.ToolRequestService.With("get_datetime")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*waitTimeout)
	defer cancel()
	// fill calls until the audit takes no record of this size.
	fill := func(out actor.Out) {
		for {
			res, err := actor.Ask(ctx, out, ask,
				subjects.ToolRequest{CallID: out.NewID(), Args: []byte(`{"timezone":"UTC"}`)})
			if err != nil {
				t.Error(err)
				return
			}
			if res.Error != nil && res.Error.Code == subjects.CodeNoAudit {
				return
			}
		}
	}
	begin := time.Now()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			fill(out.WithIDs(strings.Repeat("s", subjects.MaxToken), strings.Repeat("q", subjects.MaxToken)))
		})
	}
	wg.Wait()
	fill(out) // where a long record has no room, a short one may
	t.Logf("full after %s", time.Since(begin))

	call := p.begin("conclave", "call", "get_datetime", `{"timezone":"UTC"}`)
	if code, err := call.wait(); code != cli.ExitFailed || err != nil ||
		!strings.Contains(call.stderr.String(), "conclave audit rotate") {
		t.Errorf("a call with a full audit: %d, %v, %s", code, err, call.stderr)
	}
	recorded := 0 // the record of a schedule is short: one may have found room, though not for its outcome
	for {
		add := p.begin("conclave", "schedule", "add", "daily 8:00", "what is new", "--timezone", "UTC")
		code, err := add.wait()
		if strings.Contains(add.stderr.String(), subjects.CodeUnrecorded) && recorded < 2 {
			recorded++
			continue
		}
		if code != cli.ExitFailed || err != nil || !strings.Contains(add.stderr.String(), "the audit is full, so "+
			"nothing was run or changed; stop conclave and run conclave audit rotate") {
			t.Errorf("a schedule with a full audit: %d, %v, %s", code, err, add.stderr)
		}
		break
	}
	if got := p.run(cli.ExitOK, "conclave", "schedule", "list", "--json"); strings.Count(got, `"query"`) != recorded {
		t.Errorf("%d schedules have a record: %s", recorded, got)
	}
	if got := p.run(cli.ExitOK, "conclave", "doctor"); !strings.Contains(got, "warn  audit ") ||
		!strings.Contains(got, "conclave audit rotate") {
		t.Errorf("the doctor does not see it:\n%s", got)
	}
	if code, err := up.end(os.Interrupt); code != cli.ExitOK || err != nil {
		t.Errorf("it ended with %d, %v: %s", code, err, up.stderr)
	}
	p.run(cli.ExitOK, "conclave", "audit", "rotate")
	p.up()
	p.run(cli.ExitOK, "conclave", "call", "get_datetime", `{"timezone":"UTC"}`)
	p.run(cli.ExitOK, "conclave", "audit", "verify")
}
