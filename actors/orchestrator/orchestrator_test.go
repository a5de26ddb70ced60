package orchestrator

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/subjects"
)

// A task is planned, carried out by spawned agents in the order of its dependencies, and reported.
func TestTask(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.model = func(r request) any {
		switch {
		case r.kind == callPlan:
			return planJSON(strings.Replace(subtaskJSON("find"), `"T"`, `"Find"`, 1),
				strings.Replace(subtaskJSON("write", "find"), `"T"`, `"Write"`, 1))
		case r.kind == callWork && r.subtask() == "Find" && r.messages[len(r.messages)-1].Role == model.User:
			return toolCall("c1", "lookup", `{}`)
		case r.kind == callReturn:
			return returnJSON("It is 42.", "Result of "+r.subtask()+".")
		}
		return nil
	}
	if err := w.give(New(testConfig(), w, w), "s1", "q1", "Find it and write it"); err != nil {
		t.Fatal(err)
	}
	w.requireNoErrors()
	res := w.onlyResponse()
	if !strings.HasPrefix(res.Answer, "The report.") || res.Partial || res.Error != nil || len(res.ToolCalls) != 1 ||
		res.RespondentID != subjects.Orchestrator || res.Labels.Trust != subjects.Trusted {
		t.Errorf("%+v", res)
	}
	if res.Usage.ModelCalls != 7 || res.Usage.PromptTokens != 77 {
		t.Errorf("usage %+v", res.Usage)
	}
	task := w.stored("q1")
	if task.State != subjects.TaskDone || len(task.Subtasks) != 2 || task.Subtasks[1].State != subjects.SubtaskDone ||
		task.Tokens != 7*18 {
		t.Errorf("%+v", task)
	}
	// The second agent gets the result of the first as framed data, and the report too.
	if got := w.requests(callWork); !strings.Contains(got[len(got)-1].last(), "[TOOL_RESULT: UNTRUSTED") ||
		!strings.Contains(got[len(got)-1].last(), "Result of Find.") {
		t.Errorf("%s", got[len(got)-1].text())
	}
	if got := w.requests(callReport)[0]; !strings.Contains(got.last(), "[TOOL_RESULT: UNTRUSTED") ||
		len(got.tools) > 0 {
		t.Errorf("%s", got.text())
	}
	if got := w.requests(callPlan)[0]; got.role != subjects.RoleOrchestrator || !got.format ||
		!strings.Contains(got.last(), "Find it and write it") {
		t.Errorf("%+v", got)
	}
	if want := []string{"assistant-1", "assistant-2", "assistant-3"}; !slices.Equal(w.spawned, want) {
		t.Errorf("spawned %v", w.spawned)
	}
	returns := emitted[subjects.AgentReturn](w, "agent.return.q1")
	if len(returns) != 2 || returns[0].Subtask != "find" || returns[0].Agent != "assistant-1" ||
		returns[1].Subtask != "write" {
		t.Errorf("%+v", returns)
	}
	var states []string
	for _, p := range emitted[subjects.TaskProgress](w, "task.progress.q1") {
		if s := strings.TrimSpace(p.Subtask + " " + p.State); len(states) == 0 || states[len(states)-1] != s {
			states = append(states, s)
		}
	}
	if want := []string{
		"planning", "running", "find running", "find done", "write running", "write done", "reporting",
		"done",
	}; !slices.Equal(slices.DeleteFunc(states, func(s string) bool { return s == "" }), want) {
		t.Errorf("states %v", states)
	}
	// Delivered again, nothing happens.
	n := len(w.Published())
	if err := w.give(New(testConfig(), w, w), "s1", "q1", "Find it and write it"); err != nil ||
		len(w.Published()) != n {
		t.Errorf("%v, %d more", err, len(w.Published())-n)
	}
}

// TestToolIsUnreachable: the answer says which tool of an agent gave no result, why, and what to do.
func TestToolIsUnreachable(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.tool = func(tool, _ string, c subjects.ToolRequest) (subjects.ToolResult, error) {
		return subjects.ToolResult{
			CallID: c.CallID,
			Error:  subjects.Faultf(subjects.CodeUnavailable, "%s is not running: restart conclave up", tool),
		}, nil
	}
	w.model = func(r request) any {
		switch {
		case r.kind == callPlan:
			return planJSON(strings.Replace(subtaskJSON("find"), `"T"`, `"Find"`, 1))
		case r.kind == callWork && r.messages[len(r.messages)-1].Role == model.User:
			return toolCall("c1", "lookup", `{}`)
		case r.kind == callReturn:
			return returnJSON("It is 42.", "Result.")
		}
		return nil
	}
	if err := w.give(New(testConfig(), w, w), "s1", "q1", "Find it"); err != nil {
		t.Fatal(err)
	}
	want := subjects.Note{
		Code: subjects.NoteNoResult,
		Text: `lookup gave no result: "lookup is not running: restart conclave up"`,
	}
	if res := w.onlyResponse(); !slices.Contains(res.Notes, want) {
		t.Errorf("%+v %+v", res.Notes, res.ToolCalls)
	}
}

// TestAgentWithoutSearch: an agent that does not get web_search is told so, and the user reads once why and what to do.
func TestAgentWithoutSearch(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.missing = []subjects.UnavailableTool{{Name: "web_search", Why: `no "SearXNG" answers; start it`}}
	w.model = func(r request) any {
		if r.kind == callPlan {
			return planJSON(subtaskJSON("compare"), subtaskJSON("recommend", "compare"))
		}
		return nil
	}
	if err := w.give(New(testConfig(), w, w), "s1", "q1", "Compare trains and buses"); err != nil {
		t.Fatal(err)
	}
	for _, r := range w.requests(callWork) {
		if !strings.Contains(r.messages[0].Content, "The web cannot be searched now") {
			t.Errorf("the agent was told: %s", r.messages[0].Content)
		}
	}
	res := w.onlyResponse()
	want := []subjects.Note{{
		Code: subjects.NoteNoResult,
		Text: `web_search was not used: "no 'SearXNG' answers; start it"`,
	}}
	if !slices.Equal(res.Notes, want) || res.Partial {
		t.Errorf("notes %+v, partial %t", res.Notes, res.Partial)
	}
}

// An invalid plan is sent back with the error twice; then the task fails with a structured answer.
func TestInvalidPlan(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		plans []string
		asked int
		code  string
	}{
		{
			"right at the third attempt",
			[]string{"no", planJSON(subtaskJSON("a", "b")), planJSON(subtaskJSON("a"))},
			3,
			"",
		},
		{"never right", []string{"no", planJSON(subtaskJSON("a", "a")), "no"}, 3, subjects.CodeModelMalformed},
		{"nothing to do", []string{planJSON()}, 1, subjects.CodeModelMalformed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			var mu sync.Mutex
			w.model = func(r request) any {
				if r.kind != callPlan {
					return nil
				}
				mu.Lock()
				defer mu.Unlock()
				next := tt.plans[0]
				if len(tt.plans) > 1 {
					tt.plans = tt.plans[1:]
				}
				return next
			}
			if err := w.give(New(testConfig(), w, w), "s1", "q1", "Do it"); err != nil {
				t.Fatal(err)
			}
			asked := w.requests(callPlan)
			if len(asked) != tt.asked || tt.asked == 3 && !strings.Contains(asked[1].last(), "This plan is invalid") {
				t.Errorf("asked %d times", len(asked))
			}
			res := w.onlyResponse()
			if tt.code == "" && res.Error != nil || tt.code != "" && (res.Error == nil || res.Error.Code != tt.code ||
				res.Answer == "") {
				t.Errorf("%+v", res)
			}
			if state := w.stored("q1").State; (state == subjects.TaskFailed) != (tt.code != "") {
				t.Errorf("state %s", state)
			}
		})
	}
}

// An invalid return is sent back with the error twice; then the subtask failed, those that depend on it are skipped,
// and the user is told.
func TestInvalidReturn(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.model = func(r request) any {
		switch {
		case r.kind == callPlan && strings.Contains(r.text(), "what became of it"):
			return planJSON()
		case r.kind == callPlan:
			return planJSON(subtaskJSON("a"), subtaskJSON("b", "a"), strings.Replace(subtaskJSON("c"), `"T"`, `"Good"`,
				1))
		case r.kind == callReturn && r.subtask() != "Good":
			return `{"status":"great"}`
		}
		return nil
	}
	if err := w.give(New(testConfig(), w, w), "s1", "q1", "Do it"); err != nil {
		t.Fatal(err)
	}
	bad := slices.DeleteFunc(w.requests(callReturn), func(r request) bool { return r.subtask() == "Good" })
	if len(bad) != 3 || !strings.Contains(bad[2].last(), "This return is invalid") {
		t.Errorf("asked %d times", len(bad))
	}
	task := w.stored("q1")
	if got := []string{task.Subtasks[0].State, task.Subtasks[1].State, task.Subtasks[2].State}; !slices.Equal(got,
		[]string{"failed", "skipped", "done"}) || task.State != subjects.TaskPartial {
		t.Errorf("states %v, %s", got, task.State)
	}
	if res := w.onlyResponse(); !res.Partial ||
		!strings.Contains(res.Answer, "Failed:\n- T: the agent gave no valid return") {
		t.Errorf("%q", res.Answer)
	}
}

// After a failure the plan is extended once, with states and filtered summaries.
func TestExtendPlan(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.model = func(r request) any {
		switch {
		case r.kind == callPlan && strings.Contains(r.text(), "what became of it"):
			return planJSON(strings.Replace(subtaskJSON("again"), `"T"`, `"Again"`, 1))
		case r.kind == callReturn && r.subtask() != "Again":
			return returnJSON(`"success"`, `"failed"`, `"failure_reason":""`, `"failure_reason":"no luck"`)
		}
		return nil
	}
	if err := w.give(New(testConfig(), w, w), "s1", "q1", "Do it"); err != nil {
		t.Fatal(err)
	}
	if task := w.stored("q1"); len(task.Subtasks) != 2 || task.Subtasks[1].State != subjects.SubtaskDone ||
		task.State != subjects.TaskPartial {
		t.Errorf("%+v", task)
	}
}

// Two independent subtasks run at the same time, and a third waits for a free place.
func TestParallelSubtasks(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	var mu sync.Mutex
	running, most := 0, 0
	both := make(chan struct{})
	w.model = func(r request) any {
		switch r.kind {
		case callPlan:
			return planJSON(subtaskJSON("a"), subtaskJSON("b"), subtaskJSON("c"))
		case callWork:
			mu.Lock()
			running++
			if most = max(most, running); most == 2 && running == 2 {
				select {
				case <-both:
				default:
					close(both)
				}
			}
			mu.Unlock()
			select {
			case <-both:
			case <-time.After(time.Minute):
				t.Error("no other subtask runs at the same time")
			}
			mu.Lock()
			running--
			mu.Unlock()
		}
		return nil
	}
	if err := w.give(New(testConfig(), w, w), "s1", "q1", "Do it"); err != nil {
		t.Fatal(err)
	}
	if most != 2 {
		t.Errorf("%d at once", most)
	}
	w.onlyResponse()
}

// An uncertain result of a tool is checked by a second agent of the same type, once. What the model wrote from its own
// knowledge is not, and the report says so.
func TestUncertainResult(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, check, quality, told string
		calls, agents              int
	}{
		{"confirmed", goodReturn, subjects.QualityInferred, "", 1, 2},
		{
			"not confirmed", returnJSON(`"success"`, `"failed"`, `"failure_reason":""`, `"failure_reason":"it is 41"`),
			subjects.QualityUncertain, "a second agent did not confirm it: it is 41", 1, 2,
		},
		{
			"still uncertain", returnJSON("inferred", "uncertain"), subjects.QualityUncertain,
			"a second agent is not sure either", 1, 2,
		},
		{
			"own knowledge", goodReturn, subjects.QualityUncertain, "from the model's own knowledge, not checked", 0, 1,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			w.model = func(r request) any {
				switch {
				case r.kind == callReturn && strings.Contains(r.text(), "Another agent did this subtask"):
					return tt.check
				case r.kind == callReturn:
					return returnJSON("inferred", "uncertain")
				case r.kind == callWork && tt.calls > 0 && r.messages[len(r.messages)-1].Role == model.User:
					return toolCall("c1", "lookup", `{}`)
				}
				return nil
			}
			if err := w.give(New(testConfig(), w, w), "s1", "q1", "Do it"); err != nil {
				t.Fatal(err)
			}
			s := w.stored("q1").Subtasks[0]
			if s.Return.ResultQuality != tt.quality || tt.calls > 0 && s.Doubt != tt.told {
				t.Errorf("%s, %q", s.Return.ResultQuality, s.Doubt)
			}
			if tt.told != "" && !strings.Contains(w.onlyResponse().Answer, "Uncertain:\n- T: "+tt.told) {
				t.Errorf("%q", w.onlyResponse().Answer)
			}
			if len(w.spawned) != 1+tt.agents {
				t.Errorf("spawned %v", w.spawned)
			}
		})
	}
}

// The runtime runs the verification of code. Its failure goes back to the agent at most three times, and only a run
// that passed makes the result verified.
func TestVerification(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		passes         int // the run that passes; 0 = none
		runs           int
		status, result string
	}{
		{"at once", 1, 1, subjects.ReturnSuccess, subjects.QualityVerified},
		{"at the third run", 3, 3, subjects.ReturnSuccess, subjects.QualityVerified},
		{"never", 0, 4, subjects.ReturnPartial, subjects.QualityUncertain},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			runs := 0
			w.tool = func(tool, path string, c subjects.ToolRequest) (subjects.ToolResult, error) {
				runs++
				if tool != "run_code" || path != "coder-1" || !strings.Contains(string(c.Args), "go test") {
					t.Errorf("%s by %s: %s", tool, path, c.Args)
				}
				if runs == tt.passes {
					return subjects.ToolResult{Result: "[TOOL_RESULT: UNTRUSTED 1]\nexit code: 0\noutput:\nok\n[END " +
						"OF TOOL_RESULT 1]"}, nil
				}
				return subjects.ToolResult{Result: "[TOOL_RESULT: UNTRUSTED 1]\nexit code: 1\noutput:\nFAIL " +
					"TestX\nexit code: 0\n[END OF TOOL_RESULT 1]"}, nil
			}
			w.model = func(r request) any {
				switch r.kind {
				case callPlan:
					return strings.NewReplacer(`"assistant"`, `"coder"`, `"hint"`,
						`"verify":{"command":"go test"},"hint"`).Replace(planJSON(subtaskJSON("a")))
				case callReturn:
					return returnJSON("inferred", "verified")
				}
				return nil
			}
			if err := w.give(New(testConfig(), w, w), "s1", "q1", "Write it"); err != nil {
				t.Fatal(err)
			}
			s := w.stored("q1").Subtasks[0]
			if runs != tt.runs || s.Return.Status != tt.status || s.Return.ResultQuality != tt.result {
				t.Errorf("%d runs, %+v", runs, s.Return)
			}
			work := w.requests(callWork)
			if len(work) != min(tt.runs, 4) {
				t.Errorf("the agent was asked %d times", len(work))
			}
			if tt.runs > 1 && !strings.Contains(work[1].last(), "FAIL TestX") {
				t.Errorf("%s", work[1].last())
			}
		})
	}
}

// A denied spawn and a model that fails make a failed subtask, not a failed delivery.
func TestSubtaskFailures(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.spawn = func(r subjects.SpawnRequest) error {
		if r.Type == "coder" {
			return subjects.Faultf(subjects.CodeDenied, "a coder may not be spawned")
		}
		return nil
	}
	w.model = func(r request) any {
		switch {
		case r.kind == callPlan && strings.Contains(r.text(), "what became of it"):
			return planJSON()
		case r.kind == callPlan:
			return planJSON(strings.Replace(subtaskJSON("a"), `"assistant"`, `"coder"`, 1),
				strings.Replace(subtaskJSON("b"), `"T"`, `"Broken"`, 1))
		case r.subtask() == "Broken":
			return subjects.Faultf(subjects.CodeModelMissing, "the model x is not installed")
		}
		return nil
	}
	if err := w.give(New(testConfig(), w, w), "s1", "q1", "Do it"); err != nil {
		t.Fatal(err)
	}
	res := w.onlyResponse()
	if !strings.Contains(res.Answer, "a coder may not be spawned") ||
		!strings.Contains(res.Answer, "the model x is not installed") || w.stored("q1").State != subjects.TaskFailed {
		t.Errorf("%q", res.Answer)
	}
}

// A used-up token budget ends in a structured failure with a partial report.
// The built-in demo model is not asked for a plan: the user learns what is missing.
func TestDemoModelPlansNothing(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.demo = true
	if err := w.give(New(testConfig(), w, w), "s1", "q1", "Do it"); err != nil {
		t.Fatal(err)
	}
	if res := w.onlyResponse(); res.Error == nil || res.Error.Code != subjects.CodeModelUnreachable ||
		!strings.Contains(res.Answer, "Install Ollama") || len(w.asked) != 0 {
		t.Errorf("%+v, %d model calls", res, len(w.asked))
	}
}

func TestTokenBudget(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	cfg := testConfig()
	cfg.SessionTokens = 60 // a model call takes 18
	cfg.Parallel = 1
	w.model = func(r request) any {
		if r.kind == callPlan {
			return planJSON(subtaskJSON("a"), subtaskJSON("b"))
		}
		return nil
	}
	if err := w.give(New(cfg, w, w), "s1", "q1", "Do it"); err != nil {
		t.Fatal(err)
	}
	res := w.onlyResponse()
	if res.Error == nil || res.Error.Code != subjects.CodeLimit || !res.Partial ||
		!strings.Contains(res.Answer, "session_tokens") {
		t.Errorf("%+v", res)
	}
	n := len(w.asked)
	if err := w.give(New(cfg, w, w), "s1", "q2", "Do more"); err != nil {
		t.Fatal(err)
	}
	if len(w.asked) != n {
		t.Error("a model was asked although the session's budget is used up")
	}
	if task := w.stored("q2"); task.State != subjects.TaskFailed || task.Error == nil ||
		task.Error.Code != subjects.CodeLimit {
		t.Errorf("%+v", task)
	}
}

// Memories that agents propose are kept by rule, under the orchestrator's own identity, and the report says what was
// kept.
func TestMemoryCandidates(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		quality string
		labels  *subjects.Labels
		client  string // that gave the task
		saved   int
		told    string
	}{
		{"kept", "inferred", nil, "", 1, "1 remembered: The user likes tea."},
		{"uncertain", "uncertain", nil, "", 0, "it is uncertain"},
		{
			"untrusted", "inferred", &subjects.Labels{Trust: subjects.Untrusted, Privacy: subjects.Public}, "", 0,
			"the task read untrusted content",
		},
		{"of a client", "inferred", nil, "phone", 0, "the task read untrusted content"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			saved := 0
			w.tool = func(tool, path string, _ subjects.ToolRequest) (subjects.ToolResult, error) {
				if tool != "save_memory" {
					return subjects.ToolResult{Result: "x", Labels: tt.labels}, nil
				}
				saved++
				if path != "" {
					t.Errorf("saved by %s", path)
				}
				return subjects.ToolResult{Result: "saved"}, nil
			}
			w.model = func(r request) any {
				switch {
				case r.kind == callWork && r.messages[len(r.messages)-1].Role == model.User:
					return toolCall("c1", "lookup", `{}`)
				case r.kind == callReturn:
					return returnJSON("inferred", tt.quality, `"new_memory_candidates":[]`,
						`"new_memory_candidates":["The user likes tea."]`)
				}
				return nil
			}
			if err := w.giveCtx(t.Context(), New(testConfig(), w, w), subjects.Query{
				SessionID: "s1", QueryID: "q1",
				Query: "Do it", Client: tt.client,
			}, 1); err != nil {
				t.Fatal(err)
			}
			res := w.onlyResponse()
			if untrusted := tt.labels != nil || tt.client != ""; untrusted != (res.Labels.Trust != subjects.Trusted) {
				t.Errorf("the report has the labels %+v", res.Labels)
			}
			if saved != tt.saved || len(res.Notes) != 1 || res.Notes[0].Code != subjects.NoteCandidates ||
				!strings.Contains(res.Notes[0].Text, tt.told) {
				t.Errorf("saved %d, %+v", saved, res.Notes)
			}
		})
	}
}

// A turn with an odd id is rejected.
func TestRejectsOddIDs(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	o := New(testConfig(), w, w)
	for _, in := range []actor.Msg[subjects.Query]{
		{Tokens: []string{"s.1"}, Body: subjects.Query{QueryID: "q1"}},
		{Tokens: []string{"s1"}, Body: subjects.Query{QueryID: "a b"}},
		{Tokens: []string{"s1"}},
		{},
	} {
		if err := o.OnTurn(t.Context(), in, w.Out()); err == nil {
			t.Errorf("%+v was accepted", in)
		}
	}
}

// A task that does not fit into a record is answered with that.
func TestTooLongTask(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	if err := w.give(New(testConfig(), w, w), "s1", "q1", strings.Repeat("x ", maxQuestion)); err != nil {
		t.Fatal(err)
	}
	if res := w.onlyResponse(); res.Error == nil || res.Error.Code != subjects.CodeTooLarge {
		t.Errorf("%+v", res)
	}
}
