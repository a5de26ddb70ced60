package orchestrator

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/text"
)

// The orchestrator's own prompts hold no text of tools, files, pages and memories. A summary of an agent is made by a model that
// has read such text, and that model may be mistaken or misled. So a summary passes a filter by words, which trusts no model: a
// word that the agents have read in a result is replaced, unless the user or the plan used it before or it says nothing by itself.

// hiddenWord stands for the words that the filter removed.
const hiddenWord = "…"

const (
	minContained = 5       // letters of a word of a result that may not be part of a longer word
	maxRaw       = 4 << 20 // bytes of results that a filter compares with; more hides every word that is not allowed
	maxFiltered  = 600     // bytes of a filtered summary
)

// filter removes words of results from summaries. The zero value removes every word that is not common.
type filter struct {
	ready   bool
	raw     string          // letters and digits of all results, folded, without anything between them
	words   []string        // words of the results with minContained letters or more
	allowed map[string]bool // words of the user and of the plan
}

// newFilter is a filter against the texts in raw. allowed are texts of the user and the plan: their words are kept.
func newFilter(raw []string, allowed ...string) *filter {
	f := &filter{ready: true, allowed: map[string]bool{}}
	for _, s := range allowed {
		for w := range splitWords(s) {
			f.allowed[squeeze(w)] = true
		}
	}
	var all strings.Builder
	seen := map[string]bool{}
	for _, s := range raw {
		if all.Len()+len(s) > maxRaw {
			return &filter{allowed: f.allowed}
		}
		for w := range splitWords(s) {
			w = squeeze(w)
			all.WriteString(w)
			if utf8.RuneCountInString(w) >= minContained && !seen[w] && !f.allowed[w] && !commonWords[w] {
				f.words = append(f.words, w)
			}
			seen[w] = true
		}
		all.WriteByte(' ') // nothing is a part of two results
	}
	f.raw = all.String()
	return f
}

// apply returns s on one line with hiddenWord for each run of words that may not be shown, and without characters that are
// neither words nor plain punctuation.
func (f *filter) apply(s string) string {
	var b strings.Builder
	hidden := false // the last word was hidden
	end := 0
	for w, from := range splitWords(s) {
		if f.keeps(squeeze(w)) {
			b.WriteString(plainMarks(s[end:from]))
			b.WriteString(w)
			hidden = false
		} else if !hidden {
			b.WriteString(plainMarks(s[end:from]))
			b.WriteString(hiddenWord)
			hidden = true
		}
		end = from + len(w)
	}
	b.WriteString(plainMarks(s[end:]))
	return text.OneLine(b.String(), maxFiltered)
}

// keeps reports whether a squeezed word may be shown.
func (f *filter) keeps(w string) bool {
	switch {
	case w == "":
		return false
	case f.allowed[w] || commonWords[w]:
		return true
	case !f.ready || strings.Contains(f.raw, w):
		return false
	}
	for _, raw := range f.words {
		if strings.Contains(w, raw) {
			return false
		}
	}
	return true
}

// splitWords yields the words of s, runs of letters, digits and marks, with their byte offsets. Invisible characters do not
// end a word. Each character of a script without blanks is a word of its own, so that no run of them hides another.
func splitWords(s string) func(func(string, int) bool) {
	return func(yield func(string, int) bool) {
		from := -1
		for i, r := range s {
			word := text.IsWordRune(r) || from >= 0 && text.IsInvisible(r)
			if from >= 0 && (!word || text.IsUnspaced(r)) {
				if !yield(s[from:i], from) {
					return
				}
				from = -1
			}
			if !word {
				continue
			}
			if text.IsUnspaced(r) {
				if !yield(string(r), i) {
					return
				}
				continue
			}
			if from < 0 {
				from = i
			}
		}
		if from >= 0 {
			yield(s[from:], from)
		}
	}
}

// squeeze returns the letters and digits of a word as words are compared: look-alikes and compatibility forms as plain letters,
// without case, accents and invisible characters.
func squeeze(w string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r) {
			return r
		}
		return -1
	}, text.Fold(text.Normalize(text.Fold(w))))
}

// plainMarks returns what stands between words: plain punctuation as it is, everything else as a blank.
func plainMarks(s string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(" .,;:!?()/-'\"\n", r) {
			return r
		}
		return ' '
	}, s)
}

// commonWords say nothing by themselves: articles, pronouns, prepositions and auxiliaries of a few languages.
var commonWords = text.WordSet(`
a an the this that these those it its he she his her they them their there here
is are was were be been being am do does did have has had will would can could may might must shall should
and or but if then than so because as of at by for with about into to from in on out over under up down off
not no nor all any both each few more most other some such only also very too just
one two three four five six seven eight nine ten
der die das den dem des ein eine einen einem einer und oder aber nicht kein keine ist sind war waren wird werden hat haben
mit von zu zum zur im in am an auf aus bei nach vor es er sie wir
le la les un une des du de et ou mais ne pas est sont etait dans sur avec pour par il elle ils elles ce cette
el los las una y o pero es son en con por para que se lo
`)
