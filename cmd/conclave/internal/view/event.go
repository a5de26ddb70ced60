package view

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/micro"

	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/actor"
	"conclave/pkg/client"
)

// subjectColours are the colours of events by the first token of their subject.
var subjectColours = map[string]string{
	"query": term.Cyan, "response": term.Green, "answer": term.Green, "tool": term.Yellow, "approval": term.Magenta, "agent": term.Blue,
	"dead": term.Red, "critique": term.Magenta, "pairwise": term.Magenta, "user": term.Cyan, "reward": term.Magenta, "memory": term.Blue,
	"committee": term.Blue, "task": term.Blue,
}

// Event prints one event on a line: local time, subject, author, the beginnings of the ids, body. A missing field is "-".
func Event(w io.Writer, e client.Event) error {
	family, _, _ := strings.Cut(e.Subject, ".")
	id := func(s string) string { return term.Plain(cmp.Or(term.ShortID(s), "-")) }
	_, err := fmt.Fprintf(w, "%s  %s  %-10s  %s  %s\n", e.Time.Local().Format("15:04:05.000"),
		term.Paint(w, subjectColours[family], fmt.Sprintf("%-28s", term.Plain(e.Subject))), term.Plain(cmp.Or(e.From, "-")),
		term.Paint(w, term.Dim, fmt.Sprintf("%-8s %-8s", id(e.Session), id(e.Query))), term.Plain(e.Text()))
	return err
}

// SubjectFigures are the figures of one subject of one instance of an actor.
type SubjectFigures struct {
	ID       string `json:"id"` // of the instance
	Subject  string `json:"subject"`
	Requests int    `json:"requests"`
	Errors   int    `json:"errors"`
	actor.RouteStats
}

// ActorFigures are the figures of all instances of an actor: sums, and the highest latency of its subjects. The state is that of
// the instance that is least ready.
type ActorFigures struct {
	Actor     string           `json:"actor"`
	Instances int              `json:"instances"`
	Requests  int              `json:"requests"`
	Errors    int              `json:"errors"`
	Subjects  []SubjectFigures `json:"subjects"` // sorted by instance and subject
	actor.RouteStats
}

// ListFigures returns the figures of each actor, sorted by name; it is never nil. A service that is not one of our actors has only
// requests and errors.
func ListFigures(stats []micro.Stats) []ActorFigures {
	all := []ActorFigures{}
	slices.SortFunc(stats, func(a, b micro.Stats) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	for _, s := range stats {
		if len(all) == 0 || all[len(all)-1].Actor != s.Name {
			all = append(all, ActorFigures{Actor: s.Name, Subjects: []SubjectFigures{}})
		}
		all[len(all)-1].addInstance(s)
	}
	return all
}

// addInstance adds the figures of an instance.
func (f *ActorFigures) addInstance(s micro.Stats) {
	f.Instances++
	slices.SortFunc(s.Endpoints, func(a, b *micro.EndpointStats) int { return cmp.Compare(a.Subject, b.Subject) })
	restarts := f.Restarts
	for _, e := range s.Endpoints {
		r := SubjectFigures{ID: s.ID, Subject: e.Subject, Requests: e.NumRequests, Errors: e.NumErrors}
		_ = json.Unmarshal(e.Data, &r.RouteStats)
		f.Subjects = append(f.Subjects, r)
		f.Requests, f.Errors = f.Requests+r.Requests, f.Errors+r.Errors
		f.Mailbox, f.InFlight, f.Rejected = f.Mailbox+r.Mailbox, f.InFlight+r.InFlight, f.Rejected+r.Rejected
		f.P50, f.P95, f.P99 = max(f.P50, r.P50), max(f.P95, r.P95), max(f.P99, r.P99)
		f.Restarts = max(f.Restarts, restarts+r.Restarts) // every subject has those of its instance
		if f.State == "" || f.State == actor.Ready {
			f.State = r.State
		}
	}
}

// figureColumns are the headers of the figures that actors and subjects share; dropFigures are left out on a narrow terminal.
var (
	figureColumns = []string{"STATE", "QUEUED", "IN FLIGHT", "RESTARTS", "REJECTED", "REQUESTS", "ERRORS", "P50 MS", "P95 MS", "P99 MS"}
	dropFigures   = []string{"P95 MS", "P50 MS", "RESTARTS", "REJECTED", "IN FLIGHT", "QUEUED"}
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
func FigureTable(w io.Writer, all []ActorFigures) error {
	rows := [][]string{append([]string{"ACTOR"}, figureColumns...)}
	for _, f := range all {
		name := term.Plain(f.Actor)
		if f.Instances > 1 {
			name += fmt.Sprintf(" (%d)", f.Instances)
		}
		rows = append(rows, append([]string{name}, figureCells(f.RouteStats, f.Requests, f.Errors)...))
	}
	return term.Table(w, rows, term.Layout{Drop: dropFigures})
}

// SubjectTable prints a row for each subject of an actor under a header, fitted to w; of several instances, behind the beginning
// of the instance's id.
func SubjectTable(w io.Writer, f ActorFigures) error {
	rows := [][]string{append([]string{"SUBJECT"}, figureColumns...)}
	for _, r := range f.Subjects {
		subject := term.Plain(r.Subject)
		if f.Instances > 1 {
			subject = term.Plain(term.ShortID(r.ID)) + " " + subject
		}
		rows = append(rows, append([]string{subject}, figureCells(r.RouteStats, r.Requests, r.Errors)...))
	}
	return term.Table(w, rows, term.Layout{Drop: dropFigures})
}
