package policy

import (
	"context"
	"fmt"
	"slices"
)

// riskLayer asks the user before tools run that are marked as risky. It never refuses by itself.
type riskLayer struct {
	High   []string // ask, unless the user relaxed the session
	Always []string // ask each time, in a relaxed session and in the user's own calls too
}

// Name implements [Layer].
func (riskLayer) Name() string { return "approval" }

// Rules of the approval layer.
const (
	ruleHighRisk = "high_risk" // the tool is marked high-risk
	ruleAlways   = "always"    // the tool is marked to be asked for every time
)

// riskRules are the rules that can be watched instead of enforced, see [monitorRules].
var riskRules = []string{ruleHighRisk, ruleAlways}

// Judge implements [Layer]. Names are compared as they are. A tool whose effects nobody declared may do everything, so it
// is high-risk whether a list names it or not.
func (l riskLayer) Judge(_ context.Context, c Call) Verdict {
	name := c.Tool.Name
	switch {
	case c.hasFullOverride():
		return Pass()
	case slices.Contains(l.Always, name):
		return Ask(ruleAlways, name+" runs only after you agreed, each time")
	case c.FromUser || c.Override.IsRelaxed(): // the user who calls need not be asked whether to call
		return Pass()
	case slices.Contains(l.High, name):
		return Ask(ruleHighRisk, name+" is marked high-risk, so it needs your word")
	case !c.Tool.Known || !c.Tool.Effects.declared:
		return Ask(ruleHighRisk, fmt.Sprintf("nobody declared what %s does, so it needs your word", name))
	}
	return Pass()
}
