package loop

import (
	"html"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"conclave/pkg/model"
)

// copiedCalls knows the calls in tool results, in the history's and in the summary. A model that shows a page to the
// user writes calls as they are on the page; they must not run, because the page is untrusted content. Nothing is
// searched before a call was read from text, and each result once. The nil value knows none.
type copiedCalls struct {
	turn        *turn
	historyRead bool // the history and the summary were searched
	nextMessage int  // the first of the turn's messages that was not searched
	sources     []copySource
	calls       map[string]bool // [callKey] of the calls in the sources
}

// copySource is untrusted text without white space.
type copySource struct {
	text       string
	incomplete bool // the search for calls exceeded its budget: no call of a tool that the text names is run
}

// hasSources searches the results that came since the last call and reports whether any untrusted text names an offered
// tool, so that a call may be copied from it.
func (q *copiedCalls) hasSources() bool {
	if q == nil || q.turn == nil {
		return false
	}
	q.collect()
	return len(q.sources) > 0
}

// contains reports whether f, a call that was read from text, is also in a result, to the letter or in another form;
// then it must not run, and a note says so.
func (q *copiedCalls) contains(f *foundCall) bool {
	if !q.hasSources() || !q.matches(f) {
		return false
	}
	q.turn.addNote(NoteCopied, "a call that the model copied from a tool result was not run")
	return true
}

// matches reports whether a source has a call that would run like f, or the text that f was read from, white space
// aside. A source that could not be searched completely matches when it has the name of f's tool anywhere.
func (q *copiedCalls) matches(f *foundCall) bool {
	if key, ok := q.canonicalCall(&f.Call); ok && q.calls[key] {
		return true
	}
	name, source := removeSpace(f.Name), removeSpace(string(f.source))
	return slices.ContainsFunc(q.sources, func(s copySource) bool {
		return s.incomplete && strings.Contains(s.text, name) || source != "" && strings.Contains(s.text, source)
	})
}

// canonicalCall is the [callKey] of a call with coerced arguments, as it would run. ok is false when it would not run:
// its tool is not offered or its arguments do not fit.
func (q *copiedCalls) canonicalCall(c *model.Call) (key string, ok bool) {
	at := slices.Index(q.turn.tools, c.Name)
	if at < 0 {
		return "", false
	}
	s, err := compileSchema(&q.turn.agent.Tools[at])
	if err != nil {
		return "", false
	}
	fit, problem := coerceArguments(s, c.Arguments)
	return callKey(&model.Call{Name: c.Name, Arguments: fit}), problem == ""
}

// collect searches the results that came since the last call; the first time also the summary and the results of the
// history.
func (q *copiedCalls) collect() {
	if !q.historyRead {
		q.historyRead = true
		q.addText(q.turn.summary) // a model made it, from results too
		q.addResults(q.turn.history)
	}
	messages := q.turn.state.Messages
	q.addResults(messages[min(q.nextMessage, len(messages)):])
	q.nextMessage = len(messages)
}

func (q *copiedCalls) addResults(ms []model.Message) {
	for i := range ms {
		if ms[i].Role == model.ToolRole {
			q.addText(ms[i].Content)
		}
	}
}

// addText searches a text for calls, as it is and unescaped up to twice: many results are JSON or HTML that hold a page
// as text. A text that names no offered tool is no source.
func (q *copiedCalls) addText(text string) {
	for range maxUnescapes {
		if slices.ContainsFunc(q.turn.tools, func(name string) bool { return strings.Contains(text, name) }) {
			budget := maxSearchBytes + 32*len(text)
			q.findCalls([]byte(text), &budget)
			q.sources = append(q.sources, copySource{removeSpace(text), budget < 0})
		}
		plain := unescapeText(text)
		if plain == text {
			return
		}
		text = plain
	}
}

const (
	maxUnescapes   = 3       // rounds of searching a text, each but the first unescaped once more
	maxSearchBytes = 1 << 20 // bytes that are parsed in search of calls in one text, besides 32 for each of its own
)

// findCalls adds the calls anywhere in b. It subtracts the bytes that it parses from the budget and stops when that is
// below 0: then it did not search all of b.
func (q *copiedCalls) findCalls(b []byte, budget *int) {
	tools := q.turn.tools
	for i := 0; i < len(b) && *budget >= 0; i++ {
		var calls []foundCall
		size := 0
		switch c := b[i]; {
		case c == '{' && looksLikeCall(b[i:min(len(b), i+4*maxGap)]) == match:
			w := valueScanner{pos: i}
			end, _ := w.findEnd(b)
			size = end - i
			if !w.tooDeep {
				calls, _, _ = tools.parseJSONCalls(b[i:end])
			}
		case c == '<' && tools.has(elementTool(b[i:])):
			if calls, _, size = tools.parseElement(b[i:]); size == 0 {
				size = len(b) - i
			}
		case isNameByte(c) && (i == 0 || !isNameByte(b[i-1])):
			if _, _, v := tools.parseCallHead(b[i:min(len(b), i+maxName+2*maxGap)]); v != match {
				continue
			}
			if calls, size = tools.parseNamedCall(b[i:]); size == 0 {
				size = len(b) - i
			}
		}
		*budget -= size
		q.addCalls(calls)
	}
}

// addCalls adds the keys of calls to the known ones, except calls that would not run.
func (q *copiedCalls) addCalls(calls []foundCall) {
	for i := range calls {
		if key, ok := q.canonicalCall(&calls[i].Call); ok {
			if q.calls == nil {
				q.calls = map[string]bool{}
			}
			q.calls[key] = true
		}
	}
}

// elementTool is the tool that an element at the start of b names; "" = none.
func elementTool(b []byte) string {
	_, name, _ := parseOpenTag(b[:min(len(b), maxName+40)])
	return name
}

// removeSpace is s without white space: models break the lines of what they copy differently.
func removeSpace(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, s)
}

// unescapeText undoes, once, the escapes of HTML and of JSON strings in s. Escaped white space becomes a space. A
// backslash at the end stays.
func unescapeText(s string) string {
	s = html.UnescapeString(s)
	var out strings.Builder
	for {
		before, after, ok := strings.Cut(s, `\`)
		out.WriteString(before)
		if !ok {
			return out.String()
		}
		if after == "" {
			out.WriteByte('\\')
			return out.String()
		}
		r, size := decodeEscape(after)
		out.WriteRune(r)
		s = after[size:]
	}
}

// decodeEscape decodes the escape behind a backslash; size is how many bytes of s it has. Escaped white space becomes a
// space, and a character that needs no escape is itself. s must not be empty.
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
