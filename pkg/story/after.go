package story

import (
	"context"
	"errors"
	"fmt"
	"time"

	"conclave/pkg/strict"
)

// misstep is an error with the field of the story that it is about.
type misstep struct {
	path string
	error
}

// Unwrap lets the cause be found.
func (m *misstep) Unwrap() error { return m.error }

// misstep says at which turn and field something went wrong.
func (r *run) misstep(i int, field string, err error) error {
	return &misstep{fmt.Sprintf("turns[%d].%s", i, field), fmt.Errorf("turn %d: %w", i+1, err)}
}

// await holds a turn back until what it waits for is in the stream, since the story began. Much is done beside the answers
// and is ready when it is ready: a story that asked at once would fail now and then.
func (r *run) await(ctx context.Context, i int) error {
	wants := r.story.Turns[i].after
	if len(wants) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.opts.Patience)
	defer cancel()
	tick := time.NewTicker(looks)
	defer tick.Stop()
	for {
		if err := r.look(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		lacks := r.lacks(wants)
		if lacks == "" {
			return nil
		}
		select {
		case <-r.live: // something happened
		case <-tick.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return r.misstep(i, "after", fmt.Errorf("it was to begin after %s, and within %s it did not", lacks, strict.Short(r.opts.Patience)))
			}
			return ctx.Err()
		}
	}
}

// lacks is the first event that is not there as often as it should, with how often it is; "" when all are.
func (r *run) lacks(wants []Want) string {
	for _, w := range wants {
		if r.opts.Live && w.scriptedOnly {
			continue
		}
		n := 0
		for _, e := range r.events {
			if w.meets(e) {
				n++
			}
		}
		if n < max(w.times, 1) {
			return fmt.Sprintf("%s, of which there are %d", w, n)
		}
	}
	return ""
}
