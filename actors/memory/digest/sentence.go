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
func (f sentence) in(i int, set map[string]bool) bool {
	return i >= 0 && i < len(f.all) && set[f.all[i].Folded]
}

// isTied reports whether word i follows the one before without punctuation between them.
func (f sentence) isTied(i int) bool { return i < len(f.all) && f.all[i].Gap&^text.GapLine == 0 }

// findWithin returns the position of the first word of set among the most words after word i in the same sentence, -1
// when there is none.
func (f sentence) findWithin(i, most int, set map[string]bool) int {
	for j := i + 1; j < len(f.all) && j <= i+most; j++ {
		if f.all[j].Gap&text.GapEnd != 0 {
			return -1
		}
		if set[f.all[j].Folded] {
			return j
		}
	}
	return -1
}

// gapAt returns what stands before word i, 0 when there is no such word.
func (f sentence) gapAt(i int) text.Gap {
	if i < 0 || i >= len(f.all) {
		return 0
	}
	return f.all[i].Gap
}

// skip returns the first position from i on that is none of the words.
func (f sentence) skip(i int, list ...string) int {
	for f.is(i, list...) {
		i++
	}
	return i
}
