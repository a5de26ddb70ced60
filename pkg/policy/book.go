package policy

import "sync/atomic"

// Rules are a manifest and the layers made of it. The zero value refuses everything.
type Rules struct {
	Manifest Manifest
	Chain    Chain
}

// Book holds the rules in force. They are taken in whole: a call is judged by one set of rules from its first layer to
// its last. The zero value refuses everything.
type Book struct{ rules atomic.Pointer[Rules] }

// NewBook opens a book at these rules.
func NewBook(r Rules) *Book {
	b := &Book{}
	b.Turn(r)
	return b
}

// Rules are those in force.
func (b *Book) Rules() Rules {
	if b == nil {
		return Rules{}
	}
	if r := b.rules.Load(); r != nil {
		return *r
	}
	return Rules{}
}

// Turn puts other rules in force.
func (b *Book) Turn(r Rules) { b.rules.Store(&r) }
