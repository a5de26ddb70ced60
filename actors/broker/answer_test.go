package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

func TestApprovalDecision(t *testing.T) {
	t.Parallel()
	type decision = subjects.ApprovalDecision
	yes := decision{Approve: true}
	for _, tt := range []struct {
		name   string
		who    string                              // "" = user
		id     string                              // "" = of the pending approval
		before func(d *approvalFixture, id string) // called before the decision
		body   any
		want   subjects.ApprovalReply // without the id
		code   string
		state  string // of the approval afterwards
		audit  []string
	}{
		{
			name: "approve", body: yes, want: subjects.ApprovalReply{Accepted: true, State: "approved", By: "user"},
			state: "approved", audit: []string{"before allowed once", "after ok once"},
		},
		{name: "approve on the page", who: "gateway", body: yes, want: subjects.ApprovalReply{
			Accepted: true,
			State:    "approved", By: "user over HTTP",
		}, state: "approved", audit: []string{
			"before allowed once",
			"after ok once",
		}},
		{
			name: "deny", body: decision{}, want: subjects.ApprovalReply{Accepted: true, State: "denied", By: "user"},
			state: "denied", audit: []string{"before denied once"},
		},
		{name: "missing approve denies", body: []byte(`{}`), want: subjects.ApprovalReply{
			Accepted: true,
			State:    "denied", By: "user",
		}, state: "denied", audit: []string{"before denied once"}},
		{
			name: "approve for the session", body: decision{Approve: true, Remember: "session"},
			want:  subjects.ApprovalReply{Accepted: true, State: "approved", By: "user", Remember: "session"},
			state: "approved", audit: []string{"before allowed session", "after ok session"},
		},
		{
			name: "approve always", body: decision{Approve: true, Remember: "always"},
			want:  subjects.ApprovalReply{Accepted: true, State: "approved", By: "user", Remember: "always"},
			state: "approved", audit: []string{"before allowed always", "after ok always"},
		},
		{
			name: "denial is not remembered", body: decision{Remember: "always"},
			want: subjects.ApprovalReply{Accepted: true, State: "denied", By: "user"}, state: "denied",
			audit: []string{"before denied once"},
		},
		{
			name: "second decision", before: func(d *approvalFixture, id string) {
				d.decideAs(t, "gateway", id, decision{})
			}, body: yes,
			want: subjects.ApprovalReply{State: "denied", By: "user over HTTP"}, state: "denied",
			audit: []string{"before denied once", "before refused denied"},
		},
		{
			name: "after expiry", before: func(d *approvalFixture, _ string) {
				d.rec.Time = noon.Add(5 * time.Minute)
			}, body: yes,
			want: subjects.ApprovalReply{State: "expired"}, state: "pending", audit: []string{"before refused expired"},
		},
		{
			name: "unknown", id: "0123456789abcdef", body: yes, want: subjects.ApprovalReply{State: "unknown"},
			state: "pending", audit: []string{"before refused unknown"},
		},
		{
			name: "rule limit reached", before: func(d *approvalFixture, _ string) {
				d.addRules(t, maxRules)
			}, body: decision{Approve: true, Remember: "always"},
			want: subjects.ApprovalReply{Accepted: true, State: "approved", By: "user"}, state: "approved",
			audit: []string{"before allowed once", "after ok once"},
		},
		{
			name: "audit fails for an approval", before: func(d *approvalFixture, _ string) {
				d.refuse[subjects.StatusAllowed] = errors.New("full")
			}, body: yes,
			code: subjects.CodeNoAudit, state: "pending",
		},
		{
			name: "audit fails for a denial", before: func(d *approvalFixture, _ string) {
				d.refuse[subjects.StatusDenied] = errors.New("full")
			}, body: decision{},
			code: subjects.CodeNoAudit, state: "pending",
		},
		{
			name: "store fails", before: func(d *approvalFixture, _ string) {
				d.rec.FailStore = errors.New("no stream")
			}, body: yes,
			code: subjects.CodeUnavailable, state: "pending", audit: []string{
				"before allowed once",
				"after unknown unavailable",
			},
		},
		{
			name: "trick: unknown remember level", body: decision{Approve: true, Remember: "forever"},
			code: subjects.CodeMalformed, state: "pending", audit: []string{"before refused malformed"},
		},
		{
			name: "trick: unknown field", body: []byte(`{"approve":true,"by":"admin"}`), code: subjects.CodeMalformed,
			state: "pending", audit: []string{"before refused malformed"},
		},
		{
			name: "trick: doubled approve", body: []byte(`{"approve":false,"approve":true}`),
			code:  subjects.CodeMalformed,
			state: "pending", audit: []string{"before refused malformed"},
		},
		{
			name: "trick: field in another case", body: []byte(`{"Approve":true}`), code: subjects.CodeMalformed,
			state: "pending", audit: []string{"before refused malformed"},
		},
		{
			name: "trick: approve as a string", body: []byte(`{"approve":"true"}`), code: subjects.CodeMalformed,
			state: "pending", audit: []string{"before refused malformed"},
		},
		{
			name: "trick: no body", body: []byte(``), code: subjects.CodeMalformed, state: "pending",
			audit: []string{"before refused malformed"},
		},
		{
			name: "trick: decision by an agent", who: "generator", body: yes, code: subjects.CodeDenied,
			state: "pending",
			audit: []string{"before refused denied"},
		},
		{
			name: "trick: decision by the broker", who: "broker", body: yes, code: subjects.CodeDenied,
			state: "pending",
			audit: []string{"before refused denied"},
		},
		{
			name: "trick: an id that is a wildcard", id: "*", body: yes, code: subjects.CodeSubject, state: "pending",
			audit: []string{"before refused bad_subject"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newApprovalFixture(0)
			ctx, cancel := context.WithCancel(t.Context())
			got := make(chan *subjects.Fault, 1)
			go func() { got <- d.request(ctx, egressCall(), egressQuestion(place)) }()
			id := <-d.published
			cancel() // the waiting caller is not part of this test
			<-got
			if tt.before != nil {
				tt.before(d, id)
			}
			reply, err := d.decideAs(t, cmp.Or(tt.who, "user"), cmp.Or(tt.id, id), tt.body)
			if tt.code == "" {
				tt.want.ID = cmp.Or(tt.id, id)
			}
			if reply != tt.want || actortest.Code(err) != tt.code || (err == nil) != (tt.code == "") {
				t.Errorf("%+v, %v", reply, err)
			}
			if q := d.storedApproval(t, id); q.State != tt.state {
				t.Errorf("the question is %s", q.State)
			}
			if !slices.Equal(d.audited(), tt.audit) {
				t.Errorf("records %q, want %q", d.audited(), tt.audit)
			}
			events := 0
			for _, s := range d.rec.Published() {
				if strings.HasPrefix(s.Subject, "event.approval.decision.") {
					events++
				}
			}
			if told := slices.Contains([]string{"approved", "denied"}, tt.state); told != (events == 1) {
				t.Errorf("%d decisions were told", events)
			}
		})
	}
}

// TestApprovalDecisionIsAudited: the record of a decision has account, tool, hash and remember level, never the
// arguments.
func TestApprovalDecisionIsAudited(t *testing.T) {
	t.Parallel()
	d := newApprovalFixture(0)
	id, got := d.startApproval(t, egressCall(), egressQuestion(place))
	if _, err := d.decide(t, id, subjects.ApprovalDecision{Approve: true}); err != nil || <-got != nil {
		t.Fatal(err)
	}
	r := d.records[0]
	want := subjects.AuditRecord{
		ID: r.ID, Phase: "before", AgentID: "user", Lineage: []string{"user"},
		Action: "approval.decision", Tool: "web_fetch", ParamsHash: "h1", Status: "allowed", Reason: "once",
		Session: "s1", Query: "q1",
	}
	if fmt.Sprint(r) != fmt.Sprint(want) || d.records[1].ID != r.ID {
		t.Errorf("%+v", d.records)
	}
}

// TestConcurrentDecisionsAcceptOne: one of many concurrent decisions is accepted, and every reply has its state.
func TestConcurrentDecisionsAcceptOne(t *testing.T) {
	t.Parallel()
	for round := range 200 {
		d := newApprovalFixture(0)
		c := egressCall()
		c.ID = fmt.Sprintf("c%d", round)
		id, got := d.startApproval(t, c, egressQuestion(place))
		const people = 6
		replies := make([]subjects.ApprovalReply, people)
		var wg sync.WaitGroup
		for i := range people {
			wg.Go(func() {
				var err error
				if replies[i], err = d.decideAs(t, subjects.UserAccounts[i%2], id,
					subjects.ApprovalDecision{Approve: i%3 == 0}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		held, taken := d.storedApproval(t, id), 0
		for i, r := range replies {
			if r.State != held.State || r.By != held.By {
				t.Errorf("told %+v, but %s by %s holds", r, held.State, held.By)
			}
			if r.Accepted {
				taken++
				if (i%3 == 0) != (held.State == subjects.ApprovalApproved) {
					t.Errorf("answer %d was taken and %s holds", i, held.State)
				}
			}
		}
		if f := <-got; taken != 1 || (f == nil) != (held.State == subjects.ApprovalApproved) {
			t.Fatalf("round %d: %d taken, %s, %v", round, taken, held.State, f)
		}
		pairs := map[string]int{}
		for _, r := range d.records {
			if r.Status != subjects.StatusDenied && r.Status != subjects.StatusRefused {
				pairs[r.ID]++
			}
		}
		for id, n := range pairs {
			if n != 2 {
				t.Errorf("record %s has no outcome", id)
			}
		}
	}
}

// TestDecisionAtExpiry: whether decision or expiry is stored first, caller and user get the same state.
func TestDecisionAtExpiry(t *testing.T) {
	t.Parallel()
	yes, no := 0, 0
	for round := range 200 {
		d := newApprovalFixture(time.Duration(round)*2*time.Microsecond + 1) // about when the decision is sent
		got := d.requestAsync(t, egressCall(), egressQuestion(place))
		id := <-d.published
		r, err := d.decide(t, id, subjects.ApprovalDecision{Approve: true})
		if err != nil {
			t.Fatal(err)
		}
		f := <-got
		if r.Accepted != (f == nil) || r.Accepted != (r.State == "approved") {
			t.Fatalf("round %d: the user was told %+v and the caller %v", round, r, f)
		}
		if r.Accepted {
			yes++
		} else {
			no++
		}
	}
	t.Logf("%d in time, %d too late", yes, no)
}
