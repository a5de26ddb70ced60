package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/spf13/cobra"

	"conclave/pkg/actor"
)

// topCommand shows who is there and how they do.
func (a *app) topCommand() *cobra.Command {
	var (
		once     bool
		interval time.Duration
	)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the actors and their figures",
		Long: `Asks every actor for its figures and shows them as a table, one row per subject on which something came: state, messages that wait
and that are being handled, restarts, messages refused unread, requests, errors, and how long handling takes (50th, 95th
and 99th percentile, in milliseconds).

On a terminal it refreshes in place until Ctrl-C. Piped, with --once or with --json it prints once.`,
		Example: `  conclave top
  conclave top --once
  conclave top --json | jq '.actors[].actor'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < 100*time.Millisecond {
				return usage("--interval %s: at least 100ms", interval)
			}
			nc, err := a.dial("user")
			if err != nil {
				return err
			}
			defer nc.Close()
			if once || a.json || !isTerminal(a.stdout) {
				return a.topOnce(cmd.Context(), nc)
			}
			return a.topLive(cmd.Context(), nc, interval)
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "print one table and end")
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "how often to ask")
	return cmd
}

// row is one subject of one instance of an actor.
type row struct {
	Actor    string `json:"actor"`
	ID       string `json:"id"`
	Subject  string `json:"subject"`
	Requests int    `json:"requests"`
	Errors   int    `json:"errors"`
	actor.RouteStats
}

// figures asks everyone.
func figures(ctx context.Context, nc *nats.Conn) (rows []row, actors int, err error) {
	stats, err := gather[micro.Stats](ctx, nc, "$SRV.STATS")
	if err != nil {
		return nil, 0, err
	}
	rows = []row{}
	for _, s := range stats {
		for _, e := range s.Endpoints {
			r := row{Actor: s.Name, ID: s.ID, Subject: e.Subject, Requests: e.NumRequests, Errors: e.NumErrors}
			_ = json.Unmarshal(e.Data, &r.RouteStats) // a service that is none of ours has other figures, or none
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.Actor, b.Actor), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Subject, b.Subject))
	})
	return rows, len(stats), nil
}

func (a *app) topOnce(ctx context.Context, nc *nats.Conn) error {
	rows, n, err := figures(ctx, nc)
	if err != nil {
		return err
	}
	if a.json {
		err = a.document(struct {
			Time   time.Time `json:"time"`
			Actors []row     `json:"actors"`
		}{time.Now().UTC(), rows})
	} else if n > 0 {
		_, err = fmt.Fprint(a.stdout, table(rows))
	}
	if err == nil && n == 0 {
		return fail(exitAbsent, "no actor answers", "start some with conclave up or conclave actor")
	}
	return err
}

// topLive draws over its own last table, so that what was on the screen before stays there.
func (a *app) topLive(ctx context.Context, nc *nats.Conn, interval time.Duration) error {
	drawn := 0
	for {
		rows, n, err := figures(ctx, nc)
		if err != nil {
			return quietly(ctx, err)
		}
		text := table(rows)
		if n == 0 {
			text = "no actor answers\n"
		}
		columns, height, _ := terminal(a.stdout)
		lines := fit(text, columns, height)
		up := ""
		if drawn > 0 {
			up = fmt.Sprintf("\x1b[%dA\x1b[J", drawn)
		}
		if _, err := fmt.Fprint(a.stdout, up+strings.Join(lines, "\n")+"\n"); err != nil {
			return err
		}
		drawn = len(lines)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// fit cuts a text to the terminal: a line that wraps, or a table that scrolls, could not be drawn over.
func fit(text string, columns, rows int) []string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if rows > 2 && len(lines) > rows-1 {
		lines = lines[:rows-1]
	}
	for i, l := range lines {
		if r := []rune(l); columns > 0 && len(r) > columns {
			lines[i] = string(r[:columns])
		}
	}
	return lines
}

// busy leaves out the subjects of an actor on which nothing has happened, but for a count of them.
func busy(rows []row) (out []row) {
	quiet := map[string]int{}
	for _, r := range rows {
		if r.Requests+r.Errors+r.Mailbox+int(r.InFlight)+int(r.Rejected) > 0 {
			out = append(out, r)
		} else {
			quiet[r.ID]++
		}
	}
	for _, r := range rows {
		if n := quiet[r.ID]; n == 1 {
			out = append(out, row{Actor: r.Actor, ID: r.ID, Subject: "and one more, quiet", RouteStats: actor.RouteStats{State: r.State, Restarts: r.Restarts}})
		} else if n > 1 {
			out = append(out, row{Actor: r.Actor, ID: r.ID, Subject: fmt.Sprintf("and %d more, quiet", n), RouteStats: actor.RouteStats{State: r.State, Restarts: r.Restarts}})
		}
		delete(quiet, r.ID)
	}
	slices.SortStableFunc(out, func(a, b row) int { return cmp.Or(cmp.Compare(a.Actor, b.Actor), cmp.Compare(a.ID, b.ID)) })
	return out
}

func table(rows []row) string {
	rows = busy(rows)
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ACTOR\tSTATE\tMAILBOX\tIN FLIGHT\tRESTARTS\tREFUSED\tREQUESTS\tERRORS\tP50 MS\tP95 MS\tP99 MS\tSUBJECT")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%.1f\t%.1f\t%.1f\t%s\n", plain(r.Actor), plain(or(string(r.State), "-")),
			r.Mailbox, r.InFlight, r.Restarts, r.Rejected, r.Requests, r.Errors, r.P50, r.P95, r.P99, plain(r.Subject))
	}
	w.Flush()
	return b.String()
}
