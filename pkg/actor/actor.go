package actor

import (
	"context"
	"errors"
	"time"

	"conclave/pkg/strict"
	"conclave/subjects"
)

// Actor is one participant. Its name is its package, NATS account, queue group, log field and config section.
type Actor interface {
	Name() string
	Routes() []Route
}

// Starter is an actor with work to do once it is subscribed. An error of Start fails the start of the actor.
type Starter interface {
	Start(ctx context.Context, out Out) error
}

// Closer is an actor with resources. Close is called after the last handler returned and before the connection ends.
type Closer interface {
	Close(ctx context.Context) error
}

// Describer is an actor that adds metadata to its discovery replies. Describe is called for each, concurrently.
type Describer interface {
	Describe() (metadata map[string]string)
}

// Msg is a decoded message with its envelope. Headers are validated; tokens of the subject are not.
type Msg[T any] struct {
	Subject  string   // as received
	From     string   // the account that the server wrote into the subject; "" where it writes none
	Tokens   []string // the subject's tokens at the wildcards, in order. Not validated: the sender chose them
	Query    string
	Session  string
	Deadline time.Time
	Time     time.Time // when it was received
	Seq      uint64    // stream sequence; 0 = not from a stream
	StoredAt time.Time // when the stream stored it
	Attempt  int       // delivery attempt, from 1; after [subjects.MaxDeliver] the message becomes a dead letter
	// the caller reads a streamed reply to its end ([subjects.HeaderStream]); others may read the first message only
	Streams bool
	Body    T
}

// Handler handles one event.
type Handler[T any] func(ctx context.Context, in Msg[T], out Out) error

// RequestHandler handles one request and returns the reply. A returned [*subjects.Fault] is sent to the caller as it
// is, any other error as code "internal", with the details in the log only.
type RequestHandler[Q, A any] func(ctx context.Context, in Msg[Q], out Out) (A, error)

// Rejection is a message that was rejected before any handler saw it.
type Rejection struct {
	Subject string
	Tokens  []string
	Query   string
	Session string
	Fault   *subjects.Fault
}

// Option changes a route.
type Option func(*Route)

// Workers bounds how many handlers of a route run at once; 1 keeps the order. The default is 64.
func Workers(n int) Option { return func(r *Route) { r.workers = n } }

// MaxRate bounds the requests of each account to perSecond, and to ten times as many at once after a pause. The others
// are rejected and get an error. It needs a subject into which the server writes the account.
func MaxRate(perSecond int) Option { return func(r *Route) { r.maxRate = perSecond } }

// EveryInstance has each instance of the actor handle a request, without a queue group and without a message that ends
// a streamed reply, as discovery needs it: several instances reply, and some of them with nothing.
func EveryInstance() Option { return func(r *Route) { r.everyInstance = true } }

// OnReject has f called for each message of the route that was rejected before any handler saw it.
func OnReject(f func(ctx context.Context, rej Rejection, out Out)) Option {
	return func(r *Route) { r.reject = f }
}

type routeKind uint8

const (
	serve     routeKind = iota + 1 // a request: one queue group, one reply
	subscribe                      // live: every instance receives it, nothing is stored
	durable                        // from a durable consumer, acknowledged when handled
)

// Route binds a subject to a handler. It is made by [Serve], [ServeStream], [Refuse], [On] or [Subscribe].
type Route struct {
	spec    subjects.Spec
	kind    routeKind
	stream  bool // the reply comes in pieces
	notify  bool // the body is not decoded: a message is a hint only
	refused bool // every request is refused with one fault, which holds nothing of the request
	workers int
	// everyInstance is set by [EveryInstance].
	everyInstance bool
	maxRate       int // requests of an account per second; 0 = unlimited
	handle        func(ctx context.Context, in *inbound, out Out) ([]byte, error)
	reject        func(ctx context.Context, rej Rejection, out Out)
}

// Spec is the route's subject.
func (r Route) Spec() subjects.Spec { return r.spec }

// Serve handles the requests of a service: each goes to one instance of the actor (one queue group). h is not called
// for a malformed body, which is rejected. The reply has the request's codec, JSON for a request in plain text.
func Serve[Q, A any](s subjects.Service[Q, A], h RequestHandler[Q, A], opts ...Option) Route {
	r := Route{spec: s.Spec, kind: serve}
	r.handle = func(ctx context.Context, in *inbound, out Out) ([]byte, error) {
		m, err := rawMessage[Q](in)
		if err != nil {
			return nil, err
		}
		a, err := h(ctx, m, out)
		if err != nil {
			return nil, err
		}
		return encode(replyCodec(in.codec), a)
	}
	return r.apply(opts)
}

// Refuse replies to each request of s with the fault f, whatever its body holds. A message without a reply subject
// becomes a dead letter with the text of f.
func Refuse(s subjects.Spec, f *subjects.Fault) Route {
	return Route{spec: s, kind: serve, refused: true, handle: func(context.Context, *inbound, Out) ([]byte, error) {
		return nil, f
	}}
}

// On handles a topic through the actor's durable consumer: messages are redelivered until h returns nil or attempts are
// exhausted, and messages published while the actor was down are delivered.
func On[T any](t subjects.Topic[T], h Handler[T], opts ...Option) Route {
	return newEventRoute(t, durable, h, opts)
}

// Subscribe handles a topic live: messages published while the actor is down are lost. An event of a stream is received
// under its republished subject, which does not name the author's account.
func Subscribe[T any](t subjects.Topic[T], h Handler[T], opts ...Option) Route {
	t.Received = t.LiveSubject()
	return newEventRoute(t, subscribe, h, opts)
}

// Notify calls f for each message of a topic, live as [Subscribe], without decoding its body.
func Notify(s subjects.Spec, f func()) Route {
	s.Received = s.LiveSubject()
	return Route{
		spec: s, kind: subscribe, notify: true, workers: 1,
		handle: func(context.Context, *inbound, Out) ([]byte, error) {
			f()
			return nil, nil
		},
	}
}

// newEventRoute returns the route of [On] (kind durable) or [Subscribe] (kind subscribe). h is not called for a
// malformed body, which is rejected. Events get no reply.
func newEventRoute[T any](t subjects.Topic[T], kind routeKind, h Handler[T], opts []Option) Route {
	r := Route{spec: t.Spec, kind: kind}
	r.handle = func(ctx context.Context, in *inbound, out Out) ([]byte, error) {
		m, err := rawMessage[T](in)
		if err != nil {
			return nil, err
		}
		return nil, h(ctx, m, out)
	}
	return r.apply(opts)
}

func (r Route) apply(opts []Option) Route {
	for _, o := range opts {
		o(&r)
	}
	return r
}

// errMalformed is a fault found while decoding: the runtime rejects the message instead of retrying it.
type errMalformed struct {
	fault  *subjects.Fault // for the sender
	reason string          // for the dead letter: holds nothing of the body
}

func (e errMalformed) Error() string { return e.fault.Error() }

// rawMessage decodes the body of in into a message with its envelope. A body that is malformed for T is an
// errMalformed, which the runtime rejects and does not retry.
func rawMessage[T any](in *inbound) (Msg[T], error) {
	m := Msg[T]{
		Subject: in.subject, From: in.from, Tokens: in.tokens, Query: in.query, Session: in.session,
		Deadline: in.deadline, Time: in.time, Seq: in.seq, StoredAt: in.storedAt, Attempt: in.attempt,
		Streams: in.streams,
	}
	if err := decode(in.codec, in.data, &m.Body); err != nil {
		why := "malformed"
		if rejected, ok := errors.AsType[strict.DecodeError](err); ok {
			why = rejected.Reason
		}
		return m, errMalformed{subjects.Faultf(subjects.CodeMalformed, "%v", err), why}
	}
	return m, nil
}

// fatal marks an error after which the actor must be restarted.
type fatal struct{ error }

// Fatal marks an error of a handler as unrecoverable: the supervisor restarts the actor.
func Fatal(err error) error { return fatal{err} }

func (f fatal) Unwrap() error { return f.error }

func isFatal(err error) bool {
	return errors.As(err, new(fatal))
}
