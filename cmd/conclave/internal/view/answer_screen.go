package view

import (
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

// screen shows an answer on a terminal as it grows.
type screen struct {
	AnswerOptions
	Transcript
	spinner *spinner
	open    io.Writer        // stream whose line is not ended; nil = none
	last    io.Writer        // stream written to last
	thought term.PlainStream // sanitizes the thinking

	lines   <-chan string              // the keyboard, once a call has waited
	waiting []subjects.ApprovalRequest // calls that wait for a decision
	arrived time.Time                  // when the last of them came
	batch   Batch                      // those that the user is asked about; nil while more are gathered
	asked   time.Time                  // when the user was
	sent    bool                       // the user has decided about the batch
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
		s.open = w
		if ended {
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

// newScreen returns the screen of a question.
func newScreen(o AnswerOptions) *screen {
	s := &screen{AnswerOptions: o, spinner: newSpinner(o.Streams)}
	s.Transcript = NewTranscript(s, map[string]bool{})
	return s
}

// Talk implements [Printer]: one dim line on stderr, cut to the width of the terminal, or to 199 characters elsewhere.
func (s *screen) Talk(line string) {
	columns, _, ok := term.Size(s.Err)
	if !ok || columns < 20 {
		columns = 200
	}
	s.dim(term.Clip(line, columns-1))
}

// Note implements [Printer]: a dim line on stderr that is not cut.
func (s *screen) Note(line string) { s.dim(term.Clip(line, 0)) }

func (s *screen) dim(line string) {
	if term.IsTerminal(s.Err) {
		s.Interrupt()
		s.endLine()
	}
	s.write(s.Err, term.Dim, line+"\n")
}

// Show prints an update as it comes: pieces of the answer on stdout, everything else as lines on stderr. A call that
// waits for approval is asked about when there is a keyboard.
func (s *screen) Show(u client.Update) {
	s.spinner.phase.Follow(u)
	switch u := u.(type) {
	case client.ApprovalAsked:
		s.approval(u.ApprovalRequest)
	case client.ApprovalDecided:
		s.decided(u.ApprovalReply)
	case client.Waiting:
		s.Warn("", WaitingText(u))
	case client.Delta:
		if u.Thinking && s.Thinking && u.Text != "" {
			s.Interrupt()
			s.writePlain(s.Err, term.Dim, s.thought.Next(u.Text))
		}
		s.Transcript.Show(u)
		s.spinner.preview(s.Tail())
	default:
		s.Transcript.Show(u)
	}
}

// Ticks implements [AnswerView].
func (s *screen) Ticks() <-chan time.Time { return s.spinner.ticker.C }

// Tick implements [AnswerView]. It asks about waiting calls when no other one has come for [GatherTime].
func (s *screen) Tick() {
	switch {
	case s.batch != nil:
	case len(s.waiting) > 0:
		if time.Since(s.arrived) >= GatherTime {
			s.prompt()
		}
	case s.open == nil:
		s.spinner.tick()
	}
}

// SetModel implements [AnswerView].
func (s *screen) SetModel(m ModelState) { s.spinner.phase.SetModel(m) }

// PrintBlock implements [Printer]: the block is rendered on stdout, with a blank line between two.
func (s *screen) PrintBlock(b markdown.Block, begins bool) {
	columns, _, _ := term.Size(s.Out)
	s.endLine()
	if b.First && !begins {
		fmt.Fprintln(s.Out)
	}
	for _, l := range (markdown.Format{Columns: columns - 1, Colour: term.HasColour(s.Out)}).Render(b) {
		fmt.Fprintln(s.Out, l)
	}
	s.last = s.Out
	s.spinner.preview(markdown.Block{}, false)
}

// Warn prints the text on a line of its own on stderr, not dimmed and not cut. The code is not shown.
func (s *screen) Warn(_, text string) {
	s.spinner.clear()
	if term.IsTerminal(s.Err) {
		s.Interrupt()
		s.endLine()
		s.last = s.Err
	}
	s.Say("%s", text)
}

// End prints the part of the answer that the deltas did not show, or all of it when they differ or other text came
// between, then the notes, a summary unless the answer failed, and, after waiting for it, the grade. A note about the
// answer's own error is left out: the caller prints that.
func (s *screen) End(r subjects.Response, grade func() *subjects.Critique) {
	s.spinner.stop()
	s.PrintAnswer(r)
	s.PrintAnswerNotes(r)
	if r.DemoModel && !strings.Contains(r.Answer, "built-in demo model") {
		s.Say("%s", term.Paint(s.Err, term.Yellow, DemoNotice))
	}
	if r.Error == nil {
		s.Note("(" + s.Summarize(r) + "; continue with --continue)")
	}
	if c := grade(); c != nil {
		s.Talk(GradeLine(*c))
		if hint := retryHint(*c, s.Program); hint != "" {
			s.Talk(hint)
		}
	}
}

// Fail ends the open line. The notes that are held back are dropped, and the caller prints the error.
func (s *screen) Fail(*subjects.Fault) {
	s.spinner.stop()
	s.Flush()
	s.endLine()
}

// approval shows a waiting call and asks, or queues it behind the one that was asked before. Without a keyboard, or
// when stderr is no terminal, it prints how to decide elsewhere.
func (s *screen) approval(r subjects.ApprovalRequest) {
	s.Interrupt()
	s.PrintNotes()
	s.endLine()
	if s.lines == nil && term.IsTerminal(s.Err) {
		s.lines = term.ReadLines(s.In)
	}
	if s.lines == nil {
		s.Say("%s", WaitingCall(r, s.Program))
		s.last = s.Err
		return
	}
	s.waiting, s.arrived = append(s.waiting, r), time.Now()
}

// prompt shows the first waiting calls, which must not be empty, and asks about them. Calls that come later are none of
// these.
func (s *screen) prompt() {
	b, more := NextBatch(s.waiting)
	s.spinner.clear()
	s.batch, s.sent = b, false
	b.Print(s.Err, more, time.Now())
	s.ask()
}

// ask asks about the calls that are shown and notes the time.
func (s *screen) ask() {
	term.DiscardWaiting(s.In)
	fmt.Fprint(s.Err, s.batch.Prompt(s.batch.Word(), false))
	s.open, s.last, s.asked = s.Err, s.Err, time.Now()
}

// Typed delivers typed lines; nil until a call has waited on a terminal.
func (s *screen) Typed() <-chan string { return s.lines }

// Decide makes the decisions about the calls that are shown of a line. A yes, in any form, approves these calls only:
// broader decisions are made with conclave approve. It returns none when the user is not asked, and for a yes without
// [Word], numbers of no call, or a line within [term.TooFast], after which it asks again. The calls stay in the queue
// until the decisions come as updates.
func (s *screen) Decide(line string) (out []Decision) {
	if s.batch == nil {
		return nil
	}
	s.open = nil // the user has ended the line
	decisions, complaint := s.batch.Parse(line, s.batch.Word())
	if time.Since(s.asked) < term.TooFast {
		complaint = term.TypedAhead
	}
	if complaint != "" {
		s.Say("%s", complaint)
		s.prompt()
		return nil
	}
	s.sent = true
	for _, d := range decisions {
		d.Remember = ""
		if s.waitingIndex(d.ID) >= 0 {
			out = append(out, d)
		}
	}
	return out
}

// AskAgain implements [AnswerView].
func (s *screen) AskAgain() {
	if s.batch != nil {
		s.sent = false
		s.ask()
	}
}

// waitingIndex is the index of the waiting call with this request, -1 when it does not wait any more.
func (s *screen) waitingIndex(id string) int {
	return slices.IndexFunc(s.waiting, func(r subjects.ApprovalRequest) bool { return r.ID == id })
}

// decided removes a call that was decided, here or elsewhere, prints by whom, and asks about the next ones when none is
// left of those that are shown. A call that does not wait here is ignored.
func (s *screen) decided(r subjects.ApprovalReply) {
	at := s.waitingIndex(r.ID)
	if at < 0 {
		return
	}
	tool := s.waiting[at].Tool
	s.waiting = slices.Delete(s.waiting, at, at+1)
	s.endLine()
	s.Talk(tool + ": " + strings.TrimSuffix(r.State+" by "+r.By, " by "))
	switch {
	case s.batch == nil:
	case slices.ContainsFunc(s.batch, func(r subjects.ApprovalRequest) bool { return s.waitingIndex(r.ID) >= 0 }):
		if !s.sent {
			s.ask()
		}
	case len(s.waiting) > 0:
		s.prompt()
	default:
		s.batch = nil
	}
}
