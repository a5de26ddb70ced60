package actor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/text"
	"conclave/subjects"
)

// Dial connects a role.
type Dial func(role string, opts ...nats.Option) (*nats.Conn, error)

// Spec says how to run one actor.
type Spec struct {
	Name string // as in [Actor.Name]
	Role string // whose key it uses; "" = Name
	// Make builds the actor on its connection. It is called again after a restart.
	Make func(ctx context.Context, nc *nats.Conn) (Actor, error)
}

// Config bounds an actor. The zero value is useful.
type Config struct {
	Workers      int           // handlers at once per route; 0 = 64
	Mailbox      int           // messages waiting per route; 0 = 1024
	DrainTimeout time.Duration // how long handlers may finish at a stop; 0 = 10 s
	RetryDelay   time.Duration // how long until a kept event whose handler failed is tried again; 0 = 1 s
	Budget       Budget        // restarts
	Log          *slog.Logger
	Now          func() time.Time
	NewID        func() string
	Steps        func(name string) // observes each [Step]; for crash tests, nil in production
}

func (c Config) withDefaults() Config {
	if c.Workers <= 0 {
		c.Workers = 64
	}
	if c.Mailbox <= 0 {
		c.Mailbox = 1024
	}
	if c.DrainTimeout <= 0 {
		c.DrainTimeout = 10 * time.Second
	}
	if c.RetryDelay <= 0 {
		c.RetryDelay = time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.NewID == nil {
		c.NewID = NewID
	}
	c.Budget = c.Budget.withDefaults()
	return c
}

// ErrPermission means that the server does not let the actor listen to one of its routes: its grants do not fit its code.
var ErrPermission = errors.New("the server does not permit it to listen")

// running is one life of an actor, from connect to closed.
type running struct {
	cfg    Config
	actor  Actor
	nc     *nats.Conn
	pullNC *nats.Conn // the account that pulls, nil when nothing is pulled
	out    *speaker
	id     string // instance, for discovery
	routes []*lane
	subs   []*nats.Subscription
	pulls  sync.WaitGroup
	ctx    context.Context    // the handlers'; ends when they have had their time to finish
	stop   context.CancelFunc // ends ctx
	quit   chan struct{}      // closed when no new message will come
	fail   chan error         // why it must be started anew
	health *Health
}

// lane is a route at work: its mailbox, its workers and its figures.
type lane struct {
	Route
	box     chan *nats.Msg
	workers sync.WaitGroup
	share   share
	streams streams
	busy    atomic.Int64 // handlers running
	buried  atomic.Int64 // when a flood was last told of, unix nanoseconds
	figures figures
}

// launch connects an actor and returns when it is ready: subscribed, flushed and permitted.
func launch(ctx context.Context, spec Spec, dial Dial, cfg Config, health *Health) (_ *running, err error) {
	role := spec.Role
	if role == "" {
		role = spec.Name
	}
	closed := make(chan struct{})
	nc, err := dial(role, nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		return nil, err
	}
	var a Actor
	if err = guard(func() error { a, err = spec.Make(ctx, nc); return err }); err != nil {
		nc.Close()
		return nil, fmt.Errorf("making %s: %w", spec.Name, err)
	}
	r := &running{cfg: cfg, actor: a, nc: nc, id: NewID(), quit: make(chan struct{}), fail: make(chan error, 1), health: health}
	ctx = WithSteps(ctx, cfg.Steps)
	r.ctx, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			r.halt(context.WithoutCancel(ctx))
		}
	}()
	if r.out, err = newSpeaker(nc, cfg.Log.With("actor", a.Name()), cfg.Now, cfg.NewID); err != nil {
		return nil, err
	}
	go func() {
		<-closed
		r.failed(errors.New("its connection was closed"))
	}()
	r.tellOfDenials()
	for _, route := range a.Routes() {
		r.routes = append(r.routes, &lane{Route: route})
	}
	if err := r.subscribe(ctx); err != nil {
		return nil, err
	}
	if err := r.pull(ctx, dial); err != nil {
		return nil, err
	}
	if s, ok := a.(Starter); ok {
		if err := guard(func() error { return s.Start(ctx, r.out) }); err != nil {
			return nil, fmt.Errorf("starting %s: %w", a.Name(), err)
		}
	}
	return r, nil
}

// guard turns a panic into an error: one actor's mistake must not end the system.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

func (r *running) failed(err error) {
	select {
	case r.fail <- err:
	default:
	}
}

// tellOfDenials makes an event of each subject the server refuses, and of messages that the connection dropped: a denied
// publish returns nil, and only the error handler ever knows.
func (r *running) tellOfDenials() {
	before := r.nc.ErrorHandler()
	r.nc.SetErrorHandler(func(nc *nats.Conn, s *nats.Subscription, err error) {
		if before != nil {
			before(nc, s, err)
		}
		switch {
		case errors.Is(err, nats.ErrPermissionViolation) && !strings.Contains(err.Error(), `"dead.`):
			r.bury(&inbound{subject: "(refused by the server)"}, subjects.CodePermission, safe(err))
		case errors.Is(err, nats.ErrSlowConsumer) && s != nil && !strings.HasPrefix(s.Subject, "_INBOX."):
			r.bury(&inbound{subject: s.Subject}, subjects.CodeBusy, "more messages came than could be told so; some were dropped")
		}
	})
}

// subscribe opens the routes that are not pulled, and discovery.
func (r *running) subscribe(ctx context.Context) error {
	for _, l := range r.routes {
		if l.kind == durable {
			continue
		}
		l.open(r)
		subject, queue := l.spec.Subscription(), ""
		if l.kind == serve {
			queue = r.actor.Name()
		}
		sub, err := r.nc.QueueSubscribe(subject, queue, func(m *nats.Msg) { r.admit(l, m) })
		if err != nil {
			return fmt.Errorf("listening to %s: %w", subject, err)
		}
		r.subs = append(r.subs, sub)
		if err := r.hearStops(l); err != nil {
			return err
		}
	}
	if err := r.discoverable(); err != nil {
		return err
	}
	fctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := r.nc.FlushWithContext(fctx); err != nil {
		return fmt.Errorf("flushing: %w", err)
	}
	if err := r.nc.LastError(); errors.Is(err, nats.ErrPermissionViolation) {
		return fmt.Errorf("%w: %w", ErrPermission, err)
	}
	return nil
}

// deliver reads one message, handles it and answers.
func (r *running) deliver(l *lane, m *nats.Msg) {
	defer l.share.give(l.speaker(m))
	in, fault := l.read(m.Subject, m.Header, m.Data, r.cfg.Now())
	if fault != nil {
		r.refuse(l, in, m, fault, fault.Text)
		return
	}
	ctx := r.ctx
	if l.stream {
		in.piece = func(data []byte) error { return r.send(m, in, data) }
		var end func()
		ctx, end = l.streams.begin(ctx, in.from, m.Header.Get(subjects.HeaderStream))
		defer end()
	}
	reply, err := r.handle(ctx, l, in)
	var undecoded errUndecoded
	switch {
	case errors.As(err, &undecoded):
		r.refuse(l, in, m, undecoded.fault, undecoded.reason)
	case err != nil && errors.Is(context.Cause(ctx), errStopped):
		// Nobody listens: there is no one to tell, and nothing went wrong.
	case err != nil:
		r.answer(l, m, in, nil, r.fault(in, err))
	default:
		r.answer(l, m, in, reply, nil)
	}
}

// handle calls the handler with its deadline and turns a panic into an error.
func (r *running) handle(ctx context.Context, l *lane, in *inbound) (reply []byte, err error) {
	cancel := context.CancelFunc(func() {})
	if !in.deadline.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, in.deadline)
	}
	defer cancel()
	l.busy.Add(1)
	start := time.Now()
	defer func() {
		if p := recover(); p != nil {
			// What a panic says may hold anything: it goes to the log, never to the caller.
			r.cfg.Log.Error("panic in handler", "actor", r.actor.Name(), "subject", in.subject, "query", in.query, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			reply, err = nil, errPanic
		}
		l.busy.Add(-1)
		if !errors.As(err, new(errUndecoded)) {
			l.figures.done(time.Since(start), err)
		}
	}()
	return l.Route.handle(ctx, in, r.out.with(in.carried()))
}

var errPanic = errors.New("the handler panicked")

// fault logs a handler's error once, and makes of it what the caller may know.
func (r *running) fault(in *inbound, err error) *subjects.Fault {
	log := r.cfg.Log.With("actor", r.actor.Name(), "subject", in.subject, "query", in.query)
	var f *subjects.Fault
	switch found := errors.As(err, &f); {
	case found && f != nil && f.Code != "":
		log.Info("refused", "code", f.Code, "reason", f.Text)
	default:
		if found { // a nil pointer, or a fault without a code: nothing a caller could read
			err = errors.New("the handler returned a fault that says nothing")
		}
		f = subjects.Faultf(subjects.CodeInternal, "%s failed; its log says why", r.actor.Name())
		switch {
		case errors.Is(err, errPanic): // it was logged where it happened
		case r.ctx.Err() != nil && errors.Is(err, context.Canceled): // the system closes, and what was begun comes again
			log.Info("cut short", "err", err)
		default:
			log.Error("handler failed", "err", err)
		}
	}
	if isFatal(err) {
		r.failed(err)
	}
	return f
}

// refuse answers for a message no handler saw, and tells of it: a dead letter, and the route's owner. m is nil for a
// pulled message, which nobody waits for.
func (r *running) refuse(l *lane, in *inbound, m *nats.Msg, f *subjects.Fault, reason string) {
	l.figures.refused(f.Code)
	if m != nil {
		r.answer(l, m, in, nil, f)
	}
	if !l.spec.Lossy || f.Code != subjects.CodeBusy {
		r.bury(in, f.Code, reason)
	}
	if l.reject == nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
	defer cancel()
	err := guard(func() error {
		l.reject(ctx, Rejection{in.subject, in.tokens, in.query, in.session, f}, r.out.with(in.carried()))
		return nil
	})
	if err != nil {
		r.cfg.Log.Error("panic in reject hook", "actor", r.actor.Name(), "subject", in.subject, "query", in.query, "err", err)
	}
}

// bury writes the dead letter. The account's name is the only token its owner may use.
func (r *running) bury(in *inbound, code, reason string) {
	r.cfg.Log.Warn("dead letter", "actor", r.actor.Name(), "subject", in.subject, "query", in.query, "code", code, "reason", reason, "size", len(in.data))
	if !slices.Contains(subjects.Actors, r.actor.Name()) {
		return // a tool shares its account and may not speak there: the broker records what came of its call
	}
	topic, err := subjects.DeadLetterEvent.With(r.actor.Name())
	if err != nil {
		return
	}
	letter := subjects.DeadLetter{Actor: r.actor.Name(), Subject: text.Clip(in.subject, subjects.MaxSubject), Code: code, Reason: reason, Size: len(in.data), SHA256: digest(in.data), Time: r.cfg.Now().UTC()}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := EmitAsync(ctx, r.out.with(in.carried()), topic, letter); err != nil {
		r.cfg.Log.Error("dead letter not sent", "actor", r.actor.Name(), "err", err)
	}
}

// answer sends the reply or the fault. Where nobody waits, nothing is sent: an event's reply subject is its speaker's
// word, and we would say something there with our own rights.
func (r *running) answer(l *lane, m *nats.Msg, in *inbound, body []byte, f *subjects.Fault) {
	if m.Reply == "" || l.kind != serve {
		return
	}
	if l.stream {
		defer r.endStream(m, in)
		if f == nil {
			return
		}
	}
	reply := &nats.Msg{Subject: m.Reply, Data: body, Header: nats.Header{}}
	in.carried().put(reply.Header)
	if f != nil {
		reply.Header[subjects.HeaderErrCode] = []string{f.Code}
		reply.Header[subjects.HeaderErrText] = []string{f.Text}
		reply.Header[subjects.HeaderType] = []string{subjects.TypeJSON}
		reply.Data, _ = encode(codec(subjects.JSON), f)
	} else {
		reply.Header[subjects.HeaderType] = []string{subjects.Codec(in.codec.reply()).String()}
	}
	err := r.nc.PublishMsg(reply)
	if errors.Is(err, nats.ErrMaxPayload) {
		r.answer(l, m, in, nil, subjects.Faultf(subjects.CodeTooLarge, "the answer is larger than the server takes"))
		return
	}
	if err != nil {
		r.cfg.Log.Error("answer not sent", "actor", r.actor.Name(), "subject", in.subject, "query", in.query, "err", err)
	}
}

// halt drains in order: no new messages, handlers finished, what was posted is stored, the actor closed, connections
// closed. It reports what did not finish in time.
func (r *running) halt(ctx context.Context) error {
	drain, cancel := context.WithTimeout(ctx, r.cfg.DrainTimeout)
	defer cancel()
	errs := []error{drainSubs(drain, r.subs)}
	close(r.quit)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for _, l := range r.routes {
			l.workers.Wait()
		}
		r.pulls.Wait()
	}()
	select {
	case <-finished:
	case <-drain.Done():
		r.stop()
		r.turnAway()
		select {
		case <-finished:
		case <-time.After(noticing):
			errs = append(errs, fmt.Errorf("handlers of %s did not finish within %s, nor when their context ended", r.actor.Name(), r.cfg.DrainTimeout))
		}
	}
	r.stop()
	ctx, cancel = context.WithTimeout(ctx, closing)
	defer cancel()
	if r.out != nil {
		select {
		case <-r.out.js.PublishAsyncComplete():
		case <-ctx.Done():
			errs = append(errs, errors.New("some events were not stored"))
		}
	}
	if c, ok := r.actor.(Closer); ok {
		if err := guard(func() error { return c.Close(ctx) }); err != nil {
			errs = append(errs, fmt.Errorf("closing %s: %w", r.actor.Name(), err))
		}
	}
	for _, nc := range []*nats.Conn{r.pullNC, r.nc} {
		if nc == nil || nc.IsClosed() {
			continue
		}
		gone := nc.StatusChanged(nats.CLOSED)
		if nc.Drain() != nil {
			nc.Close()
			continue
		}
		select {
		case <-gone:
		case <-ctx.Done():
			nc.Close()
		}
	}
	return errors.Join(errs...)
}

// drainSubs stops subscriptions and waits until what they had received was handed on.
func drainSubs(ctx context.Context, subs []*nats.Subscription) error {
	closed := make([]<-chan nats.SubStatus, len(subs))
	for i, s := range subs {
		closed[i] = s.StatusChanged(nats.SubscriptionClosed)
		if s.Drain() != nil { // already gone with its connection
			closed[i] = nil
		}
	}
	var errs []error
	for i, s := range subs {
		if closed[i] == nil {
			continue
		}
		select {
		case <-closed[i]:
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("subscription %s did not drain", s.Subject))
		}
	}
	return errors.Join(errs...)
}

// How long a stop may take beyond the drain: for handlers to notice that their context ended, and for what was posted,
// the actor and the connections to be closed.
const (
	noticing = time.Second
	closing  = 5 * time.Second
)
