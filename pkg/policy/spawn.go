package policy

import (
	"fmt"
	"slices"

	"conclave/pkg/text"
	"conclave/subjects"
)

// Rules of spawn requests, in addition to those of the lineage layer.
const (
	ruleSelfSpawn = "self_spawn" // a type may not spawn itself
	ruleCycle     = "cycle"      // the type is in the lineage already
	ruleNarrowing = "narrowing"  // the child may not have a requested tool
	ruleBadBudget = "bad_budget" // a negative budget
	ruleSpawns    = "spawns"     // layer limits: too many agents for one question
)

// maxNarrowedTools is the most tools that a spawn request may name, because the list is stored.
const maxNarrowedTools = 64

// AuthorizeSpawn decides whether parent may spawn an agent. It returns the child, whose Name the caller must set, and
// its tools; a request without tools narrows nothing. It denies, by a [*subjects.Fault], an invalid lineage, an unknown
// or not permitted type, a type already in the lineage, a lineage over the depth limit, and requested tools that the
// child may not have or that are over maxNarrowedTools. lineage is the parent's, as in [Call]; grants are the
// session's.
func (m Manifest) AuthorizeSpawn(parent subjects.Caller, lineage []SpawnedAgent, req subjects.SpawnRequest,
	grants ...string,
) (SpawnedAgent, []string, error) {
	if d := m.checkLineage(parent, lineage); d != nil {
		return SpawnedAgent{}, nil, newDenialFault(d)
	}
	own := m.callerType(parent.Account, lineage)
	permitted := m.Types[own].CanSpawn
	deny := func(rule, format string, a ...any) (SpawnedAgent, []string, error) {
		return SpawnedAgent{}, nil,
			newDenialFault(&subjects.Denial{
				Layer: layerLineage, Rule: rule, Reason: fmt.Sprintf(format, a...),
				Allowed: slices.Clone(permitted),
			})
	}
	if _, ok := m.Types[req.Type]; !ok {
		return deny(ruleUnknownType, "the manifest has no agent type %q", text.OneLine(req.Type, 60))
	}
	inLine := req.Type == m.Accounts[parent.Account] || slices.ContainsFunc(lineage, func(s SpawnedAgent) bool {
		return s.Type == req.Type
	})
	switch maxDepth := min(m.Limits.Depth, subjects.MaxDepth); {
	case req.Type == own:
		return deny(ruleSelfSpawn, "%s is of type %q, and no type may spawn itself", parent.ID(), own)
	case inLine:
		return deny(ruleCycle, "an ancestor of %[2]s is already of type %[1]q", req.Type, parent.ID())
	case !slices.Contains(permitted, req.Type):
		return deny(ruleMayNotSpawn, "%s of type %q may not spawn agents of type %q", parent.ID(), own, req.Type)
	case len(lineage)+1 > maxDepth:
		permitted = nil
		return deny(ruleDepth, "a child of %s would be %d agents deep; the limit is %d", parent.ID(), len(lineage)+1,
			maxDepth)
	}
	child := SpawnedAgent{Name: "child", Type: req.Type} // placeholder: a lineage needs a name for each agent
	if len(req.Tools) > 0 {
		if permitted = m.passableTools(parent.Account, append(slices.Clone(lineage), child),
			grants); len(req.Tools) > maxNarrowedTools {
			return deny(ruleNarrowing, "%d tools for one agent; the limit is %d", len(req.Tools), maxNarrowedTools)
		}
		for _, tool := range req.Tools {
			if !slices.Contains(permitted, tool) {
				return deny(ruleNarrowing, "an agent of type %q below %s may not have %q", req.Type, parent.ID(),
					text.OneLine(tool, 60))
			}
		}
		child.Narrowed, child.Tools = true, slices.Compact(slices.Sorted(slices.Values(req.Tools)))
	}
	tools := m.EffectiveTools(parent.Account, append(slices.Clone(lineage), child), grants)
	child.Name = ""
	return child, tools, nil
}

// SpawnBudget returns the budget of a spawned agent: for each limit the stricter of its type's and the requested one,
// where 0 is unlimited. A nil request adds no limit, nor does a type without a budget. It denies a negative request;
// the error is a [*subjects.Fault] with a denial.
func (m Manifest) SpawnBudget(typ string, asked *subjects.Budget) (subjects.Budget, error) {
	b := m.Limits.Budgets[typ]
	if asked == nil {
		return b, nil
	}
	if asked.Calls < 0 || asked.Seconds < 0 || asked.Bytes < 0 {
		return subjects.Budget{},
			newDenialFault(&subjects.Denial{Layer: layerLineage, Rule: ruleBadBudget, Reason: "a budget cannot be " +
				"negative; omit a limit that is not needed"})
	}
	b.Calls, b.Seconds, b.Bytes = stricterLimit(b.Calls, asked.Calls), stricterLimit(b.Seconds, asked.Seconds),
		stricterLimit(b.Bytes, asked.Bytes)
	return b, nil
}

// stricterLimit returns the smaller of two limits, where 0 is unlimited. Neither may be negative.
func stricterLimit[N int | int64](a, b N) N {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// SpawnLimitFault returns the denial of a spawn request over the limit of agents for one question.
func (m Manifest) SpawnLimitFault() *subjects.Fault {
	return newDenialFault(&subjects.Denial{
		Layer: "limits", Rule: ruleSpawns,
		Reason: fmt.Sprintf("%d agents were spawned for this question, which is the limit; finish the work with them",
			m.Limits.Spawns),
	})
}

// newDenialFault returns d as a fault: with CodeLimit when a limit was reached, otherwise with CodeDenied.
func newDenialFault(d *subjects.Denial) *subjects.Fault {
	code := subjects.CodeDenied
	if d.Rule == ruleDepth || d.Rule == ruleSpawns {
		code = subjects.CodeLimit
	}
	return &subjects.Fault{Code: code, Text: d.Reason, Denial: d}
}
