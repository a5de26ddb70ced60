package view

import (
	"fmt"
	"io"

	"conclave/actors/broker/replay"
	"conclave/cmd/conclave/internal/term"
)

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
