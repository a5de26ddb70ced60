package committee

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/model"
	"conclave/subjects"
)

// shippedConfig is the shipped configuration.
func shippedConfig(t testing.TB, change ...func(*Config)) Config {
	t.Helper()
	c := Config{
		Active: []string{"The Inner Child", "The Inner Critic", "The Protector"}, Closing: "The Self", Rounds: 1,
		History: 5, Turns: 50, Steps: 3,
		Wall: 10 * time.Minute, CallTimeout: 2 * time.Minute, FirstToken: 5 * time.Minute, ToolTimeout: time.Minute,
		Predict: 1024, Answer: 4096, Result: 16 << 10,
		Stream: true, Thinking: true, GradePersonas: true,
		Personas: Personas{
			{Name: "The Self"},
			{Name: "The Inner Child"},
			{Name: "The Inner Critic", Rubric: "[Is it right?]"},
			{Name: "The Protector"},
		},
	}
	for _, f := range change {
		f(&c)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	c, err := c.WithPrompts(func(string) (string, error) { return "You are read from a file.", nil })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// request is what a model was asked.
type request struct {
	Persona  string // by its prompt
	Model    string
	Hint     string
	Messages []model.Message
	Tools    []model.Tool
	Format   string // schema of the reply
}

// text is everything but the system message.
func (r request) text() string {
	var b strings.Builder
	for _, m := range r.Messages[1:] {
		b.WriteString(m.Role + ": " + m.Content + "\n")
	}
	return b.String()
}

// harness is the environment of one or more committees: scripted personas, a broker, a store.
type harness struct {
	actortest.Recorder
	t testing.TB

	mu    sync.Mutex
	asked []request
	says  func(r request) (any, error) // nil = one word each
	role  subjects.RoleModel
	tools []string
	run   func(tool string) (subjects.ToolResult, error)
	calls []string // tools that ran
}

func newHarness(t testing.TB) *harness {
	w := &harness{t: t, tools: []string{"search_memory", "search_knowledge_graph"}}
	w.role = subjects.RoleModel{
		Role: "assistant", Model: "test:8b", Window: 32768, Stream: true, Tools: true,
		Thinking: true, Calls: subjects.CallNative,
	}
	w.Reply = w.reply
	return w
}

func (w *harness) reply(subject string, body []byte) (any, error) {
	switch tool, isCall := strings.CutPrefix(subject, "tool.request."); {
	case subject == "model.list":
		return subjects.ModelList{Models: []subjects.ModelInfo{}, Roles: []subjects.RoleModel{w.role}}, nil
	case subject == "broker.discover":
		reply := subjects.DiscoverReply{Tools: []subjects.ToolSchema{}}
		for _, n := range w.tools {
			reply.Tools = append(reply.Tools, subjects.ToolSchema{
				Name: n, Description: n,
				Parameters: json.RawMessage(
					`{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}`),
			})
		}
		return reply, nil
	case subject == "model.chat":
		return w.chat(body)
	case isCall:
		w.mu.Lock()
		w.calls = append(w.calls, tool)
		w.mu.Unlock()
		if w.run != nil {
			return w.run(tool)
		}
		return subjects.ToolResult{
			Tool: tool, Result: "IS: Ada lives in Lisbon", Recalls: []string{"m1"},
			Labels: &subjects.Labels{Trust: subjects.Trusted, Privacy: subjects.Private},
		}, nil
	}
	return nil, subjects.Faultf(subjects.CodeUnavailable, "nobody answers %s", subject)
}

func (w *harness) chat(body []byte) (any, error) {
	var q struct {
		Model    string          `json:"model"`
		Hint     string          `json:"hint"`
		Messages []model.Message `json:"messages"`
		Tools    []model.Tool    `json:"tools"`
		Format   json.RawMessage `json:"format"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		w.t.Errorf("unreadable request: %v", err)
	}
	r := request{Model: q.Model, Hint: q.Hint, Messages: q.Messages, Tools: q.Tools, Format: string(q.Format)}
	_, who, _ := strings.Cut(q.Messages[0].Content, "# Who you are\n\nYou are ")
	r.Persona = strings.TrimRight(strings.Join(strings.Fields(who)[:min(3, len(strings.Fields(who)))], " "), ":")
	for _, known := range []string{"The Self", "The Inner Child", "The Inner Critic", "The Protector"} {
		if strings.HasPrefix(who, known) {
			r.Persona = known
		}
	}
	w.mu.Lock()
	w.asked = append(w.asked, r)
	says := w.says
	w.mu.Unlock()
	var reply any = "As " + r.Persona + " I say yes.\nDISSENT: none"
	if r.Persona == "The Self" {
		reply = "The answer."
	}
	if says != nil {
		v, err := says(r)
		if err != nil {
			return nil, err
		}
		if v != nil {
			reply = v
		}
	}
	done := subjects.ChatChunk{
		Done: true, Model: "test:8b", Reason: "stop",
		Usage: subjects.Usage{PromptTokens: 11, CompletionTokens: 7},
	}
	switch reply := reply.(type) {
	case string:
		return actortest.Pieces{subjects.ChatChunk{Content: reply, Thinking: "hm"}, done}, nil
	case model.Call:
		calls, err := json.Marshal([]model.Call{reply})
		return actortest.Pieces{subjects.ChatChunk{ToolCalls: calls}, done}, err
	}
	return reply, nil
}

// ask delivers a question as the runtime does.
func (w *harness) ask(ctx context.Context, c *Committee, q subjects.Query, attempt int) error {
	return w.deliver(ctx, c, q, attempt, w.Out())
}

func (w *harness) deliver(ctx context.Context, c *Committee, q subjects.Query, attempt int, out actor.Out) error {
	in := actor.Msg[subjects.Query]{
		Subject: "turn.committee." + q.SessionID, Tokens: []string{q.SessionID},
		Attempt: attempt, Body: q,
	}
	return c.onTurn(ctx, in, out)
}

// question is the usual one.
func question(change ...func(*subjects.Query)) subjects.Query {
	q := subjects.Query{SessionID: "s1", QueryID: "q1", Query: "Should I move?"}
	for _, f := range change {
		f(&q)
	}
	return q
}

// emitted are the bodies published on subjects that match a pattern.
func emitted[T any](w *harness, pattern string) (out []T) {
	for _, s := range w.Published() {
		if _, ok := subjects.Match(pattern, s.Subject); !ok {
			continue
		}
		var v T
		if err := json.Unmarshal([]byte(s.Body), &v); err != nil {
			w.t.Errorf("%s: %v: %s", s.Subject, err, s.Body)
		}
		out = append(out, v)
	}
	return out
}

// response is the only answer that was given.
func (w *harness) response() subjects.Response {
	w.t.Helper()
	all := emitted[subjects.Response](w, "response.generation")
	if len(all) != 1 {
		w.t.Fatalf("%d answers, want 1: %+v", len(all), all)
	}
	if d := emitted[subjects.Dialog](w, "answer.dialog"); len(d) != 1 || d[0].Answer != all[0].Answer ||
		d[0].RespondentID != name {
		w.t.Errorf("the light form is %+v", d)
	}
	return all[0]
}

// deliberations are the events, as "persona round status".
func (w *harness) deliberations() (out []string) {
	for _, d := range emitted[subjects.Deliberation](w, "committee.deliberation.q1") {
		out = append(out, d.Persona+" "+string(rune('0'+d.Round))+" "+d.Status)
	}
	return out
}

// speakers are the personas in the order in which their model was asked.
func (w *harness) speakers() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.asked {
		out = append(out, r.Persona)
	}
	return out
}

func (w *harness) requireNoErrors() {
	w.t.Helper()
	for _, err := range w.Logged() {
		w.t.Errorf("logged: %v", err)
	}
}

func noteCodes(notes []subjects.Note) (out []string) {
	for _, n := range notes {
		out = append(out, n.Code)
	}
	slices.Sort(out)
	return out
}
