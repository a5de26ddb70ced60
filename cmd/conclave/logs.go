package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/config"
	"conclave/pkg/logfile"
	"conclave/pkg/text"
)

// logFlags are the flags of conclave logs.
type logFlags struct {
	follow              bool
	actor, query, level string // "" = all
	since               string // "" = all
	tail                int    // 0 = all
}

// followInterval is how often conclave logs --follow looks for new records.
const followInterval = 200 * time.Millisecond

// logsCommand prints the log of the system from another terminal, whether it runs or not.
func logsCommand(a *cli.App) *cobra.Command {
	var f logFlags
	cmd := &cobra.Command{
		Use:   "logs",
		Short: "Show the log of the system",
		Long: `Shows the log of conclave up, and of every conclave actor on this data folder, by time: time, level,
actor, what happened, and its fields. The files are in logs/ of the data folder, bounded by log_max
in system.yaml, and readable by you only.

With --log-level debug of conclave up, or log_level in system.yaml, it also has a record of each
request to a model server (model, role, tokens and milliseconds), of each decision of the broker and
of each tool call. Prompts, answers, arguments and results are in it only with telemetry.content:
true in system.yaml.`,
		Example: `  conclave logs -f
  conclave logs --level warn --since 24h
  conclave logs --actor model --query 3f9c01d2
  conclave logs --json | jq 'select(.level == "ERROR")'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), a) },
	}
	fs := cmd.Flags()
	fs.BoolVarP(&f.follow, "follow", "f", false, "go on with new records until Ctrl-C")
	fs.StringVar(&f.actor, "actor", "", "only records of this `actor`")
	fs.StringVar(&f.query, "query", "", "only records of this query `id`, or of ids that begin with it")
	fs.StringVar(&f.level, "level", "", "only records of this `level` and above: debug, info, warn or error")
	fs.StringVar(&f.since, "since", "", "only records after a `time`: 10m, 24h, 7d, 2006-01-02 or 2006-01-02T15:04:05Z")
	fs.IntVarP(&f.tail, "tail", "n", 0, "only the last `number` of records so far")
	cli.CompleteFlags(cmd, map[string]cli.Completion{"actor": cli.Words(config.Actors...)})
	return cmd
}

// run prints the records, and with --follow new ones until ctx ends.
func (f logFlags) run(ctx context.Context, a *cli.App) error {
	wanted, err := f.filter(time.Now())
	if err != nil {
		return err
	}
	tail := f.tail // of the first batch: later records are new
	show := func(batch []logfile.Record) error {
		batch = slices.DeleteFunc(batch, func(r logfile.Record) bool { return !wanted(r) })
		if tail > 0 {
			batch = batch[max(0, len(batch)-tail):]
		}
		tail = 0
		for _, r := range batch {
			if err := printRecord(a, r); err != nil {
				return err
			}
		}
		return nil
	}
	if f.follow {
		return logfile.Follow(ctx, a.Home.Logs(), followInterval, show)
	}
	all, err := logfile.Read(a.Home.Logs())
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return cli.Fail(cli.ExitFailed, "there is no log in "+a.Home.Logs(), "start conclave up; with log_max: 0 in "+
			"system.yaml it keeps none")
	}
	return show(all)
}

// filter returns whether a record is wanted. It rejects flags that it cannot read.
func (f logFlags) filter(now time.Time) (func(logfile.Record) bool, error) {
	level := slog.LevelDebug
	if f.level != "" {
		if err := level.UnmarshalText([]byte(f.level)); err != nil {
			return nil, cli.Usage("--level %q: use debug, info, warn or error", f.level)
		}
	}
	var since time.Time
	if f.since != "" {
		var err error
		if since, err = cli.ParseSince(f.since, now); err != nil {
			return nil, err
		}
	}
	if f.tail < 0 {
		return nil, cli.Usage("--tail %d: give a number of records, or leave it out for all", f.tail)
	}
	return func(r logfile.Record) bool {
		return r.Level >= level && !r.Time.Before(since) && (f.actor == "" || r.Actor == f.actor) &&
			(f.query == "" || strings.HasPrefix(r.Query, f.query))
	}, nil
}

// printRecord prints a record as one line: readable, or with --json the stored value. Control characters are removed,
// or escaped in JSON: parts of a record may come from others.
func printRecord(a *cli.App, r logfile.Record) error {
	if a.JSON {
		fmt.Fprintln(a.Out, text.EscapeJSON(string(r.Line)))
		return a.Out.Err
	}
	var fields map[string]any
	if json.Unmarshal(r.Line, &fields) != nil {
		return nil
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		switch k {
		case "time", "level", "msg", "actor":
			continue
		}
		v, ok := fields[k].(string)
		if !ok {
			data, _ := json.Marshal(fields[k])
			v = string(data)
		} else if strings.ContainsAny(v, " \n\t\"") {
			v = fmt.Sprintf("%q", v)
		}
		fmt.Fprintf(&b, " %s=%s", k, v)
	}
	fmt.Fprintln(a.Out,
		term.PlainText(fmt.Sprintf("%s %-5s %-12s %s%s", r.Time.Local().Format("2006-01-02 15:04:05.000"), r.Level,
			r.Actor, strings.ReplaceAll(r.Text, "\n", " "), b.String())))
	return a.Out.Err
}
