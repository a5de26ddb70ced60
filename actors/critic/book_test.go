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
	"conclave/pkg/model"
	"conclave/subjects"
)

// steps are all boundaries of an answer that completes a pair, in order.
var steps = func() (out []string) {
	for _, s := range []string{"grade", "critique", "graded", "half", "verdict", "pairwise", "compared"} {
		out = append(out, s+"/before", s+"/after")
	}
	return out
}()

// both is a judge of either kind.
func both(r model.Request) (string, error) {
	if strings.Contains(r.Messages[1].Content, "###Response A:") {
		if strings.Contains(r.Messages[1].Content, "###Response A:\nGood") {
			return "Feedback: A is good. [RESULT] A", nil
		}
		return "Feedback: B is good. [RESULT] B", nil
	}
	return "Feedback: Right. [RESULT] 4", nil
}

// goodAndBad are two answers to one question, by account.
func goodAndBad(query string) map[string]subjects.Response {
	good, bad := plain(query), plain(query)
	good.Answer, bad.Answer = "Good: Oslo.", "Bad: Bergen."
	return map[string]subjects.Response{subjects.Generator: bad, subjects.RespondentB: good}
}

// TestBoundaries: each step is marked, in order.
func TestBoundaries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.judges(both)
	all := goodAndBad("q1")
	w.must(subjects.Generator, all[subjects.Generator])
	var got []string
	w.c.Boundary = func(step string) { got = append(got, step) }
	w.must(subjects.RespondentB, all[subjects.RespondentB])
	if !slices.Equal(got, steps) {
		t.Errorf("%q", got)
	}
	got = nil
	w.must(subjects.RespondentB, all[subjects.RespondentB])
	if len(got) > 0 {
		t.Errorf("handed in again: %q", got)
	}
}

type crash string

// crashing hands a message in and reports whether the plug was pulled.
func (w *world) crashing(c *Critic, m actor.Msg[subjects.Response]) (crashed bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			if _, ours := p.(crash); !ours {
				panic(p)
			}
			crashed = true
		}
	}()
	return false, c.onResponse(w.t.Context(), m, w.rec.Out())
}

// TestCrashes: wherever the plug is pulled, another process brings it to its end: one critique of each answer and one
// verdict, and nothing that was written down is judged again.
func TestCrashes(t *testing.T) {
	t.Parallel()
	for i, step := range steps {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.judges(both)
			all := goodAndBad("q1")
			w.must(subjects.Generator, all[subjects.Generator])
			before := len(w.prompts())
			m := message(subjects.RespondentB, all[subjects.RespondentB])
			w.c.Boundary = func(s string) {
				if s == step {
					panic(crash(s))
				}
			}
			if crashed, err := w.crashing(w.c, m); !crashed {
				t.Fatalf("nothing happened at %s: %v", step, err)
			}
			for m.Attempt = 2; m.Attempt < 5; m.Attempt++ { // and once more for good measure
				if _, err := w.crashing(New(w.c.cfg), m); err != nil {
					t.Fatal(err)
				}
			}
			got := w.critiques()
			if len(got) != 2 || got[0].RespondentID != subjects.Generator || got[1].RespondentID != subjects.RespondentB || got[1].Score != 4 {
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

// TestTwoAtOnce: two processes with the same message judge it both, and say what one of them wrote.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var arrived sync.WaitGroup
	arrived.Add(2)
	grades := inTurn("Feedback: First. [RESULT] 1", "Feedback: Second. [RESULT] 5")
	w.judges(func(r model.Request) (string, error) {
		arrived.Done()
		arrived.Wait() // neither has written anything yet
		return grades(r)
	})
	m := message("committee", plain("q1"))
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

// TestBothHalvesAtOnce: two answers that come at the same moment are compared once, whoever compares them.
func TestBothHalvesAtOnce(t *testing.T) {
	t.Parallel()
	for i := range 20 {
		w := newWorld(t)
		var arrived sync.WaitGroup
		arrived.Add(2)
		w.judges(func(r model.Request) (string, error) {
			if !strings.Contains(r.Messages[1].Content, "###Response A:") {
				arrived.Done()
				arrived.Wait() // both grades are ready at once
			}
			return both(r)
		})
		all := goodAndBad(fmt.Sprintf("q%d", i))
		var ended sync.WaitGroup
		for from, r := range all {
			ended.Go(func() {
				if err := w.hears(from, r); err != nil {
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

// TestRefusedEvent: what could not be said is said the next time, from the book.
func TestRefusedEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.rec.FailPublish = func(string) error { return errors.New("the stream is full") }
	if err := w.hears("generator", plain("q1")); err == nil {
		t.Fatal("it went on")
	}
	w.rec.FailPublish = nil
	w.must("generator", plain("q1"))
	if w.critique(); len(w.prompts()) != 1 {
		t.Errorf("asked %d times", len(w.prompts()))
	}
}

// TestNoBook: without a book nothing is said: it could be said twice.
func TestNoBook(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.rec.FailStore = errors.New("the disk is full")
	if err := w.hears("generator", plain("q1")); err == nil || len(w.rec.Published()) > 0 {
		t.Errorf("%v, it said %+v", err, w.rec.Published())
	}
}

// TestBookIsSmall: what was said takes no room, and ids that cannot be guessed are not made from what others know.
func TestBookIsSmall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.judges(both)
	for from, r := range goodAndBad("q1") {
		r.Answer += strings.Repeat(" x", 8<<10)
		w.must(from, r)
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
		if err != nil || len(v) > 200 || json.Unmarshal(v, &rec) != nil || !rec.Said || !strings.HasPrefix(rec.ID, "id-") {
			t.Errorf("%s: %s, %v", k, v, err)
		}
	}
}

// TestBadBook: a record that cannot be read is no reason to judge and say something again.
func TestBadBook(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.rec.Out().Store(bucket).Put(t.Context(), gradeKey("q1", "generator"), []byte("{"), 0); err != nil {
		t.Fatal(err)
	}
	if err := w.hears("generator", plain("q1")); err == nil || len(w.rec.Published())+len(w.prompts()) > 0 {
		t.Errorf("%v, it said %+v", err, w.rec.Published())
	}
}
