package view

import (
	"testing"
	"time"

	"conclave/pkg/client"
	"conclave/subjects"
)

// TestSpinnerShowsTheExpectedReadingTime: while the model reads a long prompt, the user sees how long that takes.
func TestSpinnerShowsTheExpectedReadingTime(t *testing.T) {
	t.Parallel()
	p := &Phase{}
	state := func(s subjects.AgentState) { p.Follow(client.State{AgentState: s}) }
	state(subjects.AgentState{Event: "START_GENERATION"})
	if got := p.current(); got != "thinking" {
		t.Errorf("before: %q", got)
	}
	state(subjects.AgentState{Reading: &subjects.PromptReading{Tokens: 1200, Millis: 19_700}})
	if got := p.current(); got != "reading 1,200 tokens, about 20 s," {
		t.Errorf("reading: %q", got)
	}
	if first, later := p.Text(time.Unix(1, 0)), p.Text(time.Unix(4, 0)); first != "reading 1,200 tokens, about 20 s" ||
		later != "reading 1,200 tokens, about 20 s, 3 s so far" {
		t.Errorf("reading: %q, later %q", first, later)
	}
	state(subjects.AgentState{Reading: &subjects.PromptReading{Tokens: 37, Millis: 988_000, Whole: true}})
	// 988 s is for the longest reply
	if got := p.Text(time.Unix(5, 0)); got != "waiting for the whole answer of the model" {
		t.Errorf("a reply in one piece: %q", got)
	}
	p.Follow(client.Delta{Thinking: true})
	if got := p.current(); got != "thinking" {
		t.Errorf("after the first token: %q", got)
	}
	p.Follow(client.Delta{})
	if got := p.current(); got != "answering" {
		t.Errorf("after the first token of the answer: %q", got)
	}
	state(subjects.AgentState{Event: "START_GENERATION"})
	if got := p.current(); got != "answering" {
		t.Errorf("after a transition that was read late: %q", got)
	}
	state(subjects.AgentState{Event: "DISPATCH_TOOL"})
	if got := p.current(); got != "thinking" {
		t.Errorf("after a transition: %q", got)
	}
}
