package actor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"conclave/pkg/strict"
	"conclave/subjects"
)

// Bucket is a bucket of typed JSON values that several processes may change: every write names the revision it is based
// on. A T that implements [Outbox] publishes its events exactly once: they are stored with the value before they are
// published.
type Bucket[T any] struct {
	Name    string
	MaxSize int           // bytes of one encoded value; 0 = the bucket's own limit
	Timeout time.Duration // for one read, write or publish; 0 = 10 s
}

// Versioned is a value and the revision of the bucket that holds it. Revision 0 means that it is not stored.
type Versioned[T any] struct {
	Value    T
	Revision uint64
}

// Outbox is a value that holds events which are to be published once. It is implemented on a pointer.
type Outbox interface {
	// Pending lists the events that are in the value and may not have been published.
	Pending() []Event
	// MarkPublished notes that all pending events are stored in their stream.
	MarkPublished()
}

// Event is an event of an [Outbox] with the id that was stored before it is published.
type Event struct {
	name string
	id   string
	emit func(ctx context.Context, out Out) error
}

// NewEvent is an event of an outbox. name is that of its [Step]; id must be unguessable (see [Out] NewID) and be stored
// in the outbox. The event carries the session and query ids of out unless [Event.WithIDs] gives others.
func NewEvent[T any](name string, t subjects.Topic[T], id string, body T) Event {
	return Event{name, id, func(ctx context.Context, out Out) error { return EmitOnce(ctx, out, t, id, body) }}
}

// WithIDs is the event with other session and query ids in its headers.
func (e Event) WithIDs(session, query string) Event {
	emit := e.emit
	e.emit = func(ctx context.Context, out Out) error { return emit(ctx, out.WithIDs(session, query)) }
	return e
}

var (
	// ErrBusy means that concurrent writers won every attempt to change a key.
	ErrBusy = errors.New("conflict: other writers kept changing the key")
	// ErrNotStored is wrapped by the errors of [Bucket.Update] and [Bucket.Store] when a new value was not written.
	ErrNotStored = errors.New("value not stored")
	// ErrTooLarge means that an encoded value exceeds [Bucket.MaxSize].
	ErrTooLarge = errors.New("value too large")
	// ErrUnreadable means that a stored value does not decode into the bucket's type.
	ErrUnreadable = errors.New("stored value cannot be read")
)

const (
	defaultBucketTimeout = 10 * time.Second
	maxAttempts          = 8
)

// bound returns a context for one operation. It outlives the caller's: what was begun is brought to its end.
func (b Bucket[T]) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout := b.Timeout
	if timeout <= 0 {
		timeout = defaultBucketTimeout
	}
	return context.WithTimeout(context.WithoutCancel(ctx), timeout)
}

// Load reads the value of a key. A key that does not exist has the zero value and revision 0, and is no error; a stored
// value that does not decode into T is the zero value with its revision and ErrUnreadable. The read ends after
// b.Timeout, not with ctx.
func (b Bucket[T]) Load(ctx context.Context, out Out, key string) (v Versioned[T], err error) {
	ctx, cancel := b.bound(ctx)
	defer cancel()
	data, revision, err := out.Store(b.Name).Get(ctx, key)
	switch {
	case errors.Is(err, ErrNotFound):
		return v, nil
	case err != nil:
		return v, err
	}
	if err := strict.DecodeStored(data, &v.Value); err != nil {
		return Versioned[T]{Revision: revision}, fmt.Errorf("%w: %s in %s: %w", ErrUnreadable, key, b.Name, err)
	}
	v.Revision = revision
	return v, nil
}

// Store writes a value if the key is still at v.Revision (0: does not exist), and returns it with its new revision. A
// failed write wraps [ErrNotStored], with [ErrChanged] when another writer was first and [ErrTooLarge] over MaxSize.
// The write lies between the steps step/before and step/after. Pending events are not published: see [Bucket.Update].
func (b Bucket[T]) Store(ctx context.Context, out Out, step, key string, v Versioned[T]) (Versioned[T], error) {
	data, err := EncodeValue(v.Value)
	if err != nil {
		return v, fmt.Errorf("encoding %s for %s: %w", key, b.Name, err)
	}
	if b.MaxSize > 0 && len(data) > b.MaxSize {
		return v, fmt.Errorf("%w: %w: %s in %s has %d bytes, at most %d", ErrNotStored, ErrTooLarge, key, b.Name,
			len(data), b.MaxSize)
	}
	ctx, cancel := b.bound(ctx)
	defer cancel()
	Step(ctx, step+"/before")
	revision, err := out.Store(b.Name).Put(ctx, key, data, v.Revision)
	if err != nil {
		return v, fmt.Errorf("%w: %w", ErrNotStored, err)
	}
	v.Revision = revision
	Step(ctx, step+"/after")
	return v, nil
}

// EncodeValue encodes a value as JSON without escaping <, > and &, which values are full of.
func EncodeValue(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// Update changes the value of a key by compare-and-set and publishes its pending events, and returns the value as it is
// stored then. Events that an earlier call stored and perhaps never published are published before change is called.
//
// change reports whether it changed the value; found is false for a key that does not exist. It is called again, with
// the newly read value, when another writer was first. Its error ends the update and is returned as it is.
//
// The write has the steps step/before and step/after, each event name/before and name/after, and noting that they are
// published name.mark/before and name.mark/after, with the name of the last event.
func (b Bucket[T]) Update(ctx context.Context, out Out, step, key string, change func(v *T, found bool) (changed bool,
	err error),
) (Versioned[T], error) {
	v, err := b.Load(ctx, out, key)
	if err != nil {
		return v, err
	}
	return b.UpdateFrom(ctx, out, step, key, v, change)
}

// UpdateFrom is [Bucket.Update] for a caller that has the value already: v is what [Bucket.Load], Store or Update
// returned, and may be outdated. change must not modify what v refers to, such as the elements of a map. When other
// writers win every attempt the error wraps [ErrNotStored] and [ErrBusy].
func (b Bucket[T]) UpdateFrom(ctx context.Context, out Out, step, key string, v Versioned[T],
	change func(v *T, found bool) (changed bool, err error),
) (Versioned[T], error) {
	for range maxAttempts {
		var err error
		if v, err = b.Publish(ctx, out, key, v); err != nil {
			return v, err
		}
		changed, err := change(&v.Value, v.Revision > 0)
		if err != nil || !changed {
			return v, err
		}
		stored, err := b.Store(ctx, out, step, key, v)
		switch {
		case err == nil:
			return b.Publish(ctx, out, key, stored)
		case !errors.Is(err, ErrChanged):
			return v, err
		}
		if v, err = b.Load(ctx, out, key); err != nil {
			return v, fmt.Errorf("%w: %w", ErrNotStored, err)
		}
	}
	return v, fmt.Errorf("%w: %w: %s in %s", ErrNotStored, ErrBusy, key, b.Name)
}

// Publish publishes the pending events of v and stores that they are published; it does nothing for a value that is not
// stored or has none. Two processes may publish at the same time: under the same id an event is stored once. No error
// wraps [ErrNotStored]: v itself is stored.
func (b Bucket[T]) Publish(ctx context.Context, out Out, key string, v Versioned[T]) (Versioned[T], error) {
	pending := pendingEvents(&v.Value)
	if v.Revision == 0 || len(pending) == 0 {
		return v, nil
	}
	for _, e := range pending {
		if err := b.emit(ctx, out, e); err != nil {
			return v, fmt.Errorf("publishing from %s in %s: %w", key, b.Name, err)
		}
	}
	last := pending[len(pending)-1]
	for range maxAttempts {
		any(&v.Value).(Outbox).MarkPublished()
		stored, err := b.Store(ctx, out, last.name+".mark", key, v)
		if err == nil {
			return stored, nil
		}
		if !errors.Is(err, ErrChanged) {
			// not ErrNotStored: the event is out
			return v, fmt.Errorf("marking %s in %s as published: %v", key, b.Name, err)
		}
		if v, err = b.Load(ctx, out, key); err != nil {
			return v, err
		}
		now := pendingEvents(&v.Value)
		if len(now) == 0 || now[len(now)-1].id != last.id {
			return v, nil // another process has marked it, and perhaps recorded the next event
		}
	}
	return v, fmt.Errorf("marking %s in %s as published: %w", key, b.Name, ErrBusy)
}

// emit publishes one event between the steps name/before and name/after, and returns when it is stored. An error skips
// the second step.
func (b Bucket[T]) emit(ctx context.Context, out Out, e Event) error {
	ctx, cancel := b.bound(ctx)
	defer cancel()
	Step(ctx, e.name+"/before")
	if err := e.emit(ctx, out); err != nil {
		return err
	}
	Step(ctx, e.name+"/after")
	return nil
}

// pendingEvents lists the unpublished events of a value, none for a T without an outbox.
func pendingEvents(v any) []Event {
	if o, ok := v.(Outbox); ok {
		return o.Pending()
	}
	return nil
}
