// Package text makes what others wrote fit for a message to people: short, whole characters, one line.
package text

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clip is the beginning of s, at most most bytes and never a part of a character, with "..." behind it when something is
// left out.
func Clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	end := max(most, 0)
	for back := 0; back < utf8.UTFMax && end > 0 && !utf8.RuneStart(s[end]); back++ {
		end--
	}
	return s[:end] + "..."
}

// Seen reports whether a user sees r: it is printed, and it is none of the characters that count as printed and show
// nothing, such as variation selectors, fillers and the empty Braille cell.
func Seen(r rune) bool {
	return unicode.IsPrint(r) && r != '\u2800' && !unicode.In(r, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point)
}

// OneLine is s on one line: line breaks, control characters and all else that is not printed become blanks, several
// blanks become one, and bytes that are no text become "?". It is clipped to most bytes.
func OneLine(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if !Seen(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	return Clip(strings.Join(strings.Fields(s), " "), most)
}
