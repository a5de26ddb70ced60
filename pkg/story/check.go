package story

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"conclave/pkg/text"
	"conclave/subjects"
)

// checker compares the outcome of a story with its expectations.
type checker struct {
	story    *Story
	live     bool
	events   []Event
	turns    []turnState
	script   ScriptReport
	pages    map[string]int // number of requests by page URL
	failures []Failure
}

func (c *checker) fail(path, format string, a ...any) {
	c.failures = append(c.failures, Failure{Line: c.story.Line(path), Text: fmt.Sprintf(format, a...)})
}

// checkAll returns all failures, mismatches with the script first: they explain the rest.
func (c *checker) checkAll() []Failure {
	c.checkScript()
	for i := range c.story.Turns {
		c.checkTurn(i)
	}
	c.checkEvents()
	c.checkDeadLetters()
	c.checkPages()
	return c.failures
}

// checkScript reports requests that did not match the script, and exchanges of the script that no request used.
func (c *checker) checkScript() {
	for _, w := range c.script.Mismatches {
		path := "model." + w.Model
		if w.N >= 0 {
			path = fmt.Sprintf("%s[%d]", path, w.N)
		}
		c.fail(path, "a model request does not match the script: %s", w.Text)
	}
	for _, x := range c.script.Unused {
		c.fail(fmt.Sprintf("model.%s[%d]", x.Model, x.N), "no request for this reply of %s", x.Model)
	}
}

// checkTurn reports what turn i does not fulfil: error, partial, answer, thinking, tool calls and notes. A turn that
// was not run or has no answer fails; an empty answer without an error fails too. A live run skips what is only for
// scripted ones.
func (c *checker) checkTurn(i int) {
	path, t := fmt.Sprintf("turns[%d]", i), c.story.Turns[i]
	if i >= len(c.turns) {
		c.fail(path, "turn %d was not run: the one before it has no answer", i+1)
		return
	}
	at := c.turns[i]
	if at.asksNothing {
		return
	}
	if at.response == nil {
		c.checkUnanswered(path, i, t, at)
		return
	}
	if c.live && t.ScriptedOnly {
		return
	}
	r := *at.response
	fail := func(field, format string, a ...any) {
		c.fail(path+"."+field, "turn %d: %s", i+1, fmt.Sprintf(format, a...))
	}
	switch {
	case r.Error != nil && r.Error.Code != t.Error:
		fail("error", "it failed with %s (%s)%s", r.Error.Code, text.Clip(r.Error.Text, 300), insteadOf(t.Error))
	case r.Error == nil && t.Error != "":
		fail("error", "it did not fail with %s: %q", t.Error, text.Clip(r.Answer, 300))
	case r.Error == nil && strings.TrimSpace(r.Answer) == "":
		fail("answer", "the answer is empty")
	}
	if r.Partial != t.Partial {
		fail("partial", "partial is %t: %q", r.Partial, text.Clip(r.Answer, 300))
	}
	if t.Answer != nil && !(c.live && t.Answer.ScriptedOnly) {
		c.checkAnswer(fail, path, *t.Answer, at)
	}
	if t.Thinking != nil && !(c.live && t.Thinking.ScriptedOnly) {
		checkThinking(fail, *t.Thinking, r.Thinking)
	}
	c.checkCalls(fail, t.ToolCalls, r.ToolCalls)
	var codes []string
	for _, n := range r.Notes {
		codes = append(codes, n.Code)
	}
	for _, want := range t.Notes {
		if !slices.Contains(codes, want) {
			fail("notes", "no note %s: %v", want, codes)
		}
	}
	if t.NoNotes && len(codes) > 0 {
		fail("no_notes", "unexpected notes: %v", r.Notes)
	}
}

// checkUnanswered checks a turn without an answer: only a dead letter with the expected code passes.
func (c *checker) checkUnanswered(path string, i int, t Turn, at turnState) {
	switch {
	case at.deadLetter != nil && at.deadLetter.Code == t.Error:
	case at.deadLetter != nil:
		c.fail(path, "turn %d: no answer, but a dead letter of %s: %s: %s%s", i+1, at.deadLetter.Actor,
			at.deadLetter.Code, at.deadLetter.Reason, insteadOf(t.Error))
	default:
		c.fail(path, "turn %d: no answer", i+1)
	}
}

func insteadOf(code string) string {
	if code == "" {
		return ""
	}
	return " instead of " + code
}

// checkAnswer reports each expectation of a that the answer does not meet. Case is ignored except in equals and
// matches. at must have a response.
func (c *checker) checkAnswer(fail func(string, string, ...any), path string, a Answer, at turnState) {
	got := at.response.Answer
	for i, part := range a.Contains {
		if !containsFold(got, part) {
			fail(fmt.Sprintf("answer.contains[%d]", i), "the answer does not contain %q: %q", part, text.Clip(got, 500))
		}
	}
	for i, part := range a.NotContains {
		if containsFold(got, part) {
			fail(fmt.Sprintf("answer.not_contains[%d]", i), "the answer contains %q: %q", part, text.Clip(got, 500))
		}
	}
	if a.Equals != "" && strings.TrimSpace(got) != strings.TrimSpace(a.Equals) {
		fail("answer.equals", "the answer is %q", text.Clip(got, 500))
	}
	if a.Matches != "" && !a.matches.MatchString(got) {
		fail("answer.matches", "the answer does not match %s: %q", a.Matches, text.Clip(got, 500))
	}
	if a.NotEmpty && strings.TrimSpace(got) == "" {
		fail("answer.not_empty", "the answer is empty")
	}
	if a.ContainsFrom != nil && !(c.live && a.ContainsFrom.ScriptedOnly) {
		c.checkQuote(fail, path, *a.ContainsFrom, at)
	}
}

// minQuote is the shortest line, in bytes, that counts as a quote.
const minQuote = 8

// lineMark is the number of a list item or the mark of a quoted line, which a quote leaves out.
var lineMark = regexp.MustCompile(`^(\d+\. |> )`)

// checkQuote checks that the answer contains a line of a field, or the line src.Line (from 1; 0 = any), of the last
// event of this turn that matches. Lines shorter than minQuote do not count. A line that the script has itself proves
// nothing and fails.
func (c *checker) checkQuote(fail func(string, string, ...any), path string, src Source, at turnState) {
	const field = "answer.contains_from"
	var whole string
	found := false
	for _, e := range c.events {
		if _, ok := subjects.Match(src.Event, e.Subject); ok && e.Query == at.query {
			if value, ok := e.Field(src.Field); ok {
				whole, found = value, true
			}
		}
	}
	if !found {
		fail(field, "no event %s of this turn has a field %s", src.Event, src.Field)
		return
	}
	lines := strings.Split(whole, "\n")
	if src.Line > 0 {
		if src.Line > len(lines) {
			fail(field, "the field has no line %d: %q", src.Line, text.Clip(whole, 500))
			return
		}
		lines = lines[src.Line-1 : src.Line]
	}
	for _, line := range lines {
		line = lineMark.ReplaceAllString(strings.TrimSpace(line), "")
		if len(line) < minQuote || !containsFold(at.response.Answer, line) {
			continue
		}
		for _, own := range c.story.scriptedTexts() {
			if !c.live && containsFold(own, line) {
				fail(field, "a scripted reply says %q itself; quote it with {{tool_result 0}}", text.Clip(line, 200))
				return
			}
		}
		return
	}
	fail(field, "the answer quotes nothing of %q: %q", text.Clip(whole, 500), text.Clip(at.response.Answer, 500))
}

// checkThinking reports thinking that is there or missing against want, or lacks expected words.
func checkThinking(fail func(string, string, ...any), want Thinking, got string) {
	empty := strings.TrimSpace(got) == ""
	switch {
	case want.Empty && !empty:
		fail("thinking", "unexpected thinking %q", text.Clip(got, 300))
	case want.NotEmpty && empty:
		fail("thinking", "no thinking")
	}
	for _, part := range want.Contains {
		if !containsFold(got, part) {
			fail("thinking.contains", "the thinking does not contain %q: %q", part, text.Clip(got, 300))
		}
	}
}

// checkCalls searches the expected calls among the recorded ones, in order; other calls between them are allowed. nil
// expects nothing; an empty list allows no call but the search of memory before the model's first, which is not the
// model's. It reports the first call that is missing. In a live run calls of any layer match: that depends on the
// model.
func (c *checker) checkCalls(fail func(string, string, ...any), want []Call, got []subjects.ToolCall) {
	isOwn := func(have subjects.ToolCall) bool { return have.Layer != subjects.LayerRecall }
	if want != nil && len(want) == 0 && slices.ContainsFunc(got, isOwn) {
		fail("tool_calls", "unexpected tool calls: %s", formatCalls(got))
		return
	}
	rest := got
	for i, w := range want {
		if c.live && w.ScriptedOnly {
			continue
		}
		if c.live {
			w.Layer = ""
		}
		at := slices.IndexFunc(rest, func(have subjects.ToolCall) bool { return w.matches(have) })
		if at < 0 {
			fail(fmt.Sprintf("tool_calls[%d]", i), "no such call of %s in this order: %s", w.Tool, formatCalls(got))
			return
		}
		rest = rest[at+1:]
	}
}

func (w Call) matches(got subjects.ToolCall) bool {
	code := ""
	if got.Error != nil {
		code = got.Error.Code
	}
	return got.Tool == w.Tool && code == w.Error && (w.Layer == "" || got.Layer == w.Layer) &&
		containsFold(got.Result, w.ResultContains) && containsArgs(w.Args, got.Args)
}

// containsArgs reports whether the arguments have every field of want with an equal value; other fields are allowed,
// and an empty want is always contained. Arguments that are no JSON object contain nothing.
func containsArgs(want map[string]any, args json.RawMessage) bool {
	var got map[string]any
	if len(want) > 0 && json.Unmarshal(args, &got) != nil {
		return false
	}
	for key, v := range want {
		// Compare both as JSON: YAML has more kinds of numbers.
		text, err := json.Marshal(v)
		if err != nil {
			return false
		}
		var plain any
		if json.Unmarshal(text, &plain) != nil || !reflect.DeepEqual(plain, got[key]) {
			return false
		}
	}
	return true
}

// formatCalls lists calls with arguments and result for a failure, "none" without calls.
func formatCalls(calls []subjects.ToolCall) string {
	if len(calls) == 0 {
		return "none"
	}
	return strings.Join(listCalls(calls), "; ")
}

// listCalls returns each call with arguments and result.
func listCalls(calls []subjects.ToolCall) (out []string) {
	for _, c := range calls {
		line := fmt.Sprintf("%s %s (%s)", c.Tool, text.Clip(string(c.Args), 200), c.Layer)
		if c.Error != nil {
			line += " failed with " + c.Error.Code
		} else {
			line += fmt.Sprintf(" gave %q", text.Clip(c.Result, 200))
		}
		out = append(out, line)
	}
	return out
}

// checkEvents compares the events with those expected, and returns all failures so far. present needs at least one
// event, or exactly times; in_order allows other events in between, see checkOrder.
func (c *checker) checkEvents() []Failure {
	e := c.story.Events
	for i, w := range e.Present {
		n := w.count(c.events)
		switch path := fmt.Sprintf("events.present[%d]", i); {
		case c.isSkipped(w):
		case n == 0:
			c.fail(path, "no event %s", w)
		case w.times >= 0 && n != w.times:
			c.fail(path, "%d events %s", n, w)
		}
	}
	for i, w := range e.Absent {
		if at := slices.IndexFunc(c.events, w.matches); at >= 0 && !c.isSkipped(w) {
			c.fail(fmt.Sprintf("events.absent[%d]", i), "unexpected event %s: %s", w, c.events[at])
		}
	}
	c.checkOrder(e.InOrder)
	return c.failures
}

// reorderWindow is how much earlier than the event before it an event of another author may be stored. Each author has
// a stream of its own, and the event log that collects them does not keep the order between authors to the millisecond.
const reorderWindow = 100 * time.Millisecond

// checkOrder reports the first of want that does not follow the one before it. Each event counts once.
func (c *checker) checkOrder(want []EventPattern) {
	used := make([]bool, len(c.events))
	last := -1
	follows := func(i int) bool {
		if i > last {
			return true
		}
		before, e := c.events[last], c.events[i]
		return !used[i] && e.From != before.From && before.Time.Sub(e.Time) < reorderWindow
	}
	for i, w := range want {
		if c.isSkipped(w) {
			continue
		}
		at := -1
		for k, e := range c.events {
			if follows(k) && w.matches(e) {
				at = k
				break
			}
		}
		if at < 0 {
			after := ""
			if i > 0 {
				after = fmt.Sprintf(" after %s", want[i-1])
			}
			c.fail(fmt.Sprintf("events.in_order[%d]", i), "no event %s%s", w, after)
			return
		}
		used[at], last = true, max(last, at)
	}
}

func (c *checker) isSkipped(w EventPattern) bool { return c.live && w.scriptedOnly }

// checkDeadLetters reports dead letters that the story does not expect: a message was rejected or kept failing, even if
// the answer is right. One is expected by an event pattern, or by the error code of its turn.
func (c *checker) checkDeadLetters() {
	for _, e := range c.events {
		if _, dead := subjects.Match(subjects.DeadLetterEvent.Name, e.Subject); !dead {
			continue
		}
		code, _ := e.Field("code")
		expected := slices.ContainsFunc(slices.Concat(c.story.Events.Present, c.story.Events.InOrder),
			func(w EventPattern) bool { return w.matches(e) })
		for i, t := range c.turns {
			expected = expected || t.query == e.Query && c.story.Turns[i].Error == code
		}
		if !expected {
			c.fail("events", "unexpected dead letter: %s", e)
		}
	}
}

// checkPages checks the number of requests for each page that sets it.
func (c *checker) checkPages() {
	if c.story.Web == nil {
		return
	}
	for i, p := range c.story.Web.Pages {
		if n := c.pages[p.URL]; p.Requests != nil && n != *p.Requests && !(c.live && p.ScriptedOnly) {
			c.fail(fmt.Sprintf("web.pages[%d].asked", i), "%s was requested %d times, want %d", p.URL, n, *p.Requests)
		}
	}
}
