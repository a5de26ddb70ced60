package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/client"
	"conclave/pkg/text"
	"conclave/subjects"
)

// toolCommand is the parent of the commands about tools of the user.
func toolCommand(a *cli.App) *cobra.Command {
	return cli.Group("tool", "Add and manage your own tools, in any language",
		`A tool of yours is a program that connects to the NATS server with a key of its own, announces what
it does and answers calls. Agents call it through the broker only. What it may do is what you say
here, never what it announces.

Its first definition is the accepted one. When it announces another one, it is not offered until you
accept the change.`,
		`  conclave tool add word_count && cd word_count
  python3 -m venv .venv && .venv/bin/pip install nats-py nkeys && .venv/bin/python tool.py
  conclave tool list
  conclave tool test word_count '{"text":"two words"}'`,
		toolAddCommand(a), toolSetCommand(a), toolListCommand(a), toolShowCommand(a), toolTestCommand(a),
		toolAcceptCommand(a), toolRemoveCommand(a))
}

// toolListCommand lists the added tools.
func toolListCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List your tools and their state",
		Long: `Lists the tools that were added: name, state, the agent types that may call it, and its effects.
States:

  ready                  announced with the accepted definition; "not running" if it does not reply on $SRV.INFO now
  definition changed     not offered until you accept the change with conclave tool accept
  announcement rejected  the program runs, and its definition does not fit the contract: conclave tool show says why
  not announced          the program has not connected since the broker started, or its MCP server is still
                         starting: see conclave mcp list`,
		Example: `  conclave tool list --json | jq -r '.[] | select(.state == "changed") | .tool'`,
		Args:    cli.NoArgs,
		RunE: a.Read(func(ctx context.Context, c *client.Client, _ []string) error {
			all, err := c.Tools(ctx, "")
			return cli.PrintTable(a, all, err, "no tools were added: add one with "+a.Program()+" tool add",
				term.Layout{}, func(s subjects.ToolStatus) []string {
					return []string{s.Tool, describeToolState(s), describeAgents(s), fmt.Sprint(s.Effects)}
				})
		}),
	}
}

// describeToolState is the state of a tool for the user.
func describeToolState(s subjects.ToolStatus) string {
	switch {
	case s.State == subjects.ToolChanged:
		return "definition changed"
	case s.Rejected != "":
		return "announcement rejected"
	case s.State == subjects.ToolSilent:
		return "not announced"
	case !s.Running:
		return "ready, not running"
	}
	return "ready"
}

// describeAgents names the agent types that may call a tool, without the user's own calls.
func describeAgents(s subjects.ToolStatus) string {
	var out []string
	for _, t := range s.Agents {
		if t != "operator" {
			out = append(out, t)
		}
	}
	if out == nil {
		return "you only"
	}
	return strings.Join(out, ",")
}

// findTool returns the state of an added tool with its definitions.
func findTool(ctx context.Context, a *cli.App, c *client.Client, name string) (subjects.ToolStatus, error) {
	found, err := c.Tools(ctx, name)
	if err == nil && (name == "" || len(found) != 1) {
		err = unknownToolError(a, name)
	}
	if err != nil {
		return subjects.ToolStatus{}, err
	}
	return found[0], nil
}

// unknownToolError is the error of a tool that was not added.
func unknownToolError(a *cli.App, name string) error {
	return cli.Fail(cli.ExitFailed, fmt.Sprintf("no tool named %s was added", term.Visible(name)), "see "+a.Program()+
		" tool list")
}

// toolShowCommand shows one added tool.
func toolShowCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "show <tool>",
		Short: "Show a tool, its definition and what it may do",
		Long: `Shows the state of a tool that was added, what you declared about it, its accepted definition with
its hash, and a changed definition that waits for you.`,
		Example: "  conclave tool show word_count",
		Args:    cli.Args(cobra.ExactArgs(1)), ValidArgsFunction: cli.FirstArg(completeAddedTools(a)),
		RunE: a.Read(func(ctx context.Context, c *client.Client, v []string) error {
			s, err := findTool(ctx, a, c, v[0])
			return a.Print(s, err, func() { printTool(a, s) })
		}),
	}
}

// printTool prints the state of a tool, what is declared about it, and its definitions.
func printTool(a *cli.App, s subjects.ToolStatus) {
	fmt.Fprintf(a.Out, "tool       %s, served by the principal %s\nstate      %s\n", s.Tool, s.Principal,
		describeToolState(s))
	fmt.Fprintf(a.Out, "called by  %s\neffects    %s\n", describeAgents(s), s.Effects)
	if s.Rejected != "" {
		fmt.Fprintf(a.Out, "rejected   %s\n           correct the program: docs/tools.md has the contract\n",
			term.Visible(s.Rejected))
	}
	if s.Declared.Act == "" {
		fmt.Fprintf(a.Out, "           each call of an agent asks you; say what it does with %s tool set %s --act\n",
			a.Program(), s.Tool)
	} else {
		fmt.Fprintf(a.Out, "act        %s\n", s.Declared.Act)
	}
	if s.Pin != "" {
		fmt.Fprintf(a.Out, "accepted   sha256 %s\n%s", s.Pin, formatDefinition(s.Accepted))
	}
	if s.New != nil {
		fmt.Fprintf(a.Out, "waiting    sha256 %s\n%s", s.NewPin, formatDefinition(s.New))
	}
}

// formatDefinition returns a definition as indented JSON with hidden characters escaped, "" for none: definitions that
// differ look different. It ends with a line break.
func formatDefinition(s *subjects.ToolSchema) string {
	if s == nil {
		return ""
	}
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return ""
	}
	return text.EscapeJSON(string(data)) + "\n"
}

// toolTestCommand calls an added tool as the user.
func toolTestCommand(a *cli.App) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "test <tool> [json]",
		Short: "Call one of your tools as yourself",
		Long: `Calls a tool through the broker as the operator, as conclave call does: with the policy and the
audit log. The arguments are one JSON object (default: {}); "-" reads them from stdin.`,
		Example: `  conclave tool test word_count '{"text":"two words"}'`,
		Args:    cli.Args(cobra.RangeArgs(1, 2)), ValidArgsFunction: cli.FirstArg(completeAddedTools(a)),
		RunE: func(cmd *cobra.Command, v []string) error {
			if err := cli.CheckTimeout(timeout, "60s"); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			err := a.WithClient(func(c *client.Client) error {
				s, err := findTool(ctx, a, c, v[0])
				switch {
				case err != nil:
					return err
				case s.State == subjects.ToolChanged:
					return cli.Fail(cli.ExitDenied, "the definition of "+s.Tool+" changed, so it is not offered",
						"see "+a.Program()+" tool accept "+s.Tool)
				case s.State == subjects.ToolSilent && s.Rejected != "":
					return cli.Fail(cli.ExitFailed, "the announcement of "+s.Tool+" was rejected: "+
						term.Visible(s.Rejected), "correct the program, docs/tools.md has the contract")
				case !s.Running && s.State == subjects.ToolSilent:
					return cli.Fail(cli.ExitAbsent, s.Tool+" is not running", "start its program")
				}
				return nil
			})
			if err != nil {
				return err
			}
			return callTool(ctx, a, v[0], append(v, "{}")[1], "", "")
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the result")
	return cmd
}

// toolAcceptCommand accepts the changed definition of a tool.
func toolAcceptCommand(a *cli.App) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "accept <tool>",
		Short: "Accept the changed definition of a tool",
		Long: `Shows how the definition of a tool changed, asks, and makes the new one the accepted one. Only what
was shown is accepted: a tool that changes its definition meanwhile waits again. The acceptance is
in the audit log. Without a changed definition it does nothing.`,
		Example: "  conclave tool accept word_count",
		Args:    cli.Args(cobra.ExactArgs(1)), ValidArgsFunction: cli.FirstArg(completeAddedTools(a)),
		RunE: func(cmd *cobra.Command, v []string) error {
			ctx := cmd.Context()
			return a.WithClient(func(c *client.Client) error {
				s, err := findTool(ctx, a, c, v[0])
				switch {
				case err != nil:
					return err
				case s.New == nil && s.Pin != "" && s.Rejected == "":
					return a.Print(s, nil, func() {
						fmt.Fprintf(a.Out, "the definition of %s is already accepted, sha256 %s\n", s.Tool, s.Pin)
					})
				case s.New == nil:
					return cli.Fail(cli.ExitFailed, "no changed definition of "+s.Tool+" waits", "see "+a.Program()+
						" tool show "+s.Tool)
				}
				a.Say("%s",
					term.PlainText(string(diff.Diff("accepted", []byte(formatDefinition(s.Accepted)), "new",
						[]byte(formatDefinition(s.New))))))
				if err := a.RequireYes(ctx, yes, "accept the definition above", "accept this definition of "+s.Tool+"?",
					"nothing was accepted"); err != nil {
					return err
				}
				accepted, err := c.AcceptTool(ctx, s.Tool, s.NewPin)
				if err != nil {
					return fmt.Errorf("accepting the definition of %s: %w", s.Tool, err)
				}
				return a.Print(accepted, nil, func() {
					fmt.Fprintf(a.Out, "accepted %s, sha256 %s\n", s.Tool, accepted.Pin)
				})
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "accept without a question")
	return cmd
}

// toolRemoveCommand removes tools with their principals.
func toolRemoveCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "remove <tool>...",
		Short: "Remove tools: their keys, rules and accepted definitions",
		Long: `Removes tools that were added. Their connections are closed before the command returns, the key is
deleted, and what you declared and accepted no longer holds. The folder of the program is left as it
is.`,
		Example: "  conclave tool remove word_count",
		Args:    cli.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeAddedTools(a),
		RunE: a.ChangeEach(func(ctx context.Context, c *client.Client, name string) (any, string, error) {
			p, err := findToolPrincipal(ctx, a, c, name)
			server, isMCP := strings.CutPrefix(p.Name, subjects.MCPPrincipal(""))
			if isMCP {
				_, isMCP = a.NamingConfig().MCP.Servers[server]
			}
			switch {
			case err != nil:
			case isMCP:
				err = cli.Fail(cli.ExitFailed, fmt.Sprintf("%s is a tool of the MCP server %s", name, server),
					"remove the server with "+a.Program()+" mcp remove "+server)
			case len(p.Tools) > 1:
				err = cli.Fail(cli.ExitFailed, fmt.Sprintf("the principal %s serves %s together", p.Name,
					strings.Join(p.Tools, ", ")), "remove them all with "+a.Program()+" principal revoke "+p.Name)
			default:
				err = revokePrincipal(ctx, a, c, p.Name)
			}
			if err == nil {
				a.Say("stop the program of %s if it runs: it can no longer connect", name)
			}
			return principalReport{Name: name, Action: subjects.PrincipalRevoke}, "removed " + name, err
		}),
	}
}

// findToolPrincipal returns the principal that serves an added tool.
func findToolPrincipal(ctx context.Context, a *cli.App, c *client.Client, tool string) (subjects.Principal, error) {
	p, err := findPrincipal(ctx, c, func(p subjects.Principal) bool { return slices.Contains(p.Tools, tool) })
	switch {
	case err != nil:
		return subjects.Principal{}, err
	case p == nil:
		return subjects.Principal{}, unknownToolError(a, tool)
	}
	return *p, nil
}

// completeAddedTools completes the names of tools that were added.
func completeAddedTools(a *cli.App) cli.Completion {
	return completePrincipals(a, func(p subjects.Principal) []string { return p.Tools })
}
