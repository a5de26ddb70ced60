package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
)

// helpGroup is a group of commands in the help of root: those of every day are on the first page, the others below help
// all alone.
type helpGroup struct {
	title        string
	daily, other []string
}

// helpGroups are all commands that are not hidden, each once.
var helpGroups = []helpGroup{
	{"Start", []string{"up", "setup", "open", "doctor"}, []string{"service", "health"}},
	{"Ask", []string{"chat", "ask", "task", "schedule", "session"}, []string{"rate", "critic"}},
	{
		"Decide and check",
		[]string{"approve", "undo", "audit"},
		[]string{"changes", "policy", "call", "tap", "top", "logs"},
	},
	{"Remember and extend", []string{"memory", "model", "tool", "mcp"}, []string{"secret", "principal"}},
	{"Keep and move", nil, []string{"backup", "restore", "invite", "join", "machines"}},
	{"Servers of your own", nil, []string{"keys", "provision", "actor"}},
	{"This program", nil, []string{"help", "version", "completion", "man"}},
}

// setHelp prints the help of root with [helpGroups], and adds the command help.
func setHelp(a *cli.App, root *cobra.Command) {
	printHelp := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, words []string) {
		if cmd != root {
			printHelp(cmd, words)
			return
		}
		printRootHelp(a.Out, root, false)
	})
	root.SetHelpCommand(helpCommand(root, func() { printRootHelp(a.Out, root, true) }))
}

// printRootHelp prints the help of root: examples, then the commands of every day or with all every command, the flags
// and the exit codes.
func printRootHelp(w io.Writer, root *cobra.Command, all bool) {
	heading := func(s string) { fmt.Fprintf(w, "\n%s\n", term.Paint(w, term.Bold, s)) }
	fmt.Fprintln(w, root.Long)
	heading("Examples:")
	fmt.Fprintln(w, root.Example)
	for _, g := range helpGroups {
		names := g.daily
		if all {
			names = slices.Concat(g.daily, g.other)
		}
		if len(names) == 0 {
			continue
		}
		heading(g.title + ":")
		for _, name := range names {
			if c, _, err := root.Find([]string{name}); err == nil {
				fmt.Fprintf(w, "  %-10s  %s\n", name, c.Short)
			}
		}
	}
	if !all {
		fmt.Fprintln(w, `
"conclave <command> --help" explains a command. "conclave help all" lists every command, the flags
and the exit codes.`)
		return
	}
	heading("Flags:")
	fmt.Fprint(w, root.LocalFlags().FlagUsages())
	fmt.Fprintf(w, "\n%s\n", cli.ExitHelp)
}

// helpCommand is cobra's help command, except that an unknown topic is a usage error. Without words it explains root,
// and with "all" printAll does.
func helpCommand(root *cobra.Command, printAll func()) *cobra.Command {
	return &cobra.Command{
		Use:     "help [command | all]",
		Short:   "Explain a command, or list all of them",
		Example: "  conclave help all\n  conclave help audit verify",
		RunE: func(_ *cobra.Command, words []string) error {
			if slices.Equal(words, []string{"all"}) {
				printAll()
				return nil
			}
			cmd, rest, err := root.Find(words)
			if err != nil || cmd == nil || len(rest) > 0 && cmd == root {
				return cli.Usage("unknown command %q: see conclave --help", strings.Join(words, " "))
			}
			return cmd.Help()
		},
	}
}
