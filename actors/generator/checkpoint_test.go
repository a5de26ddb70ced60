package generator

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/respondent/conversation"
	"conclave/pkg/respondent/respondenttest"
	"conclave/subjects"
)

// crashPoints of a turn with one tool call.
func crashPoints() (out []string) {
	for _, s := range []string{"turn.start", "turn.step", "turn.answer", "response", "dialog", "conversation"} {
		out = append(out, s+"/before", s+"/after")
	}
	return out
}

// crash ends a generator at a step as a killed process would: nothing after it runs.
type crash string

// crashAt gives a question to a generator that crashes at a step, the nth time it gets there.
func (w *harness) crashAt(at string, nth int, session, query string, try int) {
	w.t.Helper()
	w.crashGeneratorAt(New(subjects.Generator, shippedConfig()), at, nth, session, query, try)
}

func (w *harness) crashGeneratorAt(g *Generator, at string, nth int, session, query string, try int) {
	w.t.Helper()
	times := 0
	w.observe(g, func(s string) {
		if s == at {
			if times++; times == nth {
				panic(crash(s))
			}
		}
	})
	defer func() {
		if p := recover(); p != crash(at) {
			w.t.Errorf("it did not die at %s: %v", at, p)
		}
	}()
	_ = w.ask(g, session, query, "What time is it?", try)
}

// Whatever happens between two durable steps, the answer is published once, and the tool runs once.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, name := range []string{subjects.Generator, subjects.RespondentB} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			respondenttest.Run(t, func(t testing.TB) *respondenttest.Case[*Generator] {
				return newConformanceCase(t, name)
			})
		})
	}
}

// newConformanceCase is a question to a generator that is answered with one tool call.
func newConformanceCase(t testing.TB, name string) *respondenttest.Case[*Generator] {
	w := newHarness(t)
	// a request after a question gets the call, one after a result the answer
	w.replies = []any{func() any {
		w.mu.Lock()
		defer w.mu.Unlock()
		last := w.asked[len(w.asked)-1].Messages
		if last[len(last)-1].Role == model.ToolRole {
			return "It is noon."
		}
		return lookupCall("c1")
	}}
	w.tools = []string{"clock"}
	const head = `{"query_id":"q1","query":"What time is it?","owner":"x","try":1,"began":"2026-01-02T03:04:05Z",` +
		`"written":"2026-01-02T03:04:05Z"`
	return &respondenttest.Case[*Generator]{
		Recorder: &w.Recorder, Bucket: subjects.StateBucket(name), Key: turnKey("s1"),
		History: subjects.ConversationKey("s1"),
		Earlier: map[string]respondenttest.Earlier{
			"received": {Record: head + `,"stage":"received"}`},
			"working": {
				Record: head + `,"stage":"working","state":{"messages":[{"role":"user",` +
					`"content":"What time is it?"}],"step":1}}`,
			},
			"publishing": {
				Record: head + `,"stage":"publishing","publish":{"response":{"session_id":"s1","query_id":"q1",` +
					`"query":"What time is it?","answer":"Noon.","tool_calls":[],"respondent_id":"` + name +
					`","stand_in":true},"response_id":"r1","dialog_id":"d1"}}`,
				Answered: true,
			},
		},
		New: func() *Generator { return New(name, shippedConfig()) },
		Deliver: func(ctx context.Context, g *Generator, out actor.Out, attempt int) error {
			return w.deliver(ctx, g, subjects.Query{
				SessionID: "s1", QueryID: respondenttest.Query, Query: "What time is it?",
			}, attempt, out)
		},
		Check: func(t testing.TB, interrupted bool) {
			all := w.responses()
			if len(all) != 1 || all[0].Answer != "It is noon." || len(all[0].ToolCalls) != 1 ||
				all[0].ToolCalls[0].Result != "noon" {
				t.Errorf("answers: %+v", all)
			}
			dialogs := len(emitted[subjects.Dialog](w, "answer.dialog"))
			wantDialogs := 0
			if name == subjects.Generator {
				wantDialogs = 1
			}
			if dialogs != wantDialogs {
				t.Errorf("%d dialogs, want %d", dialogs, wantDialogs)
			}
			if w.ran != 1 || len(w.asked) > 4 || !interrupted && len(w.asked) != 2 {
				t.Errorf("the tool ran %d times, the model was asked %d times", w.ran, len(w.asked))
			}
			c, _, err := conversation.Read(t.Context(), w.Out().Store(subjects.StateBucket(name)), "s1")
			if err != nil || len(c.Turns) != 1 || len(c.Turns[0].Messages) != 2 {
				t.Errorf("conversation: %+v, %v", c, err)
			}
			w.requireNoErrors()
		},
	}
}

// After the answer was stored, the model is not called again.
func TestResumeSkipsFinishedModelCalls(t *testing.T) {
	t.Parallel()
	w := newHarness(t, lookupCall("c1"), "It is noon.", "wrong")
	w.tools = []string{"clock"}
	w.crashAt("turn.answer/after", 1, "s1", "q1", 1)
	if err := w.ask(New(subjects.Generator, shippedConfig()), "s1", "q1", "What time is it?", 2); err != nil {
		t.Fatal(err)
	}
	if r := w.onlyResponse(); r.Answer != "It is noon." || len(w.asked) != 2 {
		t.Errorf("%d model calls, %+v", len(w.asked), r)
	}
}

func TestDuplicateQueryIsNotAnsweredAgain(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "Paris.", "London.")
	g := New(subjects.Generator, shippedConfig())
	for i := range 3 {
		g := g
		if i == 2 {
			g = New(subjects.Generator, shippedConfig()) // one that knows nothing yet
		}
		if err := w.ask(g, "s1", "q1", "Capital?", 1); err != nil {
			t.Fatal(err)
		}
	}
	if r := w.onlyResponse(); r.Answer != "Paris." || len(w.asked) != 1 {
		t.Errorf("%d model calls, %+v", len(w.asked), r)
	}
	n := 0
	for _, s := range emitted[subjects.AgentState](w, "agent.state.generator") {
		if s.Code == subjects.NoteDuplicate {
			n++
		}
	}
	if n != 2 {
		t.Errorf("told %d times", n)
	}
}

func TestCallerDeadlineEndsTheTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t)
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		// An error, because the turn's own context may end a moment after ctx: a complete reply would then still count.
		w.replies = []any{func() any { <-ctx.Done(); return context.Canceled }}
		if err := w.askCtx(ctx, New(subjects.Generator, shippedConfig()), subjects.Query{
			SessionID: "s1", QueryID: "q1",
			Query: "Capital?",
		}, 1); err != nil {
			t.Fatal(err)
		}
		if r := w.onlyResponse(); r.Error == nil || r.Error.Code != subjects.CodeTimeout || !r.Partial ||
			r.Answer == "" {
			t.Errorf("answer: %+v", r)
		}
	})
}

// A turn that crashes each time is answered with an error at the last attempt, and the session goes on.
func TestLastAttemptAnswersWithError(t *testing.T) {
	t.Parallel()
	t.Run("dies at the same place each time", func(t *testing.T) {
		t.Parallel()
		w := newHarness(t, lookupCall("c1"), "It is noon.")
		w.tools = []string{"clock"}
		for try := 1; try < subjects.MaxDeliver; try++ {
			w.crashAt("turn.answer/before", 1, "s1", "q1", try)
		}
		if err := w.ask(New(subjects.Generator, shippedConfig()), "s1", "q1", "What time is it?",
			subjects.MaxDeliver); err != nil {
			t.Fatal(err)
		}
		r := w.onlyResponse()
		if r.Error == nil || r.Error.Code != subjects.CodeInternal || len(r.ToolCalls) != 1 ||
			!slices.Contains(noteCodes(r.Notes), subjects.NoteLost) || w.ran != 1 {
			t.Errorf("the tool ran %d times, answer: %+v", w.ran, r)
		}
	})
	t.Run("comes further each time", func(t *testing.T) {
		t.Parallel()
		w := newHarness(t, lookupCall("c1"), "It is noon.")
		w.tools = []string{"clock"}
		for i, at := range []string{"turn.start/after", "turn.step/after", "response/before", "response/after"} {
			w.crashAt(at, 1, "s1", "q1", i+1)
		}
		if err := w.ask(New(subjects.Generator, shippedConfig()), "s1", "q1", "What time is it?",
			subjects.MaxDeliver); err != nil {
			t.Fatal(err)
		}
		if r := w.onlyResponse(); r.Error != nil || r.Answer != "It is noon." || w.ran != 1 {
			t.Errorf("answer: %+v", r)
		}
	})
	t.Run("panics", func(t *testing.T) {
		t.Parallel()
		w := newHarness(t, func() any { panic("a bug") })
		if err := w.ask(New(subjects.Generator, shippedConfig()), "s1", "q1", "What time is it?",
			subjects.MaxDeliver); err == nil {
			t.Error("no dead letter")
		}
		if r := w.responses(); len(r) != 1 || r[0].Error == nil || strings.Contains(r[0].Answer, "a bug") {
			t.Errorf("answers: %+v", r)
		}
	})
	t.Run("the store is gone", func(t *testing.T) {
		t.Parallel()
		w := newHarness(t, "Paris.")
		store := w.Out().Store(bucket)
		if _, err := store.Put(t.Context(), subjects.ConversationKey("s1"), []byte("no JSON"), 0); err != nil {
			t.Fatal(err)
		}
		for try := 1; try <= subjects.MaxDeliver; try++ {
			if err := w.ask(New(subjects.Generator, shippedConfig()), "s1", "q1", "Capital?", try); err == nil {
				t.Error("it was acknowledged")
			}
		}
		if r := w.responses(); len(r) != 1 || r[0].Error == nil || r[0].QueryID != "q1" {
			t.Errorf("answers: %+v", r)
		}
	})
	t.Run("killed at the last try too", func(t *testing.T) {
		t.Parallel()
		w := newHarness(t, lookupCall("c1"), "It is noon.")
		w.tools = []string{"clock"}
		w.crashAt("turn.step/after", 1, "s1", "q1", 4)
		if err := w.ask(New(subjects.Generator, shippedConfig()), "s1", "q2", "Hello?", 1); err != nil {
			t.Fatal(err)
		}
		all := w.responses()
		if len(all) != 2 || all[0].QueryID != "q1" || all[0].Error == nil || all[0].Query != "What time is it?" ||
			all[1].QueryID != "q2" || all[1].Error != nil {
			t.Errorf("answers: %+v", all)
		}
		if c := w.conversation("s1"); len(c.Turns) != 2 {
			t.Errorf("conversation: %+v", c)
		}
	})
	t.Run("killed while it was stored", func(t *testing.T) {
		t.Parallel()
		w := newHarness(t, "It is noon.")
		w.crashAt("response/after", 1, "s1", "q1", 4)
		if err := w.ask(New(subjects.Generator, shippedConfig()), "s1", "q2", "Hello?", 1); err != nil {
			t.Fatal(err)
		}
		all := w.responses()
		if len(all) != 2 || all[0].QueryID != "q1" || all[0].Answer != "It is noon." || all[1].QueryID != "q2" ||
			len(w.conversation("s1").Turns) != 2 {
			t.Errorf("answers: %+v", all)
		}
	})
}

// The large record of a finished turn is shrunk, and the session goes on from it.
func TestLargeRecordIsShrunk(t *testing.T) {
	t.Parallel()
	long := longAnswer(1500)
	w := newHarness(t, long, "And a short one.")
	g := New(subjects.Generator, shippedConfig())
	if err := w.ask(g, "s1", "q1", "Tell me all.", 1); err != nil {
		t.Fatal(err)
	}
	left, _, err := w.Out().Store(bucket).Get(t.Context(), turnKey("s1"))
	if err != nil || len(left) > 1<<10 || strings.Contains(string(left), "long answer") {
		t.Errorf("%d bytes are left of the turn, %v", len(left), err)
	}
	if c := w.conversation("s1"); len(c.Turns) != 1 || c.Turns[0].Answer != long {
		t.Errorf("the conversation has %d turns", len(c.Turns))
	}
	if err := w.ask(g, "s1", "q2", "And?", 1); err != nil {
		t.Fatal(err)
	}
	if c := w.conversation("s1"); len(c.Turns) != 2 || c.Turns[1].Answer != "And a short one." {
		t.Errorf("%+v", c.Turns)
	}
}
