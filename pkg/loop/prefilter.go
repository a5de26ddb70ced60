package loop

import "strings"

// prefilter is a list of lower-case texts, at least one of which is in every text that a slow pattern matches. Most
// answers hold none, and looking for texts costs a hundredth of the pattern. A prefilter may pass a text that the
// pattern does not match; the reverse is a bug, which a test looks for. A text that begins with a space must begin a
// word.
type prefilter []string

// passes reports whether the pattern has to be matched against text. Two letters beyond ASCII that patterns match as s
// and k in any case always pass.
func (p prefilter) passes(text string) bool {
	if strings.ContainsAny(text, "ſ\u212a") {
		return true
	}
	text = strings.ToLower(text)
	for _, t := range p {
		if word, ok := strings.CutPrefix(t, " "); ok && hasWordPrefix(text, word) || !ok && strings.Contains(text, t) {
			return true
		}
	}
	return false
}

// hasWordPrefix reports whether a word in text begins with prefix, which must not be empty. Words are the runs that \b
// in a pattern separates.
func hasWordPrefix(text, prefix string) bool {
	for from := 0; ; from++ {
		i := strings.Index(text[from:], prefix)
		if i < 0 {
			return false
		}
		if from += i; from == 0 || !isWordByte(text[from-1]) {
			return true
		}
	}
}

// isWordByte reports whether \b in a pattern takes c for a part of a word.
func isWordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}
