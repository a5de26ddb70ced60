package view

import (
	"cmp"
	"fmt"
	"io"

	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/actor"
	"conclave/pkg/client"
)

// subjectColours are the colours of events by the first token of their subject.
var subjectColours = map[string]string{
	"query": term.Cyan, "response": term.Green, "answer": term.Green, "tool": term.Yellow, "approval": term.Magenta,
	"agent": term.Blue,
	"dead":  term.Red, "critique": term.Magenta, "pairwise": term.Magenta, "user": term.Cyan, "reward": term.Magenta,
	"memory":    term.Blue,
	"committee": term.Blue, "task": term.Blue,
}

// figureColumns are the headers of the figures that actors and subjects share; dropFigures are left out on a narrow
// terminal.
var (
	figureColumns = []string{
		"STATE", "QUEUED", "IN FLIGHT", "RESTARTS", "REJECTED", "REQUESTS", "ERRORS", "P50 MS",
		"P95 MS", "P99 MS",
	}
	dropFigures = []string{"P95 MS", "P50 MS", "RESTARTS", "REJECTED", "IN FLIGHT", "QUEUED"}
)

// figureCells are the cells of figureColumns.
func figureCells(s actor.RouteStats, requests, errors int) []string {
	cells := []string{term.Plain(cmp.Or(string(s.State), "-"))}
	for _, n := range []any{s.Mailbox, s.InFlight, s.Restarts, s.Rejected, requests, errors} {
		cells = append(cells, fmt.Sprint(n))
	}
	for _, ms := range []float64{s.P50, s.P95, s.P99} {
		cells = append(cells, fmt.Sprintf("%.1f", ms))
	}
	return cells
}

// FigureTable prints a row for each actor under a header, fitted to w.
func FigureTable(w io.Writer, all []client.ActorFigures) {
	rows := [][]string{append([]string{"ACTOR"}, figureColumns...)}
	for _, f := range all {
		name := term.Plain(f.Actor)
		if f.Instances > 1 {
			name += fmt.Sprintf(" (%d)", f.Instances)
		}
		rows = append(rows, append([]string{name}, figureCells(f.RouteStats, f.Requests, f.Errors)...))
	}
	term.Table(w, rows, term.Layout{Drop: dropFigures})
}

// SubjectTable prints a row for each subject of an actor under a header, fitted to w; of several instances, behind the
// beginning of the instance's id.
func SubjectTable(w io.Writer, f client.ActorFigures) {
	rows := [][]string{append([]string{"SUBJECT"}, figureColumns...)}
	for _, r := range f.Subjects {
		subject := term.Plain(r.Subject)
		if f.Instances > 1 {
			subject = term.Plain(term.ShortID(r.ID)) + " " + subject
		}
		rows = append(rows, append([]string{subject}, figureCells(r.RouteStats, r.Requests, r.Errors)...))
	}
	term.Table(w, rows, term.Layout{Drop: dropFigures})
}
