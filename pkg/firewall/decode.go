package firewall

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxDecoded = 64 << 10 // bytes of decoded text that are looked at
	maxRuns    = 64       // encoded runs that are decoded
	minRun     = 24       // shorter runs hold no order
)

// scanDecoded scans text that is encoded in the original text: base64, hexadecimal, spaced bytes, percent escapes,
// rot13 and reversed text, one layer deep, at most maxRuns runs and maxDecoded bytes. Runs below minRun are skipped. An
// identifier or a hash decodes to noise; text that decodes to language was hidden on purpose, and counts more when it
// holds orders. It does nothing in a decoded layer.
func (s *scanner) scanDecoded(text string) {
	if s.isDecoded {
		return
	}
	left, runs := maxDecoded, 0
	look := func(at int, plain string, weight int) {
		if len(plain) > left {
			plain = plain[:left]
		}
		left -= len(plain)
		s.scanLayer(at, plain, weight)
	}
	for i := 0; i < len(text) && runs < maxRuns && left > 0; {
		if !encodedBytes[text[i]] {
			i++
			continue
		}
		start := i
		for i < len(text) && encodedBytes[text[i]] {
			i++
		}
		if i-start < minRun {
			continue
		}
		if plain, weight := decodeRun(text[start:i]); weight > 0 {
			runs++
			look(start, plain, weight)
		}
	}
	if plain, at, ok := decodeSpacedBytes(text); ok && left > 0 {
		look(at, plain, 10)
	}
	if strings.Count(text, "%") >= 6 {
		if plain, at, n := decodePercent(text); n >= 6 {
			look(at, plain, 5)
		}
	}
	// Whole-text ciphers: the words that every request holds, as they look in the cipher.
	turned, backwards := s.findCiphers()
	if turned {
		look(0, decodeROT13(s.text), 7)
	}
	if backwards {
		look(0, reverseText(s.text), 7)
	}
}

// findCiphers reports whether the text looks like rot13 (turned) or reversed text (backwards), by words that injected
// requests hold. In rot13, please, ignore and disregard count at the end of a token with a space behind it; reversed,
// at the beginning of a token with a space before it; not beside punctuation or at the edge of the text. instruction
// counts anywhere in a token. It goes by tokens: searching the text once for each word would cost more than all the
// rules.
func (s *scanner) findCiphers() (turned, backwards bool) {
	for _, t := range s.tokens {
		if t.to-t.from < 6 {
			continue
		}
		w := s.text[t.from:t.to]
		switch w[len(w)-1] {
		case 'r', 'q':
			if int(t.to) < len(s.text) && s.text[t.to] == ' ' &&
				(strings.HasSuffix(w, "cyrnfr") || strings.HasSuffix(w, "vtaber") ||
					strings.HasSuffix(w, "qvfertneq")) {
				turned = true
			}
		}
		switch w[0] {
		case 'e', 'd':
			if t.from > 0 && s.text[t.from-1] == ' ' &&
				(strings.HasPrefix(w, "esaelp") || strings.HasPrefix(w, "erongi") ||
					strings.HasPrefix(w, "dragersid")) {
				backwards = true
			}
		}
		if len(w) >= 11 {
			turned = turned || strings.Contains(w, "vafgehpgvba")
			backwards = backwards || strings.Contains(w, "noitcurtsni")
		}
	}
	return turned, backwards
}

// scanLayer scans decoded text and adds an encoding sign with weight, and the signs in it. Text without signs that does
// not look like language adds nothing, nor does text that says no more than the text around it. at is the offset in the
// original where the encoded text begins. A weight below maxWeight is cut to 3 when the signs in the text are weak.
func (s *scanner) scanLayer(at int, plain string, weight int) {
	inner := newScanner(foldInto(plain, nil))
	inner.isDecoded = true
	inner.applyWordRules()
	inner.matchIntents()
	inner.matchMarkers()
	inner.matchUnspaced()
	if len(inner.hits) == 0 && !looksLikeLanguage(inner) {
		return
	}
	pos := 0
	if i := s.foldedOffset(at); i >= 0 {
		pos = i
	}
	found := bestScore(inner.hits)
	// Words alone are weak: a mail part in base64 is a sentence too. Nobody writes sentences in hexadecimal.
	if found < 3 && weight < maxWeight {
		weight = 3
	}
	if len(s.tokens) == len(inner.tokens) && found <= bestScore(s.hits) {
		return // percent signs in a text that says the same without them
	}
	s.hits = append(s.hits, hit{
		tech: techEncoding, weight: weight, pos: pos, orig: at,
		quote: inner.text[:min(len(inner.text), 160)],
	})
	for _, h := range inner.hits {
		if len(s.hits) >= maxHits {
			return
		}
		h.pos, h.orig = pos, -1
		s.hits = append(s.hits, h)
	}
}

// foldedOffset returns the offset of the first folded byte that comes from offset at of the original or later, -1 when
// there is none.
func (s *scanner) foldedOffset(at int) int {
	lo, hi := 0, len(s.f.at)
	for lo < hi {
		mid := (lo + hi) / 2
		if int(s.f.at[mid]) < at {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == len(s.f.at) {
		return -1
	}
	return lo
}

// looksLikeLanguage reports whether a decoded text holds at least three words of the lexicon, which noise does not.
func looksLikeLanguage(s *scanner) bool {
	known := 0
	for i := range s.tokens {
		if s.tokens[i].class&^(cDigits|cAddress|cPhrase) != 0 {
			known++
		}
	}
	return known >= 3
}

// encodedBytes marks the bytes of base64 and hexadecimal text.
var encodedBytes = func() (t [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-=") {
		t[c] = true
	}
	return t
}()

// decodeRun decodes a run of hexadecimal or base64, of either alphabet and at most maxDecoded bytes, and returns the
// text with the weight of its encoding: 10 for hexadecimal, 7 for base64, and 0 with "" when no readable text comes
// out.
func decodeRun(run string) (string, int) {
	run = run[:min(len(run), maxDecoded)]
	if b, err := hex.DecodeString(run[:len(run)&^1]); err == nil {
		if !looksReadable(b) {
			return "", 0
		}
		return string(b), 10
	}
	body := strings.TrimRight(run, "=")
	if len(body)%4 == 1 {
		body = body[:len(body)-1]
	}
	enc := base64.RawStdEncoding
	if strings.ContainsAny(body, "-_") {
		enc = base64.RawURLEncoding
	}
	// Noise is told by the beginning: no need to decode all of a picture.
	if b, err := enc.DecodeString(body[:min(len(body), 64)&^3]); err != nil || !looksReadable(b) {
		return "", 0
	}
	b, err := enc.DecodeString(body)
	if err != nil || !looksReadable(b) {
		return "", 0
	}
	return string(b), 7
}

// looksReadable reports whether the first 256 bytes of b are text: 95 % printable ASCII, or valid UTF-8 with 20 % of
// it. Less than minRun/2 bytes are not.
func looksReadable(b []byte) bool {
	if len(b) < minRun/2 {
		return false
	}
	good := 0
	for _, c := range b[:min(len(b), 256)] {
		if c >= ' ' && c < 0x7f || c == '\n' || c == '\t' {
			good++
		}
	}
	if good*100 >= min(len(b), 256)*95 {
		return true
	}
	return utf8.Valid(b[:min(len(b), 256)&^3]) && good*100 >= min(len(b), 256)*20
}

// decodeSpacedBytes decodes the first run of bytes that are written apart: 01001001 01100111, 49 67 6e, 0x49 0x67,
// \x49\x67. at is where the run begins in s. ok is false when no run has at least minRun/2 readable bytes; plain and at
// are then meaningless.
func decodeSpacedBytes(s string) (plain string, at int, ok bool) {
	var out []byte
	at = -1
	isText := func() bool { return len(out) >= minRun/2 && looksReadable(out) }
	for i := 0; i < len(s); {
		if hexDigits[s[i]] < 0 {
			i++
			if dividesBytes[s[i-1]] {
				continue
			}
			if isText() {
				return string(out), at, true
			}
			out, at = out[:0], -1
			for i < len(s) && s[i] >= 'A' { // the rest of an ordinary word holds no bytes
				i++
			}
			continue
		}
		from := i
		for i < len(s) && hexDigits[s[i]] >= 0 && i-from < 12 {
			i++
		}
		if s[from:i] == "0" && i < len(s) && s[i] == 'x' {
			continue
		}
		value, ok := parseByte(s[from:i])
		if !ok || len(out) >= maxDecoded {
			if isText() {
				return string(out), at, true
			}
			out, at = out[:0], -1
			continue
		}
		if at < 0 {
			at = from
		}
		out = append(out, value)
	}
	return string(out), at, isText()
}

// dividesBytes marks what may stand between bytes that are written apart.
var dividesBytes = [256]bool{' ': true, ',': true, '\n': true, '\\': true, 'x': true}

// parseByte reads a byte that is written as eight bits or as two hexadecimal digits, and rejects other lengths. digits
// are hexadecimal.
func parseByte(digits string) (byte, bool) {
	base := 16
	switch {
	case len(digits) == 8 && strings.Trim(digits, "01") == "":
		base = 2
	case len(digits) != 2:
		return 0, false
	}
	v, err := strconv.ParseUint(digits, base, 8)
	return byte(v), err == nil
}

// decodePercent decodes percent escapes, and + as a blank. at is the offset of the first escape, -1 when there is none,
// and n the number of escapes. A % without two digits after it is kept.
func decodePercent(text string) (plain string, at, n int) {
	out := make([]byte, 0, len(text))
	at = -1
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) && hexDigit(text[i+1]) >= 0 && hexDigit(text[i+2]) >= 0 {
			if at < 0 {
				at = i
			}
			out = append(out, byte(hexDigit(text[i+1])<<4|hexDigit(text[i+2])))
			n++
			i += 2
			continue
		}
		if text[i] == '+' {
			out = append(out, ' ')
			continue
		}
		out = append(out, text[i])
	}
	return string(out), at, n
}

// decodeROT13 turns the lower-case ASCII letters of text by 13 places and keeps everything else.
func decodeROT13(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return 'a' + (r-'a'+13)%26
		}
		return r
	}, text)
}

// reverseText returns the characters of text from the last to the first.
func reverseText(text string) string {
	rs := []rune(text)
	for i, j := 0, len(rs)-1; i < j; i, j = i+1, j-1 {
		rs[i], rs[j] = rs[j], rs[i]
	}
	return string(rs)
}

// The words of an override as matchSqueezed looks for them, and how many letters may stand between them.
var (
	squeezedVerbs  = []string{"ignore", "disregard", "forget", "bypass"}
	squeezedPrior  = []string{"previous", "prior", "above", "earlier", "preceding", "your", "all"}
	squeezedOrders = []string{"instructions", "instruction", "prompts", "rules", "guidelines", "directives", "commands"}
)

const (
	maxBeforePrior  = 12
	maxBeforeOrders = 14
)

// matchSqueezed adds an encoding sign for the first override ("ignore previous instructions") whose letters are set
// apart, broken over lines or written with digits: with everything but letters removed, they are there. It does nothing
// when the word rules found a strong override, so they must run before it.
func (s *scanner) matchSqueezed() {
	for _, h := range s.hits {
		if h.tech == techOverride && h.weight >= threshold/2 {
			return
		}
	}
	s.letters = slices.Grow(s.letters[:0], len(s.text))[:len(s.text)]
	letters, n := s.letters, 0
	for i := range len(s.text) {
		if c := leetLetters[s.text[i]]; c != 0 {
			letters[n] = c
			n++
		}
	}
	letters = letters[:n]
	var at []int32 // offset of each letter, once it is needed
	for _, verb := range squeezedVerbs {
		for from := 0; ; {
			i := bytes.Index(letters[from:], []byte(verb))
			if i < 0 {
				break
			}
			i += from
			from = i + len(verb)
			rest := string(letters[from:min(n, from+40)])
			prior := endOfFirst(rest, squeezedPrior, maxBeforePrior)
			if prior < 0 {
				continue
			}
			if at == nil {
				at = s.lettersAt(n)
			}
			if s.addSqueezed(at, verb, i, from+prior, rest[prior:]) {
				return
			}
		}
	}
}

// endOfFirst returns the offset where a word of list ends in s: of the first one in the list that begins within the
// first most bytes of s; -1 when none does.
func endOfFirst(s string, list []string, most int) int {
	for _, w := range list {
		if k := strings.Index(s, w); k >= 0 && k <= most {
			return k + len(w)
		}
	}
	return -1
}

// addSqueezed adds a sign, and reports true, when rest, the letters from letter number from on, holds a word for
// instructions within maxBeforeOrders letters. at is the offset of each letter, and verb begins with letter i. An
// override that is written plainly is left to the word rules.
func (s *scanner) addSqueezed(at []int32, verb string, i, from int, rest string) bool {
	isPlain := func(word string, first int) bool {
		last := first + len(word) - 1
		return at[last]-at[first] == int32(len(word)-1) && strings.HasPrefix(s.text[at[first]:], word)
	}
	for _, o := range squeezedOrders {
		k := strings.Index(rest, o)
		if k < 0 || k > maxBeforeOrders || isPlain(verb, i) && isPlain(o, from+k) {
			continue
		}
		s.addHit(techEncoding, 10, int(at[i]), int(at[from+k+len(o)-1]-at[i])+1)
		return true
	}
	return false
}

// lettersAt returns the offset in the folded text of each letter that matchSqueezed looks at. n is their number.
func (s *scanner) lettersAt(n int) []int32 {
	at := make([]int32, 0, n)
	for i := range len(s.text) {
		if leetLetters[s.text[i]] != 0 {
			at = append(at, int32(i))
		}
	}
	return at
}

// leetLetters maps a byte to the letter it stands for in "1gn0r3", 0 when it stands for none.
var leetLetters = func() (t [256]byte) {
	for c := byte('a'); c <= 'z'; c++ {
		t[c] = c
	}
	for i, from := 0, "01345789@$|"; i < len(from); i++ {
		t[from[i]] = "oieastbgasl"[i]
	}
	return t
}()
