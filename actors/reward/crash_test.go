package reward

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// The steps of a changed rating and of an answer.
var (
	changes = []string{
		"opinion/before", "opinion/after", "event/before", "event/after", "event.mark/before",
		"event.mark/after",
	}
	entries = []string{"answer/before", "answer/after", "last/before", "last/after"}
)

// TestStepsAreMarkedInOrder: what is durable about an answer and about feedback, in this order and no more.
func TestStepsAreMarkedInOrder(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	var steps []string
	w.onStep = func(step string) { steps = append(steps, step) }
	w.deliverAnswer("s1", "q1", 1)
	if err := w.deliverFeedback(2, subjects.Feedback{QueryID: "q1", Thumb: 1}); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(steps), fmt.Sprint(append(append([]string(nil), entries...), changes...)); got != want {
		t.Errorf("it takes %s, want %s", got, want)
	}
	steps = nil
	w.deliverAnswer("s1", "q1", 1)
	if err := w.deliverFeedback(2, subjects.Feedback{QueryID: "q1", Thumb: 1}); err != nil || len(steps) > 0 {
		t.Errorf("again it takes %v, %v", steps, err)
	}
}

// TestCrashInFeedbackPublishesOnce: wherever it dies, the change is told once, by the next handler: the same message,
// the next one, the tool, or the next answer of the session.
func TestCrashInFeedbackPublishesOnce(t *testing.T) {
	t.Parallel()
	up, down := subjects.Feedback{QueryID: "q1", Thumb: 1}, subjects.Feedback{QueryID: "q1", Thumb: -1}
	for _, at := range changes {
		written := at != "opinion/before"
		for _, tt := range []struct {
			name string
			next func(*harness) error
			want func() string
		}{
			{"the same message", func(w *harness) error {
				return w.deliverFeedback(2, up)
			}, func() string { return "+1.0/1 " }},
			{"the same message, twice", func(w *harness) error {
				_ = w.deliverFeedback(2, up)
				return w.deliverFeedback(2, up)
			}, func() string { return "+1.0/1 " }},
			{"another opinion first", func(w *harness) error {
				_ = w.deliverFeedback(3, down)
				return w.deliverFeedback(2, up)
			}, func() string {
				if written {
					return "+1.0/1 -1.0/2 "
				}
				return "-1.0/1 "
			}},
			{"the same opinion first", func(w *harness) error {
				_ = w.deliverFeedback(3, up)
				return w.deliverFeedback(2, up)
			}, func() string { return "+1.0/1 " }},
			{"the next answer first", func(w *harness) error {
				w.deliverAnswer("s1", "q2", 3)
				return w.deliverFeedback(2, up)
			}, func() string { return "+1.0/1 " }},
		} {
			t.Run(at+", then "+tt.name, func(t *testing.T) {
				t.Parallel()
				w := newHarness(t)
				w.deliverAnswer("s1", "q1", 1)
				w.crashAt(at, func(r *Reward) error { return r.onFeedback(w.context(), feedback(2, 1, up), w.Out()) })
				if err := tt.next(w); err != nil {
					t.Fatal(err)
				}
				if got := w.rewardSummary(); got != tt.want() {
					t.Errorf("told %q, want %q", got, tt.want())
				}
				if a := w.storedAnswer("q1"); a.hasUnpublished() || a.Count != len(w.rewards()) {
					t.Errorf("the book has %+v", a)
				}
			})
		}
	}
}

// TestCrashInAnswerKeepsIt: wherever it dies, the answer is in the book afterwards, and is the last one of its session.
func TestCrashInAnswerKeepsIt(t *testing.T) {
	t.Parallel()
	for _, at := range entries {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			w.deliverAnswer("s1", "q0", 1)
			w.crashAt(at, func(r *Reward) error {
				return r.onResponse(w.context(), response("generator", "s1", "q1", 2), w.Out())
			})
			w.deliverAnswer("s1", "q1", 2)
			if err := w.deliverFeedback(3, subjects.Feedback{QueryID: "q1", Thumb: 1}); err != nil ||
				w.rewardSummary() != "+1.0/1 " || w.lastQuery("s1") != "q1" {
				t.Errorf("told %q, last %q, %v", w.rewardSummary(), w.lastQuery("s1"), err)
			}
		})
	}
}

// TestCrashInToolPublishesOnce: a call that died is told of when the question is answered in which it was made, and
// once.
func TestCrashInToolPublishesOnce(t *testing.T) {
	t.Parallel()
	for _, at := range changes {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			w.deliverAnswer("s1", "q1", 1)
			call := subjects.ToolOrder{
				CallID: "c1", QueryID: "q2",
				Args: json.RawMessage(`{"opinion":"bad","words":"that was wrong"}`), Caller: "generator",
				Labels: trusted(),
			}
			w.crashAt(at, func(r *Reward) error {
				_, err := r.giveFeedbackTool().Run(w.context(), actor.Msg[subjects.ToolOrder]{
					Session: "s1",
					Query:   "q2", Body: call,
				}, w.Out())
				return err
			})
			w.deliverAnswer("s1", "q2", 2)
			want := "-1.0/1 "
			if at == "opinion/before" {
				want = "" // nothing was written down, and nobody asks again
			}
			if got := w.rewardSummary(); got != want {
				t.Errorf("told %q, want %q", got, want)
			}
			if a := w.storedAnswer("q1"); a.hasUnpublished() {
				t.Errorf("the book has %+v", a)
			}
		})
	}
}

// TestPausedProcessChangesNothing: one that is paused while another does its work says nothing twice and takes nothing
// back.
func TestPausedProcessChangesNothing(t *testing.T) {
	t.Parallel()
	for _, at := range changes {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			w.deliverAnswer("s1", "q1", 1)
			woken := false
			slow := actor.WithSteps(t.Context(), func(step string) {
				if step != at || woken {
					return
				}
				woken = true
				for i, m := range []actor.Msg[subjects.Feedback]{
					feedback(2, 2, subjects.Feedback{QueryID: "q1", Thumb: 1}), feedback(3, 1,
						subjects.Feedback{QueryID: "q1", Thumb: -1}),
				} {
					if err := w.r.onFeedback(t.Context(), m, w.Out()); err != nil {
						t.Error(i, err)
					}
				}
				w.Time = w.Time.Add(time.Minute)
			})
			if err := New().onFeedback(slow, feedback(2, 1, subjects.Feedback{QueryID: "q1", Thumb: 1}),
				w.Out()); err != nil || !woken {
				t.Error(err, woken)
			}
			if got := w.rewardSummary(); got != "+1.0/1 -1.0/2 " {
				t.Errorf("told %q", got)
			}
			if a := w.storedAnswer("q1"); a.Count != 2 || a.Opinion.Value != -1 || !a.Said {
				t.Errorf("the book has %+v", a)
			}
		})
	}
}

// TestFailedPublishKeepsEventID: it is said when it can be, under the id that was written down.
func TestFailedPublishKeepsEventID(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.deliverAnswer("s1", "q1", 1)
	w.FailPublish = func(string) error { return errTest }
	if err := w.deliverFeedback(2, subjects.Feedback{QueryID: "q1", Thumb: 1}); err == nil {
		t.Error("it was handled although nobody heard of it")
	}
	id := w.storedAnswer("q1").EventID
	w.FailPublish = nil
	if err := w.deliverFeedback(2, subjects.Feedback{QueryID: "q1", Thumb: 1}); err != nil {
		t.Fatal(err)
	}
	all := w.Published()
	if s := all[len(all)-1]; s.Subject != "reward.event" || s.ID != id || id == "" || w.rewardSummary() != "+1.0/1 " {
		t.Errorf("said %+v, want it under %s", all, id)
	}
}

// TestRatingOfEarlierVersionIsPublished: a record without its query id, whose event was not published before an update
// of the program, is published with the next delivery.
func TestRatingOfEarlierVersionIsPublished(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	record := `{"session":"s1","respondent":"generator","place":{"seq":1,"stored":"2026-05-04T12:00:01Z"},` +
		`"opinion":{"value":1,"source":"user","thumb":1},"count":1,"event_id":"earlier","heard":{"seq":2,` +
		`"stored":"2026-05-04T12:00:02Z"}}`
	if _, err := w.Out().Store(bucket).Put(t.Context(), subjects.AnswerKey("q1"), []byte(record), 0); err != nil {
		t.Fatal(err)
	}
	if err := w.deliverFeedback(2, subjects.Feedback{QueryID: "q1", Thumb: 1}); err != nil {
		t.Fatal(err)
	}
	got := w.rewards()
	if len(got) != 1 || got[0].QueryID != "q1" || got[0].Count != 1 ||
		w.Published()[len(w.Published())-1].ID != "earlier" || w.storedAnswer("q1").hasUnpublished() {
		t.Errorf("%+v, %+v", got, w.storedAnswer("q1"))
	}
}
