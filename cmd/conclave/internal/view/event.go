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

// FigureTable prints a row for each actor, or for each subject of them, under a header, fitted to w; without any it
// prints nothing. Subjects of several instances stand behind the beginning of the instance's id.
func FigureTable(w io.Writer, all []client.ActorFigures, bySubject bool) {
	head := "ACTOR"
	if bySubject {
		head = "SUBJECT"
	}
	rows := [][]string{append([]string{head}, figureColumns...)}
	row := func(name string, s actor.RouteStats, requests, errors int) {
		cells := []string{term.Plain(name), term.Plain(cmp.Or(string(s.State), "-"))}
		for _, n := range []any{s.Mailbox, s.InFlight, s.Restarts, s.Rejected, requests, errors} {
			cells = append(cells, fmt.Sprint(n))
		}
		for _, ms := range []float64{s.P50, s.P95, s.P99} {
			cells = append(cells, fmt.Sprintf("%.1f", ms))
		}
		rows = append(rows, cells)
	}
	for _, f := range all {
		name := f.Actor
		if f.Instances > 1 {
			name += fmt.Sprintf(" (%d)", f.Instances)
		}
		if !bySubject {
			row(name, f.RouteStats, f.Requests, f.Errors)
			continue
		}
		for _, r := range f.Subjects {
			subject := r.Subject
			if f.Instances > 1 {
				subject = term.ShortID(r.ID) + " " + subject
			}
			row(subject, r.RouteStats, r.Requests, r.Errors)
		}
	}
	if len(rows) > 1 {
		term.Table(w, rows, term.Layout{Drop: dropFigures})
	}
}
