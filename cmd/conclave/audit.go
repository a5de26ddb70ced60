package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/client"
)

// auditCommand is the parent of the commands for the audit log. They read it with the auditor's key, which can do
// nothing else.
func auditCommand(a *cli.App) *cobra.Command {
	return cli.Group("audit", "Read, verify, export and rotate the audit log",
		`Reads the audit log of every decision and action, with the auditor's key. It contains no arguments
and no results, only a keyed hash of the arguments.

Everything but tail -f also works while conclave is stopped: the files of the log are then read
directly. Only rotate changes them; the other commands write nothing, also when the files are
damaged.`,
		`  conclave audit tail -f
  conclave audit show broker/17
  conclave audit verify`,
		auditTailCommand(a), auditShowCommand(a), auditVerifyCommand(a), auditExportCommand(a), auditRotateCommand(a))
}

// withAuditor runs f with a reader of the audit log: over the auditor's connection to the running server, or of its
// files while conclave is stopped, which it says on stderr. No server is started on the files, because it would repair
// damaged ones by cutting them off. It fails without a data folder, when a stand-alone server uses it, and when it is
// locked.
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

// withProgress returns src with a walk that also draws its progress on a terminal, from the second second on. doing is
// the word before the count.
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
		filter auditFilter
	)
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Print the last records, one line each",
		Long: `Prints the last records, one line each: time, name of the message, writer, phase, agent and its
type, action and tool, status and reason, query, and the beginning of the keyed hash of the
arguments. The writer is the account that the server wrote; the rest of the line is its statement.
With -f it continues with new records. With --query and --tool the last records of this query and
tool are printed. With --json each line is a JSON object.`,
		Example: `  conclave audit tail -n 50
  conclave audit tail --tool word_count
  conclave audit tail -f --json | jq 'select(.status == "denied")'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if follow && a.Server == "" {
				if _, err := a.Home.ReadRunning(); err != nil { // there would be no new records
					return err
				}
			}
			return withAuditor(a, func(r bus.AuditReaders) error {
				return tailAudit(cmd.Context(), a, r, filter, last, follow)
			})
		},
	}
	cmd.Flags().Uint64VarP(&last, "lines", "n", 20, "how many records")
	cmd.Flags().StringVar(&filter.query, "query", "",
		"only records of the query with this `id`, or the beginning of one")
	cmd.Flags().StringVar(&filter.tool, "tool", "", "only records of this `tool`")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new records")
	return cmd
}

// auditFilter selects records; "" selects all.
type auditFilter struct {
	query string // beginning of the id
	tool  string
}

func (f auditFilter) matches(e view.AuditEntry) bool {
	return strings.HasPrefix(e.Query, f.query) && (f.tool == "" || e.Tool == f.tool)
}

// tailAudit prints the last records that the filter selects, at most last of them, and with follow each new one until
// ctx ends, which is no error. Records are not verified; a message that cannot be decoded is shown as bad.
func tailAudit(ctx context.Context, a *cli.App, r bus.AuditReaders, filter auditFilter, last uint64,
	follow bool,
) error {
	at := make([]uint64, len(r))
	for i, stream := range r {
		src, err := stream.ReadAfter(ctx, 0)
		if i > 0 && errors.Is(err, bus.ErrNoAudit) {
			continue
		}
		if err != nil {
			return err
		}
		if filter == (auditFilter{}) {
			// a message has at least one record, so the last n messages have the last n records
			at[i] = src.Last - min(last, src.Last)
		}
	}
	for first := true; ; first = false {
		entries, err := readNewRecords(ctx, r, at)
		if err != nil {
			return cli.IgnoreInterrupt(ctx, err)
		}
		entries = slices.DeleteFunc(entries, func(e view.AuditEntry) bool { return !filter.matches(e) })
		if first {
			entries = entries[max(0, len(entries)-int(min(last, 1<<30))):]
		}
		for _, e := range entries {
			if err := a.PrintEach(e, func() { view.AuditLine(a.Out, e) }); err != nil {
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

// readNewRecords returns the records after the position at of each stream, by time, and moves the positions to their
// ends.
func readNewRecords(ctx context.Context, r bus.AuditReaders, at []uint64) (out []view.AuditEntry, err error) {
	for i, stream := range r {
		src, err := stream.ReadAfter(ctx, at[i])
		if i > 0 && errors.Is(err, bus.ErrNoAudit) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for e, err := range records(src) {
			if err != nil {
				return nil, err
			}
			out = append(out, e)
		}
		at[i] = max(at[i], src.Last)
	}
	slices.SortStableFunc(out, func(a, b view.AuditEntry) int { return a.Time.Compare(b.Time) })
	return out, nil
}

// records yields the records of a source, and a bad one for each message that cannot be decoded, in order. An error of
// reading is the last.
func records(src audit.Source) iter.Seq2[view.AuditEntry, error] {
	return func(yield func(view.AuditEntry, error) bool) {
		if src.Messages == nil {
			return
		}
		for m, err := range src.Messages {
			if err != nil {
				yield(view.AuditEntry{}, err)
				return
			}
			for _, e := range view.DecodeAudit(m) {
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}

// auditShowCommand prints the records of a message, an action or a chain in full. None is an error.
func auditShowCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "show <message | id | chain>",
		Short: "Print records in full",
		Long: `Prints records in full. The argument is the name of a message, such as broker/17, as audit tail,
verify and export show it, the id of an action, or the name of a chain; the first 6 characters of an
id or chain are enough. Each writer has a stream of its own: the name of a message is that of its
writer with the sequence in this stream. With --json it prints one array.`,
		Example: `  conclave audit show broker/17
  conclave audit show 3f9c01d2 --json`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			return withAuditor(a, func(r bus.AuditReaders) error { return showAudit(cmd.Context(), a, r, v[0]) })
		},
	}
}

// showAudit prints the records of a message, which may be bad, or those whose id or chain is what or begins with it. A
// prefix has at least [client.IDPrefix] characters; a bare number names no message and is a usage error. No match is an
// error. Records are not verified.
func showAudit(ctx context.Context, a *cli.App, r bus.AuditReaders, what string) error {
	owner, seq, err := audit.ParseMessageName(what)
	byName := err == nil
	if _, err := strconv.ParseUint(what, 10, 64); err == nil {
		return cli.Usage("each writer of the audit log counts its own messages: name one as conclave audit tail "+
			"does, such as broker/%s", what)
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
		for e, err := range records(withProgress(a, src, "searching")) {
			if err != nil {
				return err
			}
			if byName && e.Message != what {
				break
			}
			if byName || fits(e.ID) || fits(e.Chain) {
				found = append(found, e)
			}
		}
	}
	switch {
	case len(found) == 0 && byName:
		return cli.Fail(cli.ExitFailed, "the audit log has no message "+what, "list records with conclave audit tail")
	case len(found) == 0:
		return cli.Fail(cli.ExitFailed, fmt.Sprintf("the audit log has no record %q", what),
			"list records with conclave audit tail")
	}
	return a.Print(found, nil, func() {
		for i, e := range found {
			if i > 0 {
				fmt.Fprintln(a.Out)
			}
			view.AuditRecord(a.Out, e)
		}
	})
}

// auditExportCommand writes the audit log as JSON lines to a new file, or to stdout for "-", without verifying it.
func auditExportCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "export <file | ->",
		Short: "Write the audit log to a file",
		Long: `Writes the whole audit log as JSON lines that conclave audit verify --file reads. It does not
verify. An existing file is not overwritten. "-" writes to stdout.

stderr shows the number of records and the SHA-256 of the file: keep the hash elsewhere. With --json
this summary is a document on stdout, unless the export itself goes to stdout.`,
		Example: `  conclave audit export audit.jsonl
  conclave audit export - | zstd > audit.jsonl.zst`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			return withAuditor(a, func(r bus.AuditReaders) error { return exportAudit(cmd.Context(), a, r, v[0]) })
		},
	}
}

// exportAudit writes the audit log to a new file, or to stdout for "-", and prints the number of records and the hash.
// An existing file is not overwritten; an export that was interrupted is an error, and leaves no file.
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
	return a.Print(struct {
		File string `json:"file"`
		audit.Summary
	}{file, sum}, err, a.Saying("exported %d records in %d messages to %s, sha256 %s", sum.Records, sum.Messages, file,
		sum.SHA256))
}
