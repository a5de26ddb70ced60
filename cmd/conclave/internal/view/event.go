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

// ActorFigures are the figures of one subject of one instance of an actor.
type ActorFigures struct {
	Actor    string `json:"actor"`
	ID       string `json:"id"`
	Subject  string `json:"subject"`
	Requests int    `json:"requests"`
	Errors   int    `json:"errors"`
	actor.RouteStats
}

// ListFigures makes a row of each endpoint of all services, sorted by actor, instance and subject; it is never nil. A service
// that is not one of our actors has only requests and errors.
func ListFigures(stats []micro.Stats) []ActorFigures {
	rows := []ActorFigures{}
	for _, s := range stats {
		for _, e := range s.Endpoints {
			r := ActorFigures{Actor: s.Name, ID: s.ID, Subject: e.Subject, Requests: e.NumRequests, Errors: e.NumErrors}
			_ = json.Unmarshal(e.Data, &r.RouteStats)
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b ActorFigures) int {
		return cmp.Or(cmp.Compare(a.Actor, b.Actor), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Subject, b.Subject))
	})
	return rows
}

// FigureTable returns the figures as a table with a header. Subjects without any traffic share one row for each instance.
func FigureTable(all []ActorFigures) string {
	var b strings.Builder
	rows := [][]string{{"ACTOR", "STATE", "MAILBOX", "IN FLIGHT", "RESTARTS", "REFUSED", "REQUESTS", "ERRORS", "P50 MS", "P95 MS", "P99 MS", "SUBJECT"}}
	for _, r := range foldIdle(all) {
		row := []string{term.Plain(r.Actor), term.Plain(cmp.Or(string(r.State), "-"))}
		for _, n := range []any{r.Mailbox, r.InFlight, r.Restarts, r.Rejected, r.Requests, r.Errors} {
			row = append(row, fmt.Sprint(n))
		}
		for _, ms := range []float64{r.P50, r.P95, r.P99} {
			row = append(row, fmt.Sprintf("%.1f", ms))
		}
		rows = append(rows, append(row, term.Plain(r.Subject)))
	}
	_ = term.Table(&b, rows) // a builder does not fail
	return b.String()
}

// foldIdle replaces the rows without any traffic by one row for each instance, which has their number in place of the subject,
// and the state and restarts of the instance. The result is sorted by actor and instance; the idle row is the last of its
// instance.
func foldIdle(rows []ActorFigures) (out []ActorFigures) {
	idle := map[string]int{}
	for _, r := range rows {
		if r.Requests+r.Errors+r.Mailbox+int(r.InFlight)+int(r.Rejected) > 0 {
			out = append(out, r)
		} else {
			idle[r.ID]++
		}
	}
	for _, r := range rows {
		if n := idle[r.ID]; n > 0 {
			out = append(out, ActorFigures{Actor: r.Actor, ID: r.ID, Subject: fmt.Sprintf("(%d idle)", n), RouteStats: actor.RouteStats{State: r.State, Restarts: r.Restarts}})
		}
		delete(idle, r.ID)
	}
	slices.SortStableFunc(out, func(a, b ActorFigures) int { return cmp.Or(cmp.Compare(a.Actor, b.Actor), cmp.Compare(a.ID, b.ID)) })
	return out
}
