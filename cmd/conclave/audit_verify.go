package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/audit"
	"conclave/pkg/auditlog"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/pkg/file"
	"conclave/subjects"
)

// auditVerifyCommand verifies the current audit log, or a sealed export with --file. A failed verification exits with
// 5.
func auditVerifyCommand(a *cli.App) *cobra.Command {
	var (
		file string
		head []string
		solo bool
	)
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Verify that the audit log is complete and unchanged",
		Long: `Verifies the whole audit log: every record has the hash of the one before, and the end of every
chain is anchored in a file outside the stream. Any change, loss or reordering is found, and the
first bad record is named. The sealed files of earlier logs must exist as they were sealed. The exit
code is 5 when something is wrong.

The report ends with the head of the log: a hash of all messages of all writers. Write it down
elsewhere; --head verifies later that the log still holds everything that it held then. The heads
that conclave keeps itself, in the system keyring and in the file audit_head.file of system.yaml,
are compared too, and so are the copies of machines that were invited as witness, while conclave
runs. Only these show that the whole data folder was replaced by an older copy. A witness that does
not answer, has no copy or reports a conflict is a problem, because an attacker who replaces the log
can cut the link to its witness; --without-witnesses leaves them out.

With --file it verifies a sealed export. A sealed file is anchored when its hash is in the first
record of the next log: the current one, or a sealed file that is itself anchored. Without an
anchor, a change inside the file is found, but not that the file was cut and sealed again.`,
		Example: `  conclave audit verify
  conclave audit verify --json
  conclave audit verify --head 3f9c01d2a4b5c6d7-1234+memory.56+model.78-…
  conclave audit verify --file ~/.local/share/conclave/audit/sealed/audit-20260102T030405.000Z.jsonl`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var given []audit.KeptHead
			for _, text := range head {
				h, err := audit.ParseLogHead(text)
				if err != nil {
					return cli.Usage("--head %q: %v", text, err)
				}
				given = append(given, audit.KeptHead{LogHead: h, Where: "--head"})
			}
			if file != "" {
				return verifySealed(cmd.Context(), a, file, given)
			}
			return verifyCurrent(cmd.Context(), a, given, !solo)
		},
	}
	cmd.Flags().BoolVar(&solo, "without-witnesses", false, "do not compare with the copies of other machines")
	cmd.Flags().StringVar(&file, "file", "", "verify this sealed export instead")
	cmd.Flags().StringArrayVar(&head, "head", nil, "an earlier `head` that must be in the log; repeatable")
	return cmd
}

// verifyCurrent verifies the current log against the given heads, those that conclave keeps, and those of the witnesses
// if compareWitnesses is set, and prints the report. A log that is intact but not confirmed by every witness fails too.
func verifyCurrent(ctx context.Context, a *cli.App, given []audit.KeptHead, compareWitnesses bool) error {
	kept := slices.Concat(given, loadKeptHeads(ctx, a))
	var witnesses witnessHeads
	if compareWitnesses {
		witnesses = loadWitnessHeads(ctx, a)
		kept = append(kept, witnesses.heads...)
	}
	var report audit.Report
	err := withAuditor(a, func(r bus.AuditReaders) (err error) {
		report, err = verifyAudit(ctx, a, r, kept)
		return err
	})
	if err != nil {
		return err
	}
	intact := report.OK
	for _, text := range witnesses.problems {
		report.AddProblem(audit.Problem{Text: text})
	}
	if intact && !report.OK {
		if err := printAuditReport(a, report, "the audit log", nil, nil); cli.Code(err) != cli.ExitAudit {
			return err
		}
		return cli.Fail(cli.ExitAudit, "the audit log is intact, but not confirmed: "+witnesses.problems[0],
			"an attacker who replaces the log can cut the link to its witness")
	}
	return printAuditReport(a, report, "the audit log", nil, witnesses.names)
}

// loadKeptHeads returns the heads that the configured stores and the event log of a running system hold. A store that
// cannot be read is reported on stderr and left out: the rest of the log can be verified nevertheless.
func loadKeptHeads(ctx context.Context, a *cli.App) []audit.KeptHead {
	cfg, err := a.LoadConfig(nil)
	var stores []auditlog.HeadStore
	if err == nil {
		stores, err = cfg.HeadStores(a.Home)
	}
	if b, berr := a.Bus(); err == nil && berr == nil { // a stopped system has no event log to read
		var user *nats.Conn
		if user, err = b.Dial("user"); err == nil {
			defer user.Close()
			stores = append(stores, auditlog.NewHeadEvents(user, nil))
		}
	}
	var kept []audit.KeptHead
	if err == nil {
		limited, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		kept, err = auditlog.LoadHeads(limited, stores)
	}
	if err != nil {
		a.Say("not compared: %s", term.OneLine(err.Error()))
	}
	return kept
}

// witnessHeads is what the machines with a witness say.
type witnessHeads struct {
	names    []string // of the machines that answered
	heads    []audit.KeptHead
	problems []string
}

// loadWitnessHeads returns the heads that the machines with a witness have copied, and a problem for each witness that
// does not confirm the log: an attacker who replaces the log can also cut the link to its witness. Of a stopped system
// it asks none, which it reports on stderr.
func loadWitnessHeads(ctx context.Context, a *cli.App) (out witnessHeads) {
	principals, err := a.Home.ReadPrincipals()
	if err != nil {
		return witnessHeads{problems: []string{"not compared with the witnesses: " + term.OneLine(err.Error())}}
	}
	_, stopped := a.Bus()
	for _, p := range principals {
		if !slices.Contains(p.Actors, "witness") {
			continue
		}
		if stopped != nil {
			a.Say("not compared with the witness %s: conclave is stopped; start it and verify again", p.Name)
			continue
		}
		w, err := readWitness(ctx, a, p.Name)
		if err != nil {
			out.problems = append(out.problems, fmt.Sprintf("not compared with the witness %s: %s; start conclave "+
				"join there, or add --without-witnesses", p.Name, term.OneLine(err.Error())))
			continue
		}
		if problem := w.Problem(time.Now()); problem != "" {
			out.problems = append(out.problems, fmt.Sprintf("not confirmed by the witness %s: %s", p.Name,
				term.OneLine(problem)))
		}
		out.names, out.heads = append(out.names, p.Name), append(out.heads, w.Heads...)
	}
	return out
}

// readWitness reads the heads of one machine, as the auditor.
func readWitness(ctx context.Context, a *cli.App, name string) (client.Witnessed, error) {
	c, stop, err := a.Connect("auditor")
	if err != nil {
		return client.Witnessed{}, err
	}
	defer stop()
	return c.WitnessHeads(ctx, name)
}

// readAnchors reads the anchors of the audit log. A missing folder and an unreadable anchor are a finding of the
// verification: exit code 5. An empty folder has no anchors, which the caller judges.
func readAnchors(a *cli.App) ([]subjects.AuditHead, error) {
	heads, err := audit.ReadHeads(a.Home.Heads())
	if err != nil {
		return nil, &cli.Failure{Code: cli.ExitAudit, Err: fmt.Errorf("reading the anchors of the audit log: %w", err)}
	}
	return heads, nil
}

// verifyAudit verifies the current log; problems are in the report, not in the error. The anchors are read before the
// end of the stream: what is anchored must be there. A missing stream is an empty log, and the anchors tell whether
// that is a loss.
func verifyAudit(ctx context.Context, a *cli.App, r bus.AuditReaders, kept []audit.KeptHead) (audit.Report, error) {
	heads, err := readAnchors(a)
	if err != nil {
		return audit.Report{}, err
	}
	src, err := r.ReadAll(ctx)
	if errors.Is(err, bus.ErrNoAudit) {
		src, err = audit.Source{}, nil
	}
	if err != nil {
		return audit.Report{}, err
	}
	return auditlog.VerifySource(ctx, a.Home, withProgress(a, src, "verified"), heads, kept)
}

// verifySealed verifies a sealed export against the log that names it as its predecessor and against the given heads,
// and prints the report. A damaged file, or another hash than the one sealed under this name, is exit code 5. Without a
// log that names it, it is checked by itself, with a warning on stderr.
func verifySealed(ctx context.Context, a *cli.App, file string, given []audit.KeptHead) error {
	// There is one way to write an export, so writing it again computes its hash.
	var sum audit.Summary
	if err := readExport(file, func(src audit.Source) (err error) {
		sum, err = audit.Export(ctx, withProgress(a, src, "read"), io.Discard)
		return err
	}); err != nil {
		return err
	}
	sealed := view.SealedExport{File: file, SHA256: sum.SHA256}
	heads := sum.Heads
	predecessors, err := listPredecessors(ctx, a)
	if err != nil {
		return err
	}
	for _, p := range predecessors {
		by := cmp.Or(p.By, "the current audit log")
		switch {
		case p.SHA256 == sealed.SHA256:
			sealed.AnchoredBy, heads = by, p.OldHeads
		case p.File == filepath.Base(file):
			return cli.Fail(cli.ExitAudit, fmt.Sprintf("%s is not the file that was sealed: its SHA-256 is %s, %s "+
				"has %s", file, sealed.SHA256, by, p.SHA256), "restore the original")
		}
	}
	var report audit.Report
	if err := readExport(file, func(src audit.Source) (err error) {
		report, err = audit.Verify(ctx, withProgress(a, src, "verified"), heads,
			audit.VerifyOptions{Actions: subjects.AuditActions, Kept: given})
		return err
	}); err != nil {
		return err
	}
	for _, k := range report.Foreign {
		report.AddProblem(audit.Problem{Text: fmt.Sprintf("the head %s is not of this log, which has the id %s",
			k.LogHead, report.Head.Log)})
	}
	if sealed.AnchoredBy == "" {
		a.Say("%s is not anchored: neither the current audit log nor a sealed one names it as its predecessor. A "+
			"change inside it would be found, a shorter copy that was sealed again would not.", file)
		for _, p := range predecessors {
			if why := cmp.Or(p.Problem, p.Note); why != "" {
				a.Say("%s: %s", term.Plain(p.File), term.Plain(why))
			}
		}
	}
	return printAuditReport(a, report, file, &sealed, nil)
}

// readExport opens an export and calls f with it, for one walk. Damage is exit code 5; a file that cannot be opened is
// exit code 1.
func readExport(path string, f func(audit.Source) error) error {
	r, err := file.Open(path)
	if err != nil {
		return cli.Fail(cli.ExitFailed, err.Error(), "name a sealed export with --file")
	}
	defer r.Close()
	src, err := audit.OpenExport(r)
	if err == nil {
		err = f(src)
	}
	if errors.Is(err, audit.ErrExport) {
		return cli.Fail(cli.ExitAudit, path+": "+err.Error(), "restore the original")
	}
	return err
}

// listPredecessors are the sealed logs that the current one anchors, newest first; nil without an audit log or anchors.
// A first record that is not anchored is exit code 5.
func listPredecessors(ctx context.Context, a *cli.App) (sealed []audit.Sealed, err error) {
	if checkAuditExists(a) != nil {
		return nil, nil
	}
	err = withAuditor(a, func(r bus.AuditReaders) error {
		heads, err := readAnchors(a)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if len(heads) == 0 {
			return nil
		}
		first, err := bus.ReadFirstAuditMessage(ctx, r)
		var genesis *subjects.AuditGenesis
		if err == nil {
			genesis, err = audit.ReadGenesis(first, heads)
		}
		if err != nil {
			return cli.Fail(cli.ExitAudit, fmt.Sprintf("the current audit log cannot anchor anything: %v", err),
				"see conclave audit verify")
		}
		sealed, err = auditlog.ListPredecessors(ctx, a.Home, genesis)
		return err
	})
	return sealed, err
}

// printAuditReport prints a verification; what names the log, and sealed is nil for the current one. A failed
// verification is returned as an error with exit code 5, and a verdict that could not be printed as one with exit code
// 1.
func printAuditReport(a *cli.App, r audit.Report, what string, sealed *view.SealedExport, witnesses []string) error {
	err := a.Print(struct {
		audit.Report
		Sealed    *view.SealedExport `json:"sealed,omitempty"`
		Witnesses []string           `json:"witnesses,omitempty"` // machines whose copies were compared
	}{r, sealed, witnesses}, nil, func() {
		view.AuditReport(a.Out, r, what, sealed)
		if r.OK && len(witnesses) > 0 {
			fmt.Fprintf(a.Out, "   the copies of these machines agree: %s\n", strings.Join(witnesses, ", "))
		}
	})
	switch {
	case r.OK && err != nil:
		// also when the reader of stdout has gone: a verification without a verdict did not succeed
		return &cli.Failure{Code: cli.ExitFailed, Err: fmt.Errorf("printing the verdict: %w", err)}
	case r.OK:
		return nil
	}
	return cli.Fail(cli.ExitAudit, fmt.Sprintf("%s does not verify, %d problems, first %s", what, r.Bad,
		firstProblem(r)),
		"keep the data folder for an investigation; conclave audit rotate opens a new audit log that refers to this "+
			"one")
}

// firstProblem describes the first bad record of a failed verification, or that the problem has no record.
func firstProblem(r audit.Report) string {
	if r.First == nil {
		return "it has no record"
	}
	return r.First.String()
}
