package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"conclave/pkg/audit"
	"conclave/pkg/auditlog"
	"conclave/pkg/bus"
)

// auditExportCommand writes the audit log to a file.
func (a *app) auditExportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "export <file | ->",
		Short: "Write the audit to a file",
		Long: `Writes the whole audit as JSON lines that conclave audit verify --file reads back. It does not judge: verify first.
An existing file is not overwritten. "-" writes to stdout.

Says on stderr what it wrote, with the SHA-256 of the file: keep that elsewhere. With --json it is a document on stdout,
unless the export itself goes there.`,
		Example: `  conclave audit export audit.jsonl
  conclave audit export - | zstd > audit.jsonl.zst`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			return a.auditor(func(nc *nats.Conn) error { return a.export(cmd.Context(), nc, v[0]) })
		},
	}
}

func (a *app) export(ctx context.Context, nc *nats.Conn, file string) error {
	src, err := bus.AuditSource(ctx, nc)
	if err != nil {
		return err
	}
	src = a.watched(src, "exported")
	if file == "-" {
		sum, err := audit.Export(ctx, src, a.stdout)
		if err != nil { // a cut export must not look like a whole one
			return fail(exitFailed, err.Error(), "what was written is not whole")
		}
		a.say("exported %d records in %d messages, sha256 %s", sum.Records, sum.Messages, sum.SHA256)
		return nil
	}
	sum, err := exportTo(ctx, src, file)
	if err != nil {
		return err
	}
	if a.json {
		return a.document(struct {
			File string `json:"file"`
			audit.Summary
		}{file, sum})
	}
	a.say("exported %d records in %d messages to %s, sha256 %s", sum.Records, sum.Messages, file, sum.SHA256)
	return nil
}

// exportTo leaves a whole file or none.
func exportTo(ctx context.Context, src audit.Source, file string) (audit.Summary, error) {
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		return audit.Summary{}, fail(exitFailed, file+" is there already", "choose another name")
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".export-*") // 0600
	if err != nil {
		return audit.Summary{}, fail(exitFailed, err.Error(), "choose a folder that you can write to")
	}
	defer os.Remove(tmp.Name())
	sum, err := audit.Export(ctx, src, io.Writer(tmp))
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return sum, err
	}
	return sum, os.Link(tmp.Name(), file) // unlike a rename, a link never replaces
}

// auditRotateCommand seals the audit log and opens a new one.
func (a *app) auditRotateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rotate",
		Short: "Seal the audit and open a new one (while conclave is stopped)",
		Long: `Exports the audit, seals the export, moves the old stream aside and opens a new audit whose first record holds the
hash of the export and the ends of all its chains. Nothing is deleted. Conclave must be stopped.

An audit that does not verify is rotated all the same, so that work can go on; the exit code is then 5 and the report
says what was wrong.`,
		Example: "  conclave audit rotate",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.server != "" {
				return usage("only the audit of the embedded server can be rotated: leave out --server")
			}
			if _, err := os.Stat(a.home.Data); errors.Is(err, fs.ErrNotExist) {
				return fail(exitAbsent, "there is no audit in "+a.home.Data, "conclave up makes one")
			}
			cfg, err := a.load(nil)
			if err != nil {
				return err
			}
			if err := a.alone(); err != nil {
				return err
			}
			rot, err := auditlog.Rotate(cmd.Context(), a.home, cfg.ServerConfig(a.home), a.quiet())
			if errors.Is(err, bus.ErrInUse) {
				return fail(exitFailed, "the audit cannot be rotated while conclave runs", "stop conclave up, rotate, start it again")
			}
			if err != nil {
				return err
			}
			if a.json {
				if err := a.document(rot); err != nil {
					return err
				}
			} else {
				fmt.Fprintf(a.stdout, "sealed  %s\nsha256  %s\nstore   %s\nrecords %d\n", rot.Sealed, rot.SHA256, rot.Store, rot.Records)
			}
			if !rot.Report.OK {
				first := "it is empty"
				if rot.Report.First != nil {
					first = rot.Report.First.String()
				}
				return fail(exitAudit, "the sealed audit does not verify, first "+first, "a new audit is open and remembers it")
			}
			return nil
		},
	}
}
