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

// Session prints a conversation with all its turns: each question with its grants (by query id), attachment, tool call,
// result and answer with its grades. Where the turns of sent begin, those that a prompt has, it prints so, with the
// summary of the others. The questions of a client are labelled with its name.
func Session(w io.Writer, c, sent subjects.Conversation, grants map[string][]subjects.Grant) {
	for _, t := range c.Turns {
		if sent.Summarized+sent.Dropped > 0 && len(sent.Turns) > 0 && t.QueryID == sent.Turns[0].QueryID {
			fmt.Fprintln(w, term.Paint(w, term.Dim, "---- the model gets the conversation from here on ----"))
			if sent.Summary != "" {
				message(w, "summary", "of "+term.Count(sent.Summarized, "earlier turn"), sent.Summary)
			}
		}
		if client := subjects.ClientOf(c.SessionID); client != "" {
			message(w, "client", client+", untrusted, "+term.Stamp(t.Time), t.Query)
		} else {
			message(w, "user", term.Stamp(t.Time), t.Query)
		}
		for _, g := range grants[t.QueryID] {
			text := fmt.Sprintf("grants %s, at most %s: %s", strings.Join(g.Acts, " or "), term.Count(g.Times, "time"),
				g.Clause)
			fmt.Fprintln(w, "  "+term.Paint(w, term.Dim, term.Plain(term.OneLine(text))))
		}
		for _, a := range t.Attachments {
			message(w, "attached", a.Describe()+", untrusted; it begins:", a.Content())
		}
		for _, m := range t.Messages {
			message(w, m.Role, m.ToolName, m.Content)
			for _, call := range m.Calls {
				fmt.Fprintf(w, "  calls %s %s\n", term.Plain(call.Name), term.Plain(string(call.Arguments)))
			}
		}
		message(w, cmp.Or(t.Respondent, "assistant"), strings.TrimSpace(t.Model+" "+describeTurn(t)), t.Answer)
		turnGrades(w, t.Grades)
	}
}

// describeTurn is the state of a turn that is not answered in full, with the code of its error; "" = it is.
func describeTurn(t subjects.Turn) string {
	switch {
	case t.Error != "":
		return subjects.StateFailed + " (" + t.Error + ")"
	case t.State != "":
		return t.State
	case t.Partial:
		return subjects.StateAnswered + " in part"
	}
	return ""
}

// message prints one message, sanitized: the role, a remark about it unless it is "", and the text indented below.
func message(w io.Writer, role, about, text string) {
	head := term.Paint(w, roleColours[role], term.Plain(role))
	if about != "" {
		head += " " + term.Paint(w, term.Dim, term.Plain(about))
	}
	fmt.Fprintln(w, head)
	term.Indent(w, "  ", text)
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
