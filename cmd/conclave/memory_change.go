package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/subjects"
)

// memories is a number of them.
func memories(n int) string {
	if n == 1 {
		return "1 memory"
	}
	return fmt.Sprintf("%d memories", n)
}

// memoryMarkCommand is pin, unpin, accept and reject: they take ids and set one thing.
func (a *app) memoryMarkCommand(op, what, done string) *cobra.Command {
	long := map[string]string{
		"pin":    "A pinned memory does not lose rank with age, and nothing takes its place by itself.",
		"unpin":  "They are ranked like all others again.",
		"accept": "Subagents only propose what should be remembered; what you accept is recalled from now on.",
		"reject": "What you reject is forgotten. It was never recalled.",
	}[op]
	return &cobra.Command{
		Use:   op + " <id...>",
		Short: what,
		Long:  what + ". " + long + "\n\nEnds with exit code 1 when an id is unknown; the others are done. With --json it is one document with changed and missing.",
		Example: fmt.Sprintf(`  conclave memory %s 3f9c01d2
  conclave memory %s 3f9c01d2 77ab01ce --json`, op, op),
		Args:              args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeMemories,
		RunE: func(cmd *cobra.Command, v []string) error {
			ids, err := memoryIDs(v)
			if err != nil {
				return err
			}
			m, end, err := a.memory()
			if err != nil {
				return err
			}
			defer end()
			r, err := m.admin(cmd.Context(), subjects.MemoryAdminRequest{Op: op, IDs: ids})
			if err != nil { // also when it was broken off: nobody knows whether it was done
				return err
			}
			if a.json {
				err = a.document(changed{r.Changed, append([]string{}, r.Missing...)})
			} else {
				text := fmt.Sprintf("%s: %s", memories(r.Changed), done)
				if same := len(ids) - r.Changed - len(r.Missing); same > 0 {
					text += fmt.Sprintf("; %d as before", same)
				}
				a.say("%s", text)
			}
			return errFirst(err, m.unknown(r.Missing))
		},
	}
}

// changed is what became of ids, as a document.
type changed struct {
	Changed int      `json:"changed"`
	Missing []string `json:"missing"`
}

// maxFact is the longest text that is remembered as one thing. What is longer is a document.
const maxFact = 64 << 10

func (a *app) memoryAddCommand() *cobra.Command {
	var tags []string
	cmd := &cobra.Command{
		Use:   "add <text...>",
		Short: "Remember something",
		Long: `Remembers a fact that you state: it counts as your own word. "-" reads it from stdin. What is known already is merged with
it; what it contradicts is superseded and no longer recalled.

Says on stderr what became of it. With --json it is one document with id, action, other and why.`,
		Example: `  conclave memory add 'My sister Anna lives in Bremen since 2024'
  conclave memory add --tag house 'The boiler was serviced in March'
  conclave memory add - < note.txt`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			text, err := a.given(cmd.Context(), strings.Join(v, " "), maxFact)
			switch {
			case err != nil:
				return err
			case strings.TrimSpace(text) == "":
				return usage("there is nothing to remember: write it behind %s", cmd.CommandPath())
			case len(text) > maxFact:
				return usage("that is more than %s: write it into a file and use conclave memory import", size(maxFact))
			}
			m, done, err := a.memory()
			if err != nil {
				return err
			}
			defer done()
			r, err := m.write(cmd.Context(), subjects.MemoryWriteRequest{Entries: []subjects.MemoryEntry{{Kind: subjects.KindFact, Corpus: strings.TrimSpace(text), Tags: tags}}})
			switch {
			case err != nil:
				return err
			case len(r.Results) != 1:
				return fail(exitFailed, "memory does not say what became of it", "look with conclave memory search")
			}
			return m.written(r)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringSliceVar(&tags, "tag", nil, "a `tag` for it; may be given several times")
	return cmd
}

// written says what became of one entry.
func (m *memory) written(r subjects.MemoryWriteReply) error {
	one := r.Results[0]
	if m.json {
		if err := m.document(one); err != nil {
			return err
		}
	}
	if one.Action == "refused" {
		return fail(exitFailed, "it is not remembered: "+plain(or(one.Why, "memory does not say why")), "say it in another way")
	}
	if m.json {
		return nil
	}
	text := fmt.Sprintf("%s %s", visible(one.Action), visible(short(one.ID)))
	if one.Other != "" {
		link := map[string]string{"merged": "into", "superseded": "in the place of"}[one.Action]
		text += " " + or(link, "beside") + " " + visible(short(one.Other))
	}
	if one.Why != "" {
		text += ": " + plain(one.Why)
	}
	m.say("%s", text)
	m.notes(r.Notes)
	return nil
}

// given is a text of the command line, or stdin for "-".
func (a *app) given(ctx context.Context, text string, most int) (string, error) {
	if text != "-" {
		return text, nil
	}
	type read struct {
		data []byte
		err  error
	}
	got := make(chan read, 1) // reading cannot be interrupted: it ends with the process
	go func() {
		data, err := io.ReadAll(io.LimitReader(a.stdin, int64(most)+1))
		got <- read{data, err}
	}()
	select {
	case <-ctx.Done():
		return "", fail(exitFailed, "stopped", "nothing was changed")
	case r := <-got:
		if r.err != nil {
			return "", fmt.Errorf("reading stdin: %w", r.err)
		}
		return strings.ToValidUTF8(string(r.data), "\uFFFD"), nil
	}
}

func (a *app) memoryForgetCommand() *cobra.Command {
	var query string
	var yes bool
	cmd := &cobra.Command{
		Use:   "forget <id...> | forget --query <words>",
		Short: "Forget memories for good",
		Long: `Forgets memories for good: their texts, vectors, grades and relations. With --query those that these words find: you are
shown which, and asked; without a terminal that needs --yes. Only what was shown is forgotten.

Conversations and the log of events keep what was said until they expire; the audit keeps that something was forgotten,
never what. With --json it is one document with forgotten and missing.`,
		Example: `  conclave memory forget 3f9c01d2
  conclave memory forget --query 'my old address'
  conclave memory forget --query 'my old address' --yes --json`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.completeMemories,
		RunE: func(cmd *cobra.Command, v []string) error {
			byQuery := cmd.Flags().Changed("query")
			switch {
			case byQuery && len(v) > 0:
				return usage("give ids, or --query, not both")
			case byQuery && strings.TrimSpace(query) == "":
				return usage("--query: say what to look for; nothing stands for everything here")
			case !byQuery && len(v) == 0:
				return usage("say which: ids, or --query and words: see %s --help", cmd.CommandPath())
			}
			ids, err := memoryIDs(v)
			if err != nil {
				return err
			}
			m, done, err := a.memory()
			if err != nil {
				return err
			}
			defer done()
			if byQuery {
				if ids, err = m.findToForget(cmd.Context(), query, yes); err != nil || len(ids) == 0 {
					return err
				}
			}
			return m.forget(cmd.Context(), ids)
		},
	}
	f := cmd.Flags()
	f.StringVar(&query, "query", "", "those that these `words` find")
	f.BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// findToForget shows what would go and asks. None means that the user does not want it, or that there is none.
func (m *memory) findToForget(ctx context.Context, query string, yes bool) (ids []string, err error) {
	var found []subjects.MemoryEntry
	if _, err := m.pages(ctx, subjects.MemoryAdminRequest{Op: "forget", Query: query, Dry: true}, 0, func(e subjects.MemoryEntry) error {
		found = append(found, e)
		return nil
	}); err != nil {
		return nil, err
	}
	if len(found) == 0 {
		m.say("nothing that is remembered fits")
		if m.json {
			return nil, m.document(forgotten{[]string{}, []string{}})
		}
		return nil, nil
	}
	for _, e := range found {
		ids = append(ids, e.ID)
	}
	if yes {
		return ids, nil
	}
	if err := m.table(m.stderr, found); err != nil {
		return nil, err
	}
	f, is := m.stdin.(*os.File)
	if !is || !isTerminal(f) {
		return nil, usage("this would forget %s: add --yes if that is what you want", memories(len(ids)))
	}
	ok, err := m.confirm(ctx, f, fmt.Sprintf("forget %s for good? [y/N] ", memories(len(ids))))
	if err != nil || !ok {
		return nil, errFirst(err, fail(exitFailed, "nothing was forgotten", "you did not say yes"))
	}
	return ids, nil
}

// confirm asks on a terminal. Everything but a clear yes is no, also what was typed before anybody can have read the question.
func (a *app) confirm(ctx context.Context, keyboard *os.File, question string) (bool, error) {
	lines := make(chan string)
	go func() { // reading cannot be interrupted: it ends with the process
		defer close(lines)
		for s := bufio.NewScanner(keyboard); s.Scan(); {
			lines <- s.Text()
		}
	}()
	for {
		fmt.Fprint(a.stderr, question)
		asked := time.Now()
		select {
		case <-ctx.Done():
			return false, fail(exitFailed, "stopped", "nothing was changed")
		case l, more := <-lines:
			if more && time.Since(asked) < tooFast {
				a.say("%s", typedAhead)
				continue
			}
			return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(l))), nil
		}
	}
}

// forgotten is what is gone, as a document.
type forgotten struct {
	Forgotten []string `json:"forgotten"`
	Missing   []string `json:"missing"`
}

// manyIDs is how many ids are sent in one message.
const manyIDs = 500

func (m *memory) forget(ctx context.Context, ids []string) error {
	gone := forgotten{[]string{}, []string{}}
	n := 0
	var names []subjects.MemoryEntry
	for batch := range slices.Chunk(ids, manyIDs) {
		r, err := m.admin(ctx, subjects.MemoryAdminRequest{Op: "forget", IDs: batch})
		if err != nil {
			if n > 0 {
				m.say("%s forgotten before that", memories(n))
			}
			return err
		}
		n += r.Changed
		names = append(names, r.Entries...)
		for _, e := range r.Entries {
			gone.Forgotten = append(gone.Forgotten, e.ID)
		}
		gone.Missing = append(gone.Missing, r.Missing...)
	}
	if m.json {
		return errFirst(m.document(gone), m.unknown(gone.Missing))
	}
	for _, e := range names {
		m.say("forgotten: %s  %s", visible(short(e.ID)), visible(clip(e.Name, 80)))
	}
	m.say("%s forgotten", memories(n))
	if n > 0 {
		m.say("conversations and the log of events keep what was said until they expire")
	}
	return m.unknown(gone.Missing)
}
