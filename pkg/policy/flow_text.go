package policy

import (
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"

	"conclave/pkg/text"
)

// splitWords splits a text into words of letters and digits, in lower case. Hyphens, quotes and underscores stay inside
// of a word and are removed around it.
func splitWords(s string) (out []string) {
	for _, w := range strings.FieldsFunc(strings.ToLower(s), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-' && r != '\'' && r != '_'
	}) {
		if w = strings.Trim(w, "-'_"); w != "" {
			out = append(out, w)
		}
	}
	return out
}

// stopWords are words that carry no data by themselves.
var stopWords = map[string]bool{
	"a": true, "an": true, "and": true, "at": true, "by": true, "for": true, "from": true, "in": true, "is": true,
	"it": true, "of": true, "on": true, "or": true, "that": true,
	"the": true, "this": true, "to": true, "with": true, "what": true, "who": true, "when": true, "how": true,
	"my": true, "i": true, "me": true, "be": true, "are": true, "was": true,
	"latest": true, "news": true, "today": true, "current": true, "now": true, "price": true, "date": true,
	"time": true,
}

// datePattern matches an ISO date, a time, or both.
var datePattern = text.Pattern(
	`^(\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2})?(Z|[+-]\d{2}:\d{2})?)?|\d{2}:\d{2}(:\d{2})?)$`)

// addressPattern matches what a recipient could act on: URLs, hosts, mail addresses, IP addresses, IBANs, phone numbers
// and long tokens such as wallet addresses.
var addressPattern = text.Pattern(
	`(?i)([a-z][a-z0-9+.-]{1,20}://[^\s"'<>]+|www\.[^\s"'<>]+|[\p{L}\p{N}._%+-]+@[\p{L}\p{N}.-]+|` +
		`(?:[\p{L}\p{N}-]+\.)+(?:\p{L}{2,12}|xn--[a-z0-9-]+)(?::\d+)?(?:/[^\s"'<>]*)?|` +
		`\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?:/[^\s"'<>]*)?|` +
		`\b[a-z]{2}\d{2}[a-z0-9 ]{10,30}\b|\+?\d[\d ().-]{7,}\d|\b[a-z0-9]{20,}\b)`)

// dotReplacer maps the full stops of other scripts, which resolvers accept in hosts, to ASCII.
var dotReplacer = strings.NewReplacer("。", ".", "．", ".", "｡", ".")

// extractAddresses returns the matches of addressPattern in a text after NFKC normalization, without dates, file names
// and sentences.
func extractAddresses(s string) (out []string) {
	for _, m := range addressPattern().FindAllString(dotReplacer.Replace(norm.NFKC.String(s)), -1) {
		m = strings.TrimRight(m, ".,;:!?)]} ")
		if m == "" || datePattern().MatchString(m) || fileNamePattern().MatchString(m) || strings.Contains(m, ". ") &&
			!strings.ContainsAny(m, "0123456789") {
			continue
		}
		out = append(out, m)
	}
	return out
}

// fileNamePattern matches file names whose extension is no top-level domain, which addressPattern takes for hosts.
var fileNamePattern = text.Pattern(`(?i)^[\p{L}\p{N}_-]+\.(docx?|xlsx?|pptx?|pdf|txt|csv|png|jpe?g|ya?ml|json)$`)

// isProse reports whether a text contains a URL, minProseWords words in a row (one less with an @), or 8 characters of
// a script without spaces. A list of names and numbers is not prose, so a tool that returns one stays trusted.
func isProse(s string) bool {
	if strings.Contains(s, "://") || strings.Contains(s, "www.") {
		return true
	}
	run, wide, most := 0, 0, 0
	inWord := false
	end := func() {
		if inWord {
			run++
		}
		most, inWord = max(most, run), false
	}
	for _, r := range s {
		switch {
		case unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul, unicode.Thai):
			if wide++; wide >= 8 {
				return true
			}
			inWord = true
		case unicode.IsLetter(r) || unicode.IsMark(r) || unicode.IsDigit(r) || inWord &&
			(r == '\'' || r == '’' || r == '.' || r == '@'):
			inWord = true
		case strings.ContainsRune(" \t\n.!?-_;+", r): // word separators, also those used instead of spaces
			end()
		default: // commas, quotes and brackets of lists and objects end a run
			end()
			run, wide = 0, 0
		}
	}
	end()
	return most >= minProseWords || most >= minProseWords-1 && strings.Contains(s, "@")
}

// minProseWords is the number of consecutive words that counts as prose.
const minProseWords = 4
