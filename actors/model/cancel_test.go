package model_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/actors/model"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/model/scriptserver"
	"conclave/subjects"
)

// The user stops a query: what runs for it ends at the server, what waits for it ends at once.
func TestCancel(t *testing.T) {
	t.Parallel()
	hang := scriptserver.Reply{Content: "never", Quirks: scriptserver.Quirks{Hang: true}}
	w := newHarness(t, scriptserver.Script{"big": {{Always: true, Reply: hang}}}, nil)
	replies := make(chan reply, 3)
	for range 2 { // one slot: one runs and one waits
		go func() { replies <- w.askAs("generator", "q7", subjects.ChatRequest{}) }()
	}
	waitFor(t, "one runs", func() bool { return w.srv.Stats().Running == 1 })
	other := make(chan reply, 1)
	go func() { other <- w.askAs("critic", "q8", subjects.ChatRequest{}) }()
	waitFor(t, "all are on record", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.records) == 3
	})
	cancel := func(query string) {
		t.Helper()
		if _,
			err := w.rec.Deliver(t, w.m, actortest.Message{
			Subject: "query.cancel." + query,
			Body:    subjects.Cancel{},
		}); err != nil {
			t.Fatal(err)
		}
	}
	cancel("nobody")
	cancel("q7")
	for range 2 {
		if r := <-replies; r.code() != subjects.CodeStopped {
			t.Errorf("%v", r.err)
		}
	}
	// The other query has the slot now.
	waitFor(t, "the next one runs", func() bool { c := w.srv.Stats(); return c.Cancelled == 1 && c.Running == 1 })
	cancel("q8")
	if r := <-other; r.code() != subjects.CodeStopped {
		t.Errorf("%v", r.err)
	}
	waitFor(t, "the server stopped", func() bool { return w.srv.Stats().Cancelled == 2 })
	var after []string
	for _, r := range w.records[3:] {
		after = append(after, r.Query+" "+r.Status+" "+r.Reason)
	}
	slices.Sort(after)
	if got := strings.Join(after, ", "); got != "q7 failed stopped, q7 unknown stopped, q8 unknown stopped" {
		t.Errorf("audit: %s", got)
	}
}

// Two large models never run at once. A small one and vectors need not wait for them.
func TestExclusive(t *testing.T) {
	t.Parallel()
	yes := true
	s := always("other", "tiny")
	s["big"] = []scriptserver.Exchange{
		{Always: true, Reply: scriptserver.Reply{Content: "never", Quirks: scriptserver.Quirks{Hang: true}}},
	}
	w := newHarness(t, s, func(c *model.Config) {
		c.Ollama.Slots = 4
		c.Models = map[string]model.Options{"tiny": {Small: &yes}}
	})
	held, other := make(chan reply, 1), make(chan reply, 1)
	go func() { held <- w.askAs("generator", "q1", subjects.ChatRequest{Model: "big"}) }()
	waitFor(t, "the large one runs", func() bool { return w.srv.Stats().Running == 1 })
	go func() { other <- w.askAs("critic", "q2", subjects.ChatRequest{Model: "other"}) }()
	waitFor(t, "the other is on record", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.records) == 2
	})
	if r := w.askAs("memory", "q3", subjects.ChatRequest{Model: "tiny"}); r.err != nil {
		t.Errorf("the small one: %v", r.err)
	}
	if err := w.deliver("agent.memory.model.embed", subjects.EmbedRequest{Texts: []string{"x"}}, nil); err != nil {
		t.Errorf("vectors: %v", err)
	}
	if c := w.srv.Stats(); c.Started != 2 || c.Running != 1 {
		t.Errorf("two large ones at once: %+v", c)
	}
	if _,
		err := w.rec.Deliver(t, w.m, actortest.Message{
		Subject: "query.cancel.q1",
		Body:    subjects.Cancel{},
	}); err != nil {
		t.Fatal(err)
	}
	if r := <-held; r.code() != subjects.CodeStopped {
		t.Errorf("%v", r.err)
	}
	if r := <-other; r.err != nil || r.last.Model != "other" {
		t.Errorf("%v, %+v", r.err, r.last)
	}
}

func TestDeadlineWhileWaiting(t *testing.T) {
	t.Parallel()
	hang := scriptserver.Reply{Content: "never", Quirks: scriptserver.Quirks{Hang: true}}
	w := newHarness(t, scriptserver.Script{"big": {{Always: true, Reply: hang}}}, nil)
	held := make(chan reply, 1)
	go func() { held <- w.askAs("memory", "q1", subjects.ChatRequest{}) }()
	waitFor(t, "one runs", func() bool { return w.srv.Stats().Running == 1 })
	_, err := w.rec.Deliver(t, w.m, actortest.Message{
		Subject:  "agent.generator.model.chat",
		Body:     subjects.ChatRequest{Messages: json.RawMessage(`[{"role":"user","content":"x"}]`)},
		Deadline: now.Add(100 * time.Millisecond),
	})
	if actortest.Code(err) != subjects.CodeTimeout {
		t.Errorf("%v", err)
	}
	if n := w.srv.Stats().Started; n != 1 {
		t.Errorf("%d requests reached the server", n)
	}
	if _,
		err := w.rec.Deliver(t, w.m, actortest.Message{
		Subject: "query.cancel.q1",
		Body:    subjects.Cancel{},
	}); err != nil {
		t.Error(err)
	}
	<-held
}

func TestQueueFullIsBusy(t *testing.T) {
	t.Parallel()
	hang := scriptserver.Reply{Content: "never", Quirks: scriptserver.Quirks{Hang: true}}
	w := newHarness(t, scriptserver.Script{"big": {{Always: true, Reply: hang}}}, func(c *model.Config) {
		c.Ollama.Queue = 1
	})
	held := make(chan reply, 2)
	for range 2 {
		go func() { held <- w.askAs("memory", "q1", subjects.ChatRequest{}) }()
	}
	waitFor(t, "one runs and one waits", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.srv.Stats().Running == 1 && len(w.records) == 2
	})
	// The record of the one that waits is stored before it lines up: ask until there is no room.
	waitFor(t, "no room", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := w.rec.Deliver(shortly{t, ctx}, w.m, actortest.Message{
			Subject:  "agent.generator.model.chat",
			Body:     subjects.ChatRequest{Messages: json.RawMessage(`[{"role":"user","content":"x"}]`)},
			Deadline: now.Add(soon),
		})
		return actortest.Code(err) == subjects.CodeBusy
	})
	if _,
		err := w.rec.Deliver(t, w.m, actortest.Message{
		Subject: "query.cancel.q1",
		Body:    subjects.Cancel{},
	}); err != nil {
		t.Error(err)
	}
	for range 2 {
		<-held
	}
}

// shortly is a test whose context is another.
type shortly struct {
	testing.TB
	ctx context.Context
}

func (s shortly) Context() context.Context { return s.ctx }
