package digest

import (
	"strings"
	"sync"
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

// plainName returns a name from the first question in asked, else its first sentence, without its opening phrases. A
// blank asked means said. It returns "untitled" when both are blank.
func plainName(asked, said string) string {
	source := asked
	if isBlank(source) {
		source = said
	}
	list := text.SentenceTexts(stripMarkdown(text.Cut(source, 4<<10)), 40)
	best := ""
	for _, t := range list {
		if best == "" || text.IsQuestion(t) && !text.IsQuestion(best) {
			if short := trimOpening(t); short != "" {
				best = t
			}
		}
	}
	name := firstWords(trimOpening(best))
	if name == "" {
		name = firstWords(strings.Join(strings.Fields(source), " "))
	}
	if isBlank(name) {
		return "untitled"
	}
	return name
}

// openingPhrases begin a question or a note and do not tell its topic. The longest that fits is dropped.
var openingPhrases = sync.OnceValue(func() (out [][]string) {
	for line := range strings.Lines(`hello|hi|hey|ok|okay|so|well|thanks|thank you|good morning|good evening|dear assistant
please|please could you|could you|could you please|can you|can you please|would you|would you please|will you|i want you to|i'd like you to
i want to know|i would like to know|i'd like to know|do you know|tell me|tell me about|explain|explain to me|show me|give me|let me know
remember|remember that|please remember|please remember that|note|note that|please note that|keep in mind that|save|save that|don't forget that
what is|what are|what was|what were|what's|who is|who are|who was|who were|who's|where is|where are|where was|where's|when is|when was|when did
which is|the|a|an|me|about|to know
was ist|was sind|wer ist|wer war|wo ist|bitte|kannst du|kannst du mir|sag mir|merke dir dass|der|die|das
qu'est-ce que|quel est|quelle est|qui est|s'il te plait|peux-tu|dis-moi
que es|cual es|quien es|donde esta|por favor|puedes|dime`) {
		for phrase := range strings.SplitSeq(strings.TrimSpace(line), "|") {
			out = append(out, strings.Fields(phrase))
		}
	}
	return out
})

// trimOpening returns a sentence without its opening phrases and end marks; a phrase that is all of the rest is kept.
// "How do I ...?" becomes "how to ...". "" when s has no word.
func trimOpening(s string) string {
	all := text.Words(s)
	from := 0
	for again := true; again; {
		again = false
		longest := 0
		for _, o := range openingPhrases() {
			if len(o) > longest && len(o) < len(all)-from && beginsWith(all[from:], o) {
				longest = len(o)
			}
		}
		if longest > 0 {
			from += longest
			again = true
		}
	}
	rest := all[from:]
	if len(rest) == 0 {
		return ""
	}
	if len(rest) > 3 && rest[0].Folded == "how" && (rest[1].Folded == "do" || rest[1].Folded == "can" ||
		rest[1].Folded == "should" || rest[1].Folded == "would") &&
		(rest[2].Folded == "i" || rest[2].Folded == "you" || rest[2].Folded == "we" || rest[2].Folded == "one") {
		return "how to " + trimEnd(s[rest[3].From:])
	}
	return trimEnd(s[rest[0].From:])
}

// beginsWith reports whether the words begin with phrase, whose words must be folded. phrase must not be longer than
// all.
func beginsWith(all []text.Word, phrase []string) bool {
	for i, w := range phrase {
		if all[i].Folded != w {
			return false
		}
	}
	return true
}

func trimEnd(s string) string { return strings.Trim(s, " .,:;!?？。！؟*#`_()[]-") }

// fillerWords begin sentences without content.
var fillerWords = text.WordSet(`sure certainly absolutely okay ok yes great thanks hello hi gerne klar naturlich`)

// plainDescription returns the first two sentences of the answer, or of the user's words when they hold no question or
// the answer is blank. Fillers such as "Sure!" are skipped. It has at most 300 bytes; "" when both are blank.
func plainDescription(asked, said string) string {
	order := []string{said, asked}
	if !text.IsQuestion(asked) { // "Noted." is not what was learned
		order = []string{asked, said}
	}
	for _, source := range order {
		list := text.SentenceTexts(stripMarkdown(text.Cut(source, 8<<10)), 12)
		for len(list) > 1 && isFiller(list[0]) {
			list = list[1:]
		}
		for i, t := range list {
			list[i] = strings.TrimLeft(t, "-*•· ")
		}
		if s := firstSentences(strings.Join(list, "\n"), 2, 300); !isBlank(s) {
			return s
		}
	}
	return shortLine(said, 300)
}

// isFiller reports whether a sentence is without content, such as "Sure!", "Great question!" or "Here is what I
// found:", or has no word.
func isFiller(s string) bool {
	all := text.Words(s)
	switch {
	case len(all) == 0:
		return true
	case strings.HasSuffix(s, ":") && (all[0].Folded == "here" || all[0].Folded == "here's" ||
		all[0].Folded == "below"):
		return true
	case len(all) > 4:
		return false
	}
	return fillerWords(all[0].Folded) || all[len(all)-1].Folded == "question" ||
		beginsWith(all, []string{"of", "course"}[:min(2, len(all))]) && len(all) > 1
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
