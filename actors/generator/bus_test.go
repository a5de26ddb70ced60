package generator

import (
	"context"
	"encoding/json"
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
	"conclave/pkg/bus/bustest"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/respondent/conversation"
	"conclave/subjects"
)

func TestMain(m *testing.M) {
	bustest.AllowParallel(8)
	os.Exit(m.Run())
}

// patience is the timeout of expected messages.
const patience = time.Minute

// busHarness is a server under the real grants, with fakes of the model and the broker.
type busHarness struct {
	*bustest.Bus
	t       *testing.T
	router  actor.Out
	user    actor.Out
	answers chan subjects.Response
	states  chan subjects.AgentState
	deltas  chan subjects.Delta

	model        fakeActor
	runningModel *actor.Supervised

	mu   sync.Mutex
	chat func(ctx context.Context, r model.Request, say func(model.Chunk) error) error
	ran  map[string]int // calls by id, as the tool saw them
}

func newBusHarness(t *testing.T) *busHarness {
	w := &busHarness{
		Bus: bustest.Start(t), t: t, answers: make(chan subjects.Response, 256), states: make(chan subjects.AgentState,
			4096), deltas: make(chan subjects.Delta, 4096),
		ran: map[string]int{},
	}
	w.chat = func(_ context.Context, r model.Request, say func(model.Chunk) error) error {
		last := r.Messages[len(r.Messages)-1]
		return say(model.Chunk{Content: "You said: " + last.Content, Done: true, Final: model.Final{Model: "test:1b"}})
	}
	w.model = fakeActor{"model", []actor.Route{
		actor.ServeStream(subjects.ModelChat, w.onChat),
		actor.Serve(subjects.ModelListService, func(context.Context, actor.Msg[subjects.Empty],
			actor.Out,
		) (subjects.ModelList, error) {
			return subjects.ModelList{Roles: []subjects.RoleModel{{
				Role: "assistant", Model: "test:1b", Window: 8192,
				Stream: true, Tools: true,
			}}}, nil
		}),
	}}
	w.runningModel = w.start(w.model)
	w.start(fakeActor{"broker", []actor.Route{
		actor.Serve(subjects.BrokerDiscover, func(context.Context, actor.Msg[subjects.DiscoverRequest],
			actor.Out,
		) (subjects.DiscoverReply, error) {
			return subjects.DiscoverReply{Tools: []subjects.ToolSchema{{
				Name: "clock", Description: "tells the time",
				Parameters: json.RawMessage(
					`{"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}`),
			}}}, nil
		}),
		actor.Serve(subjects.ToolRequestService, func(_ context.Context, in actor.Msg[subjects.ToolRequest],
			_ actor.Out,
		) (subjects.ToolResult, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ran[in.Body.CallID]++
			return subjects.ToolResult{CallID: in.Body.CallID, Tool: "clock", Result: "noon for " + in.Query}, nil
		}),
	}})
	w.router, w.user = w.Out("router"), w.Out("user")
	user := w.Connect("user")
	subscribeJSON(t, user, "response.generation", w.answers)
	subscribeJSON(t, user, "agent.state.>", w.states)
	subscribeJSON(t, user, "response.delta.*", w.deltas)
	return w
}

// subscribeJSON decodes messages into a channel.
func subscribeJSON[T any](t *testing.T, nc *nats.Conn, subject string, to chan T) {
	t.Helper()
	_, err := nc.Subscribe(subject, func(m *nats.Msg) {
		var v T
		if err := json.Unmarshal(m.Data, &v); err != nil {
			t.Errorf("%s: %v", m.Subject, err)
			return
		}
		to <- v
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

type fakeActor struct {
	name   string
	routes []actor.Route
}

func (s fakeActor) Name() string          { return s.name }
func (s fakeActor) Routes() []actor.Route { return s.routes }

func (w *busHarness) onChat(ctx context.Context, in actor.Msg[subjects.ChatRequest], say func(subjects.ChatChunk) error,
	_ actor.Out,
) error {
	r, err := wire.DecodeRequest(in.Body)
	if err != nil {
		return err
	}
	w.mu.Lock()
	chat := w.chat
	w.mu.Unlock()
	return chat(ctx, r, func(c model.Chunk) error {
		p, err := wire.EncodeChunk(c)
		if err != nil {
			return err
		}
		return say(p)
	})
}

func (w *busHarness) start(a actor.Actor) *actor.Supervised {
	w.t.Helper()
	return w.RunActor(a, actor.Config{RetryDelay: 20 * time.Millisecond})
}

// askQuestion publishes a question as the router does.
func (w *busHarness) askQuestion(session, query, text string) {
	w.t.Helper()
	topic, err := subjects.QuerySession.With(session)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := actor.Emit(w.t.Context(), w.router.WithIDs(session, query), topic,
		subjects.Query{SessionID: session, QueryID: query, Query: text}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *busHarness) nextAnswer() subjects.Response {
	w.t.Helper()
	select {
	case r := <-w.answers:
		return r
	case <-time.After(patience):
		w.t.Fatal("no answer")
		return subjects.Response{}
	}
}

// awaitConversation waits until a session's conversation holds n turns.
func (w *busHarness) awaitConversation(session string, n int) subjects.Conversation {
	w.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		c, _, err := conversation.Read(w.t.Context(), w.user.Store(bucket), session)
		if err == nil && len(c.Turns) == n {
			return c
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the conversation is %+v, %v", c, err)
		}
	}
}

func TestTurnsOnTheBus(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t)
	w.chat = func(_ context.Context, r model.Request, say func(model.Chunk) error) error {
		last := r.Messages[len(r.Messages)-1]
		if last.Role != model.ToolRole {
			return say(model.Chunk{
				Calls: []model.Call{{Name: "clock", Arguments: json.RawMessage(`{"q":"now"}`)}},
				Done:  true,
			})
		}
		for _, word := range []string{"It ", "is ", "noon."} {
			if err := say(model.Chunk{Content: word}); err != nil {
				return err
			}
		}
		return say(model.Chunk{Done: true, Final: model.Final{Model: "test:1b"}})
	}
	w.start(New(subjects.Generator, shippedConfig()))
	w.askQuestion("s1", "q1", "What time is it?")
	r := w.nextAnswer()
	if r.Answer != "It is noon." || len(r.ToolCalls) != 1 || r.ToolCalls[0].Result != "noon for q1" || r.Error != nil ||
		len(r.Notes) != 0 {
		t.Errorf("answer: %+v", r)
	}
	if c := w.awaitConversation("s1", 1); c.Turns[0].Answer != r.Answer || len(c.Messages()) != 4 {
		t.Errorf("conversation: %+v", c)
	}
	var way []string
	for len(way) == 0 || way[len(way)-1] != "IDLE" {
		select {
		case s := <-w.states:
			if s.Event != "" {
				way = append(way, s.To)
			}
		case <-time.After(patience):
			t.Fatalf("the way ended: %v", way)
		}
	}
	if got := strings.Join(way, " "); got != "RECEIVING GENERATING DISPATCHING_TOOL WAITING_FOR_TOOL GENERATING "+
		"GENERATING PUBLISHING IDLE" {
		t.Errorf("states: %s", got)
	}
	grown := ""
	for len(grown) < len("It is noon.") {
		select {
		case d := <-w.deltas:
			grown += d.Text
		case <-time.After(patience):
			t.Fatalf("it grew to %q", grown)
		}
	}
	if grown != "It is noon." {
		t.Errorf("it grew to %q", grown)
	}
}

// TestQuestionWaitsForModelActor: a question that is asked while the model actor restarts is answered when it is back.
func TestQuestionWaitsForModelActor(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t)
	w.start(New(subjects.Generator, shippedConfig()))
	if err := w.runningModel.Stop(); err != nil {
		t.Fatal(err)
	}
	w.askQuestion("s1", "q1", "hello")
	select {
	case r := <-w.answers:
		t.Fatalf("answered without a model actor: %+v", r)
	case <-time.After(time.Second): // it waits
	}
	w.start(w.model)
	if r := w.nextAnswer(); r.Error != nil || r.Partial || !strings.HasPrefix(r.Answer, "You said: ") {
		t.Errorf("%+v", r)
	}
}

// TestQuestionSurvivesKilledModelActor: a question whose model call was in progress when the model actor was killed is
// answered when it is back, long before the timeout of the call.
func TestQuestionSurvivesKilledModelActor(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t)
	if err := w.runningModel.Stop(); err != nil {
		t.Fatal(err)
	}
	connections := make(chan *nats.Conn, 2)
	w.Run(actor.Spec{Name: "model", Role: "model", Make: func(_ context.Context, nc *nats.Conn) (actor.Actor, error) {
		connections <- nc
		return w.model, nil
	}}, actor.Config{})
	called, reply, calls := make(chan bool, 2), w.chat, atomic.Int32{}
	w.chat = func(ctx context.Context, r model.Request, say func(model.Chunk) error) error {
		if calls.Add(1) > 1 {
			return reply(ctx, r, say)
		}
		called <- true
		<-ctx.Done()
		return ctx.Err()
	}
	w.start(New(subjects.Generator, shippedConfig()))
	w.askQuestion("s1", "q1", "hello")
	<-called
	(<-connections).Close() // it sends no error; the supervisor starts another instance
	if r := w.nextAnswer(); r.Error != nil || r.Partial || !strings.HasPrefix(r.Answer, "You said: ") {
		t.Errorf("%+v", r)
	}
}

// Two generators share the work; within a session the order holds, and each question sees all that was said before.
func TestSessionOrderIsKept(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t)
	var mu sync.Mutex
	history := map[string][]int{}
	w.chat = func(_ context.Context, r model.Request, say func(model.Chunk) error) error {
		last := r.Messages[len(r.Messages)-1].Content
		session, _, _ := strings.Cut(last, " ")
		mu.Lock()
		history[session] = append(history[session], len(r.Messages))
		mu.Unlock()
		return say(model.Chunk{Content: "ok " + last, Done: true})
	}
	w.start(New(subjects.Generator, shippedConfig()))
	w.start(New(subjects.Generator, shippedConfig()))
	const sessions, questions = 6, 5
	for q := range questions {
		for s := range sessions {
			w.askQuestion(fmt.Sprint("s", s), fmt.Sprintf("q%d-%d", s, q), fmt.Sprintf("s%d question %d", s, q))
		}
	}
	seen := map[string]int{}
	for range sessions * questions {
		r := w.nextAnswer()
		if want := fmt.Sprintf("q%s-%d", r.SessionID[1:], seen[r.SessionID]); r.QueryID != want {
			t.Errorf("session %s: got %s, want %s", r.SessionID, r.QueryID, want)
		}
		seen[r.SessionID]++
	}
	mu.Lock()
	defer mu.Unlock()
	for s, lengths := range history {
		if !slices.Equal(lengths, []int{2, 4, 6, 8, 10}) {
			t.Errorf("session %s was sent %v messages", s, lengths)
		}
	}
}

// A turn survives a crash at each step on the real bus: the runtime recovers and the message is redelivered.
func TestCrashOnTheBus(t *testing.T) {
	t.Parallel()
	for _, at := range crashPoints() {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			testCrashAt(t, at)
		})
	}
}

// testCrashAt crashes the generator once at a step of a turn with a call.
func testCrashAt(t *testing.T, at string) {
	w := newBusHarness(t)
	w.chat = func(_ context.Context, r model.Request, say func(model.Chunk) error) error {
		if r.Messages[len(r.Messages)-1].Role != model.ToolRole {
			return say(model.Chunk{
				Calls: []model.Call{{Name: "clock", Arguments: json.RawMessage(`{"q":"now"}`)}},
				Done:  true,
			})
		}
		return say(model.Chunk{Content: "noon", Done: true})
	}
	g := New(subjects.Generator, shippedConfig())
	var once sync.Once
	steps := func(s string) {
		if s == at {
			once.Do(func() { panic(crash(s)) })
		}
	}
	s, err := actor.Supervise(t.Context(),
		actor.Spec{Name: "generator", Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
			return g, nil
		}}, w.Dial, actor.Config{RetryDelay: 5 * time.Millisecond, Steps: steps})
	if err != nil {
		t.Fatal(err)
	}
	const session, query = "s1", "q1"
	w.askQuestion(session, query, "What time is it?")
	c := w.awaitConversation(session, 1)
	if r := w.nextAnswer(); r.QueryID != query || r.Answer != "noon" || len(r.ToolCalls) != 1 ||
		c.Turns[0].QueryID != query {
		t.Errorf("%s: %+v", at, r)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	select {
	case r := <-w.answers:
		t.Errorf("one more answer: %+v", r)
	default:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, n := range w.ran { // a result that came before the crash was not written down is fetched again under its id
		if n > 2 {
			t.Errorf("call %s was sent %d times", id, n)
		}
	}
}

// A canceled turn keeps its text so far, and the model request ends.
func TestStopOnTheBus(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t)
	ended := make(chan struct{})
	w.chat = func(ctx context.Context, _ model.Request, say func(model.Chunk) error) error {
		if err := say(model.Chunk{Content: "Once upon a time"}); err != nil {
			return err
		}
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	}
	w.start(New(subjects.Generator, shippedConfig()))
	w.askQuestion("s1", "q1", "Tell me a tale")
	select {
	case <-w.deltas:
	case <-time.After(patience):
		t.Fatal("nothing grows")
	}
	topic, err := subjects.QueryCancel.With("q1")
	if err != nil {
		t.Fatal(err)
	}
	if err := actor.Emit(t.Context(), w.user, topic, subjects.Cancel{Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	if r := w.nextAnswer(); !r.Partial || r.Answer != "Once upon a time" ||
		!slices.Contains(noteCodes(r.Notes), "stopped") {
		t.Errorf("answer: %+v", r)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the model goes on")
	}
}

// A question that was stored while no generator ran is answered, and a conversation survives a restart.
func TestRestartResumesTurns(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t)
	w.askQuestion("s1", "q1", "first")
	for i, q := range []string{"q1", "q2"} {
		s, err := actor.Supervise(t.Context(),
			actor.Spec{Name: "generator", Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
				return New(subjects.Generator, shippedConfig()), nil
			}}, w.Dial, actor.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if r := w.nextAnswer(); r.QueryID != q {
			t.Errorf("answer: %+v", r)
		}
		w.awaitConversation("s1", i+1)
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if i == 0 {
			w.askQuestion("s1", "q2", "second")
		}
	}
}
