package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"conclave/pkg/audit"
	"conclave/pkg/auditlog"
	"conclave/pkg/bus"
	"conclave/subjects"
)

// auditCommand is the user's view of the audit log, with the auditor's own key. That key can read and nothing else.
func (a *app) auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Read, check, export and rotate the audit",
		Long: `Reads the audit log of everything that was decided and done, with the auditor's key. It holds no arguments and no
results, only a keyed hash of the arguments.

All of it but -f works while conclave is stopped, too: the server is then started alone on the data folder, without any
actor, and stopped afterwards.`,
		Example: `  conclave audit tail -f
  conclave audit show 17
  conclave audit verify`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usage("say what to do with the audit: tail, show, verify, export or rotate: see %s --help", cmd.CommandPath())
		},
		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(a.auditTailCommand(), a.auditShowCommand(), a.auditVerifyCommand(), a.auditExportCommand(), a.auditRotateCommand())
	return cmd
}

// auditor runs f with the auditor's connection, on the running server or on one started for it alone.
func (a *app) auditor(f func(nc *nats.Conn) error) error {
	reach := func(b *bus.Bus) error {
		nc, err := b.Dial("auditor")
		if err != nil {
			return err
		}
		defer nc.Close()
		return f(nc)
	}
	b, err := a.bus()
	if !errors.Is(err, bus.ErrNotRunning) {
		if err != nil {
			return err
		}
		return reach(b)
	}
	if _, serr := os.Stat(a.home.Data); errors.Is(serr, fs.ErrNotExist) {
		return fail(exitAbsent, "there is no audit in "+a.home.Data, "conclave up makes one")
	}
	if err := a.alone(); err != nil {
		return err
	}
	cfg, err := a.load(nil)
	if err != nil {
		return err
	}
	unlock, err := a.home.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	return auditlog.WithServer(a.home, cfg.ServerConfig(a.home), a.quiet(), func(_ *bus.Server, b *bus.Bus) error { return reach(b) })
}

// entry is one record and where it stands, as it is shown.
type entry struct {
	Stream  uint64 `json:"stream"` // sequence of its message
	Account string `json:"account"`
	subjects.AuditRecord
}

// entries are the records of a message. A message that cannot be read is an error of its own.
func entries(m audit.Stored) ([]entry, error) {
	batch, err := audit.DecodeBatch(m.Data)
	if err != nil {
		return nil, fmt.Errorf("message %d cannot be read: %w: run conclave audit verify", m.Seq, err)
	}
	account := ""
	if t, ok := subjects.Match("audit.*.*", m.Subject); ok {
		account = t[0]
	}
	out := make([]entry, len(batch))
	for i, d := range batch {
		out[i] = entry{m.Seq, account, d.Record}
	}
	return out, nil
}

// trail is the whole trail. A stream that is not there is an empty trail: the anchors say whether that is a loss.
func trail(ctx context.Context, nc *nats.Conn) (audit.Source, error) {
	src, err := bus.AuditSource(ctx, nc)
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamNotFound {
		return audit.Source{}, nil
	}
	return src, err
}

// watched counts the messages of a long walk on a terminal.
func (a *app) watched(src audit.Source, doing string) audit.Source {
	if !isTerminal(a.stderr) || src.Messages == nil {
		return src
	}
	walk := src.Messages
	src.Messages = func(yield func(audit.Stored, error) bool) {
		shown := false
		next := time.Now().Add(time.Second) // nothing to see of what is quick
		for m, err := range walk {
			if now := time.Now(); now.After(next) {
				shown, next = true, now.Add(200*time.Millisecond)
				fmt.Fprintf(a.stderr, "\r\x1b[K%s %d of %d messages", doing, m.Seq, src.Last)
			}
			if !yield(m, err) {
				break
			}
		}
		if shown {
			fmt.Fprint(a.stderr, "\r\x1b[K")
		}
	}
	return src
}
