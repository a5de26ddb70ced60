package recall

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/text"
)

// Vectors of two questions are near to each other when they are about the same. That is not yet the same question:
// "what did Anna say before May" and "what did Ben say after May" are close. So the words in which such questions
// differ must be the same, and in the same order, before one is answered with the result of the other. It is strict on
// purpose: a word too many costs a search.

// pivots are words that turn a question into another one, each with the form in which it is compared. Of languages
// other than English only negations are listed.
var pivots = func() map[string]string {
	all := map[string]string{}
	for form, words := range map[string]string{
		"not": "not no nor never none nobody nothing neither without cannot isnt arent wasnt werent dont doesnt " +
			"didnt wont wouldnt cant couldnt shouldnt hasnt havent hadnt except unless nicht kein keine keinen " +
			"keiner keines nie ohne pas jamais sans aucun aucune nunca sin ningun ninguna nada nao sem non mai senza " +
			"niet geen nooit zonder не нет ни без",
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

// contractions are word endings that stand for another word: what's, I'm, you'll.
var contractions = text.WordSet("s m d ll ve re")

// guardWords returns the words that must be equal in two questions before one is answered with the result of the other,
// in order and joined by blanks: pivots, anything with a digit, quotations, capitalized names, signs such as + and %,
// and text of scripts without capitals. The first word may owe its capital to the sentence, so it counts unless it is a
// stop word. A text of more than maxQueryBytes is returned whole: it only equals itself.
func guardWords(s string) string {
	if len(s) > maxQueryBytes {
		return s // nobody says so much twice in other words
	}
	var out []string
	first, word := true, ""
	for s != "" {
		if inside, rest, ok := cutQuotation(s, word != ""); ok {
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
		if w := guardForm(word, first); w != "" {
			out = append(out, w)
		}
		first = false
	}
	return strings.Join(out, " ")
}

// guardForm returns the form in which a word is compared, "" when it need not be equal. first means that it begins the
// question. Negations such as "don't" have one form, and endings such as 's are dropped.
func guardForm(word string, first bool) string {
	plain := text.Fold(word)
	if before, _, ok := strings.Cut(plain, "n't"); ok && before != "" {
		return pivots["not"]
	}
	if at := strings.LastIndexByte(plain, '\''); at >= 0 && contractions(plain[at+1:]) {
		plain = plain[:at]
	}
	switch form := pivots[strings.ReplaceAll(plain, "'", "")]; {
	case form != "":
		return form
	case !stopWords(plain) && (first || isDistinctive(word)):
		return plain
	}
	return ""
}

// wordEnd returns where the word at the beginning of s ends, 0 when there is none. An apostrophe between letters is
// part of it.
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

// isDistinctive reports whether a word must be equal wherever it stands: it holds a capital, a digit or a letter of a
// script without capitals.
func isDistinctive(word string) bool {
	for _, r := range word {
		if unicode.IsUpper(r) || unicode.IsTitle(r) || unicode.IsNumber(r) || unicode.Is(unicode.Lo, r) {
			return true
		}
	}
	return false
}

// quotes are the marks that people quote with, each with those that end it.
var quotes = map[rune]string{
	'"': `"`, '“': "”\"“", '„': "“”", '«': "»", '»': "«", '‹': "›", '「': "」", '『': "』",
	'`': "`", '\'': "'", '‘': "’'",
}

// cutQuotation returns the text of the quotation at the beginning of s, without its marks, and the rest. It is not ok
// when none begins there or it is never closed. behind means that a word ends before s: an apostrophe there opens
// nothing.
func cutQuotation(s string, behind bool) (inside, rest string, ok bool) {
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
