package model_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"conclave/actors/model"
	"conclave/subjects"
)

// A turn of the generator: a second of its model, a tool for a while, another second. The critic asks in the middle of
// the first step and is answered within a second. What counts is which model the server is asked for, in which order:
// each change is a load.
func TestBackgroundRunsWhileAToolRuns(t *testing.T) {
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
			name: "long enough for the grade", pause: 9 * time.Second, asked: judge,
			want: "big judge big", turn: 11 * time.Second, graded: 2 * time.Second,
		},
		{
			name: "the critic is in the middle: it gives way", pause: 500 * time.Millisecond, asked: judge,
			want: "big judge big judge", turn: 2500 * time.Millisecond, graded: 3500 * time.Millisecond,
		},
		{
			name: "the critic asks for the assistant's model", pause: 1500 * time.Millisecond,
			asked: subjects.ChatRequest{},
			want:  "big big big", turn: 3500 * time.Millisecond, graded: 2 * time.Second,
		},
		{
			name: "respondent B with a model of its own", pause: 1500 * time.Millisecond, asks: subjects.RespondentB,
			asked: subjects.ChatRequest{Role: "coder"},
			want:  "big coder big", turn: 3500 * time.Millisecond, graded: 2 * time.Second,
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
				}, tt.change)
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
