package critic

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/model"
	"conclave/subjects"
)

// steps are all steps of an answer that completes a pair, in order.
var steps = func() (out []string) {
	for _, s := range []string{"grade", "critique", "critique.mark", "half", "verdict", "pairwise", "pairwise.mark"} {
		out = append(out, s+"/before", s+"/after")
	}
	return out
}()

// judgeEither is a judge of either kind.
func judgeEither(r model.Request) (string, error) {
	if strings.Contains(r.Messages[1].Content, "###Response A:") {
		if strings.Contains(r.Messages[1].Content, "###Response A:\nGood") {
			return "Feedback: A is good. [RESULT] A", nil
		}
		return "Feedback: B is good. [RESULT] B", nil
	}
	return "Feedback: Right. [RESULT] 4", nil
}

// answerPair are two answers to one question, by account.
func answerPair(query string) map[string]subjects.Response {
	good, bad := plainAnswer(query), plainAnswer(query)
	good.Answer, bad.Answer = "Good: Oslo.", "Bad: Bergen."
	return map[string]subjects.Response{subjects.Generator: bad, subjects.RespondentB: good}
}

// TestStepsAreMarkedInOrder: each step is marked, in order.
func TestStepsAreMarkedInOrder(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setJudge(judgeEither)
	all := answerPair("q1")
	w.mustDeliver(subjects.Generator, all[subjects.Generator])
	var got []string
	w.onStep = func(step string) { got = append(got, step) }
	w.mustDeliver(subjects.RespondentB, all[subjects.RespondentB])
	if !slices.Equal(got, steps) {
		t.Errorf("%q", got)
	}
	got = nil
	w.mustDeliver(subjects.RespondentB, all[subjects.RespondentB])
	if len(got) > 0 {
		t.Errorf("handed in again: %q", got)
	}
}

type crash string

// deliverCrashing delivers a message and reports whether the harness crashed it at a step.
func (w *harness) deliverCrashing(c *Critic, m actor.Msg[subjects.Response]) (crashed bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			if _, ours := p.(crash); !ours {
				panic(p)
			}
			crashed = true
		}
	}()
	return false, c.onResponse(w.context(), m, w.rec.Out())
}

// TestCrashAtEachStepPublishesOnce: wherever the plug is pulled, another process brings it to its end: one critique of
// each answer and one verdict, and nothing that was written down is judged again.
func TestCrashAtEachStepPublishesOnce(t *testing.T) {
	t.Parallel()
	for i, step := range steps {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			w.setJudge(judgeEither)
			all := answerPair("q1")
			w.mustDeliver(subjects.Generator, all[subjects.Generator])
			before := len(w.prompts())
			m := message(subjects.RespondentB, all[subjects.RespondentB])
			w.onStep = func(s string) {
				if s == step {
					panic(crash(s))
				}
			}
			if crashed, err := w.deliverCrashing(w.c, m); !crashed {
				t.Fatalf("no crash at %s: %v", step, err)
			}
			w.onStep = nil
			for m.Attempt = 2; m.Attempt < 5; m.Attempt++ { // the second delivery changes nothing
				if _, err := w.deliverCrashing(New(w.c.cfg), m); err != nil {
					t.Fatal(err)
				}
			}
			got := w.critiques()
			if len(got) != 2 || got[0].RespondentID != subjects.Generator ||
				got[1].RespondentID != subjects.RespondentB || got[1].Score != 4 {
				t.Errorf("critiques %+v", got)
			}
			if v := w.verdicts(); len(v) != 1 || v[0].Winner != subjects.RespondentB {
				t.Errorf("verdicts %+v", v)
			}
			asked := 1 + 2 // a grade and two judgements
			if i == slices.Index(steps, "grade/before") {
				asked++
			}
			if i == slices.Index(steps, "verdict/before") {
				asked += 2
			}
			if n := len(w.prompts()) - before; n != asked {
				t.Errorf("a model was asked %d times, want %d", n, asked)
			}
		})
	}
}

// TestConcurrentGradesPublishOne: two processes with the same message judge it both, and say what one of them wrote.
func TestConcurrentGradesPublishOne(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	var arrived sync.WaitGroup
	arrived.Add(2)
	grades := inTurn("Feedback: First. [RESULT] 1", "Feedback: Second. [RESULT] 5")
	w.setJudge(func(r model.Request) (string, error) {
		arrived.Done()
		arrived.Wait() // neither has written anything yet
		return grades(r)
	})
	m := message("committee", plainAnswer("q1"))
	var ended sync.WaitGroup
	for range 2 {
		c := New(w.c.cfg)
		ended.Go(func() {
			if err := c.onResponse(t.Context(), m, w.rec.Out()); err != nil {
				t.Error(err)
			}
		})
	}
	ended.Wait()
	if got := w.critique(); got.Score != 1 && got.Score != 5 {
		t.Errorf("%+v", got)
	}
	if len(w.prompts()) != 2 {
		t.Errorf("asked %d times: the test shows nothing", len(w.prompts()))
	}
}

// TestConcurrentPairIsComparedOnce: two answers that come at the same moment are compared once, by either critic.
func TestConcurrentPairIsComparedOnce(t *testing.T) {
	t.Parallel()
	for i := range 20 {
		w := newHarness(t)
		var arrived sync.WaitGroup
		arrived.Add(2)
		w.setJudge(func(r model.Request) (string, error) {
			if !strings.Contains(r.Messages[1].Content, "###Response A:") {
				arrived.Done()
				arrived.Wait() // both grades are ready at once
			}
			return judgeEither(r)
		})
		all := answerPair(fmt.Sprintf("q%d", i))
		var ended sync.WaitGroup
		for from, r := range all {
			ended.Go(func() {
				if err := w.deliver(from, r); err != nil {
					t.Error(err)
				}
			})
		}
		ended.Wait()
		if v := w.verdicts(); len(v) != 1 || v[0].Winner != subjects.RespondentB || len(w.critiques()) != 2 {
			t.Fatalf("round %d: verdicts %+v, critiques %+v", i, v, w.critiques())
		}
	}
}

// TestFailedPublishIsRetriedFromBucket: what could not be said is said the next time, from the book.
func TestFailedPublishIsRetriedFromBucket(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.rec.FailPublish = func(string) error { return errors.New("the stream is full") }
	if err := w.deliver("generator", plainAnswer("q1")); err == nil {
		t.Fatal("it went on")
	}
	w.rec.FailPublish = nil
	w.mustDeliver("generator", plainAnswer("q1"))
	if w.critique(); len(w.prompts()) != 1 {
		t.Errorf("asked %d times", len(w.prompts()))
	}
}

// TestUnavailableBucketPublishesNothing: without a book nothing is said: it could be said twice.
func TestUnavailableBucketPublishesNothing(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.rec.FailStore = errors.New("the disk is full")
	err := w.deliver("generator", plainAnswer("q1"))
	results := slices.DeleteFunc(w.rec.Published(), func(p actortest.Recorded) bool {
		return p.Subject == "agent.state.critic"
	})
	if err == nil || len(results) > 0 {
		t.Errorf("%v, it said %+v", err, results)
	}
}

// TestPublishedRecordsAreSmall: what was said takes no room, and ids that cannot be guessed are not made from what
// others know.
func TestPublishedRecordsAreSmall(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setJudge(judgeEither)
	for from, r := range answerPair("q1") {
		r.Answer += strings.Repeat(" x", 8<<10)
		w.mustDeliver(from, r)
	}
	store := w.rec.Out().Store(bucket)
	keys, err := store.Keys(t.Context(), "")
	slices.Sort(keys)
	if err != nil || !slices.Equal(keys, []string{"grade.q1.generator", "grade.q1.respondent_b", "pair.q1"}) {
		t.Fatalf("%q, %v", keys, err)
	}
	for _, k := range keys {
		v, _, err := store.Get(t.Context(), k)
		var rec struct {
			ID   string `json:"id"`
			Said bool   `json:"said"`
		}
		if err != nil || len(v) > 200 || json.Unmarshal(v, &rec) != nil || !rec.Said ||
			!strings.HasPrefix(rec.ID, "id-") {
			t.Errorf("%s: %s, %v", k, v, err)
		}
	}
}

// TestDamagedRecordIsNotReplaced: a record that cannot be read is no reason to judge and say something again.
func TestDamagedRecordIsNotReplaced(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	if _, err := w.rec.Out().Store(bucket).Put(t.Context(), gradeKey("q1", "generator"), []byte("{"), 0); err != nil {
		t.Fatal(err)
	}
	if err := w.deliver("generator", plainAnswer("q1")); err == nil || len(w.rec.Published())+len(w.prompts()) > 0 {
		t.Errorf("%v, it said %+v", err, w.rec.Published())
	}
}

// TestStoredGradeOfEarlierVersionIsPublished: the stored form of a grade is part of the contract between versions.
func TestStoredGradeOfEarlierVersionIsPublished(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	record := `{"id":"earlier","session":"s1","critique":{"session_id":"s1","query_id":"q1",` +
		`"respondent_id":"generator","score":4,"rubric":"plain"}}`
	if _, err := w.rec.Out().Store(bucket).Put(t.Context(), gradeKey("q1", "generator"), []byte(record),
		0); err != nil {
		t.Fatal(err)
	}
	w.mustDeliver("generator", plainAnswer("q1"))
	if got := w.critique(); got.Score != 4 || len(w.prompts()) > 0 || w.rec.Published()[0].ID != "earlier" {
		t.Errorf("%+v, published %+v", got, w.rec.Published())
	}
}
