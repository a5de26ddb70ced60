package firewall

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxDecoded = 64 << 10 // bytes of decoded text that are looked at
	maxRuns    = 64       // encoded runs that are decoded
	minRun     = 24       // shorter runs hold no order
)

// decoded looks into what is encoded in the text, one layer deep. An identifier or a hash decodes to noise; what decodes to
// language was hidden on purpose, and counts when there are orders in it.
func (s *scanner) decoded(text string) {
	if s.deep {
		return
	}
	left, runs := maxDecoded, 0
	look := func(at int, plain string, weight int) {
		if len(plain) > left {
			plain = plain[:left]
		}
		left -= len(plain)
		s.layer(at, plain, weight)
	}
	for i := 0; i < len(text) && runs < maxRuns && left > 0; {
		if !inCode[text[i]] {
			i++
			continue
		}
		start := i
		for i < len(text) && inCode[text[i]] {
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
	if plain, at, ok := spacedBytes(text); ok && left > 0 {
		look(at, plain, 10)
	}
	if strings.Count(text, "%") >= 6 {
		if plain, at, n := unpercent(text); n >= 6 {
			look(at, plain, 5)
		}
	}
	// Whole-text ciphers: the words that every request holds, as they look in the cipher.
	turned, backwards := s.ciphers()
	if turned {
		look(0, rot13(s.text), 7)
	}
	if backwards {
		look(0, reverse(s.text), 7)
	}
}

// ciphers looks for the words that every request holds, as rot13 and reversing leave them. It goes by tokens: searching the
// text once for each word would cost more than all the rules.
func (s *scanner) ciphers() (turned, backwards bool) {
	for _, t := range s.tokens {
		if t.to-t.from < 6 {
			continue
		}
		w := s.text[t.from:t.to]
		switch w[len(w)-1] {
		case 'r', 'q':
			if int(t.to) < len(s.text) && s.text[t.to] == ' ' && (strings.HasSuffix(w, "cyrnfr") || strings.HasSuffix(w, "vtaber") || strings.HasSuffix(w, "qvfertneq")) {
				turned = true
			}
		}
		switch w[0] {
		case 'e', 'd':
			if t.from > 0 && s.text[t.from-1] == ' ' && (strings.HasPrefix(w, "esaelp") || strings.HasPrefix(w, "erongi") || strings.HasPrefix(w, "dragersid")) {
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

// layer scans decoded text and takes over what was found in it.
func (s *scanner) layer(at int, plain string, weight int) {
	inner := newScanner(foldInto(plain, nil))
	inner.deep = true
	inner.words()
	inner.markers()
	inner.eastern()
	if len(inner.hits) == 0 && !sentence(inner) {
		return
	}
	pos := 0
	if i := s.foldedAt(at); i >= 0 {
		pos = i
	}
	found := best(inner.hits)
	// Words alone are weak: a mail part in base64 is a sentence too. Nobody writes sentences in hexadecimal.
	if found < 3 && weight < maxWeight {
		weight = 3
	}
	if len(s.tokens) == len(inner.tokens) && found <= best(s.hits) {
		return // percent signs in a text that says the same without them
	}
	s.hits = append(s.hits, hit{tech: techEncoding, weight: weight, pos: pos, orig: at, quote: inner.text[:min(len(inner.text), 160)]})
	for _, h := range inner.hits {
		if len(s.hits) >= maxHits {
			return
		}
		h.pos, h.orig = pos, -1
		s.hits = append(s.hits, h)
	}
}

// foldedAt is the first folded byte that came from the original offset at or from behind it.
func (s *scanner) foldedAt(at int) int {
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

// sentence tells language from noise: several known words.
func sentence(s *scanner) bool {
	known := 0
	for i := range s.tokens {
		if s.tokens[i].class&^(cDigits|cAddress) != 0 {
			known++
		}
	}
	return known >= 3
}

// inCode tells the bytes of base64 and hexadecimal text.
var inCode = func() (t [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-=") {
		t[c] = true
	}
	return t
}()

// decodeRun decodes a run of base64 or hexadecimal and weighs that it is written so. The weight is 0 when no text comes out.
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

// looksReadable tells text from other bytes.
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

// spacedBytes decodes bytes that are written apart: 01001001 01100111, 49 67 6e, 0x49 0x67, \x49\x67.
func spacedBytes(text string) (string, int, bool) {
	var out []byte
	start := -1
	for i := 0; i < len(text); {
		c := text[i]
		if hexDigits[c] < 0 {
			i++
			if c == ' ' || c == ',' || c == '\n' || c == '\\' || c == 'x' {
				continue
			}
			if len(out) >= minRun/2 && looksReadable(out) {
				return string(out), start, true
			}
			out, start = out[:0], -1
			// the rest of an ordinary word holds no bytes
			for i < len(text) && text[i] >= 'A' {
				i++
			}
			continue
		}
		from := i
		for i < len(text) && hexDigit(text[i]) >= 0 && i-from < 12 {
			i++
		}
		word := text[from:i]
		v, ok := -1, false
		switch {
		case len(word) == 8 && strings.Trim(word, "01") == "":
			v, ok = 0, true
			for _, b := range []byte(word) {
				v = v<<1 | int(b-'0')
			}
		case len(word) == 2:
			v, ok = hexDigit(word[0])<<4|hexDigit(word[1]), true
		case word == "0" && i < len(text) && text[i] == 'x':
			continue
		}
		if !ok || len(out) >= maxDecoded {
			if len(out) >= minRun/2 && looksReadable(out) {
				return string(out), start, true
			}
			out, start = out[:0], -1
			continue
		}
		if start < 0 {
			start = from
		}
		out = append(out, byte(v))
	}
	return string(out), start, len(out) >= minRun/2 && looksReadable(out)
}

// unpercent decodes %41 and gives where the first stood and how many there were.
func unpercent(text string) (plain string, at, n int) {
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

func rot13(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return 'a' + (r-'a'+13)%26
		}
		return r
	}, text)
}

func reverse(text string) string {
	rs := []rune(text)
	for i, j := 0, len(rs)-1; i < j; i, j = i+1, j-1 {
		rs[i], rs[j] = rs[j], rs[i]
	}
	return string(rs)
}

// squeezed looks for orders whose letters are set apart, broken over lines or written with digits: with everything but
// letters taken away, they stand there.
func (s *scanner) squeezed() {
	for _, h := range s.hits {
		if h.tech == techOverride && h.weight >= threshold/2 {
			return // it is there in plain sight
		}
	}
	s.letters = slices.Grow(s.letters[:0], len(s.text))[:len(s.text)]
	letters, n := s.letters, 0
	for i := range len(s.text) {
		if c := leet[s.text[i]]; c != 0 {
			letters[n] = c
			n++
		}
	}
	text := letters[:n]
	var at []int32 // where each letter stands, once somebody needs to know
	for _, verb := range []string{"ignore", "disregard", "forget", "bypass"} {
		for from := 0; ; {
			i := bytes.Index(text[from:], []byte(verb))
			if i < 0 {
				break
			}
			i += from
			from = i + len(verb)
			rest := string(text[from:min(len(text), from+40)])
			prior := -1
			for _, p := range []string{"previous", "prior", "above", "earlier", "preceding", "your", "all"} {
				if k := strings.Index(rest, p); k >= 0 && k <= 12 {
					prior = k + len(p)
					break
				}
			}
			if prior < 0 {
				continue
			}
			if at == nil {
				at = s.lettersAt(n)
			}
			for _, o := range []string{"instructions", "instruction", "prompts", "rules", "guidelines", "directives", "commands"} {
				if k := strings.Index(rest[prior:], o); k >= 0 && k <= 14 {
					last := from + prior + k + len(o) - 1
					whole := at[from-1]-at[i] == int32(len(verb)-1) && at[last]-at[last-len(o)+1] == int32(len(o)-1)
					if whole && strings.HasPrefix(s.text[at[i]:], verb) && strings.HasPrefix(s.text[at[last-len(o)+1]:], o) {
						continue // in plain sight, and judged there
					}
					s.hit(techEncoding, 10, int(at[i]), int(at[last]-at[i])+1)
					return
				}
			}
		}
	}
}

// lettersAt is where each of the n letters stands that squeezed looks at.
func (s *scanner) lettersAt(n int) []int32 {
	at := make([]int32, 0, n)
	for i := range len(s.text) {
		if leet[s.text[i]] != 0 {
			at = append(at, int32(i))
		}
	}
	return at
}

// leet is the letter that a byte stands for, 0 when for none.
var leet = func() (t [256]byte) {
	for c := byte('a'); c <= 'z'; c++ {
		t[c] = c
	}
	for i, from := 0, "01345789@$|"; i < len(from); i++ {
		t[from[i]] = "oieastbgasl"[i]
	}
	return t
}()
