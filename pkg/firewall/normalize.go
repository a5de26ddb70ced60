package firewall

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Normalize is text as a model tends to read it, for comparing and not for showing: NFKC, zero-width and bidi controls
// and loose accents removed, Unicode tag characters as the ASCII they stand for, letters that look like ASCII letters as
// those, runs of white space as one blank. Normalizing twice changes nothing.
func Normalize(text string) string {
	// What one pass removes may bring characters together that the next one composes, so it goes on until nothing changes.
	for range 8 {
		next := normalizeOnce(text)
		if next == text {
			break
		}
		text = next
	}
	return text
}

func normalizeOnce(text string) string {
	seen := strings.Map(func(r rune) rune {
		if isTag(r) {
			return r - tagBase
		}
		if invisible(r) || isAccent(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	var b strings.Builder
	b.Grow(len(seen))
	blank := true // drops white space at the beginning
	for _, r := range norm.NFKC.String(seen) {
		switch {
		case unicode.IsSpace(r):
			if !blank {
				b.WriteByte(' ')
			}
			blank = true
			continue
		case isAccent(r) || invisible(r):
			continue
		}
		if c, ok := lookalike(r); ok {
			r = rune(c)
		}
		b.WriteRune(r)
		blank = false
	}
	return strings.TrimSuffix(b.String(), " ")
}

// tagBase is the first of the tag characters, which mirror ASCII and are never shown.
const tagBase = 0xE0000

func isTag(r rune) bool { return r >= tagBase+' ' && r <= tagBase+'~' }

// isAccent tells the combining marks of Latin, Greek and Cyrillic, which may be piled upon any letter.
func isAccent(r rune) bool { return r >= 0x300 && r <= 0x36F }

// isBidi tells the controls that turn the direction of text.
func isBidi(r rune) bool {
	return r == 0x61C || r == 0x200E || r == 0x200F || r >= 0x202A && r <= 0x202E || r >= 0x2066 && r <= 0x2069
}

// invisible tells the characters that take part in no word and are not shown.
func invisible(r rune) bool {
	if r < 0x80 {
		return r < ' ' && r != '\n' && r != '\t' && r != '\r' && r != '\v' && r != '\f' || r == 0x7f
	}
	switch {
	case r == 0xAD, r == 0x34F, r == 0x115F, r == 0x1160, r == 0x17B4, r == 0x17B5, r == 0x3164, r == 0xFFA0, r == 0xFEFF:
		return true
	case r >= 0x180B && r <= 0x180F, r >= 0x200B && r <= 0x200F, r >= 0x2060 && r <= 0x206F:
		return true
	case r >= 0xFE00 && r <= 0xFE0F, r >= 0xFFF9 && r <= 0xFFFB, r >= 0x1D173 && r <= 0x1D17A, r >= 0xE0000 && r <= 0xE0FFF:
		return true
	}
	return isBidi(r)
}

// lookalikes pairs letters of other scripts with the ASCII letters that they are mistaken for.
const lookalikes = "аaеeоoрpсcуyхxіiјjѕsһhԁdԛqԝwɡgүyьbӏlАAВBЕEКKМMНHОOРPСCТTУYХXІIЈJЅSԌGԚQԜWҮY" +
	"αaοoνvρpτtυuιiκkχxγyωwϲcϳjΑAΒBΕEΖZΗHΙIΚKΜMΝNΟOΡPΤTΥYΧXϹC" +
	"ıiɑaɩiʟlɴnʀrʏyꜱsᴀaᴄcᴅdᴇeᴊjᴋkᴍmᴏoᴘpᴛtᴜuᴠvᴡwᴢzʙbɢgʜhɪiꞮIøoØOłlŁLđdĐDßsæaÆA" +
	"օoսuհhոnցgԱUՏSՕOᎪAᏴBᏟCᎠDᎬEᎻHᎫJᏦKᏞLᎷMΟOᏢPᏒRᏚSᎢTᏙVᏔWᏃZ‘'’'‚'‛'“\"”\"„\"«\"»\"–-—-‐-‑-‒-―-−-∕/⁄/"

var looks = func() map[rune]byte {
	m := map[rune]byte{}
	rs := []rune(lookalikes)
	for i := 0; i+1 < len(rs); i += 2 {
		m[rs[i]] = byte(rs[i+1])
	}
	return m
}()

// lookalike is the ASCII character that r is mistaken for.
func lookalike(r rune) (byte, bool) {
	if r < 0x80 || r > 0x2FFF && r < 0xA700 || r >= 0xAC00 {
		return 0, false
	}
	c, ok := looks[r]
	return c, ok
}

// folded is a text made ready for the rules: lower case, no accents, escapes resolved, and for each byte where it came from.
type folded struct {
	text   string
	at     []int32 // at[i] is where text[i] stands in the original
	hidden int     // characters that are not shown
	tags   int     // of these, tag characters that are no part of a flag
	zero   int     // of these, zero-width characters that join no emoji
	turned int     // of these, overrides of the direction
	first  int     // where the first of them stands in the original, -1 when there is none
	shown  string  // what the tag characters say
	east   bool    // it holds Chinese or Japanese
}

// origin is where the folded byte i stands in the original text.
func (f *folded) origin(i int) int {
	if i < 0 || i >= len(f.at) {
		return -1
	}
	return int(f.at[i])
}

// plainByte is what a byte becomes that stands for itself, in lower case; 0 for those that need a closer look.
var plainByte = func() (t [256]byte) {
	for c := byte(' '); c < 0x7f; c++ {
		t[c] = c
	}
	for c := byte('A'); c <= 'Z'; c++ {
		t[c] = c + 'a' - 'A'
	}
	t['\n'], t['\t'], t['\\'], t['&'] = '\n', '\t', 0, 0
	return t
}()

// fold prepares text for the rules in one pass.
func fold(text string) *folded { return foldInto(text, nil) }

// foldInto is fold with room for where each character stands.
func foldInto(text string, at []int32) *folded {
	f := &folded{first: -1, at: slices.Grow(at, len(text)+8)}
	out := make([]byte, 0, len(text)+8)
	put := func(c byte, at int) {
		out = append(out, c)
		f.at = append(f.at, int32(at))
	}
	var tags []byte
	var before rune // the last visible character, which tells an emoji from a trick
	for i := 0; i < len(text); {
		c := text[i]
		if low := plainByte[c]; low != 0 { // nearly every character of nearly every text
			out = append(out, low)
			f.at = append(f.at, int32(i))
			before = rune(c)
			i++
			continue
		}
		if c < utf8.RuneSelf {
			n := 1
			switch {
			case c == '\\' || c == '&':
				if r, size := unescape(text[i:]); size > 0 {
					n = size
					switch { // written as a number, what is not shown is still not shown
					case isTag(r):
						f.hide(i)
						f.tags++
						tags = append(tags, byte(r-tagBase))
						foldRune(r-tagBase, i, put)
					case r != '\n' && invisible(r):
						f.hide(i)
						f.zero++
					default:
						foldRune(r, i, put)
					}
					break
				}
				put(c, i)
			case c >= 'A' && c <= 'Z':
				put(c+'a'-'A', i)
			case c == '\r' || c == '\v' || c == '\f':
				put('\n', i)
			case c < ' ' && c != '\n' && c != '\t' || c == 0x7f:
				f.hide(i)
			default:
				put(c, i)
			}
			before = rune(c)
			i += n
			continue
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case isTag(r):
			f.hide(i)
			if before != 0x1F3F4 { // the black flag, which tags make the flag of a region
				f.tags++
				tags = append(tags, byte(r-tagBase))
				foldRune(r-tagBase, i, put)
			}
		case invisible(r):
			joins := (r == 0x200D || r >= 0xFE00 && r <= 0xFE0F) && before > 0xFF
			if !joins {
				f.hide(i)
				f.zero++
			}
			if r == 0x202D || r == 0x202E {
				f.turned++
			}
		default:
			if r >= 0x3040 && r <= 0x9FFF {
				f.east = true
			}
			foldRune(r, i, put)
			before = r
		}
		i += size
	}
	f.text, f.shown = string(out), string(tags)
	return f
}

// hide counts a character that is not shown.
func (f *folded) hide(at int) {
	if f.first < 0 {
		f.first = at
	}
	f.hidden++
}

// foldRune puts what is left of r: its compatibility decomposition without accents, look-alikes as ASCII, in lower case.
func foldRune(r rune, at int, put func(byte, int)) {
	if c, ok := lookalike(r); ok {
		r = rune(c)
	}
	var buf [utf8.UTFMax]byte
	if r < utf8.RuneSelf {
		if r >= 'A' && r <= 'Z' {
			r += 'a' - 'A'
		}
		put(byte(r), at)
		return
	}
	whole := buf[:utf8.EncodeRune(buf[:], r)]
	plain := r >= 0x3040 && r <= 0x9FFF || r >= 0xAC00 && r <= 0xD7A3 // nothing to decompose, or nothing to gain
	if !plain {
		if d := norm.NFKD.Properties(whole).Decomposition(); d != nil {
			whole = d
		}
	}
	for _, p := range string(whole) {
		if isAccent(p) {
			continue
		}
		switch {
		case unicode.IsSpace(p) || p == utf8.RuneError:
			p = ' '
		case p == '。':
			p = '\n'
		case p >= 0x80 && !plain && !unicode.IsLetter(p) && !unicode.IsMark(p) && !unicode.IsNumber(p):
			p = '*' // an emoji or a bullet is no part of a word
		}
		if c, ok := lookalike(p); ok {
			p = rune(c)
		}
		p = unicode.ToLower(p)
		var b [utf8.UTFMax]byte
		for _, c := range b[:utf8.EncodeRune(b[:], p)] {
			put(c, at)
		}
	}
}

// unescape resolves what programs write for a character: \n, \", \u0069, &#105; and &lt;. The size is 0 when s begins
// with nothing of the kind.
func unescape(s string) (rune, int) {
	if len(s) < 2 {
		return 0, 0
	}
	if s[0] == '\\' {
		switch s[1] {
		case 'n', 'r':
			return '\n', 2
		case 't':
			return ' ', 2
		case '"', '\'', '/', ' ', '\n':
			return rune(s[1]), 2
		case 'u':
			if r, ok := number(s[2:min(len(s), 6)], 16); ok && len(s) >= 6 {
				return r, 6
			}
		case 'x':
			if r, ok := number(s[2:min(len(s), 4)], 16); ok && len(s) >= 4 {
				return r, 4
			}
		}
		return 0, 0
	}
	end := strings.IndexByte(s[:min(len(s), 10)], ';')
	if end < 3 {
		return 0, 0
	}
	name := s[1:end]
	switch name {
	case "lt":
		return '<', end + 1
	case "gt":
		return '>', end + 1
	case "amp":
		return '&', end + 1
	case "quot":
		return '"', end + 1
	case "apos":
		return '\'', end + 1
	case "nbsp":
		return ' ', end + 1
	}
	if name[0] != '#' {
		return 0, 0
	}
	base, value := rune(10), name[1:]
	if value[0] == 'x' || value[0] == 'X' {
		base, value = 16, value[1:]
	}
	if r, ok := number(value, base); ok {
		return r, end + 1
	}
	return 0, 0
}

// number reads a character by its number.
func number(text string, base rune) (rune, bool) {
	if text == "" || len(text) > 7 {
		return 0, false
	}
	var r rune
	for _, c := range []byte(text) {
		d := digit(c)
		if d < 0 || rune(d) >= base {
			return 0, false
		}
		r = r*base + rune(d)
	}
	return r, r >= ' ' && r <= unicode.MaxRune && (r < 0xD800 || r >= 0xE000)
}

// digits is the value of each hexadecimal digit, -1 for other bytes.
var digits = func() (t [256]int8) {
	for c := range t {
		t[c] = -1
	}
	for i, c := range []byte("0123456789abcdef") {
		t[c] = int8(i)
	}
	for i, c := range []byte("ABCDEF") {
		t[c] = int8(i + 10)
	}
	return t
}()

// digit is the value of a hexadecimal digit, -1 when it is none.
func digit(c byte) int { return int(digits[c]) }
