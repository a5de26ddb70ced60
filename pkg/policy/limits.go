package policy

import (
	"context"
	"fmt"
)

// LimitsLayer ends what would go on for ever: the same call again and again, calls without end for one question, a line
// of agents that spends more than it was given. The zero value is a configuration that nobody wrote, and refuses
// everything.
//
// No override lifts a limit. A limit is there against loops, not against the user, and a loop does not become useful
// because everything is allowed. Who needs more raises the limit.
type LimitsLayer struct {
	Identical int // the so many-th identical call is refused
	Calls     int // for one question
}

// Name implements [Layer].
func (LimitsLayer) Name() string { return "limits" }

// Rules of the limits layer.
const (
	ruleNoLimits = "no_limits" // the layer has no limits to go by
	ruleRepeated = "repeated"  // the same call too often
	ruleCalls    = "calls"     // too many calls for one question
	ruleBudget   = "budget"    // the line of agents has used up what it was given
)

// limitsRules are the rules that can be watched instead of enforced, see [monitorRules].
var limitsRules = []string{ruleRepeated, ruleCalls, ruleBudget}

// Judge implements [Layer]. A user may repeat a call as often as it pleases them; a budget holds for them too.
func (l LimitsLayer) Judge(_ context.Context, c Call) Verdict {
	if l.Identical <= 0 || l.Calls <= 0 {
		return Deny(ruleNoLimits, "the limits of calls are not set, so nothing may run; set limits.same and limits.calls in the manifest")
	}
	if c.Usage.Identical < 0 || c.Usage.Calls < 0 {
		return Deny(ruleNoLimits, "nobody knows how many calls were made, so nothing may run")
	}
	var all []Verdict
	if !c.FromUser && c.Usage.Identical >= l.Identical-1 {
		all = append(all, Deny(ruleRepeated, fmt.Sprintf("%s was called %d times with the same arguments already; use what it returned, or call it with others", c.Tool.Name, c.Usage.Identical),
			fmt.Sprintf("at most %d identical calls", l.Identical-1)))
	}
	if !c.FromUser && c.Usage.Calls >= l.Calls {
		all = append(all, Deny(ruleCalls, fmt.Sprintf("%d calls were made for this question; answer with what is there", c.Usage.Calls), fmt.Sprintf("at most %d calls for one question", l.Calls)))
	}
	for _, s := range c.Usage.Agents {
		if v, over := overBudget(s); over {
			all = append(all, v)
		}
	}
	return combineVerdicts(all...)
}

// overBudget refuses when nothing is left of a budget.
func overBudget(s AgentUsage) (Verdict, bool) {
	b := s.Budget
	over := func(what string, spent, budget any) (Verdict, bool) {
		return Deny(ruleBudget, fmt.Sprintf("%s and the agents below it have used %v of %v %s; answer with what is there", s.Agent, spent, budget, what),
			fmt.Sprintf("at most %v %s", budget, what)), true
	}
	switch {
	case b.Calls < 0 || b.Seconds < 0 || b.Bytes < 0 || s.Calls < 0 || s.Bytes < 0 || !(s.Seconds >= 0): // not a number neither
		return Deny(ruleBudget, "nobody knows what "+s.Agent+" may still spend, so it may spend nothing"), true
	case b.Calls > 0 && s.Calls >= b.Calls:
		return over("calls", s.Calls, b.Calls)
	case b.Seconds > 0 && s.Seconds >= float64(b.Seconds):
		return over("seconds of tools running", int(min(s.Seconds, 1e15)), b.Seconds)
	case b.Bytes > 0 && s.Bytes >= b.Bytes:
		return over("bytes of results", s.Bytes, b.Bytes)
	}
	return Verdict{}, false
}
