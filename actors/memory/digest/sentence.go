package digest

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxSentence is where a sentence that does not end is cut.
const maxSentence = 1000

// span is a piece of a text.
type span struct{ from, to int }

// sentences cuts s into at most most sentences. A line break ends one when the next line begins like a new one: a text
// with hard line breaks is not torn apart. What does not fit is left out.
func sentences(s string, most int) []span {
	var out []span
	from := 0
	add := func(to int) {
		a, b := from, to
		for a < b && isSpace(s[a]) {
			a++
		}
		for b > a && isSpace(s[b-1]) {
			b--
		}
		if a < b && len(out) < most {
			out = append(out, span{a, b})
		}
		from = to
	}
	for i := 0; i < len(s) && len(out) < most; {
		r, size := utf8.DecodeRuneInString(s[i:])
		i += size
		switch r {
		case '\n':
			if newLine(s, i) {
				add(i)
			}
		case '。', '！', '？', '।', '؟', '۔', '\u2029':
			i += closers(s[i:])
			add(i)
		case '.', '!', '?', '…':
			i += closers(s[i:])
			if i < len(s) && !spaceAt(s, i) {
				break
			}
			if r != '.' || !abbreviated(s[from:i]) {
				add(i)
			}
		}
		if i-from > maxSentence {
			n := len(cutWords(s[from:i], maxSentence))
			if n == 0 { // nothing but marks: it goes on all the same
				n = len(cut(s[from:i], maxSentence))
			}
			add(from + n)
			i = from
		}
	}
	add(len(s))
	return out
}

// texts are the sentences of s, each on one line.
func texts(s string, most int) []string {
	spans := sentences(s, most)
	out := make([]string, len(spans))
	for i, p := range spans {
		out[i] = strings.Join(strings.Fields(s[p.from:p.to]), " ")
	}
	return out
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' }

func spaceAt(s string, i int) bool {
	r, _ := utf8.DecodeRuneInString(s[i:])
	return unicode.IsSpace(r)
}

// closers is how many bytes of s still belong to the sentence that ends before: more of its marks, and what closes a
// quotation or a bracket.
func closers(s string) int {
	n := 0
	for n < len(s) {
		r, size := utf8.DecodeRuneInString(s[n:])
		if !strings.ContainsRune(".!?…。！？\"'”’»)]*_」』", r) {
			break
		}
		n += size
	}
	return n
}

// newLine tells whether the line that begins at i begins a sentence.
func newLine(s string, i int) bool {
	rest := strings.TrimLeft(s[i:], " \t")
	if rest == "" || rest[0] == '\n' {
		return true
	}
	before := strings.TrimRight(s[:i], " \t\n")
	if strings.HasSuffix(before, ":") {
		return true
	}
	r, _ := utf8.DecodeRuneInString(rest)
	return !unicode.IsLower(r) && r != '('
}

// short forms that end with a point and end no sentence.
var short = set(`mr mrs ms dr prof st jr sr vs etc e.g i.e cf no nr fig al approx ca dept est inc ltd co corp bzw usw z.b d.h u.a vgl
	jan feb mar apr jun jul aug sep sept oct nov dec p pp vol ed m mme mlle sra a.m p.m u.s u.k`)

// abbreviated tells whether the point at the end of s only shortens a word. An initial, and a number at the beginning of
// a line, count too.
func abbreviated(s string) bool {
	s = strings.TrimSuffix(s, ".")
	at := strings.LastIndexFunc(s, func(r rune) bool { return unicode.IsSpace(r) || r == '(' })
	word := strings.ToLower(s[at+1:])
	switch {
	case word == "":
		return false
	case short[word]:
		return true
	case strings.Trim(word, "0123456789") == "" && len(word) <= 2:
		return strings.TrimSpace(s[:at+1]) == ""
	}
	r, size := utf8.DecodeRuneInString(s[at+1:])
	return size == len(s)-at-1 && unicode.IsUpper(r) && word != "i"
}

// set is the words of a list, folded.
func set(list string) map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(list) {
		m[fold(w)] = true
	}
	return m
}
