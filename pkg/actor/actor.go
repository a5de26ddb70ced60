// Package actor runs an actor: it reads messages strictly, hands them to typed handlers with a bound on how many run at
// once, carries ids and deadlines along, answers for handlers that fail, and drains in order.
//
// An actor is a struct with a name and a table of routes. It has no goroutine, no logger and no NATS import of its own.
package actor

import (
	"context"
	"errors"
	"time"

	"conclave/subjects"
)

// Actor is one participant. Its name is its folder, its account, its queue group and its config section.
type Actor interface {
	Name() string
	Routes() []Route
}

// Starter is an actor that has something to say or ask once it is listening.
type Starter interface {
	Start(ctx context.Context, out Out) error
}

// Closer is an actor that holds something to be closed after its last handler returned and before its connection ends.
type Closer interface {
	Close(ctx context.Context) error
}

// Describer is an actor that tells discovery more about itself.
type Describer interface {
	Describe() (version, text string, metadata map[string]string)
}

// Msg is a message as a handler gets it: decoded, with what the runtime read from the headers and the subject.
type Msg[T any] struct {
	Subject  string   // as heard
	From     string   // the account that the server wrote into the subject; "" where it writes none
	Tokens   []string // what stood for the wildcards, in order. Not validated: they are what someone sent
	Query    string
	Session  string
	Deadline time.Time
	Time     time.Time // when it was read
	Seq      uint64    // place in the stream that keeps it; 0 = it was not pulled
	StoredAt time.Time // when the stream stored it
	Attempt  int       // how often it was handed out, this time included; after [subjects.MaxDeliver] it is buried
	Body     T
}

// Handler handles one event.
type Handler[T any] func(ctx context.Context, in Msg[T], out Out) error

// RequestHandler handles one request. What it returns is the reply; a returned [*subjects.Fault] reaches the caller as it is,
// any other error as "internal", with the details in the log only.
type RequestHandler[Q, A any] func(ctx context.Context, in Msg[Q], out Out) (A, error)

// Rejection tells a route's owner of a message that no handler saw.
type Rejection struct {
	Subject string
	Tokens  []string
	Query   string
	Session string
	Fault   *subjects.Fault
}

// Option changes a route.
type Option func(*Route)

// Workers sets how many of a route's handlers run at once. The default is the runtime's; one keeps the order.
func Workers(n int) Option { return func(r *Route) { r.workers = n } }

// OnReject is called for each message that was refused before any handler saw it.
func OnReject(f func(ctx context.Context, rej Rejection, out Out)) Option {
	return func(r *Route) { r.reject = f }
}

type routeKind uint8

const (
	serve   routeKind = iota + 1 // a request: one queue group, one reply
	hear                         // live: every instance hears it, nothing is kept for later
	durable                      // pulled from a stream, acknowledged when handled
)

// Route ties a subject to a handler. It is made by [Serve], [ServeStream], [On] or [Subscribe].
type Route struct {
	spec    subjects.Spec
	kind    routeKind
	stream  bool // the reply comes in pieces
	workers int
	handle  func(ctx context.Context, in *inbound, out Out) ([]byte, error)
	reject  func(ctx context.Context, rej Rejection, out Out)
}

// Spec is the route's subject.
func (r Route) Spec() subjects.Spec { return r.spec }

// Serve answers the requests of a service.
func Serve[Q, A any](s subjects.Service[Q, A], h RequestHandler[Q, A], opts ...Option) Route {
	r := Route{spec: s.Spec, kind: serve}
	r.handle = func(ctx context.Context, in *inbound, out Out) ([]byte, error) {
		m, err := message[Q](in)
		if err != nil {
			return nil, err
		}
		a, err := h(ctx, m, out)
		if err != nil {
			return nil, err
		}
		return encode(in.codec.reply(), a)
	}
	return r.with(opts)
}

// On handles a topic that a stream keeps, through the actor's durable consumer: each message until it is handled, also
// those that came while the actor was away.
func On[T any](t subjects.Topic[T], h Handler[T], opts ...Option) Route {
	return event(t, durable, h, opts)
}

// Subscribe handles a topic live: what is said while nobody listens is not heard. A kept event is heard under its plain
// subject, as everyone who watches hears it; its author's account is then not known.
func Subscribe[T any](t subjects.Topic[T], h Handler[T], opts ...Option) Route {
	t.Received = t.LiveSubject()
	return event(t, hear, h, opts)
}

func event[T any](t subjects.Topic[T], kind routeKind, h Handler[T], opts []Option) Route {
	r := Route{spec: t.Spec, kind: kind}
	r.handle = func(ctx context.Context, in *inbound, out Out) ([]byte, error) {
		m, err := message[T](in)
		if err != nil {
			return nil, err
		}
		return nil, h(ctx, m, out)
	}
	return r.with(opts)
}

func (r Route) with(opts []Option) Route {
	for _, o := range opts {
		o(&r)
	}
	return r
}

// errUndecoded marks a fault found while decoding, so that the runtime treats it as a message nobody could read.
type errUndecoded struct {
	fault  *subjects.Fault // for the sender
	reason string          // for the dead letter: nothing of the body
}

func (e errUndecoded) Error() string { return e.fault.Error() }

func message[T any](in *inbound) (Msg[T], error) {
	m := Msg[T]{Subject: in.subject, From: in.from, Tokens: in.tokens, Query: in.query, Session: in.session, Deadline: in.deadline, Time: in.time, Seq: in.seq, StoredAt: in.stored, Attempt: in.try}
	if err := decode(in.codec, in.data, &m.Body); err != nil {
		why := "could not be read"
		var u decodeError
		if errors.As(err, &u) {
			why = u.reason
		}
		return m, errUndecoded{subjects.Faultf(subjects.CodeMalformed, "%v", err), why}
	}
	return m, nil
}

// fatal marks an error after which the actor must be started anew.
type fatal struct{ error }

// Fatal wraps an error that a handler cannot go on from: the supervisor restarts the actor.
func Fatal(err error) error { return fatal{err} }

func (f fatal) Unwrap() error { return f.error }

func isFatal(err error) bool {
	var f fatal
	return errors.As(err, &f)
}
