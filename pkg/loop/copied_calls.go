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

// copiedCalls knows the calls that stand in what tools returned. A model that shows a page to the user writes them as they
// stand there, and must not make them by that: whoever wrote the page is not the user. Nothing is looked at before a
// call was read from text, and each result once.
type copiedCalls struct {
	turn        *turn
	historyRead bool // the history and the summary are in
	nextMessage int  // the first of the turn's messages that is not in
	texts       []copySource
	calls       map[uint64]bool // hashes of the calls in the texts
}

// copySource is a text of somebody else, without white space.
type copySource struct {
	text       string
	incomplete bool // there was too much in it that might be calls: none of a tool that it names is run
}

// hasSources reports whether there is a text that a call may be copied from.
func (q *copiedCalls) hasSources() bool {
	if q == nil || q.turn == nil {
		return false
	}
	q.collect()
	return len(q.texts) > 0
}

// contains reports whether a call that was read from text stands in a result of this turn or of the history, to the letter or
// in other words. It takes a note of it.
func (q *copiedCalls) contains(f *foundCall) bool {
	if !q.hasSources() || !q.matches(f) {
		return false
	}
	q.turn.addNote(NoteCopied, "a call that the model copied from a tool's result was not run")
	return true
}

func (q *copiedCalls) matches(f *foundCall) bool {
	if key, ok := q.canonicalCall(&f.Call); ok && q.calls[key] {
		return true
	}
	name, source := removeSpace(f.Name), removeSpace(string(f.source))
	for _, t := range q.texts {
		if t.incomplete && strings.Contains(t.text, name) || source != "" && strings.Contains(t.text, source) {
			return true
		}
	}
	return false
}

// canonicalCall is the hash of a call with its arguments made fit, as it would run; false when it would not.
func (q *copiedCalls) canonicalCall(c *model.Call) (uint64, bool) {
	for i := range q.turn.agent.Tools {
		if tool := &q.turn.agent.Tools[i]; tool.Name == c.Name {
			s, err := cachedSchema(tool)
			if err != nil {
				return 0, false
			}
			fit, wrong := s.fitArguments(c.Arguments)
			return callHash(&model.Call{Name: c.Name, Arguments: fit}), wrong == ""
		}
	}
	return 0, false
}

// collect takes in what was returned since it was last asked.
func (q *copiedCalls) collect() {
	if !q.historyRead {
		q.historyRead = true
		q.addText(q.turn.summary) // a model made it, of results too
		q.addResults(q.turn.history)
	}
	q.addResults(q.turn.state.Messages[min(q.nextMessage, len(q.turn.state.Messages)):])
	q.nextMessage = len(q.turn.state.Messages)
}

func (q *copiedCalls) addResults(ms []model.Message) {
	for i := range ms {
		if ms[i].Role == model.ToolRole {
			q.addText(ms[i].Content)
		}
	}
}

// addText takes in one text, as it stands and as it reads once its escapes are undone: much of what tools return is JSON or
// HTML that holds a page as text.
func (q *copiedCalls) addText(text string) {
	for range maxUnescapes {
		if q.namesTool(text) {
			left := maxSearchBytes + 32*len(text)
			q.findCalls([]byte(text), &left)
			q.texts = append(q.texts, copySource{removeSpace(text), left < 0})
		}
		plain := unescapeText(text)
		if plain == text {
			return
		}
		text = plain
	}
}

const (
	maxUnescapes   = 3       // how often a text is unescaped, the first time not at all
	maxSearchBytes = 1 << 20 // how many bytes of one text are looked at in search of calls, besides 32 for each of its own
)

// namesTool reports whether a text names an offered tool.
func (q *copiedCalls) namesTool(text string) bool {
	for _, name := range q.turn.tools {
		if strings.Contains(text, name) {
			return true
		}
	}
	return false
}

// findCalls takes in the calls in b, wherever they stand. left is how many bytes may be looked at; below 0 not all of b was.
func (q *copiedCalls) findCalls(b []byte, left *int) {
	n := q.turn.tools
	for i := 0; i < len(b) && *left >= 0; i++ {
		var calls []foundCall
		switch c := b[i]; {
		case c == '{' && looksLikeCall(b[i:min(len(b), i+4*maxGap)]) == 1:
			w := valueScanner{pos: i}
			end, _ := w.findEnd(b)
			*left -= end - i
			if !w.tooDeep {
				calls, _, _ = n.parseJSONCalls(b[i:end])
			}
		case c == '<' && n.has(elementTool(b[i:])):
			var size int
			calls, _, size = n.parseElement(b[i:])
			*left -= searchedBytes(size, len(b)-i)
		case isNameByte(c) && (i == 0 || !isNameByte(b[i-1])):
			if _, body := n.parseCallHead(b[i:min(len(b), i+maxName+2*maxGap)]); body > 0 {
				var size int
				calls, size = n.parseNamedCall(b[i:])
				*left -= searchedBytes(size, len(b)-i)
			}
		}
		q.addCalls(calls)
	}
}

// searchedBytes is how many bytes it took to find a call of this size, or none in the rest.
func searchedBytes(size, rest int) int {
	if size > 0 {
		return size
	}
	return rest
}

func (q *copiedCalls) addCalls(calls []foundCall) {
	for i := range calls {
		if key, ok := q.canonicalCall(&calls[i].Call); ok {
			if q.calls == nil {
				q.calls = map[uint64]bool{}
			}
			q.calls[key] = true
		}
	}
}

// elementTool is the tool that an element at the start of b names.
func elementTool(b []byte) string {
	_, name, _ := parseOpenTag(b[:min(len(b), maxName+40)])
	return name
}

// removeSpace is s without white space: models set what they copy in lines of their own.
func removeSpace(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, s)
}

// unescapeText is s with the escapes of HTML and of JSON texts undone.
func unescapeText(s string) string {
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
		r, size := decodeEscape(s[i+1:])
		out.WriteRune(r)
		s = s[i+1+size:]
	}
	return out.String()
}

// decodeEscape reads what stands after a backslash.
func decodeEscape(s string) (r rune, size int) {
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
