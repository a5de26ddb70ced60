package recall

import (
	"github.com/blevesearch/snowballstem"
	"github.com/blevesearch/snowballstem/english"
)

// stemmer reduces the words of an index and of queries to their Snowball stems: "hiking" and "hikes" become "hike". One
// goroutine at a time may use it; the zero value is ready.
//
// Every word is stemmed as English. That is coarse for other languages, but index and query are stemmed alike, and a
// short question does not tell its language: with a stemmer for each language a word would have two stems, one in the
// question and another in the entry.
type stemmer struct{ env snowballstem.Env }

// minStem is the shortest word with an ending to remove, in bytes.
const minStem = 3

// stem returns the stem of a folded term. Terms with anything but ASCII lower-case letters stay as they are.
func (s *stemmer) stem(term []byte) string {
	word := string(term)
	if len(word) < minStem {
		return word
	}
	for i := range len(word) {
		if word[i] < 'a' || word[i] > 'z' {
			return word
		}
	}
	s.env.SetCurrent(word)
	english.Stem(&s.env)
	return s.env.Current()
}
