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
	"github.com/nats-io/nats.go/jetstream"

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
	Workers int           // handlers at once per route; 0 = 64
	Mailbox int           // messages waiting per route; 0 = 1024
	Drain   time.Duration // how long handlers may finish at a stop; 0 = 10 s
	Budget  Budget        // restarts
	Log     *slog.Logger
	Now     func() time.Time
	NewID   func() string
}

func (c Config) withDefaults() Config {
	if c.Workers <= 0 {
		c.Workers = 64
	}
	if c.Mailbox <= 0 {
		c.Mailbox = 1024
	}
	if c.Drain <= 0 {
		c.Drain = 10 * time.Second
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

// ErrDenied means that the server does not let the actor listen to one of its routes: its grants do not fit its code.
var ErrDenied = errors.New("the server does not permit it to listen")

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
	busy    atomic.Int64
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
	a, err := spec.Make(ctx, nc)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("making %s: %w", spec.Name, err)
	}
	r := &running{cfg: cfg, actor: a, nc: nc, id: NewID(), quit: make(chan struct{}), fail: make(chan error, 1), health: health}
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
		if err := s.Start(ctx, r.out); err != nil {
			return nil, fmt.Errorf("starting %s: %w", a.Name(), err)
		}
	}
	return r, nil
}

func (r *running) failed(err error) {
	select {
	case r.fail <- err:
	default:
	}
}

// tellOfDenials makes an event of each subject the server refuses: a denied publish returns nil, and only the error
// handler ever knows.
func (r *running) tellOfDenials() {
	before := r.nc.ErrorHandler()
	r.nc.SetErrorHandler(func(nc *nats.Conn, s *nats.Subscription, err error) {
		if before != nil {
			before(nc, s, err)
		}
		if errors.Is(err, nats.ErrPermissionViolation) && !strings.Contains(err.Error(), `"dead.`) {
			r.bury(&inbound{subject: "(refused by the server)"}, subjects.Faultf(subjects.CodePermission, "%s", safe(err)))
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
		queue := ""
		subject := l.spec.Name
		if l.kind == serve {
			queue, subject = r.actor.Name(), l.spec.Listen()
		}
		if l.kind == hear && subjectsHeardInPlace(l.spec) {
			subject = l.spec.Listen()
		}
		// The connection's reader puts messages straight into the mailbox: one goroutine less between a message and its
		// handler. What waits behind a full mailbox is told so when its turn comes.
		sub, err := r.nc.ChanQueueSubscribe(subject, queue, l.box)
		if err != nil {
			return fmt.Errorf("listening to %s: %w", subject, err)
		}
		r.subs = append(r.subs, sub)
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
		return fmt.Errorf("%w: %w", ErrDenied, err)
	}
	return nil
}

// subjectsHeardInPlace tells a topic that is heard live under its own listening name (an announcement to the broker,
// which the zone's name is part of) from one that is watched under its plain name.
func subjectsHeardInPlace(spec subjects.Spec) bool {
	return spec.Heard != "" && !attested(spec)
}

// open starts the workers of a lane.
func (l *lane) open(r *running) {
	n := l.Route.workers
	if n <= 0 {
		n = r.cfg.Workers
	}
	l.box = make(chan *nats.Msg, 4*r.cfg.Mailbox)
	for range n {
		l.workers.Go(func() {
			for {
				select {
				case m := <-l.box:
					r.deliver(l, m)
					continue
				default:
				}
				select {
				case m := <-l.box:
					r.deliver(l, m)
				case <-r.quit:
					if len(l.box) == 0 {
						return
					}
				}
			}
		})
	}
}

// deliver reads one message, handles it and answers.
func (r *running) deliver(l *lane, m *nats.Msg) {
	in, fault := open(l.spec, m.Subject, m.Header, m.Data, r.cfg.Now())
	if len(l.box) > r.cfg.Mailbox {
		fault = subjects.Faultf(subjects.CodeBusy, "too many messages are waiting; try again")
	}
	if fault != nil {
		r.refuse(l, in, m, fault)
		return
	}
	reply, err := r.handle(l, in)
	var undecoded errUndecoded
	switch {
	case errors.As(err, &undecoded):
		r.refuse(l, in, m, undecoded.fault)
	case err != nil:
		r.answer(m, in, nil, r.fault(l, in, err))
	case l.kind == serve:
		r.answer(m, in, reply, nil)
	}
}

// handle calls the handler with its deadline and turns a panic into an error.
func (r *running) handle(l *lane, in *inbound) (reply []byte, err error) {
	ctx, cancel := r.ctx, context.CancelFunc(func() {})
	if !in.deadline.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, in.deadline)
	}
	defer cancel()
	l.busy.Add(1)
	start := time.Now()
	defer func() {
		if p := recover(); p != nil {
			// What a panic says may hold anything: it goes to the log, never to the asker.
			r.cfg.Log.Error("panic in handler", "actor", r.actor.Name(), "subject", in.subject, "query", in.query, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			reply, err = nil, errPanic
		}
		l.busy.Add(-1)
		l.figures.done(time.Since(start), err)
	}()
	return l.Route.handle(ctx, in, r.out.with(carry{in.query, in.session, in.trace}))
}

var errPanic = errors.New("the handler panicked")

// fault logs a handler's error once, and makes of it what the asker may know.
func (r *running) fault(l *lane, in *inbound, err error) *subjects.Fault {
	log := r.cfg.Log.With("actor", r.actor.Name(), "subject", in.subject, "query", in.query)
	var f *subjects.Fault
	if errors.As(err, &f) {
		log.Info("refused", "code", f.Code, "reason", f.Text)
	} else {
		f = subjects.Faultf(subjects.CodeInternal, "%s failed; its log says why", r.actor.Name())
		if !errors.Is(err, errPanic) {
			log.Error("handler failed", "err", err)
		}
	}
	if isFatal(err) {
		r.failed(err)
	}
	return f
}

// refuse answers for a message no handler saw, and tells of it: a dead letter, and the route's owner.
func (r *running) refuse(l *lane, in *inbound, m *nats.Msg, f *subjects.Fault) {
	l.figures.refused()
	r.answer(m, in, nil, f)
	r.bury(in, f)
	if l.reject != nil {
		ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
		defer cancel()
		l.reject(ctx, Reject{in.subject, in.tokens, in.query, in.session, f}, r.out.with(carry{in.query, in.session, in.trace}))
	}
}

// bury writes the dead letter. The account's name is the only token its owner may use.
func (r *running) bury(in *inbound, f *subjects.Fault) {
	r.cfg.Log.Warn("dead letter", "actor", r.actor.Name(), "subject", in.subject, "code", f.Code, "reason", f.Text, "size", len(in.data))
	if !slices.Contains(subjects.Actors, r.actor.Name()) {
		return // a tool shares its account and may not speak there: the broker records what came of its call
	}
	topic, err := subjects.Dead.With(r.actor.Name())
	if err != nil {
		return
	}
	letter := subjects.DeadLetter{Actor: r.actor.Name(), Subject: clipSubject(in.subject), Code: f.Code, Reason: f.Text, Size: len(in.data), SHA256: digest(in.data), Time: r.cfg.Now().UTC()}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := Post(ctx, r.out.with(carry{in.query, in.session, in.trace}), topic, letter); err != nil {
		r.cfg.Log.Error("dead letter not sent", "actor", r.actor.Name(), "err", err)
	}
}

func clipSubject(s string) string {
	if len(s) > subjects.MaxSubject {
		return s[:subjects.MaxSubject] + "..."
	}
	return s
}

// answer sends the reply or the fault. Where nobody waits, nothing is sent.
func (r *running) answer(m *nats.Msg, in *inbound, body []byte, f *subjects.Fault) {
	if m.Reply == "" || m.Sub == nil {
		return
	}
	reply := &nats.Msg{Subject: m.Reply, Data: body, Header: nats.Header{}}
	if f != nil {
		reply.Header[subjects.HeaderErrCode] = []string{f.Code}
		reply.Header[subjects.HeaderErrText] = []string{f.Text}
		reply.Header[subjects.HeaderType] = []string{subjects.TypeJSON}
		reply.Data, _ = encode(codec(subjects.JSON), f)
	} else {
		reply.Header[subjects.HeaderType] = []string{subjects.Codec(in.codec.reply()).String()}
	}
	if in.query != "" {
		reply.Header[subjects.HeaderQuery] = []string{in.query}
	}
	err := r.nc.PublishMsg(reply)
	if errors.Is(err, nats.ErrMaxPayload) {
		r.answer(m, in, nil, subjects.Faultf(subjects.CodeTooLarge, "the answer is larger than the server takes"))
		return
	}
	if err != nil {
		r.cfg.Log.Error("answer not sent", "actor", r.actor.Name(), "subject", in.subject, "query", in.query, "err", err)
	}
}

// pull starts a loop for each of the actor's consumers that has a route.
func (r *running) pull(ctx context.Context, dial Dial) error {
	var lanes []*lane
	for _, l := range r.routes {
		if l.kind == durable {
			lanes = append(lanes, l)
		}
	}
	if len(lanes) == 0 {
		return nil
	}
	nc, err := dial(r.actor.Name() + "_in")
	if err != nil {
		return err
	}
	r.pullNC = nc
	js, err := jetstream.NewWithAPIPrefix(nc, "core.API")
	if err != nil {
		return fmt.Errorf("preparing to pull: %w", err)
	}
	covered := map[*lane]bool{}
	for _, p := range subjects.Table().Pulls {
		if p.Who != r.actor.Name() {
			continue
		}
		workers := 1
		var mine []*lane
		for _, l := range lanes {
			if l.spec.Keep != p.Stream {
				continue
			}
			mine, covered[l] = append(mine, l), true
			workers = max(workers, l.Route.workers)
		}
		if len(mine) == 0 {
			continue
		}
		if p.OneAt {
			workers = 1
		}
		c, err := js.Consumer(ctx, p.Stream, p.Name)
		if err != nil {
			return fmt.Errorf("finding consumer %s of %s: %w", p.Name, p.Stream, err)
		}
		for range workers {
			r.pulls.Go(func() { r.pullFrom(c, mine) })
		}
	}
	for _, l := range lanes {
		if !covered[l] {
			return fmt.Errorf("no consumer of %s gives %s to it", l.spec.Keep, l.spec.Name)
		}
	}
	return nil
}

// pullFrom pulls one message at a time: of several, an empty one would end the reply over an import.
func (r *running) pullFrom(c jetstream.Consumer, lanes []*lane) {
	pulling, stop := context.WithCancel(r.ctx)
	defer stop()
	go func() {
		select {
		case <-r.quit:
			stop()
		case <-pulling.Done():
		}
	}()
	for pulling.Err() == nil {
		ctx, cancel := context.WithTimeout(pulling, 30*time.Second)
		m, err := c.Next(jetstream.FetchContext(ctx))
		cancel()
		switch {
		case err == nil:
			r.take(m, lanes)
		case pulling.Err() != nil, errors.Is(err, nats.ErrTimeout), errors.Is(err, context.DeadlineExceeded), errors.Is(err, jetstream.ErrNoMessages):
		default:
			// The link is down, or the server restarts: wait for it without spinning.
			select {
			case <-pulling.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
}

// take handles one pulled message: acknowledged when handled, tried again later when not, buried after the last try.
func (r *running) take(m jetstream.Msg, lanes []*lane) {
	var l *lane
	for _, x := range lanes {
		if _, ok := subjects.Match(x.spec.Listen(), m.Subject()); ok {
			l = x
			break
		}
	}
	if l == nil { // the consumer's filter is wider than the routes: not ours to handle
		_ = m.Ack()
		return
	}
	done := make(chan struct{})
	defer close(done)
	go func() { // long work keeps its message
		t := time.NewTicker(subjects.AckWait / 3)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				_ = m.InProgress()
			}
		}
	}()
	in, fault := open(l.spec, m.Subject(), m.Headers(), m.Data(), r.cfg.Now())
	if fault != nil && fault.Code == subjects.CodeExpired { // a kept message outlives its asker's patience
		in.deadline, fault = time.Time{}, nil
		in.codec, fault = codecOf(m.Headers().Get(subjects.HeaderType), l.spec, m.Data())
	}
	var err error
	if fault == nil {
		_, err = r.handle(l, in)
	}
	var undecoded errUndecoded
	if errors.As(err, &undecoded) {
		fault = undecoded.fault
	}
	switch {
	case fault != nil:
		l.figures.refused()
		r.bury(in, fault)
		_ = m.Term()
	case err == nil:
		if err := m.Ack(); err != nil {
			r.cfg.Log.Error("not acknowledged, will come again", "actor", r.actor.Name(), "subject", in.subject, "err", err)
		}
	default:
		f := r.fault(l, in, err)
		meta, merr := m.Metadata()
		if merr == nil && meta.NumDelivered >= subjects.MaxDeliver {
			r.bury(in, subjects.Faultf(f.Code, "given up after %d tries: %s", meta.NumDelivered, f.Text))
			_ = m.Term()
			return
		}
		_ = m.NakWithDelay(time.Second)
	}
}

// halt drains in order: no new messages, handlers finished, what was posted is stored, the actor closed, connections
// closed. It reports what did not finish in time.
func (r *running) halt(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Drain)
	defer cancel()
	var errs []error
	for _, s := range r.subs {
		if err := drainSub(ctx, s); err != nil {
			errs = append(errs, err)
		}
	}
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
	case <-ctx.Done():
		errs = append(errs, fmt.Errorf("handlers of %s did not finish within %s", r.actor.Name(), r.cfg.Drain))
	}
	r.stop()
	if r.out != nil {
		select {
		case <-r.out.js.PublishAsyncComplete():
		case <-ctx.Done():
			errs = append(errs, errors.New("some events were not stored"))
		}
	}
	if c, ok := r.actor.(Closer); ok {
		if err := c.Close(ctx); err != nil {
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

// drainSub stops a subscription and waits until what it had received was handed on.
func drainSub(ctx context.Context, s *nats.Subscription) error {
	closed := s.StatusChanged(nats.SubscriptionClosed)
	if err := s.Drain(); err != nil {
		return nil // already gone with its connection
	}
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("subscription %s did not drain", s.Subject)
	}
}
