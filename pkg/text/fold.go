package text

import (
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// Fold returns s as words are compared: lower case, without accents and invisible characters, apostrophes as ASCII.
// Invalid bytes become blanks. Folding twice changes nothing. It does not map look-alike letters of other scripts:
// [Normalize] does.
func Fold(s string) string {
	if IsASCII(s) {
		return strings.ToLower(s)
	}
	// A pass may bring characters together that the next one composes.
	for range 4 {
		next := foldOnce(s)
		if next == s {
			break
		}
		s = next
	}
	return s
}

// foldOnce is one pass of [Fold]: it decomposes s, drops and spells out characters, and composes the rest.
func foldOnce(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for _, r := range norm.NFKD.String(strings.ToValidUTF8(s, " ")) {
		if IsFoldedAway(r) {
			continue
		}
		r = unicode.ToLower(r)
		if letters, ok := spellings[r]; ok {
			b.WriteString(letters)
			continue
		}
		b.WriteRune(r)
	}
	return norm.NFC.String(b.String()) // composes Korean syllables and voiced kana, which are letters and not accents
}

// spellings are letters that Unicode does not decompose, as they are written with an ASCII keyboard.
var spellings = map[rune]string{
	'ß': "ss", 'ς': "σ", 'ø': "o", 'ł': "l", 'đ': "d", 'ð': "d", 'þ': "th", 'æ': "ae", 'œ': "oe", 'ı': "i", 'ħ': "h",
	'ŧ': "t", 'ŋ': "n", 'ĸ': "k", 'ſ': "s",
	'’': "'", 'ʼ': "'", '‘': "'",
}

// IsFoldedAway reports whether Fold drops r: accents of scripts that are read without them too, and format characters.
// Other marks stay: they are vowels in Indic scripts and Thai, and make another syllable in Japanese.
func IsFoldedAway(r rune) bool {
	switch {
	case r < 0x300:
		return r == 0xad // soft hyphen
	case IsAccent(r):
		return true
	case r >= 0x483 && r <= 0x489, r >= 0x591 && r <= 0x5c7, r >= 0x610 && r <= 0x61a, r >= 0x64b &&
		r <= 0x65f, r >= 0x6d6 && r <= 0x6ed,
		r >= 0x1ab0 && r <= 0x1aff, r >= 0x1dc0 && r <= 0x1dff, r >= 0x20d0 && r <= 0x20ff, r >= 0xfe00 &&
			r <= 0xfe0f, r >= 0xfe20 && r <= 0xfe2f:
		return unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Me, r) || unicode.Is(unicode.Cf, r)
	case r == 0x640, r == 0x670: // Arabic: the line that only makes a word longer, and a vowel above
		return true
	}
	return unicode.Is(unicode.Cf, r) || r >= 0xe0100 && r <= 0xe01ef
}

// NameKey returns s as the knowledge graph stores and compares names: words of letters and digits with one blank
// between them, without case and accents. A character of an unspaced script is a word of its own, so that a name inside
// a longer text is found as a row of words in every script. It is "" for a text without letters and digits.
//
// It differs from [Fold] in what it drops, such as the marks on Japanese kana. Its results are stored: a change needs a
// migration of the stored keys.
func NameKey(s string) string {
	var b strings.Builder
	gap, alone := false, false
	for _, r := range norm.NFKD.String(strings.Map(foldCase, sharpS.Replace(norm.NFKD.String(s)))) {
		switch {
		case unicode.Is(unicode.Mn, r) && !isVowelMark(r):
			continue // an accent
		case !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r):
			gap = true
			continue
		}
		unspaced := IsUnspaced(r)
		if b.Len() > 0 && (gap || alone || unspaced) && !unicode.IsMark(r) {
			b.WriteByte(' ')
		}
		b.WriteRune(r)
		gap, alone = false, unspaced
	}
	return b.String()
}

var sharpS = strings.NewReplacer("\u00df", "ss", "\u1e9e", "ss")

// foldCase goes by way of the upper case, since some letters have two lower case forms.
func foldCase(r rune) rune { return unicode.ToLower(unicode.ToUpper(r)) }

// isVowelMark reports whether a combining mark is a vowel of its script: without it the word is another one.
func isVowelMark(r rune) bool {
	return unicode.In(r, unicode.Devanagari, unicode.Bengali, unicode.Tamil, unicode.Telugu, unicode.Kannada,
		unicode.Malayalam, unicode.Gujarati, unicode.Gurmukhi, unicode.Oriya,
		unicode.Sinhala, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar, unicode.Tibetan)
}
