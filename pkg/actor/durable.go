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

// pull starts a loop for each of the actor's consumers that has a route.
func (r *running) pull(ctx context.Context, dial Dial) error {
	var lanes []*lane
	for _, l := range r.routes {
		if l.kind == durable {
			lanes = append(lanes, l)
		}
	}
	if len(lanes) == 0 {
		return nil
	}
	// A pull connection that was closed for good would leave the actor deaf and looking well.
	nc, err := dial(r.actor.Name()+"_in", nats.ClosedHandler(func(*nats.Conn) { r.failed(errors.New("its pulling connection was closed")) }))
	if err != nil {
		return err
	}
	r.pullNC = nc
	js, err := jetstream.NewWithAPIPrefix(nc, "core.API")
	if err != nil {
		return fmt.Errorf("preparing to pull: %w", err)
	}
	covered := map[*lane]bool{}
	for _, p := range subjects.Table().Consumers {
		if p.Actor != r.actor.Name() {
			continue
		}
		workers := 1
		var mine []*lane
		for _, l := range lanes {
			if l.spec.Stream != p.Stream || !gives(p, l.spec) {
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
		}
		c, err := js.Consumer(ctx, p.Stream, p.Name)
		if err != nil {
			return fmt.Errorf("finding consumer %s of %s: %w", p.Name, p.Stream, err)
		}
		for range workers {
			r.pulls.Go(func() { r.pullFrom(c, mine) })
		}
	}
	for _, l := range lanes {
		if !covered[l] {
			return fmt.Errorf("no consumer of %s gives %s to it", l.spec.Stream, l.spec.Name)
		}
	}
	return nil
}

// gives reports whether a consumer's filter lets the route's subject through.
func gives(p subjects.Consumer, spec subjects.Spec) bool {
	return len(p.Filter) == 0 || slices.ContainsFunc(p.Filter, func(f string) bool { return subjects.Overlap(f, spec.Subscription()) })
}

// pullFrom pulls one message at a time: of several, an empty one would end the reply over an import.
func (r *running) pullFrom(c jetstream.Consumer, lanes []*lane) {
	back := r.pullNC.StatusChanged(nats.CONNECTED)
	defer r.pullNC.RemoveStatusListener(back)
	for !r.quitting() {
		m, err := r.next(c, back)
		switch {
		case err == nil:
			r.take(m, lanes)
		case errors.Is(err, nats.ErrTimeout), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, jetstream.ErrNoMessages):
		default:
			// The link is down, or the server restarts: wait for it without spinning.
			select {
			case <-r.quit:
			case <-back:
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
}

// pullWait is how long one request for a message stands. Short, because the server may give a message to the request of a
// process that was killed, and only finds out when nobody acknowledges it.
const pullWait = 5 * time.Second

// next waits for one message. A server that restarts forgets that we wait, so a connection that comes back ends it.
func (r *running) next(c jetstream.Consumer, back chan nats.Status) (jetstream.Msg, error) {
	if !r.pullNC.IsConnected() { // a pull that cannot be sent would leave its inbox behind
		return nil, nats.ErrDisconnected
	}
	for len(back) > 0 { // about a connection that we know of
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
		<-watching // or it could take the next one's signal
	}()
	return c.Next(jetstream.FetchContext(ctx))
}

func (r *running) quitting() bool {
	select {
	case <-r.quit:
		return true
	default:
		return r.ctx.Err() != nil
	}
}

// RetryAfter is err from a handler of a kept event that knows how long it makes sense to wait before it is tried again.
func RetryAfter(err error, wait time.Duration) error { return &later{err, wait} }

type later struct {
	error
	wait time.Duration
}

func (l *later) Unwrap() error { return l.error }

// take handles one pulled message: acknowledged when handled, tried again later when not, buried after the last try.
func (r *running) take(m jetstream.Msg, lanes []*lane) {
	var l *lane
	for _, x := range lanes {
		if _, ok := subjects.Match(x.spec.Subscription(), m.Subject()); ok {
			l = x
			break
		}
	}
	if l == nil { // the consumer's filter is wider than the routes: not ours to handle
		_ = m.Ack()
		return
	}
	done := make(chan struct{})
	defer close(done)
	go func() { // long work keeps its message
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
	in, fault := l.read(m.Subject(), m.Headers(), m.Data(), r.cfg.Now())
	meta, merr := m.Metadata()
	if merr == nil {
		in.seq, in.stored, in.try = meta.Sequence.Stream, meta.Timestamp, int(meta.NumDelivered)
	}
	if fault != nil {
		r.refuse(l, in, nil, fault, fault.Text)
		_ = m.Term()
		return
	}
	_, err := r.handle(r.ctx, l, in)
	var undecoded errUndecoded
	switch {
	case errors.As(err, &undecoded):
		r.refuse(l, in, nil, undecoded.fault, undecoded.reason)
		_ = m.Term()
	case err == nil:
		if err := m.Ack(); err != nil {
			r.cfg.Log.Error("not acknowledged, will come again", "actor", r.actor.Name(), "subject", in.subject, "err", err)
		}
	default:
		f := r.fault(in, err)
		if in.try >= subjects.MaxDeliver {
			r.bury(in, f.Code, fmt.Sprintf("given up after %d tries: %s", in.try, f.Text))
			_ = m.Term()
			return
		}
		wait := r.cfg.RetryDelay
		if l := (*later)(nil); errors.As(err, &l) {
			wait = l.wait
		}
		_ = m.NakWithDelay(wait)
	}
}
