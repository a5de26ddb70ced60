package firewall

import (
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/text"
	"golang.org/x/text/unicode/norm"
)

// folded is a text prepared for the rules: lower case, no accents, look-alikes as ASCII, escapes resolved, and for each
// byte its offset in the original. It differs from [text.Fold], which keeps no offsets and no escapes apart.
type folded struct {
	text          string
	at            []int32 // at[i] is the offset of text[i] in the original
	hidden        int     // characters that are not shown
	tags          int     // of these, tag characters that are no part of a flag emoji
	zeroWidth     int     // of these, zero-width characters that join no emoji
	bidiOverrides int     // of these, overrides of the direction
	firstHidden   int     // offset of the first hidden character in the original, -1 when there is none
	tagText       string  // the ASCII that the tag characters mirror
}

// origin returns the offset in the original of the folded byte i, -1 when i is out of range.
func (f *folded) origin(i int) int {
	if i < 0 || i >= len(f.at) {
		return -1
	}
	return int(f.at[i])
}

// countHidden counts a character at offset i of the original that is not shown.
func (f *folded) countHidden(i int) {
	if f.firstHidden < 0 {
		f.firstHidden = i
	}
	f.hidden++
}

// plainBytes maps each byte that stands for itself to its lower case; 0 for bytes that need a closer look.
var plainBytes = func() (t [256]byte) {
	for c := byte(' '); c < 0x7f; c++ {
		t[c] = c
	}
	for c := byte('A'); c <= 'Z'; c++ {
		t[c] = c + 'a' - 'A'
	}
	t['\n'], t['\t'], t['\\'], t['&'] = '\n', '\t', 0, 0
	return t
}()

// foldText returns the folded text of s.
func foldText(s string) string { return foldInto(s, nil).text }

// foldInto folds s in one pass, see [folded]. offsets is memory to reuse for the offset of each byte, and may be nil;
// the result holds it. Invalid UTF-8 becomes blanks.
func foldInto(s string, offsets []int32) *folded {
	f := &folder{folded: &folded{firstHidden: -1, at: slices.Grow(offsets, len(s)+8)}, out: make([]byte, 0, len(s)+8)}
	for i := 0; i < len(s); {
		out, at, from := f.out, f.at, i
		for i < len(s) && plainBytes[s[i]] != 0 { // nearly every character of nearly every text
			out, at = append(out, plainBytes[s[i]]), append(at, int32(i))
			i++
		}
		f.out, f.at = out, at
		if i > from {
			f.previous = rune(s[i-1])
		}
		switch {
		case i == len(s):
		case s[i] < utf8.RuneSelf:
			i += f.foldASCII(s[i:], i)
		default:
			r, size := utf8.DecodeRuneInString(s[i:])
			f.foldWide(r, i)
			i += size
		}
	}
	f.text, f.tagText = string(f.out), string(f.tagBytes)
	return f.folded
}

// folder is the state of foldInto.
type folder struct {
	*folded
	out      []byte
	tagBytes []byte
	previous rune // the last visible character, which tells an emoji sequence from a trick
}

func (f *folder) put(c byte, at int) {
	f.out = append(f.out, c)
	f.at = append(f.at, int32(at))
}

func (f *folder) putTag(r rune, at int) {
	f.tags++
	f.tagBytes = append(f.tagBytes, byte(r-text.TagBase))
	f.foldRune(r-text.TagBase, at)
}

// foldASCII folds the backslash, & or control character that rest begins with, and the escape that it opens, and
// returns how many bytes it read. at is the offset of rest in the original. A control character that is no line break
// is dropped and counted as hidden; an invisible character counts as hidden also when it is written as an escape.
func (f *folder) foldASCII(rest string, at int) int {
	c, size := rest[0], 1
	switch c {
	case '\\', '&':
		r, n := unescape(rest)
		if n == 0 {
			f.put(c, at)
			break
		}
		size = n
		switch {
		case text.IsTag(r):
			f.countHidden(at)
			f.putTag(r, at)
		case r != '\n' && text.IsInvisible(r):
			f.countHidden(at)
			f.zeroWidth++
		default:
			f.foldRune(r, at)
		}
	case '\r', '\v', '\f':
		f.put('\n', at)
	default:
		f.countHidden(at)
	}
	f.previous = rune(c)
	return size
}

// blackFlag is the emoji that tag characters turn into the flag of a region.
const blackFlag = 0x1F3F4

// foldWide folds a character beyond ASCII at offset at of the original. Invisible ones are counted as hidden and
// dropped, except that tag characters become the ASCII they mirror. Those that join an emoji are dropped without being
// counted, and the tags of a flag emoji count as hidden only.
func (f *folder) foldWide(r rune, at int) {
	switch {
	case text.IsTag(r):
		f.countHidden(at)
		if f.previous != blackFlag {
			f.putTag(r, at)
		}
	case text.IsInvisible(r):
		if joinsEmoji := (r == 0x200D || r >= 0xFE00 && r <= 0xFE0F) && f.previous > 0xFF; !joinsEmoji {
			f.countHidden(at)
			f.zeroWidth++
		}
		if r == 0x202D || r == 0x202E {
			f.bidiOverrides++
		}
	default:
		f.foldRune(r, at)
		f.previous = r
	}
}

// foldRune writes the compatibility decomposition of r without accents, look-alikes as ASCII, in lower case. Each byte
// gets the offset at. Chinese, Japanese and Korean characters are not decomposed.
func (f *folder) foldRune(r rune, at int) {
	if c, ok := text.Lookalike(r); ok {
		r = rune(c)
	}
	if r < utf8.RuneSelf {
		f.put(byte(unicode.ToLower(r)), at)
		return
	}
	var buf [utf8.UTFMax]byte
	whole := buf[:utf8.EncodeRune(buf[:], r)]
	isCJK := r >= 0x3040 && r <= 0x9FFF || r >= 0xAC00 && r <= 0xD7A3 // not worth decomposing
	if !isCJK {
		if d := norm.NFKD.Properties(whole).Decomposition(); d != nil {
			whole = d
		}
	}
	for _, p := range string(whole) {
		isMark := text.IsAccent(p) || p >= 0x591 && p <= 0x6ed && text.IsFoldedAway(p) // vowels of Hebrew and Arabic
		if !isMark {
			f.putRune(p, at, isCJK)
		}
	}
}

// putRune writes one character of a decomposition in lower case: white space and invalid UTF-8 as a blank, 。 as a line
// break, the marks that end or divide sentences in other scripts and look-alikes as ASCII. Emoji and bullets become
// "*", except with isCJK: they are no part of a word.
func (f *folder) putRune(r rune, at int, isCJK bool) {
	switch {
	case unicode.IsSpace(r) || r == utf8.RuneError:
		r = ' '
	case r == '。':
		r = '\n'
	case r == '।' || r == '॥' || r == '۔':
		r = '.'
	case r == '؟':
		r = '?'
	case r == '؛' || r == '،' || r == '、' || r == '·':
		r = ','
	case r >= 0x80 && !isCJK && !unicode.IsLetter(r) && !unicode.IsMark(r) && !unicode.IsNumber(r):
		r = '*'
	}
	if c, ok := text.Lookalike(r); ok {
		r = rune(c)
	}
	var b [utf8.UTFMax]byte
	for _, c := range b[:utf8.EncodeRune(b[:], unicode.ToLower(r))] {
		f.put(c, at)
	}
}

var (
	backslashEscapes = map[byte]rune{
		'n': '\n', 'r': '\n', 't': ' ', '"': '"', '\'': '\'', '/': '/', ' ': ' ',
		'\n': '\n',
	}
	hexEscapes = map[byte]int{'u': 4, 'x': 2} // how many digits follow
	entities   = map[string]rune{"lt": '<', "gt": '>', "amp": '&', "quot": '"', "apos": '\'', "nbsp": ' '}
)

// unescape resolves the escape of a programming language or of HTML at the beginning of s: \n, \", \u0069, &#105;,
// &lt;. s must begin with a backslash or &. size is how many bytes it takes, 0 when s begins with no known escape. Line
// breaks are '\n'.
func unescape(s string) (r rune, size int) {
	if len(s) < 2 {
		return 0, 0
	}
	if s[0] == '\\' {
		if r, ok := backslashEscapes[s[1]]; ok {
			return r, 2
		}
		if n := hexEscapes[s[1]]; n > 0 && len(s) >= 2+n {
			if r, ok := parseRune(s[2:2+n], 16); ok {
				return r, 2 + n
			}
		}
		return 0, 0
	}
	end := strings.IndexByte(s[:min(len(s), 10)], ';')
	if end < 3 {
		return 0, 0
	}
	name := s[1:end]
	if r, ok := entities[name]; ok {
		return r, end + 1
	}
	value, isNumber := strings.CutPrefix(name, "#")
	if !isNumber {
		return 0, 0
	}
	base := 10
	if strings.HasPrefix(value, "x") || strings.HasPrefix(value, "X") {
		base, value = 16, value[1:]
	}
	if r, ok := parseRune(value, base); ok {
		return r, end + 1
	}
	return 0, 0
}

// parseRune reads the number of a character, of at most 7 digits. It rejects control characters below the blank,
// surrogates and numbers that are no character.
func parseRune(digits string, base int) (rune, bool) {
	if len(digits) > 7 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, base, 32)
	return rune(n), err == nil && n >= ' ' && n <= unicode.MaxRune && (n < 0xD800 || n >= 0xE000)
}

// hexDigits is the value of each hexadecimal digit, -1 for other bytes.
var hexDigits = func() (t [256]int8) {
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

// hexDigit returns the value of a hexadecimal digit, -1 when c is none.
func hexDigit(c byte) int { return int(hexDigits[c]) }
