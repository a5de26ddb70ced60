package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/audit"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/policy"
	"conclave/subjects"
)

const officeManifest = `
types:
  orchestrator:
    tools: [search_memory]
    delegable: [fs_read, run_code]
    can_spawn: [coder]
  coder:
    tools: [fs_read, run_code, web_search]
    can_spawn: [researcher]
  researcher:
    tools: [fs_read, web_search]
  assistant:
    tools: [web_search]
    can_spawn: [researcher]
accounts:
  orchestrator: orchestrator
  generator: assistant
limits:
  spawns: 5
  budgets:
    coder: {calls: 10}
`

// spawnFixture is a broker with a recorder, an in-memory audit and the router's turns.
type spawnFixture struct {
	*Broker
	rec actortest.Recorder

	mu      sync.Mutex
	turns   []subjects.Query  // as the router stored them; index+1 is the sequence
	cancels map[string]string // query -> author of its cancellation in EVENTS
	records []subjects.AuditRecord
	refuse  map[string]error // phase -> error of Append
}

func parseRules(t testing.TB, manifest string) policy.Rules {
	t.Helper()
	m, err := policy.ParseManifest([]byte(manifest), "manifest.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return policy.Rules{Manifest: m, Chain: m.Chain(policy.Env{Home: t.TempDir()})}
}

func newSpawnFixture(t testing.TB) *spawnFixture {
	t.Helper()
	o := &spawnFixture{refuse: map[string]error{}}
	h, err := audit.LoadHasher(filepath.Join(t.TempDir(), "params.key"))
	if err != nil {
		t.Fatal(err)
	}
	o.Broker = New(Config{CallTimeout: time.Minute, AuditTimeout: time.Minute},
		policy.NewActiveRules(parseRules(t, officeManifest)), o, h, nil)
	o.rec.Time = noon
	o.rec.Reply = o.answerTurns
	return o
}

// answerTurns serves the JetStream reads of the streams TURNS and QUERIES.
func (o *spawnFixture) answerTurns(subject string, body []byte) (any, error) {
	var q struct {
		Seq  uint64 `json:"seq"`
		Last string `json:"last_by_subj"`
		Next string `json:"next_by_subj"`
	}
	if subject == actor.StoredSubject(subjects.QueryCancel.Stream) {
		return o.answerCancellation(body)
	}
	err := json.Unmarshal(body, &q)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil && subject == actor.StoredSubject(subjects.QueryReceived.Stream) && q.Seq <= uint64(len(o.turns)) {
		data, err := json.Marshal(o.turns[q.Seq-1]) // as the user asked it
		return map[string]any{"message": map[string]any{"subject": "query.received", "seq": q.Seq, "data": data}}, err
	}
	if err != nil || subject != actor.StoredSubject(subjects.QuerySession.Stream) {
		return nil, fmt.Errorf("asked %s %s", subject, body)
	}
	found := -1
	for i, turn := range o.turns {
		switch of := "turn.*." + turn.SessionID; {
		case of == q.Last || q.Last == ">":
			found = i
		case of == q.Next && uint64(i)+1 >= q.Seq && found < 0:
			found = i
		}
	}
	if found < 0 {
		return map[string]any{"error": map[string]any{"code": 404, "description": "no message found"}}, nil
	}
	turn := o.turns[found]
	turn.Source = uint64(found) + 1
	data, err := json.Marshal(turn)
	return map[string]any{"message": map[string]any{
		"subject": "turn.0." + turn.SessionID, "seq": found + 1,
		"data": data,
	}}, err
}

// answerCancellation serves the reads of cancellations in EVENTS.
func (o *spawnFixture) answerCancellation(body []byte) (any, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for query, author := range o.cancels {
		if strings.Contains(string(body), `"from.*.query.cancel.`+query+`"`) {
			return map[string]any{"message": map[string]any{
				"subject": "from." + author + ".query.cancel." + query,
				"seq":     1, "data": []byte("{}"),
			}}, nil
		}
	}
	return map[string]any{"error": map[string]any{"code": 404, "description": "no message found"}}, nil
}

// addEmptyTurn adds a query of the user.
func (o *spawnFixture) addEmptyTurn(session, query string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.turns = append(o.turns, subjects.Query{SessionID: session, QueryID: query, Query: "?"})
}

// Append implements [Audit].
func (o *spawnFixture) Append(_ context.Context, rec subjects.AuditRecord) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.refuse[rec.Phase]; err != nil {
		return err
	}
	o.records = append(o.records, rec)
	return nil
}

// Close implements [Audit].
func (o *spawnFixture) Close(context.Context) error { return nil }

// auditLog returns the records since its last call as "before allowed reason" ...
func (o *spawnFixture) auditLog() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []string
	for _, r := range o.records {
		out = append(out, strings.TrimSpace(r.Phase+" "+r.Status+" "+r.Reason))
	}
	o.records = nil
	return strings.Join(out, "; ")
}

// spawn requests a child agent. who is the account with the path below it.
func (o *spawnFixture) spawn(t testing.TB, who, session, query string, req any) (subjects.SpawnReply, error) {
	t.Helper()
	account, path, below := strings.Cut(who, ".")
	subject := "agent." + account + ".agent.spawn"
	if below {
		subject += "." + path
	}
	var reply subjects.SpawnReply
	raw, err := o.rec.Deliver(t, o, actortest.Message{
		Subject: subject, Session: session, Query: query,
		Deadline: noon.Add(time.Minute), Body: req,
	})
	if err == nil {
		if err := json.Unmarshal([]byte(raw), &reply); err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
	}
	return reply, err
}

func (o *spawnFixture) mustSpawn(t testing.TB, who, session string, req subjects.SpawnRequest) string {
	t.Helper()
	r, err := o.spawn(t, who, session, "q1", req)
	if err != nil {
		t.Fatal(err)
	}
	return who + "." + r.Child
}

func faultText(err error) string {
	var f *subjects.Fault
	if !errors.As(err, &f) {
		return fmt.Sprint(err)
	}
	if f.Denial == nil {
		return f.Code
	}
	return f.Denial.Layer + ": " + f.Denial.Rule
}

func callerOf(id string) subjects.Caller {
	p := strings.Split(id, ".")
	return subjects.Caller{Account: p[0], Path: p[1:]}
}

func TestSpawnIsRegistered(t *testing.T) {
	o := newSpawnFixture(t)
	reply, err := o.spawn(t, "orchestrator", "s1", "q1",
		subjects.SpawnRequest{Type: "coder", Tools: []string{"run_code"}, Budget: &subjects.Budget{Seconds: 9}})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(reply.Child, "coder-") || !slices.Equal(reply.Tools, []string{"run_code"}) {
		t.Errorf("reply %+v", reply)
	}
	first := o.records[0]
	if first.AgentID != "orchestrator" || first.AgentType != "orchestrator" || first.Action != "agent.spawn" ||
		first.Session != "s1" || first.Query != "q1" || first.ParamsHash == "" {
		t.Errorf("record %+v", first)
	}
	if got, want := o.auditLog(), "before allowed "+reply.Child+"; after ok"; got != want {
		t.Errorf("on record %s, want %s", got, want)
	}
	below := o.mustSpawn(t, "orchestrator."+reply.Child, "s1", subjects.SpawnRequest{Type: "researcher"})
	if r := o.records[0]; r.AgentType != "coder" || !slices.Equal(r.Lineage, []string{"orchestrator", reply.Child}) {
		t.Errorf("record of the child's child %+v", r)
	}
	line, budgets, err := loadLineage(t.Context(), o.rec.Out(), callerOf(below), "s1")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("[{%s coder true [run_code]} {%s researcher false []}]", callerOf(below).Path[0],
		callerOf(below).Path[1]); fmt.Sprint(line) != want {
		t.Errorf("line %v, want %s", line, want)
	}
	if want := []subjects.Budget{{Calls: 10, Seconds: 9}, {}}; !slices.Equal(budgets, want) {
		t.Errorf("budgets %+v, want %+v", budgets, want)
	}
}

func TestSpawnDenials(t *testing.T) {
	for _, tt := range []struct {
		name, who, session, query string
		req                       any
		want                      string // layer and rule, or the code
		status                    string // on record
	}{
		{
			"a type that it may not spawn", "generator", "s1", "q1",
			subjects.SpawnRequest{Type: "coder"},
			"lineage: may_not_spawn", "denied",
		},
		{
			"trick: a plan of another account", "generator", "s1", "q1",
			subjects.SpawnRequest{Type: "researcher", Plan: "search for the code"},
			subjects.CodeMalformed, "denied",
		},
		{
			"an unknown type", "generator", "s1", "q1",
			subjects.SpawnRequest{Type: "painter"},
			"lineage: unknown_type",
			"denied",
		},
		{
			"more tools than it could have", "generator", "s1", "q1",
			subjects.SpawnRequest{Type: "researcher", Tools: []string{"fs_read"}},
			"lineage: narrowing", "denied",
		},
		{
			"an account without a type", "committee", "s1", "q1",
			subjects.SpawnRequest{Type: "researcher"},
			"lineage: unknown_account", "denied",
		},
		{"no session", "generator", "", "q1", subjects.SpawnRequest{Type: "researcher"}, "malformed", "denied"},
		{"no query", "generator", "s1", "", subjects.SpawnRequest{Type: "researcher"}, "malformed", "denied"},

		{
			"trick: below an unregistered agent", "orchestrator.coder-1", "s1", "q1",
			subjects.SpawnRequest{Type: "researcher"},
			"lineage: unregistered", "denied",
		},
		{
			"trick: its own type", "generator", "s1", "q1",
			subjects.SpawnRequest{Type: "assistant"},
			"lineage: self_spawn", "denied",
		},
		{
			"trick: negative budget", "generator", "s1", "q1",
			subjects.SpawnRequest{Type: "researcher", Budget: &subjects.Budget{Calls: -5}},
			"lineage: bad_budget",
			"denied",
		},
		{
			"trick: path too deep", "orchestrator.a.b.c.d.e", "s1", "q1",
			subjects.SpawnRequest{Type: "researcher"},
			"bad_subject", "refused",
		},
		{
			"trick: the query counter as parent", "_query.generator", "s1", "q1",
			subjects.SpawnRequest{Type: "researcher"},
			"lineage: unknown_account", "denied",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := newSpawnFixture(t)
			_, err := o.spawn(t, tt.who, tt.session, tt.query, tt.req)
			if faultText(err) != tt.want {
				t.Fatalf("%v, want %s", err, tt.want)
			}
			if got, want := o.auditLog(), "before "+tt.status+" "+tt.want; got != want {
				t.Errorf("on record %s, want %s", got, want)
			}
			if keys, err := o.rec.Out().Store(bucketSpawns).Keys(t.Context(), ""); err != nil || len(keys) != 0 {
				t.Errorf("refused, and yet there is %v, %v", keys, err)
			}
		})
	}
}

// TestSpawnNeedsAudit: without an acknowledged record no agent is spawned, and an unrecorded denial is a no-audit
// fault.
func TestSpawnNeedsAudit(t *testing.T) {
	for _, tt := range []struct{ name, phase, typ, code string }{
		{"before", subjects.AuditBefore, "researcher", subjects.CodeNoAudit},
		{"of a denial", subjects.AuditBefore, "coder", subjects.CodeNoAudit},
		{"after", subjects.AuditAfter, "researcher", subjects.CodeUnrecorded},
	} {
		o := newSpawnFixture(t)
		o.refuse[tt.phase] = errors.New("not stored")
		reply, err := o.spawn(t, "generator", "s1", "q1", subjects.SpawnRequest{Type: tt.typ})
		if actortest.Code(err) != tt.code || reply.Child != "" {
			t.Errorf("%s: %+v, %v, want %s", tt.name, reply, err, tt.code)
		}
		keys, err := o.rec.Out().Store(bucketSpawns).Keys(t.Context(), "generator")
		if err != nil || tt.phase == subjects.AuditBefore && len(keys) != 0 {
			t.Errorf("%s: there is %v, %v", tt.name, keys, err)
		}
	}
}

func TestSpawnWithoutRegistryFails(t *testing.T) {
	o := newSpawnFixture(t)
	o.rec.FailStore = errors.New("disk full")
	if _, err := o.spawn(t, "generator", "s1", "q1", subjects.SpawnRequest{Type: "researcher"}); actortest.Code(
		err) != subjects.CodeUnavailable {
		t.Errorf("%v", err)
	}
	if got := o.auditLog(); got != "before denied unavailable" {
		t.Errorf("on record %s", got)
	}
	if len(o.rec.Logged()) == 0 {
		t.Error("what broke is not in the log")
	}
}

// TestSpawnLimitPerQuery: the limit counts all agents of a query below one account, also under concurrent requests.
func TestSpawnLimitPerQuery(t *testing.T) {
	o := newSpawnFixture(t)
	coder := o.mustSpawn(t, "orchestrator", "s1", subjects.SpawnRequest{Type: "coder"})
	var wg sync.WaitGroup
	got := make(chan string, 8)
	for range 8 {
		wg.Go(func() {
			_, err := o.spawn(t, coder, "s1", "q1", subjects.SpawnRequest{Type: "researcher"})
			got <- faultText(err)
		})
	}
	wg.Wait()
	close(got)
	count := map[string]int{}
	for r := range got {
		count[r]++
	}
	if count["<nil>"] != 4 || count["limits: spawns"] != 4 {
		t.Errorf("of eight, %v; want four, and four over the limit of five", count)
	}
	if _, err := o.spawn(t, "orchestrator", "s1", "q1", subjects.SpawnRequest{Type: "coder"}); actortest.Code(
		err) != subjects.CodeLimit {
		t.Errorf("one more: %v", err)
	}
	if _, err := o.spawn(t, "orchestrator", "s1", "q2", subjects.SpawnRequest{Type: "coder"}); err != nil {
		t.Errorf("the next question: %v", err)
	}
	if _, err := o.spawn(t, "generator", "s1", "q1", subjects.SpawnRequest{Type: "researcher"}); err != nil {
		t.Errorf("another account: %v", err)
	}
}

// TestLoadLineage: a lineage ends before the first agent that was not spawned in this session.
func TestLoadLineage(t *testing.T) {
	o := newSpawnFixture(t)
	coder := o.mustSpawn(t, "orchestrator", "s1", subjects.SpawnRequest{Type: "coder"})
	below := o.mustSpawn(t, coder, "s1", subjects.SpawnRequest{Type: "researcher"})
	other := o.mustSpawn(t, "orchestrator", "s2", subjects.SpawnRequest{Type: "coder"})
	for _, tt := range []struct {
		name, who, session string
		want               int
	}{
		{"an account", "orchestrator", "s1", 0},
		{"a child", coder, "s1", 1},
		{"a child's child", below, "s1", 2},
		{"unregistered child", coder + ".researcher-0", "s1", 1},
		{"child of an unregistered agent", "orchestrator.coder-0.researcher-0", "s1", 0},
		{"trick: a child of another session", other, "s1", 0},
		{"trick: a child in another session", below, "s2", 0},
		{"trick: no session", below, "", 0},
		{"trick: the child of another account", "generator." + callerOf(coder).Path[0], "s1", 0},
	} {
		line, _, err := loadLineage(t.Context(), o.rec.Out(), callerOf(tt.who), tt.session)
		if err != nil || len(line) != tt.want {
			t.Errorf("%s: %v, %v, want %d", tt.name, line, err, tt.want)
		}
	}
	for key, entry := range map[string]string{
		"orchestrator.coder-free": `{"type":"coder","budget":{},"session":"","query":"q1",` +
			`"made":"2026-01-15T12:00:00Z"}`,
		"orchestrator.coder-bad": `{"type":"coder","session":"s1","root":true}`,
	} {
		if _, err := o.rec.Out().Store(bucketSpawns).Put(t.Context(), key, []byte(entry), 0); err != nil {
			t.Fatal(err)
		}
	}
	if line, _, err := loadLineage(t.Context(), o.rec.Out(), callerOf("orchestrator.coder-free"), ""); err != nil ||
		line != nil {
		t.Errorf("a child of no session: %v, %v", line, err)
	}
	if line, _, err := loadLineage(t.Context(), o.rec.Out(), callerOf("orchestrator.coder-bad"), "s1"); err == nil ||
		line != nil {
		t.Errorf("an entry that nobody understands: %v, %v", line, err)
	}
}

// TestAgentOfAnotherSessionIsDenied: the chain denies an agent of another session, with a reason.
func TestAgentOfAnotherSessionIsDenied(t *testing.T) {
	o := newSpawnFixture(t)
	coder := callerOf(o.mustSpawn(t, "orchestrator", "s1", subjects.SpawnRequest{Type: "coder"}))
	for session, want := range map[string]string{"s1": "", "s2": policy.RuleUnregistered} {
		line, _, err := loadLineage(t.Context(), o.rec.Out(), coder, session)
		if err != nil {
			t.Fatal(err)
		}
		d := policy.Chain{policy.LineageLayer{Manifest: o.rules.Load().Manifest}}.Decide(t.Context(), policy.Call{
			Caller: coder, Type: "coder", Lineage: line, Session: session, Tool: policy.Tool{
				Name:  "fs_read",
				Known: true,
			},
		})
		if d.Allowed() != (want == "") || want != "" && d.Denial().Rule != want {
			t.Errorf("in %s: allowed %v, %+v", session, d.Allowed(), d.Denial())
		}
	}
}

// TestSpawnFollowsOverrides: a grant applies to the child, and disabled tools are not offered to it.
func TestSpawnFollowsOverrides(t *testing.T) {
	o := newSpawnFixture(t)
	o.addEmptyTurn("s1", "q1")
	if _,
		err := o.config(t, "user", subjects.SessionConfig{
		SessionID: "s1", Override: "ALL",
		Grant: []string{"assistant:fs_read"}, Disable: []string{"web_search"},
	}); err != nil {
		t.Fatal(err)
	}
	reply, err := o.spawn(t, "generator", "s1", "q1", subjects.SpawnRequest{Type: "researcher"})
	if err != nil || !slices.Equal(reply.Tools, []string{"fs_read"}) {
		t.Errorf("%+v, %v", reply, err)
	}
	if _, err := o.spawn(t, "generator", "s1", "q1", subjects.SpawnRequest{Type: "coder"}); faultText(
		err) != "lineage: may_not_spawn" {
		t.Errorf("under ALL: %v", err)
	}
	if _, err := o.rec.Out().Store("session_config").Put(t.Context(), "s2", []byte("not JSON"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := o.spawn(t, "generator", "s2", "q1", subjects.SpawnRequest{Type: "researcher"}); actortest.Code(
		err) != subjects.CodeUnavailable {
		t.Errorf("a session of which nobody knows what is set: %v", err)
	}
}

// startSpawnBroker runs a broker on a real server under the real grants.
func startSpawnBroker(t *testing.T) *bustest.Bus {
	t.Helper()
	w := bustest.Start(t)
	w.Run(w.AuditedSpec("broker", func(_ context.Context, a *audit.Writer, h *audit.Hasher) (actor.Actor, error) {
		return New(Config{CallTimeout: time.Minute, AuditTimeout: time.Minute},
			policy.NewActiveRules(parseRules(t, officeManifest)), a, h, nil), nil
	}), actor.Config{})
	return w
}

func outAs(t *testing.T, w *bustest.Bus, role string) actor.Out {
	t.Helper()
	out, err := actor.NewOut(w.Connect(role))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// requestOn sends a request on the bus.
func requestOn[Q, A any](t *testing.T, out actor.Out, s subjects.Service[Q, A], body Q) (A, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return actor.Ask(ctx, out, s, body)
}

// TestSpawnOnBus: agents spawn agents under the real grants, and server and registry tell them apart.
func TestSpawnOnBus(t *testing.T) {
	w := startSpawnBroker(t)
	out := outAs(t, w, "orchestrator").WithIDs("s1", "q1")
	coder, err := requestOn(t, out, subjects.AgentSpawn, subjects.SpawnRequest{Type: "coder"})
	if err != nil {
		t.Fatal(err)
	}
	below, err := subjects.AgentSpawnBelow.With(coder.Child)
	if err != nil {
		t.Fatal(err)
	}
	researcher, err := requestOn(t, out, below, subjects.SpawnRequest{Type: "researcher"})
	if err != nil || !slices.Equal(researcher.Tools, []string{"fs_read"}) {
		t.Fatalf("%+v, %v", researcher, err)
	}
	for _, tt := range []struct {
		name, role, session string
		want                string
	}{
		{"its own child, in another session", "orchestrator", "s2", "lineage: unregistered"},
		{"trick: another account claims the child", "generator", "s1", "lineage: unregistered"},
	} {
		if _, err := requestOn(t, outAs(t, w, tt.role).WithIDs(tt.session, "q1"), below,
			subjects.SpawnRequest{Type: "researcher"}); faultText(err) != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}
