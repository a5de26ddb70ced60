package story_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"conclave/pkg/story"
	"conclave/subjects"
)

// fakeSystem is a Conclave that says what a test tells it to.
type fakeSystem struct {
	answer func(w *fakeSystem, q subjects.Query) // what happens when a question is asked
	cancel func(w *fakeSystem, query string)
	crash  func(w *fakeSystem, actor string) error
	decide func(w *fakeSystem, id string, d subjects.ApprovalDecision) error
	// remember is what memory says to the user; nil = yes to everything
	remember func(w *fakeSystem, m story.Memory) error
	rate     func(w *fakeSystem, f rated) error
	deaf     bool // nothing is heard live: only the stream is there
	script   story.ScriptReport
	pages    map[string]int

	overrides []sessionOverride
	calls     int

	mu     sync.Mutex
	seq    uint64
	events []story.Event
	live   chan story.Event
	asked  []subjects.Query
}

// sessionOverride is what was set for a session.
type sessionOverride struct {
	session string
	story.Override
}

func (w *fakeSystem) Subscribe(context.Context) (<-chan story.Event, error) {
	w.live = make(chan story.Event, 1000)
	return w.live, nil
}

func (w *fakeSystem) Ask(_ context.Context, respondent string, q subjects.Query) error {
	w.mu.Lock()
	w.asked = append(w.asked, q)
	w.mu.Unlock()
	topic, _ := subjects.QuestionTopic(respondent)
	w.store("", topic.Name, q.QueryID, q)
	if w.answer != nil {
		w.answer(w, q)
	}
	return nil
}

// CallTool denies what a test calls forbidden.
func (w *fakeSystem) CallTool(_ context.Context, who subjects.Caller, r story.Request, session,
	query string,
) (subjects.ToolResult, error) {
	w.calls++
	res := subjects.ToolResult{Tool: r.Tool, CallID: fmt.Sprint("call", w.calls), QueryID: query, Result: "done for " +
		who.ID() + " in " + session}
	if r.Tool == "forbidden" {
		res.Result, res.Error = "", subjects.Faultf("denied", "no")
	}
	w.store("broker", "tool.result."+r.Tool, query, res)
	return res, nil
}

// Spawn makes no hermits.
func (w *fakeSystem) Spawn(_ context.Context, who subjects.Caller, c story.Child, session, query string) (string,
	error,
) {
	if c.Type == "hermit" {
		return "", subjects.Faultf("denied", "%s may not", who.ID())
	}
	return c.Type + "-1", nil
}

func (w *fakeSystem) SetOverride(_ context.Context, session string, o story.Override) error {
	w.overrides = append(w.overrides, sessionOverride{session, o})
	return nil
}

func (w *fakeSystem) DecideApproval(_ context.Context, id string, d subjects.ApprovalDecision) error {
	return w.decide(w, id, d)
}

func (w *fakeSystem) ChangeMemory(_ context.Context, m story.Memory) error {
	if w.remember == nil {
		return nil
	}
	return w.remember(w, m)
}

// rated is what the user said of an answer, and in which session that was given.
type rated struct {
	session string
	subjects.Feedback
}

func (w *fakeSystem) SendFeedback(_ context.Context, session string, f subjects.Feedback) error {
	if w.rate == nil {
		return nil
	}
	return w.rate(w, rated{session, f})
}

func (w *fakeSystem) PageRequests() map[string]int { return w.pages }

func (w *fakeSystem) CancelQuery(_ context.Context, query string) error {
	w.store("user", "query.cancel."+query, query, subjects.Cancel{})
	if w.cancel != nil {
		w.cancel(w, query)
	}
	return nil
}

func (w *fakeSystem) KillActor(_ context.Context, actor string) error { return w.crash(w, actor) }

func (w *fakeSystem) ReadEvents(_ context.Context, after uint64) ([]story.Event, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []story.Event
	for _, e := range w.events {
		if e.Seq > after {
			out = append(out, e)
		}
	}
	return out, nil
}

func (w *fakeSystem) ScriptReport() story.ScriptReport { return w.script }

// store keeps an event and tells it live.
func (w *fakeSystem) store(from, subject, query string, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	w.mu.Lock()
	w.seq++
	e := story.Event{Seq: w.seq, Subject: subject, From: from, Query: query, Body: data}
	w.events = append(w.events, e)
	w.mu.Unlock()
	w.tell(e)
}

func (w *fakeSystem) tell(e story.Event) {
	if !w.deaf && w.live != nil {
		w.live <- e
	}
}

// delta says a piece of an answer, live only.
func (w *fakeSystem) delta(query, text string) {
	data, _ := json.Marshal(subjects.Delta{QueryID: query, Text: text})
	w.tell(story.Event{Subject: "response.delta." + query, Query: query, Body: data})
}

// done ends a query with r.
func (w *fakeSystem) done(query string, r subjects.Response) {
	r.QueryID = query
	w.store("generator", "response.generation", query, r)
	w.store("generator", "answer.dialog", query, subjects.Dialog{Answer: r.Answer})
	w.store("generator", "agent.state.generator", query, subjects.AgentState{To: "IDLE"})
}

func (w *fakeSystem) StoreImages(context.Context, string, [][]byte) error { return nil }
