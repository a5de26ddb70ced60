package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/actors/broker/replay"
	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/client"
	"conclave/pkg/file"
	"conclave/pkg/policy"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// policyCommand is the parent of the commands that explain and test the policy. None of them runs a tool.
func policyCommand(a *cli.App) *cobra.Command {
	return cli.Group("policy", "Explain what the broker would decide",
		`Explains and tests the policy by which the broker decides. Nothing runs and nothing changes;
the policy itself is in manifest.yaml.`,
		`  conclave policy explain get_datetime '{"timezone":"UTC"}'
  conclave policy explain web_search '{"query":"news"}' --json
  conclave policy replay --manifest new.yaml --since 7d`,
		policyExplainCommand(a), policyReplayCommand(a))
}

// policyExplainCommand asks the broker what it would decide about a call; the call does not run. It rejects invalid
// names and ids, and arguments that are not a JSON object.
func policyExplainCommand(a *cli.App) *cobra.Command {
	var call subjects.ExplainRequest
	cmd := &cobra.Command{
		Use:   "explain <tool> [json]",
		Short: "Show layer by layer what would happen to a call",
		Long: `Asks the broker what it would decide about a call, without running it: each layer in order, its
verdict, rule and reason. --as names the caller: an account, or an agent that it spawned. --session
takes the state of a session into account, such as untrusted content in it and its override.

The exit code is 0 when the call would run, and 3 when it would be denied or need your approval.
With --json it prints one document: allowed, denial, asks, layers, monitored.`,
		Example: `  conclave policy explain get_datetime '{"timezone":"UTC"}'
  conclave policy explain web_search '{"query":"tides"}' --as orchestrator.coder-1
  conclave policy explain web_fetch '{"url":"https://example.org"}' --session notes --json`,
		Args:              cli.Args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: cli.FirstArg(a.CompleteTools()),
		RunE: func(cmd *cobra.Command, v []string) (err error) {
			call.Tool = v[0]
			if subjects.CheckToken(call.Tool) != nil {
				return cli.Usage("%q is not a valid tool name: use letters, digits, _ and -", v[0])
			}
			for _, id := range append(strings.Split(call.As, "."), cmp.Or(call.SessionID, "none"),
				cmp.Or(call.QueryID, "none")) {
				if subjects.CheckToken(id) != nil {
					return cli.Usage("%q is not a valid name or id: use letters, digits, _ and -", term.Clip(id, 40))
				}
			}
			if call.Args, err = readArguments(cmd.Context(), a, append(v, "{}")[1]); err != nil {
				return err
			}
			return a.ReadWithClient(cmd.Context(), func(c *client.Client) error {
				return explainCall(cmd.Context(), a, c, call)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&call.As, "as", subjects.Generator, "`caller`: an account such as generator, or an agent below it "+
		"such as orchestrator.coder-1")
	f.StringVar(&call.SessionID, "session", "", "`id` of the session of the call, or its first 6 characters")
	f.StringVar(&call.QueryID, "query", "", "`id` of the question of the call")
	cli.CompleteFlags(cmd, map[string]cli.Completion{
		"session": a.CompleteSessions(),
		"as":      cli.Words(subjects.Agents...),
	})
	return cmd
}

// explainCall prints the verdict about a call. A call that would be denied or need an approval is an error with exit
// code 3; nil means that it would run. A session that does not exist is only a remark.
func explainCall(ctx context.Context, a *cli.App, c *client.Client, call subjects.ExplainRequest) (err error) {
	if call.SessionID != "" {
		var exists bool
		if call.SessionID, exists, err = resolveSession(ctx, a, c, call.SessionID); err != nil {
			return err
		}
		if !exists {
			a.Say("there is no such session yet")
		}
	}
	v, err := c.ExplainPolicy(ctx, call)
	if err != nil {
		return cli.BrokerError("the policy", err)
	}
	err = a.Print(v, nil, func() { view.Verdict(a.Out, v) })
	switch {
	case v.Denial != nil:
		return cli.ToolFault(call.Tool, &subjects.Fault{
			Code: subjects.CodeDenied, Text: v.Denial.Reason,
			Denial: v.Denial,
		})
	case len(v.Asks) > 0:
		ask := v.Asks[0]
		return cli.Fail(cli.ExitDenied, fmt.Sprintf("%s would wait for your approval, required by %s", call.Tool,
			view.RuleReason(ask.Layer+": "+ask.Rule, ask.Reason)), "nothing was run")
	case !v.Allowed: // without a denial it still is not permitted
		return cli.Fail(cli.ExitDenied, call.Tool+" would be denied", "the broker gave no reason")
	}
	if !a.JSON {
		a.Say("%s would run", call.Tool)
	}
	return err
}

// policyReplayCommand judges recorded calls by another manifest. Nothing runs and nothing is written.
func policyReplayCommand(a *cli.App) *cobra.Command {
	var path, since string
	cmd := &cobra.Command{
		Use:   "replay --manifest <file>",
		Short: "Judge recorded calls by another manifest",
		Long: `Judges the calls of the event log by another manifest and prints what would change: each rule that
decides differently, with the calls. Nothing runs, nothing is written, and the rules in force stay.

Each call is judged as it was made: a call that the other rules deny does not change the calls after
it. Types, lineage, tools, paths, hosts, limits and approvals are judged anew, paths by the files of
today. The information flow of a session is not recorded, so the recorded verdict of that layer
counts, with monitor_only of the other manifest. A call whose record lacks what a rule needs is
counted as one that cannot be judged, and so is a call of a tool that was removed since. Tools of
conclave tool add and conclave mcp add are judged with their declarations of today. With --json it
prints one document: calls, unchanged, changed, changes, cannot_be_judged, damaged.`,
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
				rules, err := a.NamingConfig().ReplayRules(m, a.Home, principals)
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
