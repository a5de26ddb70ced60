package story

import (
	"context"
	"errors"
	"fmt"
	"time"

	"conclave/pkg/strict"
)

// stepError is an error with the path of the field that caused it.
type stepError struct {
	path string
	error
}

// Unwrap implements the interface of [errors.As].
func (m *stepError) Unwrap() error { return m.error }

// stepError returns an error about a field of a turn.
func (r *runner) stepError(i int, field string, err error) error {
	return &stepError{fmt.Sprintf("turns[%d].%s", i, field), fmt.Errorf("turn %d: %w", i+1, err)}
}

// waitForEvents waits for the events that turn i starts after, AnswerTimeout at most; then it fails and names the first
// missing one. Memory and critic work asynchronously, so a story that did not wait would be flaky.
func (r *runner) waitForEvents(ctx context.Context, i int) error {
	wants := r.story.Turns[i].after
	if len(wants) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.opts.AnswerTimeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if err := r.readEvents(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		missing := r.firstMissing(wants)
		if missing == "" {
			return nil
		}
		select {
		case <-r.live: // any event
		case <-tick.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return r.stepError(i, "after", fmt.Errorf("timeout: waiting for %s after %s", missing,
					strict.FormatDuration(r.opts.AnswerTimeout)))
			}
			return ctx.Err()
		}
	}
}

// firstMissing describes the first pattern with fewer events than its times (1 when not set), "" when all have enough.
// Patterns for scripted runs are skipped in a live one.
func (r *runner) firstMissing(wants []EventPattern) string {
	for _, w := range wants {
		if r.opts.Live && w.scriptedOnly {
			continue
		}
		n := 0
		for _, e := range r.events {
			if w.matches(e) {
				n++
			}
		}
		if n < max(w.times, 1) {
			return fmt.Sprintf("%s (%d so far)", w, n)
		}
	}
	return ""
}
