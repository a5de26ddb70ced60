package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/client"
)

// Run is what a command does with its arguments.
type Run = func(cmd *cobra.Command, v []string) error

// Read returns the run of a command that changes nothing: f has the user's connection and the arguments. After an
// interrupt it succeeds, as [App.ReadWithClient] does.
func (a *App) Read(f func(ctx context.Context, c *client.Client, v []string) error) Run {
	return func(cmd *cobra.Command, v []string) error {
		return a.ReadWithClient(cmd.Context(), func(c *client.Client) error { return f(cmd.Context(), c, v) })
	}
}

// ChangeEach returns the run of a command that changes each thing that it is given, one after the other. change returns
// what is printed as [App.PrintText] does. The first failure ends it.
func (a *App) ChangeEach(
	change func(ctx context.Context, c *client.Client, name string) (report any, text string, err error),
) Run {
	return func(cmd *cobra.Command, names []string) error {
		return a.WithClient(func(c *client.Client) error {
			for _, name := range names {
				report, text, err := change(cmd.Context(), c, name)
				if err == nil {
					err = a.PrintText(report, text)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// RequireYes returns nil with yes, and when the user confirms the question. Without a terminal it is a usage error that
// says what the command would do; not confirmed, and an interrupt, fail with nothing, what was left undone.
func (a *App) RequireYes(ctx context.Context, yes bool, would, question, nothing string) error {
	if yes {
		return nil
	}
	keyboard, ok := term.Keyboard(a.In)
	if !ok {
		return Usage("this would %s: add --yes to confirm", would)
	}
	switch confirmed, err := a.Confirm(ctx, keyboard, question); {
	case err != nil:
		return Fail(ExitFailed, "stopped", nothing)
	case !confirmed:
		return Fail(ExitFailed, nothing, "you did not confirm")
	}
	return nil
}

// PrintText prints a text on a line, or with --json the report as a line.
func (a *App) PrintText(report any, text string) error {
	return a.PrintEach(report, func() { fmt.Fprintln(a.Out, text) })
}

// PrintEach prints one of several values: v on a line with --json, and as print does without.
func (a *App) PrintEach(v any, print func()) error {
	if a.JSON {
		return a.PrintLine(v)
	}
	print()
	return a.Out.Err
}

// Print returns err when there is one. Otherwise it prints v with --json, and calls print without. The error of a
// failed write to stdout, which stdout remembers, is returned too.
func (a *App) Print(v any, err error, print func()) error {
	switch {
	case err != nil:
		return err
	case a.JSON:
		return a.PrintJSON(v)
	}
	print()
	return a.Out.Err
}

// Saying returns a print of [App.Print] that says a text on stderr.
func (a *App) Saying(format string, v ...any) func() { return func() { a.Say(format, v...) } }

// PrintList is [App.Print] of a list, which is an array also when it is empty; then none is said on stderr.
func PrintList[T any](a *App, all []T, err error, none string, print func()) error {
	if len(all) == 0 {
		print = a.Saying("%s", none)
	}
	return a.Print(append([]T{}, all...), err, print)
}

// PrintTable is [PrintList] with a row for each element.
func PrintTable[T any](a *App, all []T, err error, none string, l term.Layout, row func(T) []string) error {
	return PrintList(a, all, err, none, func() {
		var rows [][]string
		for _, v := range all {
			rows = append(rows, row(v))
		}
		term.Table(a.Out, rows, l)
	})
}
