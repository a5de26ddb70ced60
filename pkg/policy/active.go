package policy

import "sync/atomic"

// Rules are a manifest and the layers made of it. The zero value refuses everything.
type Rules struct {
	Manifest Manifest
	Chain    Chain
}

// ActiveRules holds the rules in force. They are taken in whole: a call is judged by one set of rules from its first layer to
// its last. The zero value refuses everything.
type ActiveRules struct{ rules atomic.Pointer[Rules] }

// NewActiveRules opens a book at these rules.
func NewActiveRules(r Rules) *ActiveRules {
	b := &ActiveRules{}
	b.Replace(r)
	return b
}

// Load are those in force.
func (b *ActiveRules) Load() Rules {
	if b == nil {
		return Rules{}
	}
	if r := b.rules.Load(); r != nil {
		return *r
	}
	return Rules{}
}

// Replace puts other rules in force.
func (b *ActiveRules) Replace(r Rules) { b.rules.Store(&r) }
