package actor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// A publish that the server denies returns nil: only a dead letter and the log report it.
func TestDeniedPublish(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	b.ExpectViolations(2)
	book := &logRecorder{}
	startActor(t, b, "broker", actor.Config{Log: book.logger()},
		actor.Serve(subjects.ToolRequestService,
			func(ctx context.Context, in toolMsg, out actor.Out) (subjects.ToolResult, error) {
				if err := out.Publish(ctx, subjects.Spec{Name: in.Body.CallID}, []byte(`{"secret":"hunter2"}`),
					false); err != nil {
					t.Error(err)
				}
				return echoArgs(ctx, in, out)
			}))
	letters := subscribe(t, b.Connect("user"), "dead.broker")
	out := newOut(t, b.Connect("operator"))
	for _, subject := range []string{"response.delta.q1", "agent.generator.tool.request.x"} {
		if _, err := askTool(t, out, subject); err != nil {
			t.Fatal(err)
		}
		l := nextDeadLetter(t, letters)
		if l.Code != subjects.CodePermission || !strings.Contains(l.Reason, `"`+subject+`"`) ||
			strings.Contains(fmt.Sprint(l), "hunter2") {
			t.Errorf("dead letter %+v", l)
		}
		if len(book.linesWith("dead letter", subjects.CodePermission, subject)) != 1 {
			t.Errorf("logged %s", book)
		}
	}
	if _, err := askTool(t, out, "tool.output.x"); err != nil { // one it may say
		t.Error(err)
	}
}

// A denied dead letter must not cause another one.
func TestDeniedDeadLetter(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	b.ExpectViolations(1)
	startActor(t, b, "broker", actor.Config{},
		actor.Serve(subjects.ToolRequestService,
			func(ctx context.Context, in toolMsg, out actor.Out) (subjects.ToolResult, error) {
				return subjects.ToolResult{}, out.Publish(ctx, subjects.Spec{Name: "dead.critic"}, []byte(`{}`), false)
			}))
	user := b.Connect("user")
	letters := subscribe(t, user, "dead.*")
	if _, err := askTool(t, newOut(t, b.Connect("operator")), "c"); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the violation", func() bool { return len(b.ConnErrors()) == 1 })
	expectNone(t, letters, user)
}

// Emit returns when the event is stored, and fails when it is not.
func TestEmitIsStored(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	user := b.Connect("user")
	kept := eventsStream(t, user)
	out := newOut(t, b.Connect("generator"))
	for i := range 3 {
		publishResponse(t, out, "q")
		if n := countStored(t, b, kept); n != uint64(i+1) {
			t.Fatalf("%d stored after %d", n, i+1)
		}
	}
	state, err := subjects.AgentStateEvent.With("generator")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		emit func(ctx context.Context) error
		want string
	}{
		{"another stream keeps it", func(ctx context.Context) error {
			wrong := subjects.ResponseGeneration
			wrong.Stream = "QUERIES"
			return actor.Emit(ctx, out, wrong, subjects.Response{})
		}, "expected stream"},
		{"too large for the subject", func(ctx context.Context) error {
			return actor.Emit(ctx, out, subjects.ResponseGeneration,
				subjects.Response{Answer: strings.Repeat("x", subjects.MaxBody)})
		}, subjects.CodeTooLarge},
		{"too large for the server", func(ctx context.Context) error {
			large := subjects.ResponseGeneration
			large.MaxPayload = 2 << 20
			return actor.Emit(ctx, out, large, subjects.Response{Answer: strings.Repeat("x", 1<<20)})
		}, "maximum payload"},
		{"a subject with wildcards", func(ctx context.Context) error {
			return actor.Emit(ctx, out, subjects.AgentStateEvent, subjects.AgentState{})
		}, "not complete"},
		{"no time", func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return actor.Emit(ctx, out, state, subjects.AgentState{To: "x"})
		}, "context canceled"},
		{"nothing that can be encoded", func(ctx context.Context) error {
			return actor.Emit(ctx, out, subjects.ResponseGeneration,
				subjects.Response{ToolCalls: []subjects.ToolCall{{Args: json.RawMessage("{")}}})
		}, "encoding response.generation"},
	} {
		if err := tt.emit(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	if err := actor.Emit(t.Context(), out, subjects.AgentStateEvent, subjects.AgentState{}); !errors.Is(err,
		actor.ErrIncomplete) {
		t.Errorf("%v is not ErrIncomplete", err)
	}
}

// An event under a used message id is not stored again, and Emit returns an error.
func TestEmitWithUsedID(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	done := make(chan error, 2)
	startActor(t, b, "generator", actor.Config{NewID: func() string {
		return "always-the-same"
	}}, actor.Subscribe(subjects.QueryCancel, func(ctx context.Context, _ actor.Msg[subjects.Cancel],
		out actor.Out,
	) error {
		done <- actor.Emit(ctx, out, subjects.ResponseGeneration, subjects.Response{})
		return nil
	}))
	user := b.Connect("user")
	for want, err := range []error{nil, errors.New("already used")} {
		if err := user.Publish("query.cancel.q", []byte("x")); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, "the emit", done); (got == nil) != (err == nil) || got != nil &&
			!strings.Contains(got.Error(), err.Error()) {
			t.Errorf("%d: %v, want %v", want, got, err)
		}
	}
}

// Fast posts are all stored, in order.
func TestPostManyInOrder(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	const n = 2500 // more than may be unacknowledged at once
	posted := make(chan error, 1)
	topic, err := subjects.AgentStateEvent.With("generator")
	if err != nil {
		t.Fatal(err)
	}
	book := &logRecorder{}
	s, err := actor.Supervise(t.Context(),
		(&testActor{
			name: "generator",
			routes: []actor.Route{actor.Subscribe(subjects.QueryCancel,
				func(ctx context.Context, _ actor.Msg[subjects.Cancel], out actor.Out) error {
					for i := range n {
						if err := actor.EmitAsync(ctx, out, topic, subjects.AgentState{To: fmt.Sprint(i)}); err != nil {
							posted <- err
							return err
						}
					}
					posted <- nil
					return nil
				})},
		}).spec(), b.Dial, actor.Config{Log: book.logger(), DrainTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	user := b.Connect("user")
	kept := eventsStream(t, user)
	live := subscribe(t, user, "agent.state.>")
	if err := user.Publish("query.cancel.q", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "the posts", posted); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil { // waits for what was posted
		t.Fatal(err)
	}
	// The cancel is an event itself, and the first.
	if got := countStored(t, b, kept); got != n+1 {
		t.Errorf("%d stored, want %d", got, n+1)
	}
	at := func(i int, data []byte) {
		var state subjects.AgentState
		if err := json.Unmarshal(data, &state); err != nil || state.To != fmt.Sprint(i) {
			t.Fatalf("at %d stands %s, %v", i, data, err)
		}
	}
	for i := range n { // the stream passes on what it has stored, in that order
		m := nextMessage(t, live)
		if seq := m.Header.Get("Nats-Sequence"); seq != fmt.Sprint(i+2) {
			t.Fatalf("event %d is the stream's %s", i, seq)
		}
		at(i, m.Data)
	}
	for i := 0; i < n; i += 250 {
		m, err := kept.GetMsg(t.Context(), uint64(i+2))
		if err != nil || m.Subject != "from.generator.agent.state.generator" {
			t.Fatalf("event %d: %+v, %v", i, m, err)
		}
		at(i, m.Data)
	}
	if lines := book.linesWith("not stored"); len(lines) > 0 {
		t.Errorf("logged %s", lines)
	}
}

// A post returns before it is stored, so a failure is only logged.
func TestFailedPostIsLogged(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	book := &logRecorder{}
	wrong := subjects.ResponseGeneration
	wrong.Stream = "QUERIES"
	startActor(t, b, "generator", actor.Config{Log: book.logger()},
		actor.Subscribe(subjects.QueryCancel, func(ctx context.Context, in actor.Msg[subjects.Cancel],
			out actor.Out,
		) error {
			return actor.EmitAsync(ctx, out.WithIDs("s1", in.Tokens[0]), wrong, subjects.Response{Answer: "hunter2"})
		}))
	user := b.Connect("user")
	if err := user.Publish("query.cancel.q7", []byte("x")); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "a line in the log", func() bool {
		return len(book.linesWith("event not stored", `"actor":"generator"`, `"subject":"response.generation"`,
			`"query":"q7"`, "expected stream")) == 1
	})
	if len(book.linesWith("hunter2")) > 0 {
		t.Errorf("logged %s", book)
	}
}

// Each failure of a request has its own code.
func TestAskFaults(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	nc := b.Connect("operator")
	out := newOut(t, nc)
	ask := func(ctx context.Context, args string) error {
		_, err := actor.Ask(ctx, out, toolX(t), subjects.ToolRequest{CallID: "c", Args: json.RawMessage(args)})
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()

	if err := ask(ctx, `{}`); faultCode(err) != subjects.CodeUnavailable { // a wait would end in a timeout
		t.Errorf("no responder: %v", err)
	}
	if err := ask(t.Context(), `{}`); faultCode(err) != subjects.CodeNoDeadline {
		t.Errorf("without a deadline: %v", err)
	}
	if err := ask(ctx, `"`+strings.Repeat("x", 256<<10)+`"`); faultCode(err) != subjects.CodeTooLarge {
		t.Errorf("too large: %v", err)
	}
	if _, err := actor.Ask(ctx, out, subjects.ToolRequestService, subjects.ToolRequest{}); !errors.Is(err,
		actor.ErrIncomplete) {
		t.Errorf("with wildcards: %v", err)
	}

	broker := b.Connect("broker")
	var answer atomic.Value
	answer.Store(func(*nats.Msg) {})
	if _, err := broker.Subscribe("agent.*.tool.request.>", func(m *nats.Msg) {
		answer.Load().(func(*nats.Msg))(m)
	}); err != nil {
		t.Fatal(err)
	}
	if err := broker.Flush(); err != nil {
		t.Fatal(err)
	}
	short, done := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer done()
	if err := ask(short, `{}`); faultCode(err) != subjects.CodeTimeout {
		t.Errorf("no answer: %v", err)
	}
	if err := ask(short, `{}`); faultCode(err) != subjects.CodeTimeout {
		t.Errorf("no time left to ask: %v", err)
	}
	gone, leave := context.WithTimeout(t.Context(), timeout)
	answer.Store(func(*nats.Msg) { leave() })
	if err := ask(gone, `{}`); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller left: %v", err)
	}

	for _, tt := range []struct {
		name    string
		body    string
		headers []string
		code    string
	}{
		{"garbage", "hello", nil, subjects.CodeMalformed},
		{"nothing", "", nil, subjects.CodeMalformed},
		{"an unknown field", `{"call_id":"c","tool":"x","surprise":1}`, nil, subjects.CodeMalformed},
		{"a key twice", `{"call_id":"c","call_id":"d","tool":"x"}`, nil, subjects.CodeMalformed},
		{"a type of its own", `{}`, []string{subjects.HeaderType, "application/xml"}, subjects.CodeMalformed},
		{
			"JSON that says it is msgpack", `{"call_id":"c","tool":"x"}`,
			[]string{subjects.HeaderType, subjects.TypeMsgpack},
			subjects.CodeMalformed,
		},
		{"a fault", `{"code":"denied","text":"no"}`, []string{subjects.HeaderErrCode, "denied"}, subjects.CodeDenied},
		{"a fault in the headers only", `oops`, []string{
			subjects.HeaderErrCode, "denied", subjects.HeaderErrText,
			"no",
		}, subjects.CodeDenied},
		{
			"trick: a fault that says two things", `{"code":"busy","text":"no"}`,
			[]string{subjects.HeaderErrCode, "denied"},
			subjects.CodeDenied,
		},
		{"an answer", `{"call_id":"c","tool":"x"}`, nil, ""},
	} {
		answer.Store(func(m *nats.Msg) { _ = m.RespondMsg(rawMessage("", []byte(tt.body), tt.headers...)) })
		err := ask(ctx, `{}`)
		if faultCode(err) != tt.code || (err == nil) != (tt.code == "") {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.code)
		}
		if err != nil && insides.MatchString(strings.ReplaceAll(err.Error(), "tool.request.x", "")) {
			t.Errorf("%s: says too much: %v", tt.name, err)
		}
	}

	answer.Store(func(*nats.Msg) { nc.Close() })
	if err := ask(ctx, `{}`); faultCode(err) != subjects.CodeUnavailable {
		t.Errorf("closed while waiting: %v", err)
	}
	if err := ask(ctx, `{}`); faultCode(err) != subjects.CodeUnavailable {
		t.Errorf("closed: %v", err)
	}
}

// Compare-and-set on the real store and in the recorder.
func TestStore(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	t.Run("on the bus", func(t *testing.T) { testStore(t, newOut(t, b.Connect("broker"))) })
	t.Run("in the recorder", func(t *testing.T) { testStore(t, (&actortest.Recorder{}).Out()) })

	// Another's bucket is not found, and not by accident.
	b.ExpectViolations(1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, _, err := newOut(t, b.Connect("critic")).Store("ledger").Get(ctx, "k"); err == nil ||
		errors.Is(err, actor.ErrNotFound) {
		t.Errorf("another's bucket: %v", err)
	}
}

// testStore is the conformance suite of a store.
func testStore(t *testing.T, out actor.Out) {
	t.Helper()
	ctx := t.Context()
	s := out.Store("ledger")
	if _, _, err := s.Get(ctx, "call.c1"); !errors.Is(err, actor.ErrNotFound) {
		t.Errorf("a key that is not there: %v", err)
	}
	if _, err := s.Put(ctx, "call.c1", []byte("x"), 7); !errors.Is(err, actor.ErrChanged) {
		t.Errorf("changing what is not there: %v", err)
	}
	r1, err := s.Put(ctx, "call.c1", []byte("one"), 0)
	if err != nil || r1 == 0 {
		t.Fatalf("creating: %d, %v", r1, err)
	}
	if _, err := s.Put(ctx, "call.c1", []byte("two"), 0); !errors.Is(err, actor.ErrChanged) {
		t.Errorf("creating again: %v", err)
	}
	v, r, err := s.Get(ctx, "call.c1")
	if err != nil || string(v) != "one" || r != r1 {
		t.Errorf("reading: %q, %d, %v", v, r, err)
	}
	r2, err := s.Put(ctx, "call.c1", []byte("two"), r1)
	if err != nil || r2 <= r1 {
		t.Errorf("changing: %d, %v", r2, err)
	}
	if _, err := s.Put(ctx, "call.c1", []byte("three"), r1); !errors.Is(err, actor.ErrChanged) {
		t.Errorf("changing with an old revision: %v", err)
	}
	if _, err := s.Put(ctx, "call.c2", nil, 0); err != nil {
		t.Errorf("an empty value: %v", err)
	}
	if v, r, err := out.Store("ledger").Get(ctx, "call.c1"); err != nil || string(v) != "two" || r != r2 {
		t.Errorf("reading: %q, %d, %v", v, r, err)
	}
	if _, _, err := out.Store("spawns").Get(ctx, "call.c1"); !errors.Is(err, actor.ErrNotFound) {
		t.Errorf("the same key in another bucket: %v", err)
	}
	for _, key := range []string{"", "a b", "a..b", ".a", "a.", "*", ">", "a.*"} {
		if _, err := s.Put(ctx, key, []byte("x"), 0); err == nil {
			t.Errorf("the key %q was taken", key)
		}
		if _, _, err := s.Get(ctx, key); err == nil {
			t.Errorf("the key %q was read", key)
		}
	}
}

// TestAuthorOverItsQuotaGetsAnErrorAndOthersGoOn: an author that has published as much as it may in a day is told so
// with each further event. The events of other authors are still stored, and none of them is dropped for those of the
// first.
func TestAuthorOverItsQuotaGetsAnErrorAndOthersGoOn(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t, func(c *bus.ServerConfig) { c.EventMax = 64 << 20 })
	kept := eventsStream(t, b.Connect("user"))
	generator, critic := newOut(t, b.Connect("generator")), newOut(t, b.Connect("critic"))
	publishResponse(t, generator, "before")
	stored := 0
	for err := error(nil); ; stored++ {
		err = actor.Emit(t.Context(), critic, subjects.CritiqueResult,
			subjects.Critique{Feedback: strings.Repeat("x", 700<<10)})
		var f *subjects.Fault
		if errors.As(err, &f) && f.Code == subjects.CodeFull && strings.Contains(f.Text, "quota") {
			break
		}
		if err != nil || stored > 100 {
			t.Fatalf("after %d large events: %v", stored, err)
		}
	}
	publishResponse(t, generator, "after")
	if n := countStored(t, b, kept); n != uint64(stored)+2 || stored == 0 {
		t.Errorf("%d events, %d of them large ones", n, stored)
	}
	if m, err := kept.GetMsg(t.Context(), 1); err != nil || m.Subject != "from.generator.response.generation" {
		t.Errorf("the first event is %v, %v", m, err)
	}
}
