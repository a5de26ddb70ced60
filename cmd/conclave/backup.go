package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/config"
	"conclave/pkg/audit"
	"conclave/pkg/backup"
	"conclave/pkg/bus"
	"conclave/pkg/text"
)

// backupCommand copies the data and the configuration of an installation, while it runs or is stopped.
func backupCommand(a *cli.App) *cobra.Command {
	var withKeys bool
	cmd := &cobra.Command{
		Use:   "backup <file.tar.gz | folder>",
		Short: "Back up the data and the configuration, also while conclave runs",
		Long: `Writes streams, buckets, memory, the audit log with its anchors and sealed logs, and the
configuration to a new folder, or to an archive when the name ends with .tar, .tar.gz or .tgz.
Everything in it is of one moment. A running system continues to work: it is paused for the files
that change while they are copied, usually well below a second, and no request fails. The backup
appears under its name complete or not at all, and only you can read it.

A backup holds your conversations and memories in plain text. Keys, tokens and stored credentials
are left out, and a restored system makes new keys; credentials must then be set again. With
--with-keys they are included: anyone who can read such a backup can act as you, so keep it where
you would keep the keys themselves.

A backup of a running system is recorded in the audit log (system.backup). The data of a stand-alone
NATS server can be backed up while that server is stopped.`,
		Example: `  conclave backup /mnt/disk/conclave-2026-11-16.tar.gz
  conclave backup --with-keys /mnt/encrypted/conclave
  conclave restore /mnt/disk/conclave-2026-11-16.tar.gz --data ~/restored`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error { return createBackup(cmd.Context(), a, v[0], withKeys) },
	}
	cmd.Flags().BoolVar(&withKeys, "with-keys", false, "include keys, tokens and stored credentials")
	return cmd
}

// backupReport is the result of conclave backup.
type backupReport struct {
	Path     string    `json:"path"`
	Created  time.Time `json:"created"`
	Files    int       `json:"files"`
	Bytes    int64     `json:"bytes"`
	Running  bool      `json:"running"`
	WithKeys bool      `json:"with_keys"`
	Omitted  []string  `json:"omitted,omitempty"`
}

// createBackup backs up the data folder to dest and prints the result. It rejects --server, and refuses while a
// stand-alone server uses the data folder.
func createBackup(ctx context.Context, a *cli.App, dest string, withKeys bool) error {
	if a.Server != "" {
		return cli.Usage("conclave backup copies the files of a data folder: leave out --server, and name the folder " +
			"with --data")
	}
	if _, err := os.Stat(a.Home.Data); errors.Is(err, fs.ErrNotExist) {
		return cli.Fail(cli.ExitAbsent, "there is no data in "+a.Home.Data, "name the folder with --data")
	}
	o := backup.Options{Home: a.Home, WithKeys: withKeys, Build: readBuild().Version}
	line := term.NewProgress(a.Err)
	defer line.Clear()
	o.Progress = drawProgress(line, "copied")
	var m backup.Manifest
	session, release, err := beginBackup(ctx, a)
	if err == nil {
		defer release()
		if session != nil {
			o.Pause = session.Pause
		}
		m, err = backup.Create(ctx, dest, o)
	}
	if err == nil && session != nil {
		err = session.Done()
	}
	line.Clear()
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return cli.Fail(cli.ExitFailed, "the disk of "+dest+" is full; nothing was written under this name",
			"free some space, or choose another place")
	case err != nil && ctx.Err() != nil:
		return cli.Fail(cli.ExitFailed, "interrupted; nothing was written to "+dest, "run it again")
	case err != nil:
		return err
	}
	rep := backupReport{dest, m.Created, len(m.Files), m.Size(), m.Running, m.WithKeys, m.Omitted}
	return a.Print(rep, nil, func() {
		a.Say("backed up %d files, %s, to %s", rep.Files, term.Bytes(rep.Bytes), dest)
		if withKeys {
			a.Say("It holds the keys of this installation: anyone who can read it can act as you.")
		} else {
			a.Say("Left out: %s (--with-keys includes them).", strings.Join(m.Omitted, ", "))
		}
	})
}

// beginBackup asks the running system to take part, or keeps a stopped one from starting; session is nil then. release
// must be called at the end.
func beginBackup(ctx context.Context, a *cli.App) (session *config.Backup, release func(), err error) {
	if _, err := a.Home.ReadRunning(); err == nil {
		session, err := config.BeginBackup(ctx, a.Home)
		if err != nil {
			return nil, nil, cli.Fail(cli.ExitFailed, err.Error(), "try again, or stop conclave and back it up then")
		}
		return session, func() { _ = session.Close() }, nil
	}
	if err := a.CheckNoStandalone(); err != nil {
		return nil, nil, err
	}
	unlock, err := a.Home.LockForReading()
	return nil, unlock, err
}

// drawProgress returns a function that draws a bar of bytes, from the second second on.
func drawProgress(line *term.Progress, doing string) func(done, all int64) {
	next := time.Now().Add(time.Second)
	return func(done, all int64) {
		if now := time.Now(); all > 0 && now.After(next) {
			next = now.Add(200 * time.Millisecond)
			line.Draw("%s %s %s of %s", doing, term.Bar(done, all), term.Bytes(done), term.Bytes(all))
		}
	}
}

// restoreCommand writes a backup into an empty data folder.
func restoreCommand(a *cli.App) *cobra.Command {
	var withPrincipals bool
	cmd := &cobra.Command{
		Use:   "restore <backup>",
		Short: "Restore a backup into an empty data folder",
		Long: `Restores a backup into the data folder, which must be empty or missing, and verifies it: the
checksum of every file, the chain and the anchors of the audit log, and every entry of memory. The
folder appears complete or not at all. The configuration is restored into the config folder if that
is empty or missing.

The backup's checksums detect damage, not forgery: anyone who can write to a backup can write
another one. The head of the audit log that you keep elsewhere shows whether it is the original:
conclave audit verify --head.

Machines, tools and clients that were added while conclave ran are not admitted, because they may
have been revoked since the backup: the list is kept as principals.restored.json. Add or invite them
again, or restore with --with-principals when none was revoked. Invitations are never restored.

A restored audit log ends where the backup was made. Where a later head is kept (audit_head in
system.yaml), conclave up reports the missing records; conclave audit rotate accepts their loss.`,
		Example: `  conclave restore conclave-2026-11-16.tar.gz --data ~/restored --config ~/restored-config
  conclave up --data ~/restored --config ~/restored-config`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			return restoreBackup(cmd.Context(), a, v[0], withPrincipals)
		},
	}
	cmd.Flags().BoolVar(&withPrincipals, "with-principals", false, "admit the machines, tools and clients of the "+
		"backup, also those revoked since")
	return cmd
}

// restoreReport is the result of conclave restore.
type restoreReport struct {
	Data    string       `json:"data"`
	Config  string       `json:"config,omitempty"` // "" = not restored
	Created time.Time    `json:"created"`
	Files   int          `json:"files"`
	Bytes   int64        `json:"bytes"`
	Names   []string     `json:"names"` // of the data folder, and the files of the configuration
	Audit   audit.Report `json:"audit"`
	// Rejected are paths in the backup that none of its kind holds.
	Rejected []string `json:"rejected,omitempty"`
	// Withheld names the principals of the backup that are not admitted.
	Withheld []string `json:"withheld,omitempty"`
}

// restoreBackup restores a backup into the folders of a and prints what was verified. An audit log that does not verify
// is exit code 5, and nothing is restored, unless the only problems are messages that cannot be read.
func restoreBackup(ctx context.Context, a *cli.App, from string, withPrincipals bool) error {
	line := term.NewProgress(a.Err)
	defer line.Clear()
	var rep audit.Report
	var withheld []string
	r, err := backup.Restore(ctx, from, a.Home, drawProgress(line, "restored"), func(restored bus.Home) (err error) {
		rep, err = config.VerifyStopped(ctx, restored)
		if err == nil && rep.Bad > rep.Unreadable {
			err = cli.Fail(cli.ExitAudit, "the audit log of the backup does not verify, first "+firstProblem(rep),
				"use another backup")
		}
		if err == nil && !withPrincipals {
			withheld, err = backup.WithholdPrincipals(restored)
		}
		return err
	})
	line.Clear()
	switch {
	case errors.Is(err, backup.ErrNotEmpty):
		return cli.Fail(cli.ExitFailed, a.Home.Data+" is not empty", "name an empty or new folder with --data")
	case err != nil && ctx.Err() != nil:
		return cli.Fail(cli.ExitFailed, "interrupted; nothing was restored", "run it again")
	case err != nil:
		return err
	}
	out := restoreReport{
		Data: a.Home.Data, Created: r.Manifest.Created, Files: len(r.Manifest.Files),
		Bytes: r.Manifest.Size(), Names: r.Manifest.Names(), Audit: rep, Rejected: r.Rejected, Withheld: withheld,
	}
	if r.Config {
		out.Config = a.Home.Config
	} else {
		out.Names = slices.DeleteFunc(out.Names, func(n string) bool { return strings.HasPrefix(n, "config/") })
	}
	if a.JSON {
		return a.PrintJSON(out)
	}
	a.Say("restored %d files, %s, of %s to %s: %s", out.Files, term.Bytes(out.Bytes),
		out.Created.Local().Format(time.DateTime), out.Data, strings.Join(out.Names, ", "))
	a.Say("verified: the checksum of every file, %d records of the audit log, and memory", rep.Records)
	if rep.Unreadable > 0 {
		a.Say("The audit log has %s that cannot be read and was kept as it is, first %s. conclave audit verify names "+
			"all.", term.Count(rep.Unreadable, "message"), text.OneLine(firstProblem(rep), 300))
	}
	if out.Config == "" {
		a.Say("The configuration was not restored: %s is not empty.", a.Home.Config)
	} else {
		a.Say("The configuration names programs that run: read its files first if others could write to the backup.")
	}
	if len(out.Rejected) > 0 {
		a.Say("Not restored, because conclave backup does not write it into a backup of this kind; somebody has added "+
			"it: %s", text.OneLine(strings.Join(out.Rejected, ", "), 500))
	}
	if r.Manifest.WithKeys {
		a.Say("The keys and tokens in it are used: whoever wrote the backup can act as you.")
	} else {
		a.Say("The backup has no keys: conclave up makes new ones. Set credentials again with conclave secret set.")
	}
	if len(withheld) > 0 {
		a.Say("Not admitted, because they may have been revoked since: %s. Add or invite them again, or restore with "+
			"--with-principals.", strings.Join(withheld, ", "))
	}
	fmt.Fprintf(a.Out, "conclave up%s\n", a.FolderFlags())
	return nil
}
