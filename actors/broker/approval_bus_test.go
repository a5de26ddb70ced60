package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/actors/broker"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// alwaysAskLayer asks about every call, with a sink.
type alwaysAskLayer struct{}

func (alwaysAskLayer) Name() string { return "wary" }

func (alwaysAskLayer) Judge(_ context.Context, c policy.Call) policy.Verdict {
	return policy.Ask("sends", "it would send", string(c.Args))
}

// startAskingBroker runs a broker whose calls all need approval. kill closes its connection; the supervisor then
// restarts it.
func (w *busFixture) startAskingBroker(wait time.Duration) (kill func()) {
	w.t.Helper()
	var mu sync.Mutex
	var last *nats.Conn
	spec := actor.Spec{Name: "broker", Make: func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) {
		mu.Lock()
		last = nc
		mu.Unlock()
		h, err := audit.LoadHasher(w.HashKey())
		if err != nil {
			return nil, err
		}
		a, err := audit.Open(ctx, audit.Options{Account: "broker", Dir: w.Heads(), Log: bus.NewAuditLog(nc)})
		if err != nil {
			return nil, err
		}
		cfg := broker.Config{
			CallTimeout: testTimeout, AuditTimeout: testTimeout, ApprovalWait: wait,
			EventBytes: w.eventBytes,
		}
		book := policy.NewActiveRules(policy.Rules{
			Manifest: parseTestManifest(w.t),
			Chain:    policy.Chain{alwaysAskLayer{}},
		})
		return broker.New(cfg, book, a, h, []broker.Known{w.known}), nil
	}}
	s, err := actor.Supervise(w.t.Context(), spec, w.Dial, actor.Config{DrainTimeout: 100 * time.Millisecond})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = s.Stop() })
	return func() {
		mu.Lock()
		defer mu.Unlock()
		last.Close()
	}
}

// userClient receives approval requests and decides them, on the role's own connection.
type userClient struct {
	toolClient
	questions chan subjects.ApprovalRequest
	decisions chan subjects.ApprovalReply
}

func (w *busFixture) userClient(role string) userClient {
	w.t.Helper()
	p := userClient{w.client(role), make(chan subjects.ApprovalRequest, 64), make(chan subjects.ApprovalReply, 64)}
	nc := w.Connect(role)
	subscribeTo(w.t, nc, subjects.ApprovalRequestEvent, p.questions)
	subscribeTo(w.t, nc, subjects.ApprovalDecisionEvent, p.decisions)
	if err := bustest.ConfirmSubscriptions(w.t.Context(), nc); err != nil {
		w.t.Fatal(err)
	}
	return p
}

func subscribeTo[T any](t *testing.T, nc *nats.Conn, topic subjects.Topic[T], to chan T) {
	t.Helper()
	if _, err := nc.Subscribe(topic.LiveSubject(), func(m *nats.Msg) {
		if m.Header.Get("Nats-Stream") == "" {
			return // the client's own request, not an event of the stream
		}
		var v T
		if err := json.Unmarshal(m.Data, &v); err != nil {
			t.Errorf("%s: %v", m.Subject, err)
		}
		to <- v
	}); err != nil {
		t.Fatal(err)
	}
}

func receive[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(testTimeout):
		t.Fatal("it did not come")
	}
	return v
}

func (p userClient) answer(id string, d subjects.ApprovalDecision) subjects.ApprovalReply {
	p.t.Helper()
	s, err := subjects.ApprovalDecisionService.With(id)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), testTimeout)
	defer cancel()
	r, err := actor.Ask(ctx, p.out, s, d)
	if err != nil {
		p.t.Error(err)
	}
	return r
}

// list requests the approvals until a broker replies.
func (p userClient) list(all bool) subjects.ApprovalList {
	p.t.Helper()
	for deadline := time.Now().Add(testTimeout); ; {
		ctx, cancel := context.WithTimeout(p.t.Context(), time.Second)
		l, err := actor.Ask(ctx, p.out, subjects.ApprovalListService, subjects.ApprovalQuery{All: all})
		cancel()
		if err == nil {
			return l
		}
		if time.Now().After(deadline) {
			p.t.Fatal(err)
		}
	}
}

// startCall calls the clock in the background until ctx ends.
func (a toolClient) startCall(ctx context.Context, id string) <-chan subjects.ToolResult {
	return a.startCallWith(ctx, id, `{"timezone":"UTC"}`)
}

func (a toolClient) startCallWith(ctx context.Context, id, args string) <-chan subjects.ToolResult {
	a.t.Helper()
	got := make(chan subjects.ToolResult, 1)
	s, err := subjects.ToolRequestService.With("get_datetime")
	if err != nil {
		a.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, testTimeout)
	go func() {
		defer cancel()
		res, err := actor.Ask(ctx, a.out.WithIDs("s1", "q1"), s,
			subjects.ToolRequest{CallID: id, Args: json.RawMessage(args)})
		var fault *subjects.Fault
		if errors.As(err, &fault) {
			res.Error = fault
		} else if err != nil {
			res.Error = subjects.Faultf("none", "%v", err)
		}
		got <- res
	}()
	return got
}

// decisionPhases returns the phases of decision records.
func decisionPhases(recs []subjects.AuditRecord) (out []string) {
	return phases(slices.DeleteFunc(slices.Clone(recs), func(r subjects.AuditRecord) bool {
		return !strings.HasPrefix(r.Action, "approval.")
	}))
}

func TestBusApproval(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	tool := &fakeTool{schema: clock}
	w.startTool(tool)
	w.startAskingBroker(0)
	user, page, agent := w.userClient("user"), w.userClient("gateway"), w.client("generator")

	got := agent.startCall(t.Context(), "c1")
	q := receive(t, user.questions)
	if q.Caller != "generator" || q.Tool != "get_datetime" || string(q.Args) != `{"timezone":"UTC"}` ||
		q.Rule != "sends" || q.Layer != "wary" || q.SessionID != "s1" || q.Expires.Sub(q.Asked) != 5*time.Minute {
		t.Errorf("%+v", q)
	}
	if tool.runs.Load() != 0 {
		t.Error("it ran before anybody agreed")
	}
	if l := page.list(false); len(l.Approvals) != 1 || l.Approvals[0].ID != q.ID || l.Approvals[0].State != "pending" {
		t.Errorf("%+v", l)
	}
	if r := page.answer(q.ID, subjects.ApprovalDecision{Approve: true, Remember: "always"}); !r.Accepted ||
		r.By != "user over HTTP" || r.Remember != "always" {
		t.Errorf("%+v", r)
	}
	if r := user.answer(q.ID, subjects.ApprovalDecision{}); r.Accepted || r.State != "approved" ||
		r.By != "user over HTTP" {
		t.Errorf("the second answer: %+v", r)
	}
	if r := user.answer("0123456789abcdef", subjects.ApprovalDecision{Approve: true}); r.Accepted ||
		r.State != "unknown" {
		t.Errorf("an answer to nothing: %+v", r)
	}
	if res := receive(t, got); res.Error != nil || tool.runs.Load() != 1 {
		t.Fatalf("%+v, %d runs", res, tool.runs.Load())
	}
	if d := receive(t, user.decisions); d.ID != q.ID || d.State != "approved" || !d.Accepted {
		t.Errorf("%+v", d)
	}
	// Remembered: no approval request.
	if res := receive(t, agent.startCall(t.Context(), "c2")); res.Error != nil || tool.runs.Load() != 2 ||
		len(user.questions) != 0 {
		t.Errorf("%+v, %d runs, %d questions", res, tool.runs.Load(), len(user.questions))
	}
	// Revoked: approval is requested again, and denied.
	revoke, err := subjects.ApprovalRevoke.With(user.list(false).Rules[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if done, err := actor.Ask(ctx, user.out, revoke, subjects.Empty{}); err != nil || !done.OK {
		t.Fatal(done, err)
	}
	got = agent.startCall(t.Context(), "c3")
	if r := user.answer(receive(t, user.questions).ID, subjects.ApprovalDecision{}); !r.Accepted {
		t.Errorf("%+v", r)
	}
	if res := receive(t, got); res.Error == nil || res.Error.Code != subjects.CodeNotApproved ||
		res.Error.Denial == nil || res.Error.Denial.Layer != "approval" || tool.runs.Load() != 2 {
		t.Errorf("%+v, %d runs", res, tool.runs.Load())
	}
	rep, recs := w.verified()
	want := []string{
		"before allowed always", "after ok always", "before refused approved", "before refused unknown",
		"before allowed wary: sends", "after ok wary: sends", "before denied once",
	}
	if got := decisionPhases(recs); !slices.Equal(got, want) || rep.Pending != 0 || rep.Unfinished != 0 {
		t.Errorf("%q\n%+v", got, rep)
	}
}

// TestBusCallsWaitTogether: the calls of one model reply wait for approval at the same time, each with its own request
// and arguments, and each decision is recorded and holds for its call alone.
func TestBusCallsWaitTogether(t *testing.T) {
	t.Parallel()
	const n = 20
	w := newBusFixture(t)
	tool := &fakeTool{schema: clock}
	w.startTool(tool)
	w.startAskingBroker(0)
	user, agent := w.userClient("user"), w.client("generator")
	got, args, asked := map[string]<-chan subjects.ToolResult{}, map[string]string{}, map[string]string{}
	for i := range n {
		id := fmt.Sprintf("c%d", i)
		args[id] = fmt.Sprintf(`{"timezone":"Etc/GMT-%d"}`, i)
		got[id] = agent.startCallWith(t.Context(), id, args[id])
	}
	for range n {
		q := receive(t, user.questions)
		if string(q.Args) != args[q.CallID] || q.QueryID != "q1" {
			t.Errorf("%s of %s: %s", q.CallID, q.QueryID, q.Args)
		}
		asked[q.CallID] = q.ID
	}
	if l := user.list(false); len(asked) != n || len(l.Approvals) != n || tool.runs.Load() != 0 {
		t.Fatalf("%d calls asked, %d wait, %d ran", len(asked), len(l.Approvals), tool.runs.Load())
	}
	for id, approval := range asked {
		approve := id != "c3" && id != "c7"
		if r := user.answer(approval, subjects.ApprovalDecision{Approve: approve}); !r.Accepted {
			t.Errorf("%s: %+v", id, r)
		}
	}
	for id, c := range got {
		res := receive(t, c)
		denied := res.Error != nil && res.Error.Code == subjects.CodeNotApproved
		if denied != (id == "c3" || id == "c7") {
			t.Errorf("%s: %+v", id, res.Error)
		}
	}
	_, recs := w.verified()
	counts := map[string]int{}
	for _, phase := range decisionPhases(recs) {
		counts[phase]++
	}
	if tool.runs.Load() != n-2 || counts["before allowed once"] != n-2 || counts["before denied once"] != 2 {
		t.Errorf("%d runs, records %v", tool.runs.Load(), counts)
	}
}

func TestBusApprovalExpires(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	tool := &fakeTool{schema: clock}
	w.startTool(tool)
	w.startAskingBroker(50 * time.Millisecond)
	user := w.userClient("user")
	res := receive(t, w.client("generator").startCall(t.Context(), "c1"))
	if res.Error == nil || res.Error.Code != subjects.CodeUnanswered || res.Error.Denial == nil ||
		res.Error.Denial.Rule != "expired" || tool.runs.Load() != 0 {
		t.Fatalf("%+v, %d runs", res, tool.runs.Load())
	}
	q := receive(t, user.questions)
	if r := user.answer(q.ID, subjects.ApprovalDecision{Approve: true}); r.Accepted || r.State != "expired" {
		t.Errorf("%+v", r)
	}
	if l := user.list(true); len(l.Approvals) != 1 || l.Approvals[0].State != "expired" {
		t.Errorf("%+v", l)
	}
}

// TestBusApprovalRestart: a broker killed with a pending approval loses nothing. The next one accepts the decision,
// and a retry of the call runs it once.
func TestBusApprovalRestart(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	w.known.Effects = policy.Declare(policy.Mutate)
	tool := &fakeTool{schema: clock}
	w.startTool(tool)
	kill := w.startAskingBroker(0)
	user, agent := w.userClient("user"), w.client("generator")
	ctx, giveUp := context.WithCancel(t.Context())
	got := agent.startCall(ctx, "c1")
	q := receive(t, user.questions)
	kill()
	giveUp() // the caller crashes as well
	<-got
	if l := user.list(false); len(l.Approvals) != 1 || l.Approvals[0].ID != q.ID || l.Approvals[0].State != "pending" {
		t.Fatalf("after the restart: %+v", l)
	}
	if r := user.answer(q.ID, subjects.ApprovalDecision{Approve: true}); !r.Accepted {
		t.Fatalf("%+v", r)
	}
	for range 3 {
		if res := receive(t, agent.startCall(t.Context(), "c1")); res.Error != nil || tool.runs.Load() != 1 {
			t.Errorf("%+v, %d runs", res, tool.runs.Load())
		}
	}
	if len(user.questions) != 0 {
		t.Errorf("asked again: %+v", <-user.questions)
	}
	if _, recs := w.verified(); !slices.Equal(decisionPhases(recs), []string{"before allowed once", "after ok once"}) {
		t.Errorf("%q", decisionPhases(recs))
	}
}

// TestBusApprovalRace: with two brokers and two user clients one decision holds, whichever broker stored it, and the
// waiting call gets it.
func TestBusApprovalRace(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	w.startTool(&fakeTool{schema: clock})
	w.startAskingBroker(0)
	w.startAskingBroker(0)
	user, page, agent := w.userClient("user"), w.userClient("gateway"), w.client("generator")
	for round := range 5 {
		got := agent.startCall(t.Context(), "c"+string(rune('a'+round)))
		q := receive(t, user.questions)
		var wg sync.WaitGroup
		replies := make([]subjects.ApprovalReply, 4)
		for i, p := range []userClient{user, page, user, page} {
			wg.Go(func() { replies[i] = p.answer(q.ID, subjects.ApprovalDecision{Approve: i%2 == 0}) })
		}
		wg.Wait()
		taken := 0
		for _, r := range replies {
			if r.Accepted {
				taken++
			}
			if r.State != replies[0].State || r.By != replies[0].By {
				t.Errorf("told differently: %+v", replies)
			}
		}
		if res := receive(t, got); taken != 1 || (res.Error == nil) != (replies[0].State == "approved") {
			t.Errorf("%d taken, %s, %+v", taken, replies[0].State, res.Error)
		}
	}
	w.verified()
}

// TestBusApprovalNotByAgents: the server's grants let no agent publish a decision or subscribe to approval requests.
func TestBusApprovalNotByAgents(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	tool := &fakeTool{schema: clock}
	w.startTool(tool)
	w.startAskingBroker(300 * time.Millisecond)
	user := w.userClient("user")
	got := w.client("generator").startCall(t.Context(), "c1")
	q := receive(t, user.questions)
	for _, role := range []string{"generator", "operator", "committee", "tool_get_datetime"} {
		nc := w.Connect(role)
		for _, subject := range []string{"approval.decision." + q.ID, "ctl.user.approval.decision." +
			q.ID, "event.approval.decision." + q.ID} {
			w.ExpectViolations(1)
			if err := nc.Publish(subject, []byte(`{"approve":true}`)); err != nil {
				t.Error(err)
			}
		}
		if err := nc.Flush(); err != nil {
			t.Error(err)
		}
	}
	if res := receive(t, got); res.Error == nil || res.Error.Code != subjects.CodeUnanswered || tool.runs.Load() != 0 {
		t.Errorf("%+v, %d runs", res, tool.runs.Load())
	}
	if _, recs := w.verified(); len(decisionPhases(recs)) != 0 {
		t.Errorf("%q", decisionPhases(recs))
	}
}
