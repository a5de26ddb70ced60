package view

import (
	"fmt"
	"io"
	"slices"
	"strings"

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
