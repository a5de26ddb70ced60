package acceptance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"conclave/actors/broker/replay"
	"conclave/pkg/client"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/tool/conclavetool"
	"conclave/subjects"
)

// checkReplay judges the recorded call by the rules in force, which change nothing, and by rules that always ask for
// the tool.
func (f *userToolFixture) checkReplay() {
	f.t.Helper()
	var events []client.Event
	for e, err := range f.user.EventsBack(f.t.Context(), replay.Subject) {
		if err != nil {
			f.t.Fatal(err)
		}
		events = append(events, e)
	}
	principals, err := f.user.Principals(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	m := f.settings.Manifest
	for _, want := range []string{"", "approval.always"} {
		rules, err := f.settings.ReplayRules(m, f.home, principals)
		if err != nil {
			f.t.Fatal(err)
		}
		rep, err := replay.Run(f.t.Context(), rules, events)
		if err != nil || rep.Calls != 1 || len(rep.Unjudged)+len(rep.Damaged) > 0 {
			f.t.Fatalf("replay: %+v, %v", rep, err)
		}
		if want == "" && rep.Unchanged != 1 || want != "" &&
			(rep.Changed != 1 || !strings.Contains(rep.Changes[0].Calls[0].After, want)) {
			f.t.Errorf("replay: %+v, want a change to %q", rep, want)
		}
		m.AlwaysAsk = append(slices.Clone(m.AlwaysAsk), f.name)
	}
}

// TestDemoModelCallsAddedTool: the question of docs/tools.md, to the system without a model server. The built-in demo
// model calls the tool through the broker, which asks the user first because the tool is undeclared, and answers with
// the result.
func TestDemoModelCallsAddedTool(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/tools.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile(`(?m)^conclave ask '(.*)' +#`).FindSubmatch(page)
	if example == nil {
		t.Fatal("docs/tools.md has no example of conclave ask")
	}
	server := modeltest.New(t, scriptserver.Script{})
	server.Close()
	f := startUserToolSystem(t, "word_count", server.URL)
	f.addDeclared("go", subjects.ToolDeclaration{Agents: []string{"assistant"}})
	cfg, err := conclavetool.ReadConfig(filepath.Join(f.dir, "conclave.json"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		d := conclavetool.Definition{
			Name: f.name, Description: "Returns its arguments.",
			Parameters: json.RawMessage(`{"type":"object"}`), Version: "1",
		}
		ended <- conclavetool.Serve(ctx, cfg, d, func(_ context.Context, args json.RawMessage) (string, error) {
			return "called with " + string(args), nil
		})
	}()
	f.await(subjects.ToolReady)
	approved := make(chan error, 1)
	go func() {
		for l, err := range f.user.WatchApprovals(ctx) {
			if err != nil || len(l.Approvals) == 0 {
				continue
			}
			r, err := f.user.DecideApproval(ctx, l.Approvals[0].ID, subjects.ApprovalDecision{Approve: true})
			if err == nil && (!r.Accepted || l.Approvals[0].Tool != f.name) {
				err = fmt.Errorf("approving %+v: %+v", l.Approvals[0], r)
			}
			approved <- err
			return
		}
		approved <- errors.New("nothing was asked")
	}()
	if r := askQuestion(t, f.user, "s1", string(example[1])); !strings.Contains(r.Answer,
		`called with {"text":"to be or not to be"}`) {
		t.Errorf("answer %q", r.Answer)
	}
	f.checkReplay()
	stop()
	if err := <-approved; err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
