package broker

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// TestGrantsArePublished: what a question permits is an event before any tool runs, once for each question, and none
// with a dry run.
func TestGrantsArePublished(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "Save a note 'fish' and read https://fish.example/")
	published := func() (out []subjects.Grants) {
		for _, p := range h.rec.Published() {
			if p.Subject != "event.query.grants.q1" {
				continue
			}
			var g subjects.Grants
			if err := json.Unmarshal([]byte(p.Body), &g); err != nil {
				t.Fatal(err)
			}
			out = append(out, g)
		}
		return out
	}
	h.dryRunResult(t, "generator", "web_fetch", `{"url":"https://fish.example/"}`)
	if got := published(); len(got) != 0 {
		t.Errorf("a dry run published %+v", got)
	}
	for range 2 {
		h.runTool(t, "generator", "web_fetch", `{"url":"https://fish.example/"}`)
	}
	got := published()
	if len(got) != 1 || got[0].SessionID != "s1" || got[0].QueryID != "q1" || len(got[0].Grants) != 2 ||
		got[0].Grants[0].Acts[0] != "create" || got[0].Grants[0].Clause != "Save a note 'fish' and" {
		t.Errorf("%+v", got)
	}
}

// TestGrantIsClaimedBeforeTheCallRuns: of concurrent calls that one order permits, one runs; the others ask. A call
// with a claim is not claimed again when it is retried.
func TestGrantIsClaimedBeforeTheCallRuns(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "Read https://fish.example/ and save a note 'fish'")
	h.approveSlowly(t, func(int) {}) // the user's decision does not matter here
	if res := h.runTool(t, "generator", "web_fetch", `{"url":"https://fish.example/"}`); outcomeText(res) != "ok" {
		t.Fatal(outcomeText(res))
	}
	if got := h.dryRunResult(t, "generator", "save_memory", `{"content":"fish"}`); got != "ok" {
		t.Fatal(got)
	}
	asked := policy.Call{Tool: h.table.build["save_memory"].Tool, Flow: h.flowOf(t, "s1")}
	var mu sync.Mutex
	claimed := 0
	var wg sync.WaitGroup
	for _, id := range []string{"c1", "c2", "c3", "c4"} {
		wg.Go(func() {
			j := stage.Judge(t.Context(), policy.Rules{Chain: policy.Chain{askLayer{}}}, stage.Received{
				ID: id, Tool: "save_memory", Session: "s1", Query: "q1", Caller: callerOf("generator"),
				Args: json.RawMessage(`{"content":"fish"}`), Record: subjects.AuditRecord{ParamsHash: "p"},
			}, asked, nil)
			for range 2 { // the second is a retry
				_, ok, err := j.Allow(func(change func(*policy.Flow) *policy.Flow) error {
					return h.updateFlow(t.Context(), h.rec.Out(), "s1", change)
				})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				if ok {
					claimed++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if claimed != 2 {
		t.Errorf("%d claims succeeded, want one call and its retry", claimed)
	}
	if got := h.dryRunResult(t, "generator", "save_memory", `{"content":"fish"}`); got != "asks flow: act" {
		t.Errorf("after it is used: %s", got)
	}
}

// TestMonitoredCallClaimsNoGrant: a call that only a monitor-only rule of the flow layer lets pass runs, although its
// question grants nothing that it could claim. A monitor-only rule of another layer changes nothing: the grant is
// claimed.
func TestMonitoredCallClaimsNoGrant(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		monitored, question string
		asked               int // approvals for two calls
	}{
		{"flow.act, flow.anchor", "What is on https://fish.example/ about fish?", 0},
		{"limits.repeated", "Read https://fish.example/ and save a note 'fish'", 1},
	} {
		h := newSessionFixture(t, withLongApprovalWait)
		h.rules.Replace(parseRules(t, sessionManifest+"monitor_only: ["+tt.monitored+"]\n"))
		h.addTurn("s1", "q1", tt.question)
		asked := h.approveSlowly(t, func(int) {})
		if res := h.runTool(t, "generator", "web_fetch", `{"url":"https://fish.example/"}`); outcomeText(res) != "ok" {
			t.Fatal(outcomeText(res))
		}
		for range 2 {
			if got := outcomeText(h.runTool(t, "generator", "save_memory", `{"content":"fish"}`)); got != "ok" {
				t.Errorf("%s: %s", tt.monitored, got)
			}
		}
		if asked() != tt.asked {
			t.Errorf("%s: %d approvals, want %d", tt.monitored, asked(), tt.asked)
		}
	}
}

// TestManifestDeclaresForeignTools: a tool outside the build has the facts of the manifest, and without them none: it
// is unknown.
func TestManifestDeclaresForeignTools(t *testing.T) {
	t.Parallel()
	declared := map[string]policy.Tool{}
	tb := newTable(nil, func(tool string) (policy.Tool, bool) { f, ok := declared[tool]; return f, ok })
	s := subjects.ToolSchema{Name: "fs_write", Parameters: json.RawMessage(`{"type":"object"}`)}
	if err := tb.add("tools", s, Pin(s)); err != nil {
		t.Fatal(err)
	}
	if k, ok := tb.get("fs_write"); !ok || k.Known || !k.Has(policy.Exec) {
		t.Errorf("without facts: %+v", k.Tool)
	}
	facts, err := policy.ToolFacts{Act: "change", Effects: []string{}, Args: map[string]string{"path": "id"}}.Tool(
		"other", "other")
	if err != nil {
		t.Fatal(err)
	}
	declared["fs_write"] = facts
	if k, ok := tb.get("fs_write"); !ok || !k.Known || k.Name != "fs_write" || k.Zone != "tools" ||
		k.Act != policy.ActChange || k.Has(policy.Exec) || !k.Has(policy.Mutate) || k.Pin != Pin(s) {
		t.Errorf("with facts: %+v", k)
	}
	if all := tb.all(); len(all) != 1 || all[0].Act != policy.ActChange {
		t.Errorf("%+v", all)
	}
}

// TestEmptyPinMatchesNothing: a tool without a pinned hash is not registered, also when its own definition has no hash.
func TestEmptyPinMatchesNothing(t *testing.T) {
	t.Parallel()
	tb := newTable(nil, func(string) (policy.Tool, bool) { return policy.Tool{}, false })
	s := subjects.ToolSchema{Name: "fs_write", Parameters: json.RawMessage(`{`)}
	if err := tb.add("tools", s, ""); err == nil || Pin(s) != "" || !strings.Contains(err.Error(), "definition") {
		t.Errorf("registered: %v", err)
	}
}
