// Package actortest runs one actor without a bus: a recorder takes the place of everyone else, and the test compares
// what the actor said. Messages go through the same envelope and codecs as on the bus.
package actortest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// Said is one thing the actor said.
type Said struct {
	Subject string
	Body    string // as JSON, whatever the codec on the wire
	Query   string
	Session string
	Waited  bool // it waited until it was stored
}

// Recorder is the world around one actor. The zero value is ready; its clock stands still and its ids count up.
type Recorder struct {
	Time time.Time
	// Answer answers what the actor asks. Without it nobody is there.
	Answer func(subject string, body []byte) (any, error)
	// Refuse fails what the actor says.
	Refuse func(subject string) error

	mu     sync.Mutex
	said   []Said
	asked  []Said
	noted  []error
	stores map[string]*memStore
	ids    int
}

// Said returns what was said, in order.
func (r *Recorder) Said() []Said {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Said(nil), r.said...)
}

// Asked returns what was asked, in order.
func (r *Recorder) Asked() []Said {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Said(nil), r.asked...)
}

// Noted returns the errors the actor put into the log.
func (r *Recorder) Noted() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]error(nil), r.noted...)
}

// Message is what a test sends to an actor.
type Message struct {
	Subject  string // as the actor hears it
	Body     any    // encoded by the route's codec; []byte is sent as it is
	Type     string // content type, "" = the route's, or for a []byte none
	Query    string
	Session  string
	Deadline time.Time // zero = none
}

// Deliver gives the actor a message on the first route that hears it, and returns the reply as JSON.
func (r *Recorder) Deliver(t testing.TB, a actor.Actor, m Message) (string, error) {
	t.Helper()
	h := map[string]string{subjects.HeaderQuery: m.Query, subjects.HeaderSession: m.Session, subjects.HeaderType: m.Type}
	if !m.Deadline.IsZero() {
		h[subjects.HeaderDeadline] = strconv.FormatInt(m.Deadline.UnixMilli(), 10)
	}
	for _, route := range a.Routes() {
		if _, ok := subjects.Match(route.Spec().Listen(), m.Subject); !ok {
			continue
		}
		return actor.Deliver(t.Context(), route, m.Subject, h, m.Body, r.out(m.Query, m.Session))
	}
	return "", fmt.Errorf("no route of %s hears %s", a.Name(), m.Subject)
}

// Out is how something under test speaks to the recorder.
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

func (o *out) Note(err error) {
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

func (o *out) About(session, query string) actor.Out { return o.r.out(query, session) }

func (o *out) Send(_ context.Context, spec subjects.Spec, body []byte, wait bool) error {
	if o.r.Refuse != nil {
		if err := o.r.Refuse(spec.Name); err != nil {
			return err
		}
	}
	o.r.mu.Lock()
	defer o.r.mu.Unlock()
	o.r.said = append(o.r.said, Said{spec.Name, actor.AsJSON(spec, body), o.query, o.session, wait})
	return nil
}

func (o *out) Request(ctx context.Context, spec subjects.Spec, body []byte) ([]byte, string, error) {
	if _, ok := ctx.Deadline(); !ok {
		return nil, "", subjects.Faultf(subjects.CodeNoDeadline, "%s was asked without a deadline", spec.Name)
	}
	asJSON := actor.AsJSON(spec, body)
	o.r.mu.Lock()
	o.r.asked = append(o.r.asked, Said{spec.Name, asJSON, o.query, o.session, false})
	o.r.mu.Unlock()
	if o.r.Answer == nil {
		return nil, "", subjects.Faultf(subjects.CodeUnavailable, "nobody answers %s", spec.Name)
	}
	v, err := o.r.Answer(spec.Name, []byte(asJSON))
	var f *subjects.Fault
	switch {
	case errors.As(err, &f) && f.Code != subjects.CodeUnavailable && f.Code != subjects.CodeTimeout:
		return nil, "", actor.AsReplied(f) // the runtime makes the other two itself
	case err != nil:
		return nil, "", err
	}
	if err := ctx.Err(); err != nil {
		return nil, "", subjects.Faultf(subjects.CodeTimeout, "no answer from %s in time", spec.Name)
	}
	reply, err := json.Marshal(v)
	return reply, subjects.TypeJSON, err
}

func (o *out) Store(bucket string) actor.Store {
	o.r.mu.Lock()
	defer o.r.mu.Unlock()
	if o.r.stores == nil {
		o.r.stores = map[string]*memStore{}
	}
	if o.r.stores[bucket] == nil {
		o.r.stores[bucket] = &memStore{values: map[string]entry{}}
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
}

// checkKey holds keys to the rule of [actor.Store].
func checkKey(key string) error {
	for _, t := range strings.Split(key, ".") {
		if err := subjects.CheckToken(t); err != nil {
			return fmt.Errorf("key %q: %w", key, err)
		}
	}
	return nil
}

func (m *memStore) Get(_ context.Context, key string) ([]byte, uint64, error) {
	if err := checkKey(key); err != nil {
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

func (m *memStore) Put(_ context.Context, key string, value []byte, revision uint64) (uint64, error) {
	if err := checkKey(key); err != nil {
		return 0, err
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

// Code is the fault code of an error, "" when it is none.
func Code(err error) string {
	var f *subjects.Fault
	if errors.As(err, &f) && f != nil {
		return f.Code
	}
	return ""
}
