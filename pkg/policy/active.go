package policy

import (
	"slices"
	"sync"
	"sync/atomic"

	"conclave/subjects"
)

// Rules are a manifest and the chain of layers built from it. The zero value denies every call.
type Rules struct {
	Manifest Manifest
	Chain    Chain
}

// ActiveRules holds the rules in force: those of the manifest, with the tools of run-time principals. Load, Replace and
// ReplaceTools are atomic, so a call that loads the rules once is judged by one manifest and the chain built from it.
// Nil and the zero value deny every call. Safe for concurrent use.
type ActiveRules struct {
	mu    sync.Mutex // held by writers
	base  atomic.Pointer[Rules]
	rules atomic.Pointer[Rules]
	tools []AddedTool
}

// AgentType returns the type of an account for the audit log: that of the manifest, "user" for an account that acts for
// the user, "actor" for any other account of the bus. It returns "" for a spawned agent, whose type only the spawn
// registry has, for an agent without a type, and for an unknown account.
func (a *ActiveRules) AgentType(agentID string) string {
	typ, isAgent := a.Load().Manifest.Accounts[agentID]
	_, isZone := subjects.Zones[agentID]
	switch {
	case isAgent || slices.Contains(subjects.Agents, agentID): // an agent without a type has no tools
		return typ
	case slices.Contains(subjects.UserAccounts, agentID):
		return "user"
	case isZone || slices.Contains(subjects.Actors, agentID):
		return "actor"
	}
	return ""
}

// NewActiveRules returns an ActiveRules with r in force.
func NewActiveRules(r Rules) *ActiveRules {
	a := &ActiveRules{}
	a.Replace(r)
	return a
}

// Load returns the rules in force; the zero Rules, which deny every call, when there are none.
func (a *ActiveRules) Load() Rules {
	if a == nil {
		return Rules{}
	}
	if r := a.rules.Load(); r != nil {
		return *r
	}
	return Rules{}
}

// LoadBase returns the rules without the tools of run-time principals; the zero Rules when there are none.
func (a *ActiveRules) LoadBase() Rules {
	if a == nil {
		return Rules{}
	}
	if r := a.base.Load(); r != nil {
		return *r
	}
	return Rules{}
}

// Replace puts r in force, with the tools of run-time principals. Calls that loaded the previous rules finish under
// them.
func (a *ActiveRules) Replace(r Rules) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.base.Store(&r)
	a.merge()
}

// ReplaceTools replaces the tools of run-time principals.
func (a *ActiveRules) ReplaceTools(tools []AddedTool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tools = tools
	a.merge()
}

// merge puts the rules with the added tools in force. The caller must hold mu.
func (a *ActiveRules) merge() {
	if base := a.base.Load(); base != nil {
		r := base.withTools(a.tools)
		a.rules.Store(&r)
	}
}
