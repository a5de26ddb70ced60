package committee

import (
	"testing"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/respondent/conversation"
	"conclave/subjects"
)

// TestSessionDelete: a deleted session loses its turns and keeps their ids: a redelivered question is not answered
// again, and a later one is not given what was deleted.
func TestSessionDelete(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	c := New(shippedConfig(t))
	if err := w.ask(t.Context(), c, question(), 1); err != nil {
		t.Fatal(err)
	}
	change := func(session, change string) (subjects.SessionChanged, error) {
		return c.onSessionChange(t.Context(),
			actor.Msg[subjects.SessionChange]{Body: subjects.SessionChange{SessionID: session, Change: change}},
			w.Out())
	}
	for _, bad := range [][2]string{{"s1", subjects.SessionCompact}, {"a.b", subjects.SessionDelete}} {
		if _, err := change(bad[0], bad[1]); actortest.Code(err) != subjects.CodeMalformed {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if got, err := change("s1", subjects.SessionDelete); err != nil || got.Turns != 1 {
		t.Fatalf("%+v %v", got, err)
	}
	if got, err := change("s1", subjects.SessionDelete); err != nil || got.Turns != 0 {
		t.Errorf("again: %+v %v", got, err)
	}
	conv, _, err := conversation.Read(t.Context(), w.Out().Store(subjects.StateBucket(name)), "s1")
	if err != nil || len(conv.Turns) != 0 || !conv.Deleted || !conv.Answered("q1") {
		t.Errorf("%+v %v", conv, err)
	}
	before := len(w.asked)
	if err := w.ask(t.Context(), c, question(func(q *subjects.Query) { q.QueryID, q.Query = "q2", "And now?" }),
		1); err != nil {
		t.Fatal(err)
	}
	if got := w.asked[before].text(); got != "user: And now?\n" {
		t.Errorf("after the deletion it reads %q", got)
	}
}
