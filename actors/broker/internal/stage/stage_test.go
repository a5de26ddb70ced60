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
	p, ok, err := judge(t, policy.Pass(), nil).Allow(nil)
	if !ok || err != nil {
		t.Fatal(ok, err)
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

// TestAllow: a call is allowed only when every layer passed it and the stored flow has its grant, also the second time.
func TestAllow(t *testing.T) {
	t.Parallel()
	note := policy.Tool{
		Name: "send", Known: true, Act: policy.ActCreate, Effects: policy.Declare(policy.Mutate),
		Args: policy.Args{"to": {Role: policy.RoleContent}},
	}
	words := "Read https://a.example/ and save a note 'ana'"
	granted := (&policy.Flow{}).WithQuestion("q1", words, policy.DeriveGrants(words)).WithResult(policy.Result{
		Tool: policy.Tool{Name: "web_fetch", Known: true, Effects: policy.Declare(policy.ReadsUntrusted)},
	})
	used, _ := granted.ClaimGrant(policy.Call{Query: "q1", Tool: note, Args: call.Args}, "another call")
	lost := errors.New("no stream")
	for _, tt := range []struct {
		name    string
		verdict policy.Verdict
		stored  *policy.Flow
		err     error // of the write
		want    bool
	}{
		{"a grant is left", policy.Pass(), granted, nil, true},
		{"another call used it", policy.Pass(), used, nil, false},
		{"the claim is not stored", policy.Pass(), granted, lost, false},
		{"the layers ask", policy.Ask("r", "why"), granted, nil, false},
		{"denied", policy.Deny("r", "why"), granted, nil, false},
		{"trick: no verdict", policy.Verdict{}, granted, nil, false},
		{"trick: nothing is read", policy.Pass(), nil, nil, false},
	} {
		j := stage.Judge(t.Context(), policy.Rules{Chain: policy.Chain{layer(tt.verdict)}}, call,
			policy.Call{Tool: note, Flow: granted}, nil)
		for range 2 {
			p, ok, err := j.Allow(func(change func(*policy.Flow) *policy.Flow) error {
				if tt.stored != nil {
					tt.stored = change(tt.stored)
				}
				return tt.err
			})
			if ok != tt.want || ok != (p.Judged() != nil) || tt.err != nil && !errors.Is(err, tt.err) {
				t.Errorf("%s: %t, %v", tt.name, ok, err)
			}
		}
	}
}

// TestApprove: the user's approval covers the call and the questions for which it was read from the bucket, and a later
// judgement of the same call claims no grant. A denial stands all the same.
func TestApprove(t *testing.T) {
	t.Parallel()
	ask := policy.Ask("r", "why", "ana")
	stored := stage.Approval{
		Call: call.Key(), Params: call.Record.ParamsHash, Asks: []stage.Ask{{Rule: "test: r", Sinks: []string{"ana"}}},
	}
	stored.ID, stored.State = "a1", subjects.ApprovalApproved
	stored.SessionID, stored.Tool = call.Session, call.Tool
	for _, tt := range []struct {
		name    string
		verdict policy.Verdict
		change  func(*stage.Approval)
		want    bool
	}{
		{"approved", ask, nil, true},
		{"pending", ask, func(a *stage.Approval) { a.State = subjects.ApprovalPending }, false},
		{"trick: another call", ask, func(a *stage.Approval) { a.Call = "generator.c2" }, false},
		{"trick: other arguments", ask, func(a *stage.Approval) { a.Params = "h2" }, false},
		{"trick: another session", ask, func(a *stage.Approval) { a.SessionID = "s2" }, false},
		{"trick: another tool", ask, func(a *stage.Approval) { a.Tool = "sendd" }, false},
		{"trick: another rule", ask, func(a *stage.Approval) { a.Asks[0].Rule = "test: q" }, false},
		{"trick: another sink", ask, func(a *stage.Approval) { a.Asks[0].Sinks = []string{"eve"} }, false},
		{"trick: no questions", ask, func(a *stage.Approval) { a.Asks = nil }, false},
		{"trick: nothing was asked", policy.Pass(), nil, false},
		{"trick: denied", policy.Deny("r", "why"), nil, false},
	} {
		f, a := newFixture(), stored
		a.Asks = []stage.Ask{stored.Asks[0]}
		if tt.change != nil {
			tt.change(&a)
		}
		store := f.Out().Store(stage.ApprovalBucket)
		if err := a.Put(t.Context(), store); err != nil {
			t.Fatal(err)
		}
		a.State = subjects.ApprovalApproved // which is not how it was read
		read, err := stage.ReadApproval(t.Context(), store, "a1")
		if err != nil {
			t.Fatal(err)
		}
		j := judge(t, tt.verdict, nil)
		if p, fault := j.Approve(a.Consent(), stage.Consent{}); fault == nil || p.Judged() != nil {
			t.Errorf("%s: permitted by what was not read", tt.name)
		}
		p, fault := j.Approve(stage.Consent{}, read.Consent())
		if p.Approved() != tt.want || tt.want != (fault == nil) {
			t.Errorf("%s: %t, %v", tt.name, p.Approved(), fault)
		}
		if again, ok, _ := judge(t, policy.Pass(), j).Allow(nil); !ok || again.Approved() != tt.want {
			t.Errorf("%s: the next judgement: %t", tt.name, again.Approved())
		}
		if _, ok, _ := judge(t, policy.Deny("r", "why"), j).Allow(nil); ok {
			t.Errorf("%s: the approval outweighs a denial", tt.name)
		}
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

// FuzzHashParts: different lists of parts have different hashes.
func FuzzHashParts(f *testing.F) {
	f.Add("generator.c1", "web_fetch", "generator.c1web", "_fetch")
	f.Add("", "a", "a", "")
	f.Add("1:a", "", "1", ":a")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		same := a == c && b == d
		if got := stage.HashParts(a, b) == stage.HashParts(c, d); got != same {
			t.Errorf("%q %q and %q %q: %v", a, b, c, d, got)
		}
		if stage.HashParts(a, b) == stage.HashParts(a+b) || subjects.CheckToken(stage.HashParts(a, b)) != nil {
			t.Errorf("%q %q", a, b)
		}
	})
}
