package gateway

import (
	"context"
	"encoding/json"
	"sync"

	"conclave/pkg/actor"
	"conclave/pkg/client"
	"conclave/subjects"
)

// broadcaster passes on live events that are not in the event log: tokens of answers, and questions. A slow subscriber
// misses some.
type broadcaster struct {
	mu        sync.Mutex
	listeners map[*subscriber]struct{}
}

// subscriber receives the live events that it wants.
type subscriber struct {
	want   func(client.Event) bool
	events chan liveEvent
}

// liveEvent is a live event, with its token.
type liveEvent struct {
	client.Event
	delta *subjects.Delta // nil = a question
}

// subscriberBuffer is the number of events that wait for one subscriber.
const subscriberBuffer = 256

// subscribe adds a subscriber to the events that want selects; want must not be nil and is called with the broadcaster
// locked. While subscriberBuffer events wait unread, further ones are dropped silently. The caller must unsubscribe it.
func (l *broadcaster) subscribe(want func(client.Event) bool) *subscriber {
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

// publish passes an event to every subscriber that wants it. It never waits: a subscriber whose buffer is full misses
// it.
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

// onDelta receives a token of an answer or of thinking. The subject names the query.
func (g *Gateway) onDelta(_ context.Context, in actor.Msg[subjects.Delta], _ actor.Out) error {
	body, err := json.Marshal(in.Body)
	if err != nil || len(in.Tokens) != 1 || subjects.CheckToken(in.Tokens[0]) != nil {
		return nil // tokens may be dropped
	}
	g.live.publish(liveEvent{client.Event{
		Subject: in.Subject, Time: in.Time.UTC(), Query: in.Tokens[0], Session: in.Session,
		Body: body,
	}, &in.Body})
	return nil
}

// maxRecentQuestions is the number of questions that are remembered to recognize a second copy.
const maxRecentQuestions = 1024

// recentQuestions are the latest questions, oldest first. A question that the gateway publishes itself arrives twice:
// as its own message, and as the copy that every client of the user gets. The zero value is ready.
type recentQuestions struct {
	mu    sync.Mutex
	known recentMap[string, bool]
}

// isNew remembers a question by its subject and ids, and reports whether it was not known. One without a query id is
// always new: the gateway's own have one.
func (r *recentQuestions) isNew(subject, session, query string) bool {
	if query == "" {
		return true
	}
	key := subject + " " + session + " " + query
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known.values[key] {
		return false
	}
	r.known.put(key, true, maxRecentQuestions)
	return true
}

// onQuestion passes a question to the live subscribers once, from whichever client it comes. It stores nothing.
func (g *Gateway) onQuestion(_ context.Context, in actor.Msg[subjects.Query], _ actor.Out) error {
	body, err := json.Marshal(in.Body)
	if err != nil {
		return err
	}
	ev := client.Event{
		Subject: in.Subject, Time: in.Time.UTC(), Query: client.FirstToken(in.Query, in.Body.QueryID),
		Session: client.FirstToken(in.Session, in.Body.SessionID), Body: body,
	}
	if g.recent.isNew(ev.Subject, ev.Session, ev.Query) {
		g.live.publish(liveEvent{Event: ev})
	}
	return nil
}
