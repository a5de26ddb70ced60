package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"conclave/pkg/actor"
	"conclave/subjects"
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

	aside bool // it belongs to respondent B's answer: see [hidden]
}

// The two subjects of the JetStream API through which people read EVENTS. They stand in the table of edges.
var (
	eventsInfo = subjects.Spec{Name: "core.API.STREAM.INFO.EVENTS"}
	eventsGet  = subjects.Spec{Name: "core.API.STREAM.MSG.GET.EVENTS"}
)

// Bounds of the events that are kept in memory for everybody who follows, and how often EVENTS is looked at when
// nothing was heard: what is heard may be lost with the link.
const (
	ringEvents = 4096
	ringBytes  = 32 << 20
	lookAgain  = time.Second
	readTime   = 5 * time.Second
)

// errNone means that EVENTS has no such event yet.
var errNone = errors.New("no event there")

// events follows EVENTS. One reader reads each new event once, by its sequence, and keeps the latest in memory; all who
// wait for events read from there, each at its own place, and from the stream itself when they are further behind. So
// nobody has a queue that could overflow, and nothing is missed or told twice.
type events struct {
	out  actor.Out
	wake chan struct{}
	most int // events in ring

	mu      sync.Mutex
	ring    []Event
	size    int
	start   uint64 // everything after start and up to end is in ring
	end     uint64
	changed chan struct{} // closed when end moves
	err     error         // of the last read
}

func newEvents() *events {
	return &events{most: ringEvents, wake: make(chan struct{}, 1), changed: make(chan struct{})}
}

// nudge says that there may be something new.
func (e *events) nudge() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// open finds the end of the stream.
func (e *events) open(ctx context.Context, out actor.Out) error {
	e.out = out
	_, last, err := e.bounds(ctx)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.start, e.end = last, last
	return nil
}

// follow reads what is new until ctx ends, and tells of each event before anybody can see it.
func (e *events) follow(ctx context.Context, heard func(Event)) {
	for ctx.Err() == nil {
		_, end := e.span()
		ev, err := e.read(ctx, end+1, "")
		if err == nil {
			heard(ev)
			e.add(ev)
			continue
		}
		e.trouble(err)
		select {
		case <-ctx.Done():
		case <-e.wake:
		case <-time.After(lookAgain):
		}
	}
}

// trouble notes why there is nothing to read, for /health.
func (e *events) trouble(err error) {
	if errors.Is(err, errNone) {
		err = nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = err
}

// failing is why EVENTS could not be read last time.
func (e *events) failing() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

func (e *events) span() (start, end uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.start, e.end
}

func (e *events) add(ev Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = nil
	e.ring, e.end = append(e.ring, ev), ev.Seq
	e.size += len(ev.Payload)
	for len(e.ring) > e.most || e.size > ringBytes && len(e.ring) > 1 {
		e.size -= len(e.ring[0].Payload)
		e.start, e.ring[0] = e.ring[0].Seq, Event{}
		e.ring = e.ring[1:]
	}
	close(e.changed)
	e.changed = make(chan struct{})
}

// cursor is one reader's place.
type cursor struct {
	events  *events
	at      uint64 // the last event it has seen
	pattern string // with a pattern, EVENTS itself skips what does not match; what is in memory comes all the same
	missing uint64 // events before the last one that were no longer kept when it came to them
}

// now is a cursor that sees what comes after this.
func (e *events) now() *cursor {
	_, end := e.span()
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
		ev, err = e.read(ctx, c.at+1, c.pattern)
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

// ask asks the API of the stream.
func (e *events) ask(ctx context.Context, spec subjects.Spec, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	data, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("reading events: %w", err)
	}
	reply, _, err := e.out.Request(ctx, spec, data)
	if err != nil {
		return fmt.Errorf("reading events: %w", err)
	}
	if err := json.Unmarshal(reply, into); err != nil {
		return fmt.Errorf("reading events: %w", err)
	}
	return nil
}

// apiError is how the API says no.
type apiError struct {
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

// noMessage is the API's code for a sequence that is not there.
const noMessage = 10037

// bounds are the first and the last event there is.
func (e *events) bounds(ctx context.Context) (first, last uint64, err error) {
	var got struct {
		State struct {
			First uint64 `json:"first_seq"`
			Last  uint64 `json:"last_seq"`
		} `json:"state"`
		Error *apiError `json:"error"`
	}
	if err := e.ask(ctx, eventsInfo, struct{}{}, &got); err != nil {
		return 0, 0, err
	}
	if got.Error != nil {
		return 0, 0, fmt.Errorf("reading events: %s", got.Error.Description)
	}
	return got.State.First, got.State.Last, nil
}

// read reads the first event at or after a sequence whose plain subject matches, "" = any.
func (e *events) read(ctx context.Context, seq uint64, pattern string) (Event, error) {
	if pattern == "" {
		pattern = ">"
	}
	return e.readStored(ctx, seq, "from.*."+pattern)
}

func (e *events) readStored(ctx context.Context, seq uint64, stored string) (Event, error) {
	var got struct {
		Message *struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
		Error *apiError `json:"error"`
	}
	body := struct {
		Seq  uint64 `json:"seq"`
		Next string `json:"next_by_subj"`
	}{seq, stored}
	if err := e.ask(ctx, eventsGet, body, &got); err != nil {
		return Event{}, err
	}
	switch {
	case got.Error != nil && got.Error.ErrCode == noMessage:
		return Event{}, errNone
	case got.Error != nil:
		return Event{}, fmt.Errorf("reading event %d: %s", seq, got.Error.Description)
	case got.Message == nil || got.Message.Seq < seq:
		return Event{}, fmt.Errorf("reading event %d: the answer holds none", seq)
	}
	m := got.Message
	ev := Event{Seq: m.Seq, Subject: m.Subject, Time: m.Time}
	if rest, ok := strings.CutPrefix(m.Subject, "from."); ok {
		ev.From, ev.Subject, _ = strings.Cut(rest, ".")
	}
	ev.Query, ev.Session = header(m.Header, subjects.HeaderQuery), header(m.Header, subjects.HeaderSession)
	ev.Payload = payload(m.Data, header(m.Header, subjects.HeaderType))
	ev.label()
	ev.aside = hidden(ev)
	return ev, nil
}

// header is the first value of a header in the block that the stream keeps, under this very name.
func header(block []byte, name string) string {
	for line := range strings.SplitSeq(string(block), "\r\n") {
		if k, v, ok := strings.Cut(line, ":"); ok && k == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// payload shows a body as JSON: as it is, or what is not JSON as a text.
func payload(data []byte, contentType string) json.RawMessage {
	if base, _, _ := strings.Cut(contentType, ";"); strings.TrimSpace(base) == subjects.TypeMsgpack {
		data = []byte(actor.FormatJSON(subjects.Spec{Codec: subjects.Msgpack}, data))
	}
	if json.Valid(data) && utf8.Valid(data) {
		return data
	}
	text, err := json.Marshal(strings.ToValidUTF8(string(data), "\uFFFD"))
	if err != nil {
		return json.RawMessage("null")
	}
	return text
}

// label fills in the ids that an event's headers did not have, so that it is found: from the payload, where a person
// with the plain nats tool writes them, or from the subject. They say what an event is about, never who said it.
func (e *Event) label() {
	if subjects.CheckToken(e.Query) != nil {
		e.Query = ""
	}
	if subjects.CheckToken(e.Session) != nil {
		e.Session = ""
	}
	if e.Query != "" && e.Session != "" {
		return
	}
	var ids struct {
		Query   string `json:"query_id"`
		Session string `json:"session_id"`
	}
	if json.Unmarshal(e.Payload, &ids) != nil {
		ids.Query, ids.Session = "", ""
	}
	if t, ok := subjects.Match(subjects.QueryCancel.Name, e.Subject); ok && len(t) == 1 {
		ids.Query = t[0]
	}
	if e.Query == "" && subjects.CheckToken(ids.Query) == nil {
		e.Query = ids.Query
	}
	if e.Session == "" && subjects.CheckToken(ids.Session) == nil {
		e.Session = ids.Session
	}
}
