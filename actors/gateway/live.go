package gateway

import (
	"context"
	"encoding/json"
	"sync"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// broadcaster passes on what is heard and not kept in EVENTS: growing answers, and questions, which QUERIES keeps. Whoever does
// not read fast enough misses some of it; nothing here has a place to come back to.
type broadcaster struct {
	mu        sync.Mutex
	listeners map[*subscriber]struct{}
}

// subscriber is one who hears it.
type subscriber struct {
	want   func(Event) bool
	events chan liveEvent
}

// liveEvent is a live event, with the piece of an answer that it is.
type liveEvent struct {
	Event
	delta *subjects.Delta // nil = a question
}

// subscriberBuffer is how much waits for one listener before he misses some.
const subscriberBuffer = 256

// subscribe adds a listener; leave it when done.
func (l *broadcaster) subscribe(want func(Event) bool) *subscriber {
	n := &subscriber{want: want, events: make(chan liveEvent, subscriberBuffer)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listeners == nil {
		l.listeners = map[*subscriber]struct{}{}
	}
	l.listeners[n] = struct{}{}
	return n
}

func (l *broadcaster) unsubscribe(n *subscriber) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.listeners, n)
}

func (l *broadcaster) publish(s liveEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := range l.listeners {
		if !n.want(s.Event) {
			continue
		}
		select {
		case n.events <- s:
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
	g.live.publish(liveEvent{Event{Subject: in.Subject, Time: in.Time.UTC(), Query: in.Tokens[0], Session: in.Session, Payload: body}, &in.Body})
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
	g.live.publish(liveEvent{Event: ev})
	return nil
}
