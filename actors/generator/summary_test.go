package generator

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"conclave/pkg/actor"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/subjects"
)

func TestOldTurnsAreSummarized(t *testing.T) {
	t.Parallel()
	w := newHarness(t, longAnswer(85))
	w.role.Window = 4096
	w.summary = "They spoke about nothing."
	g := New(subjects.Generator, shippedConfig())
	if err := g.Start(t.Context(), w.Out()); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var steps []string
	w.observe(g, func(s string) {
		mu.Lock()
		defer mu.Unlock()
		steps = append(steps, s)
	})
	for i := range 6 {
		if err := w.ask(g, "s1", fmt.Sprint("q", i), "Tell me more", 1); err != nil {
			t.Fatal(err)
		}
		g.summaries.running.Wait()
	}
	c := w.conversation("s1")
	if c.Summary != "They spoke about nothing." || c.Summarized == 0 || c.Summarized+len(c.Turns) != 6 ||
		c.Dropped != 0 || !c.Answered("q0") {
		t.Errorf("%d turns, %+v", len(c.Turns), c.Summary)
	}
	if !slices.Contains(steps, "compact/before") || !slices.Contains(steps, "compact/after") {
		t.Errorf("steps: %v", steps)
	}
	last := w.asked[len(w.asked)-1].Messages
	// As data, not as an order: a tool's words may have found their way into it.
	if last[1].Role != model.User || !strings.Contains(last[1].Content, "They spoke about nothing.") ||
		strings.Contains(last[0].Content, "They spoke about nothing.") {
		t.Errorf("the summary is sent as %+v", last[:2])
	}
	if n := loop.Estimate("", nil, buildHistory(c)); n > 4096*60/100 {
		t.Errorf("%d tokens are left", n)
	}
	if err := g.Close(t.Context()); err != nil {
		t.Error(err)
	}
	w.requireNoErrors()
}

// A summary is dropped when the conversation changed meanwhile, and no turn is lost.
func TestSummaryLosesAgainstConcurrentTurn(t *testing.T) {
	t.Parallel()
	w := newHarness(t, longAnswer(85))
	w.role.Window = 4096
	g := New(subjects.Generator, shippedConfig())
	begun, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.summary = waitOnMarshal{func() {
		once.Do(func() { close(begun); <-goOn })
	}}
	n := 0
	for ; ; n++ {
		if err := w.ask(g, "s1", fmt.Sprint("q", n), "Tell me more", 1); err != nil {
			t.Fatal(err)
		}
		if g.summaries.isRunning("s1") || n > 20 {
			break
		}
	}
	<-begun
	if err := w.ask(g, "s1", "after", "Tell me more", 1); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	g.summaries.running.Wait()
	c := w.conversation("s1")
	if len(c.Turns) != n+2 || c.Summary != "" || !c.Answered("after") {
		t.Errorf("%d turns of %d, summary %q", len(c.Turns), n+2, c.Summary)
	}
	if got := w.Logged(); len(got) != 1 || !errors.Is(got[0], actor.ErrChanged) {
		t.Errorf("noted: %v", got)
	}
}

// TestDeletionDuringSummary: a conversation that the user deletes while a summary of it is made leaves no text.
func TestDeletionDuringSummary(t *testing.T) {
	t.Parallel()
	w := newHarness(t, longAnswer(85))
	w.role.Window = 4096
	g := New(subjects.Generator, shippedConfig())
	var once sync.Once
	w.summary = waitOnMarshal{func() {
		once.Do(func() {
			if r, err := w.change(g, "s1", subjects.SessionDelete); err != nil || r.Turns == 0 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}}
	for i := 0; !w.conversation("s1").Deleted; i++ {
		if err := w.ask(g, "s1", fmt.Sprint("q", i), "My secret is heron", 1); err != nil || i > 20 {
			t.Fatal(i, err)
		}
		g.summaries.running.Wait()
	}
	store := w.Out().Store(bucket)
	keys, err := store.Keys(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if data, _, err := store.Get(t.Context(), key); err != nil || strings.Contains(string(data), "heron") {
			t.Errorf("%s after the deletion: %.200s, %v", key, data, err)
		}
	}
}

// waitOnMarshal is a reply that comes when it may.
type waitOnMarshal struct{ wait func() }

func (s waitOnMarshal) MarshalJSON() ([]byte, error) {
	s.wait()
	c := final()
	c.Content = "a summary"
	return json.Marshal(c)
}

// isRunning reports whether a summary of the session runs.
func (s *summaries) isRunning(session string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cancels[session] != nil
}
