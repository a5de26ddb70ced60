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
	Retry   time.Duration // how long until a kept event whose handler failed is tried again; 0 = 1 s
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
	if c.Retry <= 0 {
		c.Retry = time.Second
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
	taken   atomic.Int64  // workers that have a message
	full    chan struct{} // says that all of them do
	busy    atomic.Int64  // handlers running
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

// guard turns a panic into an error: one actor's mistake must not end the house.
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
		subject, queue := l.spec.Listen(), ""
		if l.kind == serve {
			queue = r.actor.Name()
		}
		// The connection's reader puts messages straight into the mailbox: one goroutine less between a message and its
		// handler. What waits behind a full mailbox is told so.
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

// Room behind a full mailbox, and how soon those who wait there are told. A connection's reader drops what finds no room.
const (
	overflow  = 4096
	shedEvery = 2 * time.Millisecond
)

// open starts the workers of a lane.
func (l *lane) open(r *running) {
	n := l.Route.workers
	if n <= 0 {
		n = r.cfg.Workers
	}
	l.box = make(chan *nats.Msg, r.cfg.Mailbox+overflow)
	l.full = make(chan struct{}, 1)
	work := func(m *nats.Msg) {
		if l.taken.Add(1) == int64(n) {
			select {
			case l.full <- struct{}{}:
			default:
			}
		}
		r.deliver(l, m)
		l.taken.Add(-1)
	}
	for range n {
		l.workers.Go(func() {
			for {
				select {
				case m := <-l.box:
					work(m)
					continue
				default:
				}
				select {
				case m := <-l.box:
					work(m)
				case <-r.quit:
					if len(l.box) == 0 {
						return
					}
				}
			}
		})
	}
	l.workers.Go(func() { l.shed(r, int64(n)) })
}

// shed tells those who wait beyond the mailbox that they do so in vain, while every worker has something to do and
// none could. It looks only then; a worker that takes a message looks by itself.
func (l *lane) shed(r *running, n int64) {
	t := time.NewTicker(time.Hour)
	defer t.Stop()
	for {
		select {
		case <-l.full:
		case <-r.quit:
			return
		}
		for t.Reset(shedEvery); l.taken.Load() == n; {
			for len(l.box) > r.cfg.Mailbox {
				select {
				case m := <-l.box:
					in, _ := l.read(m.Subject, m.Header, m.Data, r.cfg.Now())
					r.refuse(l, in, m, busy(), busy().Text)
				default:
				}
			}
			select {
			case <-t.C:
			case <-r.quit:
				return
			}
		}
		t.Reset(time.Hour)
	}
}

func busy() *subjects.Fault {
	return subjects.Faultf(subjects.CodeBusy, "too many messages are waiting; try again")
}

// deliver reads one message, handles it and answers.
func (r *running) deliver(l *lane, m *nats.Msg) {
	in, fault := l.read(m.Subject, m.Header, m.Data, r.cfg.Now())
	if len(l.box) > r.cfg.Mailbox {
		fault = busy()
	}
	if fault != nil {
		r.refuse(l, in, m, fault, fault.Text)
		return
	}
	reply, err := r.handle(l, in)
	var undecoded errUndecoded
	switch {
	case errors.As(err, &undecoded):
		r.refuse(l, in, m, undecoded.fault, undecoded.reason)
	case err != nil:
		r.answer(l, m, in, nil, r.fault(in, err))
	default:
		r.answer(l, m, in, reply, nil)
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
		if !errors.As(err, new(errUndecoded)) {
			l.figures.done(time.Since(start), err)
		}
	}()
	return l.Route.handle(ctx, in, r.out.with(in.carried()))
}

var errPanic = errors.New("the handler panicked")

// fault logs a handler's error once, and makes of it what the asker may know.
func (r *running) fault(in *inbound, err error) *subjects.Fault {
	log := r.cfg.Log.With("actor", r.actor.Name(), "subject", in.subject, "query", in.query)
	var f *subjects.Fault
	switch found := errors.As(err, &f); {
	case found && f != nil && f.Code != "":
		log.Info("refused", "code", f.Code, "reason", f.Text)
	default:
		if found { // a nil pointer, or a fault without a code: nothing an asker could read
			err = errors.New("the handler returned a fault that says nothing")
		}
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

// refuse answers for a message no handler saw, and tells of it: a dead letter, and the route's owner. m is nil for a
// pulled message, which nobody waits for.
func (r *running) refuse(l *lane, in *inbound, m *nats.Msg, f *subjects.Fault, reason string) {
	l.figures.refused(f.Code)
	if m != nil {
		r.answer(l, m, in, nil, f)
	}
	if !l.spec.Drop || f.Code != subjects.CodeBusy {
		r.bury(in, f.Code, reason)
	}
	if l.reject == nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
	defer cancel()
	err := guard(func() error {
		l.reject(ctx, Reject{in.subject, in.tokens, in.query, in.session, f}, r.out.with(in.carried()))
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
	topic, err := subjects.Dead.With(r.actor.Name())
	if err != nil {
		return
	}
	letter := subjects.DeadLetter{Actor: r.actor.Name(), Subject: clipSubject(in.subject), Code: code, Reason: reason, Size: len(in.data), SHA256: digest(in.data), Time: r.cfg.Now().UTC()}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := Post(ctx, r.out.with(in.carried()), topic, letter); err != nil {
		r.cfg.Log.Error("dead letter not sent", "actor", r.actor.Name(), "err", err)
	}
}

func clipSubject(s string) string {
	if len(s) > subjects.MaxSubject {
		return s[:subjects.MaxSubject] + "..."
	}
	return s
}

// answer sends the reply or the fault. Where nobody waits, nothing is sent: an event's reply subject is its speaker's
// word, and we would say something there with our own rights.
func (r *running) answer(l *lane, m *nats.Msg, in *inbound, body []byte, f *subjects.Fault) {
	if m.Reply == "" || l.kind != serve {
		return
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
	// A pull connection that was closed for good would leave the actor deaf and looking well.
	nc, err := dial(r.actor.Name()+"_in", nats.ClosedHandler(func(*nats.Conn) { r.failed(errors.New("its pulling connection was closed")) }))
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
			if l.spec.Keep != p.Stream || !gives(p, l.spec) {
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

// gives reports whether a consumer's filter lets the route's subject through.
func gives(p subjects.Pull, spec subjects.Spec) bool {
	return len(p.Filter) == 0 || slices.ContainsFunc(p.Filter, func(f string) bool { return subjects.Overlap(f, spec.Listen()) })
}

// pullFrom pulls one message at a time: of several, an empty one would end the reply over an import.
func (r *running) pullFrom(c jetstream.Consumer, lanes []*lane) {
	back := r.pullNC.StatusChanged(nats.CONNECTED)
	defer r.pullNC.RemoveStatusListener(back)
	for !r.quitting() {
		m, err := r.next(c, back)
		switch {
		case err == nil:
			r.take(m, lanes)
		case errors.Is(err, nats.ErrTimeout), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, jetstream.ErrNoMessages):
		default:
			// The link is down, or the server restarts: wait for it without spinning.
			select {
			case <-r.quit:
			case <-back:
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
}

// next waits for one message. A server that restarts forgets that we wait, so a connection that comes back ends it.
func (r *running) next(c jetstream.Consumer, back chan nats.Status) (jetstream.Msg, error) {
	if !r.pullNC.IsConnected() { // a pull that cannot be sent would leave its inbox behind
		return nil, nats.ErrDisconnected
	}
	for len(back) > 0 { // about a connection that we know of
		<-back
	}
	ctx, cancel := context.WithTimeout(r.ctx, 30*time.Second)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-r.quit:
		case <-back:
		case <-ctx.Done():
		}
		cancel()
	}()
	defer func() {
		cancel()
		<-watching // or it could take the next one's signal
	}()
	return c.Next(jetstream.FetchContext(ctx))
}

func (r *running) quitting() bool {
	select {
	case <-r.quit:
		return true
	default:
		return r.ctx.Err() != nil
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
	in, fault := l.read(m.Subject(), m.Headers(), m.Data(), r.cfg.Now())
	if fault != nil {
		r.refuse(l, in, nil, fault, fault.Text)
		_ = m.Term()
		return
	}
	_, err := r.handle(l, in)
	var undecoded errUndecoded
	switch {
	case errors.As(err, &undecoded):
		r.refuse(l, in, nil, undecoded.fault, undecoded.reason)
		_ = m.Term()
	case err == nil:
		if err := m.Ack(); err != nil {
			r.cfg.Log.Error("not acknowledged, will come again", "actor", r.actor.Name(), "subject", in.subject, "err", err)
		}
	default:
		f := r.fault(in, err)
		meta, merr := m.Metadata()
		if merr == nil && meta.NumDelivered >= subjects.MaxDeliver {
			r.bury(in, f.Code, fmt.Sprintf("given up after %d tries: %s", meta.NumDelivered, f.Text))
			_ = m.Term()
			return
		}
		_ = m.NakWithDelay(r.cfg.Retry)
	}
}

// How long a stop may take beyond the drain: for handlers to notice that their context ended, and for what was posted,
// the actor and the connections to be closed.
const (
	noticing = time.Second
	closing  = 5 * time.Second
)

// halt drains in order: no new messages, handlers finished, what was posted is stored, the actor closed, connections
// closed. It reports what did not finish in time.
func (r *running) halt(ctx context.Context) error {
	drain, cancel := context.WithTimeout(ctx, r.cfg.Drain)
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
			errs = append(errs, fmt.Errorf("handlers of %s did not finish within %s, nor when their context ended", r.actor.Name(), r.cfg.Drain))
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

// turnAway answers those who still wait when the time to finish is over.
func (r *running) turnAway() {
	f := subjects.Faultf(subjects.CodeUnavailable, "%s is stopping", r.actor.Name())
	for _, l := range r.routes {
		for len(l.box) > 0 {
			select {
			case m := <-l.box:
				in, _ := l.read(m.Subject, m.Header, m.Data, r.cfg.Now())
				r.refuse(l, in, m, f, f.Text)
			default:
			}
		}
	}
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
