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

	"github.com/nats-io/nats.go"

	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/subjects"
)

// patience is how long a test waits for what must come.
const patience = 20 * time.Second

// court is a server under the real grants with a critic, a model that judges, and the user who listens.
type court struct {
	*bustest.Bus
	t        *testing.T
	graded   chan subjects.Critique
	compared chan subjects.Pairwise
	dead     chan subjects.DeadLetter

	mu    sync.Mutex
	judge func(model.Request) (string, error)
	asked int
}

// bench is the model's account, as far as the critic needs it.
type bench struct{ c *court }

func (bench) Name() string { return "model" }

func (b bench) Routes() []actor.Route {
	return []actor.Route{
		actor.ServeStream(subjects.ModelChat, func(_ context.Context, in actor.Msg[subjects.ChatRequest], say func(subjects.ChatChunk) error, _ actor.Out) error {
			r, err := wire.FromRequest(in.Body)
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
		actor.Serve(subjects.ModelListService, func(context.Context, actor.Msg[subjects.Empty], actor.Out) (subjects.ModelList, error) {
			return subjects.ModelList{Roles: []subjects.RoleModel{{Role: subjects.RoleCritic, Model: "judge:7b", Window: 16384}}}, nil
		}),
	}
}

func newCourt(t *testing.T) *court {
	t.Helper()
	c := &court{Bus: bustest.Start(t), t: t, graded: make(chan subjects.Critique, 256), compared: make(chan subjects.Pairwise, 256), dead: make(chan subjects.DeadLetter, 256), judge: both}
	nc := c.As("user")
	hear(t, nc, "critique.result", c.graded)
	hear(t, nc, "pairwise.result", c.compared)
	hear(t, nc, "dead.critic", c.dead)
	if err := bus.Ready(t.Context(), nc); err != nil {
		t.Fatal(err)
	}
	c.run("model", bench{c})
	return c
}

// hear decodes what the user hears.
func hear[T any](t *testing.T, nc *nats.Conn, subject string, to chan T) {
	t.Helper()
	if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
		var v T
		if err := json.Unmarshal(m.Data, &v); err != nil {
			t.Errorf("%s: %v", subject, err)
		}
		to <- v
	}); err != nil {
		t.Fatal(err)
	}
}

func (c *court) run(name string, a actor.Actor) *actor.Supervised {
	c.t.Helper()
	spec := actor.Spec{Name: name, Make: func(context.Context, *nats.Conn) (actor.Actor, error) { return a, nil }}
	s, err := actor.Supervise(c.t.Context(), spec, c.Dial, actor.Config{RetryDelay: 20 * time.Millisecond})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			c.t.Error(err)
		}
	})
	return s
}

func (c *court) out(role, session, query string) actor.Out {
	c.t.Helper()
	out, err := actor.NewOut(c.As(role))
	if err != nil {
		c.t.Fatal(err)
	}
	return out.WithIDs(session, query)
}

// answers has both accounts answer a question.
func (c *court) answers(query string) {
	c.t.Helper()
	for from, r := range goodAndBad(query) {
		c.answered(from, r)
	}
}

func (c *court) answered(from string, r subjects.Response) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	if err := actor.Emit(ctx, c.out(from, r.SessionID, "q-header"), subjects.ResponseGeneration, r); err != nil {
		c.t.Fatal(err)
	}
}

// next waits for what must come.
func next[T any](c *court, from chan T) (v T) {
	c.t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		c.t.Fatalf("no %T", v)
	}
	return v
}

// nothingMore fails the test when more came than was read. Something new is judged first: whatever was there before it has been.
func (c *court) nothingMore() {
	c.t.Helper()
	r := plain("q-last")
	c.answered("committee", r)
	for {
		g := next(c, c.graded)
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
	c := newCourt(t)
	c.run("critic", New(usual()))
	c.answers("q1")
	var who []string
	for range 2 {
		g := next(c, c.graded)
		if who = append(who, g.RespondentID); g.QueryID != "q1" || g.SessionID != "s1" || g.Score != 4 || g.Model != "judge:7b" || g.Feedback != "Right." {
			t.Errorf("%+v", g)
		}
	}
	if slices.Sort(who); !slices.Equal(who, between) { // both said that they are the generator
		t.Errorf("graded %q", who)
	}
	if v := next(c, c.compared); v.Winner != subjects.RespondentB || v.QueryID != "q1" || len(v.Verdicts) != 2 {
		t.Errorf("%+v", v)
	}
	service, err := subjects.ToolCallService.With("critic", "compare_answers")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	res, err := actor.Ask(ctx, c.out("broker", "s1", "q2"), service, subjects.ToolOrder{CallID: "c1", Args: json.RawMessage(`{"question":"q","first":"Bad","second":"Good"}`)})
	if err != nil || res.Error != nil || !strings.HasPrefix(res.Result, "The second answer is better.") {
		t.Errorf("%+v, %v", res, err)
	}
	c.nothingMore()
}

// TestBusCrashes: a critic that fails at each of its steps, once, says everything once.
func TestBusCrashes(t *testing.T) {
	t.Parallel()
	c := newCourt(t)
	critic := New(usual())
	var mu sync.Mutex
	failed := map[string]bool{}
	critic.Boundary = func(step string) {
		mu.Lock()
		defer mu.Unlock()
		if len(failed) < len(steps) && !failed[step] {
			failed[step] = true
			panic(crash(step))
		}
	}
	c.run("critic", critic)
	// One message cannot fail so often: the tries of each are counted.
	const questions = 6
	for i := range questions {
		c.answers(fmt.Sprintf("q%d", i))
	}
	grades, verdicts := map[string]int{}, map[string]int{}
	for range 2 * questions {
		g := next(c, c.graded)
		grades[g.QueryID+" "+g.RespondentID]++
	}
	for range questions {
		verdicts[next(c, c.compared).QueryID]++
	}
	c.nothingMore()
	if len(grades) != 2*questions || len(verdicts) != questions {
		t.Errorf("grades %v, verdicts %v", grades, verdicts)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(failed) != len(steps) {
		t.Errorf("it failed only at %v", failed)
	}
}

// TestBusWaits: what is answered while the critic is away waits for it, and what was handled does not come again.
func TestBusWaits(t *testing.T) {
	t.Parallel()
	c := newCourt(t)
	first := c.run("critic", New(usual()))
	c.answers("q1")
	next(c, c.compared)
	next(c, c.graded)
	next(c, c.graded)
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	c.answers("q2")
	c.run("critic", New(usual()))
	for range 2 {
		if g := next(c, c.graded); g.QueryID != "q2" {
			t.Errorf("%+v", g)
		}
	}
	if v := next(c, c.compared); v.QueryID != "q2" {
		t.Errorf("%+v", v)
	}
	c.nothingMore()
}

// TestBusGivesUp: when the model stays away, an answer is ungraded in the end and no dead letter is written; one without
// a usable id becomes one.
func TestBusGivesUp(t *testing.T) {
	t.Parallel()
	c := newCourt(t)
	c.judge = fails(subjects.Faultf(subjects.CodeBusy, "too many wait"))
	critic := New(usual())
	critic.pause = 10 * time.Millisecond
	c.run("critic", critic)
	c.answered("committee", plain("q1"))
	if g := next(c, c.graded); g.Score != 0 || g.Ungraded != "given up after 5 tries: too many wait" {
		t.Errorf("%+v", g)
	}
	c.mu.Lock()
	if c.asked != subjects.MaxDeliver {
		t.Errorf("asked %d times", c.asked)
	}
	c.judge = both
	c.mu.Unlock()
	c.answered("committee", plain("no.token"))
	if d := next(c, c.dead); d.Code != subjects.CodeMalformed || d.Subject != "from.committee.response.generation" {
		t.Errorf("%+v", d)
	}
	c.nothingMore()
}
