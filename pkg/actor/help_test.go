package actor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"github.com/vmihailenco/msgpack/v5"
	"go.uber.org/goleak"

	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // they wait for servers more than they compute
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what must come. Nothing waits for it to pass.
const patience = 15 * time.Second

// stub is an actor made of its parts.
type stub struct {
	name   string
	routes []actor.Route
	start  func(ctx context.Context, out actor.Out) error
	close  func(ctx context.Context) error
}

func (s *stub) Name() string          { return s.name }
func (s *stub) Routes() []actor.Route { return s.routes }

func (s *stub) Start(ctx context.Context, out actor.Out) error {
	if s.start == nil {
		return nil
	}
	return s.start(ctx, out)
}

func (s *stub) Close(ctx context.Context) error {
	if s.close == nil {
		return nil
	}
	return s.close(ctx)
}

// spec runs the stub itself, whoever restarts it.
func (s *stub) spec() actor.Spec {
	return actor.Spec{Name: s.name, Make: func(context.Context, *nats.Conn) (actor.Actor, error) { return s, nil }}
}

// supervise starts an actor that stops with the test, cleanly.
func supervise(t *testing.T, b *bustest.Bus, spec actor.Spec, cfg actor.Config) *actor.Supervised {
	t.Helper()
	s, err := actor.Supervise(t.Context(), spec, b.Dial, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("stopping %s: %v", spec.Name, err)
		}
	})
	return s
}

// run starts an actor of these routes.
func run(t *testing.T, b *bustest.Bus, name string, cfg actor.Config, routes ...actor.Route) *actor.Supervised {
	t.Helper()
	return supervise(t, b, (&stub{name: name, routes: routes}).spec(), cfg)
}

type toolMsg = actor.Msg[subjects.ToolRequest]

// echo answers with what it was asked.
func echo(_ context.Context, in toolMsg, _ actor.Out) (subjects.ToolResult, error) {
	return subjects.ToolResult{CallID: in.Body.CallID, QueryID: in.Query, Tool: in.Tokens[1], Result: string(in.Body.Args)}, nil
}

// toolX is the service of the tool x as an agent asks it.
func toolX(t testing.TB) subjects.Service[subjects.ToolRequest, subjects.ToolResult] {
	t.Helper()
	s, err := subjects.ToolRequestService.With("x")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newOut(t testing.TB, nc *nats.Conn) actor.Out {
	t.Helper()
	out, err := actor.NewOut(nc)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// call asks for the tool x and returns the answer.
func call(t testing.TB, out actor.Out, id string) (subjects.ToolResult, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return actor.Ask(ctx, out, toolX(t), subjects.ToolRequest{CallID: id, Args: json.RawMessage(`{}`)})
}

func soon() string { return strconv.FormatInt(time.Now().Add(patience).UnixMilli(), 10) }

// decodeMessage is a raw message with headers; an empty value leaves one out.
func decodeMessage(subject string, body []byte, headers ...string) *nats.Msg {
	m := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{}}
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] != "" {
			m.Header[headers[i]] = []string{headers[i+1]}
		}
	}
	return m
}

// request sends a raw message and returns the raw reply.
func request(t testing.TB, nc *nats.Conn, m *nats.Msg) *nats.Msg {
	t.Helper()
	r, err := nc.RequestMsg(m, patience)
	if err != nil {
		t.Fatalf("%s: %v", m.Subject, err)
	}
	return r
}

func pack(t testing.TB, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := msgpack.NewEncoder(&b)
	enc.SetCustomStructTag("json")
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func unpack(t testing.TB, data []byte, v any) {
	t.Helper()
	dec := msgpack.NewDecoder(bytes.NewReader(data))
	dec.SetCustomStructTag("json")
	if err := dec.Decode(v); err != nil {
		t.Fatalf("%x: %v", data, err)
	}
}

// code is the fault code of an error, "" when it is none.
func code(err error) string {
	var f *subjects.Fault
	if errors.As(err, &f) {
		return f.Code
	}
	return ""
}

// listen subscribes and is heard by the server when it returns.
func listen(t testing.TB, nc *nats.Conn, subject string) *nats.Subscription {
	t.Helper()
	s, err := nc.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetPendingLimits(-1, -1); err != nil {
		t.Fatal(err)
	}
	if err := bus.ConfirmSubscriptions(t.Context(), nc); err != nil {
		t.Fatal(err)
	}
	return s
}

func next(t testing.TB, s *nats.Subscription) *nats.Msg {
	t.Helper()
	m, err := s.NextMsg(patience)
	if err != nil {
		t.Fatalf("nothing on %s: %v", s.Subject, err)
	}
	return m
}

// none checks that nothing was heard. A flush through the same server comes after whatever was on its way.
func none(t testing.TB, s *nats.Subscription, nc *nats.Conn) {
	t.Helper()
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if m, err := s.NextMsg(time.Millisecond); err == nil {
		t.Errorf("heard on %s: %s", m.Subject, m.Data)
	}
}

func letter(t testing.TB, s *nats.Subscription) subjects.DeadLetter {
	t.Helper()
	var l subjects.DeadLetter
	if m := next(t, s); json.Unmarshal(m.Data, &l) != nil {
		t.Fatalf("no dead letter: %s", m.Data)
	}
	return l
}

// await receives, or fails when nothing comes.
func await[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

// until asks again and again until ok. It is for what others only show when asked.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// events is the stream as the user may read it.
func events(t testing.TB, user *nats.Conn) jetstream.Stream {
	t.Helper()
	js, err := bus.CoreJetStream(user)
	if err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(t.Context(), "EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// stored is how many messages EVENTS holds.
func stored(t testing.TB, st jetstream.Stream) uint64 {
	t.Helper()
	info, err := st.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Msgs
}

// stats asks discovery for the figures of an actor's only instance.
func stats(t testing.TB, user *nats.Conn, name string) (micro.Stats, []actor.RouteStats) {
	t.Helper()
	var s micro.Stats
	m := request(t, user, decodeMessage("$SRV.STATS."+name, nil))
	if err := json.Unmarshal(m.Data, &s); err != nil {
		t.Fatalf("%s: %v", m.Data, err)
	}
	var figures []actor.RouteStats
	for _, e := range s.Endpoints {
		var f actor.RouteStats
		if err := json.Unmarshal(e.Data, &f); err != nil {
			t.Fatalf("%s: %v", e.Data, err)
		}
		figures = append(figures, f)
	}
	return s, figures
}

// logBook keeps what the runtime logs.
type logBook struct {
	mu    sync.Mutex
	lines []string
}

func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, string(p))
	return len(p), nil
}

func (b *logBook) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// with returns the lines that hold all words.
func (b *logBook) with(words ...string) (out []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
next:
	for _, l := range b.lines {
		for _, w := range words {
			if !strings.Contains(l, w) {
				continue next
			}
		}
		out = append(out, l)
	}
	return out
}

func (b *logBook) String() string { return fmt.Sprint(b.with()) }

// count is how many requests a STATS reply tells of, over all routes.
func count(t testing.TB, reply []byte) (n int) {
	t.Helper()
	var s micro.Stats
	if err := json.Unmarshal(reply, &s); err != nil {
		t.Fatal(err)
	}
	for _, e := range s.Endpoints {
		n += e.NumRequests
	}
	return n
}
