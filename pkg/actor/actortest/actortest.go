// Package actortest runs one actor without a bus: a recorder takes the place of all other actors, and the test compares
// the published messages. Messages go through the same envelope and codecs as on the bus.
package actortest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// Recorded is one message or request that the actor published.
type Recorded struct {
	Subject string
	Body    string // as JSON, whatever the codec on the wire
	Query   string
	Session string
	Waited  bool   // the actor waited until it was stored
	ID      string // of [actor.EmitOnce]
}

// Pieces is a streamed reply of [Recorder.Reply]: each element is one piece. An error among them ends the reply.
type Pieces []any

// Recorder is the environment of one actor. The zero value is ready; its clock stands still and its ids count up.
type Recorder struct {
	Time time.Time
	// Reply replies to the actor's requests. Without it there is no responder.
	Reply func(subject string, body []byte) (any, error)
	// FailPublish returns the error of publishing on a subject, nil = it succeeds.
	FailPublish func(subject string) error
	// FailStore is the error of every bucket write, nil = writes succeed.
	FailStore error
	// Steps observes each [actor.Step] of [Recorder.Deliver]. A test that calls a handler itself uses
	// [actor.WithSteps].
	Steps func(name string)

	mu        sync.Mutex
	published []Recorded
	asked     []Recorded
	noted     []error
	stores    map[string]*memStore
	once      map[string]bool
	ids       int
}

// Published returns the published messages, in order.
func (r *Recorder) Published() []Recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Recorded(nil), r.published...)
}

// Requested returns the requests, in order.
func (r *Recorder) Requested() []Recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Recorded(nil), r.asked...)
}

// Logged returns the errors that the actor logged.
func (r *Recorder) Logged() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]error(nil), r.noted...)
}

// Message is what a test sends to an actor.
type Message struct {
	Subject  string // as the actor receives it
	Body     any    // encoded by the route's codec; []byte is sent as it is
	Type     string // content type, "" = the route's, or for a []byte none
	Query    string
	Session  string
	Deadline time.Time // zero = none
}

// Deliver gives the actor a message on the first route that matches its subject, and returns the reply as JSON and the
// error as [actor.Deliver] does. It is an error when no route matches.
func (r *Recorder) Deliver(t testing.TB, a actor.Actor, m Message) (string, error) {
	t.Helper()
	h := map[string]string{
		subjects.HeaderQuery: m.Query, subjects.HeaderSession: m.Session,
		subjects.HeaderType: m.Type,
	}
	if !m.Deadline.IsZero() {
		h[subjects.HeaderDeadline] = strconv.FormatInt(m.Deadline.UnixMilli(), 10)
	}
	for _, route := range a.Routes() {
		if _, ok := subjects.Match(route.Spec().Subscription(), m.Subject); !ok {
			continue
		}
		return actor.Deliver(actor.WithSteps(t.Context(), r.Steps), route, m.Subject, h, m.Body,
			r.out(m.Query, m.Session))
	}
	return "", fmt.Errorf("no route of %s matches %s", a.Name(), m.Subject)
}

// Out returns an Out that records, for a test that calls a handler itself.
func (r *Recorder) Out() actor.Out { return r.out("", "") }

func (r *Recorder) out(query, session string) *out { return &out{r, query, session} }

type out struct {
	r              *Recorder
	query, session string
}

func (o *out) Now() time.Time {
	if o.r.Time.IsZero() {
		return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	}
	return o.r.Time
}

func (o *out) LogError(err error) {
	o.r.mu.Lock()
	defer o.r.mu.Unlock()
	o.r.noted = append(o.r.noted, err)
}

func (o *out) NewID() string {
	o.r.mu.Lock()
	defer o.r.mu.Unlock()
	o.r.ids++
	return "id-" + strconv.Itoa(o.r.ids)
}

func (o *out) WithIDs(session, query string) actor.Out { return o.r.out(query, session) }

// Publish implements [actor.Out]: it records the message unless FailPublish returns an error. Nothing is checked.
func (o *out) Publish(_ context.Context, spec subjects.Spec, body []byte, wait bool) error {
	if o.r.FailPublish != nil {
		if err := o.r.FailPublish(spec.Name); err != nil {
			return err
		}
	}
	o.r.mu.Lock()
	defer o.r.mu.Unlock()
	o.r.published = append(o.r.published, Recorded{
		Subject: spec.Name, Body: actor.FormatJSON(spec, body),
		Query: o.query, Session: o.session, Waited: wait,
	})
	return nil
}

// PublishOnce implements [actor.Out]: it records the first message of a stream under an id, and drops later ones
// without an error. FailPublish is asked first.
func (o *out) PublishOnce(_ context.Context, spec subjects.Spec, body []byte, id string) error {
	if o.r.FailPublish != nil {
		if err := o.r.FailPublish(spec.Name); err != nil {
			return err
		}
	}
	o.r.mu.Lock()
	defer o.r.mu.Unlock()
	if o.r.once == nil {
		o.r.once = map[string]bool{}
	}
	if key := spec.Stream + " " + id; !o.r.once[key] {
		o.r.once[key] = true
		o.r.published = append(o.r.published, Recorded{
			spec.Name, actor.FormatJSON(spec, body), o.query, o.session,
			true, id,
		})
	}
	return nil
}

func (o *out) Request(ctx context.Context, spec subjects.Spec, body []byte) ([]byte, string, error) {
	v, err := o.request(ctx, spec, body)
	if err != nil {
		return nil, "", err
	}
	reply, err := json.Marshal(v)
	return reply, subjects.TypeJSON, err
}

// Stream implements [actor.Out]: it yields the [Pieces] that Reply returns, or any other value as one piece, encoded as
// JSON. An error among the pieces, and the end of ctx, is the last element.
func (o *out) Stream(ctx context.Context, spec subjects.Spec, body []byte) iter.Seq2[actor.Piece, error] {
	return func(yield func(actor.Piece, error) bool) {
		v, err := o.request(ctx, spec, body)
		if err != nil {
			yield(actor.Piece{}, err)
			return
		}
		pieces, ok := v.(Pieces)
		if !ok {
			pieces = Pieces{v}
		}
		for _, p := range pieces {
			err, failed := p.(error)
			var data []byte
			if !failed {
				data, err = json.Marshal(p)
			}
			if ctx.Err() != nil {
				err = fmt.Errorf("requesting %s: %w", spec.Name, context.Cause(ctx))
			}
			if !yield(actor.Piece{Data: data, Type: subjects.TypeJSON}, err) || err != nil {
				return
			}
		}
	}
}

// request records a request and returns the value of Reply. As on the bus it rejects a ctx without a deadline, reports
// a missing Reply as no responder, marks faults of the service with [actor.ReplyFault], and is a timeout when ctx ended
// meanwhile.
func (o *out) request(ctx context.Context, spec subjects.Spec, body []byte) (any, error) {
	if _, ok := ctx.Deadline(); !ok {
		return nil, subjects.Faultf(subjects.CodeNoDeadline, "request to %s has no deadline", spec.Name)
	}
	asJSON := actor.FormatJSON(spec, body)
	o.r.mu.Lock()
	o.r.asked = append(o.r.asked, Recorded{Subject: spec.Name, Body: asJSON, Query: o.query, Session: o.session})
	o.r.mu.Unlock()
	if o.r.Reply == nil {
		return nil, actor.NoResponder(cmp.Or(spec.Server(), spec.Name))
	}
	v, err := o.r.Reply(spec.Name, []byte(asJSON))
	var f *subjects.Fault
	switch {
	case errors.As(err, &f) && f.Code != subjects.CodeUnavailable && f.Code != subjects.CodeTimeout:
		return nil, actor.ReplyFault(f) // the runtime makes the other two itself
	case err != nil:
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, subjects.Faultf(subjects.CodeTimeout, "timeout: no reply from %s before the deadline", spec.Name)
	}
	return v, nil
}

// Store implements [actor.Out] with a bucket in memory, created at its first use and kept for the life of the recorder.
func (o *out) Store(bucket string) actor.Store {
	o.r.mu.Lock()
	defer o.r.mu.Unlock()
	if o.r.stores == nil {
		o.r.stores = map[string]*memStore{}
	}
	if o.r.stores[bucket] == nil {
		o.r.stores[bucket] = &memStore{values: map[string]entry{}, broken: &o.r.FailStore}
	}
	return o.r.stores[bucket]
}

type entry struct {
	value    []byte
	revision uint64
}

type memStore struct {
	mu     sync.Mutex
	values map[string]entry
	last   uint64
	broken *error
}

// validateKey rejects keys that [actor.Store] does not allow.
func validateKey(key string) error {
	for _, t := range strings.Split(key, ".") {
		if err := subjects.CheckToken(t); err != nil {
			return fmt.Errorf("key %q: %w", key, err)
		}
	}
	return nil
}

// Get implements [actor.Store]. It rejects an invalid key; FailStore does not affect reads.
func (m *memStore) Get(_ context.Context, key string) ([]byte, uint64, error) {
	if err := validateKey(key); err != nil {
		return nil, 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.values[key]
	if !ok {
		return nil, 0, fmt.Errorf("%w: %s", actor.ErrNotFound, key)
	}
	return e.value, e.revision, nil
}

// Put implements [actor.Store]. It rejects an invalid key, and fails with FailStore if that is set.
func (m *memStore) Put(_ context.Context, key string, value []byte, revision uint64) (uint64, error) {
	if err := validateKey(key); err != nil {
		return 0, err
	}
	if *m.broken != nil {
		return 0, *m.broken
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.values[key].revision != revision {
		return 0, fmt.Errorf("%w: %s", actor.ErrChanged, key)
	}
	m.last++
	m.values[key] = entry{value, m.last}
	return m.last, nil
}

// Keys implements [actor.Store]; "" lists all keys. FailStore does not affect it.
func (m *memStore) Keys(_ context.Context, prefix string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var keys []string
	for k := range m.values {
		if prefix == "" || strings.HasPrefix(k, prefix+".") {
			keys = append(keys, k)
		}
	}
	return keys, nil
}

// Code is the fault code of an error, "" when it is none.
func Code(err error) string { return subjects.CodeOf(err) }
