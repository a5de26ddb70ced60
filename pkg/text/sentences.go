package text

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxSentence is the number of bytes after which a sentence that does not end is cut.
const maxSentence = 1000

// Span is a part of a text, in byte offsets.
type Span struct{ From, To int }

// Sentences cuts s into at most limit sentences, without blanks at their ends, and leaves out the rest. A line break
// ends a sentence only when the next line begins like a new one, so that hard line breaks do not tear a sentence apart.
// A point of an abbreviation or initial ends none. A sentence longer than maxSentence bytes is cut between words.
func Sentences(s string, limit int) []Span {
	var out []Span
	from := 0
	add := func(to int) {
		if span := trimSpan(s, from, to); span.From < span.To && len(out) < limit {
			out = append(out, span)
		}
		from = to
	}
	for i := 0; i < len(s) && len(out) < limit; {
		r, size := utf8.DecodeRuneInString(s[i:])
		i += size
		switch r {
		case '\n':
			if beginsSentence(s, i) {
				add(i)
			}
		case '。', '！', '？', '।', '؟', '۔', '\u2029':
			i += closingLength(s[i:])
			add(i)
		case '.', '!', '?', '…':
			i += closingLength(s[i:])
			if i < len(s) && !startsWithSpace(s[i:]) {
				break
			}
			if r != '.' || !endsAbbreviated(s[from:i]) {
				add(i)
			}
		}
		if i-from > maxSentence {
			n := len(CutWords(s[from:i], maxSentence))
			if n == 0 { // nothing but punctuation
				n = len(Cut(s[from:i], maxSentence))
			}
			add(from + n)
			i = from
		}
	}
	add(len(s))
	return out
}

// SentenceTexts returns at most limit sentences of s, each on one line.
func SentenceTexts(s string, limit int) []string {
	spans := Sentences(s, limit)
	out := make([]string, len(spans))
	for i, p := range spans {
		out[i] = strings.Join(strings.Fields(s[p.From:p.To]), " ")
	}
	return out
}

// trimSpan returns the span of s[from:to] without blanks, tabs and line feeds at both ends; it is empty when there is
// nothing else.
func trimSpan(s string, from, to int) Span {
	for from < to && strings.IndexByte(" \n\t", s[from]) >= 0 {
		from++
	}
	for to > from && strings.IndexByte(" \n\t", s[to-1]) >= 0 {
		to--
	}
	return Span{from, to}
}

func startsWithSpace(s string) bool {
	r, _ := utf8.DecodeRuneInString(s)
	return unicode.IsSpace(r)
}

// closingLength returns how many bytes of s still belong to the sentence that ends before s: more end marks, closing
// quotes and brackets.
func closingLength(s string) int {
	return len(s) - len(strings.TrimLeft(s, ".!?…。！？\"'”’»)]*_」』"))
}

// beginsSentence reports whether the line that begins at byte i of s begins a sentence: it is empty, follows a colon,
// or does not begin with a lower-case letter or "(".
func beginsSentence(s string, i int) bool {
	rest := strings.TrimLeft(s[i:], " \t")
	if rest == "" || rest[0] == '\n' {
		return true
	}
	if strings.HasSuffix(strings.TrimRight(s[:i], " \t\n"), ":") {
		return true
	}
	r, _ := utf8.DecodeRuneInString(rest)
	return !unicode.IsLower(r) && r != '('
}

// abbreviations end with a point and end no sentence.
var abbreviations = WordSet(`mr mrs ms dr prof st jr sr vs etc e.g i.e cf no nr fig al approx ca dept est
inc ltd co corp bzw usw z.b d.h u.a vgl
	jan feb mar apr jun jul aug sep sept oct nov dec p pp vol ed m mme mlle sra a.m p.m u.s u.k`)

// endsAbbreviated reports whether the point at the end of s belongs to an abbreviation, an initial (but "I"), or a
// number of at most two digits at the beginning of s.
func endsAbbreviated(s string) bool {
	s = strings.TrimSuffix(s, ".")
	at := strings.LastIndexFunc(s, func(r rune) bool { return unicode.IsSpace(r) || r == '(' })
	word := strings.ToLower(s[at+1:])
	switch {
	case word == "":
		return false
	case abbreviations(word):
		return true
	case strings.Trim(word, "0123456789") == "" && len(word) <= 2:
		return strings.TrimSpace(s[:at+1]) == ""
	}
	r, size := utf8.DecodeRuneInString(s[at+1:])
	return size == len(s)-at-1 && unicode.IsUpper(r) && word != "i"
}
