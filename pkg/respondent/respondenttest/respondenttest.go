// Package respondenttest is the conformance suite of actors that answer through [respondent.Respondent]: whatever
// happens to a process between two durable steps, a question gets one answer and nothing is done twice.
package respondenttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

// Case is one question to an actor, in an environment of its own.
type Case struct {
	Recorder  *actortest.Recorder
	Unlimited bool // the actor is one of an unlimited consumer
	// Deliver gives the question to a new process of the actor, which publishes and stores with out.
	Deliver func(ctx context.Context, out actor.Out, attempt int) error
	// Check fails the test unless the question has one answer, without an error, and nothing was done twice.
	// interrupted says that the process of the first attempt did not end it.
	Check func(t testing.TB, interrupted bool)
}

// errCrash ends an attempt as a killed process does: nothing after it runs.
var errCrash = errors.New("the process was killed")

// attempt delivers the question and calls observe at each durable step. A panic with errCrash is returned.
func (c *Case) attempt(t testing.TB, n int, observe func(step string)) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if p != errCrash { //nolint:errorlint // the value of a panic
				panic(p)
			}
			err = errCrash
		}
	}()
	return c.Deliver(actor.WithSteps(t.Context(), observe), c.Recorder.Out(), n)
}

// Run runs the suite. newCase must return the same question in a new environment each time.
func Run(t *testing.T, newCase func(t testing.TB) *Case) {
	var steps []string
	first := newCase(t)
	if err := first.attempt(t, 1, func(s string) { steps = append(steps, s) }); err != nil {
		t.Fatal(err)
	}
	first.Check(t, false)
	t.Run("crash", func(t *testing.T) { runAtEach(t, steps, newCase, crashAt) })
	t.Run("taken over", func(t *testing.T) { runAtEach(t, steps, newCase, takeOverAt) })
	t.Run("acknowledgement lost", func(t *testing.T) {
		for at := 0; loseAcknowledgement(t, newCase(t), at); at++ {
			if at > len(steps) {
				t.Fatal("there are more writes than steps")
			}
		}
	})
	t.Run("taken over in a long pause", func(t *testing.T) { takeOverInPause(t, newCase(t)) })
	t.Run("shutdown", func(t *testing.T) { shutDown(t, newCase(t)) })
	t.Run("shutdown at the last attempt", func(t *testing.T) { shutDownLast(t, newCase(t)) })
	t.Run("nothing can be stored at the last attempt", func(t *testing.T) { failLast(t, newCase(t)) })
}

func runAtEach(t *testing.T, steps []string, newCase func(t testing.TB) *Case,
	test func(t *testing.T, c *Case, at int),
) {
	for i, s := range steps {
		t.Run(fmt.Sprintf("%d %s", i, strings.ReplaceAll(s, "/", " ")), func(t *testing.T) {
			t.Parallel()
			test(t, newCase(t), i)
		})
	}
}

// crashAt kills the process at a step. The next delivery finishes the turn, and one after it changes nothing.
func crashAt(t *testing.T, c *Case, at int) {
	n := 0
	if err := c.attempt(t, 1, func(string) {
		if n++; n > at {
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

// takeOverAt pauses the process at a step while another gets the message and finishes the turn.
func takeOverAt(t *testing.T, c *Case, at int) {
	paused, wake, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	n := 0
	var once sync.Once
	go func() {
		ended <- c.attempt(t, 1, func(string) {
			if n++; n > at {
				once.Do(func() { close(paused); <-wake })
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
func loseAcknowledgement(t *testing.T, c *Case, at int) bool {
	out, lost := LoseAcknowledgement(c.Recorder.Out(), at)
	if err := c.Deliver(t.Context(), out, 1); err != nil {
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
	o := &lossyOut{out, new(atomic.Int64), int64(at)}
	return o, func() bool { return o.n.Load() > o.at }
}

type lossyOut struct {
	actor.Out
	n  *atomic.Int64
	at int64
}

func (o *lossyOut) WithIDs(session, query string) actor.Out {
	return &lossyOut{o.Out.WithIDs(session, query), o.n, o.at}
}

func (o *lossyOut) Store(bucket string) actor.Store { return &lossyStore{o.Out.Store(bucket), o} }

type lossyStore struct {
	actor.Store
	o *lossyOut
}

func (s *lossyStore) Put(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	rev, err := s.Store.Put(ctx, key, value, revision)
	if n := s.o.n.Add(1); err == nil && n == s.o.at+1 {
		return 0, fmt.Errorf("%w: by itself", actor.ErrChanged)
	}
	return rev, err
}

// takeOverInPause pauses the process with a stored answer for longer than the stream remembers message ids, while
// another finishes the turn: it publishes nothing.
func takeOverInPause(t *testing.T, c *Case) {
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
func shutDown(t *testing.T, c *Case) {
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
func shutDownLast(t *testing.T, c *Case) {
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
func failLast(t *testing.T, c *Case) {
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
func (c *Case) stopInModelCall(t testing.TB, attempt int) error {
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
	return c.Deliver(ctx, c.Recorder.Out(), attempt)
}

func (c *Case) responses(t testing.TB) (out []subjects.Response) {
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
