package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"conclave/actors/broker/replay"
	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/userconfig"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/client"
	"conclave/pkg/file"
	"conclave/pkg/policy"
	"conclave/pkg/strict"
)

// policyReplayCommand judges recorded calls by another manifest. Nothing runs and nothing is written.
func policyReplayCommand(a *cli.App) *cobra.Command {
	var path, since string
	cmd := &cobra.Command{
		Use:   "replay --manifest <file>",
		Short: "Judge recorded calls by another manifest",
		Long: `Judges the calls of the event log by another manifest and prints what would change: each rule that decides differently, with the
calls. Nothing runs, nothing is written, and the rules in force stay.

Each call is judged as it was made: a call that the other rules deny does not change the calls after it. Types, lineage, tools,
paths, hosts, limits and approvals are judged anew, paths by the files of today. The information flow of a session is not recorded, so the recorded
verdict of that layer counts, with monitor_only of the other manifest. A call whose record lacks what a rule needs is counted as one that cannot be
judged, and so is a call of a tool that was removed since. Tools of conclave tool add and conclave mcp add are judged with their declarations of today. With --json it prints one document: calls, unchanged, changed, changes, cannot_be_judged, damaged.`,
		Example: `  conclave policy replay --manifest new.yaml
  conclave policy replay --manifest new.yaml --since 7d --json`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			from, err := cli.ParseSince(since, time.Now())
			if err != nil {
				return err
			}
			if path == "" {
				return cli.Usage("which rules? Name a file with --manifest")
			}
			data, err := file.Read(path, strict.MaxFile)
			if err != nil {
				return cli.Usage("reading the manifest: %v", err)
			}
			m, err := policy.ParseManifest(data, path)
			if err != nil {
				return err
			}
			return a.ReadWithClient(cmd.Context(), func(c *client.Client) error {
				principals, err := c.Principals(cmd.Context())
				if err != nil {
					return err
				}
				rules, err := userconfig.LoadNames(a).ReplayRules(m, a.Home, principals)
				if err != nil {
					return err
				}
				return replayPolicy(cmd.Context(), a, c, rules, from)
			})
		},
	}
	cmd.Flags().StringVar(&path, "manifest", "", "`file` with the rules to judge by")
	cmd.Flags().StringVar(&since, "since", "30d", "only calls after a `time`: 12h, 30d, 2006-01-02 or "+
		"2006-01-02T15:04:05Z")
	return cmd
}

// replayPolicy judges the calls since from and prints the report.
func replayPolicy(ctx context.Context, a *cli.App, c *client.Client, rules replay.Rules, from time.Time) error {
	var events []client.Event
	line := term.NewProgress(a.Err)
	for e, err := range c.EventsBack(ctx, replay.Subject) {
		if err != nil {
			line.Clear()
			return err
		}
		if e.Time.Before(from) {
			break
		}
		if events = append(events, e); len(events)%100 == 0 {
			line.Draw("%d calls", len(events))
		}
	}
	line.Clear()
	slices.Reverse(events)
	r, err := replay.Run(ctx, rules, events)
	return a.Print(r, err, func() { view.Replay(a.Out, r) })
}
