package policy

import (
	"fmt"
	"slices"

	"conclave/pkg/text"
	"conclave/subjects"
)

// Rules of a spawn, besides those of the lineage layer.
const (
	ruleSelfSpawn = "self_spawn" // a type may not spawn itself
	ruleCycle     = "cycle"      // a type that is in the line already
	ruleNarrowing = "narrowing"  // the child could not have the tool
	ruleBadBudget = "bad_budget" // that is not a budget
	ruleSpawns    = "spawns"     // of the limits: too many agents for one question
)

// maxNarrowedTools bounds the tools that a spawn may name: nobody has more, and the list is kept.
const maxNarrowedTools = 64

// AuthorizeSpawn decides whether a caller may have a child, and returns it as the registry keeps it, still without a name, with
// the tools it may use at first. line is the caller's as in [Call]; grants are the session's. The error is a
// [*subjects.Fault] with a denial.
func (m Manifest) AuthorizeSpawn(parent subjects.Caller, line []SpawnedAgent, req subjects.SpawnRequest, grants ...string) (SpawnedAgent, []string, error) {
	if d := m.checkLineage(parent, line); d != nil {
		return SpawnedAgent{}, nil, newDenialFault(d)
	}
	own := m.callerType(parent.Account, line)
	may := m.Types[own].CanSpawn
	refuse := func(rule, format string, a ...any) (SpawnedAgent, []string, error) {
		return SpawnedAgent{}, nil, newDenialFault(&subjects.Denial{Layer: layerLineage, Rule: rule, Reason: fmt.Sprintf(format, a...), Allowed: slices.Clone(may)})
	}
	if _, ok := m.Types[req.Type]; !ok {
		return refuse(ruleUnknownType, "the manifest has no agent type %q", text.OneLine(req.Type, 60))
	}
	inLine := req.Type == m.Accounts[parent.Account] || slices.ContainsFunc(line, func(s SpawnedAgent) bool { return s.Type == req.Type })
	switch most := min(m.Limits.Depth, subjects.MaxDepth); {
	case req.Type == own:
		return refuse(ruleSelfSpawn, "%s is of type %q itself, and no type may spawn itself", parent.ID(), own)
	case inLine:
		return refuse(ruleCycle, "an agent of type %q is above %s already", req.Type, parent.ID())
	case !slices.Contains(may, req.Type):
		return refuse(ruleMayNotSpawn, "%s of type %q may not spawn agents of type %q", parent.ID(), own, req.Type)
	case len(line)+1 > most:
		may = nil
		return refuse(ruleDepth, "a child of %s would be %d agents deep, and at most %d may be", parent.ID(), len(line)+1, most)
	}
	child := SpawnedAgent{Name: "child", Type: req.Type} // the name is for now: whoever keeps it gives it another
	if len(req.Tools) > 0 {
		if may = m.passableTools(parent.Account, append(slices.Clone(line), child), grants); len(req.Tools) > maxNarrowedTools {
			return refuse(ruleNarrowing, "%d tools for one agent, at most %d", len(req.Tools), maxNarrowedTools)
		}
		for _, tool := range req.Tools {
			if !slices.Contains(may, tool) {
				return refuse(ruleNarrowing, "an agent of type %q below %s could not have %q", req.Type, parent.ID(), text.OneLine(tool, 60))
			}
		}
		child.Narrowed, child.Tools = true, slices.Compact(slices.Sorted(slices.Values(req.Tools)))
	}
	tools := m.EffectiveTools(parent.Account, append(slices.Clone(line), child), grants)
	child.Name = ""
	return child, tools, nil
}

// SpawnBudget is what an agent of a type may spend when it was spawned: what the manifest gives its type, and no more than was
// asked for. The error is a [*subjects.Fault] with a denial.
func (m Manifest) SpawnBudget(typ string, asked *subjects.Budget) (subjects.Budget, error) {
	b := m.Limits.Budgets[typ]
	if asked == nil {
		return b, nil
	}
	if asked.Calls < 0 || asked.Seconds < 0 || asked.Bytes < 0 {
		return subjects.Budget{}, newDenialFault(&subjects.Denial{Layer: layerLineage, Rule: ruleBadBudget, Reason: "a budget cannot be negative; leave out what has no limit"})
	}
	b.Calls, b.Seconds, b.Bytes = stricterLimit(b.Calls, asked.Calls), stricterLimit(b.Seconds, asked.Seconds), stricterLimit(b.Bytes, asked.Bytes)
	return b, nil
}

// stricterLimit is the smaller of two limits, where 0 is none.
func stricterLimit[N int | int64](a, b N) N {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// SpawnLimitFault is the refusal of a child beyond the limit of one question.
func (m Manifest) SpawnLimitFault() *subjects.Fault {
	return newDenialFault(&subjects.Denial{
		Layer: "limits", Rule: ruleSpawns,
		Reason: fmt.Sprintf("%d agents were spawned for this question already, and no more may be; let those there finish the work", m.Limits.Spawns),
	})
}

// newDenialFault is a denial as it travels. A limit that is reached is told apart from what was never allowed.
func newDenialFault(d *subjects.Denial) *subjects.Fault {
	code := subjects.CodeDenied
	if d.Rule == ruleDepth || d.Rule == ruleSpawns {
		code = subjects.CodeLimit
	}
	return &subjects.Fault{Code: code, Text: d.Reason, Denial: d}
}
