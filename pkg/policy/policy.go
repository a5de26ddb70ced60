// Package policy implements the broker's layers as pure functions over a call: no bus and no clock. Only the paths
// layer reads the file system, to resolve symlinks.
//
// It is a gate and not a wrapper: a layer can deny, ask or pass, and no verdict of a layer allows a call. Missing or
// unknown facts, panics, errors and expired deadlines deny.
package policy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"runtime/debug"
	"slices"
	"time"

	"conclave/subjects"
)

// Call is a tool call as the layers judge it. The broker must fill every field from its own sources (subject, manifest,
// registry, stores); only Args comes from the caller.
type Call struct {
	Caller  subjects.Caller // from the subject, where the NATS server enforces it
	Type    string          // the caller's agent type, from the manifest, or from the registry for a spawned agent
	Tool    Tool
	Schema  json.RawMessage // of the arguments, as pinned
	Args    json.RawMessage
	Session string
	Query   string

	// Kept is what the keeper of the build confirmed that it keeps of the state before the call; nil = nothing
	Kept *Kept

	// the prompt has texts of others: descriptions of tools outside of the build, which may ask for anything
	Foreign  bool
	FromUser bool     // called by the user directly: the arguments are the user's own words
	Override Override // what the user set for the session
	Lineage  []SpawnedAgent
	Flow     *Flow // nil = unknown, counts as tainted
	Usage    Usage
}

// clone returns a deep copy, so that a layer cannot change the call for the layers after it. Flow is immutable and
// shared.
func (c Call) clone() Call {
	c.Caller.Path = slices.Clone(c.Caller.Path)
	c.Args = bytes.Clone(c.Args)
	c.Schema = bytes.Clone(c.Schema)
	c.Tool.Secrets = slices.Clone(c.Tool.Secrets)
	c.Tool.Paths = slices.Clone(c.Tool.Paths)
	c.Tool.Args = maps.Clone(c.Tool.Args)
	c.Tool.About, c.Tool.IDs, c.Tool.People = slices.Clone(c.Tool.About), slices.Clone(c.Tool.IDs),
		slices.Clone(c.Tool.People)
	if c.Kept != nil {
		kept := *c.Kept
		kept.Files = slices.Clone(kept.Files)
		c.Kept = &kept
	}
	c.Override.Disable = slices.Clone(c.Override.Disable)
	c.Override.Grant = slices.Clone(c.Override.Grant)
	c.Lineage = slices.Clone(c.Lineage)
	for i := range c.Lineage {
		c.Lineage[i].Tools = slices.Clone(c.Lineage[i].Tools)
	}
	c.Usage.Agents = slices.Clone(c.Usage.Agents)
	return c
}

// HasFullOverride reports whether the override ALL applies: to an account itself, never to a spawned agent.
func (c Call) HasFullOverride() bool {
	return c.Override.IsAll() && len(c.Caller.Path) == 0 && len(c.Lineage) == 0
}

// Override holds the user's settings for a session, or for one message of it. The zero value changes nothing.
type Override struct {
	Level   string   // one of [Levels]; an unknown level lifts nothing
	Disable []string // tools denied to every caller
	Grant   []string // each as "type:tool"
}

// IsRelaxed reports whether high-risk tools pass without approval.
func (o Override) IsRelaxed() bool {
	return o.Level == subjects.OverrideRelax || o.Level == subjects.OverrideAll
}

// IsAll reports whether the level is ALL. Layers must use [Call.HasFullOverride], which excludes spawned agents.
func (o Override) IsAll() bool { return o.Level == subjects.OverrideAll }

// SpawnedAgent is one agent of a lineage, as registered. The first of a lineage is the account's child, the last the
// caller itself.
type SpawnedAgent struct {
	Name     string // its token in the caller's path
	Type     string
	Narrowed bool     // spawned with no more than Tools
	Tools    []string // only with Narrowed; may be empty
}

// Usage holds the counts before this call. A negative count is unknown and denies.
type Usage struct {
	Identical int          // identical calls of this caller in a row for the same question, with equal results
	Calls     int          // calls for the same question
	Agents    []AgentUsage // the account and each agent of the lineage, the caller last
}

// AgentUsage is what an agent and all agents below it have used of its budget.
type AgentUsage struct {
	Agent   string
	Budget  subjects.Budget
	Calls   int
	Seconds float64
	Bytes   int64
}

// Tool holds the facts about a tool. They come from its build, never from a model. The zero value is an unknown tool
// with every effect.
type Tool struct {
	Name      string
	Zone      string // the account that serves it
	Known     bool   // registered with the broker; an unknown tool is denied
	Foreign   bool   // not of the build: others wrote its description, which is in the prompt, and its errors
	AskEach   bool   // the user added it without facts: each call of an agent needs approval, in a relaxed session too
	Effects   Effects
	Timeout   time.Duration // longest run; 0 = the broker's default
	MaxArgs   int           // bytes; 0 = the limit of the subject
	MaxResult int           // bytes; 0 = the limit of the subject
	Secrets   []string      // names of the credentials it needs
	Act       Act           // what it does; "" = undeclared
	Args      Args          // roles of the arguments; an argument that is missing counts as a sink
	Paths     []string      // arguments that are files or folders of this machine
	About     []string      // words by which users name what it reads or lists, in lower case
	IDs       []string      // fields of its JSON results that it assigns itself
	People    []string      // fields of its JSON results that hold the people of an object, and no text
	// shows what a call would do in [subjects.ModePreview], without doing it; asked for before an approval
	Preview bool
	// its process keeps the state of what a call changes in [subjects.ModeCapture], and takes changes back. It holds of
	// tools of the build only: no manifest and no announcement can say it
	Keeps bool
	// its process stores what a call changes with the state before, in one transaction, and takes changes back.
	// Whether a call asks does not depend on it. Like Keeps it holds of tools of the build only
	Records bool
	// runs programs, only in the sandbox that passed its self-test: without network, and with the working folder of the
	// call as the only folder that they can write to. Like Keeps it holds of tools of the build only
	Sandboxed bool
	Graded    bool // labels the trust of each result itself; a result without a label is untrusted
	// its results hold only at the time of the call, so memory does not keep answers that rest on them
	Ephemeral bool
	Own       bool   // has [subjects.ModeOwn]: returns nothing but the user's own trusted statements
	Empty     string // the whole text of a result that holds nothing, which is not private; "" = there is none
	Standing  bool   // offered to the model for every task
	Backend   bool   // needs another server: its process says in discovery when that does not answer
	// Rare tools are offered only for a task with one of these words, or when the model names them. The lists keep two
	// tools out of the prompts of other questions, and miss many that mean them. Of 20 requests that were written
	// before the lists were read (config/testdata/held_requests.jsonl) they find 6 of 12 in English and 4 of 8
	// in German, Spanish and French; of 28 others none gets a tool that nobody asked for.
	Rare []string
}

// Has reports whether the tool may have effect e. An unknown tool has every effect, whatever it declares.
func (t Tool) Has(e Effect) bool { return !t.Known || t.Effects.Has(e) }

// Verdict is a layer's verdict on a call: pass, ask or deny. The zero value denies.
type Verdict struct {
	kind      verdictKind
	rule      string
	reason    string
	allowed   []string
	sinks     []string
	others    []Verdict         // further denials and questions of the same layer
	monitored []subjects.Denial // violations of monitor-only rules
}

// verdictKind is the kind of a verdict. The zero value denies.
type verdictKind uint8

const (
	verdictDeny verdictKind = iota
	verdictPass
	verdictAsk
)

// Pass returns a verdict without objection. It is no permission: every other layer still judges.
func Pass() Verdict { return Verdict{kind: verdictPass} }

// Ask returns a verdict that denies the call unless the user approves it. sinks are the destinations of the call: a
// remembered approval covers the same sinks only, and without sinks it is never remembered.
func Ask(rule, reason string, sinks ...string) Verdict {
	return Verdict{kind: verdictAsk, rule: rule, reason: reason, sinks: slices.Clone(sinks)}
}

// Deny returns a verdict that denies the call. rule identifies the violated rule, reason tells the user what happened
// and what to do, and allowed lists values that would pass.
func Deny(rule, reason string, allowed ...string) Verdict {
	return Verdict{rule: rule, reason: reason, allowed: slices.Clone(allowed)}
}

// combineVerdicts joins the verdicts of one layer and keeps each denial and question, so that an approval of one, or a
// monitor-only rule, covers no other. It passes when all pass, or when there are none.
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

// split returns the single verdicts that [combineVerdicts] joined.
func (v Verdict) split() []Verdict {
	more := v.others
	v.others = nil
	return append([]Verdict{v}, more...)
}

// Layer judges calls by one concern. It must be a pure function of the call and of its own configuration, and safe for
// concurrent use.
type Layer interface {
	// Name returns the layer's name in denials and audit records. An empty name denies.
	Name() string
	// Judge returns the verdict. A layer of another package gets a copy of the call.
	Judge(context.Context, Call) Verdict
}

// Layers and rules of denials by the chain itself.
const (
	layerChain = "chain" // the chain as a whole
	LayerTool  = "tool"  // the tool's name and registration

	ruleUndecided   = "undecided"    // zero Decision
	ruleEmptyChain  = "empty_chain"  // the chain has no layer
	ruleNilLayer    = "nil_layer"    // a layer is nil or has no name
	ruleLayerFailed = "layer_failed" // a layer panicked
	ruleNoVerdict   = "no_verdict"   // a layer returned the zero Verdict
	ruleTimeout     = "out_of_time"  // the call was cancelled, or its deadline passed
	RuleUnknownTool = "unknown_tool" // no tool of that name is registered
	ruleBadName     = "bad_name"     // not a valid tool name
)

// Decision is the result of a chain. The zero value denies.
type Decision struct {
	// LayersPassed names the layers that passed the call, in order; on a denial only those before the denying layer.
	LayersPassed []string

	allowed       bool
	denial        subjects.Denial
	asks          []Question
	monitored     []subjects.Denial
	layerVerdicts []subjects.LayerVerdict
	failure       error
}

// Question is one approval that a layer requires.
type Question struct {
	Layer, Rule, Reason string
	Sinks               []string
}

// Allowed reports whether the call may run without an approval.
func (d Decision) Allowed() bool { return d.allowed && len(d.asks) == 0 }

// Asks returns the approvals that the call needs before it may run; none when it is allowed or denied.
func (d Decision) Asks() []Question {
	if !d.allowed {
		return nil
	}
	return slices.Clone(d.asks)
}

// Monitored returns the violations of monitor-only rules.
func (d Decision) Monitored() []subjects.Denial { return slices.Clone(d.monitored) }

// NeedsGrant reports whether an allowed call must claim a grant, see [Flow.ClaimGrant]. A call that only a monitor-only
// rule of the flow layer lets pass has none; a match of a monitor-only rule of any other layer changes nothing.
func (d Decision) NeedsGrant() bool {
	return d.Allowed() && !slices.ContainsFunc(d.monitored, func(m subjects.Denial) bool {
		return m.Layer == FlowLayer{}.Name()
	})
}

// Verdict returns the decision as a dry run reports it, layer by layer. It has a denial exactly when the call is
// denied; a call that needs approval is not Allowed and has Asks.
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

// Denial returns a copy of the denial; nil when the call is allowed or only needs approval.
func (d Decision) Denial() *subjects.Denial {
	if d.allowed {
		return nil
	}
	out := d.denial
	if out.Layer == "" {
		out = subjects.Denial{Layer: layerChain, Rule: ruleUndecided, Reason: "no decision was made, so the call is " +
			"denied"}
	}
	out.Allowed = slices.Clone(out.Allowed)
	return &out
}

// Failure returns the panic of a layer with its stack, or nil. It is for the log only and must never be sent on the
// bus: it may contain arguments or secrets.
func (d Decision) Failure() error { return d.failure }

// Chain is a list of layers in the order in which they judge. An empty chain denies every call.
type Chain []Layer

// Decide evaluates the layers in order; the first denial ends it. It allows a call only if the chain has a layer, every
// layer passes or asks, the tool is known and ctx is not done at the end. Questions are collected over all layers, and
// the call may run only after each is approved. A nil ctx, an invalid tool name, and a layer that is nil, has no name
// or panics deny.
func (ch Chain) Decide(ctx context.Context, c Call) (d Decision) {
	if len(ch) == 0 {
		return d.deny(layerChain, ruleEmptyChain, "no policy is loaded, so every call is denied")
	}
	// The name may come from a model or the network: it is validated before it is looked up or echoed.
	if err := subjects.CheckToken(c.Tool.Name); err != nil {
		return d.deny(LayerTool, ruleBadName, fmt.Sprintf("the name of the tool is rejected: %v", err))
	}
	if !c.Tool.Known {
		return d.deny(LayerTool, RuleUnknownTool, fmt.Sprintf("no tool named %s is known; check the name and that "+
			"its actor runs", c.Tool.Name))
	}
	d.LayersPassed = make([]string, 0, len(ch))
	d.layerVerdicts = make([]subjects.LayerVerdict, 0, len(ch))
	for i, l := range ch {
		if ctx == nil || ctx.Err() != nil {
			return d.deny(layerChain, ruleTimeout, "the call was cancelled or its deadline passed before it was "+
				"decided")
		}
		shown := c
		if !isReadOnly(l) {
			shown = c.clone()
		}
		name, v, failure := runLayer(ctx, l, shown)
		switch {
		case failure != nil:
			d.failure = fmt.Errorf("judging %s: %w", c.Tool.Name, failure)
			return d.deny(cmp.Or(name, layerChain), ruleLayerFailed, "the layer failed, so the call is denied; see "+
				"the log of the broker")
		case name == "":
			return d.deny(layerChain, ruleNilLayer, fmt.Sprintf("layer %d of the policy is missing, so every call is "+
				"denied", i+1))
		}
		if !d.addVerdict(name, v) {
			return d
		}
	}
	if ctx.Err() != nil {
		return d.deny(layerChain, ruleTimeout, "the call was cancelled or its deadline passed while it was decided")
	}
	d.allowed = true
	return d
}

// deny makes d a denial, drops its questions, and returns a copy.
func (d *Decision) deny(layer, rule, reason string, allowed ...string) Decision {
	d.allowed, d.asks = false, nil
	d.denial = subjects.Denial{Layer: layer, Rule: rule, Reason: reason, Allowed: allowed}
	d.layerVerdicts = append(d.layerVerdicts, subjects.LayerVerdict{
		Layer: layer, Verdict: "deny", Rule: rule,
		Reason: reason,
	})
	return *d
}

// addVerdict adds a layer's verdict to d and reports whether the chain continues: false after a denial, also when the
// denial follows a question of the same layer.
func (d *Decision) addVerdict(layer string, v Verdict) bool {
	d.monitored = append(d.monitored, v.monitored...)
	var asks []Question
	for _, one := range v.split() {
		switch {
		case one.kind == verdictPass:
		case one.kind == verdictAsk:
			asks = append(asks, Question{
				Layer: layer, Rule: cmp.Or(one.rule, layer),
				Reason: cmp.Or(one.reason, "the layer asks without a reason"), Sinks: one.sinks,
			})
		case one.rule == "" && one.reason == "":
			d.deny(layer, ruleNoVerdict, "the layer returned no verdict, so the call is denied")
			return false
		default:
			d.deny(layer, cmp.Or(one.rule, layer), cmp.Or(one.reason, "the layer denied without a reason"),
				one.allowed...)
			return false
		}
	}
	if asks == nil {
		d.LayersPassed = append(d.LayersPassed, layer)
		d.layerVerdicts = append(d.layerVerdicts, subjects.LayerVerdict{Layer: layer, Verdict: "pass"})
	}
	for _, q := range asks {
		d.layerVerdicts = append(d.layerVerdicts, subjects.LayerVerdict{
			Layer: layer, Verdict: "ask", Rule: q.Rule,
			Reason: q.Reason,
		})
	}
	d.asks = append(d.asks, asks...)
	return true
}

// isReadOnly reports whether l is a layer of this package. They do not change the calls that they judge, so that the
// layers after them can have the same one.
func isReadOnly(l Layer) bool {
	switch l := l.(type) {
	case monitoredLayer:
		return isReadOnly(l.Layer)
	case OverrideLayer, ManifestLayer, LineageLayer, ArgumentsLayer, pathsLayer, EgressLayer, FlowLayer, LimitsLayer,
		riskLayer:
		return true
	}
	return false
}

// runLayer returns a layer's name and verdict. The name is empty for a nil layer; failure is the layer's panic with its
// stack, and then the verdict denies.
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

// isNilLayer reports whether l is nil or an interface that holds a nil pointer.
func isNilLayer(l Layer) bool {
	if l == nil {
		return true
	}
	v := reflect.ValueOf(l)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
