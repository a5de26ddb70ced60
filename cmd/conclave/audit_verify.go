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
	"conclave/subjects"
)

// auditVerifyCommand checks the audit log, or a sealed export.
func (a *app) auditVerifyCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check that the audit is whole",
		Long: `Walks the whole audit: every record holds the hash of the one before, and the end of every chain is anchored in a
file outside the stream. So any change, loss or reordering shows, and the first bad record is named. The sealed files of
earlier audits must be there as they were sealed. Ends with exit code 5 when something is wrong.

With --file it checks a sealed export. What vouches for it is the first record of its successor: of the current audit,
which is anchored, or of a sealed file that is vouched for in the same way. When none of them names the file, only the
file itself can be checked: a change inside shows, a file that was cut and sealed again does not.`,
		Example: `  conclave audit verify
  conclave audit verify --json
  conclave audit verify --file ~/.local/share/conclave/audit/sealed/audit-20260102T030405.000Z.jsonl`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file != "" {
				return a.verifyFile(cmd.Context(), file)
			}
			var report audit.Report
			err := a.auditor(func(nc *nats.Conn) (err error) {
				report, err = a.verify(cmd.Context(), nc)
				return err
			})
			if err != nil {
				return err
			}
			return a.report(report, "the audit", nil)
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "check this sealed export instead")
	return cmd
}

// verify is auditlog.Verify with a look at how far it is.
func (a *app) verify(ctx context.Context, nc *nats.Conn) (audit.Report, error) {
	heads, err := audit.ReadHeads(a.home.Heads()) // before the end of the stream is taken: what is anchored must be there
	if err != nil {
		return audit.Report{}, &failure{exitAudit, fmt.Errorf("the anchors of the audit cannot be read: %w", err)}
	}
	src, err := trail(ctx, nc)
	if err != nil {
		return audit.Report{}, err
	}
	return auditlog.VerifySource(ctx, a.home, a.watched(src, "verified"), heads)
}

// sealed is what is known of a sealed export beyond the walk through it.
type sealed struct {
	File       string `json:"file"`
	SHA256     string `json:"sha256"`
	AnchoredBy string `json:"anchored_by,omitempty"` // whose first record vouches for it; "" = only the file itself
}

func (a *app) verifyFile(ctx context.Context, file string) error {
	s := sealed{File: file}
	// Once through for its own ends and its hash: there is one way to write an export, so writing it again hashes it.
	var sum audit.Summary
	if err := a.withExport(file, func(src audit.Source) (err error) {
		sum, err = audit.Export(ctx, a.watched(src, "read"), io.Discard)
		return err
	}); err != nil {
		return err
	}
	s.SHA256 = sum.SHA256
	heads := sum.Heads
	path, err := a.path(ctx)
	if err != nil {
		return err
	}
	for _, p := range path {
		by := or(p.By, "the current audit")
		switch {
		case p.SHA256 == s.SHA256:
			s.AnchoredBy, heads = by, p.OldHeads
		case p.File == filepath.Base(file):
			return fail(exitAudit, fmt.Sprintf("%s is not the file that was sealed: its SHA-256 is %s, %s says %s", file, s.SHA256, by, p.SHA256), "bring back the original")
		}
	}
	var report audit.Report
	if err := a.withExport(file, func(src audit.Source) (err error) {
		report, err = audit.Verify(ctx, a.watched(src, "verified"), heads, audit.VerifyOptions{Accounts: subjects.AuditWriters})
		return err
	}); err != nil {
		return err
	}
	if s.AnchoredBy == "" {
		a.say("nothing outside %s vouches for it: neither the current audit nor a sealed one that it vouches for names it as its predecessor. A change inside it would show, a shorter copy sealed again would not.", file)
		for _, p := range path {
			if why := or(p.Problem, p.Note); why != "" {
				a.say("%s: %s", plain(p.File), plain(why))
			}
		}
	}
	return a.report(report, file, &s)
}

// withExport opens an export for one walk. Damage is a finding and not a mishap.
func (a *app) withExport(file string, f func(audit.Source) error) error {
	r, err := os.Open(file)
	if err != nil {
		return fail(exitFailed, err.Error(), "name a sealed export with --file")
	}
	defer r.Close()
	src, err := audit.OpenExport(r)
	if err == nil {
		err = f(src)
	}
	if errors.Is(err, audit.ErrExport) {
		return fail(exitAudit, file+": "+err.Error(), "bring back the original")
	}
	return err
}

// path is every sealed trail that the current audit vouches for, newest first. It is empty where there is no audit.
func (a *app) path(ctx context.Context) (path []audit.Sealed, err error) {
	if _, err := os.Stat(a.home.Data); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	err = a.auditor(func(nc *nats.Conn) error {
		heads, err := audit.ReadHeads(a.home.Heads())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &failure{exitAudit, fmt.Errorf("the anchors of the audit cannot be read: %w", err)}
		}
		if len(heads) == 0 {
			return nil
		}
		first, err := bus.AuditFirst(ctx, nc)
		var g *subjects.AuditGenesis
		if err == nil {
			g, err = audit.Beginning(first, heads)
		}
		if err != nil {
			return fail(exitAudit, fmt.Sprintf("the current audit cannot vouch for anything: %v", err), "see conclave audit verify")
		}
		path, err = auditlog.ListPredecessors(ctx, a.home, g)
		return err
	})
	return path, err
}

// report prints what a walk found.
func (a *app) report(r audit.Report, what string, s *sealed) error {
	if a.json {
		if err := a.document(struct {
			audit.Report
			Sealed *sealed `json:"sealed,omitempty"`
		}{r, s}); err != nil {
			return err
		}
	} else if r.OK {
		fmt.Fprintf(a.stdout, "%s %s: %d records in %d messages of %d chains\n", a.paint(a.stdout, green, "ok"), what, r.Records, r.Messages, r.Chains)
		if r.Unfinished > 0 {
			fmt.Fprintf(a.stdout, "   %d acts have no outcome : a crash cut them off\n", r.Unfinished)
		}
		if r.Pending > 0 {
			fmt.Fprintf(a.stdout, "   %d acts are under way\n", r.Pending)
		}
		if r.Unacknowledged > 0 {
			fmt.Fprintf(a.stdout, "   %d records after the last acknowledged one; nobody acted on them, and nobody vouches for them\n", r.Unacknowledged)
		}
		if n := len(r.Predecessors); n > 0 {
			fmt.Fprintf(a.stdout, "   %d sealed audits before it are as they were sealed\n", n)
			if last := r.Predecessors[n-1]; last.Note != "" {
				fmt.Fprintf(a.stdout, "   %s: %s\n", plain(last.File), plain(last.Note))
			}
		}
		if s != nil {
			fmt.Fprintf(a.stdout, "   sha256 %s, anchored by %s\n", s.SHA256, or(s.AnchoredBy, "nothing outside the file"))
		}
	} else {
		for _, p := range r.Problems {
			fmt.Fprintf(a.stdout, "%s %s\n", a.paint(a.stdout, red, "bad"), plain(p.String()))
		}
		if more := r.Bad - len(r.Problems); more > 0 {
			fmt.Fprintf(a.stdout, "    and %d more\n", more)
		}
	}
	if r.OK {
		return nil
	}
	first := "it has no record"
	if r.First != nil {
		first = r.First.String()
	}
	return fail(exitAudit, fmt.Sprintf("%s does not verify, %d problems, first %s", what, r.Bad, first),
		"keep the data folder as it is for a closer look; conclave audit rotate opens a new audit that remembers this one")
}
