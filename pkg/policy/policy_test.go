package policy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"conclave/pkg/policy"
	"conclave/subjects"
)

// layer is a layer made of a function.
type layer struct {
	name  string
	judge func(context.Context, policy.Call) policy.Verdict
}

func (l layer) Name() string { return l.name }

func (l layer) Judge(ctx context.Context, c policy.Call) policy.Verdict { return l.judge(ctx, c) }

// pointer is a layer that could judge as a nil pointer too, which is the danger of it.
type pointer struct{}

func (*pointer) Name() string { return "pointer" }

func (*pointer) Judge(context.Context, policy.Call) policy.Verdict { return policy.Pass() }

func passes(name string) policy.Layer {
	return layer{name, func(context.Context, policy.Call) policy.Verdict { return policy.Pass() }}
}

func denies(name string) policy.Layer {
	return layer{name, func(context.Context, policy.Call) policy.Verdict {
		return policy.Deny("no", "not today", "tomorrow")
	}}
}

// goodCall is allowed by everything that is not made to refuse it.
func goodCall() policy.Call {
	return policy.Call{
		Caller: subjects.Caller{Account: "generator"},
		Type:   "assistant",
		Tool:   policy.Tool{Name: "get_datetime", Zone: "tools", Known: true, Effects: policy.Declare()},
		Args:   json.RawMessage(`{"zone":"UTC"}`),
	}
}

func TestDecide(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, stop := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer stop()
	with := func(change func(*policy.Call)) policy.Call {
		c := goodCall()
		change(&c)
		return c
	}
	var noContext context.Context

	for _, tt := range []struct {
		name   string
		ctx    context.Context
		chain  policy.Chain
		call   policy.Call
		layer  string // of the refusal, "" = allowed
		rule   string
		passed []string
	}{
		{name: "one layer passes", chain: policy.Chain{passes("a")}, call: goodCall(), passed: []string{"a"}},
		{name: "all layers pass", chain: policy.Chain{passes("a"), passes("b"), passes("c")}, call: goodCall(), passed: []string{"a", "b", "c"}},
		{name: "the only layer denies", chain: policy.Chain{denies("a")}, call: goodCall(), layer: "a", rule: "no"},
		{name: "the last layer denies", chain: policy.Chain{passes("a"), passes("b"), denies("c")}, call: goodCall(), layer: "c", rule: "no", passed: []string{"a", "b"}},
		{name: "the first of two denials counts", chain: policy.Chain{passes("a"), denies("b"), denies("c")}, call: goodCall(), layer: "b", rule: "no", passed: []string{"a"}},

		{name: "trick: empty chain", chain: policy.Chain{}, call: goodCall(), layer: "chain", rule: "empty_chain"},
		{name: "trick: nil chain", chain: nil, call: goodCall(), layer: "chain", rule: "empty_chain"},
		{name: "trick: nil layer", chain: policy.Chain{passes("a"), nil}, call: goodCall(), layer: "chain", rule: "nil_layer", passed: []string{"a"}},
		{name: "trick: nil pointer dressed as a layer", chain: policy.Chain{(*pointer)(nil)}, call: goodCall(), layer: "chain", rule: "nil_layer"},
		{name: "trick: layer without a name", chain: policy.Chain{passes("")}, call: goodCall(), layer: "chain", rule: "nil_layer"},
		{name: "trick: zero verdict", chain: policy.Chain{layer{"a", func(context.Context, policy.Call) policy.Verdict { return policy.Verdict{} }}}, call: goodCall(), layer: "a", rule: "no_verdict"},
		{name: "trick: denial without words", chain: policy.Chain{layer{"a", func(context.Context, policy.Call) policy.Verdict { return policy.Deny("", "") }}}, call: goodCall(), layer: "a", rule: "no_verdict"},
		{name: "trick: denial without a rule", chain: policy.Chain{layer{"a", func(context.Context, policy.Call) policy.Verdict { return policy.Deny("", "because") }}}, call: goodCall(), layer: "a", rule: "a"},
		{name: "trick: panicking layer", chain: policy.Chain{passes("a"), layer{"b", func(context.Context, policy.Call) policy.Verdict { panic("password is hunter2") }}}, call: goodCall(), layer: "b", rule: "layer_failed", passed: []string{"a"}},
		{name: "trick: layer without a function", chain: policy.Chain{layer{name: "a"}}, call: goodCall(), layer: "a", rule: "layer_failed"},
		{name: "trick: panic after passing once", chain: policy.Chain{layer{"a", func(context.Context, policy.Call) (v policy.Verdict) {
			v = policy.Pass()
			panic(v)
		}}}, call: goodCall(), layer: "a", rule: "layer_failed"},
		{name: "trick: passing layer after a denial", chain: policy.Chain{denies("a"), passes("b")}, call: goodCall(), layer: "a", rule: "no"},
		{name: "trick: zero call", chain: policy.Chain{passes("a")}, call: policy.Call{}, layer: "tool", rule: "bad_name"},
		{name: "trick: unknown tool", chain: policy.Chain{passes("a")}, call: with(func(c *policy.Call) { c.Tool.Known = false }), layer: "tool", rule: "unknown_tool"},
		{name: "trick: unknown tool that claims no effects", chain: policy.Chain{passes("a")}, call: with(func(c *policy.Call) { c.Tool = policy.Tool{Name: "friendly", Effects: policy.Declare()} }), layer: "tool", rule: "unknown_tool"},
		{name: "trick: wildcard as name", chain: policy.Chain{passes("a")}, call: with(func(c *policy.Call) { c.Tool.Name = "*" }), layer: "tool", rule: "bad_name"},
		{name: "trick: wildcard in a name", chain: policy.Chain{passes("a")}, call: with(func(c *policy.Call) { c.Tool.Name = "fs_*" }), layer: "tool", rule: "bad_name"},
		{name: "trick: name that reaches into the path", chain: policy.Chain{passes("a")}, call: with(func(c *policy.Call) { c.Tool.Name = "get_datetime.coder-1" }), layer: "tool", rule: "bad_name"},
		{name: "trick: newline in a name", chain: policy.Chain{passes("a")}, call: with(func(c *policy.Call) { c.Tool.Name = "get_datetime\n" }), layer: "tool", rule: "bad_name"},
		{name: "trick: cancelled context", ctx: cancelled, chain: policy.Chain{passes("a")}, call: goodCall(), layer: "chain", rule: "out_of_time"},
		{name: "trick: deadline long past", ctx: late, chain: policy.Chain{passes("a")}, call: goodCall(), layer: "chain", rule: "out_of_time"},
		{name: "trick: no context", ctx: noContext, chain: policy.Chain{passes("a")}, call: goodCall(), layer: "chain", rule: "out_of_time"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := tt.ctx
			if ctx == nil && tt.name != "trick: no context" {
				ctx = t.Context()
			}
			d := tt.chain.Decide(ctx, tt.call)
			if d.Allowed() != (tt.layer == "") {
				t.Fatalf("allowed = %v, denial %+v", d.Allowed(), d.Denial())
			}
			if !slices.Equal(d.LayersPassed, tt.passed) {
				t.Errorf("passed %v, want %v", d.LayersPassed, tt.passed)
			}
			if tt.layer == "" {
				if d.Denial() != nil {
					t.Errorf("allowed, and yet a denial: %+v", d.Denial())
				}
				return
			}
			got := d.Denial()
			if got == nil || got.Layer != tt.layer || got.Rule != tt.rule || got.Reason == "" {
				t.Fatalf("denial %+v, want layer %s, rule %s and a reason", got, tt.layer, tt.rule)
			}
			if strings.Contains(got.Reason, "hunter2") {
				t.Errorf("the reason shows what broke: %s", got.Reason)
			}
		})
	}
}

func TestZeroValuesRefuse(t *testing.T) {
	var d policy.Decision
	if d.Allowed() || d.Denial() == nil || d.Denial().Reason == "" {
		t.Errorf("zero decision: allowed %v, denial %+v", d.Allowed(), d.Denial())
	}
	forged := policy.Decision{LayersPassed: []string{"manifest", "lineage", "arguments"}}
	if forged.Allowed() {
		t.Error("a decision made outside the chain allows")
	}
	var tool policy.Tool
	for _, e := range []policy.Effect{policy.ReadsPrivate, policy.ReadsUntrusted, policy.Egress, policy.Mutate, policy.Destroy, policy.Exec} {
		if !tool.Has(e) {
			t.Errorf("the zero tool lacks %s", e)
		}
		if !(policy.Tool{Known: true}).Has(e) {
			t.Errorf("a known tool that declared nothing lacks %s", e)
		}
		if !(policy.Tool{Effects: policy.Declare()}).Has(e) {
			t.Errorf("an unknown tool that declares innocence lacks %s", e)
		}
		if (policy.Tool{Known: true, Effects: policy.Declare()}).Has(e) {
			t.Errorf("a known tool without effects has %s", e)
		}
	}
}

func TestEffects(t *testing.T) {
	s := policy.Declare(policy.Egress, policy.ReadsUntrusted)
	if !s.Has(policy.Egress) || !s.Has(policy.ReadsUntrusted) || s.Has(policy.Exec) {
		t.Errorf("set of two: %s", s)
	}
	for want, s := range map[string]policy.Effects{
		"reads_untrusted, egress": s,
		"none":                    policy.Declare(),
		"all (undeclared)":        {},
	} {
		if s.String() != want {
			t.Errorf("String() = %q, want %q", s, want)
		}
	}
	if got := policy.Effect(0).String(); got != "unknown" {
		t.Errorf("effect 0 is called %q", got)
	}
}

// TestDenialIsNotShared: whoever holds a denial may change it, and the decision stays what it was.
func TestDenialIsNotShared(t *testing.T) {
	d := policy.Chain{denies("a")}.Decide(t.Context(), goodCall())
	d.Denial().Allowed[0] = "everything"
	d.Denial().Reason = ""
	if got := d.Denial(); got.Allowed[0] != "tomorrow" || got.Reason != "not today" {
		t.Errorf("the denial was changed from outside: %+v", got)
	}
}

// TestLayerCannotChangeTheCall: what the next layer judges, and what runs, is what the first one saw.
func TestLayerCannotChangeTheCall(t *testing.T) {
	c := goodCall()
	c.Caller.Path = []string{"researcher-1"}
	c.Tool.Secrets = []string{"brave"}
	want := fmt.Sprintf("%+v", c)
	var saw string
	meddler := layer{"meddler", func(_ context.Context, c policy.Call) policy.Verdict {
		copy(c.Args, `{"zone":"XXX"}`)
		c.Caller.Path[0], c.Tool.Secrets[0] = "operator", "master"
		c.Tool.Known, c.Type = false, "operator"
		return policy.Pass()
	}}
	witness := layer{"witness", func(_ context.Context, c policy.Call) policy.Verdict {
		saw = fmt.Sprintf("%+v", c)
		return policy.Pass()
	}}
	policy.Chain{meddler, witness}.Decide(t.Context(), c)
	if saw != want {
		t.Errorf("the second layer judged\n%s\nwant\n%s", saw, want)
	}
	if got := fmt.Sprintf("%+v", c); got != want {
		t.Errorf("the caller is left with\n%s\nwant\n%s", got, want)
	}
}

// TestRefusalStopsTheChain: a layer after a refusal is not even asked, so it cannot learn of the call or change anything.
func TestRefusalStopsTheChain(t *testing.T) {
	asked := false
	flip := layer{"flip", func(context.Context, policy.Call) policy.Verdict { asked = true; return policy.Pass() }}
	if d := (policy.Chain{denies("a"), flip}).Decide(t.Context(), goodCall()); d.Allowed() || asked {
		t.Errorf("allowed %v, asked %v", d.Allowed(), asked)
	}
}

// TestCancelledWhileJudged: a layer that takes too long does not buy the call its permission.
func TestCancelledWhileJudged(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	slow := layer{"slow", func(context.Context, policy.Call) policy.Verdict { cancel(); return policy.Pass() }}
	d := policy.Chain{slow}.Decide(ctx, goodCall())
	if d.Allowed() || d.Denial().Rule != policy.RuleOutOfTime {
		t.Errorf("allowed %v, denial %+v", d.Allowed(), d.Denial())
	}
}

// TestFailureIsForTheLog: what broke is there for whoever runs the broker, and only there.
func TestFailureIsForTheLog(t *testing.T) {
	broken := layer{"broken", func(context.Context, policy.Call) policy.Verdict { panic("index out of range") }}
	d := policy.Chain{broken}.Decide(t.Context(), goodCall())
	if d.Failure() == nil || !strings.Contains(d.Failure().Error(), "index out of range") || !strings.Contains(d.Failure().Error(), "policy_test.go") {
		t.Errorf("failure %v, want the panic and where it happened", d.Failure())
	}
	wire, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(wire), "range") {
		t.Errorf("the failure travels: %s", wire)
	}
}

// TestNoCombinationAllowsWhatOneDenies is the promise of the package: a call is allowed exactly if there are layers and
// each of them alone would pass it, in whatever order they stand.
func TestNoCombinationAllowsWhatOneDenies(t *testing.T) {
	manifest := policy.ManifestLayer{Manifest: policy.Manifest{
		Types:    map[string]policy.AgentType{"assistant": {Tools: []string{"get_datetime"}}, "persona": {Tools: []string{"search_memory"}}},
		Accounts: map[string]string{"generator": "assistant", "committee": "persona"},
	}}
	kinds := map[string]policy.Layer{
		"pass":     passes("pass"),
		"pass too": passes("pass too"),
		"manifest": manifest,
		"meddler": layer{"meddler", func(_ context.Context, c policy.Call) policy.Verdict {
			c.Tool.Name, c.Type, c.Tool.Known = "get_datetime", "assistant", true
			return policy.Pass()
		}},
		"deny":        denies("deny"),
		"zero":        layer{"zero", func(context.Context, policy.Call) policy.Verdict { return policy.Verdict{} }},
		"panic":       layer{"panic", func(context.Context, policy.Call) policy.Verdict { panic("no") }},
		"nil":         nil,
		"nil pointer": (*pointer)(nil),
		"no manifest": policy.ManifestLayer{},
	}
	names := make([]string, 0, len(kinds))
	for n := range kinds {
		names = append(names, n)
	}
	slices.Sort(names)

	rapid.Check(t, func(rt *rapid.T) {
		// Mostly layers that pass, so that long chains get to the end too.
		harmless := rapid.SampledFrom([]string{"manifest", "meddler", "pass", "pass too"})
		picked := rapid.SliceOfN(rapid.OneOf(harmless, harmless, harmless, rapid.SampledFrom(names)), 0, 8).Draw(rt, "layers")
		c := goodCall()
		c.Caller.Account = rapid.SampledFrom([]string{"generator", "generator", "committee", "nobody"}).Draw(rt, "account")
		c.Type = rapid.SampledFrom([]string{"assistant", "assistant", "persona", "ghost"}).Draw(rt, "type")
		c.Tool.Name = rapid.SampledFrom([]string{"get_datetime", "get_datetime", "search_memory", "Get_Datetime", "*"}).Draw(rt, "tool")
		c.Tool.Known = rapid.SampledFrom([]bool{true, true, true, false}).Draw(rt, "known")

		decide := func(names []string) policy.Decision {
			var chain policy.Chain
			for _, n := range names {
				chain = append(chain, kinds[n])
			}
			return chain.Decide(t.Context(), c)
		}
		want := len(picked) > 0
		for _, n := range picked {
			want = want && decide([]string{n}).Allowed()
		}
		for _, order := range [][]string{picked, rapid.Permutation(picked).Draw(rt, "order")} {
			d := decide(order)
			if d.Allowed() != want {
				rt.Fatalf("%v on %+v: allowed %v, want %v (%+v)", order, c, d.Allowed(), want, d.Denial())
			}
			if d.Allowed() == (d.Denial() != nil) {
				rt.Fatalf("allowed %v and denial %+v", d.Allowed(), d.Denial())
			}
			if d.Allowed() && len(d.LayersPassed) != len(order) {
				rt.Fatalf("allowed after %v of %v", d.LayersPassed, order)
			}
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	chain := policy.Chain{policy.ManifestLayer{Manifest: policy.Manifest{
		Types:    map[string]policy.AgentType{"assistant": {Tools: []string{"get_datetime"}}},
		Accounts: map[string]string{"generator": "assistant"},
	}}}
	c, ctx := goodCall(), b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if !chain.Decide(ctx, c).Allowed() {
			b.Fatal("denied")
		}
	}
}
