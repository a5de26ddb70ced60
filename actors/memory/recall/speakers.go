package recall

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"conclave/pkg/text"
)

// minPrefix is the shortest beginning of a name that stands for it, in bytes: Mel for Melanie.
const minPrefix = 3

// speakers are those who said something that a row holds.
type speakers struct {
	mu     sync.Mutex
	byName map[string]*speaker
	words  []speakerWord // of all names, sorted; nil = to be made
}

// speaker is a name that rows share.
type speaker struct {
	name string
	rows int
}

// speakerWord is a folded word of a name that is no stop word.
type speakerWord struct {
	word string
	of   *speaker
}

// add counts a row of the speaker with this name and returns the speaker, nil for "".
func (s *speakers) add(name string) *speaker {
	if name == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	who := s.byName[name]
	if who == nil {
		who = &speaker{name: strings.Clone(name)}
		s.byName[who.name], s.words = who, nil
	}
	who.rows++
	return who
}

// remove uncounts a row. who may be nil.
func (s *speakers) remove(who *speaker) {
	if who == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if who.rows--; who.rows > 0 {
		return
	}
	delete(s.byName, who.name)
	s.words = nil
}

// maxNamed is how many speakers one word of a question can name: the first by name.
const maxNamed = 64

// findNamed returns the speakers that a question names: by a word of the name, or by the beginning of a word of one
// name alone, of at least minPrefix bytes. Such a beginning must be capitalized, unless the question has no capitals:
// art is not Arthur. Stop words name nobody. The result is nil when there are none.
func (s *speakers) findNamed(question string) (found map[*speaker]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byName) == 0 {
		return nil
	}
	if s.words == nil {
		s.indexWords()
	}
	words := text.Words(question[:min(len(question), maxQueryBytes)])
	isLower := !slices.ContainsFunc(words, func(w text.Word) bool { return w.IsUpper })
	for _, w := range words {
		word := strings.TrimSuffix(w.Folded, "'s")
		if stopWords(word) {
			continue
		}
		from, _ := slices.BinarySearchFunc(s.words, word, func(w speakerWord, word string) int {
			return cmp.Compare(w.word, word)
		})
		var begins []*speaker
		isWord := false
		for _, n := range s.words[from:] {
			if !strings.HasPrefix(n.word, word) || n.word != word && (isWord || len(begins) > 1) ||
				len(begins) == maxNamed {
				break
			}
			isWord = isWord || n.word == word
			if !slices.Contains(begins, n.of) {
				begins = append(begins, n.of)
			}
		}
		if isWord || len(begins) == 1 && len(word) >= minPrefix && (w.IsUpper || isLower) {
			for _, who := range begins {
				if found == nil {
					found = map[*speaker]bool{}
				}
				found[who] = true
			}
		}
	}
	return found
}

// indexWords lists the words of all names. The caller must hold mu.
func (s *speakers) indexWords() {
	s.words = []speakerWord{}
	for _, who := range s.byName {
		for _, w := range text.Words(who.name) {
			if !stopWords(w.Folded) {
				s.words = append(s.words, speakerWord{w.Folded, who})
			}
		}
	}
	slices.SortFunc(s.words, func(a, b speakerWord) int {
		return cmp.Or(cmp.Compare(a.word, b.word), cmp.Compare(a.of.name, b.of.name))
	})
}
