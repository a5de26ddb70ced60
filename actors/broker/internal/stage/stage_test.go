package stage_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// fixture is an environment whose tools and secrets answer everything.
type fixture struct {
	actortest.Recorder
	gate    actor.Gate
	records []string
	fail    string // phase whose records are not acknowledged
}

func newFixture() *fixture {
	f := &fixture{}
	f.gate.Log = f
	f.Reply = func(string, []byte) (any, error) { return subjects.ToolResult{Result: "done"}, nil }
	return f
}

// Append implements [actor.AuditLog].
func (f *fixture) Append(_ context.Context, rec subjects.AuditRecord) error {
	if rec.Phase == f.fail {
		return errors.New("not acknowledged")
	}
	f.records = append(f.records, strings.TrimSpace(rec.Action+" "+rec.Phase+" "+rec.Status+" "+rec.Reason))
	return nil
}

// layer judges each call the same.
type layer policy.Verdict

func (layer) Name() string { return "test" }

func (l layer) Judge(context.Context, policy.Call) policy.Verdict { return policy.Verdict(l) }

var call = stage.Received{
	ID: "c1", Tool: "send", Args: json.RawMessage(`{"to":"ana"}`), Query: "q1", Session: "s1",
	Caller: subjects.Caller{Account: "generator"},
	Record: subjects.AuditRecord{ID: "r1", AgentID: "generator", Action: "tool.call"},
}

// judge lets one layer judge call. The arguments in the facts are another call's.
func judge(t *testing.T, v policy.Verdict, earlier *stage.Judged) *stage.Judged {
	t.Helper()
	return stage.Judge(t.Context(), policy.Rules{Chain: policy.Chain{layer(v)}}, call, policy.Call{
		Tool: policy.Tool{Name: "send", Known: true}, Args: json.RawMessage(`{"to":"eve"}`), Type: "assistant",
	}, earlier)
}

// permit permits a call that every layer passed.
func permit(t *testing.T) stage.Permitted {
	t.Helper()
	p, ok, fault := judge(t, policy.Pass(), nil).Permit(func() (bool, *subjects.Fault) { return true, nil }, nil)
	if !ok || fault != nil {
		t.Fatal(ok, fault)
	}
	return p
}

// sendAll tries each effect of a running call and returns how many succeed.
func sendAll(t *testing.T, f *fixture, run stage.Running) (n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := run.Send(ctx, f.Out(), "tools", false, subjects.ToolOrder{}); err == nil {
		n++
	}
	if _, err := run.Answer(ctx, f.Out(), "tools", subjects.FormAnswer{}); err == nil {
		n++
	}
	f.Reply = func(string, []byte) (any, error) { return subjects.SecretValue{Sealed: []byte("x")}, nil }
	if _, fault := run.Credential(ctx, f.Out(), subjects.SecretGet{Name: "key"}); fault == nil {
		n++
	}
	return n
}

// TestPermit: a call is permitted only when no layer denies it, its grant is claimed and its questions are approved.
func TestPermit(t *testing.T) {
	t.Parallel()
	no := subjects.Faultf(subjects.CodeNotApproved, "no")
	for _, tt := range []struct {
		name    string
		verdict policy.Verdict
		claimed bool
		fault   *subjects.Fault // of the claim and of the approval
		want    string          // "" = permitted
		used    string
	}{
		{"passed", policy.Pass(), true, nil, "", "claim"},
		{"the grant is gone", policy.Pass(), false, nil, "judge again", "claim"},
		{"the grant cannot be claimed", policy.Pass(), false, no, "not_approved", "claim"},
		{"trick: a claim with a fault", policy.Pass(), true, no, "not_approved", "claim"},
		{"approved", policy.Ask("r", "why"), false, nil, "", "ask"},
		{"not approved", policy.Ask("r", "why"), true, no, "not_approved", "ask"},
		{"denied", policy.Deny("r", "why"), true, nil, "denied", ""},
		{"trick: no verdict", policy.Verdict{}, true, nil, "denied", ""},
	} {
		used := ""
		p, ok, fault := judge(t, tt.verdict, nil).Permit(func() (bool, *subjects.Fault) {
			used += "claim"
			return tt.claimed, tt.fault
		}, func([]policy.Question) *subjects.Fault {
			used += "ask"
			return tt.fault
		})
		got := ""
		switch {
		case fault != nil:
			got = fault.Code
		case !ok:
			got = "judge again"
		}
		if got != tt.want || used != tt.used || ok != (p.Judged() != nil) || p.Approved() != (ok && used == "ask") {
			t.Errorf("%s: %q after %q, %+v", tt.name, got, used, p)
		}
	}
}

// TestApprovalHoldsForNextJudgement: a call that the user approved claims no grant when it is judged again, and a
// denial stands all the same.
func TestApprovalHoldsForNextJudgement(t *testing.T) {
	t.Parallel()
	first := judge(t, policy.Ask("r", "why"), nil)
	if _, ok, _ := first.Permit(nil, func([]policy.Question) *subjects.Fault { return nil }); !ok {
		t.Fatal("it is not permitted")
	}
	if p, ok, _ := judge(t, policy.Pass(), first).Permit(nil, nil); !ok || !p.Approved() {
		t.Error("the approval is forgotten")
	}
	if _, ok, fault := judge(t, policy.Deny("r", "why"), first).Permit(nil, nil); ok || fault == nil {
		t.Error("the approval outweighs a denial")
	}
}

// TestOnlyRunningCallSends: nothing is sent or requested by a call that is not permitted, that is not on record, or
// that has ended.
func TestOnlyRunningCallSends(t *testing.T) {
	t.Parallel()
	f := newFixture()
	act := func(context.Context, stage.Running) subjects.ToolResult {
		t.Error("the act ran")
		return subjects.ToolResult{}
	}
	if _, err := (stage.Permitted{}).Run(t.Context(), f.Out(), &f.gate, act); err == nil || len(f.records) > 0 {
		t.Errorf("a call that is not permitted: %v, %v", err, f.records)
	}
	f.fail = subjects.AuditBefore
	var fault *subjects.Fault
	if _, err := permit(t).Run(t.Context(), f.Out(), &f.gate, act); !errors.As(err, &fault) ||
		fault.Code != subjects.CodeNoAudit {
		t.Errorf("a call that is not on record: %v", err)
	}
	f.fail = ""
	var kept stage.Running
	if _, err := permit(t).Run(t.Context(), f.Out(), &f.gate, func(_ context.Context,
		run stage.Running,
	) subjects.ToolResult {
		kept = run
		return subjects.ToolResult{}
	}); err != nil {
		t.Error(err)
	}
	for name, run := range map[string]stage.Running{"zero": {}, "ended": kept} {
		if n := sendAll(t, f, run); n > 0 || len(f.Requested()) > 0 {
			t.Errorf("%s: %d effects, requests %v", name, n, f.Requested())
		}
	}
}

// TestRunSendsWhatWasJudged: the tool gets the call that was judged, after the intent and before the outcome are on
// record; without the outcome's record the result is withheld.
func TestRunSendsWhatWasJudged(t *testing.T) {
	t.Parallel()
	for _, fail := range []string{"", subjects.AuditAfter} {
		f := newFixture()
		f.fail = fail
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		res, err := permit(t).Run(ctx, f.Out(), &f.gate, func(ctx context.Context,
			run stage.Running,
		) subjects.ToolResult {
			got, err := run.Send(ctx, f.Out(), "tools", false, subjects.ToolOrder{
				CallID: "c2", QueryID: "q2", Args: json.RawMessage(`{"to":"eve"}`),
			})
			if err != nil || !slices.Equal(f.records, []string{"tool.call before allowed"}) {
				t.Errorf("%v, records %q", err, f.records)
			}
			if n := sendAll(t, f, run); n != 3 {
				t.Errorf("%d effects", n)
			}
			return got
		})
		const want = `{"args":{"to":"ana"},"call_id":"c1","query_id":"q1"}`
		if sent := f.Requested(); err != nil || len(sent) != 4 || sent[0].Body != want {
			t.Errorf("%v: %+v", err, sent)
		}
		if withheld := res.Error != nil && res.Error.Code == subjects.CodeUnrecorded && res.Result == ""; withheld !=
			(fail != "") || !withheld && res.Result != "done" {
			t.Errorf("%q: %+v", fail, res)
		}
	}
}

// TestPreview: only a call with questions has a preview, which is on record and not forgotten.
func TestPreview(t *testing.T) {
	t.Parallel()
	for _, v := range []policy.Verdict{policy.Pass(), policy.Deny("r", "why")} {
		f, j := newFixture(), judge(t, v, nil)
		if _, err := j.Preview(t.Context(), f.Out(), &f.gate, "tools", time.Minute, subjects.ToolOrder{}); err == nil ||
			j.Previewed() || len(f.Requested()) > 0 || len(f.records) > 0 {
			t.Errorf("%+v: %v, %v", v, err, f.records)
		}
	}
	f, j := newFixture(), judge(t, policy.Ask("r", "why"), nil)
	f.fail = subjects.AuditBefore
	if _, err := j.Preview(t.Context(), f.Out(), &f.gate, "tools", time.Minute, subjects.ToolOrder{}); err == nil ||
		j.Previewed() || len(f.Requested()) > 0 {
		t.Errorf("a preview that is not on record: %v", err)
	}
	f.fail = ""
	if _, err := j.Preview(t.Context(), f.Out(), &f.gate, "tools", time.Minute, subjects.ToolOrder{}); err != nil ||
		!slices.Equal(f.records, []string{"tool.preview before allowed", "tool.preview after ok"}) {
		t.Errorf("%v, %q", err, f.records)
	}
	if !judge(t, policy.Pass(), j).Previewed() {
		t.Error("the next judgement forgets the preview")
	}
}
