package firewall

import (
	"slices"
	"strings"
)

// stop is what stands between a word and the one before it.
type stop uint16

const (
	sEnd   stop = 1 << iota // the end of a sentence, or an empty line
	sColon                  // a colon
	sComma                  // a comma or semicolon
	sLine                   // a line break
	sQuote                  // a quotation mark or backtick
	sOpen                   // an opening bracket
	sMark                   // a bullet, a hash, a dash
	sBang                   // an exclamation mark
	sAsk                    // a question mark
	sProse                  // a quotation mark after a word of prose, as somebody quotes
	sClose                  // a closing bracket or angle
)

// token is a word, a number or an address of the folded text.
type token struct {
	from, to int32
	class    class
	stop     stop
}

// scanner is one text on its way through the rules.
type scanner struct {
	f      *folded
	text   string
	tokens []token
	hits   []hit
	data   bool // it looks like records: a dictionary, a list, lines of key and value
	deep   bool // it was decoded from another text, and is not decoded again

	letters []byte // room for squeezed
}

func newScanner(f *folded) *scanner {
	s := &scanner{f: f, text: f.text}
	s.begin()
	return s
}

// begin cuts the text into tokens.
func (s *scanner) begin() {
	s.split()
	s.data = records(s.text)
}

// inWord tells the bytes that words are made of.
var inWord = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c >= 0x80
	}
	return t
}()

// split cuts the text into tokens.
func (s *scanner) split() {
	text := s.text
	s.tokens = slices.Grow(s.tokens, len(text)/5+4)
	between := sEnd | sLine
	for i := 0; i < len(text); {
		c := text[i]
		if !inWord[c] {
			between |= s.between(i)
			i++
			continue
		}
		start := i
		digits := false
		for i < len(text) && (inWord[text[i]] || text[i] == '\'' && i+1 < len(text) && inWord[text[i+1]] && text[i+1] < 0x80 && i > start) {
			if text[i] >= '0' && text[i] <= '9' {
				digits = true
			}
			i++
		}
		class := class(0)
		word := text[start:i]
		switch {
		case i+3 < len(text) && text[i] == ':' && text[i+1:i+3] == "//" && (word == "http" || word == "https"),
			i+1 < len(text) && text[i] == '.' && word == "www":
			i = addressEnd(text, i)
			class = cAddress
		case i+1 < len(text) && (text[i] == '@' || text[i] == '.' || text[i] == '-'):
			if end, ok := mail(text, i); ok {
				i, class = end, cAddress
				break
			}
			fallthrough
		default:
			if len(word) <= 24 {
				class = lookup(word)
			}
			if digits {
				class |= cDigits
			}
		}
		s.tokens = append(s.tokens, token{int32(start), int32(i), class, between})
		between = 0
	}
}

// between is what the byte at i says about the words around it.
func (s *scanner) between(i int) stop {
	text := s.text
	next := byte(' ')
	if i+1 < len(text) {
		next = text[i+1]
	}
	switch text[i] {
	case '\n':
		for j := i + 1; j < len(text) && j < i+12; j++ {
			if text[j] == '\n' {
				return sEnd | sLine
			}
			if text[j] != ' ' && text[j] != '\t' {
				break
			}
		}
		return sLine
	case '.':
		if next == ' ' || next == '\n' || next == '"' || next == '\'' || next == '<' || next == '.' || next == ')' || next == '\t' {
			return sEnd
		}
	case '!':
		return sEnd | sBang
	case '?':
		return sEnd | sAsk
	case ':':
		return sColon
	case ',', ';':
		return sComma
	case '"', '\'', '`':
		// Prose that quotes has a word and a blank before the mark; a record has a colon, a comma or a bracket.
		if i >= 2 && (text[i-1] == ' ' && inWord[text[i-2]] || text[i-1] == '(' && text[i-2] == ' ') {
			return sQuote | sProse
		}
		return sQuote
	case '(', '[', '{', '<':
		return sOpen
	case ')', ']', '}', '>':
		return sClose
	case '-', '*', '#', '|', '=', '/':
		return sMark
	}
	return 0
}

// addressEnd is where the link that goes on at i ends.
func addressEnd(text string, i int) int {
	for i < len(text) && strings.IndexByte(" \n\t\"'<>`)]}|", text[i]) < 0 {
		i++
	}
	return i
}

// mail is where the mail address ends whose name goes on at i.
func mail(text string, i int) (int, bool) {
	from := i
	for i < len(text) && i-from < 64 && (inWord[text[i]] || text[i] == '.' || text[i] == '-' || text[i] == '+') {
		i++
	}
	if i+1 >= len(text) || text[i] != '@' || !inWord[text[i+1]] {
		return 0, false
	}
	dot := false
	end := i + 1
	for end < len(text) && (inWord[text[end]] || text[end] == '.' || text[end] == '-') {
		if text[end] == '.' && end+1 < len(text) && inWord[text[end+1]] {
			dot = true
		}
		end++
	}
	for end > 0 && (text[end-1] == '.' || text[end-1] == '-') {
		end--
	}
	return end, dot
}

// records tells whether the text is data in the form of records.
func records(text string) bool {
	t := strings.TrimLeft(text, " \n\t")
	if t == "" {
		return false
	}
	head := t[:min(len(t), 40)]
	if t[0] == '{' || t[0] == '[' {
		return strings.ContainsAny(head[1:], "'\"{:")
	}
	lines := 0
	rest := t[:min(len(t), 4000)]
	for n := 0; rest != "" && n < 60; n++ {
		line, after, _ := strings.Cut(rest, "\n")
		rest = after
		line = strings.TrimLeft(line, " -")
		key := 0
		for key < len(line) && (line[key] >= 'a' && line[key] <= 'z' || line[key] == '_') {
			key++
		}
		if key > 1 && key < len(line) && line[key] == ':' && (key+1 == len(line) || line[key+1] == ' ') {
			lines++
			if lines == 4 {
				return true
			}
		} else if n == 0 {
			return false
		}
	}
	return false
}

// next is the first token after i of one of the classes, with at most gap words between and in the same sentence; -1
// when there is none.
func (s *scanner) next(i int, c class, gap int) int {
	for j := i + 1; j < len(s.tokens) && j <= i+1+gap; j++ {
		if s.tokens[j].stop&sEnd != 0 {
			return -1
		}
		if s.tokens[j].class&c != 0 {
			return j
		}
	}
	return -1
}

// behind tells whether one of the n tokens before i is of one of the classes.
func (s *scanner) behind(i int, c class, n int) bool {
	for j := i - 1; j >= max(0, i-n); j-- {
		if s.tokens[j].class&c != 0 {
			return true
		}
	}
	return false
}

// is tells whether token i is exactly this word.
func (s *scanner) is(i int, word string) bool {
	return i >= 0 && i < len(s.tokens) && s.text[s.tokens[i].from:s.tokens[i].to] == word
}

// any tells whether token i is one of the words.
func (s *scanner) any(i int, words ...string) bool {
	for _, w := range words {
		if s.is(i, w) {
			return true
		}
	}
	return false
}

// has tells whether token i is of one of the classes.
func (s *scanner) has(i int, c class) bool {
	return i >= 0 && i < len(s.tokens) && s.tokens[i].class&c != 0
}

// begins tells whether an order may begin at token i: at the beginning of a sentence, a line or a value, or after a
// word such as please.
func (s *scanner) begins(i int) bool {
	if i == 0 || s.tokens[i].stop&(sEnd|sColon|sLine|sQuote|sOpen|sMark|sBang|sClose) != 0 {
		return true
	}
	if i > 1 && s.is(i-1, "you") && s.any(i-2, "can", "could", "will", "would", "must", "should") {
		return true
	}
	if i > 1 && s.adverb(i-1) && s.tokens[i-2].class&cPlease != 0 {
		return true
	}
	return s.tokens[i-1].class&cLead != 0 || s.tokens[i].stop&sComma != 0 && s.tokens[i].class&cPlease != 0
}

// adverb tells words such as securely.
func (s *scanner) adverb(i int) bool {
	return s.tokens[i].to-s.tokens[i].from > 4 && s.text[s.tokens[i].to-2:s.tokens[i].to] == "ly"
}

// please is the token that makes the verb at i a polite request, -1 when there is none.
func (s *scanner) please(i int) int {
	if i > 0 && s.has(i-1, cPlease) {
		return i - 1
	}
	if i > 1 && s.adverb(i-1) && s.has(i-2, cPlease) {
		return i - 2
	}
	return -1
}

// add records a sign from token i to token j.
func (s *scanner) add(t technique, weight, i, j int) {
	from := int(s.tokens[i].from)
	s.hit(t, weight, from, int(s.tokens[j].to)-from)
}

// hit records a sign in the folded text.
func (s *scanner) hit(t technique, weight, pos, length int) {
	if len(s.hits) >= maxHits || weight <= 0 {
		return
	}
	end := min(pos+max(length, 1), len(s.text))
	s.hits = append(s.hits, hit{
		tech: t, weight: min(weight, maxWeight), pos: pos, orig: s.f.origin(pos), length: length,
		quote: s.text[pos:min(end, pos+160)],
	})
}
