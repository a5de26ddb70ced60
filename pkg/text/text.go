// Package text is the one owner of text handling: clipping for display, folding and normalizing for comparison, and
// cutting into words, index terms and sentences. It keeps no state and reads no files.
package text

import (
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Cut returns the beginning of s: at most maxBytes bytes, never a part of a character; "" when maxBytes is 0 or less.
func Cut(s string, maxBytes int) string {
	if len(s) <= maxBytes {
		return s
	}
	end := max(maxBytes, 0)
	for back := 0; back < utf8.UTFMax && end > 0 && !utf8.RuneStart(s[end]); back++ {
		end--
	}
	return s[:end]
}

// CutWords is [Cut] that ends between words where s has a blank in the second half, without trailing punctuation. A
// text that fits is returned unchanged.
func CutWords(s string, maxBytes int) string {
	if len(s) <= maxBytes {
		return s
	}
	short := Cut(s, maxBytes)
	if i := strings.LastIndexByte(short, ' '); i > len(short)/2 && s[len(short)] != ' ' {
		short = short[:i]
	}
	return strings.TrimRight(short, " ,;:-")
}

// Clip is [Cut] that appends "..." when something is left out. The dots come on top of maxBytes.
func Clip(s string, maxBytes int) string {
	if len(s) <= maxBytes {
		return s
	}
	return Cut(s, maxBytes) + "..."
}

// OneLine returns s on one line, clipped to maxBytes like [Clip]: line breaks, control characters and other invisible
// characters become blanks, runs of blanks become one, and invalid bytes become "?".
func OneLine(s string, maxBytes int) string {
	s = ReplaceHidden(strings.ToValidUTF8(s, "?"), func(rune) rune { return ' ' })
	return Clip(strings.Join(strings.Fields(s), " "), maxBytes)
}

// IsVisible reports whether r shows on a screen. Variation selectors, fillers and the empty Braille cell do not,
// although Unicode counts them as printable.
func IsVisible(r rune) bool {
	return unicode.IsPrint(r) && r != '\u2800' &&
		!unicode.In(r, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point)
}

// IsASCII reports whether every byte of s is ASCII.
func IsASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// IsQuestion reports whether s holds a question mark of any script.
func IsQuestion(s string) bool { return strings.ContainsAny(s, "?？؟") }

// WordSet returns a function that reports whether a folded word is one of a list that is separated by white space. As
// with [Pattern], the list is read at the first call.
func WordSet(list string) func(folded string) bool {
	words := sync.OnceValue(func() map[string]bool {
		set := map[string]bool{}
		for w := range strings.FieldsSeq(list) {
			set[Fold(w)] = true
		}
		return set
	})
	return func(folded string) bool { return words()[folded] }
}
