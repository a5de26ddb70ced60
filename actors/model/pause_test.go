package model_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"conclave/actors/model"
	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

// A turn of the generator: a second of its model, a tool for a while, another second. The critic asks in the middle of
// the first step and is answered within a second. What counts is which model the server is asked for, in which order:
// each change is a load.
func TestToolPauseKeepsLoadedModel(t *testing.T) {
	t.Parallel()
	judge := subjects.ChatRequest{Role: "critic"}
	yes := true
	for _, tt := range []struct {
		name   string
		pause  time.Duration
		asks   string // "" = critic
		asked  subjects.ChatRequest
		change func(*model.Config)
		want   string
		turn   time.Duration // when the turn is over
		graded time.Duration
	}{
		{
			name: "shorter than the rest", pause: time.Second, asked: judge,
			want: "big big judge", turn: 3 * time.Second, graded: 6 * time.Second,
		},
		{
			name: "longer", pause: 9 * time.Second, asked: judge,
			want: "big judge big", turn: 11 * time.Second, graded: 4 * time.Second,
		},
		{
			name: "longer, and the critic is in the middle: it gives way, and rests", pause: 2500 * time.Millisecond,
			asked: judge,
			want:  "big judge big judge", turn: 4500 * time.Millisecond, graded: 7500 * time.Millisecond,
		},
		{
			name: "the critic asks for the assistant's model", pause: time.Second, asked: subjects.ChatRequest{},
			want: "big big big", turn: 3 * time.Second, graded: 2 * time.Second,
		},
		{
			name: "respondent B with a model of its own", pause: time.Second, asks: subjects.RespondentB,
			asked: subjects.ChatRequest{Role: "coder"},
			want:  "big big coder", turn: 3 * time.Second, graded: 6 * time.Second,
		},
		{
			name: "no rest", pause: 1500 * time.Millisecond, asked: judge, change: func(c *model.Config) {
				c.Ollama.IdleDelay = 0
			},
			want: "big judge big", turn: 3500 * time.Millisecond, graded: 2 * time.Second,
		},
		{
			name: "models side by side", pause: 1500 * time.Millisecond, asked: judge, change: func(c *model.Config) {
				c.Ollama.Exclusive = false
			},
			want: "big judge big", turn: 3500 * time.Millisecond, graded: 2 * time.Second,
		},
		{
			name: "a small model, which takes nobody's place", pause: time.Second, asked: judge,
			change: func(c *model.Config) { c.Models = map[string]model.Options{"judge": {Small: &yes}} },
			want:   "big judge big", turn: 3 * time.Second, graded: 1500 * time.Millisecond,
		},
		{
			name: "the critic's role, but an account that a user waits for", pause: 1500 * time.Millisecond,
			asks: "memory", asked: judge,
			want: "big judge big", turn: 3500 * time.Millisecond, graded: 2 * time.Second,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, s := newScriptedHarness(t, map[string][]scriptedReply{
					"big": {says("hello", time.Second)}, "judge": {says("4", time.Second)},
					"coder": {says("func", time.Second)},
				}, func(c *model.Config) {
					c.Ollama.IdleDelay = 2 * time.Second
					if tt.change != nil {
						tt.change(c)
					}
				})
				begun := time.Now()
				graded := make(chan error, 1)
				go func() {
					time.Sleep(time.Second / 2)
					account := "critic"
					if tt.asks != "" {
						account = tt.asks
					}
					r := w.askAs(account, "q1", tt.asked)
					if took := time.Since(begun); r.err == nil && took != tt.graded {
						r.err = fmt.Errorf("answered after %s", took)
					}
					graded <- r.err
				}()
				for i := range 2 {
					if r := w.ask(subjects.ChatRequest{}); r.err != nil {
						t.Errorf("step %d: %v", i, r.err)
					}
					if i == 0 {
						time.Sleep(tt.pause)
					}
				}
				if took := time.Since(begun); took != tt.turn {
					t.Errorf("the turn took %s", took)
				}
				if err := <-graded; err != nil {
					t.Errorf("in the background: %v", err)
				}
				if got := s.calls(); got != tt.want {
					t.Errorf("asked: %s", got)
				}
			})
		})
	}
}

// One that rests is told at once when it is stopped, and nothing is left of it.
func TestCancelDuringIdleDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, s := newScriptedHarness(t, map[string][]scriptedReply{
			"big":   {says("hello", time.Second)},
			"judge": {says("4", time.Second)},
		},
			func(c *model.Config) { c.Ollama.IdleDelay = time.Minute })
		if r := w.ask(subjects.ChatRequest{}); r.err != nil {
			t.Fatal(r.err)
		}
		grade := make(chan reply, 1)
		go func() { grade <- w.askAs("critic", "q1", subjects.ChatRequest{Role: "critic"}) }()
		time.Sleep(time.Second)
		synctest.Wait()
		if running, waiting := w.m.QueueCounts(); running != 0 || waiting != 1 {
			t.Errorf("%d run and %d wait", running, waiting)
		}
		begun := time.Now()
		if _,
			err := w.rec.Deliver(t, w.m, actortest.Message{
			Subject: "query.cancel.q1",
			Body:    subjects.Cancel{},
		}); err != nil {
			t.Fatal(err)
		}
		if r := <-grade; r.code() != subjects.CodeStopped || time.Since(begun) != 0 {
			t.Errorf("%v after %s", r.err, time.Since(begun))
		}
		if running, waiting := w.m.QueueCounts(); running != 0 || waiting != 0 || s.calls() != "big" {
			t.Errorf("%d run and %d wait, asked %s", running, waiting, s.calls())
		}
		if got := w.auditOf("critic"); got != "before allowed, after failed stopped" { // the model was never asked
			t.Errorf("audit: %s", got)
		}
	})
}
