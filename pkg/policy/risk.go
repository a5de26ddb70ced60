package policy

import (
	"context"
	"slices"
)

// riskLayer asks before a call of a high-risk tool. It never denies.
type riskLayer struct {
	High   []string // ask unless the session is relaxed
	Always []string // ask each time, also in a relaxed session and for the user's own calls
	// undoable says that a recorded call could be undone
	undoable bool
}

// Name implements [Layer].
func (riskLayer) Name() string { return "approval" }

// Rules of the approval layer.
const (
	ruleHighRisk = "high_risk" // the tool is high-risk, or its effects are undeclared
	ruleAlways   = "always"    // the tool needs approval each time
	ruleNoFacts  = "no_facts"  // the user added the tool without facts
)

// riskRules are the rules that may be monitor-only, see [monitorRules].
var riskRules = []string{ruleHighRisk, ruleAlways}

// Judge asks about the tools in Always, except under a full override, about calls of agents of tools that the user
// added without facts, and about the tools in High and those with undeclared effects, except in a relaxed session, for
// the user's own calls and for those that can be undone. Names match exactly. It never denies.
func (l riskLayer) Judge(_ context.Context, c Call) Verdict {
	name := c.Tool.Name
	switch {
	case c.HasFullOverride():
		return Pass()
	case slices.Contains(l.Always, name):
		return Ask(ruleAlways, name+" needs your approval each time")
	case c.Tool.AskEach && !c.FromUser:
		return Ask(ruleNoFacts, "you added "+name+" without saying what it does, so each call needs your approval")
	case c.FromUser || c.Override.IsRelaxed(): // the user's own call is its own approval
		return Pass()
	case l.undoable || c.IsUndoable():
		return Pass()
	case slices.Contains(l.High, name):
		if f := c.obeyedFile(); c.Kept != nil && f != "" {
			return Ask(ruleHighRisk, describeObeyed(name, f))
		}
		return Ask(ruleHighRisk, name+" is high-risk, so it needs your approval")
	case !c.Tool.Known || !c.Tool.Effects.declared:
		return Ask(ruleHighRisk, "nobody has declared what "+name+" does, so it needs your approval")
	}
	return Pass()
}
