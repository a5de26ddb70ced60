package story_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"conclave/pkg/model/scriptserver"
	"conclave/pkg/story"
	"conclave/subjects"
)

// What a story does before it asks comes out as it was written.
func TestParseActs(t *testing.T) {
	t.Parallel()
	s := parse(t, head+`turns:
  - query: one
    memory: {add: {text: The user drinks tea., name: tea, tags: [drinks], pinned: true}}
  - query: two
    after: [memory.stored action=stored times=2, 'memory.annotated why~"5 of 5"']
    memory: {import: {from: notes.md, text: "# Notes", trust: trusted}}
    feedback: {of: 1, thumb: -1, stars: 2, words: No.}
    reference: two
  - after: memory.stored
    memory: {pin: tea, refused: true}
`)
	m := s.Turns[0].Memory
	if want := (story.Add{
		Text: "The user drinks tea.", Name: "tea", Tags: []string{"drinks"},
		Pinned: true,
	}); !reflect.DeepEqual(*m.Add, want) || m.Refused {
		t.Errorf("add %+v", m)
	}
	second := s.Turns[1]
	if *second.Memory.Import != (story.Import{From: "notes.md", Text: "# Notes", Trust: "trusted"}) ||
		*second.Feedback != (story.Feedback{Of: 1, Thumb: -1, Stars: 2, Words: "No."}) || second.Reference != "two" {
		t.Errorf("turn %+v", second)
	}
	if m := s.Turns[2].Memory; m.Pin != "tea" || !m.Refused {
		t.Errorf("pin %+v", m)
	}
}

// kept is a Conclave that answers and then remembers, as often as it is told to.
func kept(n int) *fakeSystem {
	return &fakeSystem{answer: func(w *fakeSystem, q subjects.Query) {
		w.done(q.QueryID, subjects.Response{Answer: q.Query})
		for range n {
			w.store("memory", "memory.stored", q.QueryID, subjects.MemoryEvent{Action: "stored", IDs: []string{}})
		}
	}}
}

// A turn begins when what it waits for is there, and says what is missing when it is not.
func TestAfter(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, after string
		kept        int
		live        bool
		want        string
	}{
		{"it came with the turn before", "memory.stored action=stored", 1, false, ""},
		{"at least so often", "memory.stored times=2", 3, false, ""},
		{"several", "[memory.stored, response.generation]", 1, false, ""},
		{"left out with a real model", "memory.stored scripted_only", 0, true, ""},
		{"it was not reached", "memory.stored action=stored", 0, false, "stories/t.yaml:7: turn 2: timeout: waiting " +
			"for memory.stored action=stored (0 so far) after 300ms"},
		{"not often enough", "memory.stored times=2", 1, false, "memory.stored times=2 (1 so far)"},
		{
			"one of several was not reached", "[response.generation, memory.stored action=forgotten]", 1, false,
			"timeout: waiting for memory.stored action=forgotten (0 so far)",
		},
		{"trick: something of another field", "memory.stored action=stored by=generator", 1, false, "(0 so far)"},
		{"trick: not left out with the script", "memory.stored scripted_only", 0, false, "(0 so far)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := parse(t, head+"turns:\n  - query: one\n  - query: two\n    after: "+tt.after+"\n    answer: "+
				"{equals: two}\n")
			opts := story.Options{
				AnswerTimeout: 300 * time.Millisecond, SettleTimeout: 50 * time.Millisecond,
				Live: tt.live,
			}
			w := kept(tt.kept)
			got := run(t, s, w, opts)
			if got.OK() != (tt.want == "") || !strings.Contains(got.Report(), tt.want) {
				t.Errorf("want %q\n%s", tt.want, got.Report())
			}
			if asked := len(w.asked); asked != 2 && tt.want == "" || asked != 1 && tt.want != "" {
				t.Errorf("%d questions", asked)
			}
			if !got.OK() && !strings.Contains(got.Report(), "response.generation") {
				t.Errorf("the events that did come are not told:\n%s", got.Report())
			}
		})
	}
}

// What comes late is waited for, also when it is in the stream and nobody heard it.
func TestAfterComesLate(t *testing.T) {
	t.Parallel()
	for _, deaf := range []bool{false, true} {
		s := parse(t, head+"turns:\n  - query: one\n  - after: memory.stored\n  - query: two\n    answer: {equals: "+
			"two}\n")
		late := make(chan string, 2)
		w := &fakeSystem{deaf: deaf, answer: func(w *fakeSystem, q subjects.Query) {
			w.done(q.QueryID, subjects.Response{Answer: q.Query})
			late <- q.QueryID
		}}
		synctest.Test(t, func(t *testing.T) {
			go func() { w.store("memory", "memory.stored", <-late, subjects.MemoryEvent{Action: "stored"}) }()
			if got := story.Run(t.Context(), s, w, quick); !got.OK() {
				t.Errorf("deaf %t: %s", deaf, got.Report())
			}
		})
	}
}

// When a turn cannot begin, what model requests in vain is told first: it may be the reason.
func TestAfterTellsOfTheScript(t *testing.T) {
	t.Parallel()
	s := parse(t, head+"turns:\n  - query: one\n  - after: memory.stored\n")
	w := kept(0)
	w.script = story.ScriptReport{
		Mismatches: []scriptserver.Mismatch{{
			Place: scriptserver.Place{Model: "summaries", N: -1},
			Text:  "no exchange is left",
		}},
	}
	got := run(t, s, w, story.Options{AnswerTimeout: 50 * time.Millisecond, SettleTimeout: time.Millisecond})
	if len(got.Failures) != 2 || !strings.Contains(got.Failures[0].Text, "no exchange is left") ||
		!strings.Contains(got.Failures[1].Text, "timeout: waiting for") {
		t.Errorf("got %s", got.Report())
	}
}

// The user's hand on memory comes before the question. A no must be announced, and so must it come.
func TestMemory(t *testing.T) {
	t.Parallel()
	no := subjects.Faultf("malformed", "it looks like a key")
	for _, tt := range []struct {
		name, memory string
		says         error
		want         string
	}{
		{"forget", "{forget: coffee}", nil, ""},
		{"refused as announced", "{add: {text: x}, refused: true}", no, ""},
		{"refused in a wrapping", "{add: {text: x}, refused: true}", fmt.Errorf("adding: %w", no), ""},
		{"refused, and nobody said so", "{add: {text: x}}", no, "stories/t.yaml:8: turn 2: changing memory: " +
			"malformed: it looks like a key"},
		{"trick: announced, and it is taken", "{add: {text: x}, refused: true}", nil, "t.yaml:8: turn 2: memory did " +
			"not reject the change"},
		{
			"trick: announced, and memory is away", "{add: {text: x}, refused: true}", errors.New("nobody answers"),
			"turn 2: changing memory: nobody answers",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := parse(t, head+"turns:\n  - query: one\n  - query: two\n    session: mine\n    memory: "+tt.memory+
				"\n    answer: {equals: two}\n")
			before := -1
			w := kept(0)
			w.remember = func(w *fakeSystem, _ story.Memory) error {
				before = len(w.asked)
				return tt.says
			}
			got := run(t, s, w, quick)
			if got.OK() != (tt.want == "") || !strings.Contains(got.Report(), tt.want) {
				t.Errorf("want %q\n%s", tt.want, got.Report())
			}
			if before != 1 || got.OK() && len(w.asked) != 2 {
				t.Errorf("it was done after %d of %d questions", before, len(w.asked))
			}
		})
	}
}

// Feedback is about the answer of the turn that it names, in that turn's session.
func TestFeedback(t *testing.T) {
	t.Parallel()
	s := parse(t, head+`turns:
  - query: one
    session: first
    reference: uno
  - query: two
    session: second
    feedback: {of: 1, thumb: -1}
  - feedback: {of: 2, stars: 5, words: Very good.}
  - feedback: {query: q-nobody, thumb: 1}
  - query: three
    answer: {equals: three}
`)
	w := kept(0)
	var said []rated
	var when []int
	w.rate = func(w *fakeSystem, f rated) error {
		said, when = append(said, f), append(when, len(w.asked))
		return nil
	}
	if got := run(t, s, w, quick); !got.OK() {
		t.Fatal(got.Report())
	}
	want := []rated{
		{"first", subjects.Feedback{QueryID: w.asked[0].QueryID, Thumb: -1}},
		{"second", subjects.Feedback{QueryID: w.asked[1].QueryID, Stars: 5, Words: "Very good."}},
		{"", subjects.Feedback{QueryID: "q-nobody", Thumb: 1}},
	}
	if !reflect.DeepEqual(said, want) || !slices.Equal(when, []int{1, 2, 2}) {
		t.Errorf("said %+v\nwant %+v\nafter %v questions", said, want, when)
	}
	if w.asked[0].Reference != "uno" || w.asked[1].Reference != "" {
		t.Errorf("asked %+v", w.asked)
	}
}

// Feedback that cannot be said fails the story where it stands.
func TestFailedFeedbackFailsTheStory(t *testing.T) {
	t.Parallel()
	s := parse(t, head+"turns:\n  - query: one\n  - feedback: {of: 1, thumb: 1}\nevents: {present: [query.received]}\n")
	w := kept(0)
	w.rate = func(*fakeSystem, rated) error { return errors.New("no voice") }
	got := run(t, s, w, quick)
	if got.OK() || !strings.Contains(got.Report(), "t.yaml:6: turn 2: rating "+w.asked[0].QueryID+": no voice") {
		t.Error(got.Report())
	}
}
