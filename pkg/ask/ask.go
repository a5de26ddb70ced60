// Package ask sends a request on a NATS connection and waits for its one reply, with as few goroutines in between as
// possible: the connection's reader hands the reply straight to whoever waits. The client's own request goes through a
// shared subscription and its goroutine, which on a busy machine costs as much as a network hop.
package ask

import (
	"context"
	"errors"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"
)

// Asker asks on one connection. It is safe for concurrent use.
type Asker struct {
	nc     *nats.Conn
	closed chan nats.Status // says so once when the connection closes; then closed, so that everyone waiting hears it

	mu   sync.Mutex
	free []*slot
}

// slot is one inbox, used by one request at a time. Each request has its own reply subject below it, so that one reply
// too many is never taken for the answer to the next question.
type slot struct {
	prefix  string
	replies chan *nats.Msg
	sub     *nats.Subscription
	n       uint64
}

// New returns an asker on nc.
func New(nc *nats.Conn) *Asker { return &Asker{nc: nc, closed: nc.StatusChanged(nats.CLOSED)} }

// maxFree bounds the inboxes that are kept for later.
const maxFree = 256

// ErrClosed means that the connection was closed while waiting.
var ErrClosed = errors.New("connection closed while waiting for a reply")

// Ask publishes m and returns the first reply. No responders is [nats.ErrNoResponders]. ctx should have an end. It
// writes the reply subject into m.
func (a *Asker) Ask(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s, err := a.take()
	if err != nil {
		return nil, err
	}
	s.n++
	m.Reply = s.prefix + strconv.FormatUint(s.n, 36)
	if err := a.nc.PublishMsg(m); err != nil {
		a.give(s)
		return nil, err
	}
	for {
		select {
		case r := <-s.replies:
			if r.Subject != m.Reply {
				continue // one more, to a question that had its answer
			}
			a.give(s)
			if len(r.Data) == 0 && r.Header.Get("Status") == "503" {
				return nil, nats.ErrNoResponders
			}
			return r, nil
		case <-a.closed:
			a.nc.RemoveStatusListener(a.closed)
			return nil, ErrClosed
		case <-ctx.Done():
			// Its answer may still come. Somebody who was asleep may even answer a hundred of them at once, and the inbox
			// would be full when the next question's answer comes.
			s.close()
			return nil, ctx.Err()
		}
	}
}

// take finds a free inbox or opens one.
func (a *Asker) take() (*slot, error) {
	a.mu.Lock()
	if n := len(a.free); n > 0 {
		s := a.free[n-1]
		a.free = a.free[:n-1]
		a.mu.Unlock()
		return s.empty(), nil
	}
	a.mu.Unlock()
	s := &slot{prefix: a.nc.NewInbox() + ".", replies: make(chan *nats.Msg, 16)}
	var err error
	s.sub, err = a.nc.ChanSubscribe(s.prefix+"*", s.replies)
	return s, err
}

// empty forgets what came after the answer: a full inbox would have no room for the one that is waited for.
func (s *slot) empty() *slot {
	for {
		select {
		case <-s.replies:
		default:
			return s
		}
	}
}

// give keeps the inbox for the next request, subscribed: opening one costs a round trip's worth of work. Those beyond
// the bound, left over from many questions at once, are closed.
func (a *Asker) give(s *slot) {
	a.mu.Lock()
	keep := len(a.free) < maxFree
	if keep {
		a.free = append(a.free, s)
	}
	a.mu.Unlock()
	if !keep {
		s.close()
	}
}

// close ends the inbox. It only fails when the connection is gone, and then so is the inbox.
func (s *slot) close() { _ = s.sub.Unsubscribe() }
