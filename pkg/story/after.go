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
	missing := ""
	err := r.poll(ctx, r.live, pollInterval, func() bool {
		missing = r.firstMissing(wants)
		return missing == ""
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = r.stepError(i, "after", fmt.Errorf("timeout: waiting for %s after %s", missing,
			strict.FormatDuration(r.opts.AnswerTimeout)))
	}
	return err
}

// poll reads the events, again after each message on wake and each interval, until done reports true or ctx ends, whose
// error it then returns.
func (r *runner) poll(ctx context.Context, wake <-chan Event, interval time.Duration, done func() bool) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := r.readEvents(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		if done() {
			return nil
		}
		select {
		case <-wake:
		case <-tick.C:
		case <-ctx.Done():
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
		if n := w.count(r.events); n < max(w.times, 1) {
			return fmt.Sprintf("%s (%d so far)", w, n)
		}
	}
	return ""
}
