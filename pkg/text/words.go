package text

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Gap is the set of what stands between a word and the one before it.
type Gap uint8

const (
	GapEnd   Gap = 1 << iota // the beginning of the text, or the end of a sentence
	GapComma                 // a comma
	GapColon                 // a colon, a semicolon, a dash, a bracket
	GapQuote                 // a quotation mark
	GapLine                  // a line break
)

// Word is a word or a number of a text.
type Word struct {
	From, To int    // byte offsets in the text
	Folded   string // as [Fold] returns it
	Gap      Gap    // what stands before it
	IsUpper  bool   // begins with a capital letter
	IsNumber bool   // begins with a digit
}

// Words cuts s into words, in order. Apostrophes and hyphens between letters, and the points and separators of a
// number, belong to the word; each character of an unspaced script is a word of its own. Marks between words are kept
// only as the Gap of the next word, which is GapEnd for the first.
func Words(s string) []Word {
	out := make([]Word, 0, len(s)/5+1)
	gap := GapEnd
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if !IsWordRune(r) {
			i += size
			if g := gapOf(r); g&(GapEnd|GapColon) == 0 || endsClause(s[i:]) {
				gap |= g
			}
			continue
		}
		from := i
		i += size
		if !IsUnspaced(r) {
			i += wordLength(s[i:], r)
		}
		out = append(out, Word{
			From: from, To: i, Folded: Fold(s[from:i]), Gap: gap, IsUpper: unicode.IsUpper(r),
			IsNumber: unicode.IsDigit(r),
		})
		gap = 0
	}
	return out
}

// wordLength returns how many bytes of s belong to the word whose last character so far, prev, stands before s.
func wordLength(s string, prev rune) int {
	i := 0
	for i < len(s) {
		r, size := utf8.DecodeRuneInString(s[i:])
		if !IsWordRune(r) {
			next, _ := utf8.DecodeRuneInString(s[i+size:])
			letters := unicode.IsLetter(prev) && unicode.IsLetter(next) && (r == '\'' || r == '’' || r == '-')
			digits := unicode.IsDigit(prev) && unicode.IsDigit(next) && strings.ContainsRune(".,:/-", r)
			if !letters && !digits {
				break
			}
		} else if IsUnspaced(r) {
			break
		}
		prev = r
		i += size
	}
	return i
}

// IsWordRune reports whether r is part of a word: a letter, a number or a mark on one.
func IsWordRune(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r)
}

// IsUnspaced reports whether r is of a script that is written without blanks between words.
func IsUnspaced(r rune) bool {
	return r >= 0xE00 && unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao,
		unicode.Khmer, unicode.Myanmar)
}

// endsClause reports whether a mark before rest ends a clause: the point in "example.org" does not.
func endsClause(rest string) bool {
	r, _ := utf8.DecodeRuneInString(rest)
	return rest == "" || r != '/' && !unicode.IsLower(r) && !unicode.IsDigit(r)
}

// gapOf returns the kind of gap that the character r between words makes, 0 for blanks and other characters.
func gapOf(r rune) Gap {
	switch r {
	case '.', '!', '?', '…', '。', '！', '？', '؟', '।':
		return GapEnd
	case ',', '，', '、', '،':
		return GapComma
	case ':', ';', '—', '–', '(', ')', '[', ']', '{', '}', '|', '>', '：', '；', '=', '•', '*', '#':
		return GapColon
	case '"', '“', '”', '„', '«', '»', '‘', '`', '\'', '’', '「', '」', '『', '』':
		return GapQuote
	case '\n':
		return GapLine
	}
	return 0
}

// Stem returns a folded word without "'s" and without one common English ending, such as ing, ed, es, ly or e. Words
// under five bytes, and words that begin with a digit or a non-ASCII letter, lose only "'s". It makes no words, only
// keys to compare. [StemPlural] is the milder form for an index, where more words are confused with one another.
func Stem(w string) string {
	w = strings.TrimSuffix(w, "'s")
	if len(w) < 5 || w[0] >= utf8.RuneSelf || w[0] <= '9' {
		return w
	}
	for _, end := range []string{"ingly", "edly", "ing", "ies", "ied", "ed", "es", "s", "ly", "e"} {
		rest, ok := strings.CutSuffix(w, end)
		if !ok || len(rest) < 3 || end == "s" && strings.HasSuffix(rest, "s") {
			continue
		}
		if end == "ies" || end == "ied" {
			rest += "y"
		}
		// planned, running
		if n := len(rest); n > 3 && rest[n-1] == rest[n-2] && end != "s" && end != "es" && end != "e" {
			rest = rest[:n-1]
		}
		return strings.TrimSuffix(rest, "e")
	}
	return w
}
