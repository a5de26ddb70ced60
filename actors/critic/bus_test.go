package critic

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/subjects"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// busHarness is a server under the real grants with a critic, a model that judges, and the user who listens.
type busHarness struct {
	*bustest.Bus
	t        *testing.T
	graded   chan subjects.Critique
	compared chan subjects.Pairwise
	dead     chan subjects.DeadLetter

	onStep func(step string) // of the actors that run starts; nil = not observed

	mu    sync.Mutex
	judge func(model.Request) (string, error)
	asked int
}

// fakeModel is the model's account, as far as the critic needs it.
type fakeModel struct{ c *busHarness }

func (fakeModel) Name() string { return "model" }

func (b fakeModel) Routes() []actor.Route {
	return []actor.Route{
		actor.ServeStream(subjects.ModelChat, func(_ context.Context, in actor.Msg[subjects.ChatRequest],
			say func(subjects.ChatChunk) error, _ actor.Out,
		) error {
			r, err := wire.DecodeRequest(in.Body)
			if err != nil {
				return err
			}
			if in.From != "critic" || in.Body.Role != subjects.RoleCritic {
				b.c.t.Errorf("%s asks as %s", in.From, in.Body.Role)
			}
			b.c.mu.Lock()
			judge := b.c.judge
			b.c.asked++
			b.c.mu.Unlock()
			words, err := judge(r)
			if err != nil {
				return err
			}
			half := len(words) / 2
			if err := say(subjects.ChatChunk{Content: words[:half]}); err != nil {
				return err
			}
			return say(subjects.ChatChunk{Content: words[half:], Done: true, Model: "judge:7b"})
		}),
		actor.Serve(subjects.ModelListService, func(context.Context, actor.Msg[subjects.Empty],
			actor.Out,
		) (subjects.ModelList, error) {
			return subjects.ModelList{Roles: []subjects.RoleModel{{
				Role: subjects.RoleCritic, Model: "judge:7b",
				Window: 16384,
			}}}, nil
		}),
	}
}

func newBusHarness(t *testing.T) *busHarness {
	t.Helper()
	c := &busHarness{
		Bus: bustest.Start(t), t: t, graded: make(chan subjects.Critique, 256),
		compared: make(chan subjects.Pairwise, 256), dead: make(chan subjects.DeadLetter, 256), judge: judgeEither,
	}
	nc := c.Connect("user")
	bustest.Subscribe(t, nc, "critique.result", c.graded)
	bustest.Subscribe(t, nc, "pairwise.result", c.compared)
	bustest.Subscribe(t, nc, "dead.critic", c.dead)
	if err := bustest.ConfirmSubscriptions(t.Context(), nc); err != nil {
		t.Fatal(err)
	}
	c.run(fakeModel{c})
	return c
}

func (c *busHarness) run(a actor.Actor) *actor.Supervised {
	c.t.Helper()
	return c.RunActor(a, actor.Config{RetryDelay: 20 * time.Millisecond, Steps: c.onStep})
}

func (c *busHarness) out(role, session, query string) actor.Out {
	c.t.Helper()
	return c.Out(role).WithIDs(session, query)
}

// publishPair has both accounts answer a question.
func (c *busHarness) publishPair(query string) {
	c.t.Helper()
	for from, r := range answerPair(query) {
		c.publishAnswer(from, r)
	}
}

func (c *busHarness) publishAnswer(from string, r subjects.Response) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	if err := actor.Emit(ctx, c.out(from, r.SessionID, "q-header"), subjects.ResponseGeneration, r); err != nil {
		c.t.Fatal(err)
	}
}

// nextEvent waits for what must come.
func nextEvent[T any](c *busHarness, from chan T) (v T) {
	c.t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		c.t.Fatalf("no %T", v)
	}
	return v
}

// checkNoMoreEvents fails the test when more came than was read. Something new is judged first: whatever was there
// before it has been.
func (c *busHarness) checkNoMoreEvents() {
	c.t.Helper()
	r := plainAnswer("q-last")
	c.publishAnswer("committee", r)
	for {
		g := nextEvent(c, c.graded)
		if g.QueryID == "q-last" {
			break
		}
		c.t.Errorf("one too many: %+v", g)
	}
	select {
	case v := <-c.compared:
		c.t.Errorf("one too many: %+v", v)
	default:
	}
}

// TestBus: under the real grants answers are graded under the accounts that gave them, and two of them compared; the
// broker reaches the tool.
func TestBus(t *testing.T) {
	t.Parallel()
	c := newBusHarness(t)
	c.run(New(defaultConfig()))
	c.publishPair("q1")
	var who []string
	for range 2 {
		g := nextEvent(c, c.graded)
		if who = append(who, g.RespondentID); g.QueryID != "q1" || g.SessionID != "s1" || g.Score != 4 ||
			g.Model != "judge:7b" || g.Feedback != "Right." {
			t.Errorf("%+v", g)
		}
	}
	if slices.Sort(who); !slices.Equal(who, pairAccounts) { // both said that they are the generator
		t.Errorf("graded %q", who)
	}
	if v := nextEvent(c, c.compared); v.Winner != subjects.RespondentB || v.QueryID != "q1" || len(v.Verdicts) != 2 {
		t.Errorf("%+v", v)
	}
	service, err := subjects.ToolCallService.With("critic", "compare_answers")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	res, err := actor.Ask(ctx, c.out("broker", "s1", "q2"), service,
		subjects.ToolOrder{CallID: "c1", Args: json.RawMessage(`{"question":"q","first":"Bad","second":"Good"}`)})
	if err != nil || res.Error != nil || !strings.HasPrefix(res.Result, "The second answer is better.") {
		t.Errorf("%+v, %v", res, err)
	}
	c.checkNoMoreEvents()
}

// A critic that crashes once at each step publishes everything once.
func TestBusCrashes(t *testing.T) {
	t.Parallel()
	c := newBusHarness(t)
	var mu sync.Mutex
	failed := map[string]bool{}
	c.onStep = func(step string) {
		mu.Lock()
		defer mu.Unlock()
		if len(failed) < len(steps) && !failed[step] {
			failed[step] = true
			panic(crash(step))
		}
	}
	c.run(New(defaultConfig()))
	// One message cannot fail that often: its deliveries are limited.
	const questions = 6
	for i := range questions {
		c.publishPair(fmt.Sprintf("q%d", i))
	}
	grades, verdicts := map[string]int{}, map[string]int{}
	for range 2 * questions {
		g := nextEvent(c, c.graded)
		grades[g.QueryID+" "+g.RespondentID]++
	}
	for range questions {
		verdicts[nextEvent(c, c.compared).QueryID]++
	}
	c.checkNoMoreEvents()
	if len(grades) != 2*questions || len(verdicts) != questions {
		t.Errorf("grades %v, verdicts %v", grades, verdicts)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(failed) != len(steps) {
		t.Errorf("it failed only at %v", failed)
	}
}

// TestBusAnswersWaitForCritic: what is answered while the critic is away waits for it, and what was handled does not
// come again.
func TestBusAnswersWaitForCritic(t *testing.T) {
	t.Parallel()
	c := newBusHarness(t)
	first := c.run(New(defaultConfig()))
	c.publishPair("q1")
	nextEvent(c, c.compared)
	nextEvent(c, c.graded)
	nextEvent(c, c.graded)
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	c.publishPair("q2")
	c.run(New(defaultConfig()))
	for range 2 {
		if g := nextEvent(c, c.graded); g.QueryID != "q2" {
			t.Errorf("%+v", g)
		}
	}
	if v := nextEvent(c, c.compared); v.QueryID != "q2" {
		t.Errorf("%+v", v)
	}
	c.checkNoMoreEvents()
}

// TestBusLastAttemptIsUngraded: when the model stays away, an answer is ungraded in the end and no dead letter is
// written; one without a usable id becomes one.
func TestBusLastAttemptIsUngraded(t *testing.T) {
	t.Parallel()
	c := newBusHarness(t)
	c.judge = fails(subjects.Faultf(subjects.CodeBusy, "too many wait"))
	critic := New(defaultConfig())
	critic.retryDelay = 10 * time.Millisecond
	c.run(critic)
	c.publishAnswer("committee", plainAnswer("q1"))
	if g := nextEvent(c, c.graded); g.Score != 0 || g.Ungraded != "given up after 5 tries: too many wait" {
		t.Errorf("%+v", g)
	}
	c.mu.Lock()
	if c.asked != subjects.MaxDeliver {
		t.Errorf("asked %d times", c.asked)
	}
	c.judge = judgeEither
	c.mu.Unlock()
	c.publishAnswer("committee", plainAnswer("no.token"))
	if d := nextEvent(c, c.dead); d.Code != subjects.CodeMalformed ||
		d.Subject != "from.committee.response.generation" {
		t.Errorf("%+v", d)
	}
	c.checkNoMoreEvents()
}
