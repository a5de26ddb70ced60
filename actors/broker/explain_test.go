package broker

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

// validateCall requests a dry run as the caller.
func (h *sessionFixture) validateCall(t testing.TB, who, session, query, tool, args string) (subjects.Verdict, error) {
	t.Helper()
	c := callerOf(who)
	subject := "agent." + c.Account + ".broker.validate"
	for _, p := range c.Path {
		subject += "." + p
	}
	var v subjects.Verdict
	err := h.deliver(t, subject, session, query, subjects.ToolRequest{Tool: tool, Args: json.RawMessage(args)}, &v)
	return v, err
}

// dryRunResult returns the verdict of a dry run: ok, the questions, or layer and rule of the denial.
func (h *sessionFixture) dryRunResult(t testing.TB, who, tool, args string) string {
	t.Helper()
	v, err := h.validateCall(t, who, "s1", "q1", tool, args)
	if err != nil {
		return faultText(err)
	}
	return verdictText(v)
}

func verdictText(v subjects.Verdict) string {
	switch {
	case v.Denial != nil:
		return v.Denial.Layer + ": " + v.Denial.Rule
	case len(v.Asks) > 0:
		s := "asks"
		for _, a := range v.Asks {
			s += " " + a.Layer + ": " + a.Rule
		}
		return s
	case v.Allowed:
		return "ok"
	}
	return "nothing"
}

// explainAs requests a dry run through policy.explain.
func (h *sessionFixture) explainAs(t testing.TB, who string, q subjects.ExplainRequest) (subjects.Verdict, error) {
	t.Helper()
	var v subjects.Verdict
	err := h.deliver(t, "ctl."+who+".policy.explain", "", "", q, &v)
	return v, err
}

// TestDryRuns: validate and explain return the verdict that the call would get.
func TestDryRuns(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, who, tool, args string
		want                  string
	}{
		{"allowed", "generator", "web_search", `{"query":"fish"}`, "ok"},
		{"without arguments", "generator", "get_datetime", ``, "ok"},
		{"not in the manifest", "committee", "web_search", `{"query":"fish"}`, "manifest: not_in_set"},
		{"an unknown tool", "generator", "teleport", `{}`, "tool: unknown_tool"},
		{"a tool of the manifest that is not running", "generator", "fs_read", `{}`, "tool: unknown_tool"},
		{"a tool that needs approval", "generator", "run_shell", `{"command":"ls"}`, "asks approval: high_risk"},
		{"no approval for the user's own call", "operator", "run_shell", `{"command":"ls"}`, "ok"},
		{"a spawned agent", "child", "web_search", `{"query":"fish"}`, "ok"},
		{"a spawned agent without the tool", "child", "run_shell", `{}`, "manifest: not_in_set"},
		{"a denied host", "generator", "web_fetch", `{"url":"http://localhost/"}`, "egress: denied_host"},
		{"an invalid URL", "generator", "web_fetch", `{"url":"fish"}`, "egress: address"},

		{
			"trick: unregistered agent", "generator.researcher-0", "web_search", `{"query":"fish"}`,
			"manifest: unregistered",
		},
		{"trick: arguments as a list", "generator", "web_search", `[]`, "tool: malformed"},
		{"trick: argument in another case", "generator", "web_search", `{"Query":"fish"}`, "arguments: misspelling"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newSessionFixture(t)
			h.addTurn("s1", "q1", "search for fish")
			who := tt.who
			if who == "child" {
				who = h.mustSpawn(t, "generator", "s1", subjects.SpawnRequest{Type: "researcher"})
			}
			h.recentEvents()
			o := len(h.records)
			if got := h.dryRunResult(t, who, tt.tool, tt.args); got != tt.want {
				t.Errorf("validate: %s, want %s", got, tt.want)
			}
			var args json.RawMessage
			if tt.args != "" {
				args = json.RawMessage(tt.args)
			}
			v, err := h.explainAs(t, "user", subjects.ExplainRequest{
				As: who, Tool: tt.tool, Args: args,
				SessionID: "s1", QueryID: "q1",
			})
			if err != nil || verdictText(v) != tt.want {
				t.Errorf("explain: %s, %v, want %s", verdictText(v), err, tt.want)
			}
			if got := h.recentEvents(); got != "before shown; before shown" {
				t.Errorf("on record %s", got)
			}
			for i, by := range []string{who, "user"} {
				r := h.records[o+i]
				if r.AgentID != by || r.Action != "broker.validate" || r.Tool != tt.tool || r.Session != "s1" ||
					r.Query != "q1" || r.ParamsHash == "" ||
					strings.Join(r.Lineage, ".") != strings.Join(callerOf(who).Lineage(), ".") {
					t.Errorf("record %+v", r)
				}
			}
			if len(h.rec.Published()) != 0 {
				t.Errorf("said %v", h.rec.Published())
			}
		})
	}
}

// TestExplainDenials: a malformed or denied explain request gets no verdict, nor does one without a record.
func TestExplainDenials(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		q    subjects.ExplainRequest
	}{
		{"no caller", subjects.ExplainRequest{Tool: "web_search"}},
		{"no tool", subjects.ExplainRequest{As: "generator"}},
		{"trick: wildcard caller", subjects.ExplainRequest{As: "*", Tool: "web_search"}},
		{"trick: wildcard tool", subjects.ExplainRequest{As: "generator", Tool: ">"}},
		{"trick: empty token in the path", subjects.ExplainRequest{As: "generator..x", Tool: "web_search"}},
		{"trick: path too deep", subjects.ExplainRequest{As: "generator.a.b.c.d.e", Tool: "web_search"}},
		{"trick: wildcard session", subjects.ExplainRequest{As: "generator", Tool: "web_search", SessionID: "*"}},
		{"trick: query that is a subject", subjects.ExplainRequest{
			As: "generator", Tool: "web_search",
			QueryID: "a.b",
		}},
	} {
		h := newSessionFixture(t)
		if v, err := h.explainAs(t, "user", tt.q); actortest.Code(err) != subjects.CodeMalformed {
			t.Errorf("%s: %+v, %v", tt.name, v, err)
		}
	}
	h := newSessionFixture(t)
	if _, err := h.validateCall(t, "generator", "s1", "q1", "web.search",
		`{}`); actortest.Code(err) != subjects.CodeMalformed {
		t.Errorf("a dry run of no tool: %v", err)
	}
	if got := h.dryRunResult(t, "generator", "web_search", `{"query":"a","query":"b"}`); got != "tool: malformed" {
		t.Errorf("an argument that stands there twice: %s", got)
	}
	h.refuse[subjects.AuditBefore] = errDisk
	if v, err := h.explainAs(t, "user", subjects.ExplainRequest{As: "generator", Tool: "web_search"}); actortest.Code(
		err) != subjects.CodeNoAudit || v.Allowed {
		t.Errorf("without a record: %+v, %v", v, err)
	}
	if v, err := h.validateCall(t, "generator", "s1", "q1", "web_search",
		`{}`); actortest.Code(err) != subjects.CodeNoAudit || v.Allowed {
		t.Errorf("without a record: %+v, %v", v, err)
	}
	delete(h.refuse, subjects.AuditBefore)
	h.wrap = func(out actor.Out) actor.Out { return failingOut{out, "session_config", ""} }
	if v, err := h.validateCall(t, "generator", "s1", "q1", "web_search", `{"query":"fish"}`); actortest.Code(
		err) != subjects.CodeUnavailable || v.Allowed {
		t.Errorf("when nobody knows what is set: %+v, %v", v, err)
	}
}

// TestDryRunChangesNothing: a dry run counts nothing, requests no approval, claims no once setting and stores nothing.
func TestDryRunChangesNothing(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.setConfig(t, subjects.SessionConfig{Override: "ALL", Once: true})
	h.addTurn("s1", "q1", "search for fish")
	before := h.dumpStores(t)
	for range 10 {
		// the next message is this one
		if got := h.dryRunResult(t, "generator", "run_shell", `{"command":"ls"}`); got != "ok" {
			t.Fatalf("under ALL: %s", got)
		}
		if v, err := h.explainAs(t, "gateway", subjects.ExplainRequest{
			As: "generator", Tool: "web_search",
			Args: json.RawMessage(`{"query":"fish"}`), SessionID: "s1", QueryID: "q1",
		}); err != nil || !v.Allowed {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	if after := h.dumpStores(t); after != before {
		t.Errorf("the dry run changed\n%s\ninto\n%s", before, after)
	}
	if len(h.approvals) != 0 || len(h.rec.Published()) != 0 {
		t.Error("somebody was told")
	}
	// The same call, for real and without ALL: as without the dry runs.
	h.runTool(t, "generator", "web_search", `{"query":"fish"}`) // claims the once setting
	h.addTurn("s1", "q2", "search for fish")
	for i, want := range []string{"ok", "ok", "limits: repeated"} {
		if res := h.runToolIn(t, "s1", "q2", "generator", "web_search", `{"query":"fish"}`); outcomeText(res) != want {
			t.Errorf("call %d: %s, want %s", i+1, outcomeText(res), want)
		}
	}
	if v, err := h.validateCall(t, "generator", "s1", "q2", "web_search", `{"query":"fish"}`); err != nil ||
		verdictText(v) != "limits: repeated" {
		t.Errorf("a dry run of the fourth: %s, %v", verdictText(v), err)
	}
}

// dumpStores returns the content of all buckets.
func (h *sessionFixture) dumpStores(t testing.TB) string {
	t.Helper()
	var all []string
	for _, bucket := range []string{
		"flow", "parked", "ledger", "session_config", stage.ApprovalBucket, stage.RuleBucket,
		bucketSpawns, "schemas",
	} {
		store := h.rec.Out().Store(bucket)
		keys, err := store.Keys(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range keys {
			data, rev, err := store.Get(t.Context(), k)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("%s %s %d %s", bucket, k, rev, data))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// TestOnlyFolder: the working folder is the only folder of a call when the order has no other, and no link leads there.
func TestOnlyFolder(t *testing.T) {
	t.Parallel()
	const work = "/w/q1-5f1b"
	rules := func(at string, allowed ...string) *subjects.FolderRules {
		return &subjects.FolderRules{Work: at, Allowed: allowed}
	}
	for name, tt := range map[string]struct {
		rules *subjects.FolderRules
		work  string
		want  string
	}{
		"it is":                          {rules(work, work), work, work},
		"the workspace is behind a link": {rules("/data"+work, "/data"+work), work, "/data" + work},
		"trick: no folders":              {nil, work, ""},
		"trick: no workspace":            {rules(work, work), "", ""},
		"trick: no working folder":       {rules(""), work, ""},
		"trick: an empty name":           {rules("", ""), work, ""},
		"trick: a second folder":         {rules(work, work, "/home/me"), work, ""},
		"trick: another folder":          {rules(work, "/home/me"), work, ""},
		"trick: nothing is allowed":      {rules(work), work, ""},
		"trick: a link leads elsewhere":  {rules("/home/me", "/home/me"), work, ""},
		"trick: of another question":     {rules("/w/q2-5f1b", "/w/q2-5f1b"), work, ""},
	} {
		if got := onlyFolder(tt.rules, tt.work); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
