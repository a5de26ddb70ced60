package policy

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"conclave/subjects"
)

// LineageLayer denies a spawned agent every tool that one of its ancestors neither uses nor may delegate. No override
// lifts it, because the model and not the user chooses what to spawn.
type LineageLayer struct{ Manifest Manifest }

// Name implements [Layer].
func (LineageLayer) Name() string { return layerLineage }

// layerLineage is also the layer of denied spawn requests, see [Manifest.AuthorizeSpawn].
const layerLineage = "lineage"

// Rules of the lineage layer.
const (
	RuleUnregistered = "unregistered"  // no such agent was spawned in this session
	ruleDepth        = "depth"         // the spawn chain is too deep
	ruleMayNotSpawn  = "may_not_spawn" // the parent's type may not spawn that type
	ruleNotInherited = "not_inherited" // an ancestor neither uses the tool nor may delegate it
	ruleNarrowed     = "narrowed"      // an agent of the chain was spawned with a subset of tools without this one
)

// Judge denies a caller that is not the registered agent of its lineage, a lineage that the manifest does not permit
// (any more), a type that differs from the registered one, and a tool that the agent's type, an ancestor or a narrowing
// withholds. It never asks. A call of an account itself passes.
func (l LineageLayer) Judge(_ context.Context, c Call) Verdict {
	if len(c.Caller.Path) == 0 && len(c.Lineage) == 0 {
		return Pass() // an account has no ancestors
	}
	if d := l.Manifest.checkLineage(c.Caller, c.Lineage); d != nil {
		return Deny(d.Rule, d.Reason, d.Allowed...)
	}
	if own := c.Lineage[len(c.Lineage)-1].Type; c.Type != own {
		return Deny(ruleWrongType, fmt.Sprintf("%s was spawned as type %q, but the call claims type %q", c.Caller.ID(),
			own, c.Type))
	}
	rule, reason := l.Manifest.findRevocation(c.Caller.Account, c.Lineage, c.Override.Grant, c.Tool.Name)
	if rule == "" {
		return Pass()
	}
	return Deny(rule, reason, l.Manifest.EffectiveTools(c.Caller.Account, c.Lineage, c.Override.Grant)...)
}

// EffectiveTools returns the tools that a caller may use, sorted: those of its type and those granted to it, without
// those that an ancestor or a narrowing withholds. lineage is the caller's, as in [Call], and empty for an account
// itself. A lineage that the manifest does not permit has no tools.
func (m Manifest) EffectiveTools(account string, lineage []SpawnedAgent, grants []string) []string {
	return m.filterInherited(account, lineage, grants, m.toolsOfType(m.callerType(account, lineage), grants))
}

// passableTools returns the tools that the last agent of a lineage may use or delegate to its children, sorted.
// Ancestors and narrowings withhold tools as in [Manifest.EffectiveTools]; a lineage that the manifest does not permit
// has none.
func (m Manifest) passableTools(account string, lineage []SpawnedAgent, grants []string) []string {
	typ := m.callerType(account, lineage)
	all := append(m.toolsOfType(typ, grants), m.Types[typ].Delegable...)
	slices.Sort(all)
	return m.filterInherited(account, lineage, grants, slices.Compact(all))
}

// filterInherited returns the tools that no ancestor and no narrowing withholds from the last agent of a lineage; none
// when the manifest does not permit the lineage. It modifies tools.
func (m Manifest) filterInherited(account string, lineage []SpawnedAgent, grants, tools []string) []string {
	caller := subjects.Caller{Account: account}
	for _, s := range lineage {
		caller.Path = append(caller.Path, s.Name)
	}
	if m.checkLineage(caller, lineage) != nil {
		return nil
	}
	return slices.DeleteFunc(tools, func(tool string) bool {
		rule, _ := m.findAncestorRevocation(account, lineage, grants, tool)
		return rule != ""
	})
}

// callerType returns the type of the last agent of a lineage, or the account's type when the lineage is empty.
func (m Manifest) callerType(account string, lineage []SpawnedAgent) string {
	if len(lineage) > 0 {
		return lineage[len(lineage)-1].Type
	}
	return m.Accounts[account]
}

// typeNames returns the names of the agent types, sorted.
func (m Manifest) typeNames() []string { return slices.Sorted(maps.Keys(m.Types)) }

// checkLineage returns a denial when the account has no type, when lineage is not that of the caller's path, is too
// deep, or has a spawn that the manifest does not permit; otherwise nil, also for an account itself with an empty
// lineage. Each spawn is checked again because the manifest may have changed since.
func (m Manifest) checkLineage(c subjects.Caller, lineage []SpawnedAgent) *subjects.Denial {
	deny := func(rule, reason string, allowed ...string) *subjects.Denial {
		return &subjects.Denial{Layer: layerLineage, Rule: rule, Reason: reason, Allowed: allowed}
	}
	parent, ok := m.Accounts[c.Account]
	if !ok {
		return deny(ruleUnknownAccount, fmt.Sprintf("the manifest gives account %q no agent type, so nothing below "+
			"it may run", c.Account))
	}
	for i, token := range c.Path {
		if i >= len(lineage) || token == "" || lineage[i].Name != token {
			who := subjects.Caller{Account: c.Account, Path: c.Path[:i+1]}
			return deny(RuleUnregistered, fmt.Sprintf("no agent %s was spawned in this session; call as %s", who.ID(),
				subjects.Caller{Account: c.Account, Path: c.Path[:i]}.ID()))
		}
	}
	if len(lineage) != len(c.Path) {
		return deny(RuleUnregistered, fmt.Sprintf("the registered lineage is longer than the path of %s", c.ID()))
	}
	if maxDepth := min(m.Limits.Depth, subjects.MaxDepth); len(lineage) > maxDepth {
		return deny(ruleDepth, fmt.Sprintf("%s is %d agents deep; the limit is %d", c.ID(), len(lineage), maxDepth))
	}
	above := c.Account
	for _, s := range lineage {
		if may := m.Types[parent].CanSpawn; !slices.Contains(may, s.Type) {
			return deny(ruleMayNotSpawn, fmt.Sprintf("%s of type %q may not spawn agents of type %q, so %s may not run",
				above, parent, s.Type, s.Name), may...)
		}
		above, parent = s.Name, s.Type
	}
	return nil
}

// findRevocation returns the rule that withholds a tool from the last agent of a lineage and a reason that names the
// agent or type. An empty rule means that the agent has the tool. The lineage must have passed [Manifest.checkLineage].
func (m Manifest) findRevocation(account string, lineage []SpawnedAgent, grants []string, tool string) (rule,
	reason string,
) {
	if rule, reason = m.findAncestorRevocation(account, lineage, grants, tool); rule != "" {
		return rule, reason
	}
	if typ := m.callerType(account, lineage); !slices.Contains(m.Types[typ].Tools, tool) &&
		!hasGrant(grants, typ, tool) {
		return ruleNotInSet, fmt.Sprintf("the manifest does not give %q to agents of type %q", tool, typ)
	}
	return "", ""
}

// findAncestorRevocation is [Manifest.findRevocation] for narrowings and ancestors alone. Of several ancestors it names
// the highest. Ancestors above an agent of an unbound type withhold nothing; a narrowing always holds, because the
// spawn request named it for this agent.
func (m Manifest) findAncestorRevocation(account string, lineage []SpawnedAgent, grants []string, tool string) (rule,
	reason string,
) {
	for _, s := range lineage {
		if s.Narrowed && !slices.Contains(s.Tools, tool) {
			return ruleNarrowed, fmt.Sprintf("%s (%s) was spawned with a subset of tools that does not include %q",
				s.Name, s.Type, tool)
		}
	}
	chain := append([]SpawnedAgent{{Name: account, Type: m.Accounts[account]}}, lineage...)
	// from the nearest ancestor, so that the search ends at the first unbound type
	for i := len(chain) - 1; i > 0; i-- {
		if m.Types[chain[i].Type].Unbound {
			break
		}
		parent := chain[i-1]
		t := m.Types[parent.Type]
		if !slices.Contains(t.Tools, tool) && !slices.Contains(t.Delegable, tool) &&
			!hasGrant(grants, parent.Type, tool) {
			rule, reason = ruleNotInherited, fmt.Sprintf("%s (%s) neither uses %q nor may delegate it, so no agent "+
				"below it may use it", parent.Name, parent.Type, tool)
		}
	}
	return rule, reason // the highest ancestor: granting the tool has to start there
}
