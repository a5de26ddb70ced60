package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/client"
	"conclave/subjects"
)

// modelCommand is the parent of the commands that list, fetch and test models.
func modelCommand(a *cli.App) *cobra.Command {
	return cli.Group("model", "List, fetch and test models",
		`Lists the available models with their roles, and fetches and tests models. The model of each role is
set in models.yaml.`,
		`  conclave model list
  conclave model pull gemma4:12b
  conclave model test`,
		modelListCommand(a), modelPullCommand(a), modelTestCommand(a))
}

// modelListCommand lists the available models, and on stderr the roles that lack theirs. It fails when no model
// actor runs.
func modelListCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the available models and their roles",
		Long: `Lists the available models: name, size, parameters, roles, what it supports, and its state: loaded,
remote, or denied and why. "test 4/4" counts the right replies of the self-test of tool calls; a
model that fails the test gets constrained calls, under a JSON schema. Only roles that the enabled
actors use have a model here, and one model is enough for all of them. stderr lists the roles whose
own model is not available, which model is used instead, and the fix; for an optional model, what it
would improve. With --json it prints one document with models and roles.`,
		Example: `  conclave model list
  conclave model list --json | jq -r '.roles[] | select(.notice) | .wanted'`,
		Args: cli.NoArgs,
		RunE: a.Read(func(ctx context.Context, c *client.Client, _ []string) error {
			ctx, cancel := context.WithTimeout(ctx, judgeTimeout)
			defer cancel()
			list, err := c.Models(ctx)
			return a.Print(list, cli.ModelError(err), func() { view.Models(a.Streams, list, a.Program()) })
		}),
	}
}

// modelPullCommand fetches a model through the model actor. It rejects an invalid name and a timeout that is not
// positive. An interrupt is an error; the fetched part is kept.
func modelPullCommand(a *cli.App) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "pull <name>",
		Short: "Fetch a model",
		Long: `Fetches a model through the model actor, which asks its server (Ollama). Progress is shown on
stderr: in one updated line on a terminal, otherwise in a line now and then. With --json stdout has
a JSON line for each step: status, digest, total, completed.

Ctrl-C stops it with exit code 1. The part that was fetched is kept: pull again to continue.`,
		Example: `  conclave model pull gemma4:12b
  conclave model pull prometheus:7b --json | jq -r .status`,
		Args:              cli.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: cli.FirstArg(completeMissingModels(a)),
		RunE: func(cmd *cobra.Command, v []string) error {
			if err := cmp.Or(cli.CheckModel(v[0]), cli.CheckTimeout(timeout, "2h")); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			err := a.WithClient(func(c *client.Client) error { return pullModel(ctx, a, c, v[0]) })
			if err != nil && cmd.Context().Err() != nil {
				return cli.Fail(cli.ExitFailed, v[0]+" was not fetched: stopped", "what was fetched is kept; pull "+
					"again to continue")
			}
			return err
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 12*time.Hour, "how long it may take")
	return cmd
}

// pullModel fetches a model and shows the progress, with --json as a line for each step. It fails for a name that the
// server does not know. An interrupted pull can be resumed. ctx must have a deadline.
func pullModel(ctx context.Context, a *cli.App, c *client.Client, name string) error {
	progress := view.NewPullProgress(a.Streams, name)
	defer progress.Clear()
	for p, err := range c.PullModel(ctx, name) {
		if err != nil {
			progress.Clear()
			var f *subjects.Fault
			switch errors.As(err, &f); {
			case f != nil && f.Code == subjects.CodeModelMissing:
				return cli.Fail(cli.ExitAbsent, fmt.Sprintf("%s (%s)", f.Text, f.Code),
					"check the spelling of the name")
			case f != nil && f.Code == subjects.CodeModelUnreachable:
				return cli.Fail(cli.ExitAbsent, fmt.Sprintf("%s (%s)", f.Text, f.Code), "then pull again")
			}
			return cli.ModelError(err)
		}
		if !a.JSON {
			progress.Show(p)
		} else if err := a.PrintLine(p); err != nil {
			return err
		}
	}
	if !a.JSON {
		progress.Clear()
		fmt.Fprintf(a.Out, "%s is available\n", term.Plain(name))
	}
	return a.Out.Err
}

// completeModels completes the names of the available models that are not denied.
func completeModels(a *cli.App) cli.Completion {
	return a.CompleteFrom(func(ctx context.Context, c *client.Client) (names []string, err error) {
		l, err := c.Models(ctx)
		for _, m := range l.Models {
			if m.Refused == "" {
				names = append(names, m.Name)
			}
		}
		return names, err
	})
}

// completeMissingModels completes the names of models that a role wants and that are not available, without the demo
// model.
func completeMissingModels(a *cli.App) cli.Completion {
	return a.CompleteFrom(func(ctx context.Context, c *client.Client) (names []string, err error) {
		l, err := c.Models(ctx)
		for _, r := range l.Roles {
			available := slices.ContainsFunc(l.Models, func(m subjects.ModelInfo) bool { return m.Name == r.Model })
			switch {
			case r.Wanted != "":
				names = append(names, r.Wanted)
			case !available && !r.DemoModel:
				names = append(names, r.Model)
			}
		}
		return names, err
	})
}
