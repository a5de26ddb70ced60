package broker

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// addRules stores n rules.
func (d *approvalFixture) addRules(t testing.TB, n int) {
	t.Helper()
	for i := range n {
		r := stage.Rule{ApprovalRule: subjects.ApprovalRule{
			ID: fmt.Sprintf("r%03d", i), Type: "assistant",
			Tool: "other", Rule: "flow: x", Sinks: []string{"y"}, By: "user",
			Made: noon.Add(time.Duration(i) * time.Second),
		}}
		if err := r.Put(t.Context(), d.rec.Out().Store(stage.RuleBucket)); err != nil {
			t.Fatal(err)
		}
	}
}

func (d *approvalFixture) list(t testing.TB, all bool) subjects.ApprovalList {
	t.Helper()
	raw, err := d.rec.Deliver(t, d, actortest.Message{
		Subject: "ctl.user.approval.list",
		Body:    subjects.ApprovalQuery{All: all},
	})
	if err != nil {
		t.Fatal(err)
	}
	var l subjects.ApprovalList
	if err := json.Unmarshal([]byte(raw), &l); err != nil {
		t.Fatal(err)
	}
	return l
}

func (d *approvalFixture) revoke(t testing.TB, who, id string) (bool, error) {
	t.Helper()
	raw, err := d.rec.Deliver(t, d, actortest.Message{
		Subject: "ctl." + who + ".approval.revoke." + id,
		Body:    subjects.Empty{},
	})
	return raw == `{"ok":true}`, err
}

// newRememberedFixture returns a fixture in which the user approved a call and asked to remember it.
func newRememberedFixture(t *testing.T, level string, asks []policy.Question) (*approvalFixture,
	subjects.ApprovalReply,
) {
	t.Helper()
	d := newApprovalFixture(0)
	id, got := d.startApproval(t, egressCall(), asks)
	r, err := d.decide(t, id, subjects.ApprovalDecision{Approve: true, Remember: level})
	if err != nil || !r.Accepted || <-got != nil {
		t.Fatalf("%+v, %v", r, err)
	}
	return d, r
}

func TestRememberedApproval(t *testing.T) {
	t.Parallel()
	two := func() []policy.Question { return egressQuestion(place, "https://b.example") }
	for _, tt := range []struct {
		name   string
		level  string
		change func(c *testCall, asks *[]policy.Question, d *approvalFixture)
		asked  bool // the next call needs approval
	}{
		{"always: the next call", "always", func(*testCall, *[]policy.Question, *approvalFixture) {}, false},
		{"always: in another session", "always", func(c *testCall, _ *[]policy.Question, _ *approvalFixture) {
			c.Session = "s2"
		}, false},
		{"always: another account of the type", "always", func(c *testCall, _ *[]policy.Question, _ *approvalFixture) {
			c.Caller = callerOf("operator")
		}, false},
		{"always: one of the sinks", "always", func(_ *testCall, a *[]policy.Question, _ *approvalFixture) {
			(*a)[0].Sinks = []string{place}
		}, false},
		{"always: years later", "always", func(_ *testCall, _ *[]policy.Question, d *approvalFixture) {
			d.rec.Time = noon.AddDate(3, 0, 0)
		}, false},
		{"session: the next call", "session", func(*testCall, *[]policy.Question, *approvalFixture) {}, false},
		{"session: another session", "session", func(c *testCall, _ *[]policy.Question, _ *approvalFixture) {
			c.Session = "s2"
		}, true},
		{"session: no session", "session", func(c *testCall, _ *[]policy.Question, _ *approvalFixture) {
			c.Session = ""
		}, true},
		{"session: long after", "session", func(_ *testCall, _ *[]policy.Question, d *approvalFixture) {
			d.rec.Time = noon.Add(stage.SessionRuleTTL)
		}, true},
		{"trick: session: another account", "session", func(c *testCall, _ *[]policy.Question, _ *approvalFixture) {
			c.Caller = callerOf("orchestrator")
		}, true},
		{"trick: session: a query never asked", "session", func(c *testCall, _ *[]policy.Question, _ *approvalFixture) {
			c.Query = "q2"
		}, true},
		{"once: the next call", "", func(*testCall, *[]policy.Question, *approvalFixture) {}, true},
		{"another type", "always", func(c *testCall, _ *[]policy.Question, _ *approvalFixture) {
			c.typ = "coder"
		}, true},
		{"trick: no type", "always", func(c *testCall, _ *[]policy.Question, _ *approvalFixture) { c.typ = "" }, true},
		{"trick: wildcard type", "always", func(c *testCall, _ *[]policy.Question, _ *approvalFixture) {
			c.typ = "*"
		}, true},
		{"another tool", "always", func(c *testCall, _ *[]policy.Question, _ *approvalFixture) {
			c.Tool = "web_search"
		}, true},
		{"another rule", "always", func(_ *testCall, a *[]policy.Question, _ *approvalFixture) {
			(*a)[0].Rule = "flow.exec"
		}, true},
		{"another layer", "always", func(_ *testCall, a *[]policy.Question, _ *approvalFixture) {
			(*a)[0].Layer = "limits"
		}, true},
		{
			"trick: layer and rule cut in another sink", "always",
			func(_ *testCall, a *[]policy.Question, _ *approvalFixture) {
				(*a)[0].Layer, (*a)[0].Rule = "flow: flow.egress", ""
			}, true,
		},
		{"another sink", "always", func(_ *testCall, a *[]policy.Question, _ *approvalFixture) {
			(*a)[0].Sinks = []string{"https://evil.example"}
		}, true},
		{"trick: one sink more", "always", func(_ *testCall, a *[]policy.Question, _ *approvalFixture) {
			(*a)[0].Sinks = append((*a)[0].Sinks, "https://evil.example")
		}, true},
		{"trick: a longer sink", "always", func(_ *testCall, a *[]policy.Question, _ *approvalFixture) {
			(*a)[0].Sinks = []string{place + "&secret=1"}
		}, true},
		{"trick: the beginning of the sink", "always", func(_ *testCall, a *[]policy.Question, _ *approvalFixture) {
			(*a)[0].Sinks = []string{"https://example.org/"}
		}, true},
		{"trick: the sink in capitals", "always", func(_ *testCall, a *[]policy.Question, _ *approvalFixture) {
			(*a)[0].Sinks = []string{strings.ToUpper(place)}
		}, true},
		{"trick: both sinks as one", "always", func(_ *testCall, a *[]policy.Question, _ *approvalFixture) {
			(*a)[0].Sinks = []string{place + "," + "https://b.example"}
		}, true},
		{"trick: no sink at all", "always", func(_ *testCall, a *[]policy.Question, _ *approvalFixture) {
			(*a)[0].Sinks = nil
		}, true},
		{"trick: a second question beside it", "always", func(_ *testCall, a *[]policy.Question, _ *approvalFixture) {
			*a = append(*a, policy.Question{Layer: "flow", Rule: "flow.exec", Reason: "it runs a program"})
		}, true},
		{"revoked", "always", func(_ *testCall, _ *[]policy.Question, d *approvalFixture) {
			for _, r := range d.list(t, false).Rules {
				if ok, err := d.revoke(t, "user", r.ID); !ok || err != nil {
					t.Errorf("%v, %v", ok, err)
				}
			}
		}, true},
		{
			"trick: a rule that was moved to another tool", "always",
			func(c *testCall, _ *[]policy.Question, d *approvalFixture) {
				store := d.rec.Out().Store(stage.RuleBucket)
				keys, _ := store.Keys(t.Context(), "")
				data, _, _ := store.Get(t.Context(), keys[0])
				c.Tool = "run_shell"
				if _, err := store.Put(t.Context(), "assistant.run_shell.x", data, 0); err != nil {
					t.Error(err)
				}
			}, true,
		},
		{"trick: corrupt rule", "", func(_ *testCall, _ *[]policy.Question, d *approvalFixture) {
			rules := d.rec.Out().Store(stage.RuleBucket)
			if _, err := rules.Put(t.Context(), "assistant.web_fetch.x", []byte(`{"sinks":`),
				0); err != nil {
				t.Error(err)
			}
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d, r := newRememberedFixture(t, tt.level, two())
			if r.Remember != tt.level {
				t.Fatalf("%+v", r)
			}
			c, asks := egressCall(), two()
			c.ID = "c2"
			tt.change(&c, &asks, d)
			if !tt.asked {
				if f := <-d.requestAsync(t, c, asks); f != nil || len(d.published) != 0 {
					t.Errorf("%v, told %d", f, len(d.published))
				}
				return
			}
			id, got := d.startApproval(t, c, asks)
			if _, err := d.decide(t, id, subjects.ApprovalDecision{}); err != nil {
				t.Error(err)
			}
			if f := <-got; verdict(f) != "not_approved approval: denied" {
				t.Errorf("%v", f)
			}
		})
	}
}

// TestUnrememberableApprovalHoldsOnce: an approval that cannot be remembered holds for its call only, and the reply
// says so.
func TestUnrememberableApprovalHoldsOnce(t *testing.T) {
	t.Parallel()
	act := policy.Question{Layer: "flow", Rule: "flow.exec", Reason: "it runs a program"}
	for _, tt := range []struct {
		name   string
		level  string
		change func(d *approvalFixture, c *testCall)
		asks   []policy.Question
	}{
		{"an act and no sink", "always", func(*approvalFixture, *testCall) {}, []policy.Question{act}},
		{
			"an act and no sink, for the session", "session", func(*approvalFixture, *testCall) {},
			[]policy.Question{act},
		},
		{
			"trick: an act beside a sink", "always", func(*approvalFixture, *testCall) {},
			append(egressQuestion(place), act),
		},
		{"session rule without a session", "session", func(_ *approvalFixture, c *testCall) {
			c.Session = ""
		}, egressQuestion(place)},
		{"session rule for another account", "session", func(_ *approvalFixture, c *testCall) {
			c.Caller = callerOf("orchestrator")
		}, egressQuestion(place)},
		{"trick: for no type", "always", func(_ *approvalFixture, c *testCall) { c.typ = "" }, egressQuestion(place)},
		{"trick: wildcard type", "always", func(_ *approvalFixture, c *testCall) {
			c.typ = ">"
		}, egressQuestion(place)},
		{"too many rules", "always", func(d *approvalFixture, _ *testCall) {
			d.addRules(t, maxRules)
		}, egressQuestion(place)},
		{
			"a sink too long to be listed", "always", func(*approvalFixture, *testCall) {},
			egressQuestion(strings.Repeat("x", maxRuleBytes/2)),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d, c := newApprovalFixture(0), egressCall()
			tt.change(d, &c)
			before := len(d.list(t, false).Rules)
			for _, id := range []string{"c1", "c2"} { // both need approval
				c.ID = id
				q, got := d.startApproval(t, c, tt.asks)
				if r, err := d.decide(t, q, subjects.ApprovalDecision{Approve: true, Remember: tt.level}); err != nil ||
					!r.Accepted || r.Remember != "" || <-got != nil {
					t.Errorf("%+v, %v", r, err)
				}
			}
			if n := len(d.list(t, false).Rules); n != before {
				t.Errorf("%d rules, %d before", n, before)
			}
		})
	}
	if got := newApprovalFixture(0).newApproval((&actortest.Recorder{}).Out(), egressCall().judged(), "x",
		append(egressQuestion(place), act)); got.Sinks != nil {
		t.Errorf("the user is shown %q as what would be remembered", got.Sinks)
	}
}

func TestListApprovals(t *testing.T) {
	t.Parallel()
	d := newApprovalFixture(0)
	put := func(id, state string, asked time.Duration, args int) {
		q := stage.Approval{}
		q.ApprovalRequest = subjects.ApprovalRequest{
			ID: id, Tool: "web_fetch",
			Args: json.RawMessage(`"` + strings.Repeat("x", args) + `"`), Asked: noon.Add(asked),
			Expires: noon.Add(asked + time.Minute),
		}
		q.State = state
		if err := q.Put(t.Context(), d.rec.Out().Store(stage.ApprovalBucket)); err != nil {
			t.Fatal(err)
		}
	}
	states := func(all bool) (out []string) {
		for _, a := range d.list(t, all).Approvals {
			out = append(out, a.ID+" "+a.State)
		}
		return out
	}
	put("old", "pending", -time.Hour, 1)
	put("a", "pending", -time.Second, 1)
	put("b", "pending", -2*time.Second, 1)
	put("yes", "approved", -time.Millisecond, 1)
	if _, err := d.rec.Out().Store(stage.ApprovalBucket).Put(t.Context(), "damaged", []byte("["), 0); err != nil {
		t.Fatal(err)
	}
	if got, want := states(false), []string{"a pending", "b pending"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got, want := states(true), []string{"a pending", "b pending", "yes approved", "old expired"}; !slices.Equal(got,
		want) {
		t.Errorf("%q", got)
	}
	if n := d.rec.Logged(); len(n) == 0 || !errors.Is(n[0], stage.ErrCorrupt) {
		t.Errorf("noted %v", n)
	}
	if l := d.list(t, true); l.Rules == nil {
		t.Error("no rules are null")
	}
	// Many: the newest, and never more than fits into a message.
	for i := range maxListed + 20 {
		put(fmt.Sprintf("m%03d", i), "denied", time.Duration(i)*time.Microsecond, 1)
	}
	if got := states(true); len(got) != maxListed || got[0] != "a pending" ||
		!slices.Contains(got, fmt.Sprintf("m%03d denied", maxListed+19)) || slices.Contains(got, "m000 denied") {
		t.Errorf("%d: %q ...", len(got), got[:3])
	}
	for i := range 10 {
		put(fmt.Sprintf("big%d", i), "pending", time.Duration(i)*time.Millisecond, 200<<10)
	}
	if got := states(true); !slices.Equal(got, []string{"big9 pending", "big8 pending"}) {
		t.Errorf("%q", got)
	}
	d.addRules(t, maxRules)
	if l := d.list(t, false); len(l.Rules) != maxRules || l.Rules[0].ID != fmt.Sprintf("r%03d", maxRules-1) {
		t.Errorf("%d rules, first %+v", len(l.Rules), l.Rules[0])
	}
	if _, err := d.rec.Deliver(t, d, actortest.Message{
		Subject: "ctl.generator.approval.list",
		Body:    subjects.ApprovalQuery{},
	}); actortest.Code(err) != subjects.CodeDenied {
		t.Errorf("trick: an agent lists: %v", err)
	}
}

func TestRevokeRule(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		who    string
		id     string // "" = the rule's
		before func(d *approvalFixture, id string)
		ok     bool
		code   string
		holds  bool
		audit  []string
	}{
		{name: "it ends", ok: true, audit: []string{"before allowed flow: flow.egress", "after ok flow: flow.egress"}},
		{name: "on the page", who: "gateway", ok: true, audit: []string{
			"before allowed flow: flow.egress",
			"after ok flow: flow.egress",
		}},
		{name: "unknown", id: "abcdef", holds: true, audit: []string{"before refused unknown"}},
		{
			name: "twice", before: func(d *approvalFixture, id string) { d.revoke(t, "user", id) },
			audit: []string{"before allowed flow: flow.egress", "after ok flow: flow.egress", "before refused unknown"},
		},
		{name: "audit fails", before: func(d *approvalFixture, _ string) {
			d.refuse[subjects.StatusAllowed] = errors.New("full")
		}, code: subjects.CodeNoAudit, holds: true},
		{
			name: "store fails", before: func(d *approvalFixture, _ string) {
				d.rec.FailStore = errors.New("no stream")
			}, code: subjects.CodeUnavailable, holds: true,
			audit: []string{"before allowed flow: flow.egress", "after unknown unavailable"},
		},
		{
			name: "trick: an agent", who: "generator", code: subjects.CodeDenied, holds: true,
			audit: []string{"before refused denied"},
		},
		{
			name: "trick: wildcard id", id: "*", code: subjects.CodeSubject, holds: true,
			audit: []string{"before refused bad_subject"},
		},
		{
			name: "trick: the tool instead of the id", id: "web_fetch", holds: true,
			audit: []string{"before refused unknown"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d, _ := newRememberedFixture(t, "always", egressQuestion(place))
			id := d.list(t, false).Rules[0].ID
			d.records = nil
			if tt.before != nil {
				tt.before(d, id)
			}
			ok, err := d.revoke(t, cmp.Or(tt.who, "user"), cmp.Or(tt.id, id))
			if ok != tt.ok || actortest.Code(err) != tt.code {
				t.Errorf("%v, %v", ok, err)
			}
			if holds := len(d.list(t, false).Rules) == 1; holds != tt.holds {
				t.Errorf("it holds: %v", holds)
			}
			if !slices.Equal(d.audited(), tt.audit) {
				t.Errorf("records %q", d.audited())
			}
		})
	}
}
