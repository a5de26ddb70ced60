package generator

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/subjects"
)

// TestRespondentBOnTheBus: both answer one question under the real grants. A permission violation fails the test.
func TestRespondentBOnTheBus(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t)
	dialogs, thoughts, states := make(chan subjects.Dialog, 64), make(chan subjects.Delta, 64),
		make(chan subjects.AgentState, 4096)
	user := w.Connect("user")
	subscribeJSON(t, user, "answer.dialog", dialogs)
	subscribeJSON(t, user, "response.thinking.*", thoughts)
	subscribeJSON(t, user, "agent.state.respondent_b", states)
	var mu sync.Mutex
	sent := map[string][]model.Message{} // to respondent B, by question
	w.chat = func(_ context.Context, r model.Request, say func(model.Chunk) error) error {
		last := r.Messages[len(r.Messages)-1].Content
		who := "A"
		if r.Options.Temperature != nil {
			who = "B"
			mu.Lock()
			sent[last] = r.Messages
			mu.Unlock()
			if r.Stream {
				t.Error("respondent B's call is streamed")
			}
		}
		if err := say(model.Chunk{Thinking: who + " thinks"}); err != nil {
			return err
		}
		return say(model.Chunk{Content: who + " on " + last, Done: true, Final: model.Final{Model: "test:1b"}})
	}
	w.start(New(subjects.Generator, shippedConfig()))
	w.start(newRespondentB())
	for i, q := range []string{"q1", "q2"} {
		w.askQuestion("s1", q, "question "+q)
		got := map[string]subjects.Response{}
		for range 2 {
			r := w.nextAnswer()
			got[r.RespondentID] = r
		}
		a, b := got[subjects.Generator], got[subjects.RespondentB]
		if a.Answer != "A on question "+q || b.Answer != "B on question "+q || a.QueryID != q || b.QueryID != q {
			t.Fatalf("answers: %+v", got)
		}
		if b.Thinking != "" || b.Error != nil || len(b.Notes) != 0 || !strings.Contains(a.Thinking, "A thinks") {
			t.Errorf("respondent B's answer: %+v", b)
		}
		w.awaitConversation("s1", i+1) // before the next question, as a user would
	}
	mu.Lock()
	defer mu.Unlock()
	if first := sent["question q1"]; len(first) != 2 {
		t.Errorf("for the first question it was sent %+v", first)
	}
	if second := sent["question q2"]; len(second) != 4 || second[1].Content != "question q1" ||
		second[2].Content != "A on question q1" {
		t.Errorf("for the second question it was sent %+v", second)
	}
	// Everything that the two said has come: the last state of each was said after all else.
	for over := 0; over < 2; {
		select {
		case s := <-states:
			if s.Event == "" {
				t.Errorf("it told %+v", s)
			}
			if s.To == "IDLE" {
				over++
			}
		case <-time.After(patience):
			t.Fatal("it never ends")
		}
	}
	// The user's events are the generator's, with one dialog for each question.
	heard := map[string]int{}
	for heard["dialog"] < 2 || heard["delta"] < 2 || heard["thinking"] < 2 {
		what, by := "", ""
		select {
		case d := <-dialogs:
			what, by = "dialog", d.RespondentID
		case d := <-w.deltas:
			what, by = "delta", d.RespondentID
		case d := <-thoughts:
			what, by = "thinking", d.RespondentID
		case <-time.After(patience):
			t.Fatalf("only this was heard: %v", heard)
		}
		if heard[what]++; by != subjects.Generator || heard["dialog"] > 2 {
			t.Errorf("%s number %d is by %s", what, heard[what], by)
		}
	}
	if n := len(w.answers) + len(dialogs); n != 0 {
		t.Errorf("%d answers too many", n)
	}
}

// TestGradesOnTheBus: grades published under the critic's and reward's own keys are stored with the turn, and sent
// before the next question. Respondent B, which runs too, is not affected.
func TestGradesOnTheBus(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t)
	notes := make(chan string, 16)
	w.chat = func(_ context.Context, r model.Request, say func(model.Chunk) error) error {
		if r.Options.Temperature == nil {
			notes <- r.Messages[len(r.Messages)-2].Content
		}
		return say(model.Chunk{Content: "ok", Done: true})
	}
	cfg := gradesConfig()
	cfg.HotSessions = 1
	w.start(New(subjects.Generator, cfg))
	w.start(New(subjects.RespondentB, cfg))
	w.askQuestion("s1", "q1", "one")
	w.awaitConversation("s1", 1)
	<-notes
	out := w.Out("critic").WithIDs("s1", "q1")
	for _, respondent := range []string{subjects.RespondentB, subjects.Generator} {
		score := map[string]int{subjects.RespondentB: 5, subjects.Generator: 2}[respondent]
		if err := actor.Emit(t.Context(), out, subjects.CritiqueResult,
			subjects.Critique{
				SessionID: "s1", QueryID: "q1", RespondentID: respondent, Score: score,
				Feedback: "short",
			}); err != nil {
			t.Fatal(err)
		}
	}
	if err := actor.Emit(t.Context(), w.Out("reward").WithIDs("s1", "q1"), subjects.RewardEvent, subjects.Reward{
		SessionID: "s1", QueryID: "q1", RespondentID: subjects.Generator, Value: -1, Count: 1,
		Source: subjects.RewardUser, Words: "too short",
	}); err != nil {
		t.Fatal(err)
	}
	want := subjects.Grades{Critic: 2, Feedback: "short", Reward: -1, Rewards: 1, Words: "too short"}
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		if c := w.awaitConversation("s1", 1); c.Turns[0].Grades != nil && *c.Turns[0].Grades == want {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the grades are not written down")
		}
	}
	w.askQuestion("s2", "q1", "something else") // so that the session is read anew
	w.awaitConversation("s2", 1)
	<-notes
	w.askQuestion("s1", "q2", "two")
	select {
	case note := <-notes:
		if !strings.Contains(note, "graded 2 of 5") || !strings.Contains(note, `"too short"`) {
			t.Errorf("before the next question it was told %q", note)
		}
	case <-time.After(patience):
		t.Fatal("no next question")
	}
}
