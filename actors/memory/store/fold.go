package store

import (
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// fold is a text as names are compared: words of letters and digits with one blank between them, without case and accents.
// A character of a script that is written without blanks is a word of its own, so that a name inside a longer text is
// found as a row of words in every script.
func fold(s string) string {
	var b strings.Builder
	gap, alone := false, false
	for _, r := range norm.NFKD.String(strings.Map(small, noSharp.Replace(norm.NFKD.String(clean(s))))) {
		switch {
		case unicode.Is(unicode.Mn, r) && !indic(r):
			continue // an accent
		case !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r):
			gap = true
			continue
		}
		unspaced := unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar)
		if b.Len() > 0 && (gap || alone || unspaced) && !unicode.IsMark(r) {
			b.WriteByte(' ')
		}
		b.WriteRune(r)
		gap, alone = false, unspaced
	}
	return b.String()
}

// noSharp writes the one letter that becomes two.
var noSharp = strings.NewReplacer("\u00df", "ss", "\u1e9e", "ss")

// small is a letter without case. By way of the large one, since some have two small forms.
func small(r rune) rune { return unicode.ToLower(unicode.ToUpper(r)) }

// indic reports whether a mark is a vowel of its script and no accent: taking it off would make other words.
func indic(r rune) bool {
	return unicode.In(r, unicode.Devanagari, unicode.Bengali, unicode.Tamil, unicode.Telugu, unicode.Kannada, unicode.Malayalam, unicode.Gujarati, unicode.Gurmukhi, unicode.Oriya,
		unicode.Sinhala, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar, unicode.Tibetan)
}

// padded has a blank at both ends, so that whole words are found in it.
func padded(folded string) string { return " " + folded + " " }
