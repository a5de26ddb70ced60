package actor

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/subjects"
)

// mailbox holds the messages of a route that wait for a worker, and starts a worker when there is work: at most max at
// once. A worker ends when nothing waits and maxParked others are parked: a parked worker has its stack already, which
// a new one grows again for each message. A message waits only while max workers run, so the order of arrival is kept.
type mailbox struct {
	size int // messages that may wait
	max  int // workers

	mu      sync.Mutex
	waiting []*nats.Msg
	running int            // workers with a message
	parked  int            // workers that wait for one
	hand    chan *nats.Msg // to a parked worker; closed with the mailbox
	closed  bool           // no message is accepted any more
	workers sync.WaitGroup // started only while the mailbox is open, so that nothing is added during a wait
}

// maxParked bounds the parked workers of a route.
const maxParked = 2

// defaultWorkers is how many handlers of a route run at once, unless it sets [Workers].
const defaultWorkers = 64

// openMailbox prepares the mailbox of a route for its workers. One sender may hold about half of it.
func (l *routeRun) openMailbox(cfg Config) {
	l.mailbox.size, l.mailbox.max, l.mailbox.hand = cfg.Mailbox, defaultWorkers, make(chan *nats.Msg, maxParked)
	if l.Route.workers > 0 {
		l.mailbox.max = l.Route.workers
	}
	l.quotas.max = max(1, cfg.Mailbox/2+l.mailbox.max/2)
}

// put has handle called with m by a worker, at once or when one is free. It does not wait, and returns a fault when too
// many messages wait already or the mailbox is closed.
func (b *mailbox) put(m *nats.Msg, handle func(*nats.Msg)) *subjects.Fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return subjects.Faultf(subjects.CodeUnavailable, "stopping; retry in a moment")
	case b.parked > 0 && b.running < b.max:
		b.parked--
		b.running++
		b.hand <- m // does not block: there is a place for each parked worker
	case b.running < b.max:
		b.running++
		b.workers.Go(func() {
			for m := m; m != nil; m = b.next() {
				handle(m)
			}
		})
	case len(b.waiting) >= b.size:
		return busyFault()
	default:
		b.waiting = append(b.waiting, m)
	}
	return nil
}

// next returns the message that has waited longest. Without one it parks the worker that called it until there is one;
// nil means that the worker must end.
func (b *mailbox) next() *nats.Msg {
	b.mu.Lock()
	if len(b.waiting) > 0 {
		m := b.waiting[0]
		b.waiting[0] = nil
		b.waiting = b.waiting[1:]
		b.mu.Unlock()
		return m
	}
	b.waiting = nil // frees the space of a flood
	b.running--
	park := b.hand != nil && b.parked < maxParked && !b.closed
	if park {
		b.parked++
	}
	b.mu.Unlock()
	if !park {
		return nil
	}
	return <-b.hand
}

// length returns how many messages wait.
func (b *mailbox) length() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting)
}

// has reports whether a message that waits is one.
func (b *mailbox) has(isOne func(*nats.Msg) bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.waiting, isOne)
}

// close has later messages rejected; those that wait are handled, and parked workers end. It may be called more than
// once.
func (b *mailbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed && b.hand != nil {
		close(b.hand)
	}
	b.closed = true
}

// takeWaiting returns the messages that wait, which no worker handles then.
func (b *mailbox) takeWaiting() []*nats.Msg {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.waiting
	b.waiting = nil
	return out
}

// enqueue puts a message into the mailbox without waiting. It rejects the message as busy when the mailbox is full or
// the sender's quota is used up, as unavailable when the actor stops, and as over the limit when the sender exceeds the
// rate of the route: a flood from one account must not block the others.
func (r *running) enqueue(l *routeRun, m *nats.Msg) {
	if !l.rates.admit(l.sender(m), l.maxRate, r.cfg.Now()) {
		in, _ := l.readMessage(m.Subject, m.Header, m.Data, r.cfg.Now())
		r.rejectFlood(l, in, m, subjects.Faultf(subjects.CodeLimit, "too many requests: at most %d per second; retry "+
			"in a moment", l.maxRate))
		return
	}
	fault := busyFault()
	if l.quotas.acquire(l.sender(m)) {
		if fault = l.mailbox.put(m, func(m *nats.Msg) { r.deliver(l, m) }); fault == nil {
			return
		}
		l.quotas.release(l.sender(m))
	}
	in, _ := l.readMessage(m.Subject, m.Header, m.Data, r.cfg.Now())
	r.rejectFlood(l, in, m, fault)
}

// rejectFlood replies f to a request and counts the rejection. A flood causes at most one dead letter per second and
// route, not one per message, which would be a second flood; OnReject is not called.
func (r *running) rejectFlood(l *routeRun, in *inbound, m *nats.Msg, f *subjects.Fault) {
	r.recordRejected(l, f.Code)
	r.reply(l, m, in, nil, f)
	now, last := r.cfg.Now().UnixNano(), l.lastFloodLetter.Load()
	if now-last > int64(time.Second) && l.lastFloodLetter.CompareAndSwap(last, now) {
		r.writeSenderLetter(l.sender(m), in, f.Code, f.Text)
	}
}

// sender is the account whose quota a message uses: the one that the server wrote into the subject, for an announcement
// or output of a tool its zone; "" where it writes none.
func (l *routeRun) sender(m *nats.Msg) string {
	_, rest, _ := strings.Cut(m.Subject, ".")
	switch {
	case l.spec.Received == subjects.ToolSchemaEvent.Received, l.spec.Received == subjects.ToolRunOutput.Received:
		_, rest, _ = strings.Cut(rest, ".")
	case !isAttested(l.spec):
		return ""
	}
	account, _, _ := strings.Cut(rest, ".")
	return account
}

// senderQuotas count the messages of each account that are queued or being handled.
type senderQuotas struct {
	max int

	mu   sync.Mutex
	held map[string]int
}

// acquire counts one more queued or running message of the account who. It reports false, and counts nothing, when the
// quota is used up. "" (no account known) has no quota.
func (s *senderQuotas) acquire(who string) bool {
	if who == "" {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		s.held = map[string]int{}
	}
	if s.held[who] >= s.max {
		return false
	}
	s.held[who]++
	return true
}

// release gives back what a successful acquire of who counted.
func (s *senderQuotas) release(who string) {
	if who == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[who]--; s.held[who] <= 0 {
		delete(s.held, who)
	}
}

// senderRates bound how often each account may send: per second, and ten times as many at once after a pause.
type senderRates struct {
	mu    sync.Mutex
	until map[string]time.Time // when the requests so far would all be due at the allowed rate
}

// admit counts a request of the account who at the time now, and reports false when it exceeds perSecond. 0, and "" (no
// account known), have no limit.
func (s *senderRates) admit(who string, perSecond int, now time.Time) bool {
	if perSecond == 0 || who == "" {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until == nil {
		s.until = map[string]time.Time{}
	}
	until := s.until[who]
	if until.Before(now) {
		until = now
	}
	if until.Sub(now) >= 10*time.Second {
		return false
	}
	s.until[who] = until.Add(time.Second / time.Duration(perSecond))
	return true
}

func busyFault() *subjects.Fault {
	return subjects.Faultf(subjects.CodeBusy, "queue full: too many messages are waiting; retry in a moment")
}

// rejectQueued rejects the messages that are still queued when the drain timeout has passed, as unavailable. It does
// not wait for running handlers.
func (r *running) rejectQueued() {
	f := subjects.Faultf(subjects.CodeUnavailable, "%s is stopping", r.actor.Name())
	for _, l := range r.routes {
		for _, m := range l.mailbox.takeWaiting() {
			in, _ := l.readMessage(m.Subject, m.Header, m.Data, r.cfg.Now())
			r.rejectMessage(l, in, m, f, f.Text)
		}
	}
}
