package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"conclave/pkg/client"
)

// Event is one event as the API shows it.
type Event struct {
	Seq     uint64          `json:"seq,omitempty"`  // place in EVENTS; 0 = it is not kept there
	Subject string          `json:"subject"`        // the plain one
	From    string          `json:"from,omitempty"` // the account that said it, as the server wrote it; "" = not known
	Time    time.Time       `json:"time"`
	Query   string          `json:"query,omitempty"`
	Session string          `json:"session,omitempty"`
	Payload json.RawMessage `json:"payload"`

	ofRespondentB bool // it belongs to respondent B's answer: see [isOfRespondentB]
}

// Bounds of the events that are kept in memory for everybody who follows, and how often EVENTS is looked at when
// nothing was heard: what is heard may be lost with the link.
const (
	ringEvents   = 4096
	ringBytes    = 32 << 20
	pollInterval = time.Second
)

// errNone means that EVENTS has no such event yet.
var errNone = errors.New("no event there")

// eventFeed follows EVENTS. One reader reads each new event once, by its sequence, and keeps the latest in memory; all who
// wait for events read from there, each at its own place, and from the stream itself when they are further behind. So
// nobody has a queue that could overflow, and nothing is missed or told twice.
type eventFeed struct {
	client    *client.Client
	wake      chan struct{}
	maxEvents int // events in ring

	mu      sync.Mutex
	ring    []Event
	size    int
	start   uint64 // everything after start and up to end is in ring
	end     uint64
	changed chan struct{} // closed when end moves
	err     error         // of the last read
}

func newEventFeed() *eventFeed {
	return &eventFeed{maxEvents: ringEvents, wake: make(chan struct{}, 1), changed: make(chan struct{})}
}

// wakeUp says that there may be something new.
func (e *eventFeed) wakeUp() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// open finds the end of the stream.
func (e *eventFeed) open(ctx context.Context, c *client.Client) error {
	e.client = c
	log, err := c.EventStatus(ctx)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.start, e.end = log.Last, log.Last
	return nil
}

// follow reads what is new until ctx ends, and tells of each event before anybody can see it.
func (e *eventFeed) follow(ctx context.Context, heard func(Event)) {
	for ctx.Err() == nil {
		_, end := e.bounds()
		ev, err := e.readEvent(ctx, end+1, storedPattern(""))
		if err == nil {
			heard(ev)
			e.add(ev)
			continue
		}
		e.setError(err)
		select {
		case <-ctx.Done():
		case <-e.wake:
		case <-time.After(pollInterval):
		}
	}
}

// setError notes why there is nothing to read, for /health.
func (e *eventFeed) setError(err error) {
	if errors.Is(err, errNone) {
		err = nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = err
}

// lastError is why EVENTS could not be read last time.
func (e *eventFeed) lastError() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

func (e *eventFeed) bounds() (start, end uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.start, e.end
}

func (e *eventFeed) add(ev Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = nil
	e.ring, e.end = append(e.ring, ev), ev.Seq
	e.size += len(ev.Payload)
	for len(e.ring) > e.maxEvents || e.size > ringBytes && len(e.ring) > 1 {
		e.size -= len(e.ring[0].Payload)
		e.start, e.ring[0] = e.ring[0].Seq, Event{}
		e.ring = e.ring[1:]
	}
	close(e.changed)
	e.changed = make(chan struct{})
}

// cursor is one reader's place.
type cursor struct {
	events  *eventFeed
	at      uint64 // the last event it has seen
	pattern string // with a pattern, EVENTS itself skips what does not match; what is in memory comes all the same
	missing uint64 // events before the last one that were no longer kept when it came to them
}

// cursorAtEnd is a cursor that sees what comes after this.
func (e *eventFeed) cursorAtEnd() *cursor {
	_, end := e.bounds()
	return &cursor{events: e, at: end}
}

// next moves on. Without an event it returns a channel that is closed when there may be one.
func (c *cursor) next(ctx context.Context) (ev Event, ok bool, more <-chan struct{}, err error) {
	for {
		e := c.events
		e.mu.Lock()
		start, end, changed := e.start, e.end, e.changed
		if c.at >= start {
			i, _ := slices.BinarySearchFunc(e.ring, c.at+1, func(ev Event, seq uint64) int {
				switch {
				case ev.Seq < seq:
					return -1
				case ev.Seq > seq:
					return 1
				}
				return 0
			})
			if ok = i < len(e.ring); ok {
				ev = e.ring[i]
				c.moveTo(ev.Seq, true)
			}
			e.mu.Unlock()
			return ev, ok, changed, nil
		}
		e.mu.Unlock()
		ev, err = e.readEvent(ctx, c.at+1, storedPattern(c.pattern))
		switch {
		case err == nil:
			c.moveTo(ev.Seq, c.pattern == "")
			return ev, true, changed, nil
		case !errors.Is(err, errNone):
			return ev, false, changed, err
		}
		c.at = max(c.at, end) // nothing up to where the stream ended before we asked
	}
}

// moveTo takes note of a gap, where every event should have come.
func (c *cursor) moveTo(seq uint64, every bool) {
	c.missing = 0
	if every {
		c.missing = seq - c.at - 1
	}
	c.at = seq
}

// wait is next for one who has nothing else to do.
func (c *cursor) wait(ctx context.Context) (Event, error) {
	for {
		ev, ok, more, err := c.next(ctx)
		if ok || err != nil {
			return ev, err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ev, context.Cause(ctx)
		}
	}
}

// readEvent reads the first event at or after a sequence whose stored subject matches. [errNone] means that there is none.
func (e *eventFeed) readEvent(ctx context.Context, seq uint64, stored string) (Event, error) {
	got, ok, err := e.client.EventFrom(ctx, seq, stored)
	switch {
	case err != nil:
		return Event{}, err
	case !ok:
		return Event{}, errNone
	}
	ev := Event{Seq: got.Seq, Subject: got.Subject, From: got.From, Time: got.Time, Query: got.Query, Session: got.Session, Payload: got.Body}
	ev.ofRespondentB = isOfRespondentB(ev)
	return ev, nil
}

// storedPattern returns the stored subjects of a live subject from any account; "" is every event.
func storedPattern(subject string) string { return "from.*." + cmp.Or(subject, ">") }

// toClient converts an event for the functions of package client that read events.
func (e Event) toClient() client.Event {
	return client.Event{Stream: client.EventLog, Seq: e.Seq, Subject: e.Subject, From: e.From, Time: e.Time, Query: e.Query, Session: e.Session, Body: e.Payload}
}
