package recall

import (
	"slices"
	"strings"

	"conclave/pkg/text"
)

// minPrefix is the shortest beginning of a name that stands for it, in bytes: Mel for Melanie.
const minPrefix = 3

// speakers are those who said something that a row holds, by name.
type speakers map[string]*speaker

// speaker is a name that rows share.
type speaker struct {
	name  string
	words []string // of the name, folded, without stop words
	rows  int
}

// add counts a row of the speaker with this name and returns the speaker, nil for "".
func (s speakers) add(name string) *speaker {
	if name == "" {
		return nil
	}
	who := s[name]
	if who == nil {
		who = &speaker{name: name}
		for _, w := range text.Words(name) {
			if !stopWords(w.Folded) {
				who.words = append(who.words, w.Folded)
			}
		}
		s[name] = who
	}
	who.rows++
	return who
}

// remove uncounts a row. who may be nil.
func (s speakers) remove(who *speaker) {
	if who == nil {
		return
	}
	if who.rows--; who.rows == 0 {
		delete(s, who.name)
	}
}

// findNamed returns the speakers that a question names: by a word of the name, or by the beginning of a word of one
// name alone, of at least minPrefix bytes. Such a beginning must be capitalized, unless the question has no capitals:
// art is not Arthur. Stop words name nobody.
func (s speakers) findNamed(question string) map[*speaker]bool {
	found := map[*speaker]bool{}
	if len(s) == 0 {
		return found
	}
	words := text.Words(question[:min(len(question), maxQueryBytes)])
	isLower := !slices.ContainsFunc(words, func(w text.Word) bool { return w.IsUpper })
	for _, w := range words {
		word := strings.TrimSuffix(w.Folded, "'s")
		if stopWords(word) {
			continue
		}
		var named, begun []*speaker
		for _, who := range s {
			switch {
			case slices.Contains(who.words, word):
				named = append(named, who)
			case slices.ContainsFunc(who.words, func(n string) bool { return strings.HasPrefix(n, word) }):
				begun = append(begun, who)
			}
		}
		if len(named) == 0 && len(begun) == 1 && len(word) >= minPrefix && (w.IsUpper || isLower) {
			named = begun
		}
		for _, who := range named {
			found[who] = true
		}
	}
	return found
}
