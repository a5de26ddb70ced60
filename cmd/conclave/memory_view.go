package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// trust is how far an entry can be trusted, for people. Whatever else is said, nobody vouches for it.
func trust(t string) string {
	if t == subjects.Trusted {
		return "trusted"
	}
	return "UNTRUSTED"
}

// strangers is said wherever an entry is shown that nobody vouches for.
const strangers = "UNTRUSTED: strangers could have written this"

func (a *app) memoryListCommand() *cobra.Command {
	var q subjects.MemoryAdminRequest
	var all bool
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List memories, newest first",
		Long: `Lists memories, newest first: id, kind, state, whether it can be trusted, age and name. Only those that can be recalled,
unless --state or --all says otherwise. The filters hold together; --text looks for these letters in name, description and
text. With --json it is one document with entries, and next when there are more.`,
		Example: `  conclave memory list
  conclave memory list --kind document --from notes/garden.md
  conclave memory list --state candidate
  conclave memory list --limit 0 --json | jq -r '.entries[].name'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errFirst(oneOf("kind", q.Kind, memoryKinds...), oneOf("state", q.State, memoryStates...), oneOf("trust", q.Trust, memoryTrust...)); err != nil {
				return err
			}
			switch {
			case limit < 0:
				return usage("--limit %d: give a number, or 0 for all", limit)
			case all && q.State != "":
				return usage("--all and --state: choose one")
			case !all && q.State == "":
				q.State = subjects.MemoryActive
			}
			m, done, err := a.memory()
			if err != nil {
				return err
			}
			defer done()
			q.Op, q.From = "list", fileOrAddress(q.From)
			return quietly(cmd.Context(), m.list(cmd.Context(), q, limit))
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.Kind, "kind", "", "only engram, fact or document")
	f.StringVar(&q.State, "state", "", "only active, candidate or superseded")
	f.StringVar(&q.Trust, "trust", "", "only trusted or untrusted")
	f.StringVar(&q.Tag, "tag", "", "only with this tag")
	f.StringVar(&q.From, "from", "", "only from this `file` or address")
	f.StringVar(&q.Text, "text", "", "only with these letters in it")
	f.IntVar(&limit, "limit", page, "how many at most; 0 = all")
	f.BoolVar(&all, "all", false, "also what is superseded or waits for a decision")
	completes(cmd, map[string][]string{"kind": memoryKinds, "state": memoryStates, "trust": memoryTrust})
	return cmd
}

// fileOrAddress is the name under which a document was imported: a file that is there has one, however it is written.
func fileOrAddress(from string) string {
	if from == "" {
		return ""
	}
	if path, err := filepath.Abs(from); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return path
		}
	}
	return from
}

// completes lets flags be completed from their words.
func completes(cmd *cobra.Command, flags map[string][]string) {
	for name, w := range flags {
		_ = cmd.RegisterFlagCompletionFunc(name, words(w)) // it fails only for a flag that is not there
	}
}

// errFirst is the first of errors.
func errFirst(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) list(ctx context.Context, q subjects.MemoryAdminRequest, limit int) error {
	found := subjects.MemoryAdminReply{Entries: []subjects.MemoryEntry{}}
	var err error
	found.Next, err = m.pages(ctx, q, limit, func(e subjects.MemoryEntry) error {
		found.Entries = append(found.Entries, e)
		return nil
	})
	switch {
	case err != nil:
		return err
	case m.json:
		return m.document(found)
	case len(found.Entries) == 0:
		m.say("nothing is remembered that fits: %s memory status says what there is", m.program())
		return nil
	}
	if err := m.table(m.stdout, found.Entries); err != nil {
		return err
	}
	if found.Next != "" {
		m.say("there are more: --limit %d shows twice as many, --limit 0 all", 2*limit)
	}
	return nil
}

// table prints entries, one on a line.
func (a *app) table(out io.Writer, entries []subjects.MemoryEntry) error {
	room := 60
	if columns, _, ok := terminal(out); ok {
		room = max(20, columns-len("3f9c01d2  document  superseded  UNTRUSTED  100d  "))
	}
	now := time.Now()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tKIND\tSTATE\tTRUST\tAGE\tNAME")
	for _, e := range entries {
		name := clip(e.Name, room)
		if e.Provenance.Part > 0 { // the pieces of a document often have one name
			name += fmt.Sprintf(" (%d)", e.Provenance.Part)
		}
		if e.Pinned {
			name = "* " + name
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", visible(short(e.ID)), visible(e.Kind), visible(e.State), trust(e.Provenance.Trust), ago(now.Sub(e.Created)), visible(name))
	}
	return w.Flush()
}

func (a *app) memorySearchCommand() *cobra.Command {
	var q subjects.MemoryQuery
	var why bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "search <words...>",
		Short: "Recall what is remembered about something",
		Long: `Recalls as the assistant does, and shows what it would be given: rank, similarity, the score it is ranked by, age, source,
and the part of the text that matters. --why lists what each score is made of. What strangers could have written is marked.

With --json it is one document with hits, notes, and how long it took.`,
		Example: `  conclave memory search where does my sister live
  conclave memory search --why --max 3 tomatoes
  conclave memory search --json tomatoes | jq -r '.hits[].segment'`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			q.Query = strings.TrimSpace(strings.Join(v, " "))
			switch {
			case q.Query == "":
				return usage("say what to look for: see %s --help", cmd.CommandPath())
			case q.Max < 0:
				return usage("--max %d: give a number, or 0 for as many as usual", q.Max)
			case timeout <= 0:
				return usage("--timeout %s: give it some time, such as 60s", timeout)
			}
			if err := oneOf("kind", q.Kind, memoryKinds...); err != nil {
				return err
			}
			m, done, err := a.memory()
			if err != nil {
				return err
			}
			defer done()
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			r, err := m.recall(ctx, q)
			switch {
			case err != nil:
				return quietly(cmd.Context(), err)
			case a.json:
				return a.document(r)
			}
			a.printHits(r, why, q.Whole)
			return a.stdout.err
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.IntVar(&q.Max, "max", 0, "how many at most; 0 = as configured")
	f.StringVar(&q.Kind, "kind", "", "only engram, fact or document")
	f.BoolVar(&q.Whole, "whole", false, "the whole text, not the part that matters")
	f.BoolVar(&q.Fresh, "fresh", false, "look again, and not into what was recalled before")
	f.BoolVar(&q.All, "all", false, "also what is superseded or waits for a decision")
	f.BoolVar(&why, "why", false, "show what each score is made of")
	f.DurationVar(&timeout, "timeout", memoryTime, "how long to wait")
	completes(cmd, map[string][]string{"kind": memoryKinds})
	return cmd
}

// recall asks, and returns the last stage: the others are on the way to it.
func (m *memory) recall(ctx context.Context, q subjects.MemoryQuery) (subjects.MemoryReply, error) {
	var last subjects.MemoryReply
	for r, err := range actor.AskStream(ctx, m.out, subjects.MemoryQueryService, q) {
		if err != nil {
			return last, m.says(err)
		}
		last = r
	}
	if !last.Done {
		return last, fail(exitFailed, "memory broke off in the middle of the search", "try again")
	}
	if last.Hits == nil {
		last.Hits = []subjects.MemoryHit{}
	}
	return last, nil
}

func (a *app) printHits(r subjects.MemoryReply, why, whole bool) {
	if len(r.Hits) == 0 {
		a.say("nothing that is remembered fits")
	}
	now := time.Now()
	for i, h := range r.Hits {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		e := h.Entry
		fmt.Fprintf(a.stdout, "%d. %s  %s\n", i+1, a.paint(a.stdout, yellow, visible(short(e.ID))), a.paint(a.stdout, bold, visible(clip(e.Name, 100))))
		fmt.Fprintf(a.stdout, "   similarity %.3f, score %.3f, %s ago, %s\n", h.Similarity, h.Score, ago(now.Sub(e.Created)), about(e))
		if e.Provenance.Trust != subjects.Trusted {
			fmt.Fprintf(a.stdout, "   %s\n", a.paint(a.stdout, red, warning(e)))
		}
		text := or(h.Segment, e.Description)
		if whole && e.Corpus != "" {
			text = e.Corpus
		}
		indented(a.stdout, "   ", text)
		if why {
			for _, reason := range h.Reasons {
				fmt.Fprintf(a.stdout, "   %+.3f %s\n", reason.Value, visible(strings.TrimSpace(reason.What+"  "+reason.Text)))
			}
		}
	}
	a.notes(r.Notes)
	if r.Cached {
		a.say("this was recalled before; --fresh looks again")
	}
}

// about is in a few words what an entry is and where it is from.
func about(e subjects.MemoryEntry) string {
	parts := []string{e.Kind, "from " + or(string(e.Provenance.Source), "nobody knows where")}
	if e.Provenance.From != "" {
		parts = append(parts, e.Provenance.From)
	}
	if e.State != subjects.MemoryActive {
		parts = append(parts, e.State)
	}
	if e.Pinned {
		parts = append(parts, "pinned")
	}
	if e.Grades.Critic > 0 {
		parts = append(parts, fmt.Sprintf("graded %d of 5", e.Grades.Critic))
	}
	return visible(strings.Join(parts, ", "))
}

// warning says that strangers could have written an entry, and what was found in it.
func warning(e subjects.MemoryEntry) string {
	if f := e.Provenance.Flags; len(f) > 0 {
		return strangers + ", and it shows signs of injection: " + visible(strings.Join(f, ", "))
	}
	return strangers
}

// indented prints text of several lines.
func indented(w io.Writer, indent, text string) {
	for l := range strings.Lines(strings.TrimRight(plainText(text), "\n")) {
		fmt.Fprintln(w, strings.TrimRight(indent+l, " \n"))
	}
}

// notes says on stderr what was missing.
func (a *app) notes(notes []subjects.Note) {
	for _, n := range notes {
		a.say("%s", plain(n.Text))
	}
}

func (a *app) memoryShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show <id>",
		Short: "Print everything known of a memory",
		Long: `Prints a memory in full: its text, where it came from and how far it can be trusted, what others thought of it, what it took
the place of or what took its place, what it goes with, and how often it was recalled.

With --json it is one document with entry and correlated.`,
		Example: `  conclave memory show 3f9c01d2
  conclave memory show 3f9c01d2 --json | jq .entry.provenance`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.firstMemory,
		RunE: func(cmd *cobra.Command, v []string) error {
			if err := checkShort(v[0]); err != nil {
				return err
			}
			m, done, err := a.memory()
			if err != nil {
				return err
			}
			defer done()
			e, err := m.show(cmd.Context(), v[0])
			if err != nil {
				return quietly(cmd.Context(), err)
			}
			others := m.correlated(cmd.Context(), e)
			if a.json {
				return a.document(struct {
					Entry      subjects.MemoryEntry   `json:"entry"`
					Correlated []subjects.MemoryEntry `json:"correlated"`
				}{e, others})
			}
			a.printMemory(e, others)
			return a.stdout.err
		},
	}
}

// firstMemory completes the first word only.
func (a *app) firstMemory(cmd *cobra.Command, v []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(v) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeMemories(cmd, v, word)
}

// show is the one entry of an id, or of the beginning of one.
func (m *memory) show(ctx context.Context, id string) (subjects.MemoryEntry, error) {
	r, err := m.admin(ctx, subjects.MemoryAdminRequest{Op: "show", IDs: []string{id}, Whole: true})
	switch {
	case err != nil:
		return subjects.MemoryEntry{}, err
	case len(r.Entries) == 0:
		return subjects.MemoryEntry{}, m.unknown([]string{id})
	case len(r.Entries) > 1:
		return subjects.MemoryEntry{}, fail(exitFailed, fmt.Sprintf("%d memories begin with %s", len(r.Entries), id), "give more of the id")
	}
	return r.Entries[0], nil
}

// correlated are the entries that e goes with, as far as memory tells: without them e is still worth showing.
func (m *memory) correlated(ctx context.Context, e subjects.MemoryEntry) []subjects.MemoryEntry {
	others := []subjects.MemoryEntry{}
	if len(e.Correlating) == 0 {
		return others
	}
	ctx, cancel := context.WithTimeout(ctx, memoryTime)
	defer cancel()
	r, err := actor.Ask(ctx, m.out, subjects.MemoryCorrelated, subjects.MemoryIDs{IDs: []string{e.ID}})
	if err != nil {
		m.say("what it goes with is not told: %s", oneLine(m.says(err).Error()))
		return others
	}
	for _, h := range r.Hits {
		others = append(others, h.Entry)
	}
	return others
}

func (a *app) printMemory(e subjects.MemoryEntry, others []subjects.MemoryEntry) {
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(a.stdout, "%-13s %s\n", name, text)
		}
	}
	list := func(name string, v []string) { line(name, visible(strings.Join(v, ", "))) }
	p, g := e.Provenance, e.Grades
	line("id", visible(e.ID))
	line("name", a.paint(a.stdout, bold, visible(e.Name)))
	line("about", about(e))
	if p.Trust != subjects.Trusted {
		line("trust", a.paint(a.stdout, red, warning(e)))
	} else {
		line("trust", trust(p.Trust))
	}
	list("tags", e.Tags)
	list("said by", filled(p.Agent, p.Model))
	list("session", filled(p.SessionID, p.QueryID))
	if p.Part > 0 {
		line("part", fmt.Sprint(p.Part))
	}
	line("digest", visible(p.Digest))
	line("intent", visible(e.Intent))
	list("entities", e.Entities)
	line("sentiment", visible(e.Sentiment))
	line("respondent", visible(e.Respondent))
	if g.Critic > 0 {
		line("critic", visible(strings.TrimSpace(fmt.Sprintf("%d of 5  %s", g.Critic, g.Feedback))))
	}
	line("pairwise", visible(g.Pairwise))
	if g.Rewards > 0 {
		line("reward", fmt.Sprintf("%+.2f, said %d times", g.Reward, g.Rewards))
	}
	line("superseded by", visible(e.SupersededBy))
	list("supersedes", e.Supersedes)
	line("created", stamp(e.Created))
	if e.Updated.After(e.Created) {
		line("updated", stamp(e.Updated))
	}
	if e.Accesses > 0 {
		line("recalled", fmt.Sprintf("%s, last %s", times(e.Accesses), stamp(e.Accessed)))
	}
	known := map[string]string{}
	for _, o := range others {
		known[o.ID] = o.Name
	}
	for _, id := range e.Correlating {
		line("goes with", visible(strings.TrimSpace(short(id)+"  "+clip(known[id], 80))))
	}
	if e.Description != "" {
		fmt.Fprintln(a.stdout)
		indented(a.stdout, "", e.Description)
	}
	if e.Corpus != "" && e.Corpus != e.Description {
		fmt.Fprintln(a.stdout)
		indented(a.stdout, "  ", e.Corpus)
	}
}

// filled is those of v that say something.
func filled(v ...string) (out []string) {
	for _, s := range v {
		if s != "" {
			out = append(out, s)
		}
	}
	return out
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
