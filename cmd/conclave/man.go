package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"conclave/cmd/conclave/internal/cli"
)

// manCommand writes a manual page for each command.
func manCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "man <folder>",
		Short: "Write manual pages into a folder",
		Long: "Writes a manual page for each command into a folder, which is created. They have the date of the " +
			"source, not of the day.",
		Example: `  conclave man ~/.local/share/man/man1
  man conclave-ask`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			if err := os.MkdirAll(v[0], 0o755); err != nil {
				return err
			}
			b := readBuild()
			date, err := time.Parse(time.RFC3339, b.Time)
			if err != nil {
				date = time.Unix(0, 0).UTC()
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			if err := doc.GenManTree(root, &doc.GenManHeader{Title: "CONCLAVE", Section: "1", Source: "conclave " +
				b.Version, Manual: "Conclave", Date: &date}, v[0]); err != nil {
				return err
			}
			a.Say("wrote the manual pages to %s", v[0])
			return nil
		},
	}
}
