package actor

import (
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/subjects"
)

// startWorkers creates the mailbox and starts the workers of a route, Config.Workers unless the route sets a number. One
// sender may hold about half of the mailbox. The workers end when the runtime quits and the mailbox is empty.
func (l *routeRun) startWorkers(r *running) {
	n := l.Route.workers
	if n <= 0 {
		n = r.cfg.Workers
	}
	l.mailbox = make(chan *nats.Msg, r.cfg.Mailbox)
	l.quotas.max = max(1, r.cfg.Mailbox/2+n/2)
	for range n {
		l.workers.Go(func() {
			for {
				select {
				case m := <-l.mailbox:
					r.deliver(l, m)
					continue
				default:
				}
				select {
				case m := <-l.mailbox:
					r.deliver(l, m)
				case <-r.quit:
					if len(l.mailbox) == 0 {
						return
					}
				}
			}
		})
	}
}

// enqueue puts a message into the mailbox without waiting. It rejects the message as busy when the mailbox is full or the
// sender's quota is used up, and as over the limit when the sender exceeds the rate of the route: a flood from one account
// must not block the others.
func (r *running) enqueue(l *routeRun, m *nats.Msg) {
	if !l.rates.admit(l.sender(m), l.maxRate, r.cfg.Now()) {
		in, _ := l.readMessage(m.Subject, m.Header, m.Data, r.cfg.Now())
		r.rejectFlood(l, in, m, subjects.Faultf(subjects.CodeLimit, "too many requests: at most %d per second; retry in a moment", l.maxRate))
		return
	}
	if l.quotas.acquire(l.sender(m)) {
		select {
		case l.mailbox <- m:
			return
		default:
			l.quotas.release(l.sender(m))
		}
	}
	in, _ := l.readMessage(m.Subject, m.Header, m.Data, r.cfg.Now())
	r.rejectFlood(l, in, m, busyFault())
}

// rejectFlood replies f to a request and counts the rejection. A flood causes at most one dead letter per second and
// route, not one per message, which would be a second flood; OnReject is not called.
func (r *running) rejectFlood(l *routeRun, in *inbound, m *nats.Msg, f *subjects.Fault) {
	l.counters.recordRejected(f.Code)
	r.reply(l, m, in, nil, f)
	now, last := r.cfg.Now().UnixNano(), l.lastFloodLetter.Load()
	if now-last > int64(time.Second) && l.lastFloodLetter.CompareAndSwap(last, now) {
		r.writeDeadLetter(in, f.Code, f.Text)
	}
}

// sender is the account whose quota a message uses: the one that the server wrote into the subject, "" where it writes none.
func (l *routeRun) sender(m *nats.Msg) string {
	if !isAttested(l.spec) {
		return ""
	}
	_, rest, _ := strings.Cut(m.Subject, ".")
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

// rejectQueued rejects the messages that are still queued when the drain timeout has passed, as unavailable. It does not
// wait for running handlers.
func (r *running) rejectQueued() {
	f := subjects.Faultf(subjects.CodeUnavailable, "%s is stopping", r.actor.Name())
	for _, l := range r.routes {
		for len(l.mailbox) > 0 {
			select {
			case m := <-l.mailbox:
				in, _ := l.readMessage(m.Subject, m.Header, m.Data, r.cfg.Now())
				r.rejectMessage(l, in, m, f, f.Text)
			default:
			}
		}
	}
}
