package model

import (
	"context"
	"fmt"
	"sync"
	"time"

	"conclave/pkg/model"
)

const (
	// optionalLimit is the longest expected time of an optional call that a user waits for.
	optionalLimit = 5 * time.Second
	// usualOutput is the assumed length of the reply to an optional or background call, in tokens.
	usualOutput = 128
)

// checkSpeed refuses with [model.ErrTooSlow] a background or optional call that would take longer than its limit or
// than the time that its caller has, by the measured speed of the model. Nothing is refused before the speed is
// measured, and nothing without a limit in the configuration.
func (m *Model) checkSpeed(ctx context.Context, t target, r model.Request, background, optional bool) error {
	limit := m.cfg.BackgroundLimit
	if limit == 0 || !background && !optional || t.isDemo {
		return nil
	}
	if !background {
		limit = min(limit, optionalLimit)
	}
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline))
	}
	s := m.meter.of(t.key())
	if s.Prompt == 0 || s.Output == 0 {
		return nil
	}
	expected := toDuration(s.tokens(len(renderPrompt(r)))/s.Prompt +
		float64(min(usualOutput, r.Options.Predict))/s.Output)
	if expected <= limit {
		return nil
	}
	m.skipped.add(t.name, expected)
	return fmt.Errorf("%w: %s would need about %s, and it has %s (background_limit in models.yaml)",
		model.ErrTooSlow, t.name, roundDuration(expected), roundDuration(limit))
}

// roundDuration rounds for messages.
func roundDuration(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }

// skippedCalls counts the calls that checkSpeed refused since the start.
type skippedCalls struct {
	mu       sync.Mutex
	calls    int
	model    string // of the last
	expected time.Duration
}

func (s *skippedCalls) add(name string, expected time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	s.model, s.expected = name, expected
}

// describe says how many calls were left out and why, "" when none was.
func (s *skippedCalls) describe() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == 0 {
		return ""
	}
	noun := "calls"
	if s.calls == 1 {
		noun = "call"
	}
	return fmt.Sprintf("%d %s for grades, summaries or selections left out since the start: %s is too slow for them "+
		"here, the last would have taken about %s; "+
		"raise background_limit in models.yaml to make them, or choose a smaller model", s.calls, noun, s.model,
		roundDuration(s.expected))
}
