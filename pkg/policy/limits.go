package policy

import (
	"context"
	"fmt"
)

// LimitsLayer stops loops: identical calls in a row with equal results, too many calls for one question, and a spawn
// chain that has used up a budget. The zero value is a missing configuration and denies every call.
//
// Limits are against loops, not against the user: a full override lifts them for the account itself, never for a
// spawned agent.
type LimitsLayer struct {
	Identical int // the call with this number among identical calls in a row is denied
	Calls     int // most calls for one question
}

// Name implements [Layer].
func (LimitsLayer) Name() string { return "limits" }

// Rules of the limits layer.
const (
	ruleNoLimits = "no_limits" // limits or counts are missing or negative
	ruleRepeated = "repeated"  // too many identical calls in a row with equal results
	ruleCalls    = "calls"     // too many calls for one question
	ruleBudget   = "budget"    // an agent of the spawn chain has used up its budget
)

// limitsRules are the rules that may be monitor-only, see [monitorRules].
var limitsRules = []string{ruleRepeated, ruleCalls, ruleBudget}

// Judge denies an identical call over the limit, a call over the limit of its question, and a call of a spawn chain in
// which an agent has used up its budget. The user's own calls are exempt from the first two, a full override from all.
// A limit of 0 or below, and a negative count, deny every call. It never asks. c.Usage must be the usage before this
// call.
func (l LimitsLayer) Judge(_ context.Context, c Call) Verdict {
	if l.Identical <= 0 || l.Calls <= 0 {
		return Deny(ruleNoLimits, "no call limits are configured, so every call is denied; set limits.same and "+
			"limits.calls in the manifest")
	}
	if c.Usage.Identical < 0 || c.Usage.Calls < 0 {
		return Deny(ruleNoLimits, "the number of calls is unknown, so every call is denied")
	}
	if c.HasFullOverride() {
		return Pass()
	}
	var all []Verdict
	if !c.FromUser && c.Usage.Identical >= l.Identical-1 {
		all = append(all, Deny(ruleRepeated, fmt.Sprintf("%s was already called %d times in a row with the same "+
			"arguments and the same result; use its result or change the arguments", c.Tool.Name, c.Usage.Identical),
			fmt.Sprintf("at most %d identical calls in a row for one question", l.Identical-1)))
	}
	if !c.FromUser && c.Usage.Calls >= l.Calls {
		all = append(all, Deny(ruleCalls, fmt.Sprintf("%d calls were made for this question; answer with the results "+
			"so far", c.Usage.Calls), fmt.Sprintf("at most %d calls for one question", l.Calls)))
	}
	for _, s := range c.Usage.Agents {
		if v, over := overBudget(s); over {
			all = append(all, v)
		}
	}
	return combineVerdicts(all...)
}

// overBudget returns a denial and true when an agent has used up one of its limits. A limit of 0 is unlimited; a
// negative limit or count, or NaN seconds, denies.
func overBudget(s AgentUsage) (Verdict, bool) {
	b := s.Budget
	over := func(what string, spent, budget any) (Verdict, bool) {
		return Deny(ruleBudget, fmt.Sprintf("%s and the agents below it have used %v of %v %s; answer with the "+
			"results so far", s.Agent, spent, budget, what),
			fmt.Sprintf("at most %v %s", budget, what)), true
	}
	switch {
	case b.Calls < 0 || b.Seconds < 0 || b.Bytes < 0 || s.Calls < 0 || s.Bytes < 0 || !(s.Seconds >= 0): // true for NaN
		return Deny(ruleBudget, "the remaining budget of "+s.Agent+" is unknown, so the call is denied"), true
	case b.Calls > 0 && s.Calls >= b.Calls:
		return over("calls", s.Calls, b.Calls)
	case b.Seconds > 0 && s.Seconds >= float64(b.Seconds):
		return over("seconds of tools running", int(min(s.Seconds, 1e15)), b.Seconds)
	case b.Bytes > 0 && s.Bytes >= b.Bytes:
		return over("bytes of results", s.Bytes, b.Bytes)
	}
	return Verdict{}, false
}
