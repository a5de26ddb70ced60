package actor

import (
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/subjects"
)

// A service that is killed while it holds a request sends no error. A caller that hears nothing of a stream therefore
// asks every instance, on the stop subject with probePrefix before the id, whether it holds the request. An instance of
// an earlier build does not answer, and so decides nothing.
const (
	probePrefix   = "probe-"
	probeInterval = 2 * time.Second
	// maxUnheld is after how many questions in a row, which only instances without the request answered, or no service
	// received, the reply is lost.
	maxUnheld = 2
	// streamHeld and streamUnknown are the answers, in [subjects.HeaderStream].
	streamHeld    = "held"
	streamUnknown = "unknown"
)

// streamProbe asks whether an instance holds the request of a stream. It is used in one goroutine.
type streamProbe struct {
	nc      *nats.Conn
	subject string
	sub     *nats.Subscription // nil before the first question
	replies chan *nats.Msg
	unheld  int
}

// newStreamProbe returns the probe of a stream, nil when its service has no stop subject.
func (s *connOut) newStreamProbe(spec subjects.Spec, id string) *streamProbe {
	t, err := subjects.Topic[subjects.Empty]{Spec: subjects.Spec{Name: spec.Stop}}.With(probePrefix + id)
	if spec.Stop == "" || err != nil {
		return nil
	}
	return &streamProbe{nc: s.nc, subject: t.Name}
}

// isLost reads the answers to the last question and asks the next one. It reports whether no instance holds the
// request. An error decides nothing.
func (p *streamProbe) isLost() bool {
	held, answered := false, false
	for len(p.replies) > 0 {
		answered = true
		held = (<-p.replies).Header.Get(subjects.HeaderStream) == streamHeld || held
	}
	switch {
	case held:
		p.unheld = 0
	case answered:
		p.unheld++
	}
	if p.unheld >= maxUnheld {
		return true
	}
	if p.sub == nil {
		p.replies = make(chan *nats.Msg, 64)
		sub, err := p.nc.ChanSubscribe(p.nc.NewInbox(), p.replies)
		if err != nil {
			return false
		}
		p.sub = sub
	}
	_ = p.nc.PublishMsg(&nats.Msg{Subject: p.subject, Reply: p.sub.Subject, Data: []byte("{}")})
	return false
}

// stop unsubscribes from the answers.
func (p *streamProbe) stop() {
	if p != nil && p.sub != nil {
		_ = p.sub.Unsubscribe()
	}
}

// handleStop handles a message of the account who on the stop subject of a route: the end of the stream id, or the
// question whether this instance holds it.
func (r *running) handleStop(l *routeRun, m *nats.Msg, who, id string) {
	id, isProbe := strings.CutPrefix(id, probePrefix)
	if !isProbe {
		l.streams.cancel(who, id)
		return
	}
	answer := streamUnknown
	if l.streams.has(who, id) || l.mailbox.has(func(m *nats.Msg) bool {
		return l.sender(m) == who && m.Header.Get(subjects.HeaderStream) == id
	}) {
		answer = streamHeld
	}
	reply := &nats.Msg{Subject: m.Reply, Header: nats.Header{subjects.HeaderStream: []string{answer}}}
	if m.Reply != "" {
		_ = r.nc.PublishMsg(reply) // fails when the connection is closed
	}
}
