package view

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/term/markdown"
	"conclave/pkg/client"
	"conclave/subjects"
)

// screen shows an answer on a terminal as it grows. Deltas can be lost, so the shown text is compared with the answer
// at the end, and the rest, or all of it, is printed then.
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

// writePlain writes sanitized text to w where the cursor is, in a colour that may be "". Answer and talk share a
// terminal, so text for another stream than the last begins on its own line. A stderr that is no terminal is written as
// it is, without colours.
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

// Show prints an update as it comes: pieces of the answer on stdout, everything else as lines on stderr. A call that
// waits for approval is asked about when there is a keyboard. Notes are held back; see note.
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

// delta prints the next piece of the answer, or of the thinking on stderr where it was asked for. After a lost piece it
// prints no more of this step, since the text would have a gap; End prints the rest. A new step, or one that begins
// again, starts a line.
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

// interruptText prints the text so far because something else follows: what comes of it later is not its continuation
// on the screen.
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

// End prints the part of the answer that the deltas did not show, or all of it when they differ or other text came
// between, then the notes, a summary unless the answer failed, and, after waiting for it, the grade. A note about the
// answer's own error is left out: the caller prints that.
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

// approval shows a waiting call and asks, or queues it behind the one that was asked before. Without a keyboard, or
// when stderr is no terminal, it prints how to decide elsewhere.
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
// decisions are made with conclave approve. ok is false when no call waits, and for a yes without [Word] or a line
// within [term.TooFast], after which it asks again. The call stays in the queue until the decision comes as an update.
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

// decided removes a call that was decided, here or elsewhere, prints by whom, and asks about the next one. A call that
// does not wait here is ignored.
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
