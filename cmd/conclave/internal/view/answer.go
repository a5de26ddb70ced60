// Package view prints values for the user: answers as they grow, tables, records and verdicts. It reads nothing from the bus.
package view

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/term/markdown"
	"conclave/pkg/client"
	"conclave/subjects"
)

// AnswerView shows a question on its way to the answer: on a screen as it happens, in a pipe only the answer, or as JSON
// lines.
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
	// Decide makes a decision of a typed line. ok is false when no call waits for one.
	Decide(line string) (id string, d subjects.ApprovalDecision, ok bool)
	// Warn reports a problem that is not about the answer.
	Warn(code, text string)
	// End shows the answer, then calls grade, which may wait, and shows the grade.
	End(r subjects.Response, grade func() *subjects.Critique) error
	// Fail ends without an answer.
	Fail(f *subjects.Fault) error
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

// NewAnswerView returns the view for the options and for where stdout goes: JSON lines with Lines, else the answer alone or one
// document with JSON or where stdout is no terminal, else a screen.
func NewAnswerView(o AnswerOptions) AnswerView {
	switch {
	case o.Lines:
		return &jsonLines{AnswerOptions: o, noted: map[subjects.Note]bool{}}
	case o.JSON || !term.IsTerminal(o.Out):
		return &pipe{AnswerOptions: o}
	}
	return &screen{AnswerOptions: o, noted: map[subjects.Note]bool{}, spinner: newSpinner(o.Streams)}
}

// still is the part of a view without an animation.
type still struct{}

// Ticks implements [AnswerView].
func (still) Ticks() <-chan time.Time { return nil }

// Tick implements [AnswerView].
func (still) Tick() {}

// SetModel implements [AnswerView].
func (still) SetModel(ModelState) {}

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
	return "stored, but not started: " + strings.Join(w.Missing, " and ") + " are not running; the question is answered when they run"
}

// AnswerText is the answer without the text of its error, which the generator appends as a last paragraph for clients that see
// nothing else: here the error is printed on stderr. It is "" when there is nothing but the error.
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

// pipe shows nothing before the end: the answer for a pipe, or the response as a document.
type pipe struct {
	AnswerOptions
	still
	thought term.PlainStream
	midLine bool
}

// Show prints on stderr the thinking, where it was asked for, calls that wait for approval, why the question is not
// started, and on a terminal what is treated as untrusted content. Everything else waits for End.
func (p *pipe) Show(u client.Update) {
	switch u := u.(type) {
	case client.Delta:
		if u.Thinking && p.Thinking && u.Text != "" {
			fmt.Fprint(p.Err, p.thought.Next(u.Text))
			p.midLine = !strings.HasSuffix(u.Text, "\n")
		}
	case client.ApprovalAsked:
		p.Warn("", WaitingCall(u.ApprovalRequest, p.Program))
	case client.Waiting:
		p.Warn("", WaitingText(u))
	case client.Note:
		if u.Code == subjects.NoteUntrusted && term.IsTerminal(p.Err) {
			p.Warn("", u.Text)
		}
	}
}

// Typed returns nil: a pipe has no keyboard. Waiting calls are decided with conclave approve.
func (p *pipe) Typed() <-chan string { return nil }

// Decide reports false: a pipe has no keyboard.
func (p *pipe) Decide(string) (id string, d subjects.ApprovalDecision, ok bool) { return "", d, false }

// endLine ends a line of thinking that is still open, so that a message begins on a line of its own.
func (p *pipe) endLine() {
	if p.midLine {
		fmt.Fprintln(p.Err)
		p.midLine = false
	}
}

// Warn prints the text on a line of its own on stderr. The code is not shown.
func (p *pipe) Warn(_, text string) {
	p.endLine()
	p.Say("%s", text)
}

// End prints the answer alone and then waits for the grade, which goes to stderr; with JSON it waits first and prints one
// document. An empty answer prints nothing and waits for no grade.
func (p *pipe) End(r subjects.Response, grade func() *subjects.Critique) error {
	p.endLine()
	if p.JSON {
		return p.PrintJSON(struct {
			subjects.Response
			Grade *subjects.Critique `json:"grade,omitempty"`
		}{r, grade()})
	}
	if r.DemoModel && !strings.Contains(r.Answer, "built-in demo model") {
		p.Say("%s", DemoNotice)
	}
	text := AnswerText(r)
	if text == "" {
		return nil
	}
	if _, err := fmt.Fprintln(p.Out, strings.TrimSuffix(text, "\n")); err != nil {
		return err
	}
	if c := grade(); c != nil {
		for _, l := range append(FalseClaims(*c), GradeLine(*c), retryHint(*c, p.Program)) {
			if l != "" {
				p.Say("%s", l)
			}
		}
	}
	return nil
}

// Fail prints, with JSON, a partial response with the fault, so that a program always reads one document; otherwise nothing.
// The caller prints the error.
func (p *pipe) Fail(f *subjects.Fault) error {
	p.endLine()
	if !p.JSON {
		return nil
	}
	return p.PrintJSON(subjects.Response{SessionID: p.Session, QueryID: p.Query, Query: p.Question, ToolCalls: []subjects.ToolCall{}, Partial: true, Error: f})
}

// jsonLines prints JSON lines as things happen, each with a type: delta, thinking, state, tool, note, approval, deliberation,
// response, grade, error.
type jsonLines struct {
	AnswerOptions
	still
	noted map[subjects.Note]bool
}

// lineHead begins every line.
type lineHead struct {
	Type string `json:"type"`
	IDs
}

func (l *jsonLines) head(kind string) lineHead { return lineHead{kind, l.IDs} }

// toolLine is a call, or its result.
type toolLine struct {
	lineHead
	Phase  string          `json:"phase"` // request, output, result
	CallID string          `json:"call_id"`
	Tool   string          `json:"tool"`
	Args   json.RawMessage `json:"args,omitempty"`
	Text   string          `json:"text,omitempty"` // of the phase output
	Result string          `json:"result,omitempty"`
	Error  *subjects.Fault `json:"error,omitempty"`
	Millis int64           `json:"ms,omitempty"`
}

// approvalLine is a call that waits for the user's decision, complete so that a program can decide, or the decision.
type approvalLine struct {
	lineHead
	Phase    string                    `json:"phase"` // request, decision
	Request  *subjects.ApprovalRequest `json:"request,omitempty"`
	Decision *subjects.ApprovalReply   `json:"decision,omitempty"`
}

// Show prints a line for every update. A question that is not started yet is a note with the code waiting.
func (l *jsonLines) Show(u client.Update) {
	switch u := u.(type) {
	case client.Delta:
		kind := "delta"
		if u.Thinking {
			kind = "thinking"
		}
		l.print(struct {
			lineHead
			Step int    `json:"step"`
			N    int    `json:"n"`
			Text string `json:"text"`
		}{l.head(kind), u.Step, u.N, u.Text})
	case client.State:
		l.print(struct {
			lineHead
			Agent string `json:"agent"`
			From  string `json:"from,omitempty"`
			To    string `json:"to"`
			Event string `json:"event,omitempty"`
			Step  int    `json:"step,omitempty"`
			Words string `json:"words,omitempty"`
		}{l.head("state"), u.Agent, u.From, u.To, u.Event, u.Step, u.Words})
	case client.Note:
		l.note(u.Note)
	case client.ToolCall:
		l.print(toolLine{lineHead: l.head("tool"), Phase: "request", CallID: u.CallID, Tool: u.Tool, Args: u.Args})
	case client.ToolOutput:
		l.print(toolLine{lineHead: l.head("tool"), Phase: "output", CallID: u.CallID, Tool: u.Tool, Text: u.Text})
	case client.ToolResult:
		l.print(toolLine{lineHead: l.head("tool"), Phase: "result", CallID: u.CallID, Tool: u.Tool, Result: u.Result, Error: u.Error, Millis: u.Millis})
	case client.ApprovalAsked:
		l.print(approvalLine{lineHead: l.head("approval"), Phase: "request", Request: &u.ApprovalRequest})
	case client.ApprovalDecided:
		l.print(approvalLine{lineHead: l.head("approval"), Phase: "decision", Decision: &u.ApprovalReply})
	case client.Deliberation:
		l.print(struct {
			lineHead
			Deliberation subjects.Deliberation `json:"deliberation"`
		}{l.head("deliberation"), u.Deliberation})
	case client.Progress:
		l.print(struct {
			lineHead
			subjects.TaskProgress
		}{l.head("progress"), u.TaskProgress})
	case client.Waiting:
		l.Warn("waiting", WaitingText(u))
	}
}

// print prints a line. stdout remembers its error.
func (l *jsonLines) print(v any) { _ = l.PrintLine(v) }

// note prints a note once: the final response repeats those that were sent before.
func (l *jsonLines) note(n subjects.Note) {
	if l.noted[n] {
		return
	}
	l.noted[n] = true
	l.print(struct {
		lineHead
		subjects.Note
	}{l.head("note"), n})
}

// Typed returns nil: a program decides with conclave approve, from the approval line.
func (l *jsonLines) Typed() <-chan string { return nil }

// Decide reports false: nothing is typed here.
func (l *jsonLines) Decide(string) (id string, d subjects.ApprovalDecision, ok bool) {
	return "", d, false
}

// Warn prints a note with this code, once.
func (l *jsonLines) Warn(code, text string) { l.note(subjects.Note{Code: code, Text: text}) }

// End prints the notes that were not printed yet, the response, and then waits for the grade and prints it when there is one.
func (l *jsonLines) End(r subjects.Response, grade func() *subjects.Critique) error {
	for _, n := range r.Notes {
		l.note(n)
	}
	l.print(struct {
		lineHead
		Response subjects.Response `json:"response"`
	}{l.head("response"), r})
	if c := grade(); c != nil {
		l.print(struct {
			lineHead
			Grade subjects.Critique `json:"grade"`
		}{l.head("grade"), *c})
	}
	return l.Out.Err
}

// Fail prints the fault as a line of type error.
func (l *jsonLines) Fail(f *subjects.Fault) error {
	return l.PrintLine(struct {
		lineHead
		Error *subjects.Fault `json:"error"`
	}{l.head("error"), f})
}

// screen shows an answer on a terminal as it grows. Deltas can be lost, so the shown text is compared with the answer at the
// end, and the rest, or all of it, is printed then.
type screen struct {
	AnswerOptions
	spinner *spinner
	open    io.Writer // stream whose line is not ended; nil = none
	last    io.Writer // stream written to last
	deltas  Deltas
	text    markdown.Stream // of the answer
	blocks  int             // of it that were printed
	shown   bool            // nothing was printed since it began but the text itself

	plain, thought term.PlainStream // sanitize the answer and the thinking

	results []subjects.ToolResult // of the calls so far, as the broker reports them
	noted   map[subjects.Note]bool
	held    []subjects.Note // to be shown before the next thing
	tree    taskTree        // of a task

	lines   <-chan string              // the keyboard, once a call has waited
	waiting []subjects.ApprovalRequest // calls that wait for a decision; the first was asked
	asked   time.Time                  // when it was
}

// write sanitizes a complete text and writes it as writePlain does.
func (s *screen) write(w io.Writer, colour, text string) {
	s.writePlain(w, colour, term.PlainText(text))
}

// writePlain writes sanitized text to w where the cursor is, in a colour that may be "". Answer and talk share a terminal, so text
// for another stream than the last begins on its own line. A stderr that is no terminal is written as it is, without colours.
func (s *screen) writePlain(w io.Writer, colour, text string) {
	s.spinner.clear()
	if w != s.Out && !term.IsTerminal(w) {
		fmt.Fprint(w, text)
		return
	}
	if s.open != w {
		s.endLine()
	}
	s.last = w
	for l := range strings.Lines(text) { // no colour across line breaks
		body, ended := strings.CutSuffix(l, "\n")
		if body != "" {
			body = term.Paint(w, colour, body)
		}
		if s.open = w; ended {
			body, s.open = body+"\n", nil
		}
		fmt.Fprint(w, body)
	}
}

// endLine ends the open line, so that the next text begins on a line of its own.
func (s *screen) endLine() {
	s.spinner.clear()
	if s.open != nil {
		fmt.Fprintln(s.open)
		s.open = nil
	}
}

// talk prints one dim line on stderr, cut to the width of the terminal, or to 199 characters elsewhere.
func (s *screen) talk(format string, v ...any) {
	columns, _, ok := term.Size(s.Err)
	if !ok || columns < 20 {
		columns = 200
	}
	if term.IsTerminal(s.Err) {
		s.interruptText()
		s.endLine()
	}
	s.write(s.Err, term.Dim, term.Clip(fmt.Sprintf(format, v...), columns-1)+"\n")
}

// Show prints an update as it comes: pieces of the answer on stdout, everything else as lines on stderr. A call that waits for
// approval is asked about when there is a keyboard. Notes are held back; see note.
func (s *screen) Show(u client.Update) {
	s.spinner.follow(u)
	switch u := u.(type) {
	case client.Delta:
		s.delta(u)
	case client.State:
		// Text of a step that was streamed is on the screen already.
		if u.Words != "" && strings.TrimSpace(s.deltas.Text()) != strings.TrimSpace(u.Words) {
			s.printNotes()
			s.talk("%s", u.Words)
		}
	case client.Note:
		s.note(u.Note)
	case client.ToolCall:
		s.printNotes()
		s.talk("tool %s %s", u.Tool, u.Args)
	case client.ToolOutput:
		for l := range strings.Lines(u.Text) {
			s.talk("| %s", strings.TrimSuffix(l, "\n"))
		}
	case client.ToolResult:
		s.printNotes()
		s.results = append(s.results, u.ToolResult)
		s.talk("%s", DescribeResult(u.ToolResult))
	case client.ApprovalAsked:
		s.approval(u.ApprovalRequest)
	case client.ApprovalDecided:
		s.decided(u.ApprovalReply)
	case client.Deliberation:
		s.printNotes()
		s.talk("%s", DescribeDeliberation(u.Deliberation))
	case client.Progress:
		for _, line := range s.tree.follow(u.TaskProgress) {
			s.talk("%s", line)
		}
	case client.Waiting:
		s.Warn("", WaitingText(u))
	}
}

// Ticks implements [AnswerView].
func (s *screen) Ticks() <-chan time.Time { return s.spinner.ticks() }

// Tick implements [AnswerView].
func (s *screen) Tick() {
	if s.open == nil && len(s.waiting) == 0 {
		s.spinner.tick()
	}
}

// SetModel implements [AnswerView].
func (s *screen) SetModel(m ModelState) {
	if s.spinner != nil {
		s.spinner.phase.SetModel(m)
	}
}

// delta prints the next piece of the answer, or of the thinking on stderr where it was asked for. After a lost piece it prints
// no more of this step, since the text would have a gap; End prints the rest. A new step, or one that begins again, starts a
// line.
func (s *screen) delta(d client.Delta) {
	if d.Thinking {
		if s.Thinking && d.Text != "" {
			s.interruptText()
			s.writePlain(s.Err, term.Dim, s.thought.Next(d.Text))
		}
		return
	}
	text, begins := s.deltas.Next(d)
	if begins {
		s.beginText()
	}
	if text != "" {
		s.printNotes()
		s.printBlocks(s.text.Write(s.plain.Next(text)))
		s.spinner.preview(s.text.Tail())
	}
}

// beginText ends the text so far: what follows is another one.
func (s *screen) beginText() {
	s.flushText()
	s.plain.Reset()
	s.blocks, s.shown = 0, true
}

// interruptText prints the text so far because something else follows: what comes of it later is not its continuation on the
// screen.
func (s *screen) interruptText() {
	s.flushText()
	s.shown = false
}

// flushText prints the rest of the text so far.
func (s *screen) flushText() { s.printBlocks(s.text.End()) }

// printBlocks prints complete blocks of the answer, rendered, with a blank line between two.
func (s *screen) printBlocks(blocks []markdown.Block) {
	columns, _, _ := term.Size(s.Out)
	format := markdown.Format{Columns: columns - 1, Colour: term.HasColour(s.Out)}
	for _, b := range blocks {
		s.endLine()
		if b.First && s.blocks > 0 {
			fmt.Fprintln(s.Out)
		}
		for _, l := range format.Render(b) {
			fmt.Fprintln(s.Out, l)
		}
		s.blocks++
		s.last = s.Out
	}
	if len(blocks) > 0 {
		s.spinner.preview(markdown.Block{}, false)
	}
}

// DescribeResult is one line about the outcome of a tool call: the time it took, the layer and rule that denied it, or the error.
// The result itself is not in it.
func DescribeResult(r subjects.ToolResult) string {
	switch f := r.Error; {
	case f == nil:
		return fmt.Sprintf("tool %s: done in %s", r.Tool, term.Took(r.Millis))
	case f.Denial != nil:
		return fmt.Sprintf("tool %s: denied by layer %s, rule %s: %s", r.Tool, f.Denial.Layer, f.Denial.Rule, f.Denial.Reason)
	default:
		return fmt.Sprintf("tool %s: %s (%s)", r.Tool, f.Text, f.Code)
	}
}

// note holds a note back until something follows: the last one before a failed answer is about the failure, which is
// printed as an error. The demo model has a notice of its own at the end.
func (s *screen) note(n subjects.Note) {
	if !s.noted[n] && !n.IsDemoModel() {
		s.noted[n] = true
		s.held = append(s.held, n)
	}
}

// printNotes prints the notes that were held back.
func (s *screen) printNotes() {
	for _, n := range s.held {
		s.talk("note: %s", cmp.Or(n.Text, n.Code))
	}
	s.held = nil
}

// Warn prints the text on a line of its own on stderr, not dimmed and not cut. The code is not shown.
func (s *screen) Warn(_, text string) {
	s.spinner.clear()
	if term.IsTerminal(s.Err) {
		s.interruptText()
		s.endLine()
		s.last = s.Err
	}
	s.Say("%s", text)
}

// End prints the part of the answer that the deltas did not show, or all of it when they differ or other text came between,
// then the notes, a summary unless the answer failed, and, after waiting for it, the grade. A note about the answer's own error
// is left out: the caller prints that.
func (s *screen) End(r subjects.Response, grade func() *subjects.Critique) error {
	s.spinner.stop()
	answer := AnswerText(r)
	switch rest, continues := s.deltas.Rest(answer); {
	case rest == "":
	case continues && s.shown:
		s.printBlocks(s.text.Write(s.plain.Next(rest)))
	default:
		s.beginText()
		s.printBlocks(s.text.Write(term.PlainText(answer)))
	}
	s.flushText()
	for _, n := range r.Notes {
		s.note(n)
	}
	s.held = slices.DeleteFunc(s.held, func(n subjects.Note) bool { return r.Error != nil && n.Code == r.Error.Code })
	s.printNotes()
	if r.DemoModel && !strings.Contains(r.Answer, "built-in demo model") {
		s.Say("%s", term.Paint(s.Err, term.Yellow, DemoNotice))
	}
	if r.Error == nil {
		s.talk("(%s, %s; continue with --continue)", SummarizeAnswer(r), subjects.DescribeEgress(s.results, r))
	}
	if c := grade(); c != nil {
		for _, l := range FalseClaims(*c) {
			s.Warn("", term.Paint(s.Err, term.Yellow, l))
		}
		s.talk("%s", GradeLine(*c))
		if hint := retryHint(*c, s.Program); hint != "" {
			s.talk("%s", hint)
		}
	}
	return s.Out.Err
}

// Fail ends the open line. The notes that are held back are dropped, and the caller prints the error.
func (s *screen) Fail(*subjects.Fault) error {
	s.spinner.stop()
	s.flushText()
	s.endLine()
	return nil
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

// approval shows a waiting call and asks, or queues it behind the one that was asked before. Without a keyboard, or when stderr
// is no terminal, it prints how to decide elsewhere.
func (s *screen) approval(r subjects.ApprovalRequest) {
	s.interruptText()
	s.printNotes()
	s.endLine()
	if s.lines == nil && term.IsTerminal(s.Err) {
		s.lines = term.ReadLines(s.In)
	}
	if s.lines == nil {
		s.Say("%s", WaitingCall(r, s.Program))
		s.last = s.Err
		return
	}
	if s.waiting = append(s.waiting, r); len(s.waiting) == 1 {
		s.prompt()
	}
}

// prompt asks about the first waiting call and notes the time. s.waiting must not be empty.
func (s *screen) prompt() {
	r := s.waiting[0]
	PrintApproval(s.Err, subjects.Approval{ApprovalRequest: r, State: subjects.ApprovalPending}, time.Now())
	term.DiscardWaiting(s.In)
	fmt.Fprint(s.Err, AskDecision(r, Word(r), false))
	s.open, s.last, s.asked = s.Err, s.Err, time.Now()
}

// Typed delivers typed lines; nil until a call has waited on a terminal.
func (s *screen) Typed() <-chan string { return s.lines }

// Decide makes a decision about the first waiting call of a line. A yes, in any form, approves this call only: broader
// decisions are made with conclave approve. ok is false when no call waits, and for a yes without [Word] or a line within
// [term.TooFast], after which it asks again. The call stays in the queue until the decision comes as an update.
func (s *screen) Decide(line string) (id string, d subjects.ApprovalDecision, ok bool) {
	if len(s.waiting) == 0 {
		return "", d, false
	}
	s.open = nil // the user has ended the line
	if time.Since(s.asked) < term.TooFast {
		s.Say("%s", term.TypedAhead)
		s.prompt()
		return "", d, false
	}
	word := Word(s.waiting[0])
	if d, ok = ParseAnswer(line, s.waiting[0].Form, word); !ok {
		s.Say("%s", term.NeedsWord(word))
		s.prompt()
		return "", d, false
	}
	d.Remember = ""
	return s.waiting[0].ID, d, true
}

// decided removes a call that was decided, here or elsewhere, prints by whom, and asks about the next one. A call that does not
// wait here is ignored.
func (s *screen) decided(r subjects.ApprovalReply) {
	for i, w := range s.waiting {
		if w.ID != r.ID {
			continue
		}
		s.waiting = slices.Delete(s.waiting, i, i+1)
		s.endLine()
		s.talk("%s: %s", w.Tool, strings.TrimSuffix(r.State+" by "+r.By, " by "))
		if i == 0 && len(s.waiting) > 0 {
			s.prompt()
		}
		return
	}
}
