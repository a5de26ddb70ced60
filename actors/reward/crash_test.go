package reward

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// boundaries of a change, of an answer, and of all.
var (
	changes = []string{"opinion/before", "opinion/after", "event/before", "event/after", "said/before", "said/after"}
	entries = []string{"answer/before", "answer/after", "last/before", "last/after"}
)

// TestBoundaries: what is durable about an answer and about feedback, in this order and no more.
func TestBoundaries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var steps []string
	w.r.Boundary = func(step string) { steps = append(steps, step) }
	w.answers("s1", "q1", 1)
	if err := w.says(2, subjects.Feedback{QueryID: "q1", Thumb: 1}); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(steps), fmt.Sprint(append(append([]string(nil), entries...), changes...)); got != want {
		t.Errorf("it takes %s, want %s", got, want)
	}
	steps = nil
	w.answers("s1", "q1", 1)
	if err := w.says(2, subjects.Feedback{QueryID: "q1", Thumb: 1}); err != nil || len(steps) > 0 {
		t.Errorf("again it takes %v, %v", steps, err)
	}
}

// TestCrashInFeedback: wherever it dies, the change is told once, by whoever comes next: the same message, the next one, the
// tool, or the next answer of the session.
func TestCrashInFeedback(t *testing.T) {
	t.Parallel()
	up, down := subjects.Feedback{QueryID: "q1", Thumb: 1}, subjects.Feedback{QueryID: "q1", Thumb: -1}
	for _, at := range changes {
		written := at != "opinion/before"
		for _, tt := range []struct {
			name string
			next func(*world) error
			want func() string
		}{
			{"the same message", func(w *world) error { return w.says(2, up) }, func() string { return "+1.0/1 " }},
			{"the same message, twice", func(w *world) error { _ = w.says(2, up); return w.says(2, up) }, func() string { return "+1.0/1 " }},
			{"another opinion first", func(w *world) error { _ = w.says(3, down); return w.says(2, up) }, func() string {
				if written {
					return "+1.0/1 -1.0/2 "
				}
				return "-1.0/1 "
			}},
			{"the same opinion first", func(w *world) error { _ = w.says(3, up); return w.says(2, up) }, func() string { return "+1.0/1 " }},
			{"the next answer first", func(w *world) error { w.answers("s1", "q2", 3); return w.says(2, up) }, func() string { return "+1.0/1 " }},
		} {
			t.Run(at+", then "+tt.name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.answers("s1", "q1", 1)
				w.dies(at, func(r *Reward) error { return r.onFeedback(t.Context(), feedback(2, 1, up), w.Out()) })
				if err := tt.next(w); err != nil {
					t.Fatal(err)
				}
				if got := w.story(); got != tt.want() {
					t.Errorf("told %q, want %q", got, tt.want())
				}
				if a := w.book("q1"); a.unsaid() || a.Count != len(w.rewards()) {
					t.Errorf("the book has %+v", a)
				}
			})
		}
	}
}

// TestCrashInAnswer: wherever it dies, the answer is in the book afterwards, and is the last one of its session.
func TestCrashInAnswer(t *testing.T) {
	t.Parallel()
	for _, at := range entries {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.answers("s1", "q0", 1)
			w.dies(at, func(r *Reward) error { return r.onResponse(t.Context(), response("generator", "s1", "q1", 2), w.Out()) })
			w.answers("s1", "q1", 2)
			if err := w.says(3, subjects.Feedback{QueryID: "q1", Thumb: 1}); err != nil || w.story() != "+1.0/1 " || w.last("s1") != "q1" {
				t.Errorf("told %q, last %q, %v", w.story(), w.last("s1"), err)
			}
		})
	}
}

// TestCrashInTool: a call that died is told of when the question is answered in which it was made, and once.
func TestCrashInTool(t *testing.T) {
	t.Parallel()
	for _, at := range changes {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.answers("s1", "q1", 1)
			call := subjects.ToolOrder{CallID: "c1", QueryID: "q2", Args: json.RawMessage(`{"opinion":"bad","words":"that was wrong"}`), Caller: "generator", Labels: trusted()}
			w.dies(at, func(r *Reward) error {
				_, err := r.onGive(t.Context(), actor.Msg[subjects.ToolOrder]{Session: "s1", Query: "q2", Body: call}, w.Out())
				return err
			})
			w.answers("s1", "q2", 2)
			want := "-1.0/1 "
			if at == "opinion/before" {
				want = "" // nothing was written down, and nobody asks again
			}
			if got := w.story(); got != want {
				t.Errorf("told %q, want %q", got, want)
			}
			if a := w.book("q1"); a.unsaid() {
				t.Errorf("the book has %+v", a)
			}
		})
	}
}

// TestPaused: one that is paused while another does its work says nothing twice and takes nothing back.
func TestPaused(t *testing.T) {
	t.Parallel()
	for _, at := range changes {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.answers("s1", "q1", 1)
			slow, woken := New(), false
			slow.Boundary = func(step string) {
				if step != at || woken {
					return
				}
				woken = true
				for i, m := range []actor.Msg[subjects.Feedback]{feedback(2, 2, subjects.Feedback{QueryID: "q1", Thumb: 1}), feedback(3, 1, subjects.Feedback{QueryID: "q1", Thumb: -1})} {
					if err := w.r.onFeedback(t.Context(), m, w.Out()); err != nil {
						t.Error(i, err)
					}
				}
				w.Time = w.Time.Add(time.Minute)
			}
			if err := slow.onFeedback(t.Context(), feedback(2, 1, subjects.Feedback{QueryID: "q1", Thumb: 1}), w.Out()); err != nil || !woken {
				t.Error(err, woken)
			}
			if got := w.story(); got != "+1.0/1 -1.0/2 " {
				t.Errorf("told %q", got)
			}
			if a := w.book("q1"); a.Count != 2 || a.Opinion.Value != -1 || !a.Said {
				t.Errorf("the book has %+v", a)
			}
		})
	}
}

// TestEventThatCannotBeSaid: it is said when it can be, under the id that was written down.
func TestEventThatCannotBeSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.answers("s1", "q1", 1)
	w.FailPublish = func(string) error { return errTest }
	if err := w.says(2, subjects.Feedback{QueryID: "q1", Thumb: 1}); err == nil {
		t.Error("it was handled although nobody heard of it")
	}
	id := w.book("q1").EventID
	w.FailPublish = nil
	if err := w.says(2, subjects.Feedback{QueryID: "q1", Thumb: 1}); err != nil {
		t.Fatal(err)
	}
	all := w.Published()
	if s := all[len(all)-1]; s.Subject != "reward.event" || s.ID != id || id == "" || w.story() != "+1.0/1 " {
		t.Errorf("said %+v, want it under %s", all, id)
	}
}
