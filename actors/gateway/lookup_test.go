package gateway_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/actors/gateway"
	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/client"
	"conclave/subjects"
)

// Sizes of the system of BenchmarkLookups: ten events a question.
const (
	lookupQuestions = 25000
	lookupSessions  = 10000
)

// inParallel calls f with 0 to n-1.
func inParallel(n int, f func(i int)) {
	const workers = 64
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := w; i < n; i += workers {
				f(i)
			}
		})
	}
	all.Wait()
}

// storeHistory stores the events of questions with grades and rewards, and conversations.
func storeHistory(b *testing.B, bus *bustest.Bus) {
	b.Helper()
	emit := func(err error) {
		if err != nil {
			b.Error(err)
		}
	}
	generator, critic, reward := bus.Out("generator"), bus.Out("critic"), bus.Out("reward")
	text := strings.Repeat("A sentence of an answer. ", 60)
	state := withTokens(b, subjects.AgentStateEvent, "generator")
	const together = 10
	for first := 0; first < lookupQuestions; first += together {
		inParallel(together, func(i int) {
			s, q := fmt.Sprintf("session%d", (first+i)%lookupSessions), fmt.Sprintf("question%d", first+i)
			out := generator.WithIDs(s, q)
			for range 7 {
				emit(actor.Emit(b.Context(), out, state, subjects.AgentState{QueryID: q, To: "GENERATING"}))
			}
			emit(actor.Emit(b.Context(), out, subjects.ResponseGeneration,
				subjects.Response{SessionID: s, QueryID: q, Query: "why?", Answer: text, RespondentID: "generator"}))
		})
		bus.AwaitEvents()
		inParallel(together, func(i int) {
			s, q := fmt.Sprintf("session%d", (first+i)%lookupSessions), fmt.Sprintf("question%d", first+i)
			emit(actor.Emit(b.Context(), critic.WithIDs(s, q), subjects.CritiqueResult,
				subjects.Critique{QueryID: q, Score: 4, RespondentID: "generator"}))
			emit(actor.Emit(b.Context(), reward.WithIDs(s, q), subjects.RewardEvent,
				subjects.Reward{QueryID: q, RespondentID: "generator", Count: 1}))
		})
	}
	bus.AwaitEvents()
	indexAnswers(b, bus)
	store := generator.Store(subjects.StateBucket("generator"))
	inParallel(lookupSessions, func(i int) {
		c := subjects.Conversation{SessionID: fmt.Sprintf("session%d", i), Updated: time.Now()}
		for n := range 3 {
			c.Turns = append(c.Turns, subjects.Turn{
				QueryID: fmt.Sprint(n), Query: "why?", Answer: text, Time: c.Updated,
			})
		}
		data, err := json.Marshal(c)
		if err == nil {
			_, err = store.Put(b.Context(), subjects.ConversationKey(c.SessionID), data, 0)
		}
		emit(err)
	})
}

// indexAnswers stores where the answers are, as the reward actor does.
func indexAnswers(t testing.TB, b *bustest.Bus) {
	t.Helper()
	c, index := client.Wrap(b.Out("user")), b.Out("reward").Store(subjects.AnswerBucket)
	for ev, err := range c.EventsFrom(t.Context(), 1, subjects.ResponseGeneration.StoredBy("generator")) {
		if err == nil {
			_, err = index.Put(t.Context(), subjects.AnswerKey(ev.Query),
				fmt.Appendf(nil, `{"respondent":"generator","place":{"seq":%d},"count":1}`, ev.Seq), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// An earlier answer is found by the index of answers, however long the event log is.
func TestAnswerIsFoundByIndex(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	out := b.Out("generator")
	inParallel(300, func(i int) {
		q := fmt.Sprintf("question%d", i)
		if err := actor.Emit(t.Context(), out.WithIDs("s", q), subjects.ResponseGeneration,
			subjects.Response{SessionID: "s", QueryID: q, Answer: q, RespondentID: "generator"}); err != nil {
			t.Error(err)
		}
	})
	b.AwaitEvents()
	indexAnswers(t, b)
	w := startGateway(t, b, setup{})
	emitStored(w, out.WithIDs("s", "newest"), subjects.ResponseGeneration,
		subjects.Response{SessionID: "s", QueryID: "newest", Answer: "newest", RespondentID: "generator"})
	// A later answer to an indexed question, which is not in the index, does not end the search for one before it.
	emitStored(w, b.Out("respondent_b").WithIDs("s", "question7"), subjects.ResponseGeneration,
		subjects.Response{SessionID: "s", QueryID: "question7", Answer: "other", RespondentID: "respondent_b"})
	for id, want := range map[string]int{"question7": 200, "question298": 200, "newest": 200, "unknown": 404} {
		before := w.nc.Stats().OutMsgs
		status, _, body := w.do("GET", "/queries/"+id, "")
		if status != want || want == 200 && read[gateway.Answer](t, body).Answer != id {
			t.Errorf("%s: %d %s", id, status, body)
		}
		if n := w.nc.Stats().OutMsgs - before; n > 40 {
			t.Errorf("%s: %d requests", id, n)
		}
	}
}

// TestGradeIsFoundBehindOthers: a critic that was away grades an answer behind many others; the grade is found.
func TestGradeIsFoundBehindOthers(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	w := startGateway(t, b, setup{})
	q := subjects.Query{SessionID: "s", QueryID: "question"}
	emitStored(w, b.Out("generator").WithIDs("s", q.QueryID), subjects.ResponseGeneration, reply(q, "an answer"))
	critic := b.Out("critic")
	inParallel(120, func(i int) { // more than are read without a known grade
		other := subjects.Query{SessionID: "s", QueryID: fmt.Sprint("other", i)}
		if err := actor.Emit(t.Context(), critic.WithIDs("s", other.QueryID), subjects.CritiqueResult,
			critique(other, "generator", 2)); err != nil {
			t.Error(err)
		}
	})
	emitStored(w, critic.WithIDs("s", q.QueryID), subjects.CritiqueResult, critique(q, "generator", 4))
	w.storeConversations(subjects.Conversation{SessionID: "s", Turns: []subjects.Turn{{
		QueryID: q.QueryID, Answer: "an answer", Grades: &subjects.Grades{Critic: 4},
	}}})
	_, _, body := w.do("GET", "/queries/"+q.QueryID, "")
	if a := read[gateway.Answer](t, body); a.Grade == nil || a.Grade.QueryID != q.QueryID {
		t.Errorf("the grade is missing: %s", body)
	}
}

// BenchmarkLookups measures GET /queries/{id} and GET /sessions with 250,000 events and 10,000 sessions: the first of a
// new gateway, whose index is not complete, and the later ones.
func BenchmarkLookups(b *testing.B) {
	bus := bustest.Start(b)
	began := time.Now()
	storeHistory(b, bus)
	b.Logf("stored in %s", time.Since(began))
	began = time.Now()
	w := startGateway(b, bus, setup{})
	b.Logf("started in %s", time.Since(began))
	for _, path := range []string{"/sessions", "/queries/question17", "/queries/question24000", "/queries/unknown"} {
		began := time.Now()
		status, _, _ := w.do("GET", path, "")
		b.Logf("first GET %s: %d in %s", path, status, time.Since(began))
	}
	for name, path := range map[string]func(n int) string{
		"query":   func(n int) string { return fmt.Sprintf("/queries/question%d", n*7919%lookupQuestions) },
		"unknown": func(n int) string { return fmt.Sprintf("/queries/unknown%d", n) },
		"session": func(int) string { return "/sessions" },
	} {
		b.Run(name, func(b *testing.B) {
			n := 0
			for b.Loop() {
				status, _, body := w.do("GET", path(n), "")
				var a gateway.Answer
				if name == "query" && (status != 200 || json.Unmarshal([]byte(body), &a) != nil || a.Grade == nil ||
					a.Reward == nil) {
					b.Fatalf("%d %s", status, body)
				}
				n++
			}
		})
	}
}
