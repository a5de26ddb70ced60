package firewall

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/text"
	"golang.org/x/text/unicode/norm"
)

// folded is a text prepared for the rules: lower case, no accents, look-alikes as ASCII, escapes resolved. It differs
// from [text.Fold], which counts nothing hidden and resolves no escapes.
type folded struct {
	text          string
	tags          int    // tag characters that are no part of a flag emoji
	zeroWidth     int    // zero-width characters that join no emoji
	bidiOverrides int    // of these, overrides of the direction
	firstHidden   int    // where in the text the first hidden character stood, -1 when there is none
	tagText       string // the ASCII that the tag characters mirror
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

// fold folds s in one pass, see [folded]. Invalid UTF-8 becomes blanks.
func fold(s string) *folded {
	f := &folder{folded: &folded{firstHidden: -1}, out: make([]byte, 0, len(s)+8)}
	for i := 0; i < len(s); {
		out, from := f.out, i
		for i < len(s) && plainBytes[s[i]] != 0 { // nearly every character of nearly every text
			out = append(out, plainBytes[s[i]])
			i++
		}
		f.out = out
		if i > from {
			f.previous = rune(s[i-1])
		}
		switch {
		case i == len(s):
		case s[i] < utf8.RuneSelf:
			i += f.foldASCII(s[i:])
		default:
			r, size := utf8.DecodeRuneInString(s[i:])
			f.foldWide(r)
			i += size
		}
	}
	f.text, f.tagText = string(f.out), string(f.tagBytes)
	return f.folded
}

// folder is the state of fold.
type folder struct {
	*folded
	out      []byte
	tagBytes []byte
	previous rune // the last visible character, which tells an emoji sequence from a trick
}

// markHidden notes a character that is not shown.
func (f *folder) markHidden() {
	if f.firstHidden < 0 {
		f.firstHidden = len(f.out)
	}
}

func (f *folder) putTag(r rune) {
	f.tags++
	f.tagBytes = append(f.tagBytes, byte(r-text.TagBase))
	f.foldRune(r - text.TagBase)
}

// foldASCII folds the backslash, & or control character that rest begins with, and the escape that it opens, and
// returns how many bytes it read. A control character that is no line break
// is dropped; an invisible character is hidden also when it is written as an escape.
func (f *folder) foldASCII(rest string) int {
	c, size := rest[0], 1
	switch c {
	case '\\', '&':
		r, n := unescape(rest)
		if n == 0 {
			f.out = append(f.out, c)
			break
		}
		size = n
		switch {
		case text.IsTag(r):
			f.markHidden()
			f.putTag(r)
		case r != '\n' && text.IsInvisible(r):
			f.markHidden()
			f.zeroWidth++
		default:
			f.foldRune(r)
		}
	case '\r', '\v', '\f':
		f.out = append(f.out, '\n')
	default:
		f.markHidden()
	}
	f.previous = rune(c)
	return size
}

// blackFlag is the emoji that tag characters turn into the flag of a region.
const blackFlag = 0x1F3F4

// foldWide folds a character beyond ASCII. Invisible ones are dropped, except that tag characters become the ASCII they
// mirror. Those that join an emoji, and the tags of a flag emoji, are not counted.
func (f *folder) foldWide(r rune) {
	switch {
	case text.IsTag(r):
		f.markHidden()
		if f.previous != blackFlag {
			f.putTag(r)
		}
	case text.IsInvisible(r):
		if joinsEmoji := (r == 0x200D || r >= 0xFE00 && r <= 0xFE0F) && f.previous > 0xFF; !joinsEmoji {
			f.markHidden()
			f.zeroWidth++
		}
		if r == 0x202D || r == 0x202E {
			f.bidiOverrides++
		}
	default:
		f.foldRune(r)
		f.previous = r
	}
}

// foldRune writes the compatibility decomposition of r without accents, look-alikes as ASCII, in lower case.
// Chinese, Japanese and Korean characters are not decomposed.
func (f *folder) foldRune(r rune) {
	if c, ok := text.Lookalike(r); ok {
		r = rune(c)
	}
	if r < utf8.RuneSelf {
		f.out = append(f.out, byte(unicode.ToLower(r)))
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
			f.putRune(p, isCJK)
		}
	}
}

// putRune writes one character of a decomposition in lower case: white space and invalid UTF-8 as a blank, 。 as a line
// break, the marks that end or divide sentences in other scripts and look-alikes as ASCII. Emoji and bullets become
// "*", except with isCJK: they are no part of a word.
func (f *folder) putRune(r rune, isCJK bool) {
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
	f.out = utf8.AppendRune(f.out, unicode.ToLower(r))
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
