package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/actors/broker/replay"
	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/userconfig"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/client"
	"conclave/pkg/file"
	"conclave/pkg/firewall"
	"conclave/pkg/policy"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// policyCommand is the parent of the commands that explain and test the policy. None of them runs a tool.
func policyCommand(a *cli.App) *cobra.Command {
	return cli.Group("policy", "Explain what the broker would decide",
		`Explains and tests the policy by which the broker decides. Nothing runs and nothing changes;
the policy itself is in manifest.yaml.`,
		`  conclave policy explain get_datetime '{"timezone":"UTC"}'
  conclave policy explain web_search '{"query":"news"}' --json
  conclave policy replay --manifest new.yaml --since 7d
  conclave policy scan texts.jsonl`,
		policyExplainCommand(a), policyReplayCommand(a), policyScanCommand(a))
}

// policyExplainCommand asks the broker what it would decide about a call; the call does not run. It rejects invalid
// names and ids, and arguments that are not a JSON object.
func policyExplainCommand(a *cli.App) *cobra.Command {
	var call subjects.ExplainRequest
	cmd := &cobra.Command{
		Use:   "explain <tool> [json]",
		Short: "Show layer by layer what would happen to a call",
		Long: `Asks the broker what it would decide about a call, without running it: each layer in order, its
verdict, rule and reason. --as names the caller: an account, or an agent that it spawned. --session
takes the state of a session into account, such as untrusted content in it and its override.

The exit code is 0 when the call would run, and 3 when it would be denied or need your approval.
With --json it prints one document: allowed, denial, asks, layers, monitored.`,
		Example: `  conclave policy explain get_datetime '{"timezone":"UTC"}'
  conclave policy explain web_search '{"query":"tides"}' --as orchestrator.coder-1
  conclave policy explain web_fetch '{"url":"https://example.org"}' --session notes --json`,
		Args:              cli.Args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: cli.FirstArg(userconfig.CompleteTools(a)),
		RunE: func(cmd *cobra.Command, v []string) (err error) {
			call.Tool = v[0]
			if subjects.CheckToken(call.Tool) != nil {
				return cli.Usage("%q is not a valid tool name: use letters, digits, _ and -", v[0])
			}
			for _, id := range append(strings.Split(call.As, "."), cmp.Or(call.SessionID, "none"),
				cmp.Or(call.QueryID, "none")) {
				if subjects.CheckToken(id) != nil {
					return cli.Usage("%q is not a valid name or id: use letters, digits, _ and -", term.Clip(id, 40))
				}
			}
			if call.Args, err = readArguments(cmd.Context(), a, append(v, "{}")[1]); err != nil {
				return err
			}
			return a.ReadWithClient(cmd.Context(), func(c *client.Client) error {
				return explainCall(cmd.Context(), a, c, call)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&call.As, "as", subjects.Generator, "`caller`: an account such as generator, or an agent below it "+
		"such as orchestrator.coder-1")
	f.StringVar(&call.SessionID, "session", "", "`id` of the session of the call, or its first 6 characters")
	f.StringVar(&call.QueryID, "query", "", "`id` of the question of the call")
	cli.CompleteFlags(cmd, map[string]cli.Completion{
		"session": a.CompleteSessions(),
		"as":      cli.Words(subjects.Agents...),
	})
	return cmd
}

// explainCall prints the verdict about a call. A call that would be denied or need an approval is an error with exit
// code 3; nil means that it would run. A session that does not exist is only a remark.
func explainCall(ctx context.Context, a *cli.App, c *client.Client, call subjects.ExplainRequest) (err error) {
	if call.SessionID != "" {
		var exists bool
		if call.SessionID, exists, err = resolveSession(ctx, a, c, call.SessionID); err != nil {
			return err
		}
		if !exists {
			a.Say("there is no such session yet")
		}
	}
	v, err := c.ExplainPolicy(ctx, call)
	if err != nil {
		return cli.BrokerError("the policy", err)
	}
	err = a.Print(v, nil, func() { view.Verdict(a.Out, v) })
	switch {
	case v.Denial != nil:
		return cli.ToolFault(call.Tool, &subjects.Fault{
			Code: subjects.CodeDenied, Text: v.Denial.Reason,
			Denial: v.Denial,
		})
	case len(v.Asks) > 0:
		ask := v.Asks[0]
		return cli.Fail(cli.ExitDenied, fmt.Sprintf("%s would wait for your approval, required by %s", call.Tool,
			view.RuleReason(ask.Layer+": "+ask.Rule, ask.Reason)), "nothing was run")
	case !v.Allowed: // without a denial it still is not permitted
		return cli.Fail(cli.ExitDenied, call.Tool+" would be denied", "the broker gave no reason")
	}
	if !a.JSON {
		a.Say("%s would run", call.Tool)
	}
	return err
}

// openFile opens a regular file named by the user for reading; what names its content in an error. The caller closes
// it.
func openFile(what, path string) (*os.File, error) {
	f, err := file.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, cli.Usage("reading %s: %s: no such file", what, path)
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", what, err)
	}
	return f, nil
}

// scanReport is what the firewall found in files of texts.
type scanReport struct {
	Texts      int            `json:"texts"`
	Flagged    int            `json:"flagged"`
	FlaggedIDs []string       `json:"flagged_ids"`
	Techniques map[string]int `json:"techniques"` // number of texts, flagged or not
	Truncated  int            `json:"truncated"`  // texts that were scanned in part
	Bytes      int64          `json:"bytes"`
	PerTenKB   float64        `json:"ms_per_10kb"`

	spent time.Duration
}

// policyScanCommand scans texts with the firewall and prints the counts. It needs no running system. A flagged text is
// not an error; a file that cannot be read or has an invalid line is.
func policyScanCommand(a *cli.App) *cobra.Command {
	var techniques strings.Builder
	for _, t := range firewall.Catalog {
		fmt.Fprintf(&techniques, "  %-14s %s\n", t.Name, t.Sentence)
	}
	return &cobra.Command{
		Use:   "scan <texts.jsonl>...",
		Short: "Show what the firewall finds in texts",
		Long: `Scans each text as the broker scans the result of a tool. A line of a file is a JSON object with the
field "text"; "id" names it (default: its line). "-" reads stdin.

The firewall only labels texts, it never drops one, and it misses some attacks. What a text may
cause is decided by the information flow rules, whether it is flagged or not.

Techniques:
` + strings.TrimRight(techniques.String(), "\n"),
		Example: `  conclave policy scan texts.jsonl
  conclave policy scan texts.jsonl --json | jq .flagged_ids`,
		Args: cli.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, files []string) error {
			r := scanReport{FlaggedIDs: []string{}, Techniques: map[string]int{}}
			for _, file := range files {
				if err := r.scanFile(cmd.Context(), a, file); err != nil {
					return err
				}
			}
			if r.Bytes > 0 {
				r.PerTenKB = float64(r.spent.Microseconds()) / 1000 * 10240 / float64(r.Bytes)
			}
			return a.Print(r, nil, func() { r.print(a.Out) })
		},
	}
}

// print prints the totals, then the ids of the flagged texts.
func (r *scanReport) print(w io.Writer) {
	fmt.Fprintf(w, "texts     %d\n", r.Texts)
	fmt.Fprintf(w, "flagged   %d\n", r.Flagged)
	for _, name := range strict.SortedKeys(r.Techniques) {
		fmt.Fprintf(w, "  %-14s %d\n", name, r.Techniques[name])
	}
	if r.Truncated > 0 {
		fmt.Fprintf(w, "longer than %d KB, scanned in part: %d\n", firewall.MaxScan>>10, r.Truncated)
	}
	for _, id := range r.FlaggedIDs {
		fmt.Fprintf(w, "flagged: %s\n", term.Plain(id))
	}
}

// maxTextLine bounds a line of a file of texts.
const maxTextLine = 16 << 20

// scanFile scans the texts of one file, or of stdin for "-", and adds them to r. Blank lines are skipped. A line that
// is not a JSON object, has no field text, or is longer than [maxTextLine] is an error; the texts before it are
// counted.
func (r *scanReport) scanFile(ctx context.Context, a *cli.App, file string) error {
	var in io.Reader
	if file == "-" {
		in = a.Reader(ctx)
	} else {
		f, err := openFile("texts", file)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, maxTextLine)
	for n := 1; sc.Scan(); n++ {
		line := bytes.TrimSpace(sc.Bytes())
		if len(line) == 0 {
			continue
		}
		var t struct {
			ID   string  `json:"id"`
			Text *string `json:"text"`
		}
		if err := json.Unmarshal(line, &t); err != nil {
			return fmt.Errorf("%s:%d: not a JSON object (%w): write {\"id\": ..., \"text\": ...} on each line", file, n,
				err)
		}
		if t.Text == nil {
			return fmt.Errorf("%s:%d: no field \"text\": write {\"id\": ..., \"text\": ...} on each line", file, n)
		}
		r.scan(cmp.Or(t.ID, "line "+strconv.Itoa(n)), *t.Text)
	}
	switch err := sc.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("reading %s: a line is longer than %d MB; split its text", file, maxTextLine>>20)
	case err != nil:
		return fmt.Errorf("reading %s: %w", file, err)
	}
	return nil
}

// scan scans one text as the broker scans the result of a tool, and counts the findings: each technique once for a
// text, also where they are too few to flag it.
func (r *scanReport) scan(id, text string) {
	began := time.Now()
	found := firewall.Scan(text)
	r.spent += time.Since(began)
	r.Texts++
	r.Bytes += int64(len(text))
	if found.Truncated {
		r.Truncated++
	}
	if found.Flagged {
		r.Flagged++
		r.FlaggedIDs = append(r.FlaggedIDs, id)
	}
	seen := map[string]bool{}
	for _, f := range found.Findings {
		if !seen[f.Technique] {
			seen[f.Technique] = true
			r.Techniques[f.Technique]++
		}
	}
}

// policyReplayCommand judges recorded calls by another manifest. Nothing runs and nothing is written.
func policyReplayCommand(a *cli.App) *cobra.Command {
	var path, since string
	cmd := &cobra.Command{
		Use:   "replay --manifest <file>",
		Short: "Judge recorded calls by another manifest",
		Long: `Judges the calls of the event log by another manifest and prints what would change: each rule that
decides differently, with the calls. Nothing runs, nothing is written, and the rules in force stay.

Each call is judged as it was made: a call that the other rules deny does not change the calls after
it. Types, lineage, tools, paths, hosts, limits and approvals are judged anew, paths by the files of
today. The information flow of a session is not recorded, so the recorded verdict of that layer
counts, with monitor_only of the other manifest. A call whose record lacks what a rule needs is
counted as one that cannot be judged, and so is a call of a tool that was removed since. Tools of
conclave tool add and conclave mcp add are judged with their declarations of today. With --json it
prints one document: calls, unchanged, changed, changes, cannot_be_judged, damaged.`,
		Example: `  conclave policy replay --manifest new.yaml
  conclave policy replay --manifest new.yaml --since 7d --json`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			from, err := cli.ParseSince(since, time.Now())
			if err != nil {
				return err
			}
			if path == "" {
				return cli.Usage("which rules? Name a file with --manifest")
			}
			data, err := file.Read(path, strict.MaxFile)
			if err != nil {
				return cli.Usage("reading the manifest: %v", err)
			}
			m, err := policy.ParseManifest(data, path)
			if err != nil {
				return err
			}
			return a.ReadWithClient(cmd.Context(), func(c *client.Client) error {
				principals, err := c.Principals(cmd.Context())
				if err != nil {
					return err
				}
				rules, err := userconfig.LoadNames(a).ReplayRules(m, a.Home, principals)
				if err != nil {
					return err
				}
				return replayPolicy(cmd.Context(), a, c, rules, from)
			})
		},
	}
	cmd.Flags().StringVar(&path, "manifest", "", "`file` with the rules to judge by")
	cmd.Flags().StringVar(&since, "since", "30d", "only calls after a `time`: 12h, 30d, 2006-01-02 or "+
		"2006-01-02T15:04:05Z")
	return cmd
}

// replayPolicy judges the calls since from and prints the report.
func replayPolicy(ctx context.Context, a *cli.App, c *client.Client, rules replay.Rules, from time.Time) error {
	var events []client.Event
	line := term.NewProgress(a.Err)
	for e, err := range c.EventsBack(ctx, replay.Subject) {
		if err != nil {
			line.Clear()
			return err
		}
		if e.Time.Before(from) {
			break
		}
		if events = append(events, e); len(events)%100 == 0 {
			line.Draw("%d calls", len(events))
		}
	}
	line.Clear()
	slices.Reverse(events)
	r, err := replay.Run(ctx, rules, events)
	return a.Print(r, err, func() { view.Replay(a.Out, r) })
}
