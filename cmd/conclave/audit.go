package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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
	"conclave/subjects"
)

// auditCommand is the parent of the commands for the audit log. They read it with the auditor's key, which can do nothing else.
func auditCommand(a *cli.App) *cobra.Command {
	return cli.Group("audit", "Read, verify, export and rotate the audit log",
		`Reads the audit log of every decision and action, with the auditor's key. It contains no arguments and no results, only a
keyed hash of the arguments.

Everything but tail -f also works while conclave is stopped: the files of the log are then read directly. Only rotate changes
them; the other commands write nothing, also when the files are damaged.`,
		`  conclave audit tail -f
  conclave audit show broker/17
  conclave audit verify`,
		auditTailCommand(a), auditShowCommand(a), auditVerifyCommand(a), auditExportCommand(a), auditRotateCommand(a))
}

// withAuditor runs f with a reader of the audit log: over the auditor's connection to the running server, or of its files while
// conclave is stopped, which it says on stderr. No server is started on the files, because it would repair damaged ones by
// cutting them off. It fails without a data folder, when a stand-alone server uses it, and when it is locked.
func withAuditor(a *cli.App, f func(r bus.AuditReaders) error) error {
	b, err := a.Bus()
	if err == nil {
		nc, err := b.Dial("auditor")
		if err != nil {
			return err
		}
		defer nc.Close()
		return f(bus.NewAuditReader(nc))
	}
	if !errors.Is(err, bus.ErrNotRunning) {
		return err
	}
	if err := checkAuditExists(a); err != nil {
		return err
	}
	if err := a.CheckNoStandalone(); err != nil {
		return err
	}
	unlock, err := a.Home.LockForReading()
	if err != nil {
		return err
	}
	defer unlock()
	a.Say("conclave is stopped: reading the files of the audit log, without changing them")
	files, err := bus.OpenAuditLog(a.Home)
	if errors.Is(err, bus.ErrNoAudit) {
		return f(bus.AuditReaders{noAudit{err}})
	}
	if err != nil {
		return err
	}
	for _, stream := range files {
		for _, d := range stream.Damage() {
			a.Say("damaged: %s", d)
		}
	}
	return f(bus.ReadFiles(files))
}

// noAudit is the reader of a stopped system without an audit stream.
type noAudit struct{ err error }

func (noAudit) Owner() string { return "" }

func (r noAudit) ReadAfter(context.Context, uint64) (audit.Source, error) {
	return audit.Source{}, r.err
}

// checkAuditExists fails with exit code 4 when there is no data folder.
func checkAuditExists(a *cli.App) error {
	if _, err := os.Stat(a.Home.Data); errors.Is(err, fs.ErrNotExist) {
		return cli.Fail(cli.ExitAbsent, "there is no audit log in "+a.Home.Data, "conclave up creates one")
	}
	return nil
}

// withProgress returns src with a walk that also draws its progress on a terminal, from the second second on. doing is the word
// before the count.
func withProgress(a *cli.App, src audit.Source, doing string) audit.Source {
	if src.Messages == nil {
		return src
	}
	walk := src.Messages
	src.Messages = func(yield func(audit.Stored, error) bool) {
		line := term.NewProgress(a.Err)
		defer line.Clear()
		next := time.Now().Add(time.Second)
		n, size := 0, src.Size()
		for m, err := range walk {
			n++
			if now := time.Now(); now.After(next) {
				next = now.Add(200 * time.Millisecond)
				line.Draw("%s %d of %d messages", doing, n, size)
			}
			if !yield(m, err) {
				return
			}
		}
	}
	return src
}

// tailInterval is how often tail -f reads: the auditor may read the stream, not subscribe.
const tailInterval = 250 * time.Millisecond

// auditTailCommand prints the last records. Only -f needs a running system, because elsewhere no new record would come.
func auditTailCommand(a *cli.App) *cobra.Command {
	var (
		last   uint64
		follow bool
	)
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Print the last records, one line each",
		Long: `Prints the last records, one line each: time, name of the message, writer, phase, agent and its type, action and tool, status
and reason, query, and the beginning of the keyed hash of the arguments. The writer is the account that the server wrote; the
rest of the line is its statement. With -f it continues with new records. With --json each line is a JSON object.`,
		Example: `  conclave audit tail -n 50
  conclave audit tail -f --json | jq 'select(.status == "denied")'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if follow && a.Server == "" {
				if _, err := a.Home.ReadRunning(); err != nil { // there would be no new records
					return err
				}
			}
			return withAuditor(a, func(r bus.AuditReaders) error { return tailAudit(cmd.Context(), a, r, last, follow) })
		},
	}
	cmd.Flags().Uint64VarP(&last, "lines", "n", 20, "how many records")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new records")
	return cmd
}

// tailAudit prints the last records, at most last of them, and with follow each new one until ctx ends, which is no error.
// Records are not verified; one that cannot be decoded is an error.
func tailAudit(ctx context.Context, a *cli.App, r bus.AuditReaders, last uint64, follow bool) error {
	at := make([]uint64, len(r))
	for i, stream := range r {
		src, err := stream.ReadAfter(ctx, 0)
		if i > 0 && errors.Is(err, bus.ErrNoAudit) {
			continue
		}
		if err != nil {
			return err
		}
		at[i] = src.Last - min(last, src.Last) // a message has at least one record, so the last n messages have the last n records
	}
	print := func(e view.AuditEntry) error {
		if a.JSON {
			return a.PrintLine(e)
		}
		return view.AuditLine(a.Out, e)
	}
	for first := true; ; first = false {
		entries, err := readNewRecords(ctx, r, at)
		if err != nil {
			return cli.IgnoreInterrupt(ctx, err)
		}
		if first {
			entries = entries[max(0, len(entries)-int(min(last, 1<<30))):]
		}
		for _, e := range entries {
			if err := print(e); err != nil {
				return err
			}
		}
		if !follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(tailInterval):
		}
	}
}

// readNewRecords returns the records after the position at of each stream, by time, and moves the positions to their ends.
func readNewRecords(ctx context.Context, r bus.AuditReaders, at []uint64) (out []view.AuditEntry, err error) {
	for i, stream := range r {
		src, err := stream.ReadAfter(ctx, at[i])
		if i > 0 && errors.Is(err, bus.ErrNoAudit) {
			continue
		}
		if err == nil {
			err = eachRecord(src, func(e view.AuditEntry) error {
				out = append(out, e)
				return nil
			})
		}
		if err != nil {
			return nil, err
		}
		at[i] = max(at[i], src.Last)
	}
	slices.SortStableFunc(out, func(a, b view.AuditEntry) int { return a.Time.Compare(b.Time) })
	return out, nil
}

// eachRecord calls f for every record of a source, in order. The first error, of f, of reading or of decoding, ends it and is
// returned.
func eachRecord(src audit.Source, f func(view.AuditEntry) error) error {
	if src.Messages == nil {
		return nil
	}
	for m, err := range src.Messages {
		if err != nil {
			return err
		}
		entries, err := view.DecodeAudit(m)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := f(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// auditShowCommand prints the records of a message, an action or a chain in full. None is an error.
func auditShowCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "show <message | id | chain>",
		Short: "Print records in full",
		Long: `Prints records in full. The argument is the name of a message, such as broker/17, as audit tail, verify and export show it, the id
of an action, or the name of a chain; the first 6 characters of an id or chain are enough. Each writer has a stream of its own: the
name of a message is that of its writer with the sequence in this stream. With --json it prints one array.`,
		Example: `  conclave audit show broker/17
  conclave audit show 3f9c01d2 --json`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			return withAuditor(a, func(r bus.AuditReaders) error { return showAudit(cmd.Context(), a, r, v[0]) })
		},
	}
}

// errDone ends a walk early.
var errDone = errors.New("done")

// showAudit prints the records of a message, or those whose id or chain is what or begins with it. A prefix has at least
// [client.IDPrefix] characters; a bare number names no message and is a usage error. No match is an error. Records are not verified.
func showAudit(ctx context.Context, a *cli.App, r bus.AuditReaders, what string) error {
	owner, seq, err := audit.ParseMessageName(what)
	byName := err == nil
	if _, err := strconv.ParseUint(what, 10, 64); err == nil {
		return cli.Usage("each writer of the audit log counts its own messages: name one as conclave audit tail does, such as broker/%s", what)
	}
	fits := func(s string) bool { return s == what || len(what) >= client.IDPrefix && strings.HasPrefix(s, what) }
	found := []view.AuditEntry{}
	for i, stream := range r {
		if byName && stream.Owner() != owner {
			continue
		}
		src, err := stream.ReadAfter(ctx, max(seq, 1)-1)
		if i > 0 && errors.Is(err, bus.ErrNoAudit) {
			continue
		}
		if err != nil {
			return err
		}
		err = eachRecord(withProgress(a, src, "searching"), func(e view.AuditEntry) error {
			if byName && e.Message != what {
				return errDone
			}
			if byName || fits(e.ID) || fits(e.Chain) {
				found = append(found, e)
			}
			return nil
		})
		if err != nil && !errors.Is(err, errDone) {
			return err
		}
	}
	switch {
	case len(found) == 0 && byName:
		return cli.Fail(cli.ExitFailed, "the audit log has no message "+what, "list records with conclave audit tail")
	case len(found) == 0:
		return cli.Fail(cli.ExitFailed, fmt.Sprintf("the audit log has no record %q", what), "list records with conclave audit tail")
	case a.JSON:
		return a.PrintJSON(found)
	}
	for i, e := range found {
		if i > 0 {
			fmt.Fprintln(a.Out)
		}
		if err := view.AuditRecord(a.Out, e); err != nil {
			return err
		}
	}
	return nil
}

// auditVerifyCommand verifies the current audit log, or a sealed export with --file. A failed verification exits with 5.
func auditVerifyCommand(a *cli.App) *cobra.Command {
	var (
		file string
		head []string
	)
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Verify that the audit log is complete and unchanged",
		Long: `Verifies the whole audit log: every record has the hash of the one before, and the end of every chain is anchored in a file
outside the stream. Any change, loss or reordering is found, and the first bad record is named. The sealed files of earlier
logs must exist as they were sealed. The exit code is 5 when something is wrong.

The report ends with the head of the log: a hash of all messages of all writers. Write it down elsewhere; --head verifies later that the log
still holds everything that it held then. The heads that conclave keeps itself, in the system keyring and in the file
audit_head.file of system.yaml, are compared too, and so are the copies of machines that were invited as witness, while conclave
runs. Only these show that the whole data folder was replaced by an older copy. stderr names each witness that could not be asked.

With --file it verifies a sealed export. A sealed file is anchored when its hash is in the first record of the next log: the
current one, or a sealed file that is itself anchored. Without an anchor, a change inside the file is found, but not that the
file was cut and sealed again.`,
		Example: `  conclave audit verify
  conclave audit verify --json
  conclave audit verify --head 3f9c01d2a4b5c6d7-1234+memory.56+model.78-…
  conclave audit verify --file ~/.local/share/conclave/audit/sealed/audit-20260102T030405.000Z.jsonl`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			given, err := parseHeads(head)
			if err != nil {
				return err
			}
			if file != "" {
				return verifySealed(cmd.Context(), a, file, given)
			}
			kept := slices.Concat(given, loadKeptHeads(cmd.Context(), a), loadWitnessHeads(cmd.Context(), a))
			var report audit.Report
			err = withAuditor(a, func(r bus.AuditReaders) (err error) {
				report, err = verifyAudit(cmd.Context(), a, r, kept)
				return err
			})
			if err != nil {
				return err
			}
			return printAuditReport(a, report, "the audit log", nil)
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "verify this sealed export instead")
	cmd.Flags().StringArrayVar(&head, "head", nil, "an earlier `head` that must be in the log; repeatable")
	return cmd
}

// parseHeads parses the values of --head.
func parseHeads(texts []string) (kept []audit.KeptHead, err error) {
	for _, text := range texts {
		h, err := audit.ParseLogHead(text)
		if err != nil {
			return nil, cli.Usage("--head %q: %v", text, err)
		}
		kept = append(kept, audit.KeptHead{LogHead: h, Where: "--head"})
	}
	return kept, nil
}

// loadKeptHeads returns the heads that the configured stores and the event log of a running system hold. A store that cannot be read is reported on stderr and left
// out: the rest of the log can be verified nevertheless.
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

// loadWitnessHeads returns the heads that the machines with a witness have copied. A machine that could not be asked is reported on
// stderr and left out: the rest of the log can be verified nevertheless. A list of machines that cannot be read is reported too.
func loadWitnessHeads(ctx context.Context, a *cli.App) (kept []audit.KeptHead) {
	principals, err := a.Home.ReadPrincipals()
	if err != nil {
		a.Say("not compared with the witnesses: %s", term.OneLine(err.Error()))
		return nil
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
		heads, conflict, err := readWitness(ctx, a, p.Name)
		if err != nil {
			a.Say("not compared with the witness %s: %s", p.Name, term.OneLine(err.Error()))
			continue
		}
		if conflict != "" {
			a.Say("the witness %s reports: %s", p.Name, term.OneLine(conflict))
		}
		kept = append(kept, heads...)
	}
	return kept
}

// readWitness reads the heads of one machine, as the auditor.
func readWitness(ctx context.Context, a *cli.App, name string) ([]audit.KeptHead, string, error) {
	c, stop, err := a.Connect("auditor")
	if err != nil {
		return nil, "", err
	}
	defer stop()
	return c.WitnessHeads(ctx, name)
}

// readAnchors reads the anchors of the audit log. A missing folder and an unreadable anchor are a finding of the verification:
// exit code 5. An empty folder has no anchors, which the caller judges.
func readAnchors(a *cli.App) ([]subjects.AuditHead, error) {
	heads, err := audit.ReadHeads(a.Home.Heads())
	if err != nil {
		return nil, &cli.Failure{Code: cli.ExitAudit, Err: fmt.Errorf("reading the anchors of the audit log: %w", err)}
	}
	return heads, nil
}

// verifyAudit verifies the current log; problems are in the report, not in the error. The anchors are read before the end of
// the stream: what is anchored must be there. A missing stream is an empty log, and the anchors tell whether that is a loss.
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

// verifySealed verifies a sealed export against the log that names it as its predecessor and against the given heads, and prints the report. A damaged
// file, or another hash than the one sealed under this name, is exit code 5. Without a log that names it, it is checked by
// itself, with a warning on stderr.
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
			return cli.Fail(cli.ExitAudit, fmt.Sprintf("%s is not the file that was sealed: its SHA-256 is %s, %s has %s", file, sealed.SHA256, by, p.SHA256), "restore the original")
		}
	}
	var report audit.Report
	if err := readExport(file, func(src audit.Source) (err error) {
		report, err = audit.Verify(ctx, withProgress(a, src, "verified"), heads, audit.VerifyOptions{Actions: subjects.AuditActions, Kept: given})
		return err
	}); err != nil {
		return err
	}
	for _, k := range report.Foreign {
		report.AddProblem(audit.Problem{Text: fmt.Sprintf("the head %s is not of this log, which has the id %s", k.LogHead, report.Head.Log)})
	}
	if sealed.AnchoredBy == "" {
		a.Say("%s is not anchored: neither the current audit log nor a sealed one names it as its predecessor. A change inside it would be found, a shorter copy that was sealed again would not.", file)
		for _, p := range predecessors {
			if why := cmp.Or(p.Problem, p.Note); why != "" {
				a.Say("%s: %s", term.Plain(p.File), term.Plain(why))
			}
		}
	}
	return printAuditReport(a, report, file, &sealed)
}

// readExport opens an export and calls f with it, for one walk. Damage is exit code 5; a file that cannot be opened is exit
// code 1.
func readExport(file string, f func(audit.Source) error) error {
	r, err := os.Open(file)
	if err != nil {
		return cli.Fail(cli.ExitFailed, err.Error(), "name a sealed export with --file")
	}
	defer r.Close()
	src, err := audit.OpenExport(r)
	if err == nil {
		err = f(src)
	}
	if errors.Is(err, audit.ErrExport) {
		return cli.Fail(cli.ExitAudit, file+": "+err.Error(), "restore the original")
	}
	return err
}

// listPredecessors are the sealed logs that the current one anchors, newest first; nil without an audit log or anchors. A first
// record that is not anchored is exit code 5.
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
			return cli.Fail(cli.ExitAudit, fmt.Sprintf("the current audit log cannot anchor anything: %v", err), "see conclave audit verify")
		}
		sealed, err = auditlog.ListPredecessors(ctx, a.Home, genesis)
		return err
	})
	return sealed, err
}

// printAuditReport prints a verification; what names the log, and sealed is nil for the current one. A failed verification is
// returned as an error with exit code 5, and a verdict that could not be printed as one with exit code 1.
func printAuditReport(a *cli.App, r audit.Report, what string, sealed *view.SealedExport) error {
	var err error
	if a.JSON {
		err = a.PrintJSON(struct {
			audit.Report
			Sealed *view.SealedExport `json:"sealed,omitempty"`
		}{r, sealed})
	} else {
		view.AuditReport(a.Out, r, what, sealed)
		err = a.Out.Err
	}
	switch {
	case r.OK && err != nil: // also when the reader of stdout has gone: a verification without a verdict did not succeed
		return &cli.Failure{Code: cli.ExitFailed, Err: fmt.Errorf("printing the verdict: %w", err)}
	case r.OK:
		return nil
	}
	return cli.Fail(cli.ExitAudit, fmt.Sprintf("%s does not verify, %d problems, first %s", what, r.Bad, firstProblem(r)),
		"keep the data folder for an investigation; conclave audit rotate opens a new audit log that refers to this one")
}

// firstProblem describes the first bad record of a failed verification, or that the problem has no record.
func firstProblem(r audit.Report) string {
	if r.First == nil {
		return "it has no record"
	}
	return r.First.String()
}

// auditExportCommand writes the audit log as JSON lines to a new file, or to stdout for "-", without verifying it.
func auditExportCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "export <file | ->",
		Short: "Write the audit log to a file",
		Long: `Writes the whole audit log as JSON lines that conclave audit verify --file reads. It does not verify. An existing file is not
overwritten. "-" writes to stdout.

stderr shows the number of records and the SHA-256 of the file: keep the hash elsewhere. With --json this summary is a document
on stdout, unless the export itself goes to stdout.`,
		Example: `  conclave audit export audit.jsonl
  conclave audit export - | zstd > audit.jsonl.zst`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			return withAuditor(a, func(r bus.AuditReaders) error { return exportAudit(cmd.Context(), a, r, v[0]) })
		},
	}
}

// exportAudit writes the audit log to a new file, or to stdout for "-", and prints the number of records and the hash. An
// existing file is not overwritten; an export that was interrupted is an error, and leaves no file.
func exportAudit(ctx context.Context, a *cli.App, r bus.AuditReaders, file string) error {
	src, err := r.ReadAll(ctx)
	if err != nil {
		return err
	}
	src = withProgress(a, src, "exported")
	if file == "-" {
		sum, err := audit.Export(ctx, src, a.Out)
		if err != nil { // a partial export must not look complete
			return cli.Fail(cli.ExitFailed, err.Error(), "the output is incomplete")
		}
		a.Say("exported %d records in %d messages, sha256 %s", sum.Records, sum.Messages, sum.SHA256)
		return nil
	}
	var sum audit.Summary
	err = cli.WriteNewFile(file, func(w io.Writer) (err error) {
		sum, err = audit.Export(ctx, src, w)
		return err
	})
	switch {
	case err != nil:
		return err
	case a.JSON:
		return a.PrintJSON(struct {
			File string `json:"file"`
			audit.Summary
		}{file, sum})
	}
	a.Say("exported %d records in %d messages to %s, sha256 %s", sum.Records, sum.Messages, file, sum.SHA256)
	return nil
}

// auditRotateCommand seals the audit log and opens a new one, while conclave is stopped.
func auditRotateCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate",
		Short: "Seal the audit log and open a new one (while conclave is stopped)",
		Long: `Exports the audit log, seals the export, moves the old stream aside and opens a new log whose first record has the hash of the
export and the ends of all its chains. Nothing is deleted. Conclave must be stopped.

A log that does not verify is rotated too, so that work can continue; the exit code is then 5, and the report says what was
wrong.`,
		Example: "  conclave audit rotate",
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return rotateAudit(cmd.Context(), a) },
	}
}

// rotateAudit seals the audit log of the embedded server and opens a new one. It rejects --server, and refuses while conclave
// runs or without a data folder. A log that does not verify is rotated as well, and then the error has exit code 5.
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
		return cli.Fail(cli.ExitFailed, "the audit log cannot be rotated while conclave runs", "stop conclave up, rotate, start it again")
	case err != nil:
		return err
	case a.JSON:
		err = a.PrintJSON(rot)
	default:
		_, err = fmt.Fprintf(a.Out, "sealed  %s\nsha256  %s\nstore   %s\nrecords %d\n", rot.Sealed, rot.SHA256, rot.Store, rot.Records)
	}
	if rot.Report.OK {
		return err
	}
	return cli.Fail(cli.ExitAudit, "the sealed audit log does not verify, first "+firstProblem(rot.Report), "a new audit log is open and refers to it")
}

// acceptHeads replaces the kept heads that the rotated log does not match, and says which on stderr, also that it failed.
func acceptHeads(ctx context.Context, a *cli.App, server bus.ServerConfig, stores []auditlog.HeadStore) {
	replaced, err := auditlog.AcceptHeads(ctx, a.Home, server, stores)
	for _, where := range replaced {
		a.Say("the head of the audit log that %s held did not match and was replaced", where)
	}
	if err != nil {
		a.Say("the kept heads of the audit log were not updated: %s", term.OneLine(err.Error()))
	}
}
