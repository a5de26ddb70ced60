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

// Event is one event of the API.
type Event struct {
	Seq     uint64          `json:"seq,omitempty"`  // in the event log; 0 = not stored there
	Subject string          `json:"subject"`        // without the author
	From    string          `json:"from,omitempty"` // the author's account, as the server wrote it; "" = unknown
	Time    time.Time       `json:"time"`
	Query   string          `json:"query,omitempty"`
	Session string          `json:"session,omitempty"`
	Payload json.RawMessage `json:"payload"`
}

// newEvent returns an event as the API has it.
func newEvent(e client.Event) Event {
	return Event{
		Seq: e.Seq, Subject: e.Subject, From: e.From, Time: e.Time, Query: e.Query, Session: e.Session,
		Payload: e.Body,
	}
}

// LogEntry is an event of an answer, with the seconds since the first one.
type LogEntry struct {
	Event
	Seconds float64 `json:"t"`
}

// Bounds of the events in memory, how often the event log is read without a live event, which can be lost with the
// connection, and the pause between two readings to its end: each of them is a request more than there are events, and
// they would take a third of the processor time of a tool call.
const (
	ringEvents   = 4096
	ringBytes    = 32 << 20
	pollInterval = time.Second
	readPause    = 5 * time.Millisecond
)

// watchLinger is how long the event log is read after its last watcher: a grade is on time within [Config].GradeWait,
// at most a minute, after an answer that a client waited for.
const watchLinger = time.Minute + 5*time.Second

// errNone means that the event log has no such event yet.
var errNone = errors.New("no event there")

// eventFeed follows the event log. One reader reads each new event once, by sequence, and keeps the latest in memory.
// Each waiting request has a cursor into that memory, and reads the log itself when it is further behind. So there is
// no queue per request that could overflow, and no event is lost or repeated. Without a cursor the events are skipped:
// reading one takes about as much processor time as a tool call.
type eventFeed struct {
	client    *client.Client // nil before open
	wake      chan struct{}
	maxEvents int // events in ring

	mu      sync.Mutex
	ring    []client.Event
	size    int
	start   uint64 // everything after start and up to end is in ring
	end     uint64
	changed chan struct{} // closed when end moves
	err     error         // of the last read

	watchers int       // open cursors
	lastSeen time.Time // when the last cursor was closed
}

func newEventFeed() *eventFeed {
	return &eventFeed{maxEvents: ringEvents, wake: make(chan struct{}, 1), changed: make(chan struct{})}
}

// wakeUp makes the reader look for new events, if anyone watches.
func (e *eventFeed) wakeUp() {
	if !e.isWatched() {
		return
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// open starts the feed at the end of the event log: cursors see only events stored after it. It must be called before
// follow.
func (e *eventFeed) open(ctx context.Context, c *client.Client) error {
	e.client = c
	return e.skipToEnd(ctx)
}

// isWatched reports whether a cursor is open, or was a moment ago.
func (e *eventFeed) isWatched() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.watchers > 0 || time.Since(e.lastSeen) < watchLinger
}

// skipToEnd moves the feed to the end of the event log without reading the events.
func (e *eventFeed) skipToEnd(ctx context.Context) error {
	log, err := e.client.EventStatus(ctx)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if log.Last > e.end {
		e.start, e.end, e.ring, e.size = log.Last, log.Last, nil, 0
	}
	return nil
}

// follow reads new events until ctx ends, and calls onEvent for each before it is visible to a cursor. While the log
// cannot be read it retries every pollInterval, or when woken, and keeps the error for [eventFeed.lastError]. An event
// after a pause is read at once, the further ones of a burst together, after readPause. While nobody watches it only
// moves to the end.
func (e *eventFeed) follow(ctx context.Context, onEvent func(client.Event)) {
	for ctx.Err() == nil {
		if !e.isWatched() {
			e.setError(e.skipToEnd(ctx))
			select {
			case <-ctx.Done():
			case <-e.wake:
			case <-time.After(pollInterval):
			}
			continue
		}
		_, end := e.bounds()
		ev, ok, err := e.client.EventFrom(ctx, end+1, storedPattern(""))
		if ok {
			onEvent(ev)
			e.add(ev)
			continue
		}
		e.setError(err)
		pause := time.After(readPause)
		select {
		case <-ctx.Done():
		case <-e.wake:
			<-pause
		case <-time.After(pollInterval):
		}
	}
}

// setError records the error of the last read, for /health.
func (e *eventFeed) setError(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = err
}

// lastError returns the error of the last read.
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

// add makes ev visible to cursors and wakes those that wait. It drops the oldest events beyond maxEvents or ringBytes,
// but never ev itself. Events must be added in the order of their sequence; one that was skipped meanwhile is dropped.
func (e *eventFeed) add(ev client.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = nil
	if ev.Seq <= e.end {
		return
	}
	e.ring, e.end = append(e.ring, ev), ev.Seq
	e.size += len(ev.Body)
	for len(e.ring) > e.maxEvents || e.size > ringBytes && len(e.ring) > 1 {
		e.size -= len(e.ring[0].Body)
		e.start, e.ring[0] = e.ring[0].Seq, client.Event{}
		e.ring = e.ring[1:]
	}
	close(e.changed)
	e.changed = make(chan struct{})
}

// cursor is a position in the events.
type cursor struct {
	events  *eventFeed
	at      uint64 // the last event it returned
	pattern string // filter for reads of the log; events in memory are returned unfiltered
	missing uint64 // events before the last one that the log no longer had
}

// openCursor returns a cursor for the events from now on. When the end of the log cannot be read, it begins with the
// events since the last successful read. The caller must close the cursor once.
func (e *eventFeed) openCursor(ctx context.Context) *cursor {
	if e.client != nil && !e.isWatched() {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		e.setError(e.skipToEnd(ctx))
	}
	e.mu.Lock()
	e.watchers++
	c := &cursor{events: e, at: e.end}
	e.mu.Unlock()
	e.wakeUp()
	return c
}

// close ends the cursor.
func (c *cursor) close() {
	c.events.mu.Lock()
	defer c.events.mu.Unlock()
	c.events.watchers--
	c.events.lastSeen = time.Now()
}

// next returns the next event without waiting, and moves the cursor behind it. ok is false when there is none yet; more
// is then closed when there may be one. A cursor behind the events in memory reads the event log, only events that
// match its pattern; err is the error of that read, and the cursor stays.
func (c *cursor) next(ctx context.Context) (ev client.Event, ok bool, more <-chan struct{}, err error) {
	for {
		e := c.events
		e.mu.Lock()
		start, end, changed := e.start, e.end, e.changed
		if c.at >= start {
			i, _ := slices.BinarySearchFunc(e.ring, c.at+1, func(ev client.Event, seq uint64) int {
				return cmp.Compare(ev.Seq, seq)
			})
			if ok = i < len(e.ring); ok {
				ev = e.ring[i]
				c.moveTo(ev.Seq, true)
			}
			e.mu.Unlock()
			return ev, ok, changed, nil
		}
		e.mu.Unlock()
		ev, ok, err = e.client.EventFrom(ctx, c.at+1, storedPattern(c.pattern))
		if ok {
			c.moveTo(ev.Seq, c.pattern == "")
		}
		if ok || err != nil {
			return ev, ok, changed, err
		}
		c.at = max(c.at, end) // no match up to the end before the read
	}
}

// moveTo sets the position. With every, no event was filtered, so a gap means that events are missing.
func (c *cursor) moveTo(seq uint64, every bool) {
	c.missing = 0
	if every {
		c.missing = seq - c.at - 1
	}
	c.at = seq
}

// wait waits for the next event and returns it. When ctx ends first, the error is the cause of ctx; a failed read of
// the event log is returned at once and not retried.
func (c *cursor) wait(ctx context.Context) (client.Event, error) {
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

// storedPattern returns the stored subjects of a live subject from any account; "" is every event.
func storedPattern(subject string) string { return "from.*." + cmp.Or(subject, ">") }
