package text

import (
	"unicode"
	"unicode/utf8"
)

// maxTerm is how many bytes of a term count. Longer runs are no words, such as keys or addresses, and their beginning
// tells them apart well enough.
const maxTerm = 48

// TermSplitter cuts text into the terms of a word index. It reuses its buffers: one goroutine at a time may use it.
type TermSplitter struct {
	term []byte
	run  []rune
}

// Each calls f with every folded term of s. The bytes are valid until f returns, and f may change them. A run of an
// unspaced script, or of Korean, whose endings stick to the word, becomes pairs of neighbouring characters. single
// marks one character beside the pairs it is part of: an index needs it, so that a search for one character finds it; a
// query does not.
func (t *TermSplitter) Each(s string, f func(term []byte, single bool)) {
	if !IsASCII(s) { // ASCII capitals are folded below
		s = Fold(s)
	}
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c < utf8.RuneSelf && !isTermByte(c):
			i++
		case c < utf8.RuneSelf:
			i = t.splitSpaced(s, i, f)
		default:
			r, size := utf8.DecodeRuneInString(s[i:])
			switch {
			case isPaired(r) && IsWordRune(r):
				i = t.splitPairs(s, i, f)
			case unicode.IsLetter(r) || unicode.IsNumber(r):
				i = t.splitSpaced(s, i, f)
			default:
				i += size
			}
		}
	}
}

// splitSpaced emits the word of a spaced script that begins at byte i and returns where it ends. A word longer than
// maxTerm bytes is cut. The single letters that an apostrophe leaves, as in "Anna's" and "l'eau", are no terms.
func (t *TermSplitter) splitSpaced(s string, i int, f func([]byte, bool)) int {
	t.term = t.term[:0]
	start := i
	for i < len(s) {
		c := s[i]
		if c < utf8.RuneSelf {
			if !isTermByte(c) {
				break
			}
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			t.term = append(t.term, c)
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if !IsWordRune(r) || isPaired(r) {
			break
		}
		t.term = append(t.term, s[i:i+size]...)
		i += size
	}
	if len(t.term) == 1 && (start > 0 && s[start-1] == '\'' || i < len(s) && s[i] == '\'') {
		return i
	}
	if len(t.term) > maxTerm {
		end := maxTerm
		for !utf8.RuneStart(t.term[end]) {
			end--
		}
		t.term = t.term[:end]
	}
	f(t.term, false)
	return i
}

// splitPairs emits the run of paired characters that begins at byte i and returns where it ends: every pair of
// neighbours, and single characters of Han and Hangul, or of a run of one.
func (t *TermSplitter) splitPairs(s string, i int, f func([]byte, bool)) int {
	t.run = t.run[:0]
	for i < len(s) {
		r, size := utf8.DecodeRuneInString(s[i:])
		if !isPaired(r) || !IsWordRune(r) {
			break
		}
		t.run = append(t.run, r)
		i += size
	}
	for j, r := range t.run {
		if len(t.run) == 1 || unicode.In(r, unicode.Han, unicode.Hangul) { // one of these can be a word
			f(utf8.AppendRune(t.term[:0], r), len(t.run) > 1)
		}
		if j+1 < len(t.run) {
			f(utf8.AppendRune(utf8.AppendRune(t.term[:0], r), t.run[j+1]), false)
		}
	}
	return i
}

// isPaired reports whether a run of characters such as r is indexed by pairs.
func isPaired(r rune) bool {
	return IsUnspaced(r) || r >= 0x1100 && unicode.Is(unicode.Hangul, r) || r == 'ー'
}

func isTermByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// StemPlural removes the ending of an English plural in place and returns the shorter term. Terms shorter than 4 bytes
// or with anything but ASCII lower-case letters stay as they are. It is coarse: query and index are stemmed alike, and
// a confusion costs rank only.
func StemPlural(term []byte) []byte {
	n := len(term)
	if n < 4 || term[n-1] != 's' {
		return term
	}
	for _, c := range term {
		if c < 'a' || c > 'z' {
			return term
		}
	}
	switch c := term[n-2]; {
	case c == 's' || c == 'u' || c == 'i': // glass, bonus, tennis
		return term
	case c == 'e' && n > 4:
		switch before := term[n-3]; {
		case before == 'i': // stories
			term[n-3] = 'y'
			return term[:n-2]
		case before == 'x' || before == 'h' && (term[n-4] == 'c' || term[n-4] == 's') || before == 's' &&
			term[n-4] == 's':
			// boxes, churches, dishes, glasses
			return term[:n-2]
		}
	}
	return term[:n-1]
}
