// Package policy holds the layers of the broker as pure functions over a call: no bus and no clock. Only the layer of
// paths looks at the disk, because a link is known nowhere else.
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

// Call is what a layer judges: what was asked, and everything about it that the broker found out by itself. Nothing in
// here was said by the caller but Args.
type Call struct {
	Caller  subjects.Caller // as the server wrote it into the subject
	Type    string          // the caller's agent type: by the manifest, or by the registry when it was spawned
	Tool    Tool
	Schema  json.RawMessage // of the arguments, as pinned
	Args    json.RawMessage
	Session string
	Query   string

	FromUser bool     // the user's own call: its arguments are the user's own words
	Override Override // what the user set for the session
	Lineage  []SpawnedAgent
	Flow     *Flow // nil = nobody knows what went into the session
	Usage    Usage
}

// clone copies everything a layer could change behind the back of the next one. Flow cannot be changed by who has it.
func (c Call) clone() Call {
	c.Caller.Path = slices.Clone(c.Caller.Path)
	c.Args = bytes.Clone(c.Args)
	c.Schema = bytes.Clone(c.Schema)
	c.Tool.Secrets = slices.Clone(c.Tool.Secrets)
	c.Tool.Paths = slices.Clone(c.Tool.Paths)
	c.Tool.Sinks = slices.Clone(c.Tool.Sinks)
	c.Tool.Content = slices.Clone(c.Tool.Content)
	c.Override.Disable = slices.Clone(c.Override.Disable)
	c.Override.Grant = slices.Clone(c.Override.Grant)
	c.Lineage = slices.Clone(c.Lineage)
	for i := range c.Lineage {
		c.Lineage[i].Tools = slices.Clone(c.Lineage[i].Tools)
	}
	c.Usage.Agents = slices.Clone(c.Usage.Agents)
	return c
}

// hasFullOverride reports whether the user lets everything pass. It holds for the account itself: a spawned agent gets
// nothing from it.
func (c Call) hasFullOverride() bool {
	return c.Override.IsAll() && len(c.Caller.Path) == 0 && len(c.Lineage) == 0
}

// Override is what the user set for a session, or for one message of it. The zero value changes nothing.
type Override struct {
	Level   string   // [subjects.OverrideRelax] or [subjects.OverrideAll]; anything else is none
	Disable []string // tools that nobody may use
	Grant   []string // "type:tool"
}

// IsRelaxed reports whether tools marked high-risk no longer ask.
func (o Override) IsRelaxed() bool {
	return o.Level == subjects.OverrideRelax || o.Level == subjects.OverrideAll
}

// IsAll reports whether everything passes that the user may pass.
func (o Override) IsAll() bool { return o.Level == subjects.OverrideAll }

// SpawnedAgent is one agent of the caller's line as the registry knows it: the first is the account's child, the last is the
// caller itself.
type SpawnedAgent struct {
	Name     string // its token in the path
	Type     string
	Narrowed bool     // its parent gave it no more than Tools
	Tools    []string // with Narrowed
}

// Usage is what was used up before this call.
type Usage struct {
	Identical int          // identical calls of this caller within the window
	Calls     int          // calls for the same question
	Agents    []AgentUsage // of the account and each spawned agent above, the caller included
}

// AgentUsage is what an agent and all below it have used of its budget.
type AgentUsage struct {
	Agent   string
	Budget  subjects.Budget
	Calls   int
	Seconds float64
	Bytes   int64
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
	Query     string        // argument that is a search query
	URL       string        // argument that is an address to fetch
	Paths     []string      // arguments that are files or folders of this machine
	Sinks     []string      // arguments that say where something goes, or what is changed
	Content   []string      // arguments that are free text on its way there; the rest counts as sinks
	Graded    bool          // it says of each result who could have written it; of one that it does not, anybody could
	Standing  bool          // offered whatever the task is
	Rare      []string      // offered only for a task with one of these words, or when a model names it: never to fill up
}

// Has reports whether the tool may have effect e. A tool nobody knows has all of them, whatever its fields say.
func (t Tool) Has(e Effect) bool { return !t.Known || t.Effects.Has(e) }

// Verdict is what a layer says of a call. The zero value refuses.
type Verdict struct {
	kind      verdictKind
	rule      string
	reason    string
	allowed   []string
	sinks     []string
	others    []Verdict         // what else the layer has against the call
	monitored []subjects.Denial // passed over only because their rules are watched and not enforced
}

// verdictKind of a verdict. The zero value refuses.
type verdictKind uint8

const (
	verdictDeny verdictKind = iota
	verdictPass
	verdictAsk
)

// Pass steps aside: this layer has nothing against the call. It is not a permission; the other layers still judge.
func Pass() Verdict { return Verdict{kind: verdictPass} }

// Ask refuses unless the user agrees. sinks are where something would go: an answer that is remembered holds for the
// same ones alone.
func Ask(rule, reason string, sinks ...string) Verdict {
	return Verdict{kind: verdictAsk, rule: rule, reason: reason, sinks: slices.Clone(sinks)}
}

// Deny refuses. rule names what was broken, reason is for the user who has to act on it, and allowed lists what would
// have passed.
func Deny(rule, reason string, allowed ...string) Verdict {
	return Verdict{rule: rule, reason: reason, allowed: slices.Clone(allowed)}
}

// combineVerdicts joins the verdicts of one layer: all that it has against a call, so that an answer to one question, or a rule that
// is only watched, covers nothing else. It passes when all pass.
func combineVerdicts(verdicts ...Verdict) Verdict {
	var all []Verdict
	for _, v := range verdicts {
		for _, one := range v.split() {
			if one.kind != verdictPass {
				all = append(all, one)
			}
		}
	}
	switch len(all) {
	case 0:
		return Pass()
	case 1:
		return all[0]
	}
	first := all[0]
	first.others = all[1:]
	return first
}

// split is everything a verdict says, one by one.
func (v Verdict) split() []Verdict {
	more := v.others
	v.others = nil
	return append([]Verdict{v}, more...)
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
	layerChain = "chain" // the chain as a whole
	LayerTool  = "tool"  // what is known about the tool

	ruleUndecided   = "undecided"    // nobody decided
	ruleEmptyChain  = "empty_chain"  // no layer to ask
	ruleNilLayer    = "nil_layer"    // a layer is missing or has no name
	ruleLayerFailed = "layer_failed" // a layer broke
	ruleNoVerdict   = "no_verdict"   // a layer said nothing
	ruleOutOfTime   = "out_of_time"  // the call was cancelled, or its deadline passed
	RuleUnknownTool = "unknown_tool" // no tool of that name
	ruleBadName     = "bad_name"     // that is not a name
)

// Decision is what a chain came to. The zero value refuses.
type Decision struct {
	// LayersPassed names the layers that had nothing against the call, in order. On a denial: those before the one that
	// refused.
	LayersPassed []string

	allowed       bool
	denial        subjects.Denial
	asks          []Question
	monitored     []subjects.Denial
	layerVerdicts []subjects.LayerVerdict
	failure       error
}

// Question is what a layer wants the user to be asked.
type Question struct {
	Layer, Rule, Reason string
	Sinks               []string
}

// Allowed reports whether the call may run without anybody being asked.
func (d Decision) Allowed() bool { return d.allowed && len(d.asks) == 0 }

// Asks is what the user has to agree to before the call may run: nothing when it is allowed or refused.
func (d Decision) Asks() []Question {
	if !d.allowed {
		return nil
	}
	return slices.Clone(d.asks)
}

// Monitored is what rules would have said that are only watched.
func (d Decision) Monitored() []subjects.Denial { return slices.Clone(d.monitored) }

// Verdict is the decision as a dry run tells it.
func (d Decision) Verdict() subjects.Verdict {
	v := subjects.Verdict{Allowed: d.Allowed(), Layers: slices.Clone(d.layerVerdicts), Monitored: d.Monitored()}
	for _, q := range d.Asks() {
		v.Asks = append(v.Asks, subjects.Denial{Layer: q.Layer, Rule: q.Rule, Reason: q.Reason})
	}
	if !d.allowed {
		v.Denial = d.Denial()
	}
	return v
}

// Denial says who refused and why; nil when the call is allowed.
func (d Decision) Denial() *subjects.Denial {
	if d.allowed {
		return nil
	}
	out := d.denial
	if out.Layer == "" {
		out = subjects.Denial{Layer: layerChain, Rule: ruleUndecided, Reason: "no decision was made, and that is a refusal"}
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
		d.asks = nil
		d.denial = subjects.Denial{Layer: layer, Rule: rule, Reason: reason, Allowed: allowed}
		d.layerVerdicts = append(d.layerVerdicts, subjects.LayerVerdict{Layer: layer, Verdict: "deny", Rule: rule, Reason: reason})
		return d
	}
	if len(ch) == 0 {
		return refuse(layerChain, ruleEmptyChain, "no policy is loaded, so nothing may run")
	}
	// The name may come from a model or the network: it is checked before it is looked up or repeated.
	if err := subjects.CheckToken(c.Tool.Name); err != nil {
		return refuse(LayerTool, ruleBadName, fmt.Sprintf("the name of the tool is refused: %v", err))
	}
	if !c.Tool.Known {
		return refuse(LayerTool, RuleUnknownTool, fmt.Sprintf("no tool named %s is known; check the name and that its actor runs", c.Tool.Name))
	}
	for i, l := range ch {
		if ctx == nil || ctx.Err() != nil {
			return refuse(layerChain, ruleOutOfTime, "the call was cancelled or its time was up before it was decided")
		}
		name, v, failure := runLayer(ctx, l, c.clone())
		switch {
		case failure != nil:
			d.failure = fmt.Errorf("judging %s: %w", c.Tool.Name, failure)
			return refuse(or(name, layerChain), ruleLayerFailed, "the layer failed, so the call is refused; its log says why")
		case name == "":
			return refuse(layerChain, ruleNilLayer, fmt.Sprintf("layer %d of the policy is missing, so nothing may run", i+1))
		}
		d.monitored = append(d.monitored, v.monitored...)
		passed := true
		for _, one := range v.split() {
			switch {
			case one.kind == verdictPass:
			case one.kind == verdictAsk:
				passed = false
			case one.rule == "" && one.reason == "":
				return refuse(name, ruleNoVerdict, "the layer gave no verdict, and that is a refusal")
			default:
				return refuse(name, or(one.rule, name), or(one.reason, "the layer refused without a reason"), one.allowed...)
			}
		}
		if passed {
			d.LayersPassed = append(d.LayersPassed, name)
			d.layerVerdicts = append(d.layerVerdicts, subjects.LayerVerdict{Layer: name, Verdict: "pass"})
			continue
		}
		for _, one := range v.split() {
			if one.kind == verdictAsk {
				q := Question{Layer: name, Rule: or(one.rule, name), Reason: or(one.reason, "the layer asks without a reason"), Sinks: one.sinks}
				d.asks = append(d.asks, q)
				d.layerVerdicts = append(d.layerVerdicts, subjects.LayerVerdict{Layer: name, Verdict: "ask", Rule: q.Rule, Reason: q.Reason})
			}
		}
	}
	if ctx.Err() != nil {
		return refuse(layerChain, ruleOutOfTime, "the call was cancelled or its time was up while it was decided")
	}
	d.allowed = true
	return d
}

// runLayer gets one layer's verdict. A layer that is missing has no name; one that panics has a failure.
func runLayer(ctx context.Context, l Layer, c Call) (name string, v Verdict, failure error) {
	defer func() {
		if p := recover(); p != nil {
			v, failure = Verdict{}, fmt.Errorf("layer %q panicked: %v\n%s", name, p, debug.Stack())
		}
	}()
	if isNilLayer(l) {
		return "", Verdict{}, nil
	}
	name = l.Name()
	return name, l.Judge(ctx, c), nil
}

// isNilLayer reports whether there is nothing behind l: nil, or a nil pointer dressed as a layer.
func isNilLayer(l Layer) bool {
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
