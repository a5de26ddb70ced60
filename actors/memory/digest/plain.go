package digest

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/text"
)

// modelName returns a model's name for a text, shortened to maxNameWords and maxName; "" when it is blank or has more
// than twice as much.
func modelName(s string) string {
	s = strings.Trim(shortLine(s, 2*maxName), " .,:;\"'“”*#`_")
	if n := len(strings.Fields(s)); n > 2*maxNameWords || strings.HasSuffix(s, "...") || isBlank(s) {
		return ""
	}
	return firstWords(s)
}

// modelDescription returns the first 3 sentences of a model's description, at most maxDescription bytes; "" when it is
// blank or holds a number of more than two digits that source does not hold.
func modelDescription(s, source string) string {
	if s = shortLine(s, maxReply); isBlank(s) || !numbersOf(source).holdAll(s) {
		return ""
	}
	return firstSentences(s, 3, maxDescription)
}

// firstWords returns the beginning of s, at most maxNameWords words and maxName bytes (72 in scripts without blanks),
// without punctuation at its end.
func firstWords(s string) string {
	fields := strings.Fields(s)
	s = strings.Join(fields[:min(len(fields), maxNameWords)], " ")
	most := maxName
	if r, _ := utf8.DecodeRuneInString(s); text.IsUnspaced(r) { // a character says as much as a word
		most = 3 * 24
	}
	return strings.TrimRight(text.CutWords(s, most), " .,:;")
}

// firstSentences returns the beginning of s: at most n sentences and most bytes, cut between words if the first alone
// is longer.
func firstSentences(s string, n, most int) string {
	var out string
	for _, t := range text.SentenceTexts(s, n) {
		if out != "" && len(out)+len(t)+1 > most {
			break
		}
		out = strings.TrimSpace(out + " " + t)
	}
	return shortLine(out, most)
}

// plainName returns the beginning of the first question in asked, else of its first sentence. A blank asked means said.
// It returns "untitled" when both are blank.
func plainName(asked, said string) string {
	source := asked
	if isBlank(source) {
		source = said
	}
	best := ""
	for _, t := range text.SentenceTexts(stripMarkdown(text.Cut(source, 4<<10)), 40) {
		if best == "" || text.IsQuestion(t) && !text.IsQuestion(best) {
			best = t
		}
	}
	name := firstWords(strings.Trim(best, " .,:;!?？。！؟*#`_()[]-"))
	if name == "" {
		name = firstWords(strings.Join(strings.Fields(source), " "))
	}
	if isBlank(name) {
		return "untitled"
	}
	return name
}

// plainDescription returns the first two sentences of the answer, or of the user's words when they hold no question or
// the answer is blank. It has at most 300 bytes; "" when both are blank.
func plainDescription(asked, said string) string {
	order := []string{said, asked}
	if !text.IsQuestion(asked) { // "Noted." is not what was learned
		order = []string{asked, said}
	}
	for _, source := range order {
		list := text.SentenceTexts(stripMarkdown(text.Cut(source, 8<<10)), 12)
		for i, t := range list {
			list[i] = strings.TrimLeft(t, "-*•· ")
		}
		if s := firstSentences(strings.Join(list, "\n"), 2, 300); !isBlank(s) {
			return s
		}
	}
	return shortLine(said, 300)
}

// pieceName names a piece of a document by its title and the last of its headings, which are separated by > or /.
// Without either it is named by its text said. It has at most maxName bytes.
func pieceName(title, heading, said string) string {
	if i := strings.LastIndexAny(heading, ">/›"); i >= 0 {
		heading = strings.TrimSpace(heading[i:])
	}
	heading = strings.Trim(heading, " >/›#\uFFFD?")
	title = strings.Trim(title, " #")
	switch {
	case title == "" && heading == "":
		return plainName("", said)
	case heading == "" || strings.EqualFold(title, heading):
		return shortLine(title, maxName)
	case title == "":
		return shortLine(heading, maxName)
	}
	return shortLine(shortLine(title, maxName/2)+": "+heading, maxName)
}

// numberSet is the set of numbers that a text holds.
type numberSet map[string]bool

// numbersOf returns the numbers of s: of each word its digits without the marks that group them, and each run of
// digits.
func numbersOf(s string) numberSet {
	out := numberSet{}
	for _, w := range text.Words(s) {
		if strings.ContainsFunc(w.Folded, unicode.IsDigit) {
			out[onlyDigits(w.Folded)] = true
			for _, p := range strings.FieldsFunc(w.Folded, func(r rune) bool { return !unicode.IsDigit(r) }) {
				out[p] = true
			}
		}
	}
	return out
}

// holdAll reports whether every number of s with more than two digits is in the set, as a whole or each of its runs of
// digits. A text without numbers is held.
func (d numberSet) holdAll(s string) bool {
	for _, w := range text.Words(s) {
		if n := onlyDigits(w.Folded); len(n) > 2 && !d[n] {
			for _, p := range strings.FieldsFunc(w.Folded, func(r rune) bool { return !unicode.IsDigit(r) }) {
				if !d[p] {
					return false
				}
			}
		}
	}
	return true
}

// onlyDigits returns the digits of s, "" when it has none.
func onlyDigits(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return r
		}
		return -1
	}, s)
}
