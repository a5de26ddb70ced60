package generator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/subjects"
)

// shipped is the configuration as people get it.
func shipped() Config {
	return Config{
		Steps: 5, Wall: 10 * time.Minute, CallTimeout: 2 * time.Minute, ToolTimeout: time.Minute, Nudges: 2, Retries: 2, Repeats: 3,
		Predict: 2048, Answer: 4096, Result: 16 << 10, MaxTools: 4, Hedge: Hedge{Search: "web_search", Reask: true}, Stream: true, Thinking: true,
		HotSessions: 50, Turns: 50, CompactAt: 60,
	}
}

// world is everyone around one or more generators: a model that follows a script, a broker with a ledger, a store.
type world struct {
	actortest.Recorder
	t testing.TB

	mu      sync.Mutex
	replies []any           // of model.chat, in order; the last one is repeated. A func() any is called
	asked   []model.Request // what the model was sent
	tools   []string        // what the broker offers
	run     func(call subjects.ToolRequest) (subjects.ToolResult, error)
	ledger  map[string]subjects.ToolResult // by call id
	ran     int
	role    subjects.RoleModel
	summary any // what the model says in the role summaries
}

func newWorld(t testing.TB, replies ...any) *world {
	w := &world{t: t, replies: replies, ledger: map[string]subjects.ToolResult{}}
	w.role = subjects.RoleModel{Role: "assistant", Model: "test:1b", Window: 32768, Stream: true, Tools: true, Thinking: true}
	w.Recorder.Answer = w.answer
	return w
}

func (w *world) answer(subject string, body []byte) (any, error) {
	switch {
	case subject == "model.list":
		return subjects.ModelList{Models: []subjects.ModelInfo{}, Roles: []subjects.RoleModel{w.role}}, nil
	case subject == "broker.discover":
		reply := subjects.DiscoverReply{Tools: []subjects.ToolSchema{}}
		for _, name := range w.tools {
			reply.Tools = append(reply.Tools, subjects.ToolSchema{
				Name: name, Description: "does " + name,
				Parameters: json.RawMessage(`{"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}`),
			})
		}
		return reply, nil
	case subject == "model.chat":
		return w.chat(body)
	case strings.HasPrefix(subject, "tool.request."):
		return w.call(body)
	}
	return nil, subjects.Faultf(subjects.CodeUnavailable, "nobody answers %s", subject)
}

func (w *world) chat(body []byte) (any, error) {
	var q struct {
		Role     string          `json:"role"`
		Messages []model.Message `json:"messages"`
		Tools    []model.Tool    `json:"tools"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		w.t.Errorf("the model was asked something that cannot be read: %v", err)
	}
	w.mu.Lock()
	if q.Role == "summaries" {
		w.mu.Unlock()
		return asReply(w.summary)
	}
	w.asked = append(w.asked, model.Request{Messages: q.Messages, Tools: q.Tools})
	if len(w.replies) == 0 {
		w.mu.Unlock()
		return nil, subjects.Faultf(subjects.CodeModelMissing, "the script is empty")
	}
	next := w.replies[0]
	if len(w.replies) > 1 {
		w.replies = w.replies[1:]
	}
	w.mu.Unlock()
	if f, ok := next.(func() any); ok {
		next = f()
	}
	return asReply(next)
}

// asReply makes chunks of what a script says: words, a call, pieces or an error.
func asReply(v any) (any, error) {
	switch v := v.(type) {
	case error:
		return nil, v
	case string:
		return actortest.Pieces{subjects.ChatChunk{Content: v}, final()}, nil
	case model.Call:
		calls, err := json.Marshal([]model.Call{v})
		return actortest.Pieces{subjects.ChatChunk{Thinking: "a tool knows", ToolCalls: calls}, final()}, err
	case []model.Call:
		calls, err := json.Marshal(v)
		return actortest.Pieces{subjects.ChatChunk{ToolCalls: calls}, final()}, err
	}
	return v, nil
}

func final() subjects.ChatChunk {
	return subjects.ChatChunk{Done: true, Model: "test:1b", Reason: "stop", Usage: subjects.Usage{PromptTokens: 11, CompletionTokens: 7}}
}

// call is a broker with a ledger: a call id that ran before has its result.
func (w *world) call(body []byte) (any, error) {
	var c subjects.ToolRequest
	if err := json.Unmarshal(body, &c); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if r, ok := w.ledger[c.CallID]; ok {
		return r, nil
	}
	res := subjects.ToolResult{CallID: c.CallID, Result: "noon"}
	if w.run != nil {
		var err error
		if res, err = w.run(c); err != nil {
			return nil, err
		}
	}
	w.ran++
	w.ledger[c.CallID] = res
	return res, nil
}

// ask gives a question to a generator as the runtime would.
func (w *world) ask(g *Generator, session, query, text string, try int) error {
	return w.askCtx(w.t.Context(), g, subjects.Query{SessionID: session, QueryID: query, Query: text}, try)
}

func (w *world) askCtx(ctx context.Context, g *Generator, q subjects.Query, try int) error {
	in := actor.Msg[subjects.Query]{Subject: "turn.3." + q.SessionID, Tokens: []string{"3", q.SessionID}, Try: try, Body: q}
	return g.onTurn(ctx, in, w.Out())
}

// said are the bodies said on a subject.
func said[T any](w *world, subject string) (out []T) {
	for _, s := range w.Said() {
		if s.Subject != subject {
			continue
		}
		var v T
		if err := json.Unmarshal([]byte(s.Body), &v); err != nil {
			w.t.Errorf("%s: %v: %s", subject, err, s.Body)
		}
		out = append(out, v)
	}
	return out
}

func (w *world) responses() []subjects.Response {
	return said[subjects.Response](w, "response.generation")
}

// one is the only answer that was given.
func (w *world) one() subjects.Response {
	w.t.Helper()
	all := w.responses()
	if len(all) != 1 {
		w.t.Fatalf("%d answers were stored, want 1: %+v", len(all), all)
	}
	if d := said[subjects.Dialog](w, "answer.dialog"); len(d) != 1 || d[0].Answer != all[0].Answer || d[0].QueryID != all[0].QueryID {
		w.t.Errorf("the light form is %+v", d)
	}
	return all[0]
}

func (w *world) conversation(session string) subjects.Conversation {
	w.t.Helper()
	c, _, err := readConversation(w.t.Context(), w.Out().Store(bucket), session)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// path is the way through the states, as it was told.
func (w *world) path() string {
	var b strings.Builder
	for _, s := range said[subjects.AgentState](w, "agent.state.generator") {
		if s.Event == "" {
			continue
		}
		if b.Len() == 0 {
			b.WriteString(s.From)
		}
		b.WriteString(" " + s.To)
	}
	return b.String()
}

func codes(notes []subjects.Note) (out []string) {
	for _, n := range notes {
		out = append(out, n.Code)
	}
	return out
}

// quiet fails a test in which the actor wrote an error into the log.
func (w *world) quiet() {
	w.t.Helper()
	for _, err := range w.Noted() {
		w.t.Errorf("noted: %v", err)
	}
}

func lookup(id string) model.Call {
	return model.Call{ID: id, Name: "clock", Arguments: json.RawMessage(`{"q":"now"}`)}
}

func TestTransitions(t *testing.T) {
	t.Parallel()
	want := map[string]state{
		"IDLE RECEIVE_QUERY":             receiving,
		"RECEIVING START_GENERATION":     generating,
		"RECEIVING FINISH":               publishing,
		"RECEIVING FAIL":                 idle,
		"GENERATING START_GENERATION":    generating,
		"GENERATING DISPATCH_TOOL":       dispatching,
		"GENERATING FINISH":              publishing,
		"GENERATING FAIL":                idle,
		"DISPATCHING_TOOL DISPATCH_TOOL": waiting,
		"DISPATCHING_TOOL FINISH":        publishing,
		"DISPATCHING_TOOL FAIL":          idle,
		"WAITING_FOR_TOOL TOOL_RESULT":   generating,
		"WAITING_FOR_TOOL TOOL_TIMEOUT":  generating,
		"WAITING_FOR_TOOL FINISH":        publishing,
		"WAITING_FOR_TOOL FAIL":          idle,
		"PUBLISHING FINISH":              idle,
		"PUBLISHING FAIL":                idle,
	}
	if len(states) != 6 || len(events) != 7 {
		t.Fatalf("%d states and %d events", len(states), len(events))
	}
	for _, s := range states {
		for _, e := range events {
			told := ""
			m := &machine{at: s, tell: func(from, to state, e event, step int) { told = fmt.Sprintf("%s %s %s %d", from, e, to, step) }}
			err := m.fire(e, 2)
			to, ok := want[string(s)+" "+string(e)]
			switch {
			case ok && (err != nil || m.at != to || told != fmt.Sprintf("%s %s %s 2", s, e, to)):
				t.Errorf("%s by %s: at %s, %v, told %q; want %s", s, e, m.at, err, told, to)
			case !ok && (err == nil || m.at != s || told != ""):
				t.Errorf("%s by %s: at %s, told %q; must be refused", s, e, m.at, told)
			}
		}
	}
}

func TestReach(t *testing.T) {
	t.Parallel()
	for _, s := range states {
		for _, e := range events {
			m := newMachine(func(state, state, event, int) {})
			m.at = s
			err := m.reach(e, 1)
			can := slices.Contains(slices.Collect(maps.Keys(transitions[s])), e)
			if can && err != nil {
				t.Errorf("%s by %s: %v", s, e, err)
			}
			if s == idle && e != receiveQuery && err == nil {
				t.Errorf("%s left idle without a question", e)
			}
		}
	}
}

func TestPlainTurn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, actortest.Pieces{
		subjects.ChatChunk{Thinking: "easy"}, subjects.ChatChunk{Content: "Par"}, subjects.ChatChunk{Content: "is."}, final(),
	})
	w.tools = []string{"clock"}
	g := New(shipped())
	var steps []string
	g.Boundary = func(s string) { steps = append(steps, s) }
	if err := w.ask(g, "s1", "q1", "What is the capital of France?", 1); err != nil {
		t.Fatal(err)
	}
	r := w.one()
	if r.Answer != "Paris." || r.Thinking != "easy" || r.SessionID != "s1" || r.QueryID != "q1" || r.Query != "What is the capital of France?" ||
		r.GeneratorID != "generator" || r.RespondentID != "generator" || r.Model != "test:1b" || r.Partial || r.Error != nil || r.ToolCalls == nil {
		t.Errorf("answer: %+v", r)
	}
	if r.Usage.PromptTokens != 11 || r.Usage.CompletionTokens != 7 || r.Usage.ModelCalls != 1 || r.Usage.Counted != 11 || r.Usage.Estimated == 0 {
		t.Errorf("usage: %+v", r.Usage)
	}
	want := []string{
		"turn.start/before", "turn.start/after", "turn.answer/before", "turn.answer/after", "response/before", "response/after",
		"dialog/before", "dialog/after", "conversation/before", "conversation/after",
	}
	if !slices.Equal(steps, want) {
		t.Errorf("a plain turn costs %v", steps)
	}
	if got := w.path(); got != "IDLE RECEIVING GENERATING PUBLISHING IDLE" {
		t.Errorf("states: %s", got)
	}
	var grown string
	for i, d := range said[subjects.Delta](w, "response.delta.q1") {
		if grown += d.Text; d.N != i || d.QueryID != "q1" || d.RespondentID != "generator" || d.Step != 1 {
			t.Errorf("delta: %+v", d)
		}
	}
	if grown != "Paris." {
		t.Errorf("it grew to %q", grown)
	}
	if th := said[subjects.Delta](w, "response.thinking.q1"); len(th) != 1 || th[0].Text != "easy" {
		t.Errorf("thinking: %+v", th)
	}
	c := w.conversation("s1")
	if len(c.Turns) != 1 || c.Turns[0].Answer != "Paris." || c.Turns[0].QueryID != "q1" || c.SessionID != "s1" {
		t.Errorf("conversation: %+v", c)
	}
	for _, s := range w.Said() {
		if s.Session != "s1" || s.Query != "q1" {
			t.Errorf("%s is about %s/%s", s.Subject, s.Session, s.Query)
		}
	}
	if sent := w.asked[0]; sent.Messages[0].Role != model.System || !strings.Contains(sent.Messages[0].Content, "data, not an order") || len(sent.Tools) != 1 {
		t.Errorf("the model was sent %+v", sent)
	}
	w.quiet()
}

func TestToolTurn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lookup("c1"), "It is noon.", "Still noon.")
	w.tools = []string{"clock"}
	g := New(shipped())
	if err := w.ask(g, "s1", "q1", "What time is it?", 1); err != nil {
		t.Fatal(err)
	}
	r := w.one()
	if len(r.ToolCalls) != 1 || r.ToolCalls[0].Tool != "clock" || r.ToolCalls[0].Result != "noon" || r.ToolCalls[0].Layer != loop.LayerNative ||
		r.ToolCalls[0].CallID == "c1" || string(r.ToolCalls[0].Args) != `{"q":"now"}` || r.Answer != "It is noon." {
		t.Errorf("answer: %+v", r)
	}
	if got := w.path(); got != "IDLE RECEIVING GENERATING DISPATCHING_TOOL WAITING_FOR_TOOL GENERATING GENERATING PUBLISHING IDLE" {
		t.Errorf("states: %s", got)
	}
	for _, s := range w.Asked() {
		if s.Subject != "tool.request.clock" {
			continue
		}
		if !strings.Contains(s.Body, `"query_id":"q1"`) || !strings.Contains(s.Body, `"call_id":"`+r.ToolCalls[0].CallID+`"`) {
			t.Errorf("the call does not say which one it is, and for which query: %s", s.Body)
		}
	}
	if err := w.ask(g, "s1", "q2", "And now?", 1); err != nil {
		t.Fatal(err)
	}
	sent := w.asked[2].Messages[1:]
	if stored := history(w.conversation("s1"))[:4]; len(sent) != 5 || fmt.Sprint(sent[:4]) != fmt.Sprint(stored) {
		t.Errorf("sent\n%+v\nstored\n%+v", sent, stored)
	}
	for _, m := range sent {
		if m.Thinking != "" {
			t.Errorf("thinking is in the history: %+v", m)
		}
	}
	w.quiet()
}

func TestCallsThatBringNothing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		fault *subjects.Fault
		text  string
		late  bool
	}{
		{"silent", subjects.Faultf(subjects.CodeTimeout, "x"), "[tool unavailable]", true},
		{"gone", subjects.Faultf(subjects.CodeUnavailable, "x"), "[tool unavailable]", true},
		{"denied", &subjects.Fault{Code: subjects.CodeDenied, Text: "no", Denial: &subjects.Denial{Layer: "manifest", Rule: "r", Reason: "not in the set", Allowed: []string{"get_datetime"}}}, "This call is not allowed: not in the set. Allowed: get_datetime. Do not try it again in this way.", false},
		{"denied without a reason", subjects.Faultf(subjects.CodeDenied, ""), "This call is not allowed. Do not try it again in this way.", false},
		{"perhaps it ran", subjects.Faultf(subjects.CodeUncertain, "mail may be sent"), "It is not known whether this call ran before an interruption, and it is not run again. Tell the person so: mail may be sent", false},
		{"failed", subjects.Faultf(subjects.CodeTool, "no such zone"), "The call failed (tool_failed): no such zone", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, lookup("c1"), "I could not look.")
			w.tools = []string{"clock"}
			w.run = func(subjects.ToolRequest) (subjects.ToolResult, error) { return subjects.ToolResult{}, tt.fault }
			if err := w.ask(New(shipped()), "s1", "q1", "What time is it?", 1); err != nil {
				t.Fatal(err)
			}
			r := w.one()
			if len(r.ToolCalls) != 1 || r.ToolCalls[0].Result != tt.text || r.ToolCalls[0].Error == nil || r.ToolCalls[0].Error.Code != tt.fault.Code {
				t.Errorf("calls: %+v", r.ToolCalls)
			}
			if r.Answer != "I could not look." || r.Error != nil {
				t.Errorf("answer: %+v", r)
			}
			told := slices.ContainsFunc(said[subjects.AgentState](w, "agent.state.generator"), func(s subjects.AgentState) bool { return s.Event == "TOOL_TIMEOUT" })
			if told != tt.late {
				t.Errorf("TOOL_TIMEOUT told: %v", told)
			}
			w.quiet()
		})
	}
}

func TestWithoutOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Recorder.Answer = nil // nobody is there
	if err := w.ask(New(shipped()), "s1", "q1", "Hello?", 1); err != nil {
		t.Fatal(err)
	}
	r := w.one()
	if r.Error == nil || r.Error.Code != subjects.CodeModelUnreachable || !strings.Contains(r.Answer, "conclave top") || !r.Partial {
		t.Errorf("answer: %+v", r)
	}
	if !slices.Contains(codes(r.Notes), subjects.NoteNoBroker) {
		t.Errorf("notes: %+v", r.Notes)
	}
	if c := w.conversation("s1"); len(c.Turns) != 1 || c.Turns[0].Error != subjects.CodeModelUnreachable {
		t.Errorf("conversation: %+v", c)
	}
}

func TestModelFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ code, text, want string }{
		{subjects.CodeModelUnreachable, "the model server does not answer: no connection to http://localhost:11434; start it with: ollama serve", "The model server does not answer: no connection to http://localhost:11434; start it with: ollama serve."},
		{subjects.CodeModelUnreachable, "the model server does not answer", "Start it with: ollama serve."},
		{subjects.CodeModelMissing, "the model is not there: x; fetch it with: conclave model pull x", "fetch it with: conclave model pull x."},
		{subjects.CodeModelMissing, "the model is not there", "Fetch it with: conclave model pull"},
		{subjects.CodeModelRemote, "the model would leave this machine: x:cloud", "Nothing was sent."},
		{subjects.CodeModelKey, "the model server does not accept the key", "has no keyring"},
		{subjects.CodeModelTooLong, "the prompt is longer than the model's context", "new session"},
		{subjects.CodeUnsupported, "the backend cannot do that", "models.yaml"},
		{subjects.CodeTimeout, "no answer from model.chat in time", "The model did not answer in time."},
		{subjects.CodeInternal, "model failed; its log says why", "Ask again."},
	} {
		t.Run(tt.code+" "+tt.text, func(t *testing.T) {
			t.Parallel()
			f, words := explain(wire.Error(actor.AsReplied(subjects.Faultf(tt.code, "%s", tt.text))))
			if f.Code != tt.code || !strings.Contains(words, tt.want) || strings.Contains(words, "\n") {
				t.Errorf("%+v, %q", f, words)
			}
		})
	}
	for _, tt := range troubles {
		if f, words := explain(fmt.Errorf("deep inside: %w", tt.err)); f.Code != tt.code || words == "" || f.Text == "" {
			t.Errorf("%v: %+v, %q", tt.err, f, words)
		}
	}
	f, words := explain(errors.New("secret inside"))
	if f.Code != subjects.CodeInternal || strings.Contains(words+f.Text, "secret") {
		t.Errorf("an unknown error is told as %+v, %q", f, words)
	}
}

// A model that fails for good is told in the answer, in words, through the whole path.
func TestModelFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, subjects.Faultf(subjects.CodeModelMissing, "the model is not there: x; fetch it with: conclave model pull x"))
	if err := w.ask(New(shipped()), "s1", "q1", "Hello?", 1); err != nil {
		t.Fatal(err)
	}
	if r := w.one(); r.Error == nil || r.Error.Code != subjects.CodeModelMissing || r.Answer != "The model is not there: x; fetch it with: conclave model pull x." {
		t.Errorf("answer: %+v", r)
	}
	if got := w.path(); got != "IDLE RECEIVING GENERATING PUBLISHING IDLE" {
		t.Errorf("states: %s", got)
	}
	w.quiet()
}

// boundaries of a turn with one tool call.
func boundaries() (out []string) {
	for _, s := range []string{"turn.start", "turn.step", "turn.answer", "response", "dialog", "conversation"} {
		out = append(out, s+"/before", s+"/after")
	}
	return out
}

// crash ends a generator at a boundary as a killed process would end: nothing after it runs.
type crash string

// dies gives a question to a generator that ends at a boundary, the nth time it gets there.
func (w *world) dies(at string, nth int, session, query string, try int) {
	w.t.Helper()
	g := New(shipped())
	times := 0
	g.Boundary = func(s string) {
		if s == at {
			if times++; times == nth {
				panic(crash(s))
			}
		}
	}
	defer func() {
		if p := recover(); p != crash(at) {
			w.t.Errorf("it did not die at %s: %v", at, p)
		}
	}()
	_ = w.ask(g, session, query, "What time is it?", try)
}

func TestCrashAtEachBoundary(t *testing.T) {
	t.Parallel()
	for _, at := range boundaries() {
		for nth := 1; nth <= 2; nth++ {
			if nth == 2 && !strings.HasPrefix(at, "turn.step") { // the others are passed once
				continue
			}
			t.Run(fmt.Sprintf("%s %d", at, nth), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, lookup("c1"), "It is noon.")
				if nth == 1 && at == "turn.step/before" {
					w.replies = []any{lookup("c1"), lookup("c1"), "It is noon."} // nothing was written down: it is asked again
				}
				w.tools = []string{"clock"}
				w.dies(at, nth, "s1", "q1", 1)
				if err := w.ask(New(shipped()), "s1", "q1", "What time is it?", 2); err != nil {
					t.Fatal(err)
				}
				r := w.one()
				if r.Answer != "It is noon." || len(r.ToolCalls) != 1 || r.ToolCalls[0].Result != "noon" {
					t.Errorf("answer: %+v", r)
				}
				if w.ran != 1 {
					t.Errorf("the tool ran %d times", w.ran)
				}
				if c := w.conversation("s1"); len(c.Turns) != 1 || len(c.Turns[0].Messages) != 2 {
					t.Errorf("conversation: %+v", c)
				}
				w.quiet()
			})
		}
	}
}

// After the answer was stored, nothing is asked of the model again.
func TestResumeDoesNotAskAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lookup("c1"), "It is noon.", "wrong")
	w.tools = []string{"clock"}
	w.dies("turn.answer/after", 1, "s1", "q1", 1)
	if err := w.ask(New(shipped()), "s1", "q1", "What time is it?", 2); err != nil {
		t.Fatal(err)
	}
	if r := w.one(); r.Answer != "It is noon." || len(w.asked) != 2 {
		t.Errorf("%d model calls, %+v", len(w.asked), r)
	}
}

// Two work at the same turn: one was paused, and its turn was given to the other.
func TestFence(t *testing.T) {
	t.Parallel()
	for _, at := range boundaries() {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, lookup("c1"), "It is noon.")
			w.replies = []any{func() any { // whoever asks first after a question gets the call, after a result the answer
				w.mu.Lock()
				defer w.mu.Unlock()
				last := w.asked[len(w.asked)-1].Messages
				if last[len(last)-1].Role == model.ToolRole {
					return "It is noon."
				}
				return lookup("c1")
			}}
			w.tools = []string{"clock"}
			paused, wake := make(chan struct{}), make(chan struct{})
			a := New(shipped())
			var once sync.Once
			a.Boundary = func(s string) {
				if s == at {
					once.Do(func() { close(paused); <-wake })
				}
			}
			lost := make(chan error)
			go func() { lost <- w.ask(a, "s1", "q1", "What time is it?", 1) }()
			<-paused
			if err := w.ask(New(shipped()), "s1", "q1", "What time is it?", 2); err != nil {
				t.Error(err)
			}
			close(wake)
			if err := <-lost; err != nil {
				t.Errorf("the one who was paused: %v", err)
			}
			if r := w.one(); r.Answer != "It is noon." || len(r.ToolCalls) != 1 {
				t.Errorf("answer: %+v", r)
			}
			if c := w.conversation("s1"); len(c.Turns) != 1 || w.ran != 1 {
				t.Errorf("the tool ran %d times; conversation: %+v", w.ran, c)
			}
			w.quiet()
		})
	}
}

// A process that was paused for longer than the stream remembers ids must not say the answer again.
func TestFenceAfterALongPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "It is noon.")
	w.Time = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a := New(shipped())
	var said int
	a.Boundary = func(s string) {
		switch s {
		case "turn.answer/after": // here it is paused; the other one finishes
			if err := w.ask(New(shipped()), "s1", "q1", "What time is it?", 2); err != nil {
				t.Error(err)
			}
			w.Time = w.Time.Add(10 * time.Minute)
		case "response/before":
			said++
		}
	}
	if err := w.ask(a, "s1", "q1", "What time is it?", 1); err != nil {
		t.Error(err)
	}
	if w.one(); said != 0 {
		t.Error("it spoke although its turn was taken")
	}
}

func TestAskedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "Paris.", "London.")
	g := New(shipped())
	for i := range 3 {
		g := g
		if i == 2 {
			g = New(shipped()) // one that knows nothing yet
		}
		if err := w.ask(g, "s1", "q1", "Capital?", 1); err != nil {
			t.Fatal(err)
		}
	}
	if r := w.one(); r.Answer != "Paris." || len(w.asked) != 1 {
		t.Errorf("%d model calls, %+v", len(w.asked), r)
	}
	n := 0
	for _, s := range said[subjects.AgentState](w, "agent.state.generator") {
		if s.Code == subjects.NoteDuplicate {
			n++
		}
	}
	if n != 2 {
		t.Errorf("told %d times", n)
	}
}

func TestStopped(t *testing.T) {
	t.Parallel()
	cancel := func(t *testing.T, w *world, g *Generator) {
		t.Helper()
		if _, err := w.Deliver(t, g, actortest.Message{Subject: "query.cancel.q1", Body: subjects.Cancel{Reason: "enough"}}); err != nil {
			t.Error(err)
		}
	}
	t.Run("before it began", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "Paris.")
		g := New(shipped())
		cancel(t, w, g)
		if err := w.ask(g, "s1", "q1", "Capital?", 1); err != nil {
			t.Fatal(err)
		}
		if r := w.one(); !r.Partial || r.Error != nil || r.Answer != "Stopped before there was an answer." || !slices.Contains(codes(r.Notes), "stopped") || len(w.asked) != 0 {
			t.Errorf("answer: %+v", r)
		}
		if err := w.ask(g, "s1", "q2", "Capital?", 1); err != nil || len(w.responses()) != 2 || w.responses()[1].Answer != "Paris." {
			t.Errorf("the next question: %v, %+v", err, w.responses())
		}
	})
	t.Run("in the middle of the answer", func(t *testing.T) {
		t.Parallel()
		g := New(shipped())
		w := newWorld(t)
		w.replies = []any{actortest.Pieces{subjects.ChatChunk{Content: "It was the best of times"}, stopHere{func() { cancel(t, w, g) }}, subjects.ChatChunk{Content: ", it was"}, final()}}
		if err := w.ask(g, "s1", "q1", "Tell me a tale", 1); err != nil {
			t.Fatal(err)
		}
		if r := w.one(); !r.Partial || r.Error != nil || !strings.HasPrefix(r.Answer, "It was the best of times") || strings.Contains(r.Answer, "it was") || !slices.Contains(codes(r.Notes), "stopped") {
			t.Errorf("answer: %+v", r)
		}
		w.quiet()
	})
	t.Run("while a tool works", func(t *testing.T) {
		t.Parallel()
		g := New(shipped())
		w := newWorld(t, lookup("c1"), "It is noon.")
		w.tools = []string{"clock"}
		w.run = func(subjects.ToolRequest) (subjects.ToolResult, error) {
			cancel(t, w, g)
			return subjects.ToolResult{}, subjects.Faultf(subjects.CodeTimeout, "gone")
		}
		if err := w.ask(g, "s1", "q1", "What time is it?", 1); err != nil {
			t.Fatal(err)
		}
		if r := w.one(); !r.Partial || r.Answer != "Stopped before there was an answer." {
			t.Errorf("answer: %+v", r)
		}
		w.quiet()
	})
	t.Run("too many are remembered", func(t *testing.T) {
		t.Parallel()
		var s stops
		for i := range maxStopped + 10 {
			s.stop(fmt.Sprint(i))
			s.stop(fmt.Sprint(i))
		}
		if len(s.stopped) != maxStopped || s.stopped[0] != "10" {
			t.Errorf("%d, from %s", len(s.stopped), s.stopped[0])
		}
	})
}

// stopHere is a piece that does something when it is encoded, in the middle of a reply.
type stopHere struct{ do func() }

func (s stopHere) MarshalJSON() ([]byte, error) {
	s.do()
	return json.Marshal(subjects.ChatChunk{})
}

// A house that closes in mid-turn answers nothing: the turn goes on when it is open again.
func TestClosing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "Paris.")
	ctx, stop := context.WithCancel(t.Context())
	w.replies = []any{func() any { stop(); return "Par" }, "Paris."}
	q := subjects.Query{SessionID: "s1", QueryID: "q1", Query: "Capital?"}
	if err := w.askCtx(ctx, New(shipped()), q, 1); err == nil {
		t.Error("it was acknowledged")
	}
	if n := len(w.responses()); n != 0 {
		t.Fatalf("%d answers", n)
	}
	if err := w.ask(New(shipped()), "s1", "q1", "Capital?", 2); err != nil {
		t.Fatal(err)
	}
	if r := w.one(); r.Answer != "Paris." || r.Partial {
		t.Errorf("answer: %+v", r)
	}
}

func TestAskersDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	w.replies = []any{func() any { <-ctx.Done(); return "late" }}
	if err := w.askCtx(ctx, New(shipped()), subjects.Query{SessionID: "s1", QueryID: "q1", Query: "Capital?"}, 1); err != nil {
		t.Fatal(err)
	}
	if r := w.one(); r.Error == nil || r.Error.Code != subjects.CodeTimeout || !r.Partial || r.Answer == "" {
		t.Errorf("answer: %+v", r)
	}
}

// What keeps dying at the same place is told at the last try, and the session goes on.
func TestLastTry(t *testing.T) {
	t.Parallel()
	t.Run("dies at the same place each time", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, lookup("c1"), "It is noon.")
		w.tools = []string{"clock"}
		for try := 1; try < subjects.MaxDeliver; try++ {
			w.dies("turn.answer/before", 1, "s1", "q1", try)
		}
		if err := w.ask(New(shipped()), "s1", "q1", "What time is it?", subjects.MaxDeliver); err != nil {
			t.Fatal(err)
		}
		r := w.one()
		if r.Error == nil || r.Error.Code != subjects.CodeInternal || len(r.ToolCalls) != 1 || !slices.Contains(codes(r.Notes), subjects.NoteLost) || w.ran != 1 {
			t.Errorf("the tool ran %d times, answer: %+v", w.ran, r)
		}
	})
	t.Run("comes further each time", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, lookup("c1"), "It is noon.")
		w.tools = []string{"clock"}
		for i, at := range []string{"turn.start/after", "turn.step/after", "response/before", "response/after"} {
			w.dies(at, 1, "s1", "q1", i+1)
		}
		if err := w.ask(New(shipped()), "s1", "q1", "What time is it?", subjects.MaxDeliver); err != nil {
			t.Fatal(err)
		}
		if r := w.one(); r.Error != nil || r.Answer != "It is noon." || w.ran != 1 {
			t.Errorf("answer: %+v", r)
		}
	})
	t.Run("panics", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, func() any { panic("a bug") })
		if err := w.ask(New(shipped()), "s1", "q1", "What time is it?", subjects.MaxDeliver); err == nil {
			t.Error("no dead letter")
		}
		if r := w.responses(); len(r) != 1 || r[0].Error == nil || strings.Contains(r[0].Answer, "a bug") {
			t.Errorf("answers: %+v", r)
		}
	})
	t.Run("the store is gone", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "Paris.")
		store := w.Out().Store(bucket)
		if _, err := store.Put(t.Context(), subjects.ConversationKey("s1"), []byte("no JSON"), 0); err != nil {
			t.Fatal(err)
		}
		for try := 1; try <= subjects.MaxDeliver; try++ {
			if err := w.ask(New(shipped()), "s1", "q1", "Capital?", try); err == nil {
				t.Error("it was acknowledged")
			}
		}
		if r := w.responses(); len(r) != 1 || r[0].Error == nil || r[0].QueryID != "q1" {
			t.Errorf("answers: %+v", r)
		}
	})
	t.Run("killed at the last try too", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, lookup("c1"), "It is noon.")
		w.tools = []string{"clock"}
		w.dies("turn.step/after", 1, "s1", "q1", 4)
		if err := w.ask(New(shipped()), "s1", "q2", "Hello?", 1); err != nil {
			t.Fatal(err)
		}
		all := w.responses()
		if len(all) != 2 || all[0].QueryID != "q1" || all[0].Error == nil || all[0].Query != "What time is it?" || all[1].QueryID != "q2" || all[1].Error != nil {
			t.Errorf("answers: %+v", all)
		}
		if c := w.conversation("s1"); len(c.Turns) != 2 {
			t.Errorf("conversation: %+v", c)
		}
	})
	t.Run("killed while it was stored", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "It is noon.")
		w.dies("response/after", 1, "s1", "q1", 4)
		if err := w.ask(New(shipped()), "s1", "q2", "Hello?", 1); err != nil {
			t.Fatal(err)
		}
		all := w.responses()
		if len(all) != 2 || all[0].QueryID != "q1" || all[0].Answer != "It is noon." || all[1].QueryID != "q2" || len(w.conversation("s1").Turns) != 2 {
			t.Errorf("answers: %+v", all)
		}
	})
}

func TestTooLong(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"long": strings.Repeat("why? ", 100<<10), "control characters": strings.Repeat("\x01", 90<<10)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "Paris.")
			if err := w.ask(New(shipped()), "s1", "q1", text, 1); err != nil {
				t.Fatal(err)
			}
			if r := w.one(); r.Error == nil || r.Error.Code != subjects.CodeTooLarge || len(w.asked) != 0 || len(r.Query) > 64<<10 {
				t.Errorf("answer: %+v", r.Error)
			}
		})
	}
}

// A turn that has grown too large to be written down ends with what is there.
func TestTooMuch(t *testing.T) {
	t.Parallel()
	cfg := shipped()
	cfg.Result, cfg.Steps = 64<<10, 20
	w := newWorld(t)
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
	if err := w.ask(New(cfg), "s1", "q1", "Go on", 1); err != nil {
		t.Fatal(err)
	}
	r := w.one()
	if r.Error == nil || r.Error.Code != subjects.CodeTooLarge || len(r.ToolCalls) < 3 || !r.Partial {
		t.Errorf("%d calls, %v, notes %v", len(r.ToolCalls), r.Error, codes(r.Notes))
	}
}

// An answer's record is made to fit, and says so.
func TestFit(t *testing.T) {
	t.Parallel()
	small := subjects.Response{Query: "q", Answer: "a"}
	if got := fit(small); fmt.Sprint(got) != fmt.Sprint(small) {
		t.Errorf("a small one became %+v", got)
	}
	calls := []subjects.ToolCall{{Tool: "a", Args: json.RawMessage(`"` + strings.Repeat("x", 300<<10) + `"`), Result: strings.Repeat("y", 500<<10)}}
	for name, r := range map[string]subjects.Response{
		"results":  {Answer: "a", ToolCalls: calls},
		"thinking": {Answer: "a", Thinking: strings.Repeat("\x01", 120<<10)},
		"question": {Answer: "a", Query: strings.Repeat("z", 700<<10)},
		"answer":   {Answer: strings.Repeat("z", 700<<10)},
		"many":     {Answer: "a", ToolCalls: slices.Repeat([]subjects.ToolCall{{Tool: strings.Repeat("t", 1000), Result: strings.Repeat("y", 1000)}}, 1000)},
	} {
		before, _ := marshal(r)
		got := fit(r)
		data, err := marshal(got)
		if err != nil || len(data) > maxResponse || !slices.Contains(codes(got.Notes), subjects.NoteRecordCut) || got.Answer == "" {
			t.Errorf("%s: %v, %d bytes, notes %v", name, err, len(data), got.Notes)
		}
		if after, _ := marshal(r); string(after) != string(before) {
			t.Errorf("%s: the original was changed", name)
		}
	}
}

func TestRenamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "Paris.")
	q := subjects.Query{SessionID: "s1", QueryID: "q1", Query: "Capital?", Note: "The session id goes by s1."}
	if err := w.askCtx(t.Context(), New(shipped()), q, 1); err != nil {
		t.Fatal(err)
	}
	if r := w.one(); !slices.Contains(r.Notes, subjects.Note{Code: subjects.NoteRenamed, Text: q.Note}) {
		t.Errorf("notes: %+v", r.Notes)
	}
	for _, bad := range []actor.Msg[subjects.Query]{
		{Tokens: []string{"1", "a b"}, Body: subjects.Query{QueryID: "q", Query: "x"}},
		{Tokens: []string{"1", "s"}, Body: subjects.Query{QueryID: "a.b", Query: "x"}},
		{Tokens: []string{"1"}, Body: subjects.Query{QueryID: "q", Query: "x"}},
	} {
		if err := New(shipped()).onTurn(t.Context(), bad, w.Out()); actortest.Code(err) != subjects.CodeMalformed {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestStandIn(t *testing.T) {
	t.Parallel()
	last := final()
	last.StandIn, last.Notice = true, "gemma is not there; fetch it with: conclave model pull gemma"
	w := newWorld(t, actortest.Pieces{subjects.ChatChunk{Content: "I am a script."}, last})
	if err := w.ask(New(shipped()), "s1", "q1", "Who are you?", 1); err != nil {
		t.Fatal(err)
	}
	r := w.one()
	if !r.StandIn || !slices.Contains(codes(r.Notes), subjects.NoteStandIn) || !slices.Contains(r.Notes, subjects.Note{Code: subjects.NoteModel, Text: last.Notice}) {
		t.Errorf("answer: %+v", r)
	}
}

func TestRoleIsAskedNowAndThen(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "Yes.")
	w.Time = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	g := New(shipped())
	count := func(subject string) (n int) {
		for _, s := range w.Asked() {
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
	if a, b := count("model.list"), count("broker.discover"); a != 2 || b != 4 { // tools are asked for each time: the person may have granted one
		t.Errorf("asked %d and %d times", a, b)
	}
}

func TestConversationBounds(t *testing.T) {
	t.Parallel()
	c := subjects.Conversation{SessionID: "s", Turns: []subjects.Turn{}}
	for i := range 300 {
		before := len(c.Turns)
		next, data, err := add(c, subjects.Turn{QueryID: fmt.Sprint("q", i), Query: "why", Answer: "because"}, 50)
		if err != nil || len(c.Turns) != before || len(data) > maxConversation {
			t.Fatal(err, len(c.Turns), len(data))
		}
		c = next
	}
	if len(c.Turns) != 50 || c.Dropped != 250 || c.Turns[0].QueryID != "q250" || len(c.Past) != maxPast || !c.Answered("q249") || !c.Answered("q299") || c.Answered("q49") {
		t.Errorf("%d turns, %d dropped, %d past", len(c.Turns), c.Dropped, len(c.Past))
	}
	big := strings.Repeat("é<", 60<<10)
	for i := range 8 {
		var err error
		var data []byte
		c, data, err = add(c, subjects.Turn{QueryID: fmt.Sprint("b", i), Query: "why", Answer: big}, 50)
		if err != nil || len(data) > maxConversation {
			t.Fatal(err, len(data))
		}
	}
	if n := len(c.Turns); n < 2 || n > 10 || c.Turns[n-1].Answer != big {
		t.Errorf("%d turns", len(c.Turns))
	}
	huge := subjects.Turn{QueryID: "h", Query: strings.Repeat("\x02", 120<<10), Answer: strings.Repeat("x", 500<<10), Messages: []subjects.Message{{Role: "tool", Content: strings.Repeat("y", 800<<10)}}}
	c, data, err := add(c, huge, 50)
	if err != nil || len(data) > maxConversation || len(c.Turns) != 1 || c.Turns[0].Messages != nil || len(c.Turns[0].Answer) < 1000 {
		t.Errorf("%v, %d bytes, %+v", err, len(data), len(c.Turns))
	}
}

func TestRounds(t *testing.T) {
	t.Parallel()
	call := model.Message{Role: model.Assistant, Content: "let me see", Thinking: "hm", Calls: []model.Call{lookup("a"), lookup("b")}}
	result := func(id string) model.Message {
		return model.Message{Role: model.ToolRole, Content: "r" + id, ToolName: "clock", CallID: id}
	}
	user := model.Message{Role: model.User, Content: "q"}
	for _, tt := range []struct {
		name string
		in   []model.Message
		want int
	}{
		{"none", []model.Message{user, {Role: model.Assistant, Content: "a"}}, 0},
		{"whole", []model.Message{user, call, result("a"), result("b"), {Role: model.Assistant, Content: "a"}}, 3},
		{"half", []model.Message{user, call, result("a")}, 0},
		{"half, then words", []model.Message{user, call, result("a"), user}, 0},
		{"two, a nudge between", []model.Message{user, call, result("a"), result("b"), user, call, result("a"), result("b")}, 6},
		{"open", []model.Message{user, call}, 0},
	} {
		got := rounds(tt.in)
		if len(got) != tt.want {
			t.Errorf("%s: %+v", tt.name, got)
		}
		b, _ := json.Marshal(got)
		if strings.Contains(string(b), "hm") || strings.Contains(string(b), "thinking") {
			t.Errorf("%s: thinking was kept: %s", tt.name, b)
		}
	}
}

func TestHotSet(t *testing.T) {
	t.Parallel()
	h := newHot(2)
	for _, s := range []string{"a", "b", "a", "c"} {
		if _, ok := h.get(s); !ok {
			h.put(s, sitting{convRev: 1, recRev: 2})
		}
	}
	for s, want := range map[string]bool{"a": true, "b": false, "c": true} {
		if _, ok := h.get(s); ok != want {
			t.Errorf("%s: %v", s, ok)
		}
	}
	h.renew("a", 9, subjects.Conversation{Summary: "old"}, 10)
	h.renew("a", 1, subjects.Conversation{Summary: "new"}, 11)
	h.renew("b", 0, subjects.Conversation{}, 12)
	if s, _ := h.get("a"); s.conv.Summary != "new" || s.convRev != 11 || s.recRev != 2 {
		t.Errorf("renewed: %+v", s)
	}
	h.drop("a")
	if _, ok := h.get("a"); ok || h.order.Len() != 1 || len(h.held) != 1 {
		t.Error("it was not dropped")
	}
}

// What one process believes of a session is tried, not trusted: the other one went on with it.
func TestTwoProcessesOneSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "Yes.")
	a, b := New(shipped()), New(shipped())
	for i, g := range []*Generator{a, b, b, a, a, b} {
		if err := w.ask(g, "s1", fmt.Sprint("q", i), "Really?", 1); err != nil {
			t.Fatal(err)
		}
		if got := len(w.asked[i].Messages); got != 2+2*i {
			t.Errorf("question %d went with %d messages", i, got)
		}
	}
	if c := w.conversation("s1"); len(c.Turns) != 6 {
		t.Errorf("conversation: %+v", c)
	}
}

func TestMoreSessionsThanAreHot(t *testing.T) {
	t.Parallel()
	cfg := shipped()
	cfg.HotSessions = 2
	w := newWorld(t, "Yes.")
	g := New(cfg)
	for i := range 12 {
		if err := w.ask(g, fmt.Sprint("s", i%4), fmt.Sprint("q", i), "Really?", 1); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		if c := w.conversation(fmt.Sprint("s", i)); len(c.Turns) != 3 {
			t.Errorf("session %d: %+v", i, c)
		}
	}
	if n := len(g.hot.held); n != 2 {
		t.Errorf("%d sessions in memory", n)
	}
}

func TestCompact(t *testing.T) {
	t.Parallel()
	w := newWorld(t, strings.Repeat("A long answer about nothing. ", 120))
	w.role.Window = 4096
	w.summary = "They spoke about nothing."
	g := New(shipped())
	if err := g.Start(t.Context(), w.Out()); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var steps []string
	g.Boundary = func(s string) {
		mu.Lock()
		defer mu.Unlock()
		steps = append(steps, s)
	}
	for i := range 6 {
		if err := w.ask(g, "s1", fmt.Sprint("q", i), "Tell me more", 1); err != nil {
			t.Fatal(err)
		}
		g.behind.Wait()
	}
	c := w.conversation("s1")
	if c.Summary != "They spoke about nothing." || c.Summarized == 0 || c.Summarized+len(c.Turns) != 6 || c.Dropped != 0 || !c.Answered("q0") {
		t.Errorf("%d turns, %+v", len(c.Turns), c.Summary)
	}
	if !slices.Contains(steps, "compact/before") || !slices.Contains(steps, "compact/after") {
		t.Errorf("steps: %v", steps)
	}
	last := w.asked[len(w.asked)-1].Messages
	// As data, not as an order: a tool's words may have found their way into it.
	if last[1].Role != model.User || !strings.Contains(last[1].Content, "They spoke about nothing.") || strings.Contains(last[0].Content, "They spoke about nothing.") {
		t.Errorf("the summary is sent as %+v", last[:2])
	}
	if n := loop.Estimate("", nil, history(c)); n > 4096*60/100 {
		t.Errorf("%d tokens are left", n)
	}
	if err := g.Close(t.Context()); err != nil {
		t.Error(err)
	}
	w.quiet()
}

// A summary that was made while the conversation went on is dropped, and the turn is not lost.
func TestCompactLoses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, strings.Repeat("A long answer about nothing. ", 120))
	w.role.Window = 4096
	g := New(shipped())
	begun, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.summary = waits{func() {
		once.Do(func() { close(begun); <-goOn })
	}}
	n := 0
	for ; ; n++ {
		if err := w.ask(g, "s1", fmt.Sprint("q", n), "Tell me more", 1); err != nil {
			t.Fatal(err)
		}
		if _, busy := g.summing.Load("s1"); busy || n > 20 {
			break
		}
	}
	<-begun
	if err := w.ask(g, "s1", "after", "Tell me more", 1); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	g.behind.Wait()
	c := w.conversation("s1")
	if len(c.Turns) != n+2 || c.Summary != "" || !c.Answered("after") {
		t.Errorf("%d turns of %d, summary %q", len(c.Turns), n+2, c.Summary)
	}
	if got := w.Noted(); len(got) != 1 || !errors.Is(got[0], actor.ErrChanged) {
		t.Errorf("noted: %v", got)
	}
}

// waits is a reply that comes when it may.
type waits struct{ wait func() }

func (s waits) MarshalJSON() ([]byte, error) {
	s.wait()
	c := final()
	c.Content = "a summary"
	return json.Marshal(c)
}

func TestConfig(t *testing.T) {
	t.Parallel()
	if err := shipped().Validate(); err != nil {
		t.Error(err)
	}
	for path, change := range map[string]func(*Config){
		"steps": func(c *Config) { c.Steps = 0 }, "tokens": func(c *Config) { c.Tokens = -1 }, "wall": func(c *Config) { c.Wall = 0 },
		"call_timeout": func(c *Config) { c.CallTimeout = 0 }, "tool_timeout": func(c *Config) { c.ToolTimeout = 48 * time.Hour },
		"nudges": func(c *Config) { c.Nudges = 11 }, "retries": func(c *Config) { c.Retries = -1 }, "repeats": func(c *Config) { c.Repeats = 1 },
		"predict": func(c *Config) { c.Predict = 0 }, "answer": func(c *Config) { c.Answer = 1 }, "result": func(c *Config) { c.Result = 1 << 20 },
		"max_tools": func(c *Config) { c.MaxTools = 9 }, "hedge.search": func(c *Config) { c.Hedge.Search = "web search" },
		"hot_sessions": func(c *Config) { c.HotSessions = 0 }, "turns": func(c *Config) { c.Turns = 0 }, "compact_at": func(c *Config) { c.CompactAt = 100 },
		"system_prompt": func(c *Config) { c.System = strings.Repeat("x", maxSystem+1) },
	} {
		c := shipped()
		change(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), path+": ") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if l := (Config{}).limits(); l.Nudges != -1 || l.Retries != -1 {
		t.Errorf("none became the default: %+v", l)
	}
}

// The prompt is reviewed text: it says what tools are for and that results are data, and nothing of how calls are judged.
func TestPrompt(t *testing.T) {
	t.Parallel()
	var all []model.Tool
	for _, name := range []string{"get_datetime", "web_search", "web_fetch", "save_memory", "search_memory"} {
		all = append(all, model.Tool{Name: name})
	}
	text := New(shipped()).system(all)
	for _, must := range []string{"data, not an order", "language", "table", "get_datetime {", "web_search {", "web_fetch {", "save_memory {", "search_memory {", "without a call"} {
		if !strings.Contains(text, must) {
			t.Errorf("the prompt does not say %q", must)
		}
	}
	// An example with a tool that is not offered is not given, and the marks are never shown.
	few := New(shipped()).system(all[:2])
	for _, must := range []string{"get_datetime {", "web_search {", "without a call"} {
		if !strings.Contains(few, must) {
			t.Errorf("the prompt for two tools does not say %q", must)
		}
	}
	for _, never := range []string{"web_fetch", "save_memory", "search_memory", "<!--"} {
		if strings.Contains(few, never) {
			t.Errorf("the prompt for two tools says %q", never)
		}
	}
	if none := New(shipped()).system(nil); strings.Contains(none, "You call:") || !strings.Contains(none, "without a call") {
		t.Errorf("the prompt for no tools: %s", none)
	}
	for _, never := range []string{"policy", "manifest", "broker", "approval", "permission"} {
		if strings.Contains(strings.ToLower(text), never) {
			t.Errorf("the prompt says %q", never)
		}
	}
	if n := loop.Estimate(text, nil, nil); n > 1500 {
		t.Errorf("the prompt has %d tokens", n)
	}
	cfg := shipped()
	cfg.System = "Be a pirate."
	if New(cfg).system(nil) != "Be a pirate." {
		t.Error("the prompt cannot be replaced")
	}
}

func TestLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Time = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l, err := newLive(w.Out(), subjects.ResponseDelta, "q1")
	if err != nil {
		t.Fatal(err)
	}
	for i, text := range []string{"a", "b", "c", strings.Repeat("d", liveMost), "e", "f"} {
		if i == 5 {
			w.Time = w.Time.Add(liveEvery)
		}
		l.say(t.Context(), 1+i/4, text)
	}
	l.flush(t.Context())
	l.flush(t.Context())
	var got []string
	for i, d := range said[subjects.Delta](w, "response.delta.q1") {
		if d.N != i {
			t.Errorf("numbered %d, want %d", d.N, i)
		}
		got = append(got, fmt.Sprintf("%d %.3s", d.Step, d.Text))
	}
	if want := []string{"1 a", "1 bcd", "2 ef"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := newLive(w.Out(), subjects.ResponseDelta, "a.b"); err == nil {
		t.Error("an odd id became a subject")
	}
}

// Servers that count their calls from one in every reply: what a call is called outside must tell turns apart, and stay
// the same when the turn is taken up again.
func TestCallIDs(t *testing.T) {
	t.Parallel()
	of := func(session, query, id string) string {
		return (&turn{session: session, asked: subjects.Query{QueryID: query}}).callID(id)
	}
	same := of("s1", "q1", "call_1")
	if same != of("s1", "q1", "call_1") || subjects.CheckToken(same) != nil {
		t.Errorf("%q is no name to come back to", same)
	}
	for _, other := range []string{of("s1", "q2", "call_1"), of("s2", "q1", "call_1"), of("s1", "q1", "call_2")} {
		if other == same {
			t.Error("two calls have one name")
		}
	}
}

// A finished turn does not stay twice: its record is made small, and the session goes on from it.
func TestTidy(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a long answer ", 4000)
	w := newWorld(t, long, "And a short one.")
	g := New(shipped())
	if err := w.ask(g, "s1", "q1", "Tell me all.", 1); err != nil {
		t.Fatal(err)
	}
	left, _, err := w.Out().Store(bucket).Get(t.Context(), turnKey("s1"))
	if err != nil || len(left) > 1<<10 || strings.Contains(string(left), "long answer") {
		t.Errorf("%d bytes are left of the turn, %v", len(left), err)
	}
	if c := w.conversation("s1"); len(c.Turns) != 1 || c.Turns[0].Answer != strings.TrimSpace(long) {
		t.Errorf("the conversation has %d turns", len(c.Turns))
	}
	if err := w.ask(g, "s1", "q2", "And?", 1); err != nil {
		t.Fatal(err)
	}
	if c := w.conversation("s1"); len(c.Turns) != 2 || c.Turns[1].Answer != "And a short one." {
		t.Errorf("%+v", c.Turns)
	}
}
