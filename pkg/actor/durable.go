package actor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/subjects"
)

// startConsumers connects as "<actor>_in" and starts workers for each durable consumer in the table that delivers to a
// route of the actor; an ordered consumer has one, and all ordered consumers of a route together run as many handlers
// at once as its [Workers] allow. Without durable routes it does nothing. It fails when a consumer does not exist on
// the server, or no consumer delivers a route.
func (r *running) startConsumers(ctx context.Context, dial Dial) error {
	var lanes []*routeRun
	for _, l := range r.routes {
		if l.kind == durable {
			lanes = append(lanes, l)
		}
	}
	if len(lanes) == 0 {
		return nil
	}
	// A closed pull connection would leave the actor without messages and looking healthy.
	nc, err := dial(r.actor.Name()+"_in", nats.ClosedHandler(func(*nats.Conn) {
		r.requestRestart(errors.New("the consumer connection was closed"))
	}))
	if err != nil {
		return err
	}
	r.pullNC = nc
	js, err := jetstream.NewWithAPIPrefix(nc, "core.API")
	if err != nil {
		return fmt.Errorf("preparing consumers: %w", err)
	}
	covered := map[*routeRun]bool{}
	for _, p := range subjects.Table().Consumers {
		if p.Actor != r.actor.Name() {
			continue
		}
		workers := 1
		var mine []*routeRun
		for _, l := range lanes {
			if l.spec.Stream != p.Stream || !filterMatches(p, l.spec) {
				continue
			}
			mine, covered[l] = append(mine, l), true
			workers = max(workers, l.Route.workers)
		}
		if len(mine) == 0 {
			continue
		}
		if p.Ordered {
			workers = 1
			for _, l := range mine {
				if l.Route.workers > 0 && l.slots == nil {
					l.slots = make(chan struct{}, l.Route.workers)
				}
			}
		}
		c, err := js.Consumer(ctx, p.Stream, p.Name)
		if err != nil {
			return fmt.Errorf("finding consumer %s of %s: %w", p.Name, p.Stream, err)
		}
		for range workers {
			r.pulls.Go(func() { r.consume(c, mine, p.Unlimited) })
		}
	}
	for _, l := range lanes {
		if !covered[l] {
			return fmt.Errorf("no consumer of %s delivers %s", l.spec.Stream, l.spec.Name)
		}
	}
	return nil
}

// filterMatches reports whether a consumer's filter covers the route's subject.
func filterMatches(p subjects.Consumer, spec subjects.Spec) bool {
	return len(p.Filter) == 0 || slices.ContainsFunc(p.Filter, func(f string) bool {
		return subjects.Overlap(f, spec.Subscription())
	})
}

// consume pulls and handles messages for lanes until shutdown, and retries forever while the connection is down. It
// requests one message at a time: in a batch, an empty message would end the reply of the import. unlimited means that
// the server delivers a message until it is acknowledged.
func (r *running) consume(c jetstream.Consumer, lanes []*routeRun, unlimited bool) {
	back := r.pullNC.StatusChanged(nats.CONNECTED)
	defer r.pullNC.RemoveStatusListener(back)
	for !r.isQuitting() {
		m, err := r.nextMessage(c, back)
		switch {
		case err == nil:
			r.handlePulled(m, lanes, unlimited)
		case errors.Is(err, nats.ErrTimeout), errors.Is(err, context.DeadlineExceeded), errors.Is(err,
			context.Canceled), errors.Is(err, jetstream.ErrNoMessages):
		default:
			// The connection is down, or the server restarts: wait without spinning.
			select {
			case <-r.quit:
			case <-back:
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
}

// pullWait is the timeout of one pull request. It is short, because the server may deliver a message to the pull
// request of a killed process, and notices only when the acknowledgement is missing.
const pullWait = 5 * time.Second

// nextMessage waits for one message, at most pullWait. Shutdown and a reconnect (a signal on back) end the wait with an
// error, because a restarted server has lost the pull request. It fails at once while disconnected.
func (r *running) nextMessage(c jetstream.Consumer, back chan nats.Status) (jetstream.Msg, error) {
	if !r.pullNC.IsConnected() { // a pull request that cannot be sent would leak its inbox
		return nil, nats.ErrDisconnected
	}
	for len(back) > 0 { // drop signals of earlier reconnects
		<-back
	}
	ctx, cancel := context.WithTimeout(r.ctx, pullWait)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-r.quit:
		case <-back:
		case <-ctx.Done():
		}
		cancel()
	}()
	defer func() {
		cancel()
		<-watching // or it could consume the signal of the next call
	}()
	return c.Next(jetstream.FetchContext(ctx))
}

func (r *running) isQuitting() bool {
	select {
	case <-r.quit:
		return true
	default:
		return r.ctx.Err() != nil
	}
}

// RetryAfter has the message of a durable route redelivered after wait instead of [Config] RetryDelay. The handler
// returns it.
func RetryAfter(err error, wait time.Duration) error { return &retryAfter{err, wait} }

type retryAfter struct {
	error
	wait time.Duration
}

func (l *retryAfter) Unwrap() error { return l.error }

// handlePulled handles one message of a consumer by the first of lanes that matches: acknowledged when handled or when
// no lane matches, redelivered after RetryDelay or [RetryAfter] when its handler fails, a dead letter after
// [subjects.MaxDeliver] attempts unless the shutdown ended the last one and the server delivers it again (unlimited). A
// malformed message is rejected and not retried. Its acknowledgement deadline is extended while the handler runs.
func (r *running) handlePulled(m jetstream.Msg, lanes []*routeRun, unlimited bool) {
	var l *routeRun
	for _, x := range lanes {
		if _, ok := subjects.Match(x.spec.Subscription(), m.Subject()); ok {
			l = x
			break
		}
	}
	if l == nil { // the consumer's filter is wider than the routes
		_ = m.Ack()
		return
	}
	done := make(chan struct{})
	defer close(done)
	go func() { // long work, and the wait for it, extends its acknowledgement deadline
		t := time.NewTicker(subjects.AckWait / 3)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				_ = m.InProgress()
			}
		}
	}()
	if l.slots != nil {
		select {
		case l.slots <- struct{}{}:
			defer func() { <-l.slots }()
		case <-r.quit:
			_ = m.Nak()
			return
		}
	}
	in, fault := l.readMessage(m.Subject(), m.Headers(), m.Data(), r.cfg.Now())
	meta, merr := m.Metadata()
	if merr == nil {
		in.seq, in.storedAt, in.attempt = meta.Sequence.Stream, meta.Timestamp, int(meta.NumDelivered)
	}
	if fault != nil {
		r.rejectMessage(l, in, nil, fault, fault.Text)
		_ = m.Term()
		return
	}
	_, err := r.handle(r.ctx, l, in)
	var undecoded errMalformed
	switch {
	case errors.As(err, &undecoded):
		r.rejectMessage(l, in, nil, undecoded.fault, undecoded.reason)
		_ = m.Term()
	case err == nil:
		if err := m.Ack(); err != nil {
			r.cfg.Log.Error("not acknowledged, will be redelivered", "actor", r.actor.Name(), "subject", in.subject,
				"err", err)
		}
	default:
		f := r.fault(in, err)
		interrupted := unlimited && r.ctx.Err() != nil // its handler did not fail
		if in.attempt >= subjects.MaxDeliver && !interrupted {
			r.writeDeadLetter(in, f.Code, fmt.Sprintf("failed after %d attempts: %s", in.attempt, f.Text))
			_ = m.Term()
			return
		}
		wait := r.cfg.RetryDelay
		if l := (*retryAfter)(nil); errors.As(err, &l) {
			wait = l.wait
		}
		_ = m.NakWithDelay(wait)
	}
}
