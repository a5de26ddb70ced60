package recall

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// longestWord is how many bytes of a word count. What is longer is no word, such as a key or an address, and its beginning
// tells it from others well enough.
const longestWord = 48

// fold is text as words are compared: small letters, without accents, and without what nobody sees. Folding twice changes
// nothing.
func fold(text string) string {
	if ascii(text) {
		return strings.ToLower(text)
	}
	// What one pass takes away may bring characters together that the next one composes.
	for range 4 {
		next := foldOnce(text)
		if next == text {
			break
		}
		text = next
	}
	return text
}

func foldOnce(text string) string {
	var b strings.Builder
	b.Grow(len(text))
	for _, r := range norm.NFKD.String(strings.ToValidUTF8(text, " ")) {
		if dropped(r) {
			continue
		}
		r = unicode.ToLower(r)
		if as, ok := alike[r]; ok {
			b.WriteString(as)
			continue
		}
		b.WriteRune(r)
	}
	return norm.NFC.String(b.String()) // Korean syllables and voiced kana were taken apart too: they are letters, no accents
}

// alike are letters that Unicode does not take apart, as people without the right keyboard write them.
var alike = map[rune]string{
	'ß': "ss", 'ς': "σ", 'ø': "o", 'ł': "l", 'đ': "d", 'ð': "d", 'þ': "th", 'æ': "ae", 'œ': "oe", 'ı': "i", 'ħ': "h", 'ŧ': "t", 'ŋ': "n", 'ĸ': "k", 'ſ': "s",
	'’': "'", 'ʼ': "'", '‘': "'",
}

// dropped reports whether r does not count: accents of scripts that are read without them too, and what is not seen.
// Other marks stay. They are vowels in India and Thailand, and in Japan they make another syllable.
func dropped(r rune) bool {
	switch {
	case r < 0x300:
		return r == 0xad // soft hyphen
	case r <= 0x36f:
		return true
	case r >= 0x483 && r <= 0x489, r >= 0x591 && r <= 0x5c7, r >= 0x610 && r <= 0x61a, r >= 0x64b && r <= 0x65f, r >= 0x6d6 && r <= 0x6ed,
		r >= 0x1ab0 && r <= 0x1aff, r >= 0x1dc0 && r <= 0x1dff, r >= 0x20d0 && r <= 0x20ff, r >= 0xfe00 && r <= 0xfe0f, r >= 0xfe20 && r <= 0xfe2f:
		return unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Me, r) || unicode.Is(unicode.Cf, r)
	case r == 0x640, r == 0x670: // Arabic: a line that only makes a word longer, and a vowel above
		return true
	}
	return unicode.Is(unicode.Cf, r) || r >= 0xe0100 && r <= 0xe01ef
}

// unspaced reports whether r is of a script that is written without blanks between words, or, as Korean, with endings
// that stick to the word. Such text is cut into pairs of characters.
func unspaced(r rune) bool {
	if r < 0xe00 {
		return false
	}
	return r == 'ー' || unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar)
}

// syllabic reports whether one character of an unspaced script can be a word.
func syllabic(r rune) bool { return unicode.In(r, unicode.Han, unicode.Hangul) }

// splitter cuts text into words. It is kept to be used again, and by one goroutine at a time.
type splitter struct {
	word []byte
	run  []rune
}

// each calls f with every word of text, as words are compared. The bytes are good until f returns. single marks one
// character of an unspaced script beside the pairs that it is part of: it is wanted in an index, where a search for one
// character must find it, and in a search only when the character stands alone.
func (s *splitter) each(text string, f func(word []byte, single bool)) {
	if !ascii(text) { // capital ASCII letters are folded on the way
		text = fold(text)
	}
	for i := 0; i < len(text); {
		c := text[i]
		switch {
		case c < utf8.RuneSelf && !wordByte(c):
			i++
		case c < utf8.RuneSelf:
			i = s.spaced(text, i, f)
		default:
			r, size := utf8.DecodeRuneInString(text[i:])
			switch {
			case unspaced(r) && wordRune(r):
				i = s.pairs(text, i, f)
			case unicode.IsLetter(r) || unicode.IsNumber(r):
				i = s.spaced(text, i, f)
			default:
				i += size
			}
		}
	}
}

// spaced is a word of a script with blanks: letters, digits and the marks on them.
func (s *splitter) spaced(text string, i int, f func([]byte, bool)) int {
	s.word = s.word[:0]
	start := i
	for i < len(text) {
		c := text[i]
		if c < utf8.RuneSelf {
			if !wordByte(c) {
				break
			}
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			s.word = append(s.word, c)
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		if !wordRune(r) || unspaced(r) {
			break
		}
		s.word = append(s.word, text[i:i+size]...)
		i += size
	}
	// What is left of "Anna's", "don't" and "l'eau" beside the word is none.
	if len(s.word) == 1 && (start > 0 && text[start-1] == '\'' || i < len(text) && text[i] == '\'') {
		return i
	}
	if len(s.word) > longestWord {
		end := longestWord
		for !utf8.RuneStart(s.word[end]) {
			end--
		}
		s.word = s.word[:end]
	}
	f(s.word, false)
	return i
}

// pairs is a stretch of an unspaced script: each two neighbours, and each character that can be a word.
func (s *splitter) pairs(text string, i int, f func([]byte, bool)) int {
	s.run = s.run[:0]
	for i < len(text) {
		r, size := utf8.DecodeRuneInString(text[i:])
		if !unspaced(r) || !wordRune(r) {
			break
		}
		s.run = append(s.run, r)
		i += size
	}
	for j, r := range s.run {
		if len(s.run) == 1 || syllabic(r) {
			f(utf8.AppendRune(s.word[:0], r), len(s.run) > 1)
		}
		if j+1 < len(s.run) {
			f(utf8.AppendRune(utf8.AppendRune(s.word[:0], r), s.run[j+1]), false)
		}
	}
	return i
}

// wordByte reports whether an ASCII character is part of a word.
func wordByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// wordRune reports whether any other character is part of a word.
func wordRune(r rune) bool { return unicode.In(r, unicode.L, unicode.N, unicode.M) }

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// stem takes the ending of an English plural away, so that dogs are found by dog. It is coarse: both sides are treated alike, and
// what it confuses is confused in the rank only. Words of other languages and words with digits stay as they are.
func stem(w []byte) []byte {
	n := len(w)
	if n < 4 || w[n-1] != 's' {
		return w
	}
	for _, c := range w {
		if c < 'a' || c > 'z' {
			return w
		}
	}
	switch c := w[n-2]; {
	case c == 's' || c == 'u' || c == 'i': // glass, bonus, tennis
		return w
	case c == 'e' && n > 4:
		switch before := w[n-3]; {
		case before == 'i': // stories
			w[n-3] = 'y'
			return w[:n-2]
		case before == 'x' || before == 'h' && (w[n-4] == 'c' || w[n-4] == 's') || before == 's' && w[n-4] == 's': // boxes, churches, dishes, glasses
			return w[:n-2]
		}
	}
	return w[:n-1]
}
