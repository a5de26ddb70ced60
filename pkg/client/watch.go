package client

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/nats-io/nats.go"
)

// Watch is a subscription to the bus.
type Watch struct {
	c       *Client
	sub     *nats.Subscription
	pattern string
	since   uint64
}

// Watch subscribes to a subject, which may have wildcards. When it returns, the subscription holds; Close ends it. With
// since above 0, [Watch.Events] first replays the stored events from that sequence on; 0 replays none. It fails without
// a connection, and when the server denies the subject.
//
// A reader that is too slow loses live messages; the connection's error handler is told.
func (c *Client) Watch(ctx context.Context, pattern string, since uint64) (*Watch, error) {
	if c.nc == nil {
		return nil, errNoConnection
	}
	sub, err := c.nc.SubscribeSync(pattern)
	if err != nil {
		return nil, fmt.Errorf("subscribing to %s: %w", pattern, err)
	}
	if err := errors.Join(sub.SetPendingLimits(1<<16, 64<<20), c.flush(ctx, pattern)); err != nil {
		_ = sub.Unsubscribe() // fails only on a closed connection
		return nil, fmt.Errorf("subscribing to %s: %w", pattern, err)
	}
	return &Watch{c, sub, pattern, since}, nil
}

// Close ends the subscription.
func (w *Watch) Close() { _ = w.sub.Unsubscribe() }

// Events yields the replayed events, then the live ones, without a gap or a duplicate between them. An error is yielded
// last and ends it; so does the end of ctx, with its error. Lost messages of a slow reader are no error. Questions
// (query.*) are not in the event log and are live only.
func (w *Watch) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		replayed := uint64(0)
		if w.since > 0 {
			var goOn bool
			var err error
			if replayed, goOn, err = w.replay(ctx, yield); err != nil || !goOn {
				if err != nil {
					yield(Event{}, err)
				}
				return
			}
		}
		for {
			m, err := w.sub.NextMsgWithContext(ctx)
			if errors.Is(err, nats.ErrSlowConsumer) {
				continue
			}
			if err != nil {
				yield(Event{}, err)
				return
			}
			e, ok := decodeLive(m)
			if !ok || e.Stream == EventLog && e.Seq <= replayed {
				continue
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// replay yields the stored events that match the pattern, from w.since to the present end of the log, in order, and
// returns the last sequence it covered. goOn is false when the iteration was ended or an error occurred. Deleted events
// are skipped.
func (w *Watch) replay(ctx context.Context, yield func(Event, error) bool) (last uint64, goOn bool, err error) {
	log, err := w.c.EventStatus(ctx)
	if err != nil {
		return 0, false, err
	}
	for e, err := range w.c.EventsFrom(ctx, w.since, storedPattern(w.pattern)) {
		if err != nil {
			return 0, false, err
		}
		if e.Seq > log.Last {
			break
		}
		if isStored(e.Subject) && !yield(e, nil) {
			return 0, false, nil
		}
	}
	return log.Last, true, nil
}
