package memory

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// waitLimit is how long a test waits for what must come.
const waitLimit = 20 * time.Second

// busFixture is a server under the real grants with a memory and a model that makes vectors of words.
type busFixture struct {
	*bustest.Bus
	t      *testing.T
	memory *actor.Supervised
	stored chan subjects.MemoryEvent // as the user hears of it
	graded chan subjects.MemoryEvent
}

// embedder is the model's account, as far as memory needs it.
type embedder struct{}

func (embedder) Name() string { return "model" }

func (embedder) Routes() []actor.Route {
	return []actor.Route{actor.Serve(subjects.ModelEmbed, func(_ context.Context, in actor.Msg[subjects.EmbedRequest],
		_ actor.Out,
	) (subjects.EmbedReply, error) {
		return wordEmbedder("words-1", 64)(in.Body.Texts)
	})}
}

func newBusFixture(t *testing.T) *busFixture {
	t.Helper()
	s := &busFixture{
		Bus: bustest.Start(t), t: t, stored: make(chan subjects.MemoryEvent, 64),
		graded: make(chan subjects.MemoryEvent, 64),
	}
	nc := s.Connect("user")
	for subject, to := range map[string]chan subjects.MemoryEvent{
		"memory.stored":    s.stored,
		"memory.annotated": s.graded,
	} {
		if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
			var ev subjects.MemoryEvent
			if err := json.Unmarshal(m.Data, &ev); err != nil {
				t.Errorf("%s: %v", subject, err)
			}
			to <- ev
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := bustest.ConfirmSubscriptions(t.Context(), nc); err != nil {
		t.Fatal(err)
	}
	s.RunActor(embedder{}, actor.Config{})
	s.start()
	return s
}

// start runs the actor as the system does: its own file, a real audit.
func (s *busFixture) start() {
	s.t.Helper()
	s.memory = s.Run(s.AuditedSpec("memory", func(ctx context.Context, a *audit.Writer, h *audit.Hasher) (actor.Actor,
		error,
	) {
		m := Open(ctx, plainConfig(), s.Dir, a, h)
		if m.unavailable != nil {
			return nil, m.unavailable
		}
		return m, nil
	}), actor.Config{})
}

func (s *busFixture) out(role, session, query string) actor.Out {
	s.t.Helper()
	return s.Out(role).WithIDs(session, query)
}

// next waits for an event.
func (s *busFixture) next(from chan subjects.MemoryEvent) subjects.MemoryEvent {
	s.t.Helper()
	select {
	case ev := <-from:
		return ev
	case <-time.After(waitLimit):
		s.t.Fatal("no event")
	}
	return subjects.MemoryEvent{}
}

// tool has a tool of memory called under the broker's key.
func (s *busFixture) tool(out actor.Out, name, args string, labels *subjects.Labels) subjects.ToolResult {
	s.t.Helper()
	service, err := subjects.ToolCallService.With("memory", name)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), waitLimit)
	defer cancel()
	res, err := actor.Ask(ctx, out, service, subjects.ToolOrder{
		CallID: actor.NewID(), QueryID: "q2",
		Args: json.RawMessage(args), Caller: "generator", Labels: labels,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return res
}

// TestBus: under the real grants an answer is stored under the account that sent it, graded, and found by the user and
// through the broker; the audit log verifies.
func TestBus(t *testing.T) {
	t.Parallel()
	s := newBusFixture(t)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	r := answer1()
	r.GeneratorID, r.RespondentID = "operator", "operator" // who answered is what the server says
	if err := actor.Emit(ctx, s.out("generator", "s1", "q1"), subjects.ResponseGeneration, r); err != nil {
		t.Fatal(err)
	}
	ev := s.next(s.stored)
	id := deriveID(subjects.KindEngram, "q1", "generator")
	if ev.Action != "stored" || !slices.Equal(ev.IDs, []string{id}) || ev.By != "generator" || ev.QueryID != "q1" {
		t.Errorf("it tells %+v", ev)
	}
	if err := actor.Emit(ctx, s.out("critic", "s1", "q1"), subjects.CritiqueResult,
		subjects.Critique{SessionID: "s1", QueryID: "q1", RespondentID: "generator", Score: 4}); err != nil {
		t.Fatal(err)
	}
	if ev := s.next(s.graded); ev.Action != "annotated" || !slices.Equal(ev.IDs, []string{id}) {
		t.Errorf("it tells %+v", ev)
	}

	var replies []subjects.MemoryReply
	user := s.out("user", "s9", "q9")
	for r, err := range actor.AskStream(ctx, user, subjects.MemoryQueryService,
		subjects.MemoryQuery{Query: "Where does Anna live?"}) {
		if err != nil {
			t.Fatal(err)
		}
		replies = append(replies, r)
	}
	if len(replies) != 3 || !replies[2].Done || len(replies[2].Hits) != 1 ||
		replies[2].Hits[0].Entry.Provenance.Agent != "generator" || replies[2].Hits[0].Entry.Grades.Critic != 4 {
		t.Errorf("the user gets %+v", replies)
	}

	broker := s.out("broker", "s1", "q2")
	res := s.tool(broker, "search_memory", `{"query":"Where does Anna live?"}`, trusted())
	if res.Error != nil || !strings.Contains(res.Result, "Rome") || !slices.Equal(res.Recalls, []string{id}) ||
		res.Labels.Trust != subjects.Trusted {
		t.Errorf("the broker gets %+v", res)
	}
	res = s.tool(broker, "save_memory", `{"content":"The bicycle stands in the cellar."}`, nil)
	if res.Error != nil {
		t.Fatal(res.Error)
	}
	if ev := s.next(s.stored); ev.By != "generator" || !slices.Equal(ev.IDs, res.Recalls) || ev.SessionID != "s1" {
		t.Errorf("it tells %+v", ev)
	}
	admined, err := actor.Ask(ctx, user, subjects.MemoryAdminService,
		subjects.MemoryAdminRequest{Op: "show", IDs: res.Recalls})
	if err != nil || len(admined.Entries) != 1 || admined.Entries[0].Provenance.Trust != subjects.Untrusted ||
		admined.Entries[0].Provenance.SessionID != "s1" {
		t.Errorf("without labels it is kept as %+v, %v", admined.Entries, err)
	}
	want := []string{
		"generator memory.write engram before allowed", "generator memory.write engram after ok",
		"critic memory.annotate before allowed", "critic memory.annotate after ok",
		"user memory.read before allowed", "user memory.read after ok",
		"generator memory.read search_memory before allowed", "generator memory.read search_memory after ok",
		"generator memory.write save_memory before allowed", "generator memory.write save_memory after ok",
		"user memory.admin show before allowed", "user memory.admin show after ok",
	}
	// An event is told before the outcome is recorded, so what follows it may be recorded in between.
	got := s.trail(len(want))
	if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("audit\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// trail is what memory wrote into the audit, when there are n records of it at the latest, and checks that it holds.
func (s *busFixture) trail(n int) (out []string) {
	s.t.Helper()
	src, err := bus.NewAuditReader(s.Connect("auditor")).ReadAll(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for deadline := time.Now().Add(waitLimit); len(out) < n && time.Now().Before(deadline); {
		out = nil
		for m, err := range src.Messages {
			if err != nil {
				s.t.Fatal(err)
			}
			batch, err := audit.DecodeBatch(m.Data)
			if err != nil {
				s.t.Fatal(err)
			}
			for _, d := range batch {
				if r := d.Record; r.Phase != subjects.AuditOpen {
					out = append(out,
						strings.Join(
							strings.Fields(strings.Join([]string{
								r.AgentID, r.Action, r.Tool, r.Phase, r.Status,
								r.Reason,
							}, " ")), " "))
				}
			}
		}
	}
	heads, err := audit.ReadHeads(s.Heads())
	if err != nil {
		s.t.Fatal(err)
	}
	rep, err := audit.Verify(s.t.Context(), src, heads, audit.VerifyOptions{Actions: subjects.AuditActions})
	if err != nil || !rep.OK || rep.Pending != 0 || rep.Unfinished != 0 {
		s.t.Fatalf("the audit log does not verify: %+v, %v", rep, err)
	}
	return out
}

// TestBusDeliversEventsAfterRestart: events published while memory is stopped are delivered afterwards, also a grade
// before its answer, and duplicates are stored once.
func TestBusDeliversEventsAfterRestart(t *testing.T) {
	t.Parallel()
	s := newBusFixture(t)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if err := s.memory.Stop(); err != nil {
		t.Fatal(err)
	}
	generator := s.out("generator", "s1", "q1")
	for i, err := range []error{
		actor.Emit(ctx, s.out("reward", "", "q1"), subjects.RewardEvent,
			subjects.Reward{QueryID: "q1", RespondentID: "generator", Value: 1}),
		actor.Emit(ctx, generator, subjects.ResponseGeneration, answer1()),
		actor.Emit(ctx, generator, subjects.ResponseGeneration, answer1()),
	} {
		if err != nil {
			t.Fatal(i, err)
		}
	}
	s.start()
	s.next(s.stored)
	s.next(s.graded)
	// A question behind them: when it is answered, the others are handled.
	if err := actor.Emit(ctx, generator, subjects.ResponseGeneration, told("q2", "Berta", "Oslo")); err != nil {
		t.Fatal(err)
	}
	if ev := s.next(s.stored); ev.QueryID != "q2" {
		t.Errorf("it tells %+v", ev)
	}
	got, err := actor.Ask(ctx, s.out("user", "", ""), subjects.MemoryAdminService,
		subjects.MemoryAdminRequest{Op: "list"})
	if err != nil || len(got.Entries) != 2 || got.Entries[1].Grades.Reward != 1 {
		t.Errorf("kept %+v, %v", got.Entries, err)
	}
}

// TestBusDeniesForeignAccounts: only user accounts reach memory's requests, and only the broker its tools, whatever the
// payload claims.
func TestBusDeniesForeignAccounts(t *testing.T) {
	t.Parallel()
	s := newBusFixture(t)
	roles, _ := subjects.Table().Roles()
	tries := 0
	for _, role := range roles {
		nc := s.Connect(role)
		for _, subject := range []string{
			"memory.query", "memory.write", "memory.admin", "memory.correlated", "ctl.user.memory.admin",
			"ctl.gateway.memory.query",
			"tool.call.memory.search_memory", "tool.call.memory.save_memory", "from.generator.response.generation",
		} {
			person := slices.Contains(subjects.UserAccounts, role) && strings.HasPrefix(subject, "memory.")
			if person || role == "broker" && strings.HasPrefix(subject, "tool.call.memory.") {
				continue
			}
			s.ForgeRequest(nc, subject, "user", []byte(`{"op":"list"}`))
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
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	for _, role := range subjects.UserAccounts {
		got, err := actor.Ask(ctx, s.out(role, "", ""), subjects.MemoryAdminService,
			subjects.MemoryAdminRequest{Op: "list"})
		if err != nil || len(got.Entries) > 0 {
			t.Errorf("%s: %+v, %v", role, got, err)
		}
	}
	want := []string{
		"user memory.admin list before allowed", "user memory.admin list after ok",
		"gateway memory.admin list before allowed", "gateway memory.admin list after ok",
	}
	if got := s.trail(len(want)); !slices.Equal(got, want) {
		t.Errorf("audit %q", got)
	}
}
