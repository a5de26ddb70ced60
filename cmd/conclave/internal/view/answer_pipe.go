package view

import (
	"fmt"
	"strings"

	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/client"
	"conclave/subjects"
)

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

// End prints the answer alone and then waits for the grade, which goes to stderr; with JSON it waits first and prints
// one document. An empty answer prints nothing and waits for no grade.
func (p *pipe) End(r subjects.Response, grade func() *subjects.Critique) {
	p.endLine()
	if p.JSON {
		_ = p.PrintJSON(struct { // stdout remembers its error
			subjects.Response
			Grade *subjects.Critique `json:"grade,omitempty"`
		}{r, grade()})
		return
	}
	if r.DemoModel && !strings.Contains(r.Answer, "built-in demo model") {
		p.Say("%s", DemoNotice)
	}
	text := AnswerText(r)
	if text == "" {
		return
	}
	fmt.Fprintln(p.Out, strings.TrimSuffix(text, "\n"))
	if p.Out.Err != nil {
		return
	}
	if c := grade(); c != nil {
		for _, l := range []string{GradeLine(*c), retryHint(*c, p.Program)} {
			if l != "" {
				p.Say("%s", l)
			}
		}
	}
}

// Fail prints, with JSON, a partial response with the fault, so that a program always reads one document; otherwise
// nothing. The caller prints the error.
func (p *pipe) Fail(f *subjects.Fault) {
	p.endLine()
	if p.JSON {
		_ = p.PrintJSON(subjects.Response{
			SessionID: p.Session, QueryID: p.Query, Query: p.Question,
			ToolCalls: []subjects.ToolCall{}, Partial: true, Error: f,
		})
	}
}
