package generator

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/client"
	"conclave/subjects"
)

// change delivers a change of a session to a generator.
func (w *harness) change(g *Generator, session, change string) (subjects.SessionChanged, error) {
	var r subjects.SessionChanged
	text, err := w.Deliver(w.t, g, actortest.Message{
		Subject: "ctl.user.session.change", Body: subjects.SessionChange{SessionID: session, Change: change},
		Deadline: w.Out().Now().Add(time.Minute),
	})
	if err == nil {
		err = json.Unmarshal([]byte(text), &r)
	}
	return r, err
}

func faultCode(err error) string {
	var f *subjects.Fault
	if errors.As(err, &f) {
		return f.Code
	}
	return ""
}

// A deleted conversation leaves no text behind and is not sent to the model again; its questions stay answered.
func TestDeletedSessionLeavesNoText(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "The code word is heron.")
	g := New(subjects.Generator, shippedConfig())
	for _, q := range []string{"q1", "q2"} {
		if err := w.ask(g, "s1", q, "What is the code word?", 1); err != nil {
			t.Fatal(err)
		}
	}
	r, err := w.change(g, "s1", subjects.SessionDelete)
	if err != nil || r.Turns != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, key := range []string{turnKey("s1"), subjects.ConversationKey("s1")} {
		data, _, err := w.Out().Store(bucket).Get(t.Context(), key)
		if err != nil || strings.Contains(string(data), "heron") || strings.Contains(string(data), "code word") {
			t.Errorf("%s: %s, %v", key, data, err)
		}
	}
	if err := w.ask(g, "s1", "q1", "What is the code word?", 1); err != nil || len(w.responses()) != 2 {
		t.Errorf("a question that is delivered again is answered again: %v, %d answers", err, len(w.responses()))
	}
	if _, err := w.change(g, "s1", subjects.SessionDelete); faultCode(err) != subjects.CodeMalformed {
		t.Errorf("deleted twice: %v", err)
	}
	if err := w.ask(g, "s1", "q3", "And now?", 1); err != nil {
		t.Fatal(err)
	}
	for _, m := range w.asked[len(w.asked)-1].Messages {
		if strings.Contains(m.Content, "heron") {
			t.Errorf("the model is sent %q", m.Content)
		}
	}
	if c := w.conversation("s1"); c.Deleted || len(c.Turns) != 1 {
		t.Errorf("a new question: %+v", c)
	}
	w.requireNoErrors()
}

// A session is not changed while one of its questions is being answered, and by no unknown change.
func TestSessionChangeRefused(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "An answer.")
	g := New(subjects.Generator, shippedConfig())
	if err := w.ask(g, "s1", "q1", "A question", 1); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, session, change, code string }{
		{"no such session", "s2", subjects.SessionDelete, subjects.CodeMalformed},
		{"trick: an id that is no token", "s1.>", subjects.SessionDelete, subjects.CodeMalformed},
		{"unknown change", "s1", "rename", subjects.CodeMalformed},
	} {
		if _, err := w.change(g, tt.session, tt.change); faultCode(err) != tt.code {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	store := w.Out().Store(bucket)
	_, rev, err := store.Get(t.Context(), turnKey("s1"))
	if err != nil {
		t.Fatal(err)
	}
	running, err := actor.EncodeValue(turnRecord{
		QueryID: "q2", Query: "running", Stage: stageWorking, Written: w.Out().Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Put(t.Context(), turnKey("s1"), running, rev); err != nil {
		t.Fatal(err)
	}
	for _, change := range []string{subjects.SessionDelete, subjects.SessionCompact} {
		if _, err := w.change(g, "s1", change); faultCode(err) != subjects.CodeBusy {
			t.Errorf("%s while a question is answered: %v", change, err)
		}
	}
	if c := w.conversation("s1"); len(c.Turns) != 1 {
		t.Errorf("%+v", c)
	}
}

// Compacting leaves the last turn and a summary of the others.
func TestCompactedSessionKeepsLastTurn(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "An answer.")
	w.summary = "They spoke about birds."
	g := New(subjects.Generator, shippedConfig())
	for i, q := range []string{"q1", "q2", "q3"} {
		if err := w.ask(g, "s1", q, "A question", 1); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if r, err := w.change(g, "s1", subjects.SessionCompact); err != nil || r.Turns != 0 {
				t.Errorf("one turn: %+v, %v", r, err)
			}
		}
	}
	r, err := w.change(g, "s1", subjects.SessionCompact)
	c := w.conversation("s1")
	if err != nil || r.Turns != 2 || len(c.Turns) != 1 || c.Turns[0].QueryID != "q3" ||
		c.Summary != "They spoke about birds." || c.Summarized != 2 || c.Archived != 2 || c.First != "A question" {
		t.Errorf("%+v, %v, %+v", r, err, c)
	}
	archived := func() (out string) {
		for n := range 2 {
			data, _, err := w.Out().Store(bucket).Get(t.Context(), c.ArchivedTurnKey(n))
			if err != nil {
				t.Error(err)
			}
			out += string(data)
		}
		return out
	}
	if got := archived(); !strings.Contains(got, `"q1"`) || !strings.Contains(got, `"q2"`) ||
		strings.Count(got, "An answer.") != 2 {
		t.Errorf("archived: %s", got)
	}
	if _, err := w.change(g, "s1", subjects.SessionDelete); err != nil || archived() != "" {
		t.Errorf("after the deletion: %v, %s", err, archived())
	}
	w.requireNoErrors()
}

// The user's client deletes a session under the real grants; no other role reaches the service.
func TestSessionDeletedOverTheBus(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t)
	w.start(New(subjects.Generator, shippedConfig()))
	user := client.Wrap(w.user)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w.askQuestion("s1", "q1", "hello")
	w.awaitConversation("s1", 1)
	if r, err := user.ChangeSession(ctx, "s1", subjects.SessionDelete); err != nil || r.Turns != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, err := user.Session(t.Context(), "s1"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("deleted: %v", err)
	}
	if all, _, err := user.Sessions(t.Context(), math.MaxInt, nil); err != nil || len(all) != 0 {
		t.Errorf("listed: %+v, %v", all, err)
	}
}

// An edited question is asked after the turns before it: the model does not get the branch that was set aside, which
// can be switched back to. Nothing of it is lost, its labels stay, and its questions are not answered again.
func TestBranchedSession(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "An answer.")
	g := New(subjects.Generator, shippedConfig())
	ask := func(query, words string) {
		t.Helper()
		if err := w.ask(g, "s1", query, words, 1); err != nil {
			t.Fatal(err)
		}
	}
	branch := func(change, query string) (subjects.SessionChanged, error) {
		var r subjects.SessionChanged
		text, err := w.Deliver(t, g, actortest.Message{
			Subject: "ctl.user.session.change", Body: subjects.SessionChange{
				SessionID: "s1", Change: change,
				QueryID: query,
			}, Deadline: w.Out().Now().Add(time.Minute),
		})
		if err == nil {
			err = json.Unmarshal([]byte(text), &r)
		}
		return r, err
	}
	path := func() (out string) {
		for _, t := range w.conversation("s1").Turns {
			out += " " + t.QueryID
		}
		return out
	}
	sent := func() (out string) {
		for _, m := range w.asked[len(w.asked)-1].Messages {
			if m.Role == "user" {
				out += " / " + m.Content
			}
		}
		return out
	}
	ask("q1", "first")
	ask("q2", "second")
	ask("q3", "third")
	labels := w.conversation("s1").Labels
	if r, err := branch(subjects.SessionBranch, "q2"); err != nil || r.Turns != 2 || path() != " q1" {
		t.Fatalf("%+v, %v, %s", r, err, path())
	}
	ask("q4", "fourth")
	if got := sent(); !strings.Contains(got, "first") || !strings.Contains(got, "fourth") ||
		strings.Contains(got, "second") || strings.Contains(got, "third") {
		t.Errorf("the model is sent %s", got)
	}
	if c := w.conversation("s1"); path() != " q1 q4" || !reflect.DeepEqual(c.Labels.Join(labels), c.Labels) ||
		!c.Answered("q3") {
		t.Errorf("%s, %+v", path(), c)
	}
	ask("q3", "third") // delivered again
	if path() != " q1 q4" {
		t.Errorf("a question of the other branch is answered again: %s", path())
	}
	if r, err := branch(subjects.SessionSwitch, "q2"); err != nil || r.Turns != 1 || path() != " q1 q2 q3" {
		t.Fatalf("%+v, %v, %s", r, err, path())
	}
	ask("q5", "fifth")
	if got := sent(); !strings.Contains(got, "second") || !strings.Contains(got, "third") ||
		strings.Contains(got, "fourth") {
		t.Errorf("the model is sent %s", got)
	}
	if _, err := branch(subjects.SessionBranch, "q1"); err != nil || path() != "" {
		t.Fatalf("%v, %s", err, path())
	}
	for _, tt := range []struct{ name, change, query string }{
		{"a question of another branch", subjects.SessionBranch, "q2"},
		{"a branch inside another branch", subjects.SessionSwitch, "q4"},
		{"not the first question of a branch", subjects.SessionSwitch, "q3"},
		{"no question", subjects.SessionBranch, ""},
		{"no branch", subjects.SessionSwitch, "none"},
	} {
		if _, err := branch(tt.change, tt.query); faultCode(err) != subjects.CodeMalformed || path() != "" {
			t.Errorf("%s: %v, %s", tt.name, err, path())
		}
	}
	if _, err := branch(subjects.SessionSwitch, "q1"); err != nil || path() != " q1 q2 q3 q5" ||
		len(w.conversation("s1").Branches) != 1 {
		t.Errorf("%v, %s", err, path())
	}
	if r, err := w.change(g, "s1", subjects.SessionDelete); err != nil || r.Turns != 4 {
		t.Fatalf("%+v, %v", r, err)
	}
	if c := w.conversation("s1"); len(c.Branches) > 0 || !c.Answered("q4") {
		t.Errorf("after the deletion: %+v", c)
	}
	w.requireNoErrors()
}
