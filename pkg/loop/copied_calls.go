package loop

import (
	"html"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"conclave/pkg/model"
	"conclave/pkg/strict"
)

// copiedCalls knows the tool results, those of the history, and the summary. A model that shows a page to the user
// writes calls as they are on the page; they must not run, because the page is untrusted content. No text is prepared
// before a call was read from a reply, and each once. The nil value knows none.
type copiedCalls struct {
	turn        *turn
	historyRead bool     // the history and the summary were added
	nextMessage int      // the first of the turn's messages that was not added
	sources     []string // letters and digits of the texts that name an offered tool
}

// contains reports whether f, a call that was read from text, is copied: one source has the text that it was read from,
// or the name of its tool and each value of its arguments, if there are any, whatever stands between them. Texts are
// compared by their letters and digits, because models copy white space and quotes differently. A copied call is noted.
func (q *copiedCalls) contains(f *foundCall) bool {
	if q == nil || q.turn == nil {
		return false
	}
	q.collect()
	source := lettersOf(f.source)
	name := lettersOf(f.Name)
	var values []string
	if v, err := strict.Parse(f.Arguments); err == nil {
		values = appendValues(nil, &v)
	}
	isCopied := slices.ContainsFunc(q.sources, func(letters string) bool {
		return strings.Contains(letters, source) || len(values) > 0 && strings.Contains(letters, name) &&
			!slices.ContainsFunc(values, func(value string) bool { return !strings.Contains(letters, value) })
	})
	if isCopied {
		q.turn.addNote(NoteCopied, "a call that the model copied from a tool result was not run")
	}
	return isCopied
}

// appendValues appends the letters of the values in v that are no list and no object and have any.
func appendValues(out []string, v *strict.Value) []string {
	for i := range v.Items {
		out = appendValues(out, &v.Items[i])
	}
	for i := range v.Members {
		out = appendValues(out, &v.Members[i].Value)
	}
	if letters := lettersOf(v.Text); v.Type&(strict.Array|strict.Object) == 0 && letters != "" {
		out = append(out, letters)
	}
	return out
}

// collect adds the results that came since the last call; the first time also the summary and the results of the
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

// addText adds a text as it is and unescaped up to twice: many results are JSON or HTML that hold a page as text. A
// text that names no offered tool is no source.
func (q *copiedCalls) addText(text string) {
	for range maxReadings {
		letters := lettersOf(text)
		if slices.ContainsFunc(q.turn.tools, func(name string) bool {
			return strings.Contains(letters, lettersOf(name))
		}) {
			q.sources = append(q.sources, letters)
		}
		plain := escapePattern.ReplaceAllStringFunc(html.UnescapeString(text), decodeEscape)
		if plain == text {
			return
		}
		text = plain
	}
}

// maxReadings is how often a text is read, each time but the first unescaped once more.
const maxReadings = 3

// escapePattern matches the escapes of JSON strings.
var escapePattern = regexp.MustCompile(`\\(?:u[0-9a-fA-F]{4}|.)`)

// decodeEscape decodes an escape of a JSON string. Escaped white space becomes a space.
func decodeEscape(s string) string {
	if n, err := strconv.ParseUint(s[2:], 16, 16); len(s) == 6 && err == nil {
		return string(rune(n))
	}
	if strings.ContainsAny(s[1:], "nrtfb") {
		return " "
	}
	return s[1:]
}

// lettersOf is the letters and digits of s.
func lettersOf(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return r
		}
		return -1
	}, s)
}
