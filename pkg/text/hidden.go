package text

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Characters without a width that belong to the spelling of some texts.
const (
	nonJoiner     = '\u200c'
	joiner        = '\u200d'
	textStyle     = '\ufe0e'
	emojiStyle    = '\ufe0f'
	keycap        = '\u20e3'
	leastSkinTone = 0x1F3FB
	mostSkinTone  = 0x1F3FF
)

// joiningScripts are scripts in which joiners are part of the spelling.
var joiningScripts = []*unicode.RangeTable{
	unicode.Arabic, unicode.Syriac, unicode.Nko, unicode.Mongolian, unicode.Devanagari, unicode.Bengali,
	unicode.Gurmukhi, unicode.Gujarati, unicode.Oriya,
	unicode.Tamil, unicode.Telugu, unicode.Kannada, unicode.Malayalam, unicode.Sinhala, unicode.Khmer, unicode.Myanmar,
	unicode.Tibetan,
}

// ReplaceHidden returns s with every rune r that [IsVisible] rejects replaced by replace(r); a negative result drops
// it. Joiners and variation selectors stay where they change how their neighbours look: a single one after a letter of
// a script that uses joiners, between two emoji, or behind a symbol with two styles. Elsewhere they only hide text or
// differences between texts. Words and names that are compared need [IsVisible] instead.
func ReplaceHidden(s string, replace func(r rune) rune) string {
	var b strings.Builder
	b.Grow(len(s))
	before := rune(-1) // the rune before, -1 when that was replaced
	for i, r := range s {
		if !IsVisible(r) {
			_, size := utf8.DecodeRuneInString(s[i:])
			after, _ := utf8.DecodeRuneInString(s[i+size:])
			if !isShaping(before, r, after) {
				if r = replace(r); r >= 0 {
					b.WriteRune(r)
				}
				before = -1
				continue
			}
		}
		b.WriteRune(r)
		before = r
	}
	return b.String()
}

// IsShaping reports whether r can be kept by [ReplaceHidden], depending on the runes around it.
func IsShaping(r rune) bool {
	return r == joiner || r == nonJoiner || r == textStyle || r == emojiStyle
}

// isShaping reports whether r changes how before and after look; before is -1 and after is [utf8.RuneError] when there
// is none.
func isShaping(before, r, after rune) bool {
	switch r {
	case joiner, nonJoiner:
		if unicode.In(before, joiningScripts...) && unicode.In(before, unicode.L, unicode.M) {
			return !IsShaping(after)
		}
		return r == joiner && isEmoji(before) && isEmoji(after)
	case textStyle, emojiStyle:
		isKey := before >= '0' && before <= '9' || before == '#' || before == '*'
		return isKey && after == keycap || isEmoji(before) && before != emojiStyle && before != textStyle
	}
	return false
}

// isEmoji reports whether r can be part of an emoji: a symbol, an arrow, a skin tone or the style of one of them.
func isEmoji(r rune) bool {
	return unicode.Is(unicode.So, r) && r != utf8.RuneError || r >= 0x2190 && r <= 0x21FF || r >= leastSkinTone &&
		r <= mostSkinTone || r == emojiStyle
}
