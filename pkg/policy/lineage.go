package policy

import "context"

// LineageLayer judges calls of spawned agents. No agent can be spawned yet, so a path in the subject is a claim about a
// child that does not exist, and every such call is refused.
type LineageLayer struct{}

// Name implements [Layer].
func (LineageLayer) Name() string { return "lineage" }

// Judge implements [Layer].
func (LineageLayer) Judge(_ context.Context, c Call) Verdict {
	if len(c.Caller.Path) > 0 {
		return Deny("unregistered", "no agent "+c.Caller.ID()+" was spawned; call as "+c.Caller.Account)
	}
	return Pass()
}
