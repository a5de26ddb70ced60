package actor

import (
	"cmp"
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

	"conclave/pkg/telemetry"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Dial connects with the key of a role.
type Dial func(role string, opts ...nats.Option) (*nats.Conn, error)

// Spec is how to run one actor.
type Spec struct {
	Name string // as in [Actor.Name]
	Role string // the role whose key it uses; "" = Name
	// Make builds the actor on its connection, at the start and at each restart.
	Make func(ctx context.Context, nc *nats.Conn) (Actor, error)
}

// Config bounds an actor. The zero value has defaults.
type Config struct {
	Mailbox      int           // messages waiting per route; 0 = 1024
	DrainTimeout time.Duration // for handlers to finish at a stop; 0 = 10 s
	RetryDelay   time.Duration // before a message of a durable route is redelivered after an error; 0 = 1 s
	Budget       Budget        // restarts
	Version      string        // of the build, for discovery
	Log          *slog.Logger
	Now          func() time.Time
	NewID        func() string
	Tracer       *telemetry.Tracer // exports spans; nil = none
	Content      bool              // spans, and debug records of the log, may hold what users and models wrote
	Steps        func(name string) // observes each [Step]; for crash tests, nil in production
}

// withDefaults returns c with defaults for zero and negative fields: a mailbox of 1024, 10 s to drain, 1 s between
// retries, no log.
func (c Config) withDefaults() Config {
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

// ErrPermission means that the server denies a subscription of the actor: its grants do not fit its routes.
var ErrPermission = errors.New("the server denies a subscription")

// running is one run of an actor, from connecting to closed.
type running struct {
	cfg    Config
	actor  Actor
	nc     *nats.Conn
	pullNC *nats.Conn // the account of the consumers, nil without durable routes
	out    *connOut
	id     string // instance, for discovery
	routes []*routeRun
	subs   []*nats.Subscription
	pulls  sync.WaitGroup
	ctx    context.Context    // of the handlers; ends after the drain timeout
	stop   context.CancelFunc // ends ctx
	quit   chan struct{}      // closed when no new message arrives
	fail   chan error         // why it must be restarted
	health *Health

	letters     Shares       // dead letters about rejected messages, by sender
	lastRefusal atomic.Value // string, see fault
}

// routeRun is a route of a running actor: its mailbox with the workers, and counters.
type routeRun struct {
	Route
	endpoint        string // its name in discovery
	mailbox         mailbox
	slots           chan struct{} // one per running handler of ordered consumers; nil = no bound
	quotas          senderQuotas
	rates           senderRates
	streams         openStreams
	inFlight        atomic.Int64 // running handlers
	lastFloodLetter atomic.Int64 // time of the last dead letter about a flood, unix nanoseconds
	counters        routeCounters
}

// startActor connects an actor as spec.Role ("" = its name) and returns when it is ready: subscribed, flushed,
// permitted, and its Start has returned. It fails when the server denies a subscription ([ErrPermission]) or Make or
// Start fails or panics; the connections are then closed. Handlers do not end with ctx.
func startActor(ctx context.Context, spec Spec, dial Dial, cfg Config, health *Health) (_ *running, err error) {
	role := spec.Role
	role = cmp.Or(role, spec.Name)
	closed := make(chan struct{})
	nc, err := dial(role, nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		return nil, err
	}
	var a Actor
	if err = recoverPanic(func() error { a, err = spec.Make(ctx, nc); return err }); err != nil {
		nc.Close()
		return nil, fmt.Errorf("creating %s: %w", spec.Name, err)
	}
	r := &running{
		cfg: cfg, actor: a, nc: nc, id: NewID(), quit: make(chan struct{}), fail: make(chan error, 1),
		health: health,
		// the others are for its own failures
		letters: Shares{Quota: subjects.MaxDeadLetters * 4 / 5},
	}
	ctx = telemetry.WithScope(WithSteps(ctx, cfg.Steps), &telemetry.Scope{
		Actor: a.Name(), Meter: health.meter,
		Tracer: cfg.Tracer, Log: cfg.Log, Content: cfg.Content,
	})
	r.ctx, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			r.shutDown(context.WithoutCancel(ctx))
		}
	}()
	if r.out, err = newConnOut(nc, cfg.Log.With("actor", a.Name()), cfg.Now, cfg.NewID); err != nil {
		return nil, err
	}
	go func() {
		<-closed
		r.requestRestart(errors.New("the connection was closed"))
	}()
	r.reportDenials()
	for _, route := range a.Routes() {
		r.routes = append(r.routes, &routeRun{Route: route})
	}
	nameEndpoints(r.routes)
	if err := r.subscribe(ctx); err != nil {
		return nil, err
	}
	if err := r.startConsumers(ctx, dial); err != nil {
		return nil, err
	}
	if s, ok := a.(Starter); ok {
		if err := recoverPanic(func() error { return s.Start(ctx, r.out) }); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// recoverPanic turns a panic of f into an error: a bug in one actor must not end the process.
func recoverPanic(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

func (r *running) requestRestart(err error) {
	select {
	case r.fail <- err:
	default:
	}
}

// reportDenials writes a dead letter for each subject that the server denies and for messages that the connection
// dropped: a denied publish returns nil, and only the error handler is told. A denied dead letter, and replies dropped
// in an inbox, are left out. The earlier error handler is still called.
func (r *running) reportDenials() {
	before := r.nc.ErrorHandler()
	r.nc.SetErrorHandler(func(nc *nats.Conn, s *nats.Subscription, err error) {
		if before != nil {
			before(nc, s, err)
		}
		switch {
		case errors.Is(err, nats.ErrPermissionViolation) && !strings.Contains(err.Error(), `"dead.`):
			r.writeDeadLetter(&inbound{subject: "(denied by the server)"}, subjects.CodePermission, sanitizeError(err))
		case errors.Is(err, nats.ErrSlowConsumer) && s != nil && !strings.HasPrefix(s.Subject, "_INBOX."):
			r.writeDeadLetter(&inbound{subject: s.Subject}, subjects.CodeBusy, "slow consumer: messages were dropped")
		}
	})
}

// subscribe opens the mailboxes of live and request routes, subscribes to them and to discovery, and returns when the
// server has permitted all subscriptions. The error wraps [ErrPermission] when it denied one. Durable routes are left
// to startConsumers.
func (r *running) subscribe(ctx context.Context) error {
	for _, l := range r.routes {
		if l.kind == durable {
			continue
		}
		l.openMailbox(r.cfg)
		subject, queue := l.spec.Subscription(), ""
		if l.kind == serve && !l.everyInstance {
			queue = r.actor.Name()
		}
		sub, err := r.nc.QueueSubscribe(subject, queue, func(m *nats.Msg) { r.enqueue(l, m) })
		if err != nil {
			return fmt.Errorf("subscribing to %s: %w", subject, err)
		}
		r.subs = append(r.subs, sub)
		if err := r.subscribeStops(l); err != nil {
			return err
		}
	}
	if err := r.serveDiscovery(); err != nil {
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

// deliver parses and handles one message of the mailbox, replies when it is a request, and calls the functions of
// [AfterReply]. A malformed one is rejected;
// a stream that its caller has stopped gets no reply. A failed request without a reply subject becomes a dead letter,
// so that its sender can see the error. It releases the quota that enqueue acquired.
func (r *running) deliver(l *routeRun, m *nats.Msg) {
	defer l.quotas.release(l.sender(m))
	in, fault := l.readMessage(m.Subject, m.Header, m.Data, r.cfg.Now())
	if fault != nil {
		r.rejectMessage(l, in, m, fault, fault.Text)
		return
	}
	ctx := r.ctx
	if l.stream {
		in.piece = func(data []byte) error { return r.sendPiece(m, in, data) }
		var end func()
		id := m.Header.Get(subjects.HeaderStream)
		in.streams = id != ""
		ctx, end = l.streams.register(ctx, in.from, id)
		defer end()
	}
	reply, err := r.handle(ctx, l, in)
	var undecoded errMalformed
	switch {
	case errors.As(err, &undecoded):
		r.rejectMessage(l, in, m, undecoded.fault, undecoded.reason)
	case err != nil && errors.Is(context.Cause(ctx), errStopped):
		// The caller has gone: no reply, and no error.
	case err != nil:
		f := r.fault(in, err)
		r.reply(l, m, in, nil, f)
		r.reportUnreplied(l, m, in, f)
	default:
		r.reply(l, m, in, reply, nil)
	}
	for _, f := range in.after {
		if err := recoverPanic(func() error { f(); return nil }); err != nil {
			r.cfg.Log.Error("panic after a reply", "actor", r.actor.Name(), "subject", in.subject, "query", in.query,
				"err", err)
		}
	}
}

// reportUnreplied writes a dead letter about a request that failed with f and has no reply subject. Its reason has the
// text of f only for a route of [Refuse]: that of another route may quote the body.
func (r *running) reportUnreplied(l *routeRun, m *nats.Msg, in *inbound, f *subjects.Fault) {
	if m.Reply != "" || l.kind != serve {
		return
	}
	reason := "the request failed, and it has no reply subject for the error; send it as a request to get the reason"
	if l.refused {
		reason = f.Text
	}
	r.writeSenderLetter(l.sender(m), in, f.Code, reason)
}

// handle calls the handler with the message's deadline, if it has one, and counts the result. A panic is logged and
// returned as errPanic, without its text.
func (r *running) handle(ctx context.Context, l *routeRun, in *inbound) (reply []byte, err error) {
	cancel := context.CancelFunc(func() {})
	if !in.deadline.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, in.deadline)
	}
	defer cancel()
	l.inFlight.Add(1)
	start := time.Now()
	ctx, span := l.startSpan(ctx, in)
	defer func() {
		if p := recover(); p != nil {
			// The panic value may hold anything: it is logged, never sent to the caller.
			r.cfg.Log.Error("panic in handler", "actor", r.actor.Name(), "subject", in.subject, "query", in.query,
				"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			reply, err = nil, errPanic
		}
		span.End(err)
		l.inFlight.Add(-1)
		if err == nil || !errors.As(err, new(errMalformed)) {
			r.recordHandled(l, time.Since(start), err)
		}
	}()
	out := r.out.withMessageIDs(in.ids())
	if l.kind == serve {
		out.after = &in.after
	}
	return l.Route.handle(ctx, in, out)
}

var errPanic = errors.New("the handler panicked")

// fault logs a handler's error once, a fault that repeats the last one at debug level only, and returns the fault for
// the caller: the handler's own, or for any other error, and a fault without a code, an internal one that holds nothing
// of err. A [Fatal] error also restarts the actor. err must not be nil.
func (r *running) fault(in *inbound, err error) *subjects.Fault {
	log := r.cfg.Log.With("actor", r.actor.Name(), "subject", in.subject, "query", in.query)
	var f *subjects.Fault
	switch found := errors.As(err, &f); {
	case found && f != nil && f.Code != "":
		level := slog.LevelInfo
		if line := strings.Join([]string{in.subject, in.query, f.Code, f.Text},
			"\x00"); r.lastRefusal.Swap(line) == line {
			level = slog.LevelDebug
		}
		log.Log(r.ctx, level, "refused", "code", f.Code, "reason", f.Text)
	default:
		if found { // a nil pointer, or a fault without a code
			err = errors.New("the handler returned an empty fault")
		}
		f = subjects.Faultf(subjects.CodeInternal, "%s failed; see its log", r.actor.Name())
		switch {
		case errors.Is(err, errPanic): // logged in handle
		case r.ctx.Err() != nil && errors.Is(err, context.Canceled): // shutdown: the message is redelivered
			log.Info("interrupted by shutdown", "err", err)
		default:
			log.Error("handler failed", "err", err)
		}
	}
	if isFatal(err) {
		r.requestRestart(err)
	}
	return f
}

// rejectMessage rejects a message that no handler saw: it replies f, writes a dead letter with reason and calls the
// route's OnReject for up to 5 s. A lossy subject gets no dead letter for "busy". m is nil for a message of a consumer,
// which has no reply.
func (r *running) rejectMessage(l *routeRun, in *inbound, m *nats.Msg, f *subjects.Fault, reason string) {
	r.recordRejected(l, f.Code)
	if m != nil {
		r.reply(l, m, in, nil, f)
	}
	switch {
	case m == nil:
		r.writeDeadLetter(in, f.Code, reason)
	case !l.spec.Lossy || f.Code != subjects.CodeBusy:
		r.writeSenderLetter(l.sender(m), in, f.Code, reason)
	}
	if l.reject == nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
	defer cancel()
	err := recoverPanic(func() error {
		l.reject(ctx, Rejection{in.subject, in.tokens, in.query, in.session, f}, r.out.withMessageIDs(in.ids()))
		return nil
	})
	if err != nil {
		r.cfg.Log.Error("panic in reject hook", "actor", r.actor.Name(), "subject", in.subject, "query", in.query,
			"err", err)
	}
}

// writeSenderLetter is [running.writeDeadLetter] about a message that an account sent, unless its share of the actor's
// dead letters of the last day is used up: a sender of malformed messages must not displace the letters about others.
func (r *running) writeSenderLetter(sender string, in *inbound, code, reason string) {
	if r.letters.Admit(sender, "", 1, 1, r.cfg.Now()) {
		r.writeDeadLetter(in, code, reason)
		return
	}
	r.health.meter.Add(&telemetry.DeadLetters, 1, code)
	r.cfg.Log.Debug("dead letter left out: too many about this sender", "actor", r.actor.Name(), "subject", in.subject,
		"code", code)
}

// writeDeadLetter logs and publishes a dead letter about in, without waiting until it is stored; a failure is only
// logged. The body is not repeated, only its size and hash, so reason must not quote it. The dead letter of a tool is
// only logged: it has no grant.
func (r *running) writeDeadLetter(in *inbound, code, reason string) {
	r.health.meter.Add(&telemetry.DeadLetters, 1, code)
	r.cfg.Log.Warn("dead letter", "actor", r.actor.Name(), "subject", in.subject, "query", in.query, "code", code,
		"reason", reason, "size", len(in.data))
	if !slices.Contains(subjects.Actors, r.actor.Name()) {
		// a tool shares its account and has no grant for dead letters: the broker records the outcome of its call
		return
	}
	topic, err := subjects.DeadLetterEvent.With(r.actor.Name())
	if err != nil {
		return
	}
	letter := subjects.DeadLetter{
		Actor: r.actor.Name(), Subject: text.Clip(in.subject, subjects.MaxSubject),
		Code: code, Reason: reason, Size: len(in.data), SHA256: hashBody(in.data), Time: r.cfg.Now().UTC(),
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := EmitAsync(ctx, r.out.withMessageIDs(in.ids()), topic, letter); err != nil {
		r.cfg.Log.Error("dead letter not sent", "actor", r.actor.Name(), "err", err)
	}
}

// reply sends body, or the fault f when it is not nil; for a stream, f and the end of the stream. It sends nothing
// without a reply subject and for events: their reply subject is the publisher's choice, and the actor would publish
// there with its own permissions. A body over the server's payload limit becomes a too-large fault.
func (r *running) reply(l *routeRun, m *nats.Msg, in *inbound, body []byte, f *subjects.Fault) {
	if m.Reply == "" || l.kind != serve {
		return
	}
	if l.stream {
		if !l.everyInstance {
			defer r.endStream(m, in)
		}
		if f == nil {
			return
		}
	}
	reply := &nats.Msg{Subject: m.Reply, Data: body}
	if f != nil {
		reply.Header = in.ids().header(subjects.TypeJSON)
		reply.Header[subjects.HeaderErrCode] = []string{l.spec.ErrorCode(f)}
		reply.Header[subjects.HeaderErrText] = []string{f.Text}
		reply.Data, _ = encode(subjects.JSON, f)
	} else {
		reply.Header = in.ids().header(replyCodec(in.codec).String())
	}
	err := r.nc.PublishMsg(reply)
	if errors.Is(err, nats.ErrMaxPayload) {
		r.reply(l, m, in, nil, subjects.Faultf(subjects.CodeTooLarge, "the reply is larger than the server's payload "+
			"limit"))
		return
	}
	if err != nil {
		r.cfg.Log.Error("reply not sent", "actor", r.actor.Name(), "subject", in.subject, "query", in.query, "err", err)
	}
}

// shutDown drains in order: no new messages, handlers finished, pending events stored, actor closed, connections
// closed. Handlers have DrainTimeout; then their context is canceled and queued messages are rejected. It returns an
// error for each stage that did not finish in time, and closes the connections anyway. It must be called once.
func (r *running) shutDown(ctx context.Context) error {
	errs := []error{r.drainSubs()}
	drain, cancel := context.WithTimeout(ctx, r.cfg.DrainTimeout)
	defer cancel()
	close(r.quit)
	for _, l := range r.routes {
		l.mailbox.close()
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for _, l := range r.routes {
			l.mailbox.workers.Wait()
		}
		r.pulls.Wait()
	}()
	select {
	case <-finished:
	case <-drain.Done():
		r.stop()
		r.rejectQueued()
		select {
		case <-finished:
		case <-time.After(cancelGrace):
			errs = append(errs, fmt.Errorf("handlers of %s did not finish within %s, nor when their context ended",
				r.actor.Name(), r.cfg.DrainTimeout))
		}
	}
	r.stop()
	ctx, cancel = context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	if r.out != nil {
		select {
		case <-r.out.js.PublishAsyncComplete():
		case <-ctx.Done():
			errs = append(errs, errors.New("some events were not stored"))
		}
	}
	if c, ok := r.actor.(Closer); ok {
		if err := recoverPanic(func() error { return c.Close(ctx) }); err != nil {
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

// drainSubs stops the subscriptions and waits until their received messages are in the mailboxes. It does not depend on
// handlers, but on the server's reply: the limit is unsubscribeTimeout, and DrainTimeout once the connection is lost.
// The error names the first subscription that is not finished then. Closed subscriptions are skipped. A connection that
// is lost while a subscription drains ends it at once, and is an error as well: what the server still had is unknown.
func (r *running) drainSubs() error {
	lost := r.nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	defer r.nc.RemoveStatusListener(lost)
	limit := time.NewTimer(unsubscribeTimeout)
	defer limit.Stop()
	closed := make([]<-chan nats.SubStatus, len(r.subs))
	for i, s := range r.subs {
		closed[i] = s.StatusChanged(nats.SubscriptionClosed)
		if s.Drain() != nil { // already gone with its connection
			closed[i] = nil
		}
	}
	if !r.nc.IsConnected() {
		limit.Reset(r.cfg.DrainTimeout)
	}
	for i, s := range r.subs {
		for closed[i] != nil {
			select {
			case <-closed[i]:
				closed[i] = nil
			case <-lost:
				limit.Reset(r.cfg.DrainTimeout)
			case <-limit.C:
				return fmt.Errorf("subscription %s did not drain in time; the connection to the server is %s",
					s.Subject, r.nc.Status())
			}
		}
	}
	if status := r.nc.Status(); status == nats.RECONNECTING {
		return fmt.Errorf("draining the subscriptions: the connection to the server is %s; messages that it still had "+
			"are delivered again or lost", status)
	}
	return nil
}

// Timeouts of a stop beyond the drain: for the server to end the subscriptions (more than the 10 s that nats.go waits
// for its reply), for handlers to notice that their context ended, and for pending events, the actor and the
// connections to be closed.
const (
	unsubscribeTimeout = 15 * time.Second
	cancelGrace        = time.Second
	closeTimeout       = 5 * time.Second
)
