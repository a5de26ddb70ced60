package actor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

func TestMain(m *testing.M) {
	bustest.AllowParallel(8)
	// The server's goroutine that sets up a stream's source waits up to half a minute, also after a shutdown.
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*stream).trySetupSourceConsumer.func3"))
}

// timeout bounds the wait for an expected event. No passing test waits for it to elapse.
const timeout = time.Minute

// testActor is an actor assembled from its fields.
type testActor struct {
	name   string
	routes []actor.Route
	start  func(ctx context.Context, out actor.Out) error
	close  func(ctx context.Context) error
}

func (s *testActor) Name() string          { return s.name }
func (s *testActor) Routes() []actor.Route { return s.routes }

func (s *testActor) Start(ctx context.Context, out actor.Out) error {
	if s.start == nil {
		return nil
	}
	return s.start(ctx, out)
}

func (s *testActor) Close(ctx context.Context) error {
	if s.close == nil {
		return nil
	}
	return s.close(ctx)
}

// spec returns the same actor at every restart.
func (s *testActor) spec() actor.Spec {
	return actor.Spec{Name: s.name, Make: func(context.Context, *nats.Conn) (actor.Actor, error) { return s, nil }}
}

// supervise starts an actor and checks that it stops cleanly with the test.
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

// startActor starts an actor with these routes.
func startActor(t *testing.T, b *bustest.Bus, name string, cfg actor.Config, routes ...actor.Route) *actor.Supervised {
	t.Helper()
	return supervise(t, b, (&testActor{name: name, routes: routes}).spec(), cfg)
}

type toolMsg = actor.Msg[subjects.ToolRequest]

// echoArgs replies with the arguments of the request.
func echoArgs(_ context.Context, in toolMsg, _ actor.Out) (subjects.ToolResult, error) {
	return subjects.ToolResult{
		CallID: in.Body.CallID, QueryID: in.Query, Tool: in.Tokens[1],
		Result: string(in.Body.Args),
	}, nil
}

// toolX is the service of the tool x for an agent.
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

// askTool calls the tool x and returns its result.
func askTool(t testing.TB, out actor.Out, id string) (subjects.ToolResult, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return actor.Ask(ctx, out, toolX(t), subjects.ToolRequest{CallID: id, Args: json.RawMessage(`{}`)})
}

func nearDeadline() string { return strconv.FormatInt(time.Now().Add(timeout).UnixMilli(), 10) }

// rawMessage builds a message with headers, given as name and value; an empty value omits the header.
func rawMessage(subject string, body []byte, headers ...string) *nats.Msg {
	m := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{}}
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] != "" {
			m.Header[headers[i]] = []string{headers[i+1]}
		}
	}
	return m
}

// sendRaw sends a raw message and returns the raw reply.
func sendRaw(t testing.TB, nc *nats.Conn, m *nats.Msg) *nats.Msg {
	t.Helper()
	r, err := nc.RequestMsg(m, timeout)
	if err != nil {
		t.Fatalf("%s: %v", m.Subject, err)
	}
	return r
}

func packMsgpack(t testing.TB, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := msgpack.NewEncoder(&b)
	enc.SetCustomStructTag("json")
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func unpackMsgpack(t testing.TB, data []byte, v any) {
	t.Helper()
	dec := msgpack.NewDecoder(bytes.NewReader(data))
	dec.SetCustomStructTag("json")
	if err := dec.Decode(v); err != nil {
		t.Fatalf("%x: %v", data, err)
	}
}

// faultCode is the fault code of an error, "" when it is none.
func faultCode(err error) string {
	var f *subjects.Fault
	if errors.As(err, &f) {
		return f.Code
	}
	return ""
}

// subscribe returns when the server has the subscription.
func subscribe(t testing.TB, nc *nats.Conn, subject string) *nats.Subscription {
	t.Helper()
	s, err := nc.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetPendingLimits(-1, -1); err != nil {
		t.Fatal(err)
	}
	if err := bustest.ConfirmSubscriptions(t.Context(), nc); err != nil {
		t.Fatal(err)
	}
	return s
}

func nextMessage(t testing.TB, s *nats.Subscription) *nats.Msg {
	t.Helper()
	m, err := s.NextMsg(timeout)
	if err != nil {
		t.Fatalf("nothing on %s: %v", s.Subject, err)
	}
	return m
}

// expectNone checks that no message arrived. The flush through the same server arrives after any message in flight.
func expectNone(t testing.TB, s *nats.Subscription, nc *nats.Conn) {
	t.Helper()
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if m, err := s.NextMsg(time.Millisecond); err == nil {
		t.Errorf("received on %s: %s", m.Subject, m.Data)
	}
}

func nextDeadLetter(t testing.TB, s *nats.Subscription) subjects.DeadLetter {
	t.Helper()
	var l subjects.DeadLetter
	if m := nextMessage(t, s); json.Unmarshal(m.Data, &l) != nil {
		t.Fatalf("no dead letter: %s", m.Data)
	}
	return l
}

// receive receives from c, or fails the test at the timeout.
func receive[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(timeout):
		t.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

// waitUntil polls until ok, for state that has no event.
func waitUntil(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(timeout); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, timeout)
		}
	}
}

// eventsStream is EVENTS with the grants of the user.
func eventsStream(t testing.TB, user *nats.Conn) jetstream.Stream {
	t.Helper()
	js, err := bustest.CoreJetStream(user)
	if err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(t.Context(), "EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// countStored returns the number of messages in EVENTS, once it has all that were acknowledged.
func countStored(t testing.TB, b *bustest.Bus, st jetstream.Stream) uint64 {
	t.Helper()
	b.AwaitEvents()
	info, err := st.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Msgs
}

// readStats requests the statistics of an actor's only instance.
func readStats(t testing.TB, user *nats.Conn, name string) (micro.Stats, []actor.RouteStats) {
	t.Helper()
	var s micro.Stats
	m := sendRaw(t, user, rawMessage("$SRV.STATS."+name, nil))
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

// logRecorder records the log lines of the runtime.
type logRecorder struct {
	mu    sync.Mutex
	lines []string
}

func (b *logRecorder) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, string(p))
	return len(p), nil
}

func (b *logRecorder) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// linesWith returns the lines that contain all words.
func (b *logRecorder) linesWith(words ...string) (out []string) {
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

func (b *logRecorder) String() string { return fmt.Sprint(b.linesWith()) }

// countRequests sums the requests of all routes in a STATS reply.
func countRequests(t testing.TB, reply []byte) (n int) {
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
