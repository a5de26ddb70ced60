package generator

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

func TestCanceledTurnKeepsPartialAnswer(t *testing.T) {
	t.Parallel()
	cancel := func(t *testing.T, w *harness, g *Generator) {
		t.Helper()
		if _,
			err := w.Deliver(t, g, actortest.Message{
			Subject: "query.cancel.q1",
			Body:    subjects.Cancel{Reason: "enough"},
		}); err != nil {
			t.Error(err)
		}
	}
	t.Run("before it began", func(t *testing.T) {
		t.Parallel()
		w := newHarness(t, "Paris.")
		g := New(subjects.Generator, shippedConfig())
		cancel(t, w, g)
		if err := w.ask(g, "s1", "q1", "Capital?", 1); err != nil {
			t.Fatal(err)
		}
		if r := w.onlyResponse(); !r.Partial || r.Error != nil || r.Answer != "Stopped before there was an answer." ||
			!slices.Contains(noteCodes(r.Notes), "stopped") || len(w.asked) != 0 {
			t.Errorf("answer: %+v", r)
		}
		if err := w.ask(g, "s1", "q2", "Capital?", 1); err != nil || len(w.responses()) != 2 ||
			w.responses()[1].Answer != "Paris." {
			t.Errorf("the next question: %v, %+v", err, w.responses())
		}
	})
	t.Run("in the middle of the answer", func(t *testing.T) {
		t.Parallel()
		g := New(subjects.Generator, shippedConfig())
		w := newHarness(t)
		w.replies = []any{actortest.Pieces{
			subjects.ChatChunk{Content: "It was the best of times"},
			cancelOnMarshal{func() { cancel(t, w, g) }},
			subjects.ChatChunk{Content: ", it was"},
			final(),
		}}
		if err := w.ask(g, "s1", "q1", "Tell me a tale", 1); err != nil {
			t.Fatal(err)
		}
		if r := w.onlyResponse(); !r.Partial || r.Error != nil ||
			!strings.HasPrefix(r.Answer, "It was the best of times") || strings.Contains(r.Answer, "it was") ||
			!slices.Contains(noteCodes(r.Notes), "stopped") {
			t.Errorf("answer: %+v", r)
		}
		w.requireNoErrors()
	})
	t.Run("while a tool works", func(t *testing.T) {
		t.Parallel()
		g := New(subjects.Generator, shippedConfig())
		w := newHarness(t, lookupCall("c1"), "It is noon.")
		w.tools = []string{"clock"}
		w.run = func(subjects.ToolRequest) (subjects.ToolResult, error) {
			cancel(t, w, g)
			return subjects.ToolResult{}, subjects.Faultf(subjects.CodeTimeout, "gone")
		}
		if err := w.ask(g, "s1", "q1", "What time is it?", 1); err != nil {
			t.Fatal(err)
		}
		if r := w.onlyResponse(); !r.Partial || r.Answer != "Stopped before there was an answer." {
			t.Errorf("answer: %+v", r)
		}
		w.requireNoErrors()
	})
}

// cancelOnMarshal is a piece that does something when it is encoded, in the middle of a reply.
type cancelOnMarshal struct{ do func() }

func (s cancelOnMarshal) MarshalJSON() ([]byte, error) {
	s.do()
	return json.Marshal(subjects.ChatChunk{})
}
