package story

import (
	"context"
	"errors"
	"fmt"
	"time"

	"conclave/pkg/strict"
)

// stepError is an error with the field of the story that it is about.
type stepError struct {
	path string
	error
}

// Unwrap lets the cause be found.
func (m *stepError) Unwrap() error { return m.error }

// stepError says at which turn and field something went wrong.
func (r *runner) stepError(i int, field string, err error) error {
	return &stepError{fmt.Sprintf("turns[%d].%s", i, field), fmt.Errorf("turn %d: %w", i+1, err)}
}

// waitForEvents holds a turn back until what it waits for is in the stream, since the story began. Much is done beside the answers
// and is ready when it is ready: a story that asked at once would fail now and then.
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
		lacks := r.firstMissing(wants)
		if lacks == "" {
			return nil
		}
		select {
		case <-r.live: // something happened
		case <-tick.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return r.stepError(i, "after", fmt.Errorf("it was to begin after %s, and within %s it did not", lacks, strict.Short(r.opts.AnswerTimeout)))
			}
			return ctx.Err()
		}
	}
}

// firstMissing is the first event that is not there as often as it should, with how often it is; "" when all are.
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
			return fmt.Sprintf("%s, of which there are %d", w, n)
		}
	}
	return ""
}
