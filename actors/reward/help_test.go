package reward

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// canary is a credential of a known shape that must be nowhere.
const canary = "hunter2-correct-horse"

// world is everything around one reward: a recorder whose bucket outlives it, and a stream as far as it matters.
type world struct {
	actortest.Recorder
	t *testing.T
	r *Reward
}

// newWorld is a reward that was started an hour ago.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, r: New()}
	w.Time = noon.Add(-time.Hour)
	if err := w.r.Start(t.Context(), w.Out()); err != nil {
		t.Fatal(err)
	}
	w.Time = noon
	return w
}

// stored is when the stream stored its n-th message.
func stored(seq uint64) time.Time { return noon.Add(time.Duration(seq) * time.Second) }

// response is an answer as it is handed out.
func response(from, session, query string, seq uint64) actor.Msg[subjects.Response] {
	return actor.Msg[subjects.Response]{
		Subject: "from." + from + ".response.generation", From: from, Query: query, Session: session, Seq: seq, StoredAt: stored(seq), Attempt: 1,
		Body: subjects.Response{SessionID: session, QueryID: query, Query: "?", Answer: "42", RespondentID: "operator", GeneratorID: "operator"},
	}
}

func feedback(seq uint64, try int, f subjects.Feedback) actor.Msg[subjects.Feedback] {
	return actor.Msg[subjects.Feedback]{Subject: "from.user.user.feedback", From: "user", Query: f.QueryID, Seq: seq, StoredAt: stored(seq), Time: noon, Attempt: try, Body: f}
}

// answers hands an answer of the generator in.
func (w *world) answers(session, query string, seq uint64) {
	w.t.Helper()
	if err := w.r.onResponse(w.t.Context(), response("generator", session, query, seq), w.Out()); err != nil {
		w.t.Fatal(err)
	}
}

// says hands in what the user says, on the first try.
func (w *world) says(seq uint64, f subjects.Feedback) error {
	w.t.Helper()
	return w.r.onFeedback(w.t.Context(), feedback(seq, 1, f), w.Out())
}

// said reads what was said on a subject.
func said[T any](w *world, subject string) (out []T) {
	w.t.Helper()
	for _, s := range w.Published() {
		if s.Subject != subject {
			continue
		}
		var v T
		if err := json.Unmarshal([]byte(s.Body), &v); err != nil {
			w.t.Fatal(err)
		}
		out = append(out, v)
	}
	return out
}

func (w *world) rewards() []subjects.Reward { return said[subjects.Reward](w, "reward.event") }

func (w *world) letters() []subjects.DeadLetter { return said[subjects.DeadLetter](w, "dead.reward") }

// story is the rewards in short: value and count of each.
func (w *world) story() (out string) {
	for _, r := range w.rewards() {
		out += fmt.Sprintf("%+.1f/%d ", r.Value, r.Count)
	}
	return out
}

// book is what is written down about an answer, nil when nothing is.
func (w *world) book(query string) *answer {
	w.t.Helper()
	a, _, err := get[answer](w.t.Context(), w.Out().Store(bucket), answerKey(query))
	if errors.Is(err, actor.ErrNotFound) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return &a
}

// last is the question of a session that was answered last, "" when none was.
func (w *world) last(session string) string {
	w.t.Helper()
	l, _, err := get[lastAnswer](w.t.Context(), w.Out().Store(bucket), lastKey(session))
	if err != nil && !errors.Is(err, actor.ErrNotFound) {
		w.t.Fatal(err)
	}
	return l.Query
}

// trusted are the labels of a session that no stranger has written into.
func trusted() *subjects.Labels { return &subjects.Labels{Trust: subjects.Trusted} }

// gives has the tool called as the broker does: from question q2 of session s1, by the generator, unless changed.
func (w *world) gives(args string, change ...func(*subjects.ToolOrder, *string)) subjects.ToolResult {
	w.t.Helper()
	o := subjects.ToolOrder{CallID: "c1", QueryID: "q2", Args: json.RawMessage(args), Caller: "generator", Labels: trusted()}
	session := "s1"
	for _, c := range change {
		c(&o, &session)
	}
	got, err := w.Deliver(w.t, w.r, actortest.Message{Subject: "tool.request.give_feedback", Body: o, Session: session, Query: o.QueryID, Deadline: noon.Add(time.Minute)})
	var res subjects.ToolResult
	if err == nil {
		err = json.Unmarshal([]byte(got), &res)
	}
	if err != nil {
		w.t.Fatalf("%s: %v", args, err)
	}
	return res
}

// crash is what a plug that was pulled looks like.
type crash string

// dies runs do in a reward of its own that dies at a step.
func (w *world) dies(at string, do func(*Reward) error) {
	w.t.Helper()
	r := New()
	r.began.Store(w.r.began.Load())
	r.Boundary = func(step string) {
		if step == at {
			panic(crash(at))
		}
	}
	defer func() {
		if p := recover(); p != crash(at) {
			w.t.Errorf("it did not die at %s: %v", at, p)
		}
	}()
	if err := do(r); err != nil {
		w.t.Errorf("at %s: %v", at, err)
	}
}
