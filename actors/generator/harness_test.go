package generator

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/model"
	"conclave/pkg/respondent/conversation"
	"conclave/subjects"
)

// shippedConfig is the shipped configuration.
func shippedConfig() Config {
	return Config{
		Steps: 5, Wall: 10 * time.Minute, CallTimeout: 2 * time.Minute, FirstToken: 5 * time.Minute,
		ToolTimeout: time.Minute, Nudges: 2, Retries: 2, Repeats: 3,
		Predict: 2048, Answer: 4096, Result: 16 << 10, MaxTools: 4, RecallFirst: recallAlways,
		Hedge: Hedge{Search: "web_search", Reask: true}, Stream: true, Thinking: true,
		HotSessions: 50, Concurrency: 16, Turns: 50, CompactAt: 60, Grades: Grades{Retry: true},
		RespondentB: RespondentB{Temperature: 1, MaxAge: 5 * time.Minute},
	}
}

// bucket is the generator's.
var bucket = subjects.StateBucket(subjects.Generator)

// harness is the environment of one or more generators: a scripted model, a broker with a ledger, a store.
type harness struct {
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
	summary any // reply of the model in the role summaries

	observers sync.Map // of *Generator: func(step string)
}

func newHarness(t testing.TB, replies ...any) *harness {
	w := &harness{t: t, replies: replies, ledger: map[string]subjects.ToolResult{}}
	w.role = subjects.RoleModel{
		Role: "assistant", Model: "test:1b", Window: 32768, Stream: true, Tools: true,
		Thinking: true,
	}
	w.Recorder.Reply = w.answer
	return w
}

// longAnswer is an answer of n sentences, no two of which are the same.
func longAnswer(n int) string {
	var out strings.Builder
	for i := range n {
		fmt.Fprintf(&out, "A long answer about nothing, number %d. ", i)
	}
	return strings.TrimSpace(out.String())
}

func (w *harness) answer(subject string, body []byte) (any, error) {
	switch {
	case subject == "model.list":
		return subjects.ModelList{Models: []subjects.ModelInfo{}, Roles: []subjects.RoleModel{w.role}}, nil
	case strings.HasSuffix(subject, ".STREAM.INFO.ATTACHMENTS"): // no image is stored
		return map[string]any{"state": map[string]any{}}, nil
	case strings.HasSuffix(subject, ".STREAM.MSG.GET.ATTACHMENTS"):
		return map[string]any{"error": map[string]any{"code": 404}}, nil
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

func (w *harness) chat(body []byte) (any, error) {
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

// asReply converts an entry of the script to chunks: a text, a call, chunks or an error.
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
	return subjects.ChatChunk{
		Done: true, Model: "test:1b", Reason: "stop",
		Usage: subjects.Usage{PromptTokens: 11, CompletionTokens: 7},
	}
}

// call is a broker with a ledger: a call id that ran before has its result.
func (w *harness) call(body []byte) (any, error) {
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

// ask delivers a question to a generator as the runtime does.
func (w *harness) ask(g *Generator, session, query, text string, try int) error {
	return w.askCtx(w.t.Context(), g, subjects.Query{SessionID: session, QueryID: query, Query: text}, try)
}

func (w *harness) askCtx(ctx context.Context, g *Generator, q subjects.Query, try int) error {
	return w.deliver(w.withObserver(ctx, g), g, q, try, w.Out())
}

func (w *harness) deliver(ctx context.Context, g *Generator, q subjects.Query, try int, out actor.Out) error {
	in := actor.Msg[subjects.Query]{
		Subject: "turn.3." + q.SessionID, Tokens: []string{"3", q.SessionID}, Attempt: try,
		StoredAt: w.Out().Now(), Body: q,
	}
	return g.onTurn(ctx, in, out)
}

// withObserver is ctx with the step observer of g, if there is one.
func (w *harness) withObserver(ctx context.Context, g *Generator) context.Context {
	if observe, ok := w.observers.Load(g); ok {
		return actor.WithSteps(ctx, observe.(func(string)))
	}
	return ctx
}

// observe has observe called at each step of the turns of g.
func (w *harness) observe(g *Generator, observe func(step string)) { w.observers.Store(g, observe) }

// emitted are the bodies published on a subject.
func emitted[T any](w *harness, subject string) (out []T) {
	for _, s := range w.Published() {
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

func (w *harness) responses() []subjects.Response {
	return emitted[subjects.Response](w, "response.generation")
}

// onlyResponse is the only answer that was given.
func (w *harness) onlyResponse() subjects.Response {
	w.t.Helper()
	all := w.responses()
	if len(all) != 1 {
		w.t.Fatalf("%d answers were stored, want 1: %+v", len(all), all)
	}
	if d := emitted[subjects.Dialog](w, "answer.dialog"); len(d) != 1 || d[0].Answer != all[0].Answer ||
		d[0].QueryID != all[0].QueryID {
		w.t.Errorf("the light form is %+v", d)
	}
	return all[0]
}

func (w *harness) conversation(session string) subjects.Conversation {
	w.t.Helper()
	c, _, err := conversation.Read(w.t.Context(), w.Out().Store(bucket), session)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// statePath is the path through the states, as published.
func (w *harness) statePath() string {
	var b strings.Builder
	for _, s := range emitted[subjects.AgentState](w, "agent.state.generator") {
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

func noteCodes(notes []subjects.Note) (out []string) {
	for _, n := range notes {
		out = append(out, n.Code)
	}
	return out
}

// requireNoErrors fails a test in which the actor wrote an error into the log.
func (w *harness) requireNoErrors() {
	w.t.Helper()
	for _, err := range w.Logged() {
		w.t.Errorf("noted: %v", err)
	}
}

func lookupCall(id string) model.Call {
	return model.Call{ID: id, Name: "clock", Arguments: json.RawMessage(`{"q":"now"}`)}
}
