package actor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// Ready means that a request sent right after the start is answered, on every route.
func TestReadyMeansSubscribed(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	discover := actor.Serve(subjects.BrokerDiscover, func(context.Context, actor.Msg[subjects.DiscoverRequest],
		actor.Out,
	) (subjects.DiscoverReply, error) {
		return subjects.DiscoverReply{}, nil
	})
	spec := (&testActor{name: "broker", routes: []actor.Route{
		actor.Serve(subjects.ToolRequestService, echoArgs),
		discover,
	}}).spec()
	out := newOut(t, b.Connect("operator"))
	for range 8 {
		s, err := actor.Supervise(t.Context(), spec, b.Dial, actor.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if state, restarts, last := s.Health.Snapshot(); state != actor.Ready || restarts != 0 || last != nil {
			t.Errorf("%s, %d restarts, %v", state, restarts, last)
		}
		if _, err := askTool(t, out, "c"); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		if _, err := actor.Ask(ctx, out, subjects.BrokerDiscover, subjects.DiscoverRequest{Task: "x"}); err != nil {
			t.Error(err)
		}
		cancel()
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if state, _, _ := s.Health.Snapshot(); state != actor.Stopped {
			t.Errorf("%s after the stop", state)
		}
		if _, err := askTool(t, out, "c"); faultCode(err) != subjects.CodeUnavailable {
			t.Errorf("after the stop: %v", err)
		}
	}
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	no := errors.New("no disk")
	good := func(context.Context, *nats.Conn) (actor.Actor, error) {
		return &testActor{name: "broker", routes: []actor.Route{actor.Serve(subjects.ToolRequestService, echoArgs)}},
			nil
	}
	for _, tt := range []struct {
		name  string
		spec  actor.Spec
		want  error
		words string
		deny  int    // violations
		lose  string // a key that is lost before
	}{
		{
			"a route without a grant",
			actor.Spec{Name: "critic", Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
				return &testActor{
					name:   "critic",
					routes: []actor.Route{actor.Serve(subjects.ToolRequestService, echoArgs)},
				}, nil
			}},
			actor.ErrPermission, `"agent.*.tool.request.>"`, 1, "",
		},
		{
			"a live topic without a grant",
			actor.Spec{Name: "critic", Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
				return &testActor{
					name: "critic",
					routes: []actor.Route{actor.Subscribe(subjects.RewardEvent,
						func(context.Context, actor.Msg[subjects.Reward], actor.Out) error { return nil })},
				}, nil
			}},
			actor.ErrPermission, `"reward.event"`, 1, "",
		},
		{"no such role", actor.Spec{Name: "nobody", Make: good}, bus.ErrMissingKey, "nobody", 0, ""},
		{
			"a missing key for pulling",
			actor.Spec{Name: "critic", Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
				return &testActor{
					name: "critic",
					routes: []actor.Route{actor.On(subjects.ResponseGeneration,
						func(context.Context, answerMsg, actor.Out) error { return nil })},
				}, nil
			}},
			bus.ErrMissingKey, "critic_in", 0, "critic_in",
		},
		{"it cannot be made", actor.Spec{Name: "broker", Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
			return nil, no
		}}, no, "creating broker", 0, ""},
		{"its making panics", actor.Spec{Name: "broker", Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
			panic("oh no")
		}}, nil, "oh no", 0, ""},
		{"its start fails", actor.Spec{Name: "broker", Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
			return &testActor{name: "broker", start: func(context.Context, actor.Out) error { return no }}, nil
		}}, no, "starting broker", 0, ""},
		{"its start panics", actor.Spec{Name: "broker", Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
			return &testActor{name: "broker", start: func(context.Context, actor.Out) error { panic("oh no") }}, nil
		}}, nil, "oh no", 0, ""},
		{"a missing key", actor.Spec{Name: "broker", Make: good}, bus.ErrMissingKey, "broker", 0, "broker"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b.ExpectViolations(tt.deny)
			if tt.lose != "" {
				if err := os.Remove(b.Keys.Path(tt.lose)); err != nil {
					t.Fatal(err)
				}
			}
			s, err := actor.Supervise(t.Context(), tt.spec, b.Dial, actor.Config{})
			if s != nil || err == nil || tt.want != nil && !errors.Is(err, tt.want) ||
				!strings.Contains(err.Error(), tt.words) || !strings.Contains(err.Error(), tt.spec.Name) ||
				strings.Count(err.Error(), "starting") != 1 {
				t.Fatalf("%v, want %v with %q", err, tt.want, tt.words)
			}
			// Nothing of it is left that would answer.
			if _, err := askTool(t, newOut(t, b.Connect("operator")), "c"); faultCode(err) != subjects.CodeUnavailable {
				t.Errorf("somebody answers: %v", err)
			}
		})
	}
}

// Start runs with all routes subscribed: its publications may get a reply at once.
func TestStartMayPublish(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	announced := subscribe(t, b.Connect("broker"), "tool.schema.*.*")
	topic, err := subjects.ToolSchemaEvent.With("get_datetime")
	if err != nil {
		t.Fatal(err)
	}
	a := &testActor{name: "get_datetime", start: func(ctx context.Context, out actor.Out) error {
		return actor.Emit(ctx, out, topic, subjects.ToolSchema{Name: "get_datetime"})
	}}
	spec := a.spec()
	spec.Role = subjects.ToolRole("get_datetime")
	supervise(t, b, spec, actor.Config{})
	if m := nextMessage(t, announced); m.Subject != "tool.schema.tools.get_datetime" {
		t.Errorf("announced on %s", m.Subject)
	}
}

// The order of a stop: no new messages, the running handler finishes and its reply arrives, its posts are stored,
// then Close, and only then the connection.
func TestStopDrainsHandlers(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	const posts = 300
	entered, gate := make(chan struct{}), make(chan struct{})
	var finished, closed atomic.Bool
	var conn *nats.Conn
	a := &testActor{
		name: "broker",
		routes: []actor.Route{actor.Serve(subjects.ToolRequestService,
			func(ctx context.Context, in toolMsg, out actor.Out) (subjects.ToolResult, error) {
				close(entered)
				<-gate
				topic, err := subjects.ToolResultEvent.With("x")
				if err != nil {
					return subjects.ToolResult{}, err
				}
				for range posts {
					if err := actor.EmitAsync(ctx, out, topic,
						subjects.ToolResult{CallID: in.Body.CallID}); err != nil {
						return subjects.ToolResult{}, err
					}
				}
				finished.Store(true)
				return echoArgs(ctx, in, out)
			})},
	}
	a.close = func(ctx context.Context) error {
		if !finished.Load() {
			t.Error("closed before its handler returned")
		}
		if conn.Status() != nats.CONNECTED || ctx.Err() != nil {
			t.Errorf("closed on a connection that is %s, %v", conn.Status(), ctx.Err())
		}
		closed.Store(true)
		return nil
	}
	s, err := actor.Supervise(t.Context(),
		actor.Spec{Name: "broker", Make: func(_ context.Context, nc *nats.Conn) (actor.Actor, error) {
			conn = nc
			return a, nil
		}}, b.Dial, actor.Config{})
	if err != nil {
		t.Fatal(err)
	}
	user := b.Connect("user")
	kept := eventsStream(t, user)
	out := newOut(t, b.Connect("operator"))
	answered := make(chan error, 1)
	go func() {
		_, err := askTool(t, out, "in flight")
		answered <- err
	}()
	receive(t, "the handler", entered)
	stopped := make(chan error, 1)
	go func() { stopped <- s.Stop() }()
	waitUntil(t, "no new requests", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := actor.Ask(ctx, out, subjects.BrokerDiscover, subjects.DiscoverRequest{})
		_, err2 := actor.Ask(ctx, out, toolX(t), subjects.ToolRequest{CallID: "late"})
		return faultCode(err) == subjects.CodeUnavailable && faultCode(err2) == subjects.CodeUnavailable
	})
	if state, _, _ := s.Health.Snapshot(); state != actor.Draining {
		t.Errorf("state %s", state)
	}
	if len(stopped) > 0 || len(answered) > 0 || closed.Load() {
		t.Error("the stop did not wait for the handler")
	}
	close(gate)
	if err := receive(t, "the answer", answered); err != nil {
		t.Errorf("the request in flight: %v", err)
	}
	if err := receive(t, "the stop", stopped); err != nil {
		t.Error(err)
	}
	if !closed.Load() || !conn.IsClosed() {
		t.Errorf("closed %v, connection %s", closed.Load(), conn.Status())
	}
	if n := countStored(t, b, kept); n != posts {
		t.Errorf("%d of %d posts are stored", n, posts)
	}
}

// A handler that ignores its context is reported and abandoned; one that observes it gets time to finish.
func TestStopDoesNotHang(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		listens bool
	}{{"deaf", false}, {"listens", true}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := bustest.Start(t)
			entered, release, left := make(chan struct{}, 8), make(chan struct{}), make(chan struct{}, 8)
			var closed atomic.Bool
			a := &testActor{
				name: "broker",
				routes: []actor.Route{actor.Serve(subjects.ToolRequestService,
					func(ctx context.Context, _ toolMsg, _ actor.Out) (subjects.ToolResult, error) {
						entered <- struct{}{}
						defer func() { left <- struct{}{} }()
						if tt.listens {
							<-ctx.Done()
							return subjects.ToolResult{}, subjects.Faultf(subjects.CodeUnavailable, "cut short")
						}
						<-release
						return subjects.ToolResult{}, nil
					}, actor.Workers(1))},
			}
			a.close = func(ctx context.Context) error {
				closed.Store(true)
				return ctx.Err()
			}
			const drain = time.Millisecond // for the handlers: the subscriptions have a limit of their own
			s, err := actor.Supervise(t.Context(), a.spec(), b.Dial, actor.Config{DrainTimeout: drain})
			if err != nil {
				t.Fatal(err)
			}
			user, nc := b.Connect("user"), b.Connect("operator")
			answers := subscribe(t, nc, "_INBOX.stop.*")
			for i := range 4 {
				m := rawMessage("tool.request.x", []byte(`{"call_id":"c","args":{}}`), subjects.HeaderDeadline,
					nearDeadline())
				m.Reply = fmt.Sprint("_INBOX.stop.", i)
				if err := nc.PublishMsg(m); err != nil {
					t.Fatal(err)
				}
			}
			receive(t, "the handler", entered)
			waitUntil(t, "three wait", func() bool {
				_, f := readStats(t, user, "broker")
				return f[0].Mailbox == 3
			})
			start := time.Now()
			err = s.Stop()
			if took := time.Since(start); took < drain || took > timeout {
				t.Errorf("the stop took %s", took)
			}
			if tt.listens != (err == nil) || err != nil && (!strings.Contains(err.Error(), "did not finish") ||
				!strings.Contains(err.Error(), "broker")) {
				t.Errorf("the stop says %v", err)
			}
			if !closed.Load() {
				t.Error("not closed")
			}
			want := 4 // each is told
			if !tt.listens {
				want = 3 // but the one whose handler is still at it
			}
			for range want {
				if m := nextMessage(t, answers); m.Header.Get(subjects.HeaderErrCode) != subjects.CodeUnavailable {
					t.Errorf("told %s", m.Header)
				}
			}
			expectNone(t, answers, nc)
			close(release)
			receive(t, "the handler's end", left)
		})
	}
}

// A stop without a server does not wait for it, and its error says so.
func TestStopWithoutServer(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	s, err := actor.Supervise(t.Context(), (&testActor{name: "critic", routes: []actor.Route{
		actor.On(subjects.ResponseGeneration, func(context.Context, answerMsg, actor.Out) error { return nil }),
	}}).spec(), b.Dial, actor.Config{DrainTimeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	b.Server.Stop(t.Context())
	start := time.Now()
	err = s.Stop()
	if took := time.Since(start); took > timeout {
		t.Errorf("the stop took %s", took)
	}
	if err == nil || !strings.Contains(err.Error(), "to the server") {
		t.Errorf("the stop says %v", err)
	}
}

// A fatal error restarts the actor; the statistics show how often and why.
func TestFatalRestarts(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	made := make(chan *nats.Conn, 4)
	var closes atomic.Int64
	book := &logRecorder{}
	s := supervise(t, b, actor.Spec{Name: "broker", Make: func(_ context.Context, nc *nats.Conn) (actor.Actor, error) {
		made <- nc
		broken := false
		return &testActor{name: "broker", close: func(context.Context) error {
			closes.Add(1)
			return nil
		}, routes: []actor.Route{
			actor.Serve(subjects.ToolRequestService,
				func(ctx context.Context, in toolMsg, out actor.Out) (subjects.ToolResult, error) {
					if in.Body.CallID == "break" {
						broken = true
						return subjects.ToolResult{}, actor.Fatal(errors.New("the file is corrupt"))
					}
					if broken {
						t.Error("an actor that had failed was used again")
					}
					return echoArgs(ctx, in, out)
				}, actor.Workers(1)),
		}}, nil
	}}, actor.Config{Log: book.logger()})
	first := receive(t, "the first", made)
	user, out := b.Connect("user"), newOut(t, b.Connect("operator"))
	if _, err := askTool(t, out, "break"); faultCode(err) != subjects.CodeInternal ||
		strings.Contains(err.Error(), "corrupt") {
		t.Errorf("told %v", err)
	}
	second := receive(t, "the second", made)
	if first == second || closes.Load() != 1 || !first.IsClosed() {
		t.Errorf("the first was not closed: %d closes", closes.Load())
	}
	waitUntil(t, "ready again", func() bool { state, _, _ := s.Health.Snapshot(); return state == actor.Ready })
	if _, err := askTool(t, out, "good"); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	if _, restarts, last := s.Health.Snapshot(); restarts != 1 || last == nil ||
		!strings.Contains(last.Error(), "corrupt") {
		t.Errorf("%d restarts, %v", restarts, last)
	}
	if _, f := readStats(t, user, "broker"); f[0].State != actor.Ready || f[0].Restarts != 1 ||
		!strings.Contains(f[0].LastFailure, "corrupt") {
		t.Errorf("figures %+v", f[0])
	}
	if len(book.linesWith("restarting", "corrupt")) != 1 {
		t.Errorf("logged %s", book)
	}
}

// An actor over its restart budget stays down; the others keep running.
func TestRestartBudget(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	var makes atomic.Int64
	a := &testActor{
		name: "broker",
		routes: []actor.Route{actor.Serve(subjects.ToolRequestService,
			func(context.Context, toolMsg, actor.Out) (subjects.ToolResult, error) {
				return subjects.ToolResult{}, actor.Fatal(errors.New("again"))
			})},
	}
	var system actor.System
	t.Cleanup(func() {
		if err := system.Stop(); err != nil {
			t.Error(err)
		}
	})
	handled := make(chan struct{}, 1)
	critic := &testActor{
		name: "critic",
		routes: []actor.Route{actor.On(subjects.ResponseGeneration, func(context.Context, answerMsg, actor.Out) error {
			handled <- struct{}{}
			return nil
		})},
	}
	const budget = 2
	if err := system.Start(t.Context(), critic.spec(), b.Dial, actor.Config{}); err != nil {
		t.Fatal(err)
	}
	if err := system.Start(t.Context(),
		actor.Spec{Name: "broker", Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
			if makes.Add(1) == 3 {
				panic("and now it cannot even be made")
			}
			return a, nil
		}}, b.Dial, actor.Config{Budget: actor.Budget{Intensity: budget, Period: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	broker := system.Actors()[1]
	out := newOut(t, b.Connect("operator"))
	waitUntil(t, "it gives up", func() bool {
		state, _, _ := broker.Health.Snapshot()
		if state == actor.Ready {
			_, _ = askTool(t, out, "c")
		}
		return state == actor.Failed
	})
	if _, restarts, last := broker.Health.Snapshot(); restarts != budget || last == nil || makes.Load() != 1+budget {
		t.Errorf("%d restarts, made %d times, %v", restarts, makes.Load(), last)
	}
	if _, err := askTool(t, out, "c"); faultCode(err) != subjects.CodeUnavailable {
		t.Errorf("a failed actor answers: %v", err)
	}
	publishResponse(t, newOut(t, b.Connect("generator")), "q")
	receive(t, "the other actor", handled)
}

// A closed connection restarts the actor.
func TestClosedConnectionRestarts(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"critic", "critic_in"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			b := bustest.Start(t)
			conns := make(chan *nats.Conn, 4)
			handled := make(chan string, 1)
			a := &testActor{
				name: "critic",
				routes: []actor.Route{actor.On(subjects.ResponseGeneration,
					func(_ context.Context, in answerMsg, _ actor.Out) error {
						handled <- in.Body.QueryID
						return nil
					})},
			}
			s, err := actor.Supervise(t.Context(), a.spec(), func(r string, opts ...nats.Option) (*nats.Conn, error) {
				nc, err := b.Dial(r, opts...)
				if r == role {
					conns <- nc
				}
				return nc, err
			}, actor.Config{})
			if err != nil {
				t.Fatal(err)
			}
			receive(t, "the connection", conns).Close()
			receive(t, "another connection", conns)
			publishResponse(t, newOut(t, b.Connect("generator")), "q1")
			if q := receive(t, "an event", handled); q != "q1" {
				t.Errorf("handled %s", q)
			}
			if _, restarts, last := s.Health.Snapshot(); restarts != 1 ||
				!strings.Contains(fmt.Sprint(last), "closed") {
				t.Errorf("%d restarts, %v", restarts, last)
			}
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Actors survive a restart of the server: they reconnect, and requests, events and statistics continue.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	for _, tcp := range []bool{false, true} {
		t.Run(fmt.Sprintf("tcp=%v", tcp), func(t *testing.T) {
			t.Parallel()
			b := bustest.Start(t)
			b.TCP = tcp
			var makes atomic.Int64
			spec := func(a *testActor) actor.Spec {
				return actor.Spec{Name: a.name, Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
					makes.Add(1)
					return a, nil
				}}
			}
			handled := make(chan string, 8)
			broker := supervise(t, b,
				spec(&testActor{
					name:   "broker",
					routes: []actor.Route{actor.Serve(subjects.ToolRequestService, echoArgs)},
				}), actor.Config{})
			critic := supervise(t, b,
				spec(&testActor{
					name: "critic",
					routes: []actor.Route{actor.On(subjects.ResponseGeneration,
						func(_ context.Context, in answerMsg, _ actor.Out) error {
							handled <- in.Body.QueryID
							return nil
						})},
				}), actor.Config{})
			op, generator := newOut(t, b.Connect("operator")), newOut(t, b.Connect("generator"))
			if _, err := askTool(t, op, "before"); err != nil {
				t.Fatal(err)
			}
			publishResponse(t, generator, "before")
			receive(t, "an event before", handled)

			if err := b.Server.Restart(); err != nil {
				t.Fatal(err)
			}
			waitUntil(t, "requests are answered again", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := actor.Ask(ctx, op, toolX(t), subjects.ToolRequest{CallID: "after"})
				if c := faultCode(err); err != nil && c != subjects.CodeUnavailable && c != subjects.CodeTimeout {
					t.Fatalf("asking over a broken link: %v", err)
				}
				return err == nil
			})
			waitUntil(t, "events are stored again", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				return actor.Emit(ctx, generator, subjects.ResponseGeneration,
					subjects.Response{QueryID: "after"}) == nil
			})
			// What was handled, but not yet known to be when the server went, comes again.
			for receive(t, "an event after", handled) != "after" {
			}
			if makes.Load() != 2 {
				t.Errorf("made %d times", makes.Load())
			}
			for _, s := range []*actor.Supervised{broker, critic} {
				if state, restarts, last := s.Health.Snapshot(); state != actor.Ready || restarts != 0 || last != nil {
					t.Errorf("%s: %s, %d restarts, %v", s.Spec.Name, state, restarts, last)
				}
			}
		})
	}
}

// Callers stop before the services that they call.
func TestSystemStopsInReverse(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	var mu sync.Mutex
	var order []string
	var system actor.System
	names := []string{"model", "memory", "broker", "generator"}
	for _, n := range names {
		a := &testActor{name: n, close: func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, n)
			if n == "memory" {
				return errors.New("its file is locked")
			}
			return nil
		}}
		if err := system.Start(t.Context(), a.spec(), b.Dial, actor.Config{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(system.Actors()); got != len(names) {
		t.Errorf("%d live here", got)
	}
	err := system.Stop()
	if err == nil || !strings.Contains(err.Error(), "closing memory: its file is locked") {
		t.Errorf("the stop says %v", err)
	}
	slices.Reverse(order)
	if !slices.Equal(order, names) {
		t.Errorf("stopped in the order of %q", order)
	}
	if err := system.Stop(); err != nil || len(system.Actors()) != 0 {
		t.Errorf("a second stop: %v", err)
	}
}

// After an abort an actor publishes nothing more and is restarted.
func TestAbortCutsTheConnection(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	began, ended := make(chan struct{}, 4), make(chan error, 4)
	system := &actor.System{}
	s := &testActor{
		name: "broker",
		routes: []actor.Route{actor.Serve(subjects.ToolRequestService,
			func(ctx context.Context, in toolMsg, out actor.Out) (subjects.ToolResult, error) {
				if in.Body.CallID != "cut" {
					return echoArgs(ctx, in, out)
				}
				began <- struct{}{}
				<-ctx.Done()
				ended <- actor.Emit(context.Background(), out, deadLetters(t), subjects.DeadLetter{})
				return subjects.ToolResult{Result: "too late"}, nil
			})},
	}
	if err := system.Start(t.Context(), s.spec(), b.Dial, actor.Config{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { system.Stop() })
	out := newOut(t, b.Connect("operator"))
	answered := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := actor.Ask(ctx, out, toolX(t), subjects.ToolRequest{CallID: "cut", Args: json.RawMessage(`{}`)})
		answered <- err
	}()
	<-began
	if err := system.Abort("broker"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("it spoke after it was cut off")
	}
	if err := <-answered; err == nil {
		t.Error("it answered after it was cut off")
	}
	for deadline := time.Now().Add(timeout); ; {
		if _, err := askTool(t, out, "again"); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("it did not come back: %v", err)
		}
	}
	if err := system.Abort("nobody"); err == nil {
		t.Error("an unknown actor was aborted")
	}
}

func deadLetters(t testing.TB) subjects.Topic[subjects.DeadLetter] {
	t.Helper()
	topic, err := subjects.DeadLetterEvent.With("broker")
	if err != nil {
		t.Fatal(err)
	}
	return topic
}
