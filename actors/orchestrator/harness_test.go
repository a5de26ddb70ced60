package orchestrator

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
	"conclave/subjects"
)

// testConfig is the shipped configuration, without compaction.
func testConfig() Config {
	return Config{
		Tasks: 2, Parallel: 2, Replans: 1, Checks: 3, CompactAt: 60, Memories: 3, Steps: 8, Rounds: 3,
		Wall: 30 * time.Minute, CallTimeout: 2 * time.Minute,
		FirstToken: 5 * time.Minute, ToolTimeout: time.Minute, Predict: 2048, Answer: 2048, Result: 16 << 10,
		MaxTools: 8, Thinking: true,
	}
}

// Kinds of model calls, by their system prompt.
const (
	callPlan, callReturn, callReport, callCompact, callWork = "plan", "return", "report", "compact", "work"
)

// request is a model call as the model was sent it.
type request struct {
	kind     string
	role     string
	hint     string
	format   bool
	messages []model.Message
	tools    []model.Tool
}

// text is everything in the request.
func (r request) text() string {
	data, _ := json.Marshal(r.messages)
	return string(data)
}

// last is the content of the last message.
func (r request) last() string { return r.messages[len(r.messages)-1].Content }

// subtask is the title of the subtask that a worker or a return call is about.
func (r request) subtask() string {
	for _, m := range r.messages {
		for _, head := range []string{"Your part: ", "Subtask: "} {
			if _, rest, ok := strings.Cut(m.Content, head); ok {
				title, _, _ := strings.Cut(rest, "\n")
				return title
			}
		}
	}
	return ""
}

// harness is the environment of an orchestrator: a scripted model, a broker with a ledger, a store, an audit log.
type harness struct {
	actortest.Recorder
	t testing.TB

	demo    bool // the built-in demo model answers
	mu      sync.Mutex
	model   func(r request) any // a text, a call, calls or an error; nil = the default of the kind
	tool    func(tool, path string, c subjects.ToolRequest) (subjects.ToolResult, error)
	spawn   func(r subjects.SpawnRequest) error
	missing []subjects.UnavailableTool // tools whose backend does not answer
	asked   []request
	ledger  map[string]subjects.ToolResult
	ran     map[string]int // tool calls that ran, by tool
	spawned []string
	audit   []subjects.AuditRecord
}

func newHarness(t testing.TB) *harness {
	w := &harness{t: t, ledger: map[string]subjects.ToolResult{}, ran: map[string]int{}}
	w.Recorder.Reply = w.answer
	return w
}

// Append and Close implement [Audit].
func (w *harness) Append(_ context.Context, rec subjects.AuditRecord) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.audit = append(w.audit, rec)
	return nil
}
func (w *harness) Close(context.Context) error { return nil }

// Hash implements [Hasher].
func (w *harness) Hash([]byte) string { return "hash" }

func (w *harness) answer(subject string, body []byte) (any, error) {
	switch {
	case subject == "model.list":
		var roles []subjects.RoleModel
		for _, r := range []string{
			subjects.RoleAssistant, subjects.RoleOrchestrator, subjects.RoleResearcher,
			subjects.RoleCoder, subjects.RoleSummaries,
		} {
			roles = append(roles, subjects.RoleModel{
				Role: r, Model: "test:1b", Window: 32768, Tools: true,
				DemoModel: w.demo,
			})
		}
		return subjects.ModelList{Roles: roles}, nil
	case subject == "agent.spawn":
		var r subjects.SpawnRequest
		if err := json.Unmarshal(body, &r); err != nil {
			return nil, err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.spawn != nil {
			if err := w.spawn(r); err != nil {
				return nil, err
			}
		}
		child := fmt.Sprintf("%s-%d", r.Type, len(w.spawned)+1)
		w.spawned = append(w.spawned, child)
		return subjects.SpawnReply{Child: child}, nil
	case strings.HasPrefix(subject, "broker.discover."):
		reply := subjects.DiscoverReply{Unavailable: w.missing}
		for _, name := range []string{"lookup", "run_code", "web_fetch"} {
			reply.Tools = append(reply.Tools, subjects.ToolSchema{
				Name: name, Description: "does " + name,
				Parameters: json.RawMessage(`{"type":"object"}`),
			})
		}
		return reply, nil
	case subject == "model.chat":
		return w.chat(body)
	case strings.HasPrefix(subject, "tool.request."):
		return w.call(strings.TrimPrefix(subject, "tool.request."), body)
	}
	return nil, subjects.Faultf(subjects.CodeUnavailable, "nobody answers %s", subject)
}

func (w *harness) chat(body []byte) (any, error) {
	var q struct {
		Role     string          `json:"role"`
		Hint     string          `json:"hint"`
		Format   json.RawMessage `json:"format"`
		Messages []model.Message `json:"messages"`
		Tools    []model.Tool    `json:"tools"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		w.t.Errorf("the model was asked something that cannot be read: %v", err)
	}
	r := request{
		role: q.Role, hint: q.Hint, format: len(q.Format) > 0, messages: q.Messages, tools: q.Tools,
		kind: callWork,
	}
	for kind, name := range map[string]string{
		callPlan: "planner", callReturn: "return", callReport: "report",
		callCompact: "compact",
	} {
		if q.Messages[0].Content == readPrompt(name) {
			r.kind = kind
		}
	}
	w.mu.Lock()
	w.asked = append(w.asked, r)
	w.mu.Unlock()
	var v any
	if w.model != nil {
		v = w.model(r)
	}
	if v == nil {
		v = map[string]string{
			callPlan: planJSON(subtaskJSON("a")), callReturn: goodReturn, callReport: "The report.",
			callCompact: "a summary", callWork: "It is done.",
		}[r.kind]
	}
	final := subjects.ChatChunk{
		Done: true, Model: "test:1b", Reason: "stop",
		Usage: subjects.Usage{PromptTokens: 11, CompletionTokens: 7},
	}
	switch v := v.(type) {
	case error:
		return nil, v
	case model.Call:
		calls, err := json.Marshal([]model.Call{v})
		final.ToolCalls = calls
		return actortest.Pieces{final}, err
	case string:
		final.Content = v
	}
	return actortest.Pieces{final}, nil
}

// call is a broker with a ledger: a call id that ran before has its result.
func (w *harness) call(subject string, body []byte) (any, error) {
	var c subjects.ToolRequest
	if err := json.Unmarshal(body, &c); err != nil {
		return nil, err
	}
	tool, path, _ := strings.Cut(subject, ".")
	w.mu.Lock()
	old, ok := w.ledger[c.CallID]
	w.mu.Unlock()
	if ok {
		return old, nil
	}
	res := subjects.ToolResult{CallID: c.CallID, Result: "noon"}
	if w.tool != nil {
		var err error
		if res, err = w.tool(tool, path, c); err != nil {
			return nil, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ran[tool]++
	w.ledger[c.CallID] = res
	return res, nil
}

// give delivers a task to an orchestrator as the runtime does.
func (w *harness) give(o *Orchestrator, session, query, text string) error {
	return w.giveCtx(w.t.Context(), o, subjects.Query{SessionID: session, QueryID: query, Query: text}, 1)
}

func (w *harness) giveCtx(ctx context.Context, o *Orchestrator, q subjects.Query, attempt int) error {
	return w.deliver(ctx, o, q, attempt, w.Out())
}

func (w *harness) deliver(ctx context.Context, o *Orchestrator, q subjects.Query, attempt int, out actor.Out) error {
	return o.OnTurn(ctx, actor.Msg[subjects.Query]{
		Subject: "turn.orchestrator." + q.SessionID,
		Tokens:  []string{q.SessionID}, Attempt: attempt, Body: q,
	}, out)
}

// emitted are the bodies published on a subject.
func emitted[T any](w *harness, subject string) (out []T) {
	w.t.Helper()
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

// onlyResponse is the only report that was published.
func (w *harness) onlyResponse() subjects.Response {
	w.t.Helper()
	all := emitted[subjects.Response](w, "response.generation")
	if len(all) != 1 {
		w.t.Fatalf("%d reports were stored, want 1: %+v", len(all), all)
	}
	if d := emitted[subjects.Dialog](w, "answer.dialog"); len(d) != 1 || d[0].Answer != all[0].Answer ||
		d[0].RespondentID != subjects.Orchestrator {
		w.t.Errorf("the light form is %+v", d)
	}
	return all[0]
}

// stored is the task as the user reads it.
func (w *harness) stored(id string) subjects.Task {
	w.t.Helper()
	data, _, err := w.Out().Store(bucket).Get(w.t.Context(), subjects.TaskKey(id))
	if err != nil {
		w.t.Fatal(err)
	}
	t, err := subjects.DecodeTask(data)
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}

// requests are the model calls of a kind.
func (w *harness) requests(kind string) (out []request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.asked {
		if r.kind == kind {
			out = append(out, r)
		}
	}
	return out
}

func toolCall(id, name, args string) model.Call {
	return model.Call{ID: id, Name: name, Arguments: json.RawMessage(args)}
}

// returnJSON is goodReturn with replacements: old, new, old, new ...
func returnJSON(replace ...string) string { return strings.NewReplacer(replace...).Replace(goodReturn) }

// requireNoErrors fails a test in which the actor logged an error.
func (w *harness) requireNoErrors() {
	w.t.Helper()
	for _, err := range w.Logged() {
		w.t.Errorf("logged: %v", err)
	}
}
