package generator

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/subjects"
)

func TestPlainTurn(t *testing.T) {
	t.Parallel()
	w := newHarness(t, actortest.Pieces{
		subjects.ChatChunk{Thinking: "easy"},
		subjects.ChatChunk{Content: "Par"},
		subjects.ChatChunk{Content: "is."},
		final(),
	})
	w.tools = []string{"clock"}
	g := New(subjects.Generator, shippedConfig())
	var steps []string
	w.observe(g, func(s string) { steps = append(steps, s) })
	if err := w.ask(g, "s1", "q1", "What is the capital of France?", 1); err != nil {
		t.Fatal(err)
	}
	r := w.onlyResponse()
	if r.Answer != "Paris." || r.Thinking != "easy" || r.SessionID != "s1" || r.QueryID != "q1" ||
		r.Query != "What is the capital of France?" ||
		r.GeneratorID != "generator" || r.RespondentID != "generator" || r.Model != "test:1b" || r.Partial ||
		r.Error != nil || r.ToolCalls == nil {
		t.Errorf("answer: %+v", r)
	}
	if r.Usage.PromptTokens != 11 || r.Usage.CompletionTokens != 7 || r.Usage.ModelCalls != 1 ||
		r.Usage.Counted != 11 || r.Usage.Estimated == 0 {
		t.Errorf("usage: %+v", r.Usage)
	}
	want := []string{
		"turn.start/before", "turn.start/after", "turn.answer/before", "turn.answer/after", "response/before",
		"response/after",
		"dialog/before", "dialog/after", "conversation/before", "conversation/after",
	}
	if !slices.Equal(steps, want) {
		t.Errorf("a plain turn costs %v", steps)
	}
	if got := w.statePath(); got != "IDLE RECEIVING GENERATING PUBLISHING IDLE" {
		t.Errorf("states: %s", got)
	}
	var grown string
	for i, d := range emitted[subjects.Delta](w, "response.delta.q1") {
		grown += d.Text
		if d.N != i || d.QueryID != "q1" || d.RespondentID != "generator" || d.Step != 1 {
			t.Errorf("delta: %+v", d)
		}
	}
	if grown != "Paris." {
		t.Errorf("it grew to %q", grown)
	}
	if th := emitted[subjects.Delta](w, "response.thinking.q1"); len(th) != 1 || th[0].Text != "easy" {
		t.Errorf("thinking: %+v", th)
	}
	c := w.conversation("s1")
	if len(c.Turns) != 1 || c.Turns[0].Answer != "Paris." || c.Turns[0].QueryID != "q1" || c.SessionID != "s1" {
		t.Errorf("conversation: %+v", c)
	}
	for _, s := range w.Published() {
		if s.Session != "s1" || s.Query != "q1" {
			t.Errorf("%s is about %s/%s", s.Subject, s.Session, s.Query)
		}
	}
	if sent := w.asked[0]; sent.Messages[0].Role != model.System ||
		!strings.Contains(sent.Messages[0].Content, "data, not an order") || len(sent.Tools) != 1 {
		t.Errorf("the model was sent %+v", sent)
	}
	w.requireNoErrors()
}

func TestToolTurn(t *testing.T) {
	t.Parallel()
	w := newHarness(t, lookupCall("c1"), "It is noon.", "Still noon.")
	w.tools = []string{"clock"}
	g := New(subjects.Generator, shippedConfig())
	if err := w.ask(g, "s1", "q1", "What time is it?", 1); err != nil {
		t.Fatal(err)
	}
	r := w.onlyResponse()
	if len(r.ToolCalls) != 1 || r.ToolCalls[0].Tool != "clock" || r.ToolCalls[0].Result != "noon" ||
		r.ToolCalls[0].Layer != loop.LayerNative ||
		r.ToolCalls[0].CallID == "c1" || string(r.ToolCalls[0].Args) != `{"q":"now"}` || r.Answer != "It is noon." {
		t.Errorf("answer: %+v", r)
	}
	if got := w.statePath(); got != "IDLE RECEIVING GENERATING DISPATCHING_TOOL WAITING_FOR_TOOL GENERATING "+
		"GENERATING PUBLISHING IDLE" {
		t.Errorf("states: %s", got)
	}
	for _, s := range w.Requested() {
		if s.Subject != "tool.request.clock" {
			continue
		}
		if !strings.Contains(s.Body, `"query_id":"q1"`) ||
			!strings.Contains(s.Body, `"call_id":"`+r.ToolCalls[0].CallID+`"`) {
			t.Errorf("the call does not say which one it is, and for which query: %s", s.Body)
		}
	}
	if err := w.ask(g, "s1", "q2", "And now?", 1); err != nil {
		t.Fatal(err)
	}
	sent := w.asked[2].Messages[1:]
	if stored := buildHistory(w.conversation("s1"))[:4]; len(sent) != 5 || fmt.Sprint(sent[:4]) != fmt.Sprint(stored) {
		t.Errorf("sent\n%+v\nstored\n%+v", sent, stored)
	}
	for _, m := range sent {
		if m.Thinking != "" {
			t.Errorf("thinking is in the history: %+v", m)
		}
	}
	w.requireNoErrors()
}

func TestFailedCallsAreResults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		fault *subjects.Fault
		text  string
		late  bool
	}{
		{"silent", subjects.Faultf(subjects.CodeTimeout, "x"), "[tool unavailable]", true},
		{"gone", subjects.Faultf(subjects.CodeUnavailable, "x"), "[tool unavailable]", true},
		{"denied", &subjects.Fault{
			Code: subjects.CodeDenied, Text: "no",
			Denial: &subjects.Denial{
				Layer: "manifest", Rule: "r", Reason: "not in the set",
				Allowed: []string{"get_datetime"},
			},
		}, "This call is not allowed: not in the set. Allowed: " +
			"get_datetime. Do not try it again in this way.", false},
		{"denied without a reason", subjects.Faultf(subjects.CodeDenied, ""), "This call is not allowed. Do not try " +
			"it again in this way.", false},
		{"perhaps it ran", subjects.Faultf(subjects.CodeUncertain, "mail may be sent"), "It is not known whether " +
			"this call ran before an interruption, and it is not run again. Tell the user so: mail may be sent", false},
		{
			"failed", subjects.Faultf(subjects.CodeTool, "no such zone"), "The call failed (tool_failed): no such zone",
			false,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t, lookupCall("c1"), "I could not look.")
			w.tools = []string{"clock"}
			w.run = func(subjects.ToolRequest) (subjects.ToolResult, error) { return subjects.ToolResult{}, tt.fault }
			if err := w.ask(New(subjects.Generator, shippedConfig()), "s1", "q1", "What time is it?", 1); err != nil {
				t.Fatal(err)
			}
			r := w.onlyResponse()
			if len(r.ToolCalls) != 1 || r.ToolCalls[0].Result != tt.text || r.ToolCalls[0].Error == nil ||
				r.ToolCalls[0].Error.Code != tt.fault.Code {
				t.Errorf("calls: %+v", r.ToolCalls)
			}
			if r.Answer != "I could not look." || r.Error != nil {
				t.Errorf("answer: %+v", r)
			}
			told := slices.ContainsFunc(emitted[subjects.AgentState](w, "agent.state.generator"),
				func(s subjects.AgentState) bool { return s.Event == "TOOL_TIMEOUT" })
			if told != tt.late {
				t.Errorf("TOOL_TIMEOUT told: %v", told)
			}
			w.requireNoErrors()
		})
	}
}

func TestTurnWithoutBrokerAndModelActor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t)
		w.Recorder.Reply = nil // no other actor runs
		if err := w.ask(New(subjects.Generator, shippedConfig()), "s1", "q1", "Hello?", 1); err != nil {
			t.Fatal(err)
		}
		r := w.onlyResponse()
		if r.Error == nil || r.Error.Code != subjects.CodeModelUnreachable || !r.Partial ||
			!strings.Contains(r.Answer, "conclave top") {
			t.Errorf("answer: %+v", r)
		}
		if !slices.Contains(noteCodes(r.Notes), subjects.NoteNoBroker) {
			t.Errorf("notes: %+v", r.Notes)
		}
		if c := w.conversation("s1"); len(c.Turns) != 1 || c.Turns[0].Error != subjects.CodeModelUnreachable {
			t.Errorf("conversation: %+v", c)
		}
	})
}

func TestTooLongQueryIsAnswered(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"long":               strings.Repeat("why? ", 100<<10),
		"control characters": strings.Repeat("\x01", 90<<10),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t, "Paris.")
			if err := w.ask(New(subjects.Generator, shippedConfig()), "s1", "q1", text, 1); err != nil {
				t.Fatal(err)
			}
			if r := w.onlyResponse(); r.Error == nil || r.Error.Code != subjects.CodeTooLarge || len(w.asked) != 0 ||
				len(r.Query) > 64<<10 {
				t.Errorf("answer: %+v", r.Error)
			}
		})
	}
}

// A turn that is too large for its record ends with its text so far.
func TestTooLargeRecordIsAnswered(t *testing.T) {
	t.Parallel()
	cfg := shippedConfig()
	cfg.Result, cfg.Steps = 64<<10, 20
	w := newHarness(t)
	n := 0
	w.replies = []any{func() any {
		n++
		return model.Call{Name: "clock", Arguments: json.RawMessage(fmt.Sprintf(`{"q":"%d"}`, n))}
	}}
	w.role.Window = 1 << 20
	w.tools = []string{"clock"}
	w.run = func(c subjects.ToolRequest) (subjects.ToolResult, error) {
		return subjects.ToolResult{CallID: c.CallID, Result: strings.Repeat("x", 60<<10) + c.CallID}, nil
	}
	if err := w.ask(New(subjects.Generator, cfg), "s1", "q1", "Go on", 1); err != nil {
		t.Fatal(err)
	}
	r := w.onlyResponse()
	if r.Error == nil || r.Error.Code != subjects.CodeTooLarge || len(r.ToolCalls) < 3 || !r.Partial {
		t.Errorf("%d calls, %v, notes %v", len(r.ToolCalls), r.Error, noteCodes(r.Notes))
	}
}

func TestRenamedSessionIsNoted(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "Paris.")
	q := subjects.Query{SessionID: "s1", QueryID: "q1", Query: "Capital?", Note: "The session id goes by s1."}
	if err := w.askCtx(t.Context(), New(subjects.Generator, shippedConfig()), q, 1); err != nil {
		t.Fatal(err)
	}
	if r := w.onlyResponse(); !slices.Contains(r.Notes, subjects.Note{Code: subjects.NoteRenamed, Text: q.Note}) {
		t.Errorf("notes: %+v", r.Notes)
	}
	for _, bad := range []actor.Msg[subjects.Query]{
		{Tokens: []string{"1", "a b"}, Body: subjects.Query{QueryID: "q", Query: "x"}},
		{Tokens: []string{"1", "s"}, Body: subjects.Query{QueryID: "a.b", Query: "x"}},
		{Tokens: []string{"1"}, Body: subjects.Query{QueryID: "q", Query: "x"}},
	} {
		if err := New(subjects.Generator, shippedConfig()).onTurn(t.Context(), bad,
			w.Out()); actortest.Code(err) != subjects.CodeMalformed {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestDemoModelIsNoted(t *testing.T) {
	t.Parallel()
	last := final()
	last.DemoModel, last.Notice = true, "gemma is not there; fetch it with: conclave model pull gemma"
	w := newHarness(t, actortest.Pieces{subjects.ChatChunk{Content: "I am a script."}, last})
	if err := w.ask(New(subjects.Generator, shippedConfig()), "s1", "q1", "Who are you?", 1); err != nil {
		t.Fatal(err)
	}
	r := w.onlyResponse()
	if !r.DemoModel || !slices.Contains(noteCodes(r.Notes), subjects.NoteDemoModel) ||
		!slices.Contains(r.Notes, subjects.Note{Code: subjects.NoteModel, Text: last.Notice}) {
		t.Errorf("answer: %+v", r)
	}
}

func TestAssistantModelIsCached(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "Yes.")
	w.Time = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	g := New(subjects.Generator, shippedConfig())
	count := func(subject string) (n int) {
		for _, s := range w.Requested() {
			if s.Subject == subject {
				n++
			}
		}
		return n
	}
	for i := range 4 {
		if i == 3 {
			w.Time = w.Time.Add(time.Minute)
		}
		if err := w.ask(g, "s1", fmt.Sprint("q", i), "Really?", 1); err != nil {
			t.Fatal(err)
		}
	}
	// tools are asked for each time: the user may have granted one
	if a, b := count("model.list"), count("broker.discover"); a != 2 || b != 4 {
		t.Errorf("asked %d and %d times", a, b)
	}
}

// A notice of the model actor about a machine is an event at once, and a note of the answer.
func TestNoticeAboutMachine(t *testing.T) {
	t.Parallel()
	const notice = "the connection to gpu-box is interrupted; waiting for it"
	w := newHarness(t, actortest.Pieces{
		subjects.ChatChunk{Content: "Paris "},
		subjects.ChatChunk{Notice: notice},
		subjects.ChatChunk{Content: "it is."},
		final(),
	})
	if err := w.ask(New(subjects.Generator, shippedConfig()), "s1", "q1", "capital of France?", 1); err != nil {
		t.Fatal(err)
	}
	told := slices.ContainsFunc(emitted[subjects.AgentState](w, "agent.state.generator"),
		func(s subjects.AgentState) bool {
			return s.Code == loop.NoteMachine && s.Words == notice && s.QueryID == "q1"
		})
	r := w.onlyResponse()
	if !told || r.Answer != "Paris it is." ||
		!slices.Contains(r.Notes, subjects.Note{Code: loop.NoteMachine, Text: notice}) {
		t.Errorf("told %t, %q, notes %+v", told, r.Answer, r.Notes)
	}
}
