package view

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"conclave/actors/broker/replay"
	"conclave/cmd/conclave/internal/term"
	"conclave/subjects"
)

var verdictColours = map[string]string{"pass": term.Green, "ask": term.Yellow, "deny": term.Red}

// Verdict prints what each layer of the policy says, a line each, then the monitor-only rules that would have denied or
// asked. The colours have the same length, so that the columns stay aligned.
func Verdict(w io.Writer, v subjects.Verdict) {
	var rows [][]string
	for _, l := range v.Layers {
		rows = append(rows, []string{
			term.Paint(w, verdictColours[l.Verdict], term.Visible(l.Verdict)),
			term.Visible(l.Layer), term.Visible(RuleReason(l.Rule, l.Reason)),
		})
	}
	term.Table(w, rows, term.Layout{Whole: true})
	for _, m := range v.Monitored {
		fmt.Fprintf(w, "monitor-only: %s\n", term.Visible(m.Layer+": "+RuleReason(m.Rule, m.Reason)))
	}
}

// RuleReason is a rule with its reason; either may be empty.
func RuleReason(rule, reason string) string {
	return strings.TrimSuffix(strings.TrimPrefix(rule+": "+reason, ": "), ": ")
}

// redactedFlag labels a result from which credentials were removed. It is no sign of injection.
const redactedFlag = "redacted"

// ToolText prints the text of a result with one line break at its end. On a terminal it is sanitized; a pipe gets it
// unchanged.
func ToolText(s *term.Streams, text string) {
	if term.IsTerminal(s.Out) {
		text = term.PlainText(text)
	}
	fmt.Fprintln(s.Out, strings.TrimSuffix(text, "\n"))
}

// ToolWarnings prints on stderr what the user should know before trusting a result: external content, signs of
// injection, removed credentials, and how to get the whole of a result that was cut. A result without labels prints no
// content warning, a complete one no hint. program is the name of this program, with its global flags, in the printed
// command.
func ToolWarnings(s *term.Streams, res subjects.ToolResult, program string) {
	if l := res.Labels; l != nil {
		signs := slices.DeleteFunc(slices.Clone(l.Flags), func(f string) bool { return f == redactedFlag })
		switch {
		case len(signs) > 0:
			s.Say("warning: external content with signs of injection: %s", term.Visible(strings.Join(signs, ", ")))
		case l.Trust != subjects.Trusted:
			s.Say("this may contain external content")
		}
		if slices.Contains(l.Flags, redactedFlag) {
			s.Say("text that looked like a credential was removed")
		}
	}
	if p := res.Parked; p != nil {
		s.Say("%s of %s shown; the whole result: %s call --parked %s", term.Bytes(int64(p.Shown)),
			term.Bytes(int64(p.Bytes)), program, term.Visible(p.ID))
	}
}

// replayedCalls bounds the calls printed of a rule; --json has all.
const replayedCalls = 10

// Replay prints the report of a policy replay: the counts, then each rule that decides differently with its calls, what
// cannot be judged, and the damaged records.
func Replay(w io.Writer, r replay.Report) {
	fmt.Fprintf(w, "calls       %d", r.Calls)
	if r.Calls > 0 {
		fmt.Fprintf(w, ", %s to %s", r.First.Local().Format("2006-01-02 15:04"),
			r.Last.Local().Format("2006-01-02 15:04"))
	}
	fmt.Fprintf(w, "\nunchanged   %d\nchanged     %d\n", r.Unchanged, r.Changed)
	for _, c := range r.Changes {
		fmt.Fprintf(w, "\n%s: %d %s\n", term.Plain(c.Rule), len(c.Calls), c.Effect)
		replayedTable(w, c.Calls)
	}
	for _, u := range r.Unjudged {
		fmt.Fprintf(w, "\ncannot be judged: %d: %s\n", u.Count, term.Plain(u.Reason))
	}
	for _, d := range r.Damaged {
		fmt.Fprintf(w, "\ndamaged: event %d of %s: %s\n", d.Seq, d.Time.Local().Format("2006-01-02 15:04"),
			term.Plain(d.Reason))
	}
}

// replayedTable prints calls, one line each.
func replayedTable(w io.Writer, calls []replay.Call) {
	var rows [][]string
	for _, c := range calls[:min(len(calls), replayedCalls)] {
		rows = append(rows, []string{
			"  " + c.Time.Local().Format("01-02 15:04"), term.Plain(c.Caller),
			term.Plain(c.Tool), c.Before + " -> " + c.After, term.Plain(term.Clip(string(c.Args), 60)),
		})
	}
	term.Table(w, rows, term.Layout{})
	if more := len(calls) - replayedCalls; more > 0 {
		fmt.Fprintf(w, "  and %d more: --json lists all\n", more)
	}
}
