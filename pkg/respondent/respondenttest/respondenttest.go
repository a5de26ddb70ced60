// Package respondenttest is the conformance suite of actors that answer through [respondent.Respondent]: whatever
// happens to a process between two durable steps, a question gets one answer and nothing is done twice.
package respondenttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

// Case is one question to an actor of type A, in an environment of its own. The id of the question is [Query].
type Case[A Process] struct {
	Recorder  *actortest.Recorder
	Unlimited bool // the actor is one of an unlimited consumer
	// Bucket and Key are the place of the record of the question.
	Bucket, Key string
	// History is the key, in Bucket, of what earlier questions of the session left. The answer is added to it.
	History string
	// Earlier are records of the question that earlier builds stored, by a name.
	Earlier map[string]Earlier
	// New returns a new process of the actor.
	New func() A
	// Deliver gives the question to a process, which publishes and stores with out.
	Deliver func(ctx context.Context, a A, out actor.Out, attempt int) error
	// Check fails the test unless the question has one answer, without an error, and nothing was done twice.
	// interrupted says that the process of the first attempt did not end it.
	Check func(t testing.TB, interrupted bool)
}

// Process is a process of an actor.
type Process interface{ Cancel(query string) }

// Query is the id of the question of a [Case].
const Query = "q1"

// Earlier is a record of an interrupted turn that an earlier build stored.
type Earlier struct {
	Record string
	// Answered means that the record has an answer: it is published under the ids of the record, r1 and d1, and no
	// model is asked.
	Answered bool
	// Published means that there is nothing left to publish.
	Published bool
}

// errCrash ends an attempt as a killed process does: nothing after it runs.
var errCrash = errors.New("the process was killed")

// attempt delivers the question to a new process and calls observe at each durable step. A panic with errCrash is
// returned.
func (c *Case[A]) attempt(t testing.TB, n int, observe func(step string)) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if p != errCrash { //nolint:errorlint // the value of a panic
				panic(p)
			}
			err = errCrash
		}
	}()
	return c.Deliver(actor.WithSteps(t.Context(), observe), c.New(), c.Recorder.Out(), n)
}

// Run runs the suite. newCase must return the same question in a new environment each time.
func Run[A Process](t *testing.T, newCase func(t testing.TB) *Case[A]) {
	var steps []string
	first := newCase(t)
	if err := first.attempt(t, 1, func(s string) { steps = append(steps, s) }); err != nil {
		t.Fatal(err)
	}
	first.Check(t, false)
	t.Run("crash", func(t *testing.T) { runAtEach(t, steps, newCase, crashAt[A]) })
	t.Run("crash at every attempt", func(t *testing.T) { crashAlways(t, newCase(t)) })
	t.Run("taken over", func(t *testing.T) { runAtEach(t, steps, newCase, takeOverAt[A]) })
	t.Run("canceled before it begins", func(t *testing.T) { cancelQueued(t, newCase(t)) })
	t.Run("canceled", func(t *testing.T) {
		answered := slices.Index(steps, "turn.answer/before")
		runAtEach(t, steps, newCase, func(t *testing.T, c *Case[A], at int) { cancelAt(t, c, at, at >= answered) })
	})
	t.Run("acknowledgement lost", func(t *testing.T) { runAtEachWrite(t, steps, newCase, loseAcknowledgement[A]) })
	t.Run("taken over in a long pause", func(t *testing.T) { takeOverInPause(t, newCase(t)) })
	t.Run("shutdown", func(t *testing.T) { shutDown(t, newCase(t)) })
	t.Run("shutdown at the last attempt", func(t *testing.T) { shutDownLast(t, newCase(t)) })
	t.Run("nothing can be stored at the last attempt", func(t *testing.T) { failLast(t, newCase(t)) })
	t.Run("the models fail at the last attempt", func(t *testing.T) { failModels(t, newCase(t)) })
	t.Run("panic at the last attempt", func(t *testing.T) { panicLast(t, newCase(t)) })
	t.Run("a write is too large", func(t *testing.T) { runAtEachWrite(t, steps, newCase, exceedAt[A]) })
	t.Run("the record is too large", func(t *testing.T) { exceedAlways(t, newCase(t)) })
	t.Run("others change the history", func(t *testing.T) { changeHistory(t, newCase) })
	t.Run("out of time", func(t *testing.T) { endDeadline(t, newCase(t)) })
	t.Run("unreadable record", func(t *testing.T) { damageRecord(t, newCase(t)) })
	for name := range first.Earlier {
		t.Run("earlier build "+name, func(t *testing.T) { resumeEarlier(t, newCase(t), name) })
	}
}

// RunParallel runs the part of the suite that concerns checkpoints that are made at the same time. newCase must return
// the same question in a new environment each time, one whose parts are worked on in parallel.
func RunParallel[A Process](t *testing.T, newCase func(t testing.TB) *Case[A]) {
	var mu sync.Mutex
	var steps []string
	first := newCase(t)
	if err := first.attempt(t, 1, func(s string) {
		mu.Lock()
		defer mu.Unlock()
		steps = append(steps, s)
	}); err != nil {
		t.Fatal(err)
	}
	first.Check(t, false)
	t.Run("crash", func(t *testing.T) { runAtEach(t, steps, newCase, crashAt[A]) })
	t.Run("taken over", func(t *testing.T) { runAtEach(t, steps, newCase, takeOverAt[A]) })
	t.Run("acknowledgement lost", func(t *testing.T) { runAtEachWrite(t, steps, newCase, loseAcknowledgement[A]) })
}

func runAtEach[A Process](t *testing.T, steps []string, newCase func(t testing.TB) *Case[A],
	test func(t *testing.T, c *Case[A], at int),
) {
	for i, s := range steps {
		t.Run(fmt.Sprintf("%d %s", i, strings.ReplaceAll(s, "/", " ")), func(t *testing.T) {
			t.Parallel()
			test(t, newCase(t), i)
		})
	}
}

// runAtEachWrite runs test for each write, from 0, until it reports that there was no such write.
func runAtEachWrite[A Process](t *testing.T, steps []string, newCase func(t testing.TB) *Case[A],
	test func(t *testing.T, c *Case[A], at int) bool,
) {
	for at := 0; test(t, newCase(t), at); at++ {
		if at > len(steps) {
			t.Fatal("there are more writes than steps")
		}
	}
}

// crashAt kills the process at a step. The next delivery finishes the turn, and one after it changes nothing.
func crashAt[A Process](t *testing.T, c *Case[A], at int) {
	var n atomic.Int64
	if err := c.attempt(t, 1, func(string) {
		if n.Add(1) > int64(at) {
			panic(errCrash)
		}
	}); err == nil { // a panic in a goroutine of the actor is an error of its own
		t.Fatal("no crash")
	}
	for n := 2; n <= 3; n++ {
		if err := c.attempt(t, n, nil); err != nil {
			t.Fatalf("delivery %d: %v", n, err)
		}
		c.Check(t, true)
	}
}

// crashAlways kills every attempt but the last before there is an answer; then there is one, whatever it says.
func crashAlways[A Process](t *testing.T, c *Case[A]) {
	for n := 1; n < subjects.MaxDeliver; n++ {
		if err := c.attempt(t, n, func(s string) {
			if s == "turn.answer/before" {
				panic(errCrash)
			}
		}); err == nil {
			t.Fatal("no crash")
		}
	}
	c.finish(t, subjects.MaxDeliver)
}

// finish delivers the question, and again to another process. There is one answer then, which it returns.
func (c *Case[A]) finish(t testing.TB, attempt int) subjects.Response {
	t.Helper()
	for range 2 {
		if err := c.attempt(t, attempt, nil); err != nil {
			t.Errorf("delivery %d: %v", attempt, err)
		}
	}
	all := c.responses(t)
	if len(all) != 1 {
		t.Fatalf("%d answers: %+v", len(all), all)
	}
	return all[0]
}

// cancelQueued cancels the question before a process gets it: it is answered as stopped, without a model.
func cancelQueued[A Process](t *testing.T, c *Case[A]) {
	a := c.New()
	a.Cancel(Query)
	if err := c.Deliver(t.Context(), a, c.Recorder.Out(), 1); err != nil {
		t.Fatal(err)
	}
	if r := c.finish(t, 2); !r.Partial || r.Error != nil || c.modelCalls() > 0 {
		t.Errorf("%d model calls, %+v", c.modelCalls(), r)
	}
}

// cancelAt cancels the question at a step. It is answered once, without an error, and completely if it was answered
// already. No model is asked after the step.
func cancelAt[A Process](t *testing.T, c *Case[A], at int, answered bool) {
	a, n, asked := c.New(), 0, 0
	ctx := actor.WithSteps(t.Context(), func(string) {
		if n++; n == at+1 {
			asked = c.modelCalls()
			a.Cancel(Query)
		}
	})
	if err := c.Deliver(ctx, a, c.Recorder.Out(), 1); err != nil {
		t.Fatal(err)
	}
	if now := c.modelCalls(); now != asked {
		t.Errorf("%d models were asked after the cancellation", now-asked)
	}
	if r := c.finish(t, 2); r.Error != nil || answered && r.Partial {
		t.Errorf("%+v", r)
	}
	if answered {
		c.Check(t, false)
	}
}

// failModels lets every model call fail at the last attempt: the question is answered with the error.
func failModels[A Process](t *testing.T, c *Case[A]) {
	c.replaceModel(func() (any, error) { return nil, subjects.Faultf(subjects.CodeModelUnreachable, "no server") })
	if r := c.finish(t, subjects.MaxDeliver); r.Error == nil {
		t.Errorf("%+v", r)
	}
}

// panicLast lets the process panic in a model call at the last attempt: the question is answered with an error that
// says nothing of the inside of the program.
func panicLast[A Process](t *testing.T, c *Case[A]) {
	c.replaceModel(func() (any, error) { panic("a bug in the program") })
	_ = c.attempt(t, subjects.MaxDeliver, nil) // an error is a dead letter: the message is not delivered again
	if r := c.responses(t); len(r) != 1 || r[0].Error == nil || strings.Contains(r[0].Answer+r[0].Error.Text, "a bug") {
		t.Errorf("answers: %+v", r)
	}
}

// replaceModel replaces the replies of all models.
func (c *Case[A]) replaceModel(chat func() (any, error)) {
	reply := c.Recorder.Reply
	c.Recorder.Reply = func(subject string, body []byte) (any, error) {
		if subject == subjects.ModelChat.Name {
			return chat()
		}
		return reply(subject, body)
	}
}

func (c *Case[A]) modelCalls() (n int) {
	for _, r := range c.Recorder.Requested() {
		if r.Subject == subjects.ModelChat.Name {
			n++
		}
	}
	return n
}

// exceedAt makes the value of write number at, from 0, too large, and reports whether there was such a write. There is
// one answer, in which something may be missing, or which is the error. Work whose progress is too large is not done
// again: it would become as large.
func exceedAt[A Process](t *testing.T, c *Case[A], at int) bool {
	var step atomic.Value
	var progress string // of the record, that was too large
	out, exceeded := failWrite(c.Recorder.Out(), at, func(key string, _ func() (uint64, error)) (uint64, error) {
		name, _, _ := strings.Cut(step.Load().(string), "/")
		if key == c.Key && !strings.HasSuffix(name, ".mark") && !slices.Contains(
			[]string{"turn.start", "turn.answer", "turn.published", "turn.finish"}, name) {
			progress = name
		}
		return 0, fmt.Errorf("%w: for this test", actor.ErrTooLarge)
	})
	ctx := actor.WithSteps(t.Context(), func(s string) { step.Store(s) })
	if err := c.Deliver(ctx, c.New(), out, 1); err != nil && progress != "" {
		t.Errorf("%s is too large: %v", progress, err)
	}
	c.finish(t, 2)
	return exceeded()
}

// exceedAlways makes the record too large from the first request on. At the last attempt the user is told.
func exceedAlways[A Process](t *testing.T, c *Case[A]) {
	out := &hookedOut{c.Recorder.Out(), func(key string, write func() (uint64, error)) (uint64, error) {
		if key == c.Key && len(c.Recorder.Requested()) > 0 {
			return 0, fmt.Errorf("%w: for this test", actor.ErrTooLarge)
		}
		return write()
	}}
	for n := 1; n <= subjects.MaxDeliver; n++ {
		if err := c.Deliver(t.Context(), c.New(), out, n); err == nil {
			t.Error("the message was acknowledged")
		}
	}
	if r := c.responses(t); len(r) != 1 || r[0].Error == nil || r[0].Error.Code != subjects.CodeInternal {
		t.Errorf("answers: %+v", r)
	}
}

// changeHistory lets other writers change the history before each of 7 and of 8 writes to it. With 7 the same attempt
// adds the answer, with 8 the next one. There is one answer, also when no attempt is left.
func changeHistory[A Process](t *testing.T, newCase func(t testing.TB) *Case[A]) {
	undisturbed := newCase(t)
	undisturbed.finish(t, 1)
	want := strings.Count(undisturbed.history(t), Query)
	for _, tt := range []struct {
		changes, attempt int
		added            bool // by this attempt
	}{{7, 1, true}, {8, 1, false}, {7, subjects.MaxDeliver, true}, {8, subjects.MaxDeliver, false}} {
		t.Run(fmt.Sprintf("%d times at attempt %d", tt.changes, tt.attempt), func(t *testing.T) {
			t.Parallel()
			c := newCase(t)
			left := tt.changes
			err := c.Deliver(t.Context(), c.New(), c.changingHistory(&left), tt.attempt)
			if (err == nil) != tt.added || left != 0 {
				t.Errorf("%d changes are left, %v", left, err)
			}
			if got := c.history(t); strings.Contains(got, Query) != tt.added {
				t.Errorf("the answer is added %v: %s", !tt.added, got)
			}
			if all := c.responses(t); len(all) != 1 || all[0].Error != nil {
				t.Errorf("answers: %+v", all)
			}
			if tt.attempt == 1 {
				c.finish(t, 2)
				if got := c.history(t); strings.Count(got, Query) != want || want == 0 {
					t.Errorf("the answer stands %d times in the history, want %d: %s", strings.Count(got, Query), want,
						got)
				}
				c.Check(t, true)
			}
		})
	}
}

// changingHistory is the Out of a process that is not alone: another one writes the history, as it is, before each of
// the next left writes of this one.
func (c *Case[A]) changingHistory(left *int) actor.Out {
	out := c.Recorder.Out()
	return &hookedOut{out, func(key string, write func() (uint64, error)) (uint64, error) {
		if key == c.History && *left > 0 {
			*left--
			ctx, store := context.Background(), out.Store(c.Bucket)
			data, rev, err := store.Get(ctx, key)
			if errors.Is(err, actor.ErrNotFound) {
				data, err = []byte("{}"), nil
			}
			if err == nil {
				_, err = store.Put(ctx, key, data, rev)
			}
			if err != nil {
				return 0, err
			}
		}
		return write()
	}}
}

func (c *Case[A]) history(t testing.TB) string {
	data, _, err := c.Recorder.Out().Store(c.Bucket).Get(t.Context(), c.History)
	if err != nil && !errors.Is(err, actor.ErrNotFound) {
		t.Fatal(err)
	}
	return string(data)
}

// endDeadline gives the question to a process after the caller's deadline: the answer says so, and no model is asked.
func endDeadline[A Process](t *testing.T, c *Case[A]) {
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if err := c.Deliver(ctx, c.New(), c.Recorder.Out(), 1); err != nil {
		t.Fatal(err)
	}
	if r := c.finish(t, 2); r.Error == nil || r.Error.Code != subjects.CodeTimeout || c.modelCalls() > 0 {
		t.Errorf("%d model calls, %+v", c.modelCalls(), r)
	}
}

// damageRecord damages the record of an interrupted turn. What it did is not known, so that it does not begin again:
// the question is answered with an error.
func damageRecord[A Process](t *testing.T, c *Case[A]) {
	if _, err := c.Recorder.Out().Store(c.Bucket).Put(t.Context(), c.Key, []byte("no JSON"), 0); err != nil {
		t.Fatal(err)
	}
	r := c.finish(t, 2)
	if r.Error == nil || r.Error.Code != subjects.CodeInternal || c.modelCalls() > 0 {
		t.Errorf("%d model calls, %+v", c.modelCalls(), r)
	}
}

// resumeEarlier resumes a turn from a record that an earlier build stored.
func resumeEarlier[A Process](t *testing.T, c *Case[A], name string) {
	e := c.Earlier[name]
	if _, err := c.Recorder.Out().Store(c.Bucket).Put(t.Context(), c.Key, []byte(e.Record), 0); err != nil {
		t.Fatal(err)
	}
	if e.Published {
		if err := c.attempt(t, 2, nil); err != nil || len(c.responses(t)) > 0 || c.modelCalls() > 0 {
			t.Errorf("%d model calls, answers %+v, %v", c.modelCalls(), c.responses(t), err)
		}
		return
	}
	if r := c.finish(t, 2); r.Error != nil || r.Partial || e.Answered == (c.modelCalls() > 0) {
		t.Errorf("%d model calls, %+v", c.modelCalls(), r)
	}
	for _, m := range c.Recorder.Published() {
		if e.Answered && m.ID != "" && m.ID != "r1" && m.ID != "d1" {
			t.Errorf("published %s under %s", m.Subject, m.ID)
		}
	}
}

// takeOverAt pauses the process at a step while another gets the message and finishes the turn.
func takeOverAt[A Process](t *testing.T, c *Case[A], at int) {
	paused, wake, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	var n atomic.Int64
	var once sync.Once
	go func() {
		ended <- c.attempt(t, 1, func(string) {
			if n.Add(1) > int64(at) { // every goroutine of the process is paused
				once.Do(func() { close(paused) })
				<-wake
			}
		})
	}()
	<-paused
	if err := c.attempt(t, 2, nil); err != nil {
		t.Errorf("the other process: %v", err)
	}
	close(wake)
	if err := <-ended; err != nil {
		t.Errorf("the paused process: %v", err)
	}
	c.Check(t, true)
}

// loseAcknowledgement loses the acknowledgement of write number at and reports whether there was one.
func loseAcknowledgement[A Process](t *testing.T, c *Case[A], at int) bool {
	out, lost := LoseAcknowledgement(c.Recorder.Out(), at)
	if err := c.Deliver(t.Context(), c.New(), out, 1); err != nil {
		t.Fatal(err)
	}
	c.Check(t, false)
	if at == 0 && !lost() {
		t.Error("the turn has no write")
	}
	return lost()
}

// LoseAcknowledgement is out with a store whose write number at, from 0, is stored and reported as failed because of
// itself, as a retry after a lost reply does. lost reports whether there was such a write.
func LoseAcknowledgement(out actor.Out, at int) (lossy actor.Out, lost func() bool) {
	return failWrite(out, at, func(_ string, write func() (uint64, error)) (uint64, error) {
		if rev, err := write(); err != nil {
			return rev, err
		}
		return 0, fmt.Errorf("%w: by itself", actor.ErrChanged)
	})
}

// failWrite is out with a store whose write number at, from 0, is done by fail. failed reports whether there was such a
// write.
func failWrite(out actor.Out, at int, fail func(key string, write func() (uint64, error)) (uint64, error)) (o actor.Out,
	failed func() bool,
) {
	n := new(atomic.Int64)
	return &hookedOut{out, func(key string, write func() (uint64, error)) (uint64, error) {
		if n.Add(1) != int64(at)+1 {
			return write()
		}
		return fail(key, write)
	}}, func() bool { return n.Load() > int64(at) }
}

// hookedOut is an Out whose buckets are written through put.
type hookedOut struct {
	actor.Out
	put func(key string, write func() (uint64, error)) (uint64, error)
}

// WithIDs implements [actor.Out].
func (o *hookedOut) WithIDs(session, query string) actor.Out {
	return &hookedOut{o.Out.WithIDs(session, query), o.put}
}

// Store implements [actor.Out].
func (o *hookedOut) Store(bucket string) actor.Store { return &hookedStore{o.Out.Store(bucket), o} }

type hookedStore struct {
	actor.Store
	o *hookedOut
}

// Put implements [actor.Store].
func (s *hookedStore) Put(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	return s.o.put(key, func() (uint64, error) { return s.Store.Put(ctx, key, value, revision) })
}

// takeOverInPause pauses the process with a stored answer for longer than the stream remembers message ids, while
// another finishes the turn: it publishes nothing.
func takeOverInPause[A Process](t *testing.T, c *Case[A]) {
	c.Recorder.Time = c.Recorder.Out().Now()
	if err := c.attempt(t, 1, func(s string) {
		switch s {
		case "turn.answer/after":
			if err := c.attempt(t, 2, nil); err != nil {
				t.Error(err)
			}
			c.Recorder.Time = c.Recorder.Time.Add(10 * time.Minute)
		case "response/before", "dialog/before":
			t.Errorf("it published again: %s", s)
		}
	}); err != nil {
		t.Error(err)
	}
	c.Check(t, true)
}

// shutDown ends the process in a model call. Nothing is published then; the next delivery finishes the turn.
func shutDown[A Process](t *testing.T, c *Case[A]) {
	if err := c.stopInModelCall(t, 1); err == nil {
		t.Error("the message was acknowledged")
	}
	if n := len(c.responses(t)); n != 0 {
		t.Fatalf("%d answers of an interrupted turn", n)
	}
	if err := c.attempt(t, 2, nil); err != nil {
		t.Fatal(err)
	}
	c.Check(t, true)
}

// shutDownLast ends the process at the last attempt: no further delivery comes, so the user is told. With an unlimited
// consumer there is no last one.
func shutDownLast[A Process](t *testing.T, c *Case[A]) {
	err := c.stopInModelCall(t, subjects.MaxDeliver)
	if c.Unlimited {
		if n := len(c.responses(t)); n != 0 || err == nil {
			t.Errorf("%d answers of an interrupted turn, %v", n, err)
		}
		return
	}
	if err != nil {
		t.Error(err)
	}
	if r := c.responses(t); len(r) != 1 || r[0].Error == nil || r[0].Error.Code != subjects.CodeInternal {
		t.Errorf("answers: %+v", r)
	}
}

// failLast fails every write: at the last attempt the user is told although nothing is stored.
func failLast[A Process](t *testing.T, c *Case[A]) {
	c.Recorder.FailStore = errors.New("disk full")
	for n := subjects.MaxDeliver - 1; n <= subjects.MaxDeliver; n++ {
		if err := c.attempt(t, n, nil); err == nil {
			t.Error("the message was acknowledged")
		}
	}
	if r := c.responses(t); len(r) != 1 || r[0].Error == nil || r[0].Error.Code != subjects.CodeInternal {
		t.Errorf("answers: %+v", r)
	}
}

// stopInModelCall delivers the question and shuts the process down when a model is asked.
func (c *Case[A]) stopInModelCall(t testing.TB, attempt int) error {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reply := c.Recorder.Reply
	defer func() { c.Recorder.Reply = reply }()
	c.Recorder.Reply = func(subject string, body []byte) (any, error) {
		if subject == subjects.ModelChat.Name {
			stop()
		}
		return reply(subject, body)
	}
	return c.Deliver(ctx, c.New(), c.Recorder.Out(), attempt)
}

func (c *Case[A]) responses(t testing.TB) (out []subjects.Response) {
	for _, m := range c.Recorder.Published() {
		if m.Subject != subjects.ResponseGeneration.Name {
			continue
		}
		var r subjects.Response
		if err := json.Unmarshal([]byte(m.Body), &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}
