package orchestrator

import (
	"strings"
	"unicode"

	"conclave/pkg/text"
)

// The orchestrator's own prompts hold no text of tools, files, pages and memories. A summary of an agent is made by a
// model that has read such text, and that model may be mistaken or misled. So a summary passes a filter by words, which
// trusts no model: a word is kept only when the user or the plan used it, or when it says nothing by itself. A
// comparison with the texts that the agent has read would not be enough: a misled model misspells, translates or
// describes an image.

// hiddenWord stands for the words that the filter removed.
const hiddenWord = "…"

// maxFiltered bounds a filtered summary, in bytes.
const maxFiltered = 600

// filter removes words from summaries. The zero value removes every word that is not common.
type filter struct {
	allowed map[string]bool // words of the user and of the plan
}

// newFilter is a filter that keeps the words of allowed, texts of the user and the plan.
func newFilter(allowed ...string) filter {
	f := filter{allowed: map[string]bool{}}
	for _, s := range allowed {
		for w := range splitWords(s) {
			f.allowed[foldWord(w)] = true
		}
	}
	return f
}

// apply returns s on one line with hiddenWord for each run of words that may not be shown, and without characters that
// are neither words nor plain punctuation. A long text ends after a whole word, so that no part of a word reads as
// another.
func (f filter) apply(s string) string {
	var b strings.Builder
	hidden := false // the last word was hidden
	end := 0
	for w, from := range splitWords(s) {
		marks, shown := plainMarks(s[end:from]), hiddenWord
		end = from + len(w)
		if f.keeps(foldWord(w)) {
			shown = text.ReplaceHidden(w, func(rune) rune { return -1 })
		} else if hidden {
			continue
		}
		hidden = shown == hiddenWord
		if b.Len()+len(marks)+len(shown) > maxFiltered {
			b.WriteString(hiddenWord)
			return text.OneLine(b.String(), b.Len())
		}
		b.WriteString(marks)
		b.WriteString(shown)
	}
	b.WriteString(plainMarks(s[end:]))
	return text.OneLine(b.String(), maxFiltered)
}

// keeps reports whether a squeezed word may be shown.
func (f filter) keeps(w string) bool { return w != "" && (f.allowed[w] || commonWords(w)) }

// splitWords yields the words of s, runs of letters, digits and marks, with their byte offsets. Invisible characters do
// not end a word. Each character of a script without blanks is a word of its own, so that no run of them hides another.
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

// foldWord returns the letters and digits of a word as words are compared: look-alikes and compatibility forms as plain
// letters, without case, accents and invisible characters.
func foldWord(w string) string {
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

// commonWords say nothing by themselves: articles, pronouns, prepositions and auxiliaries of a few languages, and the
// words in which agents report what became of a subtask.
var commonWords = text.WordSet(`
success succeeded failed failure partial done finished complete completed incomplete verified inferred uncertain unknown
found missing empty exists result results answer answers reason error errors timeout denied refused approved approval
file files folder page pages search searched source sources memory test tests program output
read written wrote created changed checked passed ran run tried retried could because without
a an the this that these those it its he she his her they them their there here
is are was were be been being am do does did have has had will would can could may might must shall should
and or but if then than so because as of at by for with about into to from in on out over under up down off
not no nor all any both each few more most other some such only also very too just
one two three four five six seven eight nine ten
der die das den dem des ein eine einen einem einer und oder aber nicht kein keine ist sind war waren wird
werden hat haben
mit von zu zum zur im in am an auf aus bei nach vor es er sie wir
le la les un une des du de et ou mais ne pas est sont etait dans sur avec pour par il elle ils elles ce cette
el los las una y o pero es son en con por para que se lo
`)
