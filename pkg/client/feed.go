package client

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// Bounds of the events in memory, how often the event log is read without a live event, which can be lost with the
// connection, and the pause between two readings to its end: each of them is a request more than there are events, and
// they would take a third of the processor time of a tool call.
const (
	ringEvents   = 4096
	ringBytes    = 32 << 20
	pollInterval = time.Second
	readPause    = 5 * time.Millisecond
)

// watchLinger is how long the event log is read after its last watcher: a grade is on time within the grade wait of the
// gateway, at most a minute, after an answer that a client waited for.
const watchLinger = time.Minute + 5*time.Second

// Feed follows the event log. One reader reads each new event once, by sequence, and keeps the latest in memory. Each
// waiting request has a [Cursor] into that memory, and reads the log itself when it is further behind. So there is no
// queue per request that could overflow, and no event is lost or repeated. Without a cursor the events are skipped:
// reading one takes about as much processor time as a tool call.
type Feed struct {
	MaxEvents int // that are kept in memory

	client *Client // nil before [Feed.Open]
	wake   chan struct{}

	mu      sync.Mutex
	ring    []Event
	size    int
	start   uint64 // everything after start and up to end is in ring
	end     uint64
	changed chan struct{} // closed when end moves
	err     error         // of the last read

	watchers int       // open cursors
	lastSeen time.Time // when the last cursor was closed
}

// NewFeed returns a feed that is not open.
func NewFeed() *Feed {
	return &Feed{MaxEvents: ringEvents, wake: make(chan struct{}, 1), changed: make(chan struct{})}
}

// WakeUp makes the reader look for new events, if anyone watches.
func (e *Feed) WakeUp() {
	if !e.isWatched() {
		return
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Open starts the feed at the end of the event log: cursors see only events stored after it. It must be called before
// [Feed.Follow].
func (e *Feed) Open(ctx context.Context, c *Client) error {
	e.client = c
	return e.skipToEnd(ctx)
}

// openFeed follows the event log from its present end for one caller, who must call stop.
func (c *Client) openFeed(ctx context.Context) (at *Cursor, stop func(), err error) {
	f := NewFeed()
	if err := f.Open(ctx, c); err != nil {
		return nil, nil, err
	}
	f.watchers, at = 1, &Cursor{Feed: f, At: f.end}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	go f.Follow(life, func(Event) {})
	return at, stop, nil
}

// isWatched reports whether a cursor is open, or was a moment ago.
func (e *Feed) isWatched() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.watchers > 0 || time.Since(e.lastSeen) < watchLinger
}

// skipToEnd moves the feed to the end of the event log without reading the events.
func (e *Feed) skipToEnd(ctx context.Context) error {
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

// Follow reads new events until ctx ends, and calls onEvent for each before it is visible to a cursor. While the log
// cannot be read it retries every pollInterval, or when woken, and keeps the error for [Feed.LastError]. An event after
// a pause is read at once, the further ones of a burst together, after readPause. While nobody watches it only moves to
// the end.
//
// Events are read one by one, in about 70 us each. A batch of direct gets takes 400 us for up to ten events, and has
// the author in a header that the publisher can write too; parallel reads by sequence take as long as one after the
// other.
func (e *Feed) Follow(ctx context.Context, onEvent func(Event)) {
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
		_, end := e.Bounds()
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
func (e *Feed) setError(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = err
}

// LastError returns the error of the last read.
func (e *Feed) LastError() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Bounds returns the sequences after which, and up to which, events are in memory.
func (e *Feed) Bounds() (start, end uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.start, e.end
}

// add makes ev visible to cursors and wakes those that wait. It drops the oldest events beyond MaxEvents or ringBytes,
// but never ev itself. Events must be added in the order of their sequence; one that was skipped meanwhile is dropped.
func (e *Feed) add(ev Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = nil
	if ev.Seq <= e.end {
		return
	}
	e.ring, e.end = append(e.ring, ev), ev.Seq
	e.size += len(ev.Body)
	for len(e.ring) > e.MaxEvents || e.size > ringBytes && len(e.ring) > 1 {
		e.size -= len(e.ring[0].Body)
		e.start, e.ring[0] = e.ring[0].Seq, Event{}
		e.ring = e.ring[1:]
	}
	close(e.changed)
	e.changed = make(chan struct{})
}

// Cursor is a position in the events.
type Cursor struct {
	Feed    *Feed
	At      uint64 // the last event it returned
	Pattern string // filter for reads of the log; events in memory are returned unfiltered
	Missing uint64 // events before the last one that the log no longer had
}

// OpenCursor returns a cursor for the events from now on. When the end of the log cannot be read, it begins with the
// events since the last successful read. The caller must close the cursor once.
func (e *Feed) OpenCursor(ctx context.Context) *Cursor {
	if e.client != nil && !e.isWatched() {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		e.setError(e.skipToEnd(ctx))
	}
	e.mu.Lock()
	e.watchers++
	c := &Cursor{Feed: e, At: e.end}
	e.mu.Unlock()
	e.WakeUp()
	return c
}

// Close ends the cursor.
func (c *Cursor) Close() {
	c.Feed.mu.Lock()
	defer c.Feed.mu.Unlock()
	c.Feed.watchers--
	c.Feed.lastSeen = time.Now()
}

// Next returns the next event without waiting, and moves the cursor behind it. ok is false when there is none yet; more
// is then closed when there may be one. A cursor behind the events in memory reads the event log, only events that
// match its pattern; err is the error of that read, which may be retried when more is closed, and the cursor stays.
func (c *Cursor) Next(ctx context.Context) (ev Event, ok bool, more <-chan struct{}, err error) {
	for {
		e := c.Feed
		e.mu.Lock()
		start, end, changed := e.start, e.end, e.changed
		if c.At >= start {
			i, _ := slices.BinarySearchFunc(e.ring, c.At+1, func(ev Event, seq uint64) int {
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
		ev, ok, err = e.client.EventFrom(ctx, c.At+1, storedPattern(c.Pattern))
		if ok {
			c.moveTo(ev.Seq, c.Pattern == "")
		}
		if err != nil {
			retry := make(chan struct{})
			time.AfterFunc(pollInterval, func() { close(retry) })
			return ev, false, retry, err
		}
		if ok {
			return ev, true, changed, nil
		}
		c.At = max(c.At, end) // no match up to the end before the read
	}
}

// moveTo sets the position. With every, no event was filtered, so a gap means that events are missing.
func (c *Cursor) moveTo(seq uint64, every bool) {
	c.Missing = 0
	if every {
		c.Missing = seq - c.At - 1
	}
	c.At = seq
}

// Wait waits for the next event and returns it. When ctx ends first, the error is the cause of ctx; a failed read of
// the event log is returned at once and not retried.
func (c *Cursor) Wait(ctx context.Context) (Event, error) {
	for {
		ev, ok, more, err := c.Next(ctx)
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
