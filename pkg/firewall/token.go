package firewall

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// stop is the set of what stands between a word and the one before it.
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
	wordRoles
	stop  stop
	opens bool // an expression of the vocabulary may begin with it
}

// scanner applies the rules to one text.
type scanner struct {
	f         *folded
	text      string
	tokens    []token
	hits      []hit
	isRecord  bool // it looks like data: a dictionary, a list, lines of key and value
	isDecoded bool // it was decoded from another text, and is not decoded again

	expressions []foundExpression // those that trigger a rule
	letters     []byte            // room for squeezed
}

func newScanner(f *folded) *scanner {
	s := &scanner{f: f, text: f.text}
	s.tokenize()
	return s
}

// tokenize prepares the text for the rules.
func (s *scanner) tokenize() {
	s.split()
	s.findExpressions()
	s.isRecord = looksLikeRecords(s.text)
}

// isWordByte marks the bytes that words are made of.
var isWordByte = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c >= 0x80
	}
	return t
}()

// split cuts the folded text into tokens and appends them to s.tokens. Words over maxWord bytes get no class from the
// lexicon.
func (s *scanner) split() {
	text := s.text
	s.tokens = slices.Grow(s.tokens, len(text)/5+4)
	between := sEnd | sLine
	for i := 0; i < len(text); {
		if !isWordByte[text[i]] {
			between |= s.stopOf(i)
			i++
			continue
		}
		start := i
		hasDigits := class(0)
		for i < len(text) && (isWordByte[text[i]] || i > start && isInnerApostrophe(text[i:])) {
			if text[i] >= '0' && text[i] <= '9' {
				hasDigits = cDigits
			}
			i++
		}
		var known lexeme
		if end, ok := addressEnd(text, start, i); ok {
			i, known.class = end, cAddress
		} else {
			if i-start <= maxWord {
				known = lookUp(text[start:i])
			}
			known.class |= hasDigits
		}
		s.tokens = append(s.tokens, token{int32(start), int32(i), known.class, known.wordRoles, between, known.opens})
		between = 0
	}
}

// maxWord is the length in bytes above which a word is not looked up.
const maxWord = 64

// isInnerApostrophe reports whether rest begins with an apostrophe that an ASCII letter or digit follows.
func isInnerApostrophe(rest string) bool {
	return rest[0] == '\'' && len(rest) > 1 && isWordByte[rest[1]] && rest[1] < utf8.RuneSelf
}

// stops is what a byte that is in no word means to the words around it, whatever its neighbours are.
var stops = func() (t [256]stop) {
	for marks, stop := range map[string]stop{
		"\n": sLine, "!": sEnd | sBang, "?": sEnd | sAsk, ":": sColon,
		",;": sComma, "\"'`": sQuote, "([{<": sOpen, ")]}>": sClose, "-*#|=/": sMark,
	} {
		for _, c := range []byte(marks) {
			t[c] = stop
		}
	}
	return t
}()

// stopOf returns what the byte at i, which is in no word, means to the words around it; 0 for nothing. A full stop
// counts only at the end of the text or before a blank, a line break, another full stop or a closing mark.
func (s *scanner) stopOf(i int) stop {
	text := s.text
	stop := stops[text[i]]
	switch {
	case text[i] == '.' && (i+1 == len(text) || strings.IndexByte(" \n\"'<.)\t", text[i+1]) >= 0):
		return sEnd
	case stop == sLine && strings.HasPrefix(strings.TrimLeft(text[i+1:min(len(text), i+12)], " \t"), "\n"):
		// an empty line
		return sEnd | sLine
	case stop == sQuote && i >= 2 && (text[i-1] == ' ' && isWordByte[text[i-2]] || text[i-1] == '(' &&
		text[i-2] == ' '):
		// Prose that quotes has a word and a blank before the mark; a record has a colon, a comma or a bracket.
		return sQuote | sProse
	}
	return stop
}

// addressEnd returns where the link or mail address ends whose first word is text[start:i]. ok is false when the word
// begins no address; a link is one with http://, https:// or www.
func addressEnd(text string, start, i int) (end int, ok bool) {
	if i+1 >= len(text) {
		return 0, false
	}
	switch word := text[start:i]; text[i] {
	case ':':
		if i+3 < len(text) && text[i+1:i+3] == "//" && (word == "http" || word == "https") {
			return linkEnd(text, i), true
		}
	case '.':
		if word == "www" {
			return linkEnd(text, i), true
		}
		return mailEnd(text, i)
	case '@', '-':
		return mailEnd(text, i)
	}
	return 0, false
}

// linkEnd returns where the link that goes on at i ends.
func linkEnd(text string, i int) int {
	for i < len(text) && strings.IndexByte(" \n\t\"'<>`)]}|", text[i]) < 0 {
		i++
	}
	return i
}

// mailEnd returns where the mail address ends whose name goes on at i; false when it has no @ within 64 bytes, or no
// dot in its host.
func mailEnd(text string, i int) (int, bool) {
	from := i
	for i < len(text) && i-from < 64 && (isWordByte[text[i]] || text[i] == '.' || text[i] == '-' || text[i] == '+') {
		i++
	}
	if i+1 >= len(text) || text[i] != '@' || !isWordByte[text[i+1]] {
		return 0, false
	}
	dot := false
	end := i + 1
	for end < len(text) && (isWordByte[text[end]] || text[end] == '.' || text[end] == '-') {
		if text[end] == '.' && end+1 < len(text) && isWordByte[text[end+1]] {
			dot = true
		}
		end++
	}
	for end > 0 && (text[end-1] == '.' || text[end-1] == '-') {
		end--
	}
	return end, dot
}

// looksLikeRecords reports whether the folded text is data: JSON, a dictionary, or at least four lines of key and
// value, the first line among them, in its first 60 lines.
func looksLikeRecords(text string) bool {
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

// next returns the first token after i of one of the classes, with at most gap words between and in the same sentence;
// -1 when there is none.
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

// nextStop returns the first token after i, at most n words on and in the same sentence, with one of the stops before
// it; -1 when there is none.
func (s *scanner) nextStop(i int, stop stop, n int) int {
	for j := i + 1; j < len(s.tokens) && j <= i+1+n && s.tokens[j].stop&sEnd == 0; j++ {
		if s.tokens[j].stop&stop != 0 {
			return j
		}
	}
	return -1
}

// isBehind reports whether one of the n tokens before i is of one of the classes.
func (s *scanner) isBehind(i int, c class, n int) bool {
	for j := i - 1; j >= max(0, i-n); j-- {
		if s.tokens[j].class&c != 0 {
			return true
		}
	}
	return false
}

// word returns the folded word of token i, "" when there is no such token.
func (s *scanner) word(i int) string {
	if i < 0 || i >= len(s.tokens) {
		return ""
	}
	return s.text[s.tokens[i].from:s.tokens[i].to]
}

// stopAt returns what stands before token i, 0 when there is no such token.
func (s *scanner) stopAt(i int) stop {
	if i < 0 || i >= len(s.tokens) {
		return 0
	}
	return s.tokens[i].stop
}

// is reports whether token i is exactly this word.
func (s *scanner) is(i int, word string) bool { return s.word(i) == word && word != "" }

// any reports whether token i is one of the words.
func (s *scanner) any(i int, words ...string) bool {
	return i >= 0 && i < len(s.tokens) && slices.Contains(words, s.word(i))
}

// has reports whether token i is of one of the classes.
func (s *scanner) has(i int, c class) bool {
	return i >= 0 && i < len(s.tokens) && s.tokens[i].class&c != 0
}

// begins reports whether an order may begin at token i, which must exist: at the beginning of a sentence, a line or a
// value, after punctuation or a bracket, or after a word such as please or "you must".
func (s *scanner) begins(i int) bool {
	if i == 0 || s.tokens[i].stop&(sEnd|sColon|sLine|sQuote|sOpen|sMark|sBang|sClose) != 0 {
		return true
	}
	if i > 1 && s.is(i-1, "you") && s.any(i-2, "can", "could", "will", "would", "must", "should") {
		return true
	}
	if i > 1 && s.isAdverb(i-1) && s.tokens[i-2].class&cPlease != 0 {
		return true
	}
	// is required to; assistant, ...
	if s.is(i-1, "to") && s.in(i-2, dutyTo) || s.tokens[i].stop&sComma != 0 && s.tokens[i-1].class&cAI != 0 {
		return true
	}
	return s.tokens[i-1].class&cLead != 0 || s.tokens[i].stop&sComma != 0 && s.tokens[i].class&cPlease != 0
}

// isAdverb reports whether token i ends like "securely".
func (s *scanner) isAdverb(i int) bool {
	return s.tokens[i].to-s.tokens[i].from > 4 && s.text[s.tokens[i].to-2:s.tokens[i].to] == "ly"
}

// politenessOf returns the token that makes the verb at i a polite request: "please" before it, with an adverb between
// at most; -1 when there is none.
func (s *scanner) politenessOf(i int) int {
	if i > 0 && s.has(i-1, cPlease) {
		return i - 1
	}
	if i > 1 && s.isAdverb(i-1) && s.has(i-2, cPlease) {
		return i - 2
	}
	return -1
}

// addTokens records a sign from token i to token j.
func (s *scanner) addTokens(t technique, weight, i, j int) {
	from := int(s.tokens[i].from)
	s.addHit(t, weight, from, int(s.tokens[j].to)-from)
}

// addHit records a sign at offset pos of the folded text that covers length bytes. The weight is cut to maxWeight. It
// records nothing for a weight of 0 or below, nor beyond maxHits signs.
func (s *scanner) addHit(t technique, weight, pos, length int) {
	if len(s.hits) >= maxHits || weight <= 0 {
		return
	}
	end := min(pos+max(length, 1), len(s.text))
	s.hits = append(s.hits, hit{
		tech: t, weight: min(weight, maxWeight), pos: pos, orig: s.f.origin(pos), length: length,
		quote: s.text[pos:min(end, pos+160)],
	})
}
