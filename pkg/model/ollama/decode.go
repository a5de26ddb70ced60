package ollama

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"conclave/pkg/model"
)

// reply is a line of a chat's reply. It is read by hand: encoding/json took a third of the time of a whole request.
type reply struct {
	failed string // what the server says is wrong
	chunk  model.Chunk
}

// decode reads a line. It takes what encoding/json would take, with keys spelled as the server spells them. name is the
// model that was asked; most replies name it, and need no copy of it.
func decode(line []byte, name string) (r reply, ok bool) {
	s := scanner{b: line}
	f := &r.chunk.Final
	for first := true; s.more(&first, '{', '}'); {
		switch string(s.key()) {
		case "error":
			r.failed = s.text("")
		case "model":
			f.Model = s.text(name)
		case "remote_host":
			f.RemoteHost = s.text("")
		case "message":
			s.message(&r.chunk)
		case "done":
			r.chunk.Done = s.boolean()
		case "done_reason":
			f.Reason = s.text("stop")
		case "total_duration":
			f.Total = time.Duration(s.number())
		case "load_duration":
			f.Load = time.Duration(s.number())
		case "prompt_eval_count":
			f.PromptTokens = int(s.number())
		case "eval_count":
			f.OutputTokens = int(s.number())
		default:
			s.skip()
		}
	}
	if s.space(); s.i != len(s.b) {
		s.bad = true
	}
	if !r.chunk.Done {
		*f = model.Final{RemoteHost: f.RemoteHost} // where it was passed on to is told at first sight
	}
	return r, !s.bad
}

func (s *scanner) message(c *model.Chunk) {
	if s.null() {
		return
	}
	for first := true; s.more(&first, '{', '}'); {
		switch string(s.key()) {
		case "content":
			c.Content = s.text("")
		case "thinking":
			c.Thinking = s.text("")
		case "tool_calls":
			c.Calls = s.calls()
		default:
			s.skip()
		}
	}
}

func (s *scanner) calls() (calls []model.Call) {
	if s.null() {
		return nil
	}
	for first := true; s.more(&first, '[', ']'); {
		c := model.Call{}
		for first := true; s.more(&first, '{', '}'); {
			switch string(s.key()) {
			case "id":
				c.ID = s.text("")
			case "function":
				s.function(&c)
			default:
				s.skip()
			}
		}
		if c.Arguments == nil {
			c.Arguments = json.RawMessage(`{}`)
		}
		if calls == nil {
			calls = make([]model.Call, 0, 1) // append would make room for more of them
		}
		calls = append(calls, c)
	}
	return calls
}

func (s *scanner) function(c *model.Call) {
	for first := true; s.more(&first, '{', '}'); {
		switch string(s.key()) {
		case "name":
			c.Name = s.text("")
		case "arguments":
			if raw := s.raw(); string(raw) != "null" {
				c.Arguments = bytes.Clone(raw) // as the model wrote them
			}
		default:
			s.skip()
		}
	}
}

// scanner reads JSON. After the first thing that is wrong it reads nothing more, and bad says so.
type scanner struct {
	b     []byte
	i     int
	bad   bool
	depth int
}

// maxDepth bounds how deep values lie in one another.
const maxDepth = 1000

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// peek returns the first byte of the next value, 0 when there is none.
func (s *scanner) peek() byte {
	s.space()
	if s.bad || s.i >= len(s.b) {
		return 0
	}
	return s.b[s.i]
}

func (s *scanner) fail() {
	s.bad, s.i = true, len(s.b)
}

// take reads the byte c.
func (s *scanner) take(c byte) {
	if s.peek() != c {
		s.fail()
		return
	}
	s.i++
}

// more goes on to the next element of an object or array; it reports whether there is one. first is true before the first.
func (s *scanner) more(first *bool, begin, end byte) bool {
	if *first {
		s.take(begin)
		if s.depth++; s.depth > maxDepth {
			s.fail()
		}
		if *first = false; s.peek() != end {
			return !s.bad
		}
	} else if s.peek() == ',' {
		s.i++
		return true
	}
	s.take(end)
	s.depth--
	return false
}

// key reads a key and the colon behind it.
func (s *scanner) key() []byte {
	raw, plain := s.quoted()
	s.take(':')
	if !plain && !s.bad {
		return []byte(unquote(raw))
	}
	return raw
}

// quoted reads a string and returns what stands between the quotes. plain says that it needs no translation.
func (s *scanner) quoted() (raw []byte, plain bool) {
	s.take('"')
	from := s.i
	plain = true
	for s.i < len(s.b) {
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			return s.b[from : s.i-1], plain
		case c == '\\':
			plain = false
			if !s.escape() {
				s.fail()
				return nil, false
			}
		case c < ' ':
			s.fail()
			return nil, false
		default:
			if c >= utf8.RuneSelf {
				plain = false
			}
			s.i++
		}
	}
	s.fail()
	return nil, false
}

// escape steps over a backslash and what belongs to it.
func (s *scanner) escape() bool {
	if s.i+1 >= len(s.b) {
		return false
	}
	switch s.b[s.i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.i += 2
		return true
	case 'u':
		if s.i+6 <= len(s.b) {
			if _, ok := hex4(s.b[s.i+2:]); ok {
				s.i += 6
				return true
			}
		}
	}
	return false
}

// text reads a string; null is empty. When it is the usual one, that is returned and not a copy.
func (s *scanner) text(usual string) string {
	if s.null() {
		return ""
	}
	raw, plain := s.quoted()
	switch {
	case !plain && !s.bad:
		return unquote(raw)
	case string(raw) == usual:
		return usual
	}
	return string(raw)
}

// null reads a null if there is one.
func (s *scanner) null() bool {
	if s.peek() != 'n' {
		return false
	}
	s.word("null")
	return true
}

func (s *scanner) word(w string) {
	if !bytes.HasPrefix(s.b[s.i:], []byte(w)) {
		s.fail()
		return
	}
	s.i += len(w)
}

func (s *scanner) boolean() bool {
	switch s.peek() {
	case 't':
		s.word("true")
		return !s.bad
	case 'f':
		s.word("false")
	case 'n':
		s.word("null")
	default:
		s.fail()
	}
	return false
}

func (s *scanner) number() int64 {
	if s.null() {
		return 0
	}
	s.space()
	from := s.i
	s.digits()
	if s.bad {
		return 0
	}
	n, err := strconv.ParseInt(string(s.b[from:s.i]), 10, 64)
	if err != nil {
		s.fail()
		return 0
	}
	return n
}

// digits steps over a number.
func (s *scanner) digits() {
	at := func() byte {
		if s.i < len(s.b) {
			return s.b[s.i]
		}
		return 0
	}
	run := func() {
		if c := at(); c < '0' || c > '9' {
			s.fail()
			return
		}
		for c := at(); c >= '0' && c <= '9'; c = at() {
			s.i++
		}
	}
	if at() == '-' {
		s.i++
	}
	if at() == '0' {
		s.i++
	} else {
		run()
	}
	if at() == '.' {
		s.i++
		run()
	}
	if c := at(); c == 'e' || c == 'E' {
		s.i++
		if c := at(); c == '+' || c == '-' {
			s.i++
		}
		run()
	}
}

// raw reads any value and returns it as it stands.
func (s *scanner) raw() []byte {
	s.space()
	from := s.i
	s.skip()
	if s.bad {
		return nil
	}
	return s.b[from:s.i]
}

// skip reads any value.
func (s *scanner) skip() {
	switch s.peek() {
	case '{':
		for first := true; s.more(&first, '{', '}'); {
			s.key()
			s.skip()
		}
	case '[':
		for first := true; s.more(&first, '[', ']'); {
			s.skip()
		}
	case '"':
		s.quoted()
	case 't', 'f', 'n':
		s.boolean()
	default:
		s.digits()
	}
}

// unquote translates what stands between quotes. What is no UTF-8, and half of a surrogate pair, becomes U+FFFD.
func unquote(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 && utf8.Valid(raw) {
		return string(raw)
	}
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		c := raw[i]
		switch {
		case c != '\\' && c < utf8.RuneSelf:
			out = append(out, c)
			i++
		case c != '\\':
			r, size := utf8.DecodeRune(raw[i:])
			out = utf8.AppendRune(out, r)
			i += size
		case raw[i+1] == 'u':
			r, size := unquoteRune(raw[i:])
			out = utf8.AppendRune(out, r)
			i += size
		default:
			out = append(out, unescaped(raw[i+1]))
			i += 2
		}
	}
	return string(out)
}

func unescaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// unquoteRune reads \uXXXX, or two of them that belong together.
func unquoteRune(b []byte) (r rune, size int) {
	r, _ = hex4(b[2:])
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if len(b) >= 12 && b[6] == '\\' && b[7] == 'u' {
		low, _ := hex4(b[8:])
		if both := utf16.DecodeRune(r, low); both != utf8.RuneError {
			return both, 12
		}
	}
	return utf8.RuneError, 6
}

func hex4(b []byte) (r rune, ok bool) {
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
