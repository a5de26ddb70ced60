package view

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/client"
	"conclave/subjects"
)

// Sessions prints a list of sessions as a table, in the order given. The first question is cut to the width of the
// terminal, and marked when a question of the session is being answered.
func Sessions(w io.Writer, sessions []client.SessionSummary) {
	rows := [][]string{{"SESSION", "TURNS", "LAST USED", "FIRST QUESTION"}}
	for _, s := range sessions {
		question := s.Question
		if client := subjects.ClientOf(s.ID); client != "" {
			question = "[asked by " + client + ", untrusted] " + question
		}
		if s.Running {
			question = "[running] " + question
		}
		rows = append(rows, []string{
			s.ID, fmt.Sprint(s.Turns), term.Stamp(s.Updated),
			term.Plain(term.Clip(question, nameRoom(w))),
		})
	}
	term.Table(w, rows, term.Layout{Drop: []string{"TURNS", "LAST USED"}})
}

var roleColours = map[string]string{"user": term.Cyan, "assistant": term.Green, "tool": term.Yellow}

// Session prints a conversation: the summary of older turns, then each question with its grants (by query id),
// attachment, tool call, result and answer with its grades. The questions of a client are labelled with its name. On
// stderr it says how many turns were dropped.
func Session(s *term.Streams, c subjects.Conversation, grants map[string][]subjects.Grant) {
	if c.Dropped > 0 {
		s.Say("%s dropped: too many, or too large", term.Count(c.Dropped, "turn"))
	}
	if c.Summary != "" {
		message(s.Out, "summary", "of "+term.Count(c.Summarized, "turn"), c.Summary)
	}
	for _, t := range c.Turns {
		if client := subjects.ClientOf(c.SessionID); client != "" {
			message(s.Out, "client", client+", untrusted, "+term.Stamp(t.Time), t.Query)
		} else {
			message(s.Out, "user", term.Stamp(t.Time), t.Query)
		}
		for _, g := range grants[t.QueryID] {
			text := fmt.Sprintf("grants %s, at most %s: %s", strings.Join(g.Acts, " or "), term.Count(g.Times, "time"),
				g.Clause) + describePlaces(g)
			fmt.Fprintln(s.Out, "  "+term.Paint(s.Out, term.Dim, term.Plain(term.OneLine(text))))
		}
		for _, a := range t.Attachments {
			message(s.Out, "attached", a.Describe()+", untrusted; it begins:", a.Content())
		}
		for _, m := range t.Messages {
			message(s.Out, m.Role, m.ToolName, m.Content)
			for _, call := range m.Calls {
				fmt.Fprintf(s.Out, "  calls %s %s\n", term.Plain(call.Name), term.Plain(string(call.Arguments)))
			}
		}
		about := t.Model
		if t.Partial {
			about += " partial"
		}
		message(s.Out, cmp.Or(t.Respondent, "assistant"), strings.TrimSpace(about+" "+t.Error), t.Answer)
		turnGrades(s.Out, t.Grades)
	}
}

// message prints one message, sanitized: the role, a remark about it unless it is "", and the text indented below.
func message(w io.Writer, role, about, text string) {
	head := term.Paint(w, roleColours[role], term.Plain(role))
	if about != "" {
		head += " " + term.Paint(w, term.Dim, term.Plain(about))
	}
	fmt.Fprintln(w, head)
	for l := range strings.Lines(strings.TrimRight(term.PlainText(text), "\n")) {
		fmt.Fprintln(w, "  "+strings.TrimRight(l, "\n"))
	}
}

// turnGrades prints the grade, the comparison and the user's feedback of a turn below its answer, as far as there are
// any; nil prints nothing.
func turnGrades(w io.Writer, g *subjects.Grades) {
	if g == nil {
		return
	}
	line := func(format string, v ...any) {
		fmt.Fprintln(w, "  "+term.Paint(w, term.Dim, term.Plain(fmt.Sprintf(format, v...))))
	}
	if g.Critic > 0 {
		line("%s", GradeLine(subjects.Critique{Score: g.Critic, Feedback: g.Feedback}))
	}
	switch g.Pairwise {
	case "":
	case subjects.Tie:
		line("compared with another answer: a tie")
	default:
		line("compared with another answer: %s was better", g.Pairwise)
	}
	if g.Rewards > 0 {
		line("%s", strings.TrimSuffix(fmt.Sprintf("you: %+.1f: %s", g.Reward, term.OneLine(g.Words)), ": "))
	}
}

// Override prints the override that holds in a session. For ALL it says on stderr how to undo it; program begins that
// command.
func Override(s *term.Streams, c subjects.SessionConfig, program string) {
	line := func(name, text string) { fmt.Fprintf(s.Out, "%-9s %s\n", name, text) }
	line("session", term.Visible(c.SessionID))
	level, colour := c.Override, term.Yellow
	if level == "" || level == subjects.OverrideNone {
		level, colour = subjects.OverrideNone, ""
	}
	text := term.Paint(s.Out, colour, term.Visible(level))
	switch {
	case c.Once && c.QueryID != "":
		text += " for the message " + term.Visible(c.QueryID) + " only"
	case c.Once:
		text += " for the next message only"
	}
	line("override", text)
	if !c.Expires.IsZero() {
		line("until", c.Expires.Local().Format("2006-01-02 15:04:05"))
	}
	if len(c.Disable) > 0 {
		line("disabled", term.Visible(strings.Join(c.Disable, ", ")))
	}
	if len(c.Grant) > 0 {
		line("granted", term.Visible(strings.Join(c.Grant, ", ")))
	}
	if level == subjects.OverrideAll {
		s.Say("every call in this session is allowed now; undo with: %s session override %s NONE", program, c.SessionID)
	}
}

// Basis prints what an answer is based on: the memories that were recalled for it, its tool calls, notes, model and
// tokens.
func Basis(w io.Writer, r subjects.Response, recalls []subjects.MemoryRecall) {
	line := func(name, format string, v ...any) {
		fmt.Fprintf(w, "%-10s %s\n", name, term.Visible(term.OneLine(fmt.Sprintf(format, v...))))
	}
	line("question", "%s", r.Query)
	for _, h := range recalls {
		text := fmt.Sprintf("%s %q, similarity %.2f, score %.2f, %s ago, %s", term.ShortID(h.ID), term.Clip(h.Name, 80),
			h.Similarity, h.Score, term.Age(time.Since(h.Created)), trustWord(h.Trust))
		if h.Critic > 0 {
			text += fmt.Sprintf(", graded %d of 5", h.Critic)
			if strings.HasPrefix(h.Feedback, subjects.GradedByItself) {
				text += ", " + subjects.GradedByItself
			}
		}
		line("memory", "%s", text)
	}
	if len(recalls) == 0 {
		line("memory", "nothing was recalled")
	}
	for _, c := range r.ToolCalls {
		line("tool", "%s %s", c.Tool, c.Args)
	}
	if len(r.ToolCalls) == 0 {
		line("tool", "no call")
	}
	for _, n := range r.Notes {
		line("note", "%s", n.Text)
	}
	line("answered", "%s", SummarizeAnswer(r))
	line("query", "%s", r.QueryID)
}
