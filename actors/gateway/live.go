package gateway

import (
	"context"
	"encoding/json"
	"sync"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// live passes on what is heard and not kept in EVENTS: growing answers, and questions, which QUERIES keeps. Whoever does
// not read fast enough misses some of it; nothing here has a place to come back to.
type live struct {
	mu        sync.Mutex
	listeners map[*listener]struct{}
}

// listener is one who hears it.
type listener struct {
	want func(Event) bool
	got  chan said
}

// said is a live event, with the piece of an answer that it is.
type said struct {
	Event
	delta *subjects.Delta // nil = a question
}

// backlog is how much waits for one listener before he misses some.
const backlog = 256

// join adds a listener; leave it when done.
func (l *live) join(want func(Event) bool) *listener {
	n := &listener{want: want, got: make(chan said, backlog)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listeners == nil {
		l.listeners = map[*listener]struct{}{}
	}
	l.listeners[n] = struct{}{}
	return n
}

func (l *live) leave(n *listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.listeners, n)
}

func (l *live) say(s said) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := range l.listeners {
		if !n.want(s.Event) {
			continue
		}
		select {
		case n.got <- s:
		default:
		}
	}
}

// onDelta hears a piece of an answer or of thinking. Which query it belongs to is in the subject.
func (g *Gateway) onDelta(_ context.Context, in actor.Msg[subjects.Delta], _ actor.Out) error {
	body, err := json.Marshal(in.Body)
	if err != nil || len(in.Tokens) != 1 || subjects.CheckToken(in.Tokens[0]) != nil {
		return nil // may drop, and this one is nobody's
	}
	g.live.say(said{Event{Subject: in.Subject, Time: in.Time.UTC(), Query: in.Tokens[0], Session: in.Session, Payload: body}, &in.Body})
	return nil
}

// firstToken returns the first id that is a valid token. Ids tell what an event is about, never who published it.
func firstToken(ids ...string) string {
	for _, id := range ids {
		if subjects.CheckToken(id) == nil {
			return id
		}
	}
	return ""
}

// onQuestion receives a question, whoever asked it.
func (g *Gateway) onQuestion(_ context.Context, in actor.Msg[subjects.Query], _ actor.Out) error {
	body, err := json.Marshal(in.Body)
	if err != nil {
		return err
	}
	ev := Event{Subject: in.Subject, Time: in.Time.UTC(), Query: firstToken(in.Query, in.Body.QueryID), Session: firstToken(in.Session, in.Body.SessionID), Payload: body}
	g.live.say(said{Event: ev})
	return nil
}
