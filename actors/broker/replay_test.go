package broker

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"conclave/actors/broker/replay"
	"conclave/pkg/client"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// recordedCalls returns the broker's copies of calls as the event log has them.
func (h *sessionFixture) recordedCalls() (out []client.Event) {
	for i, p := range h.rec.Published() {
		if subject, ok := strings.CutPrefix(p.Subject, "event."); ok && strings.HasPrefix(subject, "tool.request.") {
			out = append(out, client.Event{
				Seq: uint64(i + 1), From: "broker", Subject: subject, Session: "s1",
				Body: json.RawMessage(p.Body),
			})
		}
	}
	return out
}

// replayRules are the rules of a manifest for the fixture's tools.
func replayRules(t testing.TB, manifest string) replay.Rules {
	t.Helper()
	r := replay.Rules{
		Manifest: parseRules(t, manifest).Manifest, Env: policy.Env{Home: t.TempDir()},
		Build: map[string]policy.Tool{},
	}
	for name, facts := range sessionTools() {
		facts.Name, facts.Known = name, true
		r.Build[name] = facts
	}
	return r
}

// replayText is a report in short: each change with its tools, then what cannot be judged.
func replayText(t testing.TB, r replay.Rules, events []client.Event) string {
	t.Helper()
	rep, err := replay.Run(t.Context(), r, events)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, c := range rep.Changes {
		var tools []string
		for _, one := range c.Calls {
			tools = append(tools, one.Tool)
		}
		lines = append(lines, fmt.Sprintf("%s %s: %s", c.Rule, c.Effect, strings.Join(tools, " ")))
	}
	slices.Sort(lines)
	for _, u := range rep.Unjudged {
		lines = append(lines, fmt.Sprintf("unjudged %d", u.Count))
	}
	for _, d := range rep.Damaged {
		lines = append(lines, "damaged: "+d.Reason)
	}
	if changed := rep.Changed + rep.Unchanged + len(rep.Damaged); len(rep.Unjudged) == 0 && changed != rep.Calls {
		t.Errorf("%d of %d calls are in the report", changed, rep.Calls)
	}
	return strings.Join(lines, "\n")
}

// TestReplay: a recorded session judged by other manifests. The same manifest changes nothing, and each changed rule is
// named with the calls that it decides differently; a record that lacks what a rule needs is counted and not guessed.
func TestReplay(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "search for fish and read https://fish.example/")
	h.approveSlowly(t, func(int) {})
	spawned, err := h.spawn(t, "orchestrator", "s1", "q1", subjects.SpawnRequest{Type: "researcher"})
	if err != nil {
		t.Fatal(err)
	}
	h.runTool(t, "generator", "get_datetime", `{}`, "c1")
	h.runTool(t, "generator", "web_search", `{"query":"fish"}`, "c2")
	h.runTool(t, "generator", "web_fetch", `{"url":"https://fish.example/"}`, "c3")
	h.runTool(t, "generator", "web_fetch", `{"url":"https://other.example/"}`, "c4") // asks: nobody named it
	h.runTool(t, "committee", "web_search", `{"query":"fish"}`, "c5")                // not in the set
	h.runTool(t, "operator", "run_shell", `{}`, "c6")
	h.runTool(t, "orchestrator."+spawned.Child, "web_search", `{"query":"fish"}`, "c7")
	h.runTool(t, "generator", "get_datetime", `{}`, "c8")
	calls := h.recordedCalls()
	if len(calls) != 8 {
		t.Fatalf("%d calls recorded", len(calls))
	}
	edit := func(pairs ...string) string {
		out := strings.NewReplacer(pairs...).Replace(sessionManifest)
		if out == sessionManifest {
			t.Fatalf("the manifest has none of %q", pairs)
		}
		return out
	}
	for name, tt := range map[string]struct{ manifest, want string }{
		"the same rules": {sessionManifest, ""},
		"a tool always asks": {
			edit("always_ask: [package_install]", "always_ask: [get_datetime]"),
			"approval.always would ask: get_datetime get_datetime",
		},
		"a monitor-only rule": {sessionManifest + "monitor_only: [flow.fetch]\n", "flow.fetch would run without " +
			"approval: web_fetch"},
		"fewer calls": {sessionManifest + "limits: {calls: 4}\n", "limits.calls would be denied: " +
			"get_datetime"},
		"a type gets a tool": {edit("  persona:\n    tools: [search_memory]", "  persona:\n    tools: "+
			"[web_search]"), "manifest.not_in_set would no longer be denied, and ask: web_search"},
		"a child loses a tool": {edit("  researcher:\n    tools: [web_search, web_fetch,", "  researcher:\n    "+
			"tools: [web_fetch,"), "manifest.not_in_set would be denied: web_search"},
		"a parent loses a tool": {edit("  orchestrator:\n    tools: [web_search, web_fetch]",
			"  orchestrator:\n    tools: [web_fetch]"), "lineage.not_inherited would be denied: web_search"},
		"an account without type": {edit("  operator: operator\n", ""), "manifest.unknown_account would be denied: " +
			"run_shell"},
		"a host is denied": {
			sessionManifest + "egress: {fetch: {allow: ['*'], deny: [fish.example]}}\n",
			"egress.denied_host would be denied: web_fetch",
		},
	} {
		if got := replayText(t, replayRules(t, tt.manifest), calls); got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, tt.want)
		}
	}
}

// TestReplayKeepsClientMemory: a client that may not use the user's memory stays denied under every manifest.
func TestReplayKeepsClientMemory(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.turns = []subjects.Query{{SessionID: "s1", QueryID: "q1", Query: "search for fish", Client: "phone"}}
	if r := h.runTool(t, "generator", "search_memory", `{"query":"fish"}`, "c1"); r.Error == nil ||
		r.Error.Code != subjects.CodeDenied {
		t.Fatalf("%+v", r)
	}
	for name, manifest := range map[string]string{
		"the same rules":      sessionManifest,
		"a monitor-only rule": sessionManifest + "monitor_only: [flow.fetch]\n",
	} {
		if got := replayText(t, replayRules(t, manifest), h.recordedCalls()); got != "" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestReplayReportsGaps: damaged records are reported by their sequence, and calls without what a rule needs are
// counted.
func TestReplayReportsGaps(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "search for fish")
	h.runTool(t, "generator", "web_search", `{"query":"fish"}`, "c1")
	good := h.recordedCalls()[0]
	change := func(f func(*subjects.ToolRequest)) client.Event {
		e, body := good, subjects.ToolRequest{}
		if err := json.Unmarshal(e.Body, &body); err != nil {
			t.Fatal(err)
		}
		f(&body)
		e.Body, _ = json.Marshal(body)
		return e
	}
	dropFlow := func(r *subjects.ToolRequest) {
		r.Judgement.Layers = slices.DeleteFunc(r.Judgement.Layers, func(l subjects.LayerVerdict) bool {
			return l.Layer == "flow"
		})
	}
	torn := good
	torn.Body = good.Body[:len(good.Body)/2]
	for name, tt := range map[string]struct {
		event client.Event
		want  string
	}{
		"complete":               {good, ""},
		"no judgement":           {change(func(r *subjects.ToolRequest) { r.Judgement = nil }), "unjudged 1"},
		"no verdict of the flow": {change(dropFlow), "unjudged 1"},
		"cut off":                {torn, "damaged: not the copy of a call"},
		"another tool": {change(func(r *subjects.ToolRequest) {
			r.Tool = "get_datetime"
		}), `damaged: the subject has the tool web_search, the body "get_datetime"`},
		"another caller": {change(func(r *subjects.ToolRequest) {
			r.Caller = "generator.x"
		}), `damaged: the subject has the agents [], the body the caller "generator.x"`},
		"no arguments": {change(func(r *subjects.ToolRequest) {
			r.Args = nil
		}), "damaged: the arguments are not a JSON object"},
		"no layers": {change(func(r *subjects.ToolRequest) {
			r.Judgement.Layers = nil
		}), "damaged: the judgement has no layers"},
		"a verdict that is none": {change(func(r *subjects.ToolRequest) {
			r.Judgement.Layers[0].Verdict = "allow"
		}), `damaged: the judgement has the verdict "allow" of layer "override"`},
		"redacted, no URL or path": {change(func(r *subjects.ToolRequest) {
			r.Judgement.Redacted, r.Args = true, nil
		}), ""},
		"cancelled before its rules": {change(func(r *subjects.ToolRequest) {
			r.Judgement.Denied = "chain.out_of_time"
		}), "unjudged 1"},
	} {
		if got := replayText(t, replayRules(t, sessionManifest), []client.Event{tt.event}); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// TestReplayOfChangedFacts: with other facts about a tool the flow of its session may have been another one, so calls
// that the flow layer judges cannot be judged from then on.
func TestReplayOfChangedFacts(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "search for fish")
	h.runTool(t, "generator", "web_search", `{"query":"fish"}`, "c1")
	search := h.recordedCalls()[0]
	weather := search
	weather.Subject, weather.Body = "tool.request.weather", json.RawMessage(strings.NewReplacer("web_search", "weather",
		`"judgement":{`, `"judgement":{"tool_facts":"HASH",`).Replace(string(search.Body)))
	manifest := strings.Replace(sessionManifest, "tools: [get_datetime,", "tools: [weather, get_datetime,", 1) +
		"tools:\n  weather: {effects: [egress], act: search, args: {query: query}}\n"
	r := replayRules(t, manifest)
	same := weather
	same.Body = json.RawMessage(strings.Replace(string(weather.Body), "HASH", r.Manifest.Tools["weather"].FactsHash(),
		1))
	if got := replayText(t, r, []client.Event{same, search}); got != "" {
		t.Errorf("unchanged facts: %s", got)
	}
	if got := replayText(t, r, []client.Event{search, weather, search}); got != "unjudged 2" {
		t.Errorf("changed facts: %s", got)
	}
}

// TestReplayOfRemovedTool: a call of a tool that was removed since is no change of the rules, and the calls after it
// are judged as before. A manifest that drops the declaration of a tool is one.
func TestReplayOfRemovedTool(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "search for fish")
	h.runTool(t, "generator", "web_search", `{"query":"fish"}`, "c1")
	search := h.recordedCalls()[0]
	weather := search
	weather.Subject, weather.Body = "tool.request.weather", json.RawMessage(strings.NewReplacer("web_search", "weather",
		`"judgement":{`, `"judgement":{"tool_facts":"any",`).Replace(string(weather.Body)))
	events := []client.Event{weather, search}
	r := replayRules(t, sessionManifest)
	if got := replayText(t, r, events); got != "unjudged 1" {
		t.Errorf("a removed tool: %s", got)
	}
	r.InForce = map[string]policy.Tool{"weather": {}}
	if got := replayText(t, r, events); got != "tool.unknown_tool would be denied: weather\nunjudged 1" {
		t.Errorf("a declaration that the other manifest drops: %s", got)
	}
}

// TestJudgementHoldsNoText: the record of a judgement has rules and counts, and none of the arguments or of the
// session.
func TestJudgementHoldsNoText(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "search for fish")
	h.runTool(t, "committee", "web_search", `{"query":"canary"}`, "c1")
	var body subjects.ToolRequest
	if err := json.Unmarshal(h.recordedCalls()[0].Body, &body); err != nil || body.Judgement == nil {
		t.Fatal(err, body.Judgement)
	}
	if data, _ := json.Marshal(body.Judgement); strings.Contains(string(data), "canary") ||
		strings.Contains(string(data), "fish") || !strings.Contains(string(data), `"rule":"not_in_set"`) {
		t.Errorf("%s", data)
	}
}
