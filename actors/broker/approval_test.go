package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// approvalFixture is a broker of which only the approval routes are served, with a recorder and an in-memory audit.
type approvalFixture struct {
	*Broker
	rec       actortest.Recorder
	published chan string // ids of published approval requests

	mu      sync.Mutex
	records []subjects.AuditRecord
	refuse  map[string]error // status -> error of Append
}

var noon = time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)

func newApprovalFixture(wait time.Duration) *approvalFixture {
	d := &approvalFixture{published: make(chan string, 1024), refuse: map[string]error{}}
	d.Broker = &Broker{
		requests: newRequestShares(),
		cfg:      Config{AuditTimeout: time.Minute, ApprovalWait: wait}, audit: d,
		gate: &actor.Gate{Log: d, Timeout: time.Minute}, table: newTable(nil, func(string) (policy.Tool, bool) {
			return policy.Tool{}, false
		}),
	}
	d.rec.Time = noon
	d.rec.Reply = (&spawnFixture{turns: []subjects.Query{{SessionID: "s1", QueryID: "q1", Query: "?"}}}).answerTurns
	d.rec.FailPublish = func(subject string) error {
		if id, ok := strings.CutPrefix(subject, "event.approval.request."); ok {
			d.published <- id
		}
		return nil
	}
	return d
}

// Routes are the routes of the user's accounts.
func (d *approvalFixture) Routes() []actor.Route {
	return []actor.Route{
		actor.Serve(subjects.ApprovalDecisionService, d.onDecision, d.gate.OnReject(subjects.ActionApprovalDecision,
			nil)),
		actor.Serve(subjects.ApprovalListService, d.onListApprovals),
		actor.Serve(subjects.ApprovalRevoke, d.onRevoke),
	}
}

// Append implements [Audit].
func (d *approvalFixture) Append(_ context.Context, rec subjects.AuditRecord) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.refuse[rec.Status]; err != nil {
		return err
	}
	d.records = append(d.records, rec)
	return nil
}

// Close implements [Audit].
func (d *approvalFixture) Close(context.Context) error { return nil }

// audited returns the records as "before allowed always" ...
func (d *approvalFixture) audited() (out []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.records {
		out = append(out, r.Phase+" "+r.Status+" "+r.Reason)
	}
	return out
}

// testCall is a call with what the facts of it say.
type testCall struct {
	stage.Received
	typ  string
	flow *policy.Flow
}

// approvalID is the id of the first approval of the call.
func (c testCall) approvalID() string {
	return stage.HashParts(c.Key(), c.Session, c.Tool, c.Record.ParamsHash)
}

// judged returns the call as a layer judged it for each of asks, or one that passes it.
func (c testCall) judged(asks ...policy.Question) *stage.Judged {
	chain := policy.Chain{askLayer{}}
	for _, q := range asks {
		chain = append(chain, askLayer(q))
	}
	return stage.Judge(context.Background(), policy.Rules{Chain: chain}, c.Received, policy.Call{
		Type: c.typ, Tool: policy.Tool{Name: c.Tool, Known: true}, Flow: c.flow,
		FromUser: c.Caller.Account == userAccount && len(c.Caller.Path) == 0,
	}, nil)
}

// askLayer asks one question about each call; the zero value passes it.
type askLayer policy.Question

func (l askLayer) Name() string { return cmp.Or(l.Layer, "none") }

func (l askLayer) Judge(context.Context, policy.Call) policy.Verdict {
	if l.Layer == "" {
		return policy.Pass()
	}
	return policy.Ask(l.Rule, l.Reason, l.Sinks...)
}

// request is requestApproval for a call about which the layers ask, and checks that a fault is no permission.
func (d *approvalFixture) request(ctx context.Context, c testCall, asks []policy.Question) *subjects.Fault {
	p, fault := d.requestApproval(ctx, d.rec.Out(), c.judged(asks...))
	if (p.Judged() != nil) != (fault == nil) || p.Approved() != (fault == nil) {
		panic(fmt.Sprintf("permitted %t, approved %t, %v", p.Judged() != nil, p.Approved(), fault))
	}
	return fault
}

// egressCall is a call of a tool with egress.
func egressCall() testCall {
	return testCall{typ: "assistant", Received: stage.Received{
		ID: "c1", Tool: "web_fetch", Args: json.RawMessage(`{"url":"https://example.org/?q=a"}`), Query: "q1",
		Session: "s1", Caller: callerOf("generator"), Record: subjects.AuditRecord{ParamsHash: "h1"},
	}}
}

func egressQuestion(sinks ...string) []policy.Question {
	return []policy.Question{{Layer: "flow", Rule: "flow.egress", Reason: "it would send to " +
		strings.Join(sinks, ", "), Sinks: sinks}}
}

const place = "https://example.org/?q=a"

// requestAsync runs requestApproval in the background and sends its fault.
func (d *approvalFixture) requestAsync(t testing.TB, c testCall, asks []policy.Question) <-chan *subjects.Fault {
	t.Helper()
	got := make(chan *subjects.Fault, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	go func() {
		defer cancel()
		got <- d.request(ctx, c, asks)
	}()
	return got
}

func (d *approvalFixture) decide(t testing.TB, id string, body any) (subjects.ApprovalReply, error) {
	t.Helper()
	return d.decideAs(t, "user", id, body)
}

func (d *approvalFixture) decideAs(t testing.TB, who, id string, body any) (subjects.ApprovalReply, error) {
	t.Helper()
	raw, err := d.rec.Deliver(t, d, actortest.Message{Subject: "ctl." + who + ".approval.decision." + id, Body: body})
	var reply subjects.ApprovalReply
	if err == nil {
		if err := json.Unmarshal([]byte(raw), &reply); err != nil {
			t.Error(err)
		}
	}
	return reply, err
}

// startApproval requests approval and returns the id of the pending approval and the channel of the fault.
func (d *approvalFixture) startApproval(t testing.TB, c testCall, asks []policy.Question) (string,
	<-chan *subjects.Fault,
) {
	t.Helper()
	got := d.requestAsync(t, c, asks)
	select {
	case id := <-d.published:
		return id, got
	case f := <-got:
		t.Fatalf("it did not wait: %v", f)
	case <-time.After(20 * time.Second):
		t.Fatal("nobody was asked")
	}
	panic("unreachable")
}

func (d *approvalFixture) storedApproval(t testing.TB, id string) stage.Approval {
	t.Helper()
	q, err := stage.ReadApproval(t.Context(), d.rec.Out().Store(stage.ApprovalBucket), id)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// verdict returns code and rule of a fault, "yes" for none.
func verdict(f *subjects.Fault) string {
	switch {
	case f == nil:
		return "yes"
	case f.Denial == nil:
		return f.Code
	}
	return f.Code + " " + f.Denial.Layer + ": " + f.Denial.Rule
}

func TestRequestApproval(t *testing.T) {
	t.Parallel()
	yes, no := subjects.ApprovalDecision{Approve: true}, subjects.ApprovalDecision{}
	for _, tt := range []struct {
		name    string
		wait    time.Duration // 0 = minutes
		patient time.Duration // the caller's deadline; 0 = after expiry
		answer  *subjects.ApprovalDecision
		want    string
		text    string
		state   string
		audit   []string
	}{
		{
			name: "approved", answer: &yes, want: "yes", state: "approved",
			audit: []string{"before allowed once", "after ok once"},
		},
		{
			name: "denied", answer: &no, want: "not_approved approval: denied", text: "the user denied this call",
			state: "denied", audit: []string{"before denied once"},
		},
		{
			name: "expired", wait: 20 * time.Millisecond, want: "unanswered approval: expired",
			text: "expired without an answer", state: "expired",
		},
		{
			name: "caller's deadline before expiry", patient: 50 * time.Millisecond,
			want: "unanswered approval: pending",
			text: "it is still pending: answer with conclave approve ", state: "pending",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newApprovalFixture(tt.wait)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				if tt.patient > 0 {
					ctx, cancel = context.WithTimeout(t.Context(), tt.patient)
				}
				defer cancel()
				got := make(chan *subjects.Fault, 1)
				go func() { got <- d.request(ctx, egressCall(), egressQuestion(place)) }()
				id := <-d.published
				if tt.answer != nil {
					if r, err := d.decide(t, id, *tt.answer); err != nil || !r.Accepted || r.State != tt.state ||
						r.By != "user" {
						t.Errorf("%+v, %v", r, err)
					}
				}
				f := <-got
				if verdict(f) != tt.want || f != nil &&
					(!strings.Contains(f.Text, tt.text) || f.Denial.Reason != f.Text) {
					t.Errorf("%s, %v", verdict(f), f)
				}
				if q := d.storedApproval(t, id); q.State != tt.state {
					t.Errorf("it is %s", q.State)
				}
				if !slices.Equal(d.audited(), tt.audit) {
					t.Errorf("records %q", d.audited())
				}
				var ends []string
				for _, s := range d.rec.Published() {
					if s.Subject == "event.approval.decision."+id {
						ends = append(ends, s.Body)
					}
				}
				if open := tt.state == "pending"; open != (len(ends) == 0) || !open &&
					!strings.Contains(ends[0], `"state":"`+tt.state+`"`) {
					t.Errorf("told of ends %q", ends)
				}
			})
		})
	}
}

// TestAbandonedUserCallIsWithdrawn: the user's own call ends while its approval is pending. Nobody would receive a
// result, so the request is withdrawn, and approving it later is not accepted. An agent's request stays pending: it may
// resume its question.
func TestAbandonedUserCallIsWithdrawn(t *testing.T) {
	t.Parallel()
	for agent, want := range map[string][2]string{
		userAccount: {"unanswered approval: withdrawn", subjects.ApprovalWithdrawn},
		"generator": {"unanswered approval: pending", subjects.ApprovalPending},
	} {
		d := newApprovalFixture(time.Minute)
		c := egressCall()
		c.Caller = callerOf(agent)
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan *subjects.Fault, 1)
		go func() { got <- d.request(ctx, c, egressQuestion(place)) }()
		id := <-d.published
		cancel()
		if fault := <-got; verdict(fault) != want[0] {
			t.Errorf("%s: %s, want %s", agent, verdict(fault), want[0])
		}
		if state := d.storedApproval(t, id).State; state != want[1] {
			t.Errorf("%s: the request is %s, want %s", agent, state, want[1])
		}
		reply, err := d.decide(t, id, subjects.ApprovalDecision{Approve: true})
		if late := want[1] == subjects.ApprovalWithdrawn; err != nil || reply.Accepted == late || late &&
			reply.State != subjects.ApprovalWithdrawn {
			t.Errorf("%s: approved later: %+v, %v", agent, reply, err)
		}
	}
}

// TestApprovalRequestIsComplete: the request has the whole call, unshortened, and nothing that the caller claims about
// itself.
func TestApprovalRequestIsComplete(t *testing.T) {
	t.Parallel()
	d := newApprovalFixture(0)
	c := egressCall()
	c.Args = json.RawMessage(`{"url":"https://example.org/?q=a","note":"\u001b[2J\u202e"}`)
	taint := []subjects.Taint{{
		Tool: "web_search", CallID: "c0", QueryID: "q0", From: "https://evil.example",
		Flags: []string{"override"}, Time: noon,
	}}
	search := policy.Tool{Name: "web_search", Known: true, Effects: policy.Declare(policy.ReadsUntrusted)}
	flow := (&policy.Flow{}).WithQuestion("q1", "Send it to Ana", policy.DeriveGrants("Send it to Ana")).
		WithResult(policy.Result{
			Tool: search, CallID: "c0", Query: "q0", Source: "https://evil.example",
			Flags: []string{"override"}, Time: noon,
		})
	asks := append(egressQuestion(place), policy.Question{
		Layer: "limits", Rule: "often",
		Reason: "the third\n\x1b[2Jtime", Sinks: []string{"x", place},
	})
	c.flow = flow
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	got := make(chan *subjects.Fault, 1)
	go func() { got <- d.request(ctx, c, asks) }()
	id := <-d.published
	cancel()
	<-got
	want := subjects.ApprovalRequest{
		ID: id, CallID: c.ID, SessionID: "s1", QueryID: "q1", Caller: "generator", Type: "assistant", Tool: "web_fetch",
		Args: c.Args, Layer: "flow", Rule: "flow.egress",
		Reason: "it would send to " + place + "; the third [2Jtime",
		Rules:  []string{"flow: flow.egress", "limits: often"},
		Sinks:  []string{place, "x"}, Taint: taint,
		Grants: []subjects.Grant{{Acts: []string{"send"}, Times: 1, Clause: "Send it to Ana"}},
		Asked:  noon, Expires: noon.Add(5 * time.Minute),
	}
	body, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, s := range d.rec.Published() {
		if s.Subject == "event.approval.request."+id && s.Session == "s1" && s.Query == "q1" && s.Waited {
			said = append(said, s.Body)
		}
	}
	if len(said) != 1 || said[0] != string(body) {
		t.Errorf("said %s\nwant %s", said, body)
	}
	if q := d.storedApproval(t, id); fmt.Sprint(q.ApprovalRequest) != fmt.Sprint(want) {
		t.Errorf("stored %+v", q)
	}
}

func TestApprovalFailuresDeny(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(d *approvalFixture, c *testCall)
		asks   []policy.Question
		want   string
	}{
		{"trick: no questions", func(*approvalFixture, *testCall) {}, nil, "internal"},
		{"store fails", func(d *approvalFixture, _ *testCall) {
			d.rec.FailStore = errors.New("no stream")
		}, egressQuestion(place), "unavailable"},
		{"publish fails", func(d *approvalFixture, _ *testCall) {
			d.rec.FailPublish = func(string) error { return errors.New("no stream") }
		}, egressQuestion(place), "unavailable"},
		{"request too large", func(_ *approvalFixture, c *testCall) {
			c.Args = json.RawMessage(`{"a":"` + strings.Repeat("x", subjects.ApprovalRequestEvent.Limit()) + `"}`)
		}, egressQuestion(place), "too_large"},
		{"trick: arguments that are no JSON", func(_ *approvalFixture, c *testCall) {
			c.Args = json.RawMessage(`{"a":`)
		}, egressQuestion(place), "too_large"},
		{"trick: id taken by another call", func(d *approvalFixture, c *testCall) {
			q := d.newApproval(d.rec.Out(), c.judged(), c.approvalID(), egressQuestion(place))
			q.State, q.Call = subjects.ApprovalApproved, "operator.c1"
			_ = q.Put(context.Background(), d.rec.Out().Store(stage.ApprovalBucket))
		}, egressQuestion(place), "denied approval: unreadable"},
		{"trick: unknown state", func(d *approvalFixture, c *testCall) {
			q := d.newApproval(d.rec.Out(), c.judged(), c.approvalID(), egressQuestion(place))
			q.State = "APPROVED"
			_ = q.Put(context.Background(), d.rec.Out().Store(stage.ApprovalBucket))
		}, egressQuestion(place), "denied approval: unreadable"},
		{"trick: corrupt approval", func(d *approvalFixture, c *testCall) {
			_, _ = d.rec.Out().Store(stage.ApprovalBucket).Put(context.Background(), c.approvalID(), []byte(`[`), 0)
		}, egressQuestion(place), "unavailable"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d, c := newApprovalFixture(0), egressCall()
			tt.change(d, &c)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if got := verdict(d.request(ctx, c, tt.asks)); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// TestRepeatedRequestSharesApproval: requests for the same call share one approval and its decision.
func TestRepeatedRequestSharesApproval(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		before func(d *approvalFixture, id string) // between the two callers
		want   string
	}{
		{"approved in between", func(d *approvalFixture, id string) {
			d.decide(t, id, subjects.ApprovalDecision{Approve: true})
		}, "yes"},
		{"denied in between", func(d *approvalFixture, id string) {
			d.decide(t, id, subjects.ApprovalDecision{})
		}, "not_approved approval: denied"},
		{"expired in between", func(d *approvalFixture, _ string) {
			d.rec.Time = noon.Add(time.Hour)
		}, "unanswered approval: expired"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newApprovalFixture(0)
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				if got := verdict(d.request(ctx, egressCall(),
					egressQuestion(place))); got != "unanswered approval: pending" {
					t.Fatal(got)
				}
				tt.before(d, <-d.published)
				// Another broker after a crash of the first: only the stored state is left.
				d.Broker = &Broker{
					requests: newRequestShares(),
					cfg:      d.cfg, audit: d, gate: &actor.Gate{Log: d, Timeout: time.Minute},
					table: newTable(nil, func(string) (policy.Tool, bool) { return policy.Tool{}, false }),
				}
				for range 2 {
					if got := verdict(<-d.requestAsync(t, egressCall(), egressQuestion(place))); got != tt.want {
						t.Errorf("%s, want %s", got, tt.want)
					}
				}
				if len(d.published) != 0 {
					t.Errorf("the user was told again of %s", <-d.published)
				}
			})
		})
	}
	t.Run("concurrent with the first request", func(t *testing.T) {
		t.Parallel()
		d := newApprovalFixture(0)
		id, first := d.startApproval(t, egressCall(), egressQuestion(place))
		second := d.requestAsync(t, egressCall(), egressQuestion(place))
		if _, err := d.decide(t, id, subjects.ApprovalDecision{Approve: true}); err != nil {
			t.Fatal(err)
		}
		if a, b := <-first, <-second; a != nil || b != nil || len(d.published) != 0 {
			t.Errorf("%v, %v, told %d more", a, b, len(d.published))
		}
	})
	t.Run("killed before the request was published", func(t *testing.T) {
		t.Parallel()
		d := newApprovalFixture(0)
		q := d.newApproval(d.rec.Out(), egressCall().judged(), egressCall().approvalID(), egressQuestion(place))
		if err := q.Put(t.Context(), d.rec.Out().Store(stage.ApprovalBucket)); err != nil {
			t.Fatal(err)
		}
		id, got := d.startApproval(t, egressCall(), egressQuestion(place))
		if _, err := d.decide(t, id, subjects.ApprovalDecision{Approve: true}); err != nil || id != q.ID ||
			<-got != nil {
			t.Errorf("%s, %v", id, err)
		}
	})
}

// TestApprovalCoversOneCall: an approval covers only the call and the questions that the user was shown.
func TestApprovalCoversOneCall(t *testing.T) {
	t.Parallel()
	asks := egressQuestion(place)
	for _, tt := range []struct {
		name   string
		change func(c *testCall, asks *[]policy.Question, d *approvalFixture)
		again  bool
	}{
		{"the same call", func(*testCall, *[]policy.Question, *approvalFixture) {}, false},
		{"same call, other reason", func(_ *testCall, a *[]policy.Question, _ *approvalFixture) {
			(*a)[0].Reason = "again"
		}, false},
		{"another call", func(c *testCall, _ *[]policy.Question, _ *approvalFixture) { c.ID = "c2" }, true},
		{"trick: other arguments under the same call id", func(c *testCall, _ *[]policy.Question, _ *approvalFixture) {
			c.Record.ParamsHash = "h2"
		}, true},
		{"trick: another tool under the same call id", func(c *testCall, _ *[]policy.Question, _ *approvalFixture) {
			c.Tool = "run_shell"
		}, true},
		{"trick: another account's call id", func(c *testCall, _ *[]policy.Question, _ *approvalFixture) {
			c.Caller = callerOf("operator")
		}, true},
		{"trick: a spawned agent's call id", func(c *testCall, _ *[]policy.Question, _ *approvalFixture) {
			c.Caller = callerOf("generator.coder-1")
		}, true},
		{"trick: session and tool split elsewhere", func(c *testCall, _ *[]policy.Question, _ *approvalFixture) {
			c.Tool, c.Record.ParamsHash = "web_fetchh", "1"
		}, true},
		{"trick: one question more", func(_ *testCall, a *[]policy.Question, _ *approvalFixture) {
			*a = append(*a, policy.Question{Layer: "limits", Rule: "often"})
		}, true},
		{"trick: another sink", func(_ *testCall, a *[]policy.Question, _ *approvalFixture) {
			(*a)[0].Sinks = []string{"https://evil.example"}
		}, true},
		{"trick: one sink more", func(_ *testCall, a *[]policy.Question, _ *approvalFixture) {
			(*a)[0].Sinks = []string{place, "https://evil.example"}
		}, true},
		{"trick: another rule", func(_ *testCall, a *[]policy.Question, _ *approvalFixture) {
			(*a)[0].Rule = "flow.exec"
		}, true},
		{"trick: approval older than its TTL", func(_ *testCall, _ *[]policy.Question, d *approvalFixture) {
			d.rec.Time = noon.Add(approvalTTL + time.Second)
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newApprovalFixture(0)
			id, got := d.startApproval(t, egressCall(), asks)
			if _, err := d.decide(t, id, subjects.ApprovalDecision{Approve: true}); err != nil || <-got != nil {
				t.Fatal(err)
			}
			c, changed := egressCall(), []policy.Question{{
				Layer: asks[0].Layer, Rule: asks[0].Rule,
				Reason: asks[0].Reason, Sinks: slices.Clone(asks[0].Sinks),
			}}
			tt.change(&c, &changed, d)
			if !tt.again {
				if f := <-d.requestAsync(t, c, changed); f != nil || len(d.published) != 0 {
					t.Errorf("%v, told %d", f, len(d.published))
				}
				return
			}
			other, got := d.startApproval(t, c, changed)
			if _, err := d.decide(t, other, subjects.ApprovalDecision{}); err != nil {
				t.Error(err)
			}
			if f := <-got; verdict(f) != "not_approved approval: denied" {
				t.Errorf("the old yes held: %v", f)
			}
		})
	}
}

// TestDecisionThroughOtherBroker: a decision stored by another broker is found by polling.
func TestDecisionThroughOtherBroker(t *testing.T) {
	t.Parallel()
	d := newApprovalFixture(0)
	id, got := d.startApproval(t, egressCall(), egressQuestion(place))
	here := d.Broker
	d.Broker = &Broker{
		requests: newRequestShares(),
		cfg:      here.cfg, audit: d, gate: &actor.Gate{Log: d, Timeout: time.Minute},
		table: newTable(nil, func(string) (policy.Tool, bool) { return policy.Tool{}, false }),
	}
	if r, err := d.decide(t, id, subjects.ApprovalDecision{Approve: true}); err != nil || !r.Accepted {
		t.Fatalf("%+v, %v", r, err)
	}
	if f := <-got; f != nil {
		t.Error(f)
	}
}

// TestWaitingCallsAreLimited: the calls that wait for approval are limited, in all, per account and per question.
func TestWaitingCallsAreLimited(t *testing.T) {
	t.Parallel()
	d := newApprovalFixture(0)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	ask := func(account string, i int) string {
		c := egressCall()
		c.ID, c.Caller, c.Query = fmt.Sprintf("c%d", i), callerOf(account), fmt.Sprintf("q%d", i)
		if i < maxWaitingPerAccount/2 {
			c.Query = "q0"
		}
		got := make(chan string, 1)
		wg.Go(func() { got <- verdict(d.request(ctx, c, egressQuestion(place))) })
		select {
		case <-d.published:
			return "waits"
		case v := <-got:
			return v
		}
	}
	for i := range maxWaitingPerAccount {
		if i == maxWaitingPerAccount/2 {
			if got := ask("generator", 0); got != subjects.CodeBusy {
				t.Errorf("one more of the same question: %s", got)
			}
		}
		if got := ask("generator", i); got != "waits" {
			t.Fatalf("call %d: %s", i, got)
		}
	}
	if got := ask("generator", maxWaitingPerAccount); got != subjects.CodeBusy {
		t.Errorf("one more of the same account: %s", got)
	}
	if got := ask("generator.coder-1", 0); got != subjects.CodeBusy {
		t.Errorf("trick: one more of its children: %s", got)
	}
	for i := range maxWaiting - maxWaitingPerAccount {
		if got := ask("operator", i); got != "waits" {
			t.Fatalf("another's call %d: %s", i, got)
		}
	}
	if got := ask("committee", 0); got != subjects.CodeBusy {
		t.Errorf("one more of all: %s", got)
	}
	cancel()
	wg.Wait()
	if d.waiting.total != 0 || len(d.waiting.byApproval) != 0 || len(d.waiting.byAccount) != 0 {
		t.Errorf("left behind: %+v", d.waiting.byAccount)
	}
}

// TestApprovalNamesLookAlikeHosts: a host name outside of ASCII is in the request with its punycode, also when the
// arguments write it with escapes.
func TestApprovalNamesLookAlikeHosts(t *testing.T) {
	t.Parallel()
	c := egressCall()
	c.Args = json.RawMessage(`{"url":"https://ex\u0430mple.org/","note":"plain.example"}`)
	got := newApprovalFixture(time.Minute).newApproval((&actortest.Recorder{Time: noon}).Out(), c.judged(), "id",
		egressQuestion("https://müller.example/")).Hosts
	want := []subjects.LookAlikeHost{
		{Written: "exаmple.org", Punycode: "xn--exmple-4nf.org"},
		{Written: "müller.example", Punycode: "xn--mller-kva.example"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestJoinReasons: a reason that two layers give is said once, and what was read before stands at the beginning.
func TestJoinReasons(t *testing.T) {
	t.Parallel()
	const after = "after reading “a”, "
	open := []policy.Question{
		{Reason: after + "it sends"},
		{Reason: after + "it changes x"},
		{Reason: "it changes x"},
		{Reason: after + "it sends"},
	}
	if got, want := joinReasons(open, after), after+"it sends; it changes x"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := joinReasons(open[2:], after), "it changes x; it sends"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
