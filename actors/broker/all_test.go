package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"conclave/pkg/policy"
	"conclave/subjects"
)

// decideApproval sends the user's decision about an approval.
func (h *sessionFixture) decideApproval(t testing.TB, id string, yes bool) {
	t.Helper()
	var reply subjects.ApprovalReply
	if err := h.deliver(t, "ctl.user.approval.decision."+id, "", "", subjects.ApprovalDecision{Approve: yes},
		&reply); err != nil || !reply.Accepted {
		t.Errorf("the answer ended in %+v, %v", reply, err)
	}
}

// approveSlowly approves each request long after it was published, and calls happens before each decision.
func (h *sessionFixture) approveSlowly(t testing.TB, happens func(n int)) (asked func() int) {
	n := 0
	h.rec.FailPublish = func(subject string) error {
		id, ok := strings.CutPrefix(subject, "event.approval.request.")
		if !ok {
			return nil
		}
		n++
		h.rec.Time = h.rec.Time.Add(30 * time.Second)
		happens(n)
		h.decideApproval(t, id, true) // the approval is stored already
		return nil
	}
	return func() int { return n }
}

func withLongApprovalWait(h *sessionFixture) { h.cfg.ApprovalWait = time.Hour }

// TestLateApprovalIsJudgedAgain: a call approved after minutes runs only if the current rules and session allow it.
func TestLateApprovalIsJudgedAgain(t *testing.T) {
	t.Parallel()
	other := func(h *sessionFixture, change func(string) string) {
		h.rules.Replace(parseRules(t, change(sessionManifest)))
	}
	without := func(m string) string {
		return strings.ReplaceAll(m, "run_shell, search_knowledge_graph", "search_knowledge_graph")
	}
	stricter := func(m string) string {
		return strings.Replace(m, "[package_install]", "[package_install, run_shell]", 1)
	}
	for _, tt := range []struct {
		name    string
		happens func(h *sessionFixture, n int)
		want    string
		asked   int
	}{
		{"nothing", func(*sessionFixture, int) {}, "ok", 1},
		{"tool removed from the manifest", func(h *sessionFixture, _ int) {
			other(h, func(m string) string { return strings.Replace(without(m), "high_risk: [run_shell]", "", 1) })
		}, "manifest: not_in_set", 1},
		{"tool disabled by the user", func(h *sessionFixture, _ int) {
			h.setConfig(t, subjects.SessionConfig{Disable: []string{"run_shell"}})
		}, "override: disabled", 1},
		{"rules ask a second question, approved", func(h *sessionFixture, _ int) { other(h, stricter) }, "ok", 2},
		{"session tainted meanwhile", func(h *sessionFixture, _ int) { h.taintSession(t, "s1") }, "ok", 2},
		{"settings unreadable", func(h *sessionFixture, _ int) {
			h.wrap = nil
			s, rev, err := h.rec.Out().Store("session_config").Get(t.Context(), "s1")
			if err == nil {
				t.Errorf("there is %s", s)
			}
			if _, err := h.rec.Out().Store("session_config").Put(t.Context(), "s1", []byte("{"), rev); err != nil {
				t.Error(err)
			}
		}, subjects.CodeUnavailable, 1},
		{"trick: rules ask a second question and deny before its decision", func(h *sessionFixture, n int) {
			if n == 1 {
				other(h, stricter)
			} else {
				other(h, func(m string) string { return strings.Replace(without(m), "high_risk: [run_shell]", "", 1) })
			}
		}, "manifest: not_in_set", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newSessionFixture(t, withLongApprovalWait)
			h.addTurn("s1", "q1", "run ls")
			asked := h.approveSlowly(t, func(n int) { tt.happens(h, n) })
			res := h.runTool(t, "generator", "run_shell", `{"command":"ls"}`)
			if outcomeText(res) != tt.want || asked() != tt.asked {
				t.Errorf("%s after %d questions, want %s after %d", outcomeText(res), asked(), tt.want, tt.asked)
			}
			if story := h.recentEvents(); strings.Contains(story, "ran run_shell") != (tt.want == "ok") {
				t.Errorf("story %s", story)
			}
		})
	}
}

// changingQuestionLayer asks another question at each call.
type changingQuestionLayer struct{ n *int }

func (changingQuestionLayer) Name() string { return "nosy" }

func (l changingQuestionLayer) Judge(context.Context, policy.Call) policy.Verdict {
	*l.n++
	return policy.Ask(fmt.Sprintf("r%d", *l.n), "may I?")
}

// TestChangingQuestionsEndInBusy: rules that ask a new question after every approval end in a busy fault, not in a
// run.
func TestChangingQuestionsEndInBusy(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t, withLongApprovalWait)
	h.addTurn("s1", "q1", "run ls")
	h.rules.Replace(policy.Rules{
		Manifest: h.rules.Load().Manifest,
		Chain:    policy.Chain{changingQuestionLayer{new(int)}},
	})
	asked := h.approveSlowly(t, func(int) {})
	res := h.runTool(t, "generator", "run_shell", `{"command":"ls"}`)
	if outcomeText(res) != subjects.CodeBusy || asked() != maxJudgements || strings.Contains(h.recentEvents(), "ran") {
		t.Errorf("%s after %d questions", outcomeText(res), asked())
	}
}

// TestApprovalAllowsOneRun: an approval allows one run, also of a harmless tool that always needs approval.
func TestApprovalAllowsOneRun(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "install fish")
	asked := h.approveSlowly(t, func(int) {})
	h.cfg.ApprovalWait = time.Hour
	h.start(t, h.rules.Load())
	runs := 0
	h.tools["package_install"] = func(subjects.ToolOrder) (any, error) {
		runs++
		return subjects.ToolResult{Result: fmt.Sprint("run ", runs)}, nil
	}
	for _, tt := range []struct {
		name, id    string
		runs, asked int
	}{
		{"the first", "c1", 1, 1},
		{"the same again", "c1", 1, 1},
		{"another", "c2", 2, 2},
	} {
		res := h.runTool(t, "generator", "package_install", `{"name":"fish-`+tt.id+`"}`, tt.id)
		if outcomeText(res) != "ok" || runs != tt.runs || asked() != tt.asked {
			t.Errorf("%s: %s, %d runs, %d questions", tt.name, outcomeText(res), runs, asked())
		}
	}
	// Another broker replays it too: the approval allows no second run.
	h.start(t, h.rules.Load())
	if res := h.runTool(t, "generator", "package_install", `{"name":"fish-c1"}`, "c1"); res.Result != "run 1" ||
		runs != 2 {
		t.Errorf("after a restart: %+v, %d runs", res, runs)
	}
}

// TestRepeatedJudgementCountsCallOnce: a call counts once, however often it is judged: the second identical call runs,
// the third is denied, and a budget of one call allows one.
func TestRepeatedJudgementCountsCallOnce(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t, withLongApprovalWait)
	h.addTurn("s1", "q1", "run ls")
	h.approveSlowly(t, func(int) {})
	for i, want := range []string{"ok", "ok", "limits: repeated"} {
		if res := h.runTool(t, "generator", "run_shell", `{"command":"ls"}`, fmt.Sprint("c", i)); outcomeText(
			res) != want {
			t.Errorf("call %d: %s, want %s", i+1, outcomeText(res), want)
		}
	}
}

// TestUsageWindowFollowsManifest: a manifest reload changes the window in which calls count as identical.
func TestUsageWindowFollowsManifest(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "what time is it?")
	call := func(want string) {
		t.Helper()
		h.rec.Time = h.rec.Time.Add(5 * time.Second)
		if res := h.runTool(t, "generator", "get_datetime", `{"timezone":"UTC"}`); outcomeText(res) != want {
			t.Errorf("%s, want %s", outcomeText(res), want)
		}
	}
	call("ok")
	call("ok")
	call("limits: repeated")
	h.rules.Replace(parseRules(t, sessionManifest+"\nlimits:\n  window: 1s\n"))
	call("ok")
}

// TestMonitorOnlyRuleIsLogged: a match of a monitor-only rule is logged with its reason and does not deny.
func TestMonitorOnlyRuleIsLogged(t *testing.T) {
	t.Parallel()
	h := newSessionFixture(t)
	h.addTurn("s1", "q1", "run ls")
	h.rules.Replace(parseRules(t, sessionManifest+"monitor_only: [approval.high_risk, limits.repeated]\n"))
	for range 4 {
		if res := h.runTool(t, "generator", "run_shell", `{"command":"ls"}`); outcomeText(res) != "ok" {
			t.Fatal(outcomeText(res))
		}
	}
	if got, want := h.auditLog(), strings.Repeat("before allowed; after ok; ", 4); got+"; " != want {
		t.Errorf("on record %s", got)
	}
	var noted []string
	for _, err := range h.rec.Logged() {
		noted = append(noted, err.Error())
	}
	all := strings.Join(noted, "\n")
	if strings.Count(all, "monitor-only rule approval.high_risk") != 4 ||
		strings.Count(all, "monitor-only rule limits.repeated") != 2 ||
		!strings.Contains(all, "run_shell by generator") {
		t.Errorf("noted %s", all)
	}
	v, err := h.validateCall(t, "generator", "s1", "q1", "run_shell", `{"command":"ls"}`)
	if err != nil || !v.Allowed || len(v.Monitored) != 2 || len(h.approvals) != 0 {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestCompletedCallIsReplayed: a completed call is replayed whatever the current rules say, is not counted again, and
// only for the same caller, session and arguments.
func TestCompletedCallIsReplayed(t *testing.T) {
	t.Parallel()
	const args = `{"query":"fish"}`
	h := newSessionFixture(t, withModelRanking)
	h.setModelReply(findingReply(nil)) // the orchestrator gets findings
	for _, s := range []string{"s1", "s2"} {
		h.addTurn(s, "q1", "search for fish")
	}
	h.setResult("web_search", subjects.ToolResult{Result: "fish, untrusted"})
	first := h.runTool(t, "generator", "web_search", args, "c1")
	for range 5 {
		if res := h.runTool(t, "generator", "web_search", args, "c1"); res.Result != first.Result {
			t.Fatalf("%+v", res)
		}
	}
	for i, want := range []string{"ok", "limits: repeated"} { // the second and third identical call
		if res := h.runTool(t, "generator", "web_search", args); outcomeText(res) != want {
			t.Errorf("call %d: %s, want %s", i+2, outcomeText(res), want)
		}
	}
	h.recentEvents()
	h.rules.Replace(policy.Rules{Manifest: h.rules.Load().Manifest})
	if res := h.runTool(t, "generator", "web_search", args, "c1"); res.Result != first.Result ||
		h.recentEvents() != "before replayed ledger" {
		t.Errorf("under rules that refuse everything: %+v", res)
	}
	if res := h.runTool(t, "generator", "web_search", args, "c2"); outcomeText(res) != "chain: empty_chain" {
		t.Errorf("a new one: %s", outcomeText(res))
	}
	h.rules.Replace(parseRules(t, sessionManifest))
	h.approveSlowly(t, func(int) {}) // the orchestrator's session is unknown
	for _, tt := range []struct{ name, session, who, args, want string }{
		{"trick: in another session", "s2", "generator", args, subjects.CodeMalformed},
		{"trick: in no session", "", "generator", args, "ok"}, // a call of its own
		{"trick: with other arguments", "s1", "generator", `{"query":"search fish"}`, subjects.CodeMalformed},
		{"trick: by another account", "s1", "orchestrator", args, "ok"},
	} {
		who := tt.who
		if tt.session == "" {
			who = "operator"
		}
		res := h.runToolIn(t, tt.session, "q1", who, "web_search", tt.args, "c1")
		if tt.want == subjects.CodeMalformed && strings.Contains(res.Result, "strangers") || outcomeText(res) == "ok" &&
			!strings.Contains(h.recentEvents(), "ran web_search") {
			t.Errorf("%s: replayed %+v", tt.name, res)
		}
		if got := outcomeText(res); got != tt.want && (tt.want == "ok" || got == "ok") {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if h.flowOf(t, "s2").IsTainted() {
		t.Error("the other session learned something after all")
	}
	h.refuse[subjects.AuditBefore] = errDisk
	if res := h.runTool(t, "generator", "web_search", args, "c1"); outcomeText(res) != subjects.CodeNoAudit ||
		res.Result != "" {
		t.Errorf("a replay that is not on record: %+v", res)
	}
}

// TestNoRunWithoutAuditRecord is a property: whatever overrides are set, any account calls any tool and however the
// audit fails, a tool runs only after the record of its decision was acknowledged, and its result is returned only
// after the record of its outcome was.
func TestNoRunWithoutAuditRecord(t *testing.T) {
	t.Parallel()
	ran, key := map[string]int{}, newKey(t).Public()
	names := slices.Sorted(func(yield func(string) bool) {
		for name := range sessionTools() {
			if !yield(name) {
				return
			}
		}
	})
	h := newSessionFixture(t, func(h *sessionFixture) {
		h.cfg.ApprovalWait = 5 * time.Millisecond
		h.key, h.secret = key, keyring
	})
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		s := fmt.Sprint("s", n) // a new session each time
		h.auditErr, h.rec.Time = nil, noon
		h.addTurn(s, "q1", "run ls, search for fish, save the memory and read https://fish.example/")
		who := rapid.SampledFrom([]string{"generator", "generator", "orchestrator", "committee", "operator", "child"}).
			Draw(rt, "who")
		if who == "child" {
			who = h.mustSpawn(t, "generator", s, subjects.SpawnRequest{Type: "researcher"})
		}
		level := rapid.SampledFrom([]string{"NONE", "RELAX", "ALL", "ALL"}).Draw(rt, "level")
		_, err := h.config(t, "user", subjects.SessionConfig{
			SessionID: s, Override: level, Disable: rapid.SliceOfN(rapid.SampledFrom(names), 0, 2).Draw(rt, "disabled"),
			Grant: rapid.SampledFrom([][]string{
				nil,
				{"persona:run_shell"},
				{"researcher:save_memory", "assistant:save_memory"},
			}).Draw(rt, "granted"),
		})
		if err != nil {
			rt.Fatal(err)
		}
		if rapid.Bool().Draw(rt, "tainted") {
			h.taintSession(t, s)
		}
		yes := rapid.Bool().Draw(rt, "the user agrees")
		h.rec.FailPublish = func(subject string) error {
			if id, ok := strings.CutPrefix(subject, "event.approval.request."); ok {
				var reply subjects.ApprovalReply
				// the audit may fail
				_ = h.deliver(t, "ctl.user.approval.decision."+id, "", "", subjects.ApprovalDecision{Approve: yes},
					&reply)
			}
			return nil
		}
		fails := rapid.SliceOfN(rapid.IntRange(0, 3), 1, 12).Draw(rt, "the audit fails at 0")
		records, allowed, ended := 0, map[string]int{}, map[string]int{}
		h.auditErr = func(r subjects.AuditRecord) error {
			records++
			if fails[records%len(fails)] == 0 {
				return errDisk
			}
			if r.Action == "tool.call" && r.AgentID == who {
				switch r.Phase + " " + r.Status {
				case "before allowed":
					allowed[r.Tool]++
				case "after ok":
					ended[r.Tool]++
				}
			}
			return nil
		}
		for _, name := range names {
			h.tools[name] = func(subjects.ToolOrder) (any, error) {
				if allowed[name]--; allowed[name] < 0 {
					rt.Errorf("%s ran for %s under %s, and no record says that it may", name, who, level)
				}
				ran[level]++
				return subjects.ToolResult{Result: "[1]"}, nil
			}
		}
		for range rapid.IntRange(1, 6).Draw(rt, "calls") {
			tool := rapid.SampledFrom(names).Draw(rt, "tool")
			id := rapid.SampledFrom([]string{"", s + "-1", s + "-2"}).Draw(rt, "id")
			had := ended[tool]
			res := h.runToolIn(t, s, "q1", who, tool,
				`{"query":"fish","url":"https://fish.example/","command":"ls","content":"fish"}`, id)
			if res.Error == nil && ended[tool] == had && !strings.Contains(h.recentEvents(), "before replayed") {
				rt.Errorf("%s was answered, and its outcome is not on record", tool)
			}
			h.recentEvents()
			h.rec.Time = h.rec.Time.Add(2 * time.Minute) // past the end of every run
		}
	})
	for _, level := range []string{"NONE", "RELAX", "ALL"} {
		if ran[level] == 0 {
			t.Errorf("under %s nothing ever ran: the test shows nothing", level)
		}
	}
	t.Logf("runs by level: %v", ran)
}
