package reward

import (
	"context"
	"encoding/json"
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

// canary is a credential of a known shape that must not appear anywhere.
const canary = "hunter2-correct-horse"

// harness is one reward with a recorder, whose bucket outlives it, and a stream as far as needed.
type harness struct {
	actortest.Recorder
	t      *testing.T
	r      *Reward
	onStep func(step string) // nil = not observed
}

// context returns the context of a delivery, observed by onStep.
func (w *harness) context() context.Context {
	if w.onStep == nil {
		return w.t.Context()
	}
	return actor.WithSteps(w.t.Context(), w.onStep)
}

// newHarness returns a reward that was started an hour ago.
func newHarness(t *testing.T) *harness {
	t.Helper()
	w := &harness{t: t, r: New()}
	w.Time = noon.Add(-time.Hour)
	if err := w.r.Start(t.Context(), w.Out()); err != nil {
		t.Fatal(err)
	}
	w.Time = noon
	return w
}

// storedTime returns when the stream stored its n-th message.
func storedTime(seq uint64) time.Time { return noon.Add(time.Duration(seq) * time.Second) }

// response returns the delivery of an answer.
func response(from, session, query string, seq uint64) actor.Msg[subjects.Response] {
	return actor.Msg[subjects.Response]{
		Subject: "from." + from + ".response.generation", From: from, Query: query, Session: session, Seq: seq,
		StoredAt: storedTime(seq), Attempt: 1,
		Body: subjects.Response{
			SessionID: session, QueryID: query, Query: "?", Answer: "42", RespondentID: "operator",
			GeneratorID: "operator",
		},
	}
}

func feedback(seq uint64, try int, f subjects.Feedback) actor.Msg[subjects.Feedback] {
	return actor.Msg[subjects.Feedback]{
		Subject: "from.user.user.feedback", From: "user", Query: f.QueryID, Seq: seq,
		StoredAt: storedTime(seq), Time: noon, Attempt: try, Body: f,
	}
}

// deliverAnswer delivers an answer of the generator.
func (w *harness) deliverAnswer(session, query string, seq uint64) {
	w.t.Helper()
	if err := w.r.onResponse(w.context(), response("generator", session, query, seq), w.Out()); err != nil {
		w.t.Fatal(err)
	}
}

// deliverFeedback delivers feedback of the user for the first time.
func (w *harness) deliverFeedback(seq uint64, f subjects.Feedback) error {
	w.t.Helper()
	return w.r.onFeedback(w.context(), feedback(seq, 1, f), w.Out())
}

// publishedEvents returns the published events of a subject.
func publishedEvents[T any](w *harness, subject string) (out []T) {
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

func (w *harness) rewards() []subjects.Reward {
	return publishedEvents[subjects.Reward](w, "reward.event")
}

func (w *harness) deadLetters() []subjects.DeadLetter {
	return publishedEvents[subjects.DeadLetter](w, "dead.reward")
}

// rewardSummary returns value and count of each published reward.
func (w *harness) rewardSummary() (out string) {
	for _, r := range w.rewards() {
		out += fmt.Sprintf("%+.1f/%d ", r.Value, r.Count)
	}
	return out
}

// storedAnswer returns the record of an answer, nil when there is none.
func (w *harness) storedAnswer(query string) *answer {
	w.t.Helper()
	v, err := answers.Load(w.t.Context(), w.Out(), subjects.AnswerKey(query))
	if err != nil {
		w.t.Fatal(err)
	}
	if v.Revision == 0 {
		return nil
	}
	return &v.Value
}

// lastQuery returns the query of a session that was answered last, "" when none was.
func (w *harness) lastQuery(session string) string {
	w.t.Helper()
	v, err := lastAnswers.Load(w.t.Context(), w.Out(), lastKey(session))
	if err != nil {
		w.t.Fatal(err)
	}
	return v.Value.Query
}

// trusted returns the labels of a session without untrusted content.
func trusted() *subjects.Labels { return &subjects.Labels{Trust: subjects.Trusted} }

// callTool calls the tool as the broker does: from query q2 of session s1, by the generator, unless changed.
func (w *harness) callTool(args string, change ...func(*subjects.ToolOrder, *string)) subjects.ToolResult {
	w.t.Helper()
	o := subjects.ToolOrder{
		CallID: "c1", QueryID: "q2", Args: json.RawMessage(args), Caller: "generator",
		Labels: trusted(),
	}
	session := "s1"
	for _, c := range change {
		c(&o, &session)
	}
	got, err := w.Deliver(w.t, w.r, actortest.Message{
		Subject: "tool.request.give_feedback", Body: o, Session: session,
		Query: o.QueryID, Deadline: noon.Add(time.Minute),
	})
	var res subjects.ToolResult
	if err == nil {
		err = json.Unmarshal([]byte(got), &res)
	}
	if err != nil {
		w.t.Fatalf("%s: %v", args, err)
	}
	return res
}

// crash is the panic of a simulated crash.
type crash string

// crashAt runs do in another reward that crashes at a step. do must use the context of the harness.
func (w *harness) crashAt(at string, do func(*Reward) error) {
	w.t.Helper()
	r := New()
	r.startedAt.Store(w.r.startedAt.Load())
	w.onStep = func(step string) {
		if step == at {
			panic(crash(at))
		}
	}
	defer func() {
		w.onStep = nil
		if p := recover(); p != crash(at) {
			w.t.Errorf("no crash at %s: %v", at, p)
		}
	}()
	if err := do(r); err != nil {
		w.t.Errorf("at %s: %v", at, err)
	}
}
