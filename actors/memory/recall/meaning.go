package recall

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/text"
)

// Vectors of two questions are near to each other when they are about the same. That is not yet the same question: "what
// did Anna say before May" and "what did Ben say after May" are close. So the words in which such questions differ must be
// the same, and in the same order, before one is answered with the result of the other. It is strict on purpose: a word too
// many costs a search.

// pivots are words that turn a question into another one, with the form in which they are compared. Small words of other
// languages than English are those of negation only.
var pivots = func() map[string]string {
	all := map[string]string{}
	for form, words := range map[string]string{
		"not":    "not no nor never none nobody nothing neither without cannot isnt arent wasnt werent dont doesnt didnt wont wouldnt cant couldnt shouldnt hasnt havent hadnt except unless nicht kein keine keinen keiner keines nie ohne pas jamais sans aucun aucune nunca sin ningun ninguna nada nao sem non mai senza niet geen nooit zonder не нет ни без",
		"was":    "was were did had been used formerly ago yesterday",
		"will":   "will would shall going tomorrow",
		"before": "before earlier until till",
		"after":  "after later since",
		"what":   "what which",
		"now":    "now current currently",
	} {
		for _, w := range strings.Fields(words) {
			all[w] = form
		}
	}
	for _, w := range strings.Fields(`
		i my mine myself you your yours he him his she her hers we us our ours they them their theirs
		who whom whose when where why how
		more less most least fewer many much first last latest newest oldest next previous recent best worst better worse
		all any every each both either only other another else same different instead than versus
		and or but if between during within from to into by over under above below with against for
		today old new
	`) {
		all[w] = w
	}
	return all
}()

// clipped are the ends of words that stand for another word: what's, I'm, you'll.
var clipped = setOf("s m d ll ve re")

// guard is the words of text that must be the same in two questions that are taken for each other: pivots, whatever has a
// digit, what is quoted, names as far as a capital letter shows them, signs such as + and %, and all text of scripts without
// capital letters. The first word may have its capital from the sentence, so it always counts unless it is a common one.
func guard(s string) string {
	if len(s) > mostQuery {
		return s // nobody says so much twice in other words
	}
	var out []string
	first, word := true, ""
	for s != "" {
		if inside, rest, ok := quoted(s, word != ""); ok {
			out = append(out, `"`+strings.Join(strings.Fields(text.Fold(inside)), " ")+`"`)
			s, first, word = rest, false, ""
			continue
		}
		r, size := utf8.DecodeRuneInString(s)
		if !text.IsWordRune(r) {
			if unicode.IsSymbol(r) || strings.ContainsRune(`#%&@*\/`, r) {
				out = append(out, string(r))
			}
			s, word = s[size:], ""
			continue
		}
		word = s[:wordEnd(s)]
		s = s[len(word):]
		if w := guarded(word, first); w != "" {
			out = append(out, w)
		}
		first = false
	}
	return strings.Join(out, " ")
}

// guarded is how a word is compared; "" = it need not be.
func guarded(word string, first bool) string {
	plain := text.Fold(word)
	if before, _, ok := strings.Cut(plain, "n't"); ok && before != "" {
		return pivots["not"]
	}
	if at := strings.LastIndexByte(plain, '\''); at >= 0 && clipped[plain[at+1:]] {
		plain = plain[:at]
	}
	switch form := pivots[strings.ReplaceAll(plain, "'", "")]; {
	case form != "":
		return form
	case !common[plain] && (first || marked(word)):
		return plain
	}
	return ""
}

// wordEnd is where the word at the beginning of text ends. An apostrophe between letters is part of it.
func wordEnd(s string) (end int) {
	for i, r := range s {
		switch {
		case text.IsWordRune(r) || text.IsFoldedAway(r):
			end = i + utf8.RuneLen(r)
		case i == end && (r == '\'' || r == '’'):
		default:
			return end
		}
	}
	return end
}

// marked reports whether a word must be the same wherever it stands.
func marked(word string) bool {
	for _, r := range word {
		if unicode.IsUpper(r) || unicode.IsTitle(r) || unicode.IsNumber(r) || unicode.Is(unicode.Lo, r) {
			return true
		}
	}
	return false
}

// quotes are the marks that people quote with, each with those that end it.
var quotes = map[rune]string{'"': `"`, '“': "”\"“", '„': "“”", '«': "»", '»': "«", '‹': "›", '「': "」", '『': "』", '`': "`", '\'': "'", '‘': "’'"}

// quoted is what is quoted at the beginning of text, and what comes behind it. behind says that a word ends where text
// begins: an apostrophe there opens nothing.
func quoted(s string, behind bool) (inside, rest string, ok bool) {
	r, size := utf8.DecodeRuneInString(s)
	ends, ok := quotes[r]
	if !ok || r == '\'' && behind {
		return "", "", false
	}
	for at, end := range s[size:] {
		if !strings.ContainsRune(ends, end) {
			continue
		}
		inside, rest = s[size:size+at], s[size+at+utf8.RuneLen(end):]
		if next, _ := utf8.DecodeRuneInString(rest); (end == '\'' || end == '’') && text.IsWordRune(next) {
			continue // an apostrophe within a word ends nothing
		}
		return inside, rest, true
	}
	return "", "", false
}

// telling is the words of a query that tell what it is about, sorted; when it has no such words, all of them.
func telling(query string) []string {
	if list := wordsOf(query, func(word []byte) bool { return !common[string(word)] }); len(list) > 0 {
		return list
	}
	return wordsOf(query, nil)
}

// wordsOf is the words of a text that count, sorted; nil = all of them.
func wordsOf(s string, counts func(word []byte) bool) (list []string) {
	var split text.TermSplitter
	split.Each(s[:min(len(s), mostWritten)], func(word []byte, _ bool) {
		if counts == nil || counts(word) {
			list = append(list, string(text.StemPlural(word)))
		}
	})
	slices.Sort(list)
	return slices.Compact(list)
}

// mostWritten is how many bytes of a text are compared with the queries: more than are indexed of a row.
const mostWritten = 8 << 10
