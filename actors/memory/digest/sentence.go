package digest

import (
	"slices"

	"conclave/pkg/text"
)

// sentence is a sentence and its words. Positions outside of it match nothing.
type sentence struct {
	all []text.Word
	s   string
}

// is reports whether word i is one of these.
func (f sentence) is(i int, list ...string) bool {
	return i >= 0 && i < len(f.all) && slices.Contains(list, f.all[i].Folded)
}

// in reports whether word i is in a set.
func (f sentence) in(i int, isOne func(string) bool) bool {
	return i >= 0 && i < len(f.all) && isOne(f.all[i].Folded)
}
