// Package ask sends a request on a NATS connection and waits for its one reply, with as few goroutines in between as
// possible: the connection's reader hands the reply straight to whoever waits. The client's own request goes through a
// shared subscription and its goroutine, which on a busy machine costs as much as a network hop.
package ask

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// Asker asks on one connection. It is safe for concurrent use.
type Asker struct {
	nc *nats.Conn

	mu   sync.Mutex
	free []*slot
}

// slot is one inbox, used by one request at a time. Each request has its own reply subject below it, so that a late
// reply is never taken for the answer to the next question.
type slot struct {
	prefix  string
	replies chan *nats.Msg
	n       uint64
}

// New returns an asker on nc.
func New(nc *nats.Conn) *Asker { return &Asker{nc: nc} }

// maxFree bounds the inboxes that are kept for later.
const maxFree = 256

// ErrClosed means that the connection was closed while waiting.
var ErrClosed = errors.New("connection closed while waiting for a reply")

// Ask publishes m and returns the first reply. No responders is [nats.ErrNoResponders]. ctx should have an end.
func (a *Asker) Ask(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
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
				continue // late, for a question nobody waits for any more
			}
			a.give(s)
			if len(r.Data) == 0 && r.Header.Get("Status") == "503" {
				return nil, nats.ErrNoResponders
			}
			return r, nil
		case <-ctx.Done():
			a.give(s)
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
		return s, nil
	}
	a.mu.Unlock()
	s := &slot{prefix: a.nc.NewInbox() + ".", replies: make(chan *nats.Msg, 16)}
	sub, err := a.nc.ChanSubscribe(s.prefix+"*", s.replies)
	if err != nil {
		return nil, err
	}
	_ = sub
	return s, nil
}

// give keeps the inbox for the next request. It stays subscribed: opening one costs a round trip's worth of work.
func (a *Asker) give(s *slot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.free) < maxFree {
		a.free = append(a.free, s)
	}
}

var _ = strings.TrimSpace
