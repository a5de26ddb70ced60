package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"conclave/subjects"
)

// fakeLayer is a layer made of a function.
type fakeLayer struct {
	name  string
	judge func(context.Context, Call) Verdict
}

func (l fakeLayer) Name() string { return l.name }

func (l fakeLayer) Judge(ctx context.Context, c Call) Verdict { return l.judge(ctx, c) }

// pointerLayer is a layer whose methods work on a nil pointer.
type pointerLayer struct{}

func (*pointerLayer) Name() string { return "pointer" }

func (*pointerLayer) Judge(context.Context, Call) Verdict { return Pass() }

func passingLayer(name string) Layer {
	return fakeLayer{name, func(context.Context, Call) Verdict { return Pass() }}
}

func denyingLayer(name string) Layer {
	return fakeLayer{name, func(context.Context, Call) Verdict {
		return Deny("no", "not today", "tomorrow")
	}}
}

// newCall returns a call that passes every layer of these tests that does not deny on purpose.
func newCall() Call {
	return Call{
		Caller: subjects.Caller{Account: "generator"},
		Type:   "assistant",
		Tool:   Tool{Name: "get_datetime", Zone: "tools", Known: true, Effects: Declare()},
		Args:   json.RawMessage(`{"zone":"UTC"}`),
	}
}

func TestDecide(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, stop := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer stop()
	with := func(change func(*Call)) Call {
		c := newCall()
		change(&c)
		return c
	}
	var noContext context.Context

	for _, tt := range []struct {
		name   string
		ctx    context.Context
		chain  Chain
		call   Call
		layer  string // of the denial, "" = allowed
		rule   string
		passed []string
	}{
		{name: "one layer passes", chain: Chain{passingLayer("a")}, call: newCall(), passed: []string{"a"}},
		{
			name: "all layers pass", chain: Chain{passingLayer("a"), passingLayer("b"), passingLayer("c")},
			call: newCall(), passed: []string{"a", "b", "c"},
		},
		{name: "the only layer denies", chain: Chain{denyingLayer("a")}, call: newCall(), layer: "a", rule: "no"},
		{
			name: "the last layer denies", chain: Chain{passingLayer("a"), passingLayer("b"), denyingLayer("c")},
			call: newCall(), layer: "c", rule: "no", passed: []string{"a", "b"},
		},
		{
			name: "the first of two denials counts", chain: Chain{
				passingLayer("a"), denyingLayer("b"),
				denyingLayer("c"),
			},
			call: newCall(), layer: "b", rule: "no", passed: []string{"a"},
		},

		{name: "trick: empty chain", chain: Chain{}, call: newCall(), layer: "chain", rule: "empty_chain"},
		{name: "trick: nil chain", chain: nil, call: newCall(), layer: "chain", rule: "empty_chain"},
		{
			name: "trick: nil layer", chain: Chain{passingLayer("a"), nil}, call: newCall(), layer: "chain",
			rule: "nil_layer", passed: []string{"a"},
		},
		{
			name: "trick: nil pointer as a layer", chain: Chain{(*pointerLayer)(nil)}, call: newCall(), layer: "chain",
			rule: "nil_layer",
		},
		{
			name: "trick: layer without a name", chain: Chain{passingLayer("")}, call: newCall(), layer: "chain",
			rule: "nil_layer",
		},
		{name: "trick: zero verdict", chain: Chain{fakeLayer{"a", func(context.Context, Call) Verdict {
			return Verdict{}
		}}}, call: newCall(), layer: "a", rule: "no_verdict"},
		{name: "trick: denial without words", chain: Chain{fakeLayer{"a", func(context.Context, Call) Verdict {
			return Deny("", "")
		}}}, call: newCall(), layer: "a", rule: "no_verdict"},
		{name: "trick: denial without a rule", chain: Chain{fakeLayer{"a", func(context.Context, Call) Verdict {
			return Deny("", "because")
		}}}, call: newCall(), layer: "a", rule: "a"},
		{
			name: "trick: panicking layer",
			chain: Chain{passingLayer("a"), fakeLayer{"b", func(context.Context, Call) Verdict {
				panic("password is hunter2")
			}}}, call: newCall(), layer: "b", rule: "layer_failed", passed: []string{"a"},
		},
		{
			name: "trick: layer without a function", chain: Chain{fakeLayer{name: "a"}}, call: newCall(), layer: "a",
			rule: "layer_failed",
		},
		{name: "trick: panic after passing once", chain: Chain{fakeLayer{"a", func(context.Context, Call) (v Verdict) {
			v = Pass()
			panic(v)
		}}}, call: newCall(), layer: "a", rule: "layer_failed"},
		{
			name: "trick: passing layer after a denial", chain: Chain{denyingLayer("a"), passingLayer("b")},
			call: newCall(), layer: "a", rule: "no",
		},
		{name: "trick: zero call", chain: Chain{passingLayer("a")}, call: Call{}, layer: "tool", rule: "bad_name"},
		{name: "trick: unknown tool", chain: Chain{passingLayer("a")}, call: with(func(c *Call) {
			c.Tool.Known = false
		}), layer: "tool", rule: "unknown_tool"},
		{name: "trick: unknown tool that claims no effects", chain: Chain{passingLayer("a")}, call: with(func(c *Call) {
			c.Tool = Tool{Name: "friendly", Effects: Declare()}
		}), layer: "tool", rule: "unknown_tool"},
		{name: "trick: wildcard as name", chain: Chain{passingLayer("a")}, call: with(func(c *Call) {
			c.Tool.Name = "*"
		}), layer: "tool", rule: "bad_name"},
		{name: "trick: wildcard in a name", chain: Chain{passingLayer("a")}, call: with(func(c *Call) {
			c.Tool.Name = "fs_*"
		}), layer: "tool", rule: "bad_name"},
		{name: "trick: name that reaches into the path", chain: Chain{passingLayer("a")}, call: with(func(c *Call) {
			c.Tool.Name = "get_datetime.coder-1"
		}), layer: "tool", rule: "bad_name"},
		{name: "trick: newline in a name", chain: Chain{passingLayer("a")}, call: with(func(c *Call) {
			c.Tool.Name = "get_datetime\n"
		}), layer: "tool", rule: "bad_name"},
		{
			name: "trick: cancelled context", ctx: cancelled, chain: Chain{passingLayer("a")}, call: newCall(),
			layer: "chain", rule: "out_of_time",
		},
		{
			name: "trick: deadline long past", ctx: late, chain: Chain{passingLayer("a")}, call: newCall(),
			layer: "chain",
			rule:  "out_of_time",
		},
		{
			name: "trick: no context", ctx: noContext, chain: Chain{passingLayer("a")}, call: newCall(), layer: "chain",
			rule: "out_of_time",
		},
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

func TestZeroValuesDeny(t *testing.T) {
	var d Decision
	if d.Allowed() || d.Denial() == nil || d.Denial().Reason == "" {
		t.Errorf("zero decision: allowed %v, denial %+v", d.Allowed(), d.Denial())
	}
	forged := Decision{LayersPassed: []string{"manifest", "lineage", "arguments"}}
	if forged.Allowed() {
		t.Error("a decision made outside the chain allows")
	}
	var tool Tool
	for _, e := range []Effect{ReadsPrivate, ReadsUntrusted, Egress, Mutate, Destroy, Exec} {
		if !tool.Has(e) {
			t.Errorf("the zero tool lacks %s", e)
		}
		if !(Tool{Known: true}).Has(e) {
			t.Errorf("a known tool that declared nothing lacks %s", e)
		}
		if !(Tool{Effects: Declare()}).Has(e) {
			t.Errorf("an unknown tool that declares no effects lacks %s", e)
		}
		if (Tool{Known: true, Effects: Declare()}).Has(e) {
			t.Errorf("a known tool without effects has %s", e)
		}
	}
}

func TestEffects(t *testing.T) {
	s := Declare(Egress, ReadsUntrusted)
	if !s.Has(Egress) || !s.Has(ReadsUntrusted) || s.Has(Exec) {
		t.Errorf("set of two: %s", s)
	}
	for want, s := range map[string]Effects{
		"reads_untrusted, egress": s,
		"none":                    Declare(),
		"all (undeclared)":        {},
	} {
		if s.String() != want {
			t.Errorf("String() = %q, want %q", s, want)
		}
	}
	if got := Effect(0).String(); got != "unknown" {
		t.Errorf("effect 0 is called %q", got)
	}
}

// TestDenialIsNotShared: changing a returned denial does not change the decision.
func TestDenialIsNotShared(t *testing.T) {
	d := Chain{denyingLayer("a")}.Decide(t.Context(), newCall())
	d.Denial().Allowed[0] = "everything"
	d.Denial().Reason = ""
	if got := d.Denial(); got.Allowed[0] != "tomorrow" || got.Reason != "not today" {
		t.Errorf("the denial was changed from outside: %+v", got)
	}
}

// TestLayerCannotChangeTheCall: a layer that modifies its call changes nothing for the next layer or the caller.
func TestLayerCannotChangeTheCall(t *testing.T) {
	c := newCall()
	c.Caller.Path = []string{"researcher-1"}
	c.Tool.Secrets = []string{"brave"}
	want := fmt.Sprintf("%+v", c)
	var saw string
	mutator := fakeLayer{"mutator", func(_ context.Context, c Call) Verdict {
		copy(c.Args, `{"zone":"XXX"}`)
		c.Caller.Path[0], c.Tool.Secrets[0] = "operator", "master"
		c.Tool.Known, c.Type = false, "operator"
		return Pass()
	}}
	recorder := fakeLayer{"recorder", func(_ context.Context, c Call) Verdict {
		saw = fmt.Sprintf("%+v", c)
		return Pass()
	}}
	Chain{mutator, recorder}.Decide(t.Context(), c)
	if saw != want {
		t.Errorf("the second layer judged\n%s\nwant\n%s", saw, want)
	}
	if got := fmt.Sprintf("%+v", c); got != want {
		t.Errorf("the caller is left with\n%s\nwant\n%s", got, want)
	}
}

// TestOwnLayersDoNotChangeTheCall: the layers of this package judge one call without a copy for each.
func TestOwnLayersDoNotChangeTheCall(t *testing.T) {
	m := Manifest{Accounts: map[string]string{"generator": "assistant"}}
	chain := m.Chain(Env{Home: "/home/ada", Closed: []string{"/home/ada/.conclave"}})
	for _, args := range []string{`{ "path": "~/a", "URL": "https://example.org" }`, `{"path":["b","/c"]}`, `{`} {
		c := newCall()
		c.Args, c.Schema = json.RawMessage(args), json.RawMessage(`{"type":"object"}`)
		c.Caller.Path, c.Lineage = []string{"b-1", "a-2"}, []SpawnedAgent{{Name: "b-1", Tools: []string{"z", "a"}}}
		c.Tool.Paths, c.Tool.Secrets, c.Tool.People = []string{"path", "a"}, []string{"z", "a"}, []string{"z", "a"}
		c.Tool.About, c.Tool.IDs = []string{"z", "a"}, []string{"z", "a"}
		c.Tool.Args = Args{"url": {Role: RoleURL}, "content": {Role: RoleContent}}
		c.Override = Override{Disable: []string{"z", "a"}, Grant: []string{"z:a", "a:z"}}
		c.Usage.Agents, c.Kept = []AgentUsage{{Agent: "z"}, {Agent: "a"}}, &Kept{}
		want := c.clone()
		for _, l := range chain {
			if !isReadOnly(l) {
				t.Errorf("%s gets a copy of each call", l.Name())
			}
			if l.Judge(t.Context(), c); !reflect.DeepEqual(c, want) {
				t.Fatalf("%s changed the call to\n%+v\nwant\n%+v", l.Name(), c, want)
			}
		}
	}
}

// TestDenialStopsTheChain: no layer runs after a denial.
func TestDenialStopsTheChain(t *testing.T) {
	asked := false
	flip := fakeLayer{"flip", func(context.Context, Call) Verdict { asked = true; return Pass() }}
	if d := (Chain{denyingLayer("a"), flip}).Decide(t.Context(), newCall()); d.Allowed() || asked {
		t.Errorf("allowed %v, asked %v", d.Allowed(), asked)
	}
}

// TestCancelledContextDenies: a context that ends while a layer runs denies.
func TestCancelledContextDenies(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	slow := fakeLayer{"slow", func(context.Context, Call) Verdict { cancel(); return Pass() }}
	d := Chain{slow}.Decide(ctx, newCall())
	if d.Allowed() || d.Denial().Rule != ruleTimeout {
		t.Errorf("allowed %v, denial %+v", d.Allowed(), d.Denial())
	}
}

// TestLayerFailureIsNotInDenial: a panic is in Failure, for the log, and not in the denial.
func TestLayerFailureIsNotInDenial(t *testing.T) {
	broken := fakeLayer{"broken", func(context.Context, Call) Verdict { panic("index out of range") }}
	d := Chain{broken}.Decide(t.Context(), newCall())
	if d.Failure() == nil || !strings.Contains(d.Failure().Error(), "index out of range") ||
		!strings.Contains(d.Failure().Error(), "policy_test.go") {
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
	manifest := ManifestLayer{Manifest: Manifest{
		Types: map[string]AgentType{
			"assistant": {Tools: []string{"get_datetime"}},
			"persona":   {Tools: []string{"search_memory"}},
		},
		Accounts: map[string]string{"generator": "assistant", "committee": "persona"},
	}}
	kinds := map[string]Layer{
		"pass":     passingLayer("pass"),
		"pass too": passingLayer("pass too"),
		"manifest": manifest,
		"mutator": fakeLayer{"mutator", func(_ context.Context, c Call) Verdict {
			c.Tool.Name, c.Type, c.Tool.Known = "get_datetime", "assistant", true
			return Pass()
		}},
		"deny":        denyingLayer("deny"),
		"zero":        fakeLayer{"zero", func(context.Context, Call) Verdict { return Verdict{} }},
		"panic":       fakeLayer{"panic", func(context.Context, Call) Verdict { panic("no") }},
		"nil":         nil,
		"nil pointer": (*pointerLayer)(nil),
		"no manifest": ManifestLayer{},
	}
	names := make([]string, 0, len(kinds))
	for n := range kinds {
		names = append(names, n)
	}
	slices.Sort(names)

	rapid.Check(t, func(rt *rapid.T) {
		// Mostly layers that pass, so that long chains get to the end too.
		harmless := rapid.SampledFrom([]string{"manifest", "mutator", "pass", "pass too"})
		picked := rapid.SliceOfN(rapid.OneOf(harmless, harmless, harmless, rapid.SampledFrom(names)), 0, 8).Draw(rt,
			"layers")
		c := newCall()
		c.Caller.Account = rapid.SampledFrom([]string{"generator", "generator", "committee", "nobody"}).Draw(rt,
			"account")
		c.Type = rapid.SampledFrom([]string{"assistant", "assistant", "persona", "ghost"}).Draw(rt, "type")
		c.Tool.Name = rapid.SampledFrom([]string{"get_datetime", "get_datetime", "search_memory", "Get_Datetime", "*"}).
			Draw(rt, "tool")
		c.Tool.Known = rapid.SampledFrom([]bool{true, true, true, false}).Draw(rt, "known")

		decide := func(names []string) Decision {
			var chain Chain
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
	chain := Chain{ManifestLayer{Manifest: Manifest{
		Types:    map[string]AgentType{"assistant": {Tools: []string{"get_datetime"}}},
		Accounts: map[string]string{"generator": "assistant"},
	}}}
	c, ctx := newCall(), b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if !chain.Decide(ctx, c).Allowed() {
			b.Fatal("denied")
		}
	}
}
