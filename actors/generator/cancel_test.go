package generator

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

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
		g := New(subjects.Generator, shipped())
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
		g := New(subjects.Generator, shipped())
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
		g := New(subjects.Generator, shipped())
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
