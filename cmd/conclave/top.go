package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/client"
)

// topCommand shows the figures of all actors: once, or refreshed in place on a terminal. It rejects an interval below 100 ms.
func topCommand(a *cli.App) *cobra.Command {
	var (
		once     bool
		interval time.Duration
	)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the actors and their figures",
		Long: `Shows the figures of every actor as a table, one row per subject with traffic: state, queued messages and messages in flight,
restarts, rejected messages, requests, errors, and the latency (50th, 95th and 99th percentile, in milliseconds).

On a terminal it refreshes in place until Ctrl-C. In a pipe, with --once or with --json it prints once.`,
		Example: `  conclave top
  conclave top --once
  conclave top --json | jq '.actors[].actor'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < 100*time.Millisecond {
				return cli.Usage("--interval %s: at least 100ms", interval)
			}
			ctx := cmd.Context()
			if once || a.JSON || !term.IsTerminal(a.Out) {
				return a.WithClient(func(c *client.Client) error { return printFigures(ctx, a, c) })
			}
			return a.ReadWithClient(ctx, func(c *client.Client) error { return drawFigures(ctx, a, c, interval) })
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "print one table and exit")
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "how often to refresh")
	return cmd
}

// printFigures prints the figures of the running actors once. It is an error when no actor answers; with --json an empty list
// is printed before it.
func printFigures(ctx context.Context, a *cli.App, c *client.Client) error {
	stats, err := c.Stats(ctx)
	if err != nil {
		return err
	}
	rows := view.ListFigures(stats)
	if a.JSON {
		err = a.PrintJSON(struct {
			Time   time.Time           `json:"time"`
			Actors []view.ActorFigures `json:"actors"`
		}{time.Now().UTC(), rows})
	} else if len(stats) > 0 {
		_, err = fmt.Fprint(a.Out, view.FigureTable(rows))
	}
	if err == nil && len(stats) == 0 {
		return cli.Fail(cli.ExitAbsent, "no actor answers", "start some with conclave up or conclave actor")
	}
	return err
}

// drawFigures draws the table over its previous version every interval until ctx ends, so that earlier output stays on the
// screen. stdout must be a terminal; the table is cut to its size. That no actor answers is shown and is no error.
func drawFigures(ctx context.Context, a *cli.App, c *client.Client, interval time.Duration) error {
	drawn := 0
	for {
		stats, err := c.Stats(ctx)
		if err != nil {
			return err
		}
		text := "no actor answers\n"
		if len(stats) > 0 {
			text = view.FigureTable(view.ListFigures(stats))
		}
		columns, height, _ := term.Size(a.Out)
		lines := term.Fit(text, columns, height)
		up := ""
		if drawn > 0 {
			up = fmt.Sprintf("\x1b[%dA\x1b[J", drawn)
		}
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
