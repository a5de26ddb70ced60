// Package replay judges recorded tool calls by other rules than those in force, and reports the difference. Nothing
// runs and nothing is written.
//
// It reads the broker's copies of calls in the event log, which hold the arguments and how each layer judged the call
// ([subjects.Judgement]). Each call is judged as it was made: a call that the other rules deny does not change the
// calls after it. A call whose record lacks what a rule needs is counted as one that cannot be judged.
package replay

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/pkg/client"
	"conclave/pkg/policy"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// Subject is the stored subject of the broker's copies of calls.
const Subject = "from.broker.tool.request.>"

// Rules are the rules to judge by.
type Rules struct {
	Manifest policy.Manifest
	Env      policy.Env
	Build    map[string]policy.Tool // facts of the build's own tools, by name
	// tools that the manifest in force declares: without them in Manifest, the rules differ
	InForce map[string]policy.Tool
}

// Report is the result of a replay.
type Report struct {
	First     time.Time  `json:"first,omitzero"` // of the calls
	Last      time.Time  `json:"last,omitzero"`
	Calls     int        `json:"calls"` // records read
	Unchanged int        `json:"unchanged"`
	Changed   int        `json:"changed"`
	Changes   []Change   `json:"changes"`
	Unjudged  []Unjudged `json:"cannot_be_judged"`
	Damaged   []Damage   `json:"damaged"`
}

// Change is a rule that decides differently, with the calls.
type Change struct {
	Rule   string `json:"rule"`   // layer.rule, of the other rules or, when it no longer applies, of the record
	Effect string `json:"effect"` // one of the effects below
	Calls  []Call `json:"calls"`
}

// Effects of a change.
const (
	EffectDenied  = "would be denied"
	EffectAsks    = "would ask"
	EffectRuns    = "would run without approval"
	EffectAllowed = "would no longer be denied, and ask"
	EffectRule    = "other rule, same result"
)

// Unjudged are calls that cannot be judged, by reason.
type Unjudged struct {
	Reason string `json:"reason"`
	Count  int    `json:"count"`
	Calls  []Call `json:"calls"`
}

// Damage is a record that cannot be read.
type Damage struct {
	Seq    uint64    `json:"seq"`
	Time   time.Time `json:"time"`
	Reason string    `json:"reason"`
}

// Call is one recorded call. Before and After are "runs", "asks <rules>" or "denied <rule>"; After is empty for a call
// that cannot be judged.
type Call struct {
	Seq     uint64          `json:"seq"`
	Time    time.Time       `json:"time"`
	Session string          `json:"session_id,omitempty"`
	Query   string          `json:"query_id,omitempty"`
	CallID  string          `json:"call_id"`
	Caller  string          `json:"caller"`
	Type    string          `json:"type,omitempty"`
	Tool    string          `json:"tool"`
	Args    json.RawMessage `json:"args,omitempty"`
	Before  string          `json:"before,omitempty"`
	After   string          `json:"after,omitempty"`
}

// Reasons why a call cannot be judged, beside those of a layer.
const (
	reasonNoJudgement = "the record has no judgement: the call failed before any rule judged it, or an older version " +
		"recorded it"
	reasonUndecided   = "the call was cancelled, or its deadline passed, before it was decided"
	reasonUnknownTool = "the tool is not part of this build, and the manifest declares no facts about it"
	reasonRemovedTool = "the tool is no longer there: it was removed since, and no rule changed for it"
)

// Run judges the recorded calls, oldest first, by the rules.
func Run(ctx context.Context, r Rules, events []client.Event) (Report, error) {
	rep := Report{Calls: len(events), Changes: []Change{}, Unjudged: []Unjudged{}, Damaged: []Damage{}}
	changedFlow := map[string]bool{} // sessions with a call of a tool whose facts differ
	for _, e := range events {
		if err := ctx.Err(); err != nil {
			return rep, err
		}
		if rep.First.IsZero() {
			rep.First = e.Time
		}
		rep.Last = e.Time
		rec, err := readRecord(e)
		if err != nil {
			rep.Damaged = append(rep.Damaged, Damage{e.Seq, e.Time, err.Error()})
			continue
		}
		rep.add(ctx, r, rec, changedFlow)
	}
	slices.SortStableFunc(rep.Changes, func(a, b Change) int {
		return cmp.Or(len(b.Calls)-len(a.Calls), cmp.Compare(a.Rule, b.Rule))
	})
	return rep, nil
}

// record is a readable copy of a call.
type record struct {
	call   Call
	caller subjects.Caller
	judged *subjects.Judgement
}

// readRecord reads the copy of a call. It rejects one that the broker cannot have written: subject, body and judgement
// must agree.
func readRecord(e client.Event) (record, error) {
	var body subjects.ToolRequest
	if !e.Decode(&body) {
		return record{}, errors.New("not the copy of a call")
	}
	parts := strings.Split(e.Subject, ".")
	if len(parts) < 3 || e.From != "broker" {
		return record{}, fmt.Errorf("not the copy of a call: subject %s", e.Subject)
	}
	who := strings.Split(body.Caller, ".")
	switch tool, path := parts[2], parts[3:]; {
	case body.Tool != tool:
		return record{}, fmt.Errorf("the subject has the tool %s, the body %q", tool, body.Tool)
	case body.Caller == "" || !slices.Equal(who[1:], path):
		return record{}, fmt.Errorf("the subject has the agents %q, the body the caller %q", path, body.Caller)
	case body.Judgement == nil: // may have no arguments
	case strict.CheckObject(body.Args) != nil && !body.Judgement.Redacted:
		return record{}, errors.New("the arguments are not a JSON object")
	case len(body.Judgement.Layers) == 0 && body.Judgement.Denied == "":
		return record{}, errors.New("the judgement has no layers")
	}
	if j := body.Judgement; j != nil {
		for _, l := range j.Layers {
			if l.Layer == "" || !slices.Contains([]string{"pass", "ask", "deny"}, l.Verdict) {
				return record{}, fmt.Errorf("the judgement has the verdict %q of layer %q", l.Verdict, l.Layer)
			}
		}
	}
	rec := record{caller: subjects.Caller{Account: who[0], Path: who[1:]}, judged: body.Judgement}
	rec.call = Call{
		Seq: e.Seq, Time: e.Time, Session: e.Session, Query: cmp.Or(body.QueryID, e.Query),
		CallID: body.CallID, Caller: body.Caller, Tool: body.Tool, Args: body.Args,
	}
	return rec, nil
}

// outcome is a decision: denied by one rule, or asked by some, or neither.
type outcome struct {
	denied string
	asks   []string
}

func (o outcome) String() string {
	switch {
	case o.denied != "":
		return "denied " + o.denied
	case len(o.asks) > 0:
		return "asks " + strings.Join(o.asks, ", ")
	}
	return "runs"
}

// isRemoved reports whether a tool outside of the build is neither declared by the rules, which have those that were
// added, nor by the manifest in force.
func (r Rules) isRemoved(tool string) bool {
	_, judged := r.Manifest.Tools[tool]
	_, inForce := r.InForce[tool]
	return !judged && !inForce
}

// add judges one call and adds it to the report.
func (rep *Report) add(ctx context.Context, r Rules, rec record, changedFlow map[string]bool) {
	j := rec.judged
	if j == nil {
		rep.addUnjudged(rec.call, reasonNoJudgement)
		return
	}
	rec.call.Type = j.Type
	before := recordedOutcome(rec)
	rec.call.Before = before.String()
	tool, ours := r.Build[rec.call.Tool]
	if !ours {
		tool = r.Manifest.Tools[rec.call.Tool]
		if j.ToolFacts == "" {
			rep.addUnjudged(rec.call, reasonUnknownTool) // a tool of another build
			return
		}
		if r.isRemoved(rec.call.Tool) {
			rep.addUnjudged(rec.call, reasonRemovedTool)
			return
		}
		if j.ToolFacts != tool.FactsHash() {
			changedFlow[rec.call.Session] = true
		}
	}
	tool.Name = rec.call.Tool
	after, why := replayCall(ctx, r, rec, tool, !changedFlow[rec.call.Session])
	if why != "" {
		rep.addUnjudged(rec.call, why)
		return
	}
	rec.call.After = after.String()
	if rec.call.Before == rec.call.After {
		rep.Unchanged++
		return
	}
	rep.Changed++
	rule, effect := compareOutcomes(before, after)
	at := slices.IndexFunc(rep.Changes, func(c Change) bool { return c.Rule == rule && c.Effect == effect })
	if at < 0 {
		at, rep.Changes = len(rep.Changes), append(rep.Changes, Change{Rule: rule, Effect: effect})
	}
	rep.Changes[at].Calls = append(rep.Changes[at].Calls, rec.call)
}

// recordedOutcome is the decision of the recorded verdicts, as [policy.Chain.Decide] makes it.
func recordedOutcome(rec record) (o outcome) {
	if rec.judged.Denied != "" {
		return outcome{denied: rec.judged.Denied}
	}
	for _, l := range rec.judged.Layers {
		switch rule := l.Layer + "." + l.Rule; l.Verdict {
		case "deny":
			return outcome{denied: rule}
		case "ask":
			o.asks = append(o.asks, rule)
		}
	}
	return o
}

// replayCall judges a call by the rules; why is not empty when the record does not hold what they need.
func replayCall(ctx context.Context, r Rules, rec record, tool policy.Tool, sameFlow bool) (o outcome, why string) {
	j := rec.judged
	switch layer, _, _ := strings.Cut(j.Denied, "."); layer {
	case "", policy.LayerTool: // the manifest may declare the tool
	case subjects.RespondentB:
		return outcome{denied: j.Denied}, "" // no manifest changes it
	default:
		return outcome{}, reasonUndecided
	}
	c := policy.Call{
		Caller: rec.caller, Type: j.Type, Tool: tool, Args: rec.call.Args, Session: rec.call.Session,
		Query:    rec.call.Query,
		FromUser: rec.caller.Account == "operator" && len(rec.caller.Path) == 0,
		Override: policy.Override{Level: j.Override, Disable: j.Disabled, Grant: j.Granted},
		Usage:    policy.Usage{Identical: j.Identical, Calls: j.Calls},
	}
	for _, a := range j.Lineage {
		c.Lineage = append(c.Lineage, policy.SpawnedAgent{
			Name: a.Name, Type: a.Type, Narrowed: a.Narrowed,
			Tools: a.Tools,
		})
	}
	if len(rec.caller.Path) == 0 {
		c.Type, _ = r.Manifest.TypeOf(rec.caller)
	}
	d := r.Manifest.ReplayChain(r.Env, tool, *j, sameFlow).Decide(ctx, c)
	if no := d.Denial(); no != nil {
		if no.Rule == policy.RuleNotRecorded {
			return outcome{}, no.Reason
		}
		return outcome{denied: no.Layer + "." + no.Rule}, ""
	}
	for _, q := range d.Asks() {
		o.asks = append(o.asks, q.Layer+"."+q.Rule)
	}
	return o, ""
}

// compareOutcomes returns the effect of a change, and the rule that causes it: the one that denies or asks now, else
// the one that no longer does.
func compareOutcomes(before, after outcome) (rule, effect string) {
	added := func(from, to []string) string {
		for _, r := range to {
			if !slices.Contains(from, r) {
				return r
			}
		}
		return ""
	}
	switch {
	case after.denied != "" && before.denied != "":
		return after.denied, EffectRule
	case after.denied != "":
		return after.denied, EffectDenied
	case before.denied != "" && len(after.asks) > 0:
		return before.denied, EffectAllowed
	case before.denied != "":
		return before.denied, EffectRuns
	case len(after.asks) == 0:
		return before.asks[0], EffectRuns
	case len(before.asks) == 0:
		return after.asks[0], EffectAsks
	}
	return cmp.Or(added(before.asks, after.asks), added(after.asks, before.asks)), EffectRule
}

// maxListed bounds the calls that a reason lists; all are counted.
const maxListed = 20

func (rep *Report) addUnjudged(c Call, reason string) {
	at := slices.IndexFunc(rep.Unjudged, func(u Unjudged) bool { return u.Reason == reason })
	if at < 0 {
		at, rep.Unjudged = len(rep.Unjudged), append(rep.Unjudged, Unjudged{Reason: reason})
	}
	u := &rep.Unjudged[at]
	u.Count++
	if len(u.Calls) < maxListed {
		u.Calls = append(u.Calls, c)
	}
}
