// Package policy holds the layers of the broker as pure functions over a call: no bus, no clock, no file.
//
// It is a gate and not a wrapper: a layer can refuse or step aside, and nothing a layer says makes a call allowed.
// Whatever is missing, unknown, broken or late is a refusal.
package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"
	"time"

	"conclave/subjects"
)

// Call is what a layer judges.
type Call struct {
	Caller  subjects.Caller // as the server wrote it into the subject
	Type    string          // the caller's agent type by the manifest
	Tool    Tool
	Args    json.RawMessage
	Session string
	Query   string
}

// clone copies everything a layer could change behind the back of the next one.
func (c Call) clone() Call {
	c.Caller.Path = slices.Clone(c.Caller.Path)
	c.Args = bytes.Clone(c.Args)
	c.Tool.Secrets = slices.Clone(c.Tool.Secrets)
	return c
}

// Tool is what the broker knows about a tool: facts of its build, never the word of a model. The zero value is the
// worst tool there is: nobody knows it, and it does everything.
type Tool struct {
	Name      string
	Zone      string // the account that serves it
	Known     bool
	Effects   Effects
	Timeout   time.Duration // longest run; 0 = the broker's default
	MaxArgs   int           // bytes; 0 = what the subject takes
	MaxResult int           // bytes; 0 = what the subject takes
	Secrets   []string      // names of the credentials it needs
}

// Has reports whether the tool may have effect e. A tool nobody knows has all of them, whatever its fields say.
func (t Tool) Has(e Effect) bool { return !t.Known || t.Effects.Has(e) }

// Verdict is what a layer says of a call. The zero value refuses.
type Verdict struct {
	pass    bool
	rule    string
	reason  string
	allowed []string
}

// Pass steps aside: this layer has nothing against the call. It is not a permission; the other layers still judge.
func Pass() Verdict { return Verdict{pass: true} }

// Deny refuses. rule names what was broken, reason is for the person who has to act on it, and allowed lists what would
// have passed.
func Deny(rule, reason string, allowed ...string) Verdict {
	return Verdict{rule: rule, reason: reason, allowed: slices.Clone(allowed)}
}

// Layer judges calls by one concern. It must be a pure function of the call and of what it was made with.
type Layer interface {
	// Name of the layer, as it stands in denials and in the audit.
	Name() string
	// Judge passes or refuses. The call is the layer's own copy.
	Judge(context.Context, Call) Verdict
}

// Layers and rules of refusals that the chain itself makes.
const (
	LayerChain = "chain" // the chain as a whole
	LayerTool  = "tool"  // what is known about the tool

	RuleUndecided   = "undecided"    // nobody decided
	RuleEmpty       = "empty_chain"  // no layer to ask
	RuleNil         = "nil_layer"    // a layer is missing or has no name
	RulePanic       = "layer_failed" // a layer broke
	RuleNoVerdict   = "no_verdict"   // a layer said nothing
	RuleOutOfTime   = "out_of_time"  // the call was cancelled, or its deadline passed
	RuleUnknownTool = "unknown_tool" // no tool of that name
	RuleBadName     = "bad_name"     // that is not a name
)

// Decision is what a chain came to. The zero value refuses.
type Decision struct {
	// LayersPassed names the layers that had nothing against the call, in order. On a denial: those before the one that
	// refused.
	LayersPassed []string

	allowed bool
	denial  subjects.Denial
	failure error
}

// Allowed reports whether the call may run.
func (d Decision) Allowed() bool { return d.allowed }

// Denial says who refused and why; nil when the call is allowed.
func (d Decision) Denial() *subjects.Denial {
	if d.allowed {
		return nil
	}
	out := d.denial
	if out.Layer == "" {
		out = subjects.Denial{Layer: LayerChain, Rule: RuleUndecided, Reason: "no decision was made, and that is a refusal"}
	}
	out.Allowed = slices.Clone(out.Allowed)
	return &out
}

// Failure is what broke inside a layer, with its stack, or nil. It is for the log: it may hold anything, so it never
// travels on the bus.
func (d Decision) Failure() error { return d.failure }

// Chain is the layers in the order they are asked.
type Chain []Layer

// Decide asks each layer in turn; the first refusal ends it. It allows a call only if there is a layer, every layer
// passes, the tool is known and the context is still alive at the end.
func (ch Chain) Decide(ctx context.Context, c Call) (d Decision) {
	refuse := func(layer, rule, reason string, allowed ...string) Decision {
		d.allowed = false
		d.denial = subjects.Denial{Layer: layer, Rule: rule, Reason: reason, Allowed: allowed}
		return d
	}
	if len(ch) == 0 {
		return refuse(LayerChain, RuleEmpty, "no policy is loaded, so nothing may run")
	}
	// The name may come from a model or the network: it is checked before it is looked up or repeated.
	if err := subjects.CheckToken(c.Tool.Name); err != nil {
		return refuse(LayerTool, RuleBadName, fmt.Sprintf("the name of the tool is refused: %v", err))
	}
	if !c.Tool.Known {
		return refuse(LayerTool, RuleUnknownTool, fmt.Sprintf("no tool named %s is known; check the name and that its actor runs", c.Tool.Name))
	}
	for i, l := range ch {
		if ctx == nil || ctx.Err() != nil {
			return refuse(LayerChain, RuleOutOfTime, "the call was cancelled or its time was up before it was decided")
		}
		name, v, failure := ask(ctx, l, c.clone())
		switch {
		case failure != nil:
			d.failure = fmt.Errorf("judging %s: %w", c.Tool.Name, failure)
			return refuse(or(name, LayerChain), RulePanic, "the layer failed, so the call is refused; its log says why")
		case name == "":
			return refuse(LayerChain, RuleNil, fmt.Sprintf("layer %d of the policy is missing, so nothing may run", i+1))
		case !v.pass && v.rule == "" && v.reason == "":
			return refuse(name, RuleNoVerdict, "the layer gave no verdict, and that is a refusal")
		case !v.pass:
			return refuse(name, or(v.rule, name), or(v.reason, "the layer refused without a reason"), v.allowed...)
		}
		d.LayersPassed = append(d.LayersPassed, name)
	}
	if ctx.Err() != nil {
		return refuse(LayerChain, RuleOutOfTime, "the call was cancelled or its time was up while it was decided")
	}
	d.allowed = true
	return d
}

// ask gets one layer's verdict. A layer that is missing has no name; one that panics has a failure.
func ask(ctx context.Context, l Layer, c Call) (name string, v Verdict, failure error) {
	defer func() {
		if p := recover(); p != nil {
			v, failure = Verdict{}, fmt.Errorf("layer %q panicked: %v\n%s", name, p, debug.Stack())
		}
	}()
	if absent(l) {
		return "", Verdict{}, nil
	}
	name = l.Name()
	return name, l.Judge(ctx, c), nil
}

// absent reports whether there is nothing behind l: nil, or a nil pointer dressed as a layer.
func absent(l Layer) bool {
	if l == nil {
		return true
	}
	v := reflect.ValueOf(l)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// or is s, or what to say when s is empty.
func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
