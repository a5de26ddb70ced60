package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/client"
)

// tapFlags are the flags of conclave tap.
type tapFlags struct {
	pattern, session, query string // "" session or query = any
	since                   uint64 // first sequence to replay; 0 = none
	count                   int    // messages to print; 0 = no limit
}

// tapCommand prints the messages on the bus, live or with a replay first. It rejects an invalid subject and a negative
// count; 0 is no limit.
func tapCommand(a *cli.App) *cobra.Command {
	t := &tapFlags{pattern: ">"}
	cmd := &cobra.Command{
		Use:   "tap [subject]",
		Short: "Watch the bus, decoded",
		Long: `Prints the messages on the bus, one per line: time, author, query, subject, and a preview of what it
says. A "~" marks thinking, "[thought]" an answer with thinking, "[2 tool calls]" one with tool
calls. On a terminal a line is cut to its width. The subject may contain * for one token and end
with > for the rest (default: everything).

With --since it first replays the stored events from a sequence on, then continues live without gap
or duplicate. Questions (query.*) are not in the event log and are shown live only. With --json each
line is a JSON object with time, stream, seq, subject, from, session, query and the whole body.

Ends with Ctrl-C, after --count messages, or when its output is closed.`,
		Example: `  conclave tap
  conclave tap 'tool.>' --since 1
  conclave tap --query 3f9c01d2 --json | jq .body`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			if len(v) > 0 {
				t.pattern = v[0]
			}
			if err := checkPattern(t.pattern); err != nil {
				return err
			}
			if t.count < 0 {
				return cli.Usage("--count %d: give a number of messages, or leave it out for all", t.count)
			}
			return t.run(cmd.Context(), a)
		},
	}
	f := cmd.Flags()
	f.StringVar(&t.session, "session", "", "only messages of this session `id`")
	f.StringVar(&t.query, "query", "", "only messages of this query `id`")
	f.Uint64Var(&t.since, "since", 0, "replay events from this `sequence` on (1 is the first)")
	f.IntVar(&t.count, "count", 0, "stop after this many messages")
	return cmd
}

// checkPattern rejects a subject that the server would reject: empty tokens, blanks, a wildcard inside a token, and >
// before the end.
func checkPattern(p string) error {
	tokens := strings.Split(p, ".")
	for i, t := range tokens {
		if t == "" || strings.ContainsAny(t, " \t\r\n") || t != "*" && t != ">" && strings.ContainsAny(t, "*>") ||
			t == ">" && i < len(tokens)-1 {
			return cli.Usage("%q is not a subject: write tokens joined by dots, * for one token, > for the rest", p)
		}
	}
	return nil
}

// run prints messages until --count is reached, the output is closed or ctx ends, which is no error. After the end of
// ctx it does not wait longer than a second for an output that blocks.
func (t *tapFlags) run(ctx context.Context, a *cli.App) error {
	c, done, err := a.Connect("user", a.ReportLink("reconnected: events published meanwhile are shown with --since",
		"too slow: some messages are not shown; events can be replayed with --since")...)
	if err != nil {
		return err
	}
	defer done()
	w, err := c.Watch(ctx, t.pattern, t.since)
	if err != nil {
		return err
	}
	defer w.Close()
	a.Say("watching %s on %s", t.pattern, c.ServerURL())
	// Writing can block in a full pipe; Ctrl-C must end it all the same.
	ended := make(chan error, 1)
	go func() { ended <- t.print(ctx, a, w) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(time.Second):
		return nil
	}
}

// print prints the events that belong to the session and query of the flags, until the count is reached; a count of 0
// never is. An error after the end of ctx is dropped.
func (t *tapFlags) print(ctx context.Context, a *cli.App, w *client.Watch) error {
	printed := 0
	for e, err := range w.Events(ctx) {
		if err != nil {
			return cli.IgnoreInterrupt(ctx, err)
		}
		if !e.About(t.session, t.query) {
			continue
		}
		if err := a.PrintEach(e, func() { view.Event(a.Out, e) }); err != nil {
			return err
		}
		if printed++; printed == t.count {
			return nil
		}
	}
	return nil
}
