package policy

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"conclave/subjects"
)

// LineageLayer judges calls of spawned agents by everybody above them: a child has no tool that one of its ancestors
// neither uses nor may pass on. No level of an override lifts it: what an agent spawns is the model's choice and not the
// person's.
type LineageLayer struct{ Manifest Manifest }

// Name implements [Layer].
func (LineageLayer) Name() string { return layerLineage }

const layerLineage = "lineage"

// Rules of the lineage layer.
const (
	RuleUnregistered = "unregistered"  // no such agent was spawned in this session
	ruleDepth        = "depth"         // the line is too long
	ruleMayNotSpawn  = "may_not_spawn" // the parent's type may not have children of that type
	ruleNotInherited = "not_inherited" // an ancestor neither uses the tool nor may pass it on
	ruleNarrowed     = "narrowed"      // an agent was spawned with fewer tools, and this is not among them
)

// Judge implements [Layer].
func (l LineageLayer) Judge(_ context.Context, c Call) Verdict {
	if len(c.Caller.Path) == 0 && len(c.Lineage) == 0 {
		return Pass() // an account itself: nobody is above it
	}
	if d := l.Manifest.checkLineage(c.Caller, c.Lineage); d != nil {
		return Deny(d.Rule, d.Reason, d.Allowed...)
	}
	if own := c.Lineage[len(c.Lineage)-1].Type; c.Type != own {
		return Deny(ruleWrongType, fmt.Sprintf("%s was spawned as %q, and the call says %q", c.Caller.ID(), own, c.Type))
	}
	rule, reason := l.Manifest.findRevocation(c.Caller.Account, c.Lineage, c.Override.Grant, c.Tool.Name)
	if rule == "" {
		return Pass()
	}
	return Deny(rule, reason, l.Manifest.EffectiveTools(c.Caller.Account, c.Lineage, c.Override.Grant)...)
}

// EffectiveTools lists the tools that a caller may use, in order of name: those of its type and those granted to it, without
// what an agent above it takes away. line is the caller's, as in [Call]; it is empty for an account itself. A line that
// the manifest does not allow has no tools.
func (m Manifest) EffectiveTools(account string, line []SpawnedAgent, grants []string) []string {
	return m.filterInherited(account, line, grants, m.toolsOfType(m.callerType(account, line), grants))
}

// passableTools lists what the last agent of a line may use or pass on to its children, as [Manifest.EffectiveTools].
func (m Manifest) passableTools(account string, line []SpawnedAgent, grants []string) []string {
	typ := m.callerType(account, line)
	all := append(m.toolsOfType(typ, grants), m.Types[typ].Delegable...)
	slices.Sort(all)
	return m.filterInherited(account, line, grants, slices.Compact(all))
}

// filterInherited keeps those tools that nobody above the last of the line removes, nor its own narrowing.
func (m Manifest) filterInherited(account string, line []SpawnedAgent, grants, tools []string) []string {
	caller := subjects.Caller{Account: account}
	for _, s := range line {
		caller.Path = append(caller.Path, s.Name)
	}
	if m.checkLineage(caller, line) != nil {
		return nil
	}
	return slices.DeleteFunc(tools, func(tool string) bool {
		rule, _ := m.findAncestorRevocation(account, line, grants, tool)
		return rule != ""
	})
}

// callerType is the type of the last agent of a line: the account's when nobody was spawned.
func (m Manifest) callerType(account string, line []SpawnedAgent) string {
	if len(line) > 0 {
		return line[len(line)-1].Type
	}
	return m.Accounts[account]
}

// typeNames are the types, in order.
func (m Manifest) typeNames() []string { return slices.Sorted(maps.Keys(m.Types)) }

// checkLineage reports why a line cannot be: it is not the caller's, it is too long, or it has a link that the manifest
// does not allow. The manifest may have changed since the agents were spawned, so each link is looked at again.
func (m Manifest) checkLineage(c subjects.Caller, line []SpawnedAgent) *subjects.Denial {
	deny := func(rule, reason string, allowed ...string) *subjects.Denial {
		return &subjects.Denial{Layer: layerLineage, Rule: rule, Reason: reason, Allowed: allowed}
	}
	parent, ok := m.Accounts[c.Account]
	if !ok {
		return deny(ruleUnknownAccount, fmt.Sprintf("the manifest gives account %q no agent type, so nothing below it may run", c.Account))
	}
	for i, token := range c.Path {
		if i >= len(line) || token == "" || line[i].Name != token {
			who := subjects.Caller{Account: c.Account, Path: c.Path[:i+1]}
			return deny(RuleUnregistered, fmt.Sprintf("no agent %s was spawned in this session; call as %s", who.ID(), subjects.Caller{Account: c.Account, Path: c.Path[:i]}.ID()))
		}
	}
	if len(line) != len(c.Path) {
		return deny(RuleUnregistered, fmt.Sprintf("the registry has more agents than %s names", c.ID()))
	}
	if most := min(m.Limits.Depth, subjects.MaxDepth); len(line) > most {
		return deny(ruleDepth, fmt.Sprintf("%s is %d agents deep, and at most %d may be", c.ID(), len(line), most))
	}
	above := c.Account
	for _, s := range line {
		if may := m.Types[parent].CanSpawn; !slices.Contains(may, s.Type) {
			return deny(ruleMayNotSpawn, fmt.Sprintf("%s of type %q may not spawn agents of type %q, so %s may not run", above, parent, s.Type, s.Name), may...)
		}
		above, parent = s.Name, s.Type
	}
	return nil
}

// findRevocation says which rule takes a tool from the last agent of a line, and in words who did. No rule: it has the tool.
func (m Manifest) findRevocation(account string, line []SpawnedAgent, grants []string, tool string) (rule, reason string) {
	if rule, reason = m.findAncestorRevocation(account, line, grants, tool); rule != "" {
		return rule, reason
	}
	if typ := m.callerType(account, line); !slices.Contains(m.Types[typ].Tools, tool) && !hasGrant(grants, typ, tool) {
		return ruleNotInSet, fmt.Sprintf("the manifest does not give %q to agents of type %q", tool, typ)
	}
	return "", ""
}

// findAncestorRevocation says who above the last agent of a line, or which narrowing in it, takes a tool away. Nobody above an agent whose
// type is unbound takes anything from it; a narrowing always holds, because somebody asked for just that agent.
func (m Manifest) findAncestorRevocation(account string, line []SpawnedAgent, grants []string, tool string) (rule, reason string) {
	for _, s := range line {
		if s.Narrowed && !slices.Contains(s.Tools, tool) {
			return ruleNarrowed, fmt.Sprintf("%s (%s) was spawned with fewer tools, and %q is not among them", s.Name, s.Type, tool)
		}
	}
	chain := append([]SpawnedAgent{{Name: account, Type: m.Accounts[account]}}, line...)
	for i := len(chain) - 1; i > 0; i-- { // from the nearest, so that the search ends at the first that is not bound
		if m.Types[chain[i].Type].Unbound {
			break
		}
		parent := chain[i-1]
		t := m.Types[parent.Type]
		if !slices.Contains(t.Tools, tool) && !slices.Contains(t.Delegable, tool) && !hasGrant(grants, parent.Type, tool) {
			rule, reason = ruleNotInherited, fmt.Sprintf("%s (%s) neither uses %q nor may pass it on, so nobody below it may use it", parent.Name, parent.Type, tool)
		}
	}
	return rule, reason // the highest that takes it away: whoever wants the tool has to begin there
}
