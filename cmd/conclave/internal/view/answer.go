// Package view prints values for the user: answers as they grow, tables, records and verdicts. It reads nothing from
// the bus.
package view

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/client"
	"conclave/subjects"
)

// AnswerView shows a question on its way to the answer: on a screen as it happens, in a pipe only the answer, or as
// JSON lines.
type AnswerView interface {
	// Show shows an update that does not end the question.
	Show(u client.Update)
	// Ticks delivers the times at which Tick shall be called; nil where nothing is animated.
	Ticks() <-chan time.Time
	// Tick draws the progress, unless the user is typing or a line is open.
	Tick()
	// SetModel tells which model answers and whether it is loaded.
	SetModel(m ModelState)
	// Typed delivers lines of the user, nil where nobody can be asked.
	Typed() <-chan string
	// Decide makes decisions of a typed line, none when no call waits for one.
	Decide(line string) []Decision
	// AskAgain asks again about the calls of the last decisions that still wait, because not all could be sent.
	AskAgain()
	// Warn reports a problem that is not about the answer.
	Warn(code, text string)
	// End shows the answer, then calls grade, which may wait, and shows the grade.
	End(r subjects.Response, grade func() *subjects.Critique)
	// Fail ends without an answer.
	Fail(f *subjects.Fault)
}

// AnswerOptions configure an [AnswerView].
type AnswerOptions struct {
	*term.Streams
	IDs
	Program  string // beginning of commands in hints
	Question string
	Thinking bool // show the thinking, on stderr
	JSON     bool // one document at the end
	Lines    bool // JSON lines
}

// IDs identify a question.
type IDs struct {
	Session string `json:"session_id"`
	Query   string `json:"query_id"`
}

// NewAnswerView returns the view for the options and for where stdout goes: JSON lines with Lines, else the answer
// alone or one document with JSON or where stdout is no terminal, else a screen.
func NewAnswerView(o AnswerOptions) AnswerView {
	switch {
	case o.Lines:
		return &jsonLines{AnswerOptions: o, noted: map[subjects.Note]bool{}}
	case o.JSON || !term.IsTerminal(o.Out):
		return &pipe{AnswerOptions: o}
	}
	return newScreen(o)
}

// still is the part of a view without an animation and without a keyboard.
type still struct{}

// Ticks implements [AnswerView].
func (still) Ticks() <-chan time.Time { return nil }

// Tick implements [AnswerView].
func (still) Tick() {}

// SetModel implements [AnswerView].
func (still) SetModel(ModelState) {}

// Typed returns nil: there is no keyboard. Waiting calls are decided with conclave approve.
func (still) Typed() <-chan string { return nil }

// Decide returns none: nothing is typed here.
func (still) Decide(string) []Decision { return nil }

// AskAgain implements [AnswerView].
func (still) AskAgain() {}

// DemoNotice is printed with an answer of the demo model that does not say itself where it comes from.
const DemoNotice = "answered by the built-in demo model, which is not a language model: start Ollama for real answers"

// WaitingText explains why a question has not been started: actors that do not run, or else other questions before it.
func WaitingText(w client.Waiting) string {
	switch len(w.Missing) {
	case 0:
		return "stored; queued behind other questions"
	case 1:
		return "stored, but not started: " + w.Missing[0] + " is not running; the question is answered when it runs"
	}
	return "stored, but not started: " + strings.Join(w.Missing, " and ") +
		" are not running; the question is answered when they run"
}

// AnswerText is the answer without the text of its error, which the generator appends as a last paragraph for clients
// that see nothing else: here the error is printed on stderr. It is "" when there is nothing but the error.
func AnswerText(r subjects.Response) string {
	if r.Error == nil || r.Error.Text == "" {
		return r.Answer
	}
	text := strings.TrimRight(r.Error.Text, ". ")
	first, n := utf8.DecodeRuneInString(text)
	for _, begin := range []string{text, string(unicode.ToUpper(first)) + text[n:]} {
		if at := strings.LastIndex(r.Answer, begin); at == 0 || at > 1 && r.Answer[at-2:at] == "\n\n" {
			return strings.TrimRight(r.Answer[:at], "\n")
		}
	}
	return r.Answer
}

// DescribeResult is one line about the outcome of a tool call: the time it took, the layer and rule that denied it, or
// the error. The result itself is not in it.
func DescribeResult(r subjects.ToolResult) string {
	switch f := r.Error; {
	case f == nil:
		return fmt.Sprintf("tool %s: done in %s", r.Tool, term.Took(r.Millis))
	case f.Denial != nil:
		return fmt.Sprintf("tool %s: denied by layer %s, rule %s: %s", r.Tool, f.Denial.Layer, f.Denial.Rule,
			f.Denial.Reason)
	default:
		return fmt.Sprintf("tool %s: %s (%s)", r.Tool, f.Text, f.Code)
	}
}

// SummarizeAnswer is one line about an answer: model, tool calls, tokens and time, without the counts that are 0.
func SummarizeAnswer(r subjects.Response) string {
	parts := []string{cmp.Or(r.Model, "no model")}
	if n := len(r.ToolCalls); n > 0 {
		parts = append(parts, term.Count(n, "tool call"))
	}
	if n := r.Usage.CompletionTokens; n > 0 {
		parts = append(parts, term.Count(n, "token"))
	}
	if ms := r.Usage.Millis; ms > 0 {
		parts = append(parts, term.Took(ms))
	}
	return strings.Join(parts, ", ")
}

// DescribeDeliberation is one line about a persona of the committee: it is working, or how it ended.
func DescribeDeliberation(d subjects.Deliberation) string {
	who := d.Persona
	if d.Round > 1 && !d.Closing {
		who = fmt.Sprintf("%s (round %d)", d.Persona, d.Round)
	}
	switch d.Status {
	case subjects.DeliberationWorking:
		return who + " is working ..."
	case subjects.DeliberationFailed:
		reason := "no reason given"
		if d.Error != nil {
			reason = d.Error.Text
		}
		return who + " failed and is skipped: " + reason
	}
	parts := []string{"done in " + term.Took(d.Usage.Millis)}
	if n := len(d.Calls); n > 0 {
		parts = append(parts, term.Count(n, "tool call"))
	}
	if d.Dissents {
		parts = append(parts, "dissents: "+d.Dissent)
	}
	return who + ": " + strings.Join(parts, ", ")
}

// Deltas joins the pieces of an answer as they are generated. Pieces can be lost: after a gap no more of the step is
// shown, and [Deltas.Rest] has the rest at the end. The zero value has no text.
type Deltas struct {
	begun bool
	step  int // model call whose text is shown
	next  int // number of the next piece
	gap   bool
	shown strings.Builder
}

// Next returns the text of a piece that is to be shown, "" for none. begins is true for the first piece of another
// step, and of one that begins again after a crash: its text does not continue what was shown before.
func (d *Deltas) Next(p client.Delta) (text string, begins bool) {
	next := p.N == d.next
	if !d.begun || p.Step != d.step || p.N == 0 && d.next > 0 {
		begins, next = true, next || p.N == 0
		d.begun, d.step, d.gap = true, p.Step, false
		d.shown.Reset()
	}
	d.gap = d.gap || !next
	d.next = p.N + 1
	if d.gap {
		return "", begins
	}
	text = p.Text
	if d.shown.Len() == 0 {
		text = strings.TrimLeft(text, " \t\r\n")
	}
	d.shown.WriteString(text)
	return text, begins
}

// Text is the text of the step so far.
func (d *Deltas) Text() string { return d.shown.String() }

// Rest returns the part of the answer that was not shown. continues is false when it is all of it, because what was
// shown is something else.
func (d *Deltas) Rest(answer string) (rest string, continues bool) {
	shown := d.Text()
	if strings.TrimSpace(shown) == strings.TrimSpace(answer) {
		return "", true
	}
	rest, continues = strings.CutPrefix(answer, shown)
	return rest, continues && shown != ""
}
