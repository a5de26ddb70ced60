package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/config"
	"conclave/pkg/client"
)

// topCommand shows the figures of all actors, or those of one by subject: once, or refreshed in place on a terminal. It
// rejects an interval below 100 ms.
func topCommand(a *cli.App) *cobra.Command {
	var (
		once     bool
		interval time.Duration
	)
	cmd := &cobra.Command{
		Use:   "top [actor]",
		Short: "Show the actors and their figures",
		Long: `Shows the figures of every actor as a table, one row per actor: state, queued messages and messages
in flight, restarts, rejected messages, requests, errors, and the latency (50th, 95th and 99th
percentile of its slowest subject, in milliseconds). With the name of an actor it shows that actor,
one row per subject. A narrow terminal shows fewer columns; --json has everything.

On a terminal it refreshes in place until Ctrl-C. In a pipe, with --once or with --json it prints
once.`,
		Example: `  conclave top
  conclave top broker
  conclave top --once
  conclave top --json | jq '.actors[].actor'`,
		Args:              cli.Args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: cli.FirstArg(cli.Words(config.Actors...)),
		RunE: func(cmd *cobra.Command, v []string) error {
			if interval < 100*time.Millisecond {
				return cli.Usage("--interval %s: at least 100ms", interval)
			}
			name := strings.Join(v, "")
			if err := cli.CheckID("actor", name); err != nil {
				return err
			}
			ctx := cmd.Context()
			if once || a.JSON || !term.IsTerminal(a.Out) {
				return a.WithClient(func(c *client.Client) error { return printFigures(ctx, a, c, name) })
			}
			return a.ReadWithClient(ctx, func(c *client.Client) error { return drawFigures(ctx, a, c, name, interval) })
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "print one table and exit")
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "how often to refresh")
	return cmd
}

// queryFigures returns the figures of the running actors, of the one called name unless that is "".
func queryFigures(ctx context.Context, c *client.Client, name string) ([]client.ActorFigures, error) {
	stats, err := c.Stats(ctx)
	if err != nil {
		return nil, err
	}
	all := client.ListFigures(stats)
	if name != "" {
		all = slices.DeleteFunc(all, func(f client.ActorFigures) bool { return f.Actor != name })
	}
	return all, nil
}

// printFigures prints the figures once. It is an error when no actor, or not the one called name, answers; with --json
// an empty list is printed before it.
func printFigures(ctx context.Context, a *cli.App, c *client.Client, name string) error {
	all, err := queryFigures(ctx, c, name)
	if err != nil {
		return err
	}
	err = a.Print(struct {
		Time   time.Time             `json:"time"`
		Actors []client.ActorFigures `json:"actors"`
	}{time.Now().UTC(), all}, nil, func() { view.FigureTable(a.Out, all, name != "") })
	switch {
	case err != nil || len(all) > 0:
		return err
	case name != "":
		return cli.Fail(cli.ExitAbsent, "no actor "+name+" answers", "list the running ones with conclave top --once")
	}
	return cli.Fail(cli.ExitAbsent, "no actor answers", "start some with conclave up or conclave actor")
}

// drawFigures draws the table over its previous version every interval until ctx ends, so that earlier output stays on
// the screen. stdout must be a terminal; the table is cut to its size. That no actor answers is shown and is no error.
func drawFigures(ctx context.Context, a *cli.App, c *client.Client, name string, interval time.Duration) error {
	drawn := 0
	for {
		all, err := queryFigures(ctx, c, name)
		if err != nil {
			return err
		}
		up := ""
		if drawn > 0 {
			up = fmt.Sprintf("\x1b[%dA\x1b[J", drawn)
		}
		columns, height, _ := term.Size(a.Out)
		var b strings.Builder
		view.FigureTable(term.Sized(&b, columns), all, name != "")
		lines := term.Fit(cmp.Or(b.String(), "no actor answers\n"), columns, height)
		if _, err := fmt.Fprint(a.Out, up+strings.Join(lines, "\n")+"\n"); err != nil {
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
