package actor

import (
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/subjects"
)

// open starts the workers of a lane.
func (l *lane) open(r *running) {
	n := l.Route.workers
	if n <= 0 {
		n = r.cfg.Workers
	}
	l.box = make(chan *nats.Msg, r.cfg.Mailbox)
	l.share.most = max(1, r.cfg.Mailbox/2+n/2)
	for range n {
		l.workers.Go(func() {
			for {
				select {
				case m := <-l.box:
					r.deliver(l, m)
					continue
				default:
				}
				select {
				case m := <-l.box:
					r.deliver(l, m)
				case <-r.quit:
					if len(l.box) == 0 {
						return
					}
				}
			}
		})
	}
}

// admit puts a message into the mailbox, or tells its sender at once that there is no room: none at all, or none for
// one who already has his share of it. A flood from one account must not keep the others out.
func (r *running) admit(l *lane, m *nats.Msg) {
	if l.share.take(l.speaker(m)) {
		select {
		case l.box <- m:
			return
		default:
			l.share.give(l.speaker(m))
		}
	}
	in, _ := l.read(m.Subject, m.Header, m.Data, r.cfg.Now())
	r.shed(l, in, m)
}

// shed answers "busy". The flood itself is told of once a second, not message by message: a dead letter and a record
// for each would be a second flood.
func (r *running) shed(l *lane, in *inbound, m *nats.Msg) {
	f := busy()
	l.figures.refused(f.Code)
	r.answer(l, m, in, nil, f)
	now, last := r.cfg.Now().UnixNano(), l.buried.Load()
	if now-last > int64(time.Second) && l.buried.CompareAndSwap(last, now) {
		r.bury(in, f.Code, f.Text)
	}
}

// speaker is whose share a message counts against: the account that the server wrote into the subject.
func (l *lane) speaker(m *nats.Msg) string {
	if !attested(l.spec) {
		return ""
	}
	_, rest, _ := strings.Cut(m.Subject, ".")
	account, _, _ := strings.Cut(rest, ".")
	return account
}

// share is how many messages each account has waiting or at work.
type share struct {
	most int

	mu   sync.Mutex
	held map[string]int
}

// take counts one more for who, unless that is more than his share. Where the server names nobody there are no shares.
func (s *share) take(who string) bool {
	if who == "" {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		s.held = map[string]int{}
	}
	if s.held[who] >= s.most {
		return false
	}
	s.held[who]++
	return true
}

func (s *share) give(who string) {
	if who == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[who]--; s.held[who] <= 0 {
		delete(s.held, who)
	}
}

func busy() *subjects.Fault {
	return subjects.Faultf(subjects.CodeBusy, "too many messages are waiting; try again")
}

// turnAway answers those who still wait when the time to finish is over.
func (r *running) turnAway() {
	f := subjects.Faultf(subjects.CodeUnavailable, "%s is stopping", r.actor.Name())
	for _, l := range r.routes {
		for len(l.box) > 0 {
			select {
			case m := <-l.box:
				in, _ := l.read(m.Subject, m.Header, m.Data, r.cfg.Now())
				r.refuse(l, in, m, f, f.Text)
			default:
			}
		}
	}
}
