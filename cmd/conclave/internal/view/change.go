package view

import (
	"fmt"
	"io"
	"strings"
	"time"

	"conclave/cmd/conclave/internal/term"
	"conclave/subjects"
)

// Changes prints changes that can be undone, newest first, and the differences that come with them.
func Changes(w io.Writer, list subjects.ChangeList, now time.Time) {
	for _, c := range list.Changes {
		state := ""
		if c.IsUndone() {
			state = ", undone"
		}
		fmt.Fprintf(w, "%s  %s %s%s\n", term.Paint(w, term.Yellow, term.Visible(term.ShortID(c.ID))),
			term.Paint(w, term.Bold, term.Visible(c.Tool)), term.Age(now.Sub(c.Time))+" ago", state)
		for _, f := range c.Files {
			undone := ""
			if f.Undone != "" && !c.IsUndone() {
				undone = ", undone"
			}
			name := ""
			if f.Name != "" {
				name = " “" + term.Visible(f.Name) + "”"
			}
			fmt.Fprintf(w, "  %s %s%s%s\n", f.Kind, term.Visible(f.Path), name, undone)
			printDiff(w, "    ", "    ", f.Diff)
		}
		if len(c.Sources) > 0 {
			fmt.Fprintf(w, "  after reading %s\n", term.Visible(strings.Join(c.Sources, ", ")))
		}
	}
	for _, keeper := range list.Missing {
		fmt.Fprintf(w, "the changes that %s keeps are missing: it does not answer\n", term.Visible(keeper))
	}
	if list.More {
		fmt.Fprintln(w, "there are older ones")
	}
}

// Undo prints what an undo does, with the differences, and what it refuses. With done it has happened.
func Undo(w io.Writer, r subjects.UndoReply, done bool) {
	for _, f := range r.Files {
		name := term.Visible(f.Path)
		switch {
		case f.Same:
			fmt.Fprintf(w, "%s is as it was already\n", name)
		case done:
			fmt.Fprintf(w, "restored %s\n", name)
		case f.Merged:
			fmt.Fprintf(w, "%s: what others changed since stays\n", name)
			printDiff(w, "    ", "    ", f.Diff)
		default:
			printDiff(w, "    ", "    ", f.Diff)
		}
	}
	for _, f := range r.Refusals {
		fmt.Fprintf(w, "not restored: %s\n", term.Visible(f.Text))
	}
}

// printDiff prints a difference in colours, each line behind a prefix. Nothing in it is hidden or obeyed by the
// terminal. The prefix of the first line can be another one.
func printDiff(w io.Writer, first, prefix, diff string) {
	for l := range strings.Lines(strings.TrimRight(diff, "\n")) {
		shown := term.Visible(strings.ReplaceAll(strings.TrimSuffix(l, "\n"), "\t", "    "))
		switch {
		case strings.HasPrefix(l, "+"):
			shown = term.Paint(w, term.Green, shown)
		case strings.HasPrefix(l, "-"):
			shown = term.Paint(w, term.Red, shown)
		}
		fmt.Fprintln(w, first+shown)
		first = prefix
	}
}
