package reward

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// testTimeout is how long a test waits for what must come.
const testTimeout = time.Minute

// received is a message as somebody hears it.
type received struct {
	query string
	data  []byte
}

// busHarness is a server under the real grants with a reward, and those who hear of it.
type busHarness struct {
	*bustest.Bus
	t      *testing.T
	reward *actor.Supervised
	user   chan received // reward.event, as the user hears it
	agent  chan received // and as the generator does
	dead   chan received
	memory chan actor.Msg[subjects.Reward] // and as memory pulls it
}

func newBusHarness(t *testing.T) *busHarness {
	t.Helper()
	w := &busHarness{
		Bus: bustest.Start(t), t: t, user: make(chan received, 64), agent: make(chan received, 64),
		dead: make(chan received, 64), memory: make(chan actor.Msg[subjects.Reward], 64),
	}
	w.listen("user", "reward.event", w.user)
	w.listen("generator", "reward.event", w.agent)
	w.listen("user", "dead.reward", w.dead)
	w.run(fakeMemory{w.memory})
	w.start()
	return w
}

func (w *busHarness) listen(role, subject string, to chan received) {
	w.t.Helper()
	nc := w.Connect(role)
	if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
		to <- received{m.Header.Get(subjects.HeaderQuery), m.Data}
	}); err != nil {
		w.t.Fatal(err)
	}
	if err := bustest.ConfirmSubscriptions(w.t.Context(), nc); err != nil {
		w.t.Fatal(err)
	}
}

// fakeMemory is memory, as far as it hears of rewards.
type fakeMemory struct {
	to chan actor.Msg[subjects.Reward]
}

func (fakeMemory) Name() string { return "memory" }

func (s fakeMemory) Routes() []actor.Route {
	return []actor.Route{actor.On(subjects.RewardEvent, func(_ context.Context, in actor.Msg[subjects.Reward],
		_ actor.Out,
	) error {
		s.to <- in
		return nil
	})}
}

func (w *busHarness) run(a actor.Actor) *actor.Supervised {
	w.t.Helper()
	return w.RunActor(a, actor.Config{RetryDelay: 20 * time.Millisecond})
}

func (w *busHarness) start() { w.reward = w.run(New()) }

func (w *busHarness) out(role, session, query string) actor.Out {
	w.t.Helper()
	return w.Out(role).WithIDs(session, query)
}

// publishAnswer says an answer under the key of an account.
func (w *busHarness) publishAnswer(role, session, query string) {
	w.t.Helper()
	r := subjects.Response{
		SessionID: session, QueryID: query, Query: "?", Answer: "42", RespondentID: "operator",
		ToolCalls: []subjects.ToolCall{},
	}
	if err := actor.Emit(w.t.Context(), w.out(role, session, query), subjects.ResponseGeneration, r); err != nil {
		w.t.Fatal(err)
	}
	w.AwaitEvents() // so that events of several authors stay in order
}

func (w *busHarness) publishFeedback(role string, f subjects.Feedback) {
	w.t.Helper()
	if err := actor.Emit(w.t.Context(), w.out(role, "", f.QueryID), subjects.UserFeedback, f); err != nil {
		w.t.Fatal(err)
	}
	w.AwaitEvents() // so that events of several authors stay in order
}

func nextMessage[T any](w *busHarness, from chan T) (v T) {
	w.t.Helper()
	select {
	case v = <-from:
	case <-time.After(testTimeout):
		w.t.Fatal("nothing came")
	}
	return v
}

// rewarded waits for a reward and checks that everybody heard the same.
func (w *busHarness) rewarded() (r subjects.Reward) {
	w.t.Helper()
	person, agent, memory := nextMessage(w, w.user), nextMessage(w, w.agent), nextMessage(w, w.memory)
	if err := json.Unmarshal(person.data, &r); err != nil {
		w.t.Fatal(err)
	}
	if string(person.data) != string(agent.data) || memory.Body != r || memory.From != "reward" ||
		person.query != r.QueryID {
		w.t.Errorf("the user hears %s, the generator %s, memory %+v", person.data, agent.data, memory)
	}
	return r
}

// letter waits for a dead letter, which is about a question.
func (w *busHarness) letter(query string) (d subjects.DeadLetter) {
	w.t.Helper()
	h := nextMessage(w, w.dead)
	if err := json.Unmarshal(h.data, &d); err != nil {
		w.t.Fatal(err)
	}
	if h.query != query || d.Actor != "reward" || d.Subject != "from.user.user.feedback" {
		w.t.Errorf("a letter about %q: %+v", h.query, d)
	}
	return d
}

func hashOf(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

// TestBus: under the real grants what the user says of an answer reaches the one who gave it, the user and memory; what
// cannot be is told in a letter; and a model's word counts through the broker only.
func TestBus(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t)
	w.publishAnswer("generator", "s1", "q1")
	w.publishFeedback("user", subjects.Feedback{QueryID: "q1", Thumb: 1, Words: "perfect"})
	want := subjects.Reward{
		SessionID: "s1", QueryID: "q1", RespondentID: "generator", Value: 1, Count: 1,
		Source: subjects.RewardUser, Thumb: 1, Words: "perfect",
	}
	if got := w.rewarded(); got != want {
		t.Errorf("rewarded %+v, want %+v", got, want)
	}
	// once more, which says nothing new
	w.publishFeedback("user", subjects.Feedback{QueryID: "q1", Thumb: 1, Words: "perfect"})
	w.publishFeedback("gateway", subjects.Feedback{QueryID: "q1", Stars: 2})
	want = subjects.Reward{
		SessionID: "s1", QueryID: "q1", RespondentID: "generator", Value: -0.5, Count: 2,
		Source: subjects.RewardUser, Stars: 2,
	}
	if got := w.rewarded(); got != want {
		t.Errorf("rewarded %+v, want %+v", got, want)
	}

	// Of what nobody answered, and of what nobody saw, there is a letter that whoever sent it knows again.
	w.publishAnswer(subjects.RespondentB, "s1", "qb")
	for _, query := range []string{"q9", "qb"} {
		f := subjects.Feedback{QueryID: query, Thumb: -1, Words: "<wrong> & 'out' ä \u2028"}
		w.publishFeedback("user", f)
		body, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		if d := w.letter(query); d.Code != subjects.CodeUnknownAnswer || d.SHA256 != hashOf(body) ||
			d.Size != len(body) || !strings.HasPrefix(d.Reason, "there is no answer to "+query) ||
			strings.Contains(d.Reason, "wrong") {
			t.Errorf("the letter is %+v", d)
		}
	}
	f := subjects.Feedback{QueryID: "q1", Stars: 6}
	w.publishFeedback("user", f)
	body, _ := json.Marshal(f)
	if d := w.letter("q1"); d.Code != subjects.CodeMalformed || d.SHA256 != hashOf(body) ||
		!strings.Contains(d.Reason, "1 to 5") {
		t.Errorf("the letter is %+v", d)
	}
	raw := []byte(`{"query_id":"q1","thumb":1,"value":1}`)
	m := nats.NewMsg("user.feedback")
	m.Data = raw
	m.Header.Set(subjects.HeaderQuery, "q1")
	if err := w.Connect("user").PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	if d := w.letter("q1"); d.Code != subjects.CodeMalformed || d.SHA256 != hashOf(raw) {
		t.Errorf("the letter is %+v", d)
	}

	// Through the broker's key: the answer before, and not what the user rated.
	w.publishAnswer("generator", "s1", "q2")
	// when it is rewarded, the answer is in the book
	w.publishFeedback("user", subjects.Feedback{QueryID: "q2", Words: "ok"})
	if got := w.rewarded(); got.Value != 0 || got.Words != "ok" {
		t.Errorf("rewarded %+v", got)
	}
	w.publishAnswer("committee", "s1", "q3")
	w.publishFeedback("user", subjects.Feedback{QueryID: "q9", Thumb: 1})
	w.letter("q9")
	res := w.gives("s1", "q4")
	want = subjects.Reward{
		SessionID: "s1", QueryID: "q3", RespondentID: "committee", Value: -1, Count: 1,
		Source: subjects.RewardConversation, Words: "that was wrong",
	}
	if got := w.rewarded(); got != want || res.Error != nil || !strings.HasPrefix(res.Result, "Noted") {
		t.Errorf("rewarded %+v, want %+v; the tool says %+v", got, want, res)
	}
	if res := w.gives("s7", "q4"); res.Error == nil || res.Error.Code != subjects.CodeTool {
		t.Errorf("without an answer: %+v", res)
	}
}

// gives calls the tool under the broker's key.
func (w *busHarness) gives(session, query string) subjects.ToolResult {
	w.t.Helper()
	service, err := subjects.ToolCallService.With("reward", "give_feedback")
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), testTimeout)
	defer cancel()
	res, err := actor.Ask(ctx, w.out("broker", session, query), service,
		subjects.ToolOrder{
			CallID: actor.NewID(), QueryID: query, Args: json.RawMessage(bad1), Caller: "generator",
			Labels: trusted(),
		})
	if err != nil {
		w.t.Fatal(err)
	}
	return res
}

// TestBusFeedbackWaits: what is said while it is away waits for it, and what comes before its answer waits a moment for
// that.
func TestBusFeedbackWaits(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t)
	if err := w.reward.Stop(); err != nil {
		t.Fatal(err)
	}
	w.publishFeedback("user", subjects.Feedback{QueryID: "q1", Thumb: 1})
	w.publishAnswer("generator", "s1", "q1")
	w.publishFeedback("user", subjects.Feedback{QueryID: "q1", Thumb: 1})
	w.start()
	if got := w.rewarded(); got.QueryID != "q1" || got.Count != 1 || got.Value != 1 {
		t.Errorf("rewarded %+v", got)
	}
	// The book outlives it, too: the next one counts on.
	if err := w.reward.Stop(); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.publishFeedback("user", subjects.Feedback{QueryID: "q1", Thumb: -1})
	if got := w.rewarded(); got.Count != 2 || got.Value != -1 {
		t.Errorf("rewarded %+v", got)
	}
	if len(w.dead) > 0 || len(w.user) > 0 {
		t.Error("more was said")
	}
}

// TestBusFeedbackWaitsForUnackedAnswer: an answer is assigned to a process that was killed, and delivered again only
// after AckWait; feedback on it waits for that.
func TestBusFeedbackWaitsForUnackedAnswer(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t)
	if err := w.reward.Stop(); err != nil {
		t.Fatal(err)
	}
	w.publishAnswer("generator", "s1", "q1")
	js, err := jetstream.NewWithAPIPrefix(w.Connect("reward_in"), "core.API")
	if err != nil {
		t.Fatal(err)
	}
	c, err := js.Consumer(t.Context(), "EVENTS", "reward")
	if err != nil {
		t.Fatal(err)
	}
	for { // the first may be assigned to the stopped process, and is then delivered to this one after AckWait
		m, err := c.Next(jetstream.FetchMaxWait(time.Second))
		if err == nil && strings.HasSuffix(m.Subject(), subjects.ResponseGeneration.Name) {
			break
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	w.publishFeedback("user", subjects.Feedback{QueryID: "q1", Thumb: 1})
	w.start()
	if got := w.rewarded(); got.QueryID != "q1" || got.Count != 1 || got.Value != 1 {
		t.Errorf("rewarded %+v", got)
	}
	if len(w.dead) > 0 {
		t.Errorf("a dead letter: %s", (<-w.dead).data)
	}
}

// TestBusRefuses: nobody but the user rates, nobody but reward rewards, and nobody but the broker reaches the tool.
func TestBusRefuses(t *testing.T) {
	t.Parallel()
	w := newBusHarness(t)
	w.publishAnswer("generator", "s1", "q1")
	roles, _ := subjects.Table().Roles()
	tries := 0
	for _, role := range roles {
		nc := w.Connect(role)
		for _, subject := range []string{
			"user.feedback", "from.user.user.feedback", "reward.event",
			"from.reward.reward.event", "live.reward.event", "tool.call.reward.give_feedback", "tool.request.reward",
		} {
			switch {
			case subject == "user.feedback" && slices.Contains(subjects.UserAccounts, role),
				subject == "reward.event" && role == "reward", strings.HasPrefix(subject, "tool.call.reward.") &&
					role == "broker",
				// the broker does not know such a tool
				subject == "tool.request.reward" && slices.Contains(subjects.Agents, role):
				continue
			}
			w.ForgeRequest(nc, subject, "user", []byte(`{"query_id":"q1","thumb":1}`))
			tries++
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if tries < 150 {
		t.Errorf("only %d tries: the table of roles is not what it was", tries)
	}
	// What the server let through would stand before this one.
	w.publishFeedback("user", subjects.Feedback{QueryID: "q1", Stars: 3})
	if got := w.rewarded(); got.Count != 1 || got.Stars != 3 {
		t.Errorf("rewarded %+v", got)
	}
}
