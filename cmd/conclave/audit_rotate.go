package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/auditlog"
	"conclave/pkg/bus"
)

// auditRotateCommand seals the audit log and opens a new one, while conclave is stopped.
func auditRotateCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate",
		Short: "Seal the audit log and open a new one (while conclave is stopped)",
		Long: `Exports the audit log, seals the export, moves the old stream aside and opens a new log whose first
record has the hash of the export and the ends of all its chains. Nothing is deleted. Conclave must
be stopped.

A log that does not verify is rotated too, so that work can continue; the exit code is then 5, and
the report says what was wrong.`,
		Example: "  conclave audit rotate",
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return rotateAudit(cmd.Context(), a) },
	}
}

// rotateAudit seals the audit log of the embedded server and opens a new one. It rejects --server, and refuses while
// conclave runs or without a data folder. A log that does not verify is rotated as well, and then the error has exit
// code 5.
func rotateAudit(ctx context.Context, a *cli.App) error {
	if a.Server != "" {
		return cli.Usage("only the audit log of the embedded server can be rotated: leave out --server")
	}
	if err := checkAuditExists(a); err != nil {
		return err
	}
	cfg, err := a.LoadConfig(nil)
	if err != nil {
		return err
	}
	if err := a.CheckNoStandalone(); err != nil {
		return err
	}
	stores, err := cfg.HeadStores(a.Home)
	if err != nil {
		return err
	}
	rot, err := auditlog.Rotate(ctx, a.Home, cfg.ServerConfig(a.Home), a.QuietLogger())
	if err == nil {
		acceptHeads(ctx, a, cfg.ServerConfig(a.Home), stores)
	}
	switch {
	case errors.Is(err, bus.ErrInUse):
		return cli.Fail(cli.ExitFailed, "the audit log cannot be rotated while conclave runs",
			"stop conclave up, rotate, start it again")
	case err != nil:
		return err
	}
	err = a.Print(rot, nil, func() {
		fmt.Fprintf(a.Out, "sealed  %s\nsha256  %s\nstore   %s\nrecords %d\n", rot.Sealed, rot.SHA256, rot.Store,
			rot.Records)
	})
	if rot.Report.OK {
		return err
	}
	return cli.Fail(cli.ExitAudit, "the sealed audit log does not verify, first "+firstProblem(rot.Report),
		"a new audit log is open and refers to it")
}

// acceptHeads replaces the kept heads that the rotated log does not match, and says which on stderr, also that it
// failed.
func acceptHeads(ctx context.Context, a *cli.App, server bus.ServerConfig, stores []auditlog.HeadStore) {
	replaced, err := auditlog.AcceptHeads(ctx, a.Home, server, stores)
	for _, where := range replaced {
		a.Say("the head of the audit log that %s held did not match and was replaced", where)
	}
	if err != nil {
		a.Say("the kept heads of the audit log were not updated: %s", term.OneLine(err.Error()))
	}
}
