package firewall

import (
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxDecoded = 64 << 10 // bytes of decoded text that are looked at
	maxRuns    = 64       // encoded runs that are decoded
	minRun     = 24       // shorter runs hold no order
)

// findDecoded returns the signs in text that is encoded in the original text: base64, hexadecimal, spaced bytes,
// percent escapes, rot13 and reversed text, one layer deep, at most maxRuns runs and maxDecoded bytes. Runs below
// minRun are skipped. Each layer with signs adds a strong encoding sign of its own: they were hidden on purpose. known
// are the signs of the text as it is; a layer that has no more than these, such as a text with percent signs, adds
// none.
func findDecoded(text string, f *folded, known []sign) (out []sign) {
	left, runs := maxDecoded, 0
	look := func(at int, plain string, whole bool) {
		plain = plain[:min(len(plain), left)]
		left -= len(plain)
		inner := fold(plain)
		signs := findSigns(inner)
		if len(signs) == 0 || whole && len(signs) <= len(known) {
			return
		}
		out = append(out, sign{tech: techEncoding, strong: true, pos: at, quote: inner.text})
		for _, s := range signs {
			s.pos = at
			out = append(out, s)
		}
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
		if plain := decodeRun(text[start:i]); plain != "" {
			runs++
			look(start, plain, false)
		}
	}
	if plain, at, ok := decodeSpacedBytes(text); ok && left > 0 {
		look(at, plain, false)
	}
	if strings.Count(text, "%") >= 6 {
		if plain, at, n := decodePercent(text); n >= 6 {
			look(at, plain, true)
		}
	}
	// Whole-text ciphers, by a word that nearly every phrase holds, as it looks in the cipher.
	if strings.Contains(f.text, "vafgehpgvba") {
		look(0, decodeROT13(f.text), true)
	}
	if strings.Contains(f.text, "noitcurtsni") {
		look(0, reverseText(f.text), true)
	}
	return out
}

// encodedBytes marks the bytes of base64 and hexadecimal text.
var encodedBytes = func() (t [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-=") {
		t[c] = true
	}
	return t
}()

// decodeRun decodes a run of hexadecimal or base64, of either alphabet and at most maxDecoded bytes; "" when no
// readable text comes out.
func decodeRun(run string) string {
	run = run[:min(len(run), maxDecoded)]
	if b, err := hex.DecodeString(run[:len(run)&^1]); err == nil {
		if !looksReadable(b) {
			return ""
		}
		return string(b)
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
		return ""
	}
	b, err := enc.DecodeString(body)
	if err != nil || !looksReadable(b) {
		return ""
	}
	return string(b)
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
