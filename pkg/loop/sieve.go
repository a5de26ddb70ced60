package loop

// sieve is a set of short texts, one of which stands in every text that a pattern can match. To look for them costs a
// hundredth of what the pattern costs, and most answers hold none. It may let through what the pattern does not match;
// the other way round would be a bug, which a test looks for.
type sieve [256][]grain

// grain is one of the texts.
type grain struct {
	text string
	word bool // it begins a word
}

// newSieve makes a sieve. A text that begins with a blank must stand at the beginning of a word.
func newSieve(texts ...string) *sieve {
	var s sieve
	for _, t := range texts {
		word := t[0] == ' '
		if word {
			t = t[1:]
		}
		s[loose(t[0])] = append(s[loose(t[0])], grain{t, word})
	}
	return &s
}

// passes reports whether the pattern has to be asked about text.
func (s *sieve) passes(text string) bool {
	for i := range len(text) {
		c := text[i]
		for _, g := range s[loose(c)] {
			if beginsLoosely(text[i:], g.text) && (!g.word || i == 0 || !isLetter(text[i-1])) {
				return true
			}
		}
		// Two signs beyond ASCII count as an s and as a k where case does not matter: ſ and K.
		if c == 0xc5 && beginsLoosely(text[i:], "ſ") || c == 0xe2 && beginsLoosely(text[i:], "\u212a") {
			return true
		}
	}
	return false
}

// loose makes the two cases of a letter the same, of the accented ones too. It makes other bytes the same as well: a
// sieve may be wide.
func loose(c byte) byte { return c | 0x20 }

func beginsLoosely(s, with string) bool {
	if len(s) < len(with) {
		return false
	}
	for i := range len(with) {
		if loose(s[i]) != loose(with[i]) {
			return false
		}
	}
	return true
}

// isLetter is what a pattern takes for a part of a word.
func isLetter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}
