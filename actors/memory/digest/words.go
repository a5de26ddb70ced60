package digest

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// gap is what stands between a word and the one before it.
type gap uint8

const (
	gEnd   gap = 1 << iota // the beginning of the text, or the end of a sentence
	gComma                 // a comma
	gColon                 // a colon, a semicolon, a dash, a bracket
	gQuote                 // a quotation mark
	gLine                  // a line break
)

// word is a word or a number of a text.
type word struct {
	from, to int
	low      string // lower case, without accents
	gap      gap
	upper    bool // begins with a capital letter
	number   bool // begins with a digit
}

// words cuts s into words. Apostrophes, hyphens, and the points of a number belong to the word; letters of scripts that
// are written without blanks are words of their own.
func words(s string) []word {
	out := make([]word, 0, len(s)/5+1)
	between := gEnd
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if !inWord(r) {
			i += size
			if g := gapOf(r); g&(gEnd|gColon) == 0 || ends(s[i:]) {
				between |= g
			}
			continue
		}
		from := i
		i += size
		if !unspaced(r) {
			i += wordEnd(s[i:], r)
		}
		w := word{from: from, to: i, low: fold(s[from:i]), gap: between, upper: unicode.IsUpper(r), number: unicode.IsDigit(r)}
		out, between = append(out, w), 0
	}
	return out
}

// wordEnd is how far the word goes on in s, of which prev is the character before.
func wordEnd(s string, prev rune) int {
	i := 0
	for i < len(s) {
		r, size := utf8.DecodeRuneInString(s[i:])
		if !inWord(r) {
			next, _ := utf8.DecodeRuneInString(s[i+size:])
			letters := unicode.IsLetter(prev) && unicode.IsLetter(next) && (r == '\'' || r == '’' || r == '-')
			digits := unicode.IsDigit(prev) && unicode.IsDigit(next) && strings.ContainsRune(".,:/-", r)
			if !letters && !digits {
				break
			}
		} else if unspaced(r) {
			break
		}
		prev = r
		i += size
	}
	return i
}

func inWord(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r)
}

// unspaced tells the letters of scripts that put no blanks between words.
func unspaced(r rune) bool {
	return r >= 0x0E00 && r <= 0x0EFF || r >= 0x3040 && r <= 0x9FFF && r != 0x30FC || r >= 0x20000 && r <= 0x3FFFF
}

// ends tells whether a mark before s ends something: the point in "example.org" does not.
func ends(s string) bool {
	r, _ := utf8.DecodeRuneInString(s)
	return s == "" || r != '/' && !unicode.IsLower(r) && !unicode.IsDigit(r)
}

func gapOf(r rune) gap {
	switch r {
	case '.', '!', '?', '…', '。', '！', '？', '؟', '।':
		return gEnd
	case ',', '，', '、', '،':
		return gComma
	case ':', ';', '—', '–', '(', ')', '[', ']', '{', '}', '|', '>', '：', '；', '=', '•', '*', '#':
		return gColon
	case '"', '“', '”', '„', '«', '»', '‘', '`', '\'', '’', '「', '」', '『', '』':
		return gQuote
	case '\n':
		return gLine
	}
	return 0
}

// fold is s in lower case, without accents and with plain apostrophes, for comparing.
func fold(s string) string {
	ascii := true
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			ascii = false
			break
		}
	}
	if ascii {
		return strings.ToLower(s)
	}
	return norm.NFC.String(strings.Map(func(r rune) rune {
		switch {
		case r >= 0x300 && r <= 0x36F, r == 0x200B, r == 0x200C, r == 0x200D, r == 0xAD, r == 0xFEFF:
			return -1
		case r == '’':
			return '\''
		}
		return unicode.ToLower(r)
	}, norm.NFKD.String(s)))
}

// stem is a folded word without the endings that change most often. It is made for comparing words with one another.
func stem(w string) string {
	w = strings.TrimSuffix(w, "'s")
	if len(w) < 5 || w[0] >= utf8.RuneSelf || w[0] <= '9' {
		return w
	}
	for _, end := range []string{"ingly", "edly", "ing", "ies", "ied", "ed", "es", "s", "ly", "e"} {
		if rest, ok := strings.CutSuffix(w, end); ok && len(rest) >= 3 && !(end == "s" && strings.HasSuffix(rest, "s")) {
			if end == "ies" || end == "ied" {
				rest += "y"
			}
			if n := len(rest); n > 3 && rest[n-1] == rest[n-2] && end != "s" && end != "es" && end != "e" { // planned, running
				rest = rest[:n-1]
			}
			return strings.TrimSuffix(rest, "e")
		}
	}
	return w
}

// keys are the words of s that say what it is about, stemmed, in their order. Letters of scripts without blanks are taken
// in pairs. A text of nothing but small words keeps them.
func keys(s string) []string {
	all := words(s)
	out := make([]string, 0, len(all))
	for i, w := range all {
		r, size := utf8.DecodeRuneInString(w.low)
		if unspaced(r) && size == len(w.low) {
			if i+1 < len(all) && all[i+1].gap == 0 && all[i+1].from == w.to {
				out = append(out, w.low+all[i+1].low)
			}
			continue
		}
		if !small[w.low] {
			out = append(out, stem(w.low))
		}
	}
	if len(out) == 0 {
		for _, w := range all {
			out = append(out, w.low)
		}
	}
	return out
}

// small are the words that stand in every text.
var small = set(`a an the and or but of in on at to for from by with as is are was were be been being am i you he she it we they me him her
	us them my your his its our their mine yours this that these those there here what which who whom whose when where why how do does did
	done have has had having can could will would shall should may might must not no nor so if then than too very just about into over under
	also any some all each both more most such only own same other it's i'm i've don't what's please tell
	der die das den dem des ein eine einer einem einen und oder aber von in im am an auf zu zum zur fur mit ist sind war waren sein ich du er
	sie es wir ihr mein dein was wer wo wann wie warum nicht kein auch
	le la les un une des du de et ou mais dans sur pour par avec est sont etait je tu il elle nous vous mon ma mes ton ce cette que qui quoi
	el los las una y o pero en con por para es son era yo tu mi su que quien como donde cuando
	il lo gli i di e ma con per sono che chi come dove
	o os as um uma e mas em no na com por eu ele ela meu minha
	и в на с по к у за из от не что кто где когда как это он она они я ты мы вы`)
