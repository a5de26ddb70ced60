package loop

import (
	"bytes"
	"html"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/model"
)

// quoted knows the calls that stand in what tools returned. A model that shows a page to the user writes them as they
// stand there, and must not make them by that: whoever wrote the page is not the user. Nothing is looked at before a
// call was read from text, and each result once.
type quoted struct {
	t     *turn
	past  bool // the history and the summary are in
	next  int  // the first of the turn's messages that is not in
	texts []quotable
	calls map[uint64]bool // hashes of the calls in the texts
}

// quotable is a text of somebody else, without white space.
type quotable struct {
	text  string
	vague bool // there was too much in it that might be calls: none of a tool that it names is run
}

// any reports whether there is a text that a call may be copied from.
func (q *quoted) any() bool {
	if q == nil || q.t == nil {
		return false
	}
	q.collect()
	return len(q.texts) > 0
}

// has reports whether a call that was read from text stands in a result of this turn or of the history, to the letter or
// in other words. It takes a note of it.
func (q *quoted) has(f *found) bool {
	if !q.any() || !q.holds(f) {
		return false
	}
	q.t.note(NoteQuoted, "a call that the model copied from a tool's result was not run")
	return true
}

func (q *quoted) holds(f *found) bool {
	if key, ok := q.key(&f.Call); ok && q.calls[key] {
		return true
	}
	name, source := squeeze(f.Name), squeeze(string(f.source))
	for _, t := range q.texts {
		if t.vague && strings.Contains(t.text, name) || source != "" && strings.Contains(t.text, source) {
			return true
		}
	}
	return false
}

// key is the hash of a call with its arguments made fit, as it would run; false when it would not.
func (q *quoted) key(c *model.Call) (uint64, bool) {
	for i := range q.t.a.Tools {
		if tool := &q.t.a.Tools[i]; tool.Name == c.Name {
			s, err := ready(tool)
			if err != nil {
				return 0, false
			}
			fit, wrong := s.arguments(c.Arguments)
			return callHash(&model.Call{Name: c.Name, Arguments: fit}), wrong == ""
		}
	}
	return 0, false
}

// collect takes in what was returned since it was last asked.
func (q *quoted) collect() {
	if !q.past {
		q.past = true
		q.add(q.t.summary) // a model made it, of results too
		q.addResults(q.t.past)
	}
	q.addResults(q.t.s.Messages[min(q.next, len(q.t.s.Messages)):])
	q.next = len(q.t.s.Messages)
}

func (q *quoted) addResults(ms []model.Message) {
	for i := range ms {
		if ms[i].Role == model.ToolRole {
			q.add(ms[i].Content)
		}
	}
}

// add takes in one text, as it stands and as it reads once its escapes are undone: much of what tools return is JSON or
// HTML that holds a page as text.
func (q *quoted) add(text string) {
	for range maxEscapes {
		if q.names(text) {
			left := maxLook + 32*len(text)
			q.find([]byte(text), &left)
			q.texts = append(q.texts, quotable{squeeze(text), left < 0})
		}
		plain := unescaped(text)
		if plain == text {
			return
		}
		text = plain
	}
}

const (
	maxEscapes = 3       // how often a text is unescaped, the first time not at all
	maxLook    = 1 << 20 // how many bytes of one text are looked at in search of calls, besides 32 for each of its own
)

// names reports whether a text names an offered tool.
func (q *quoted) names(text string) bool {
	for _, name := range q.t.names {
		if strings.Contains(text, name) {
			return true
		}
	}
	return false
}

// find takes in the calls in b, wherever they stand. left is how many bytes may be looked at; below 0 not all of b was.
func (q *quoted) find(b []byte, left *int) {
	n := q.t.names
	for i := 0; i < len(b) && *left >= 0; i++ {
		var calls []found
		switch c := b[i]; {
		case c == '{' && promising(b[i:min(len(b), i+4*maxGap)]) == 1:
			w := walk{at: i}
			end, _ := w.end(b)
			*left -= end - i
			if !w.deep {
				calls, _, _ = n.jsonAt(b[i:end])
			}
		case c == '<' && n.has(tagName(b[i:])):
			var size int
			calls, _, size = n.elementAt(b[i:])
			*left -= looked(size, len(b)-i)
		case isWord(c) && (i == 0 || !isWord(b[i-1])):
			if _, body := n.head(b[i:min(len(b), i+maxName+2*maxGap)]); body > 0 {
				var size int
				calls, size = n.textAt(b[i:])
				*left -= looked(size, len(b)-i)
			}
		}
		q.take(calls)
	}
}

// looked is how many bytes it took to find a call of this size, or none in the rest.
func looked(size, rest int) int {
	if size > 0 {
		return size
	}
	return rest
}

func (q *quoted) take(calls []found) {
	for i := range calls {
		if key, ok := q.key(&calls[i].Call); ok {
			if q.calls == nil {
				q.calls = map[uint64]bool{}
			}
			q.calls[key] = true
		}
	}
}

// tagName is the tool that an element at the start of b names.
func tagName(b []byte) string {
	_, name, _ := openTag(b[:min(len(b), maxName+40)])
	return name
}

// squeeze is s without white space: models set what they copy in lines of their own.
func squeeze(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, s)
}

// unescaped is s with the escapes of HTML and of JSON texts undone.
func unescaped(s string) string {
	s = html.UnescapeString(s)
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	var out bytes.Buffer
	out.Grow(len(s))
	for s != "" {
		i := strings.IndexByte(s, '\\')
		if i < 0 || i == len(s)-1 {
			out.WriteString(s)
			break
		}
		out.WriteString(s[:i])
		r, size := unescape(s[i+1:])
		out.WriteRune(r)
		s = s[i+1+size:]
	}
	return out.String()
}

// unescape reads what stands after a backslash.
func unescape(s string) (r rune, size int) {
	switch s[0] {
	case 'n', 'r', 't', 'f', 'b':
		return ' ', 1
	case 'u':
		if len(s) >= 5 {
			if n, err := strconv.ParseUint(s[1:5], 16, 16); err == nil {
				return rune(n), 5
			}
		}
	}
	return utf8.DecodeRuneInString(s)
}
