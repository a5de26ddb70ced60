package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/subjects"
)

// follow is how often new records are asked for: the auditor may read the stream, not listen to it.
const follow = 250 * time.Millisecond

// auditTailCommand prints the last records.
func (a *app) auditTailCommand() *cobra.Command {
	var (
		last uint64
		more bool
	)
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Print the last records, one line each",
		Long: `Prints the last records of the audit, one line each: time, sequence of the message, phase, agent and its type, action
and tool, status and reason, query, and the beginning of the keyed hash of the arguments. With -f it goes on with what
is written from now on. With --json each line is a JSON object.`,
		Example: `  conclave audit tail -n 50
  conclave audit tail -f --json | jq 'select(.status == "denied")'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if more && a.server == "" {
				if _, err := a.home.Running(); err != nil { // nothing new would ever come
					return err
				}
			}
			return a.auditor(func(nc *nats.Conn) error { return a.tail(cmd.Context(), nc, last, more) })
		},
	}
	cmd.Flags().Uint64VarP(&last, "lines", "n", 20, "how many records")
	cmd.Flags().BoolVarP(&more, "follow", "f", false, "go on with new ones")
	return cmd
}

func (a *app) tail(ctx context.Context, nc *nats.Conn, last uint64, more bool) error {
	src, err := bus.AuditSource(ctx, nc)
	if err != nil {
		return err
	}
	// A message holds at least one record: the last n messages hold the last n records.
	at := src.Last - min(last, src.Last)
	if src, err = bus.AuditAfter(ctx, nc, at); err != nil {
		return err
	}
	var kept []entry
	for m, err := range src.Messages {
		if err != nil {
			return quietly(ctx, err)
		}
		found, err := entries(m)
		if err != nil {
			return err
		}
		kept = append(kept, found...)
		kept = kept[max(0, len(kept)-int(min(last, 1<<30))):]
	}
	for _, e := range kept {
		if err := a.record(e); err != nil {
			return err
		}
	}
	for at = src.Last; more; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(follow):
		}
		src, err := bus.AuditAfter(ctx, nc, at)
		if err != nil {
			return quietly(ctx, err)
		}
		if err := a.pass(src); err != nil {
			return quietly(ctx, err)
		}
		at = max(at, src.Last)
	}
	return nil
}

// pass prints every record of a source.
func (a *app) pass(src audit.Source) error {
	for m, err := range src.Messages {
		if err != nil {
			return err
		}
		found, err := entries(m)
		if err != nil {
			return err
		}
		for _, e := range found {
			if err := a.record(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// quietly takes the error of a walk that the user has ended for what it is.
func quietly(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// record prints one line.
func (a *app) record(e entry) error {
	if a.json {
		return a.line(e)
	}
	colour := map[string]string{
		subjects.StatusDenied: red, subjects.StatusRefused: red, subjects.StatusFailed: yellow, subjects.StatusUnknown: yellow,
		subjects.StatusOK: green, subjects.StatusAllowed: green,
	}[e.Status]
	who := or(e.AgentID, e.Account)
	if e.AgentType != "" {
		who += " (" + e.AgentType + ")"
	}
	status := or(e.Status, "-")
	if e.Reason != "" {
		status += ": " + e.Reason
	}
	_, err := fmt.Fprintf(a.stdout, "%s  %6d  %-6s  %-20s  %-24s  %s  query %s  params %s\n",
		e.Time.Local().Format("2006-01-02 15:04:05.000"), e.Stream, plain(e.Phase), plain(who),
		plain(strings.TrimSpace(e.Action+" "+e.Tool)), a.paint(a.stdout, colour, plain(status)), plain(or(short(e.Query), "-")), plain(or(short(e.ParamsHash), "-")))
	return err
}

// auditShowCommand prints some records in full.
func (a *app) auditShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show <sequence | id | chain>",
		Short: "Print records in full",
		Long: `Prints records in full: those of one message by its sequence in the stream (the number that audit tail shows), or
those of an act by its id, or a whole chain by its name. The beginning of an id or chain is enough from eight letters on.
With --json it is one array.`,
		Example: `  conclave audit show 17
  conclave audit show 3f9c01d2 --json`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			return a.auditor(func(nc *nats.Conn) error { return a.show(cmd.Context(), nc, v[0]) })
		},
	}
}

func (a *app) show(ctx context.Context, nc *nats.Conn, what string) error {
	src, err := bus.AuditSource(ctx, nc)
	if err != nil {
		return err
	}
	seq, err := strconv.ParseUint(what, 10, 63)
	bySeq := err == nil
	if bySeq {
		if seq == 0 || seq < src.First || seq > src.Last {
			return fail(exitFailed, fmt.Sprintf("the audit has no message %d", seq), fmt.Sprintf("choose from %d to %d", src.First, src.Last))
		}
		if src, err = bus.AuditAfter(ctx, nc, seq-1); err != nil {
			return err
		}
	}
	is := func(s string) bool { return s == what || len(what) >= 8 && strings.HasPrefix(s, what) }
	found := []entry{}
	for m, err := range a.watched(src, "searching").Messages {
		if err != nil {
			return err
		}
		if bySeq && m.Seq != seq {
			break
		}
		all, err := entries(m)
		if err != nil {
			return err
		}
		for _, e := range all {
			if bySeq || is(e.ID) || is(e.Chain) {
				found = append(found, e)
			}
		}
	}
	if len(found) == 0 {
		return fail(exitFailed, fmt.Sprintf("the audit has nothing under %q", what), "conclave audit tail shows what there is")
	}
	if a.json {
		return a.document(found)
	}
	for i, e := range found {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		if err := a.full(e); err != nil {
			return err
		}
	}
	return nil
}

// full prints every field of a record, one per line, under the names of the JSON form.
func (a *app) full(e entry) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(b, &fields); err != nil {
		return err
	}
	for _, name := range []string{"stream", "account", "chain", "seq", "prev", "time", "phase", "id", "agent_id", "agent_type", "lineage", "action", "tool", "params_hash", "status", "reason", "session", "query", "links", "genesis"} {
		raw, ok := fields[name]
		if !ok || string(raw) == `""` {
			continue
		}
		text := string(raw)
		var s string
		if json.Unmarshal(raw, &s) == nil {
			text = s
		}
		if _, err := fmt.Fprintf(a.stdout, "%s %s\n", a.paint(a.stdout, dim, fmt.Sprintf("%-12s", name)), plain(text)); err != nil {
			return err
		}
	}
	return nil
}
