package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// policyCommand is about the rules by which the broker decides.
func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Look at what the broker would decide, and why",
		Long: `Looks at the rules by which the broker decides. Nothing runs and nothing changes; the rules themselves are in
manifest.yaml.`,
		Example: `  conclave policy explain get_datetime '{"timezone":"UTC"}'
  conclave policy explain web_search '{"query":"news"}' --json
  conclave policy simulate cases.jsonl
  conclave policy scan texts.jsonl`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usage("say what to look at: see %s --help", cmd.CommandPath())
		},
		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(a.policyExplainCommand(), a.policySimulateCommand(), a.policyScanCommand())
	return cmd
}

func (a *app) policyExplainCommand() *cobra.Command {
	var as, session, query string
	cmd := &cobra.Command{
		Use:   "explain <tool> [json]",
		Short: "Say layer by layer what would happen to a call",
		Long: `Asks the broker what it would decide about a call, without running it: each layer in order, what it says, by which rule
and why. --as names who would call: an account, and below it the agents that it has spawned. --session takes what is known
of a session into account, such as text of strangers that has entered it and what you have set for it.

The exit code is 0 when the call would run unasked, and 3 when it would be refused or you would be asked. With --json it
is one document: allowed, denial, asks, layers, monitored.`,
		Example: `  conclave policy explain get_datetime '{"timezone":"UTC"}'
  conclave policy explain web_search '{"query":"tides"}' --as orchestrator.coder-1
  conclave policy explain web_fetch '{"url":"https://example.org"}' --session notes --json`,
		Args: args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: func(_ *cobra.Command, v []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(v) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.toolNames(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, v []string) error {
			if subjects.CheckToken(v[0]) != nil {
				return usage("%q is not the name of a tool: use letters, digits, _ and -", v[0])
			}
			for _, id := range append(strings.Split(as, "."), or(session, "none"), or(query, "none")) {
				if subjects.CheckToken(id) != nil {
					return usage("%q cannot be a name or an id: use letters, digits, _ and -", clip(id, 40))
				}
			}
			body, err := a.arguments(append(v, "{}")[1])
			if err != nil {
				return err
			}
			out, done, err := a.asUser()
			if err != nil {
				return err
			}
			defer done()
			ctx, cancel := context.WithTimeout(cmd.Context(), brokerTime)
			defer cancel()
			if session != "" {
				var known bool
				if session, known, err = wholeSession(ctx, out.Store(conversations), session); err != nil {
					return quietly(cmd.Context(), err)
				}
				if !known {
					a.say("no session of this name yet")
				}
			}
			verdict, err := actor.Ask(ctx, out, subjects.PolicyExplain, subjects.ExplainRequest{As: as, Tool: v[0], Args: body, SessionID: session, QueryID: query})
			if err != nil {
				return quietly(cmd.Context(), brokerSays("the policy", err))
			}
			return a.explainVerdict(v[0], verdict)
		},
	}
	f := cmd.Flags()
	f.StringVar(&as, "as", subjects.Generator, "`who` would call: an account, such as generator, or an agent below it, such as orchestrator.coder-1")
	f.StringVar(&session, "session", "", "`id` of the session that the call would belong to; its beginning is enough from eight letters on")
	f.StringVar(&query, "query", "", "`id` of the question that the call would belong to")
	_ = cmd.RegisterFlagCompletionFunc("session", a.completeSessions)
	_ = cmd.RegisterFlagCompletionFunc("as", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return subjects.Agents, cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

// verdictColours are the colours of what a layer says.
var verdictColours = map[string]string{"pass": green, "ask": yellow, "deny": red}

// explainVerdict prints a verdict and ends with its exit code.
func (a *app) explainVerdict(tool string, v subjects.Verdict) error {
	if a.json {
		if err := a.document(v); err != nil {
			return err
		}
	} else {
		var table bytes.Buffer
		w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
		for _, l := range v.Layers {
			// The colours are as long as one another, so that the columns stay straight.
			fmt.Fprintf(w, "%s\t%s\t%s\n", a.paint(a.stdout, verdictColours[l.Verdict], visible(l.Verdict)), visible(l.Layer), visible(ruled(l.Rule, l.Reason)))
		}
		if err := w.Flush(); err != nil {
			return err
		}
		for l := range strings.Lines(table.String()) { // a layer that says nothing leaves no blanks behind
			fmt.Fprintln(a.stdout, strings.TrimRight(l, " \n"))
		}
		for _, s := range v.Monitored {
			fmt.Fprintf(a.stdout, "only watched: %s\n", visible(s.Layer+": "+ruled(s.Rule, s.Reason)))
		}
	}
	switch {
	case v.Denial != nil:
		return explain(tool, &subjects.Fault{Code: subjects.CodeDenied, Text: v.Denial.Reason, Denial: v.Denial})
	case len(v.Asks) > 0:
		return fail(exitDenied, fmt.Sprintf("%s would wait for your answer, asked by %s", tool, ruled(v.Asks[0].Layer+": "+v.Asks[0].Rule, v.Asks[0].Reason)), "nothing was run")
	case !v.Allowed: // neither allowed nor refused by anybody: that is no yes
		return fail(exitDenied, tool+" would be refused", "the broker did not say why")
	}
	if !a.json {
		a.say("%s would run", tool)
	}
	return nil
}

// ruled is a rule with its reason.
func ruled(rule, reason string) string {
	return strings.TrimSuffix(strings.TrimPrefix(rule+": "+reason, ": "), ": ")
}
