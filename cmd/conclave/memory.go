package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// memoryCommand is the user's own hand on what is remembered.
func (a *app) memoryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "memory",
		Short: "Look at what is remembered, change it, forget it",
		Long: `Shows what the assistant remembers, why something is recalled, and lets you change, pin and forget it. Answers are
remembered by themselves, facts when somebody wants them kept, documents when you import them.

What strangers could have written is marked UNTRUSTED wherever it is shown. The beginning of an id is enough from six
letters on.`,
		Example: `  conclave memory search where does my sister live
  conclave memory list --kind fact
  conclave memory import ~/notes
  conclave memory forget 3f9c01d2`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var names []string
			for _, c := range cmd.Commands() {
				names = append(names, c.Name())
			}
			return usage("say what to do with memory: %s: see %s --help", strings.Join(names, ", "), cmd.CommandPath())
		},
		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(
		a.memoryListCommand(), a.memorySearchCommand(), a.memoryShowCommand(), a.memoryGraphCommand(), a.memoryStatusCommand(),
		a.memoryAddCommand(), a.memoryEditCommand(), a.memoryForgetCommand(),
		a.memoryMarkCommand("pin", "Keep memories at the front, however old they are", "pinned"),
		a.memoryMarkCommand("unpin", "Let pinned memories age again", "no longer pinned"),
		a.memoryMarkCommand("accept", "Take memories that a subagent proposed", "accepted"),
		a.memoryMarkCommand("reject", "Throw away memories that a subagent proposed", "rejected"),
		a.memoryExportCommand(), a.memoryImportCommand(),
	)
	return cmd
}

// How long memory may take: to look something up, and to write, which needs vectors.
const (
	memoryTime  = time.Minute
	writingTime = 110 * time.Second // below the two minutes after which the server no longer passes an answer on
)

// memory is a line to the memory actor.
type memory struct {
	*app
	out actor.Out
}

func (a *app) memory(opts ...nats.Option) (*memory, func(), error) {
	out, done, err := a.asUser(opts...)
	if err != nil {
		return nil, nil, err
	}
	return &memory{a, out}, done, nil
}

// admin asks for one thing of the user's own.
func (m *memory) admin(ctx context.Context, q subjects.MemoryAdminRequest) (subjects.MemoryAdminReply, error) {
	ctx, cancel := context.WithTimeout(ctx, memoryTime)
	defer cancel()
	r, err := actor.Ask(ctx, m.out, subjects.MemoryAdminService, q)
	if r.Entries == nil { // an empty list in JSON, not null
		r.Entries = []subjects.MemoryEntry{}
	}
	return r, m.says(err)
}

// write hands something to memory. A mailbox that is full has read nothing, so it is tried again.
func (m *memory) write(ctx context.Context, w subjects.MemoryWriteRequest) (subjects.MemoryWriteReply, error) {
	for wait := 100 * time.Millisecond; ; wait *= 2 {
		timed, cancel := context.WithTimeout(ctx, writingTime)
		r, err := actor.Ask(timed, m.out, subjects.MemoryWriteService, w)
		cancel()
		var f *subjects.Fault
		if !errors.As(err, &f) || f.Code != subjects.CodeBusy || wait > 5*time.Second {
			return r, m.says(err)
		}
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-time.After(wait):
		}
	}
}

// errNoMemory marks that nobody was there to be asked: the next try would find nobody either.
var errNoMemory = errors.New("no memory actor answers")

// says makes an error with a fix and an exit code of what came instead of an answer.
func (m *memory) says(err error) error {
	var f *subjects.Fault
	if !errors.As(err, &f) {
		return err
	}
	what := fmt.Sprintf("%s (%s)", f.Text, f.Code)
	if !strings.HasPrefix(what, "memory") {
		what = "memory: " + what
	}
	switch f.Code {
	case subjects.CodeUnavailable:
		if !actor.IsReplyFault(err) {
			return &failure{exitAbsent, fmt.Errorf("%w: %s doctor says who runs; %s actor memory starts one", errNoMemory, m.program(), m.program())}
		}
		return fail(exitAbsent, what, "see conclave doctor")
	case subjects.CodeTimeout, subjects.CodeExpired, subjects.CodeBusy:
		return fail(exitAbsent, what, "try again")
	case subjects.CodeMalformed, subjects.CodeTooLarge: // memory knows best what to do, and says so itself
		return &failure{exitFailed, errors.New(what)}
	case subjects.CodeNoAudit, subjects.CodeUnrecorded:
		return fail(exitFailed, what, "see conclave doctor")
	}
	return explain("memory", f)
}

// tooLarge reports whether an answer did not fit into one message.
func tooLarge(err error) bool {
	var f *subjects.Fault
	return errors.As(err, &f) && f.Code == subjects.CodeTooLarge
}

// page is how many entries are asked for at once.
const page = 50

// pages asks for entries page by page and gives each to show. At most most of them, 0 = all; next is where more begin.
func (m *memory) pages(ctx context.Context, q subjects.MemoryAdminRequest, most int, show func(subjects.MemoryEntry) error) (next string, err error) {
	room := page
	for n := 0; ; {
		q.Limit = room
		if most > 0 {
			q.Limit = min(room, most-n)
		}
		timed, cancel := context.WithTimeout(ctx, memoryTime)
		r, err := actor.Ask(timed, m.out, subjects.MemoryAdminService, q)
		cancel()
		if tooLarge(err) && room > 1 { // long ones: fewer of them
			room /= 2
			continue
		}
		if err != nil {
			return "", m.says(err)
		}
		for _, e := range r.Entries {
			if err := show(e); err != nil {
				return "", err
			}
		}
		n += len(r.Entries)
		switch {
		case r.Next == "":
			return "", nil
		case most > 0 && n >= most:
			return r.Next, nil
		case r.Next == q.After || len(r.Entries) == 0:
			return "", fail(exitFailed, "memory: its list has no end", "the log of conclave up says more")
		}
		q.After = r.Next
	}
}

// memoryIDs checks the ids of a command line and takes out those that stand there twice.
func memoryIDs(v []string) ([]string, error) {
	var ids []string
	for _, id := range v {
		if err := checkShort(id); err != nil {
			return nil, err
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// unknown says which ids there are not, nil when there are all.
func (m *memory) unknown(missing []string) error {
	if len(missing) == 0 {
		return nil
	}
	what := "there is no memory "
	if len(missing) > 1 {
		what = "there are no memories "
	}
	return fail(exitFailed, what+visible(strings.Join(missing, ", ")), m.program()+" memory list shows what there is")
}

// oneOf refuses what is none of the words.
func oneOf(flag, v string, words ...string) error {
	if v == "" || slices.Contains(words, v) {
		return nil
	}
	return usage("--%s %s%s: use %s", flag, visible(v), nearest(v, words), strings.Join(words, ", "))
}

// Words that entries are sorted by.
var (
	memoryKinds  = []string{subjects.KindEngram, subjects.KindFact, subjects.KindDocument}
	memoryStates = []string{subjects.MemoryActive, subjects.MemoryCandidate, subjects.MemorySuperseded}
	memoryTrust  = []string{subjects.Trusted, subjects.Untrusted}
)

// words offers words as the value of a flag.
func words(w []string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return w, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeMemories offers the ids of the newest entries.
func (a *app) completeMemories(cmd *cobra.Command, _ []string, word string) (ids []string, _ cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), hurry)
	defer cancel()
	a.stderr = io.Discard // a completion has nobody to talk to
	m, done, err := a.memory(nats.Timeout(hurry))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer done()
	r, err := m.admin(ctx, subjects.MemoryAdminRequest{Op: "list", Limit: page})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for _, e := range r.Entries {
		if strings.HasPrefix(e.ID, word) && subjects.CheckToken(e.ID) == nil {
			ids = append(ids, e.ID+"\t"+clip(plain(e.Name), 50))
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) memoryStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "How much is remembered, and how it is searched",
		Long: `Says how many memories there are of each kind and state, how large the file is, which way a search takes and why, which
model makes the vectors, and how many memories still wait for theirs. With --json it is one document.`,
		Example: `  conclave memory status
  conclave memory status --json | jq .unembedded`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, done, err := a.memory()
			if err != nil {
				return err
			}
			defer done()
			r, err := m.admin(cmd.Context(), subjects.MemoryAdminRequest{Op: "status"})
			switch {
			case err != nil:
				return quietly(cmd.Context(), err)
			case r.Status == nil:
				return fail(exitFailed, "memory says nothing of how it is", "the log of conclave up says more")
			case a.json:
				return a.document(r.Status)
			}
			a.printStatus(*r.Status)
			return a.stdout.err
		},
	}
}

func (a *app) printStatus(s subjects.MemoryStatus) {
	line := func(name, format string, v ...any) {
		fmt.Fprintf(a.stdout, "%-10s %s\n", name, visible(fmt.Sprintf(format, v...)))
	}
	total := 0
	for _, n := range s.Entries {
		total += n
	}
	line("memories", "%d%s", total, counted(s.Entries))
	line("states", "%s", or(strings.TrimPrefix(counted(s.States), ": "), "-"))
	line("documents", "%d", s.Documents)
	line("relations", "%d", s.Relations)
	line("file", "%s, DuckDB %s, schema %d", size(s.Bytes), or(s.DuckDB, "-"), s.Schema)
	line("search", "%s", or(s.Search, "-"))
	line("vectors", "%s, %s in memory", or(s.Model, "no model"), size(s.Resident))
	line("cached", "%d", s.Cached)
	if s.Unembedded > 0 {
		a.say("without vectors yet, and found by their words until then: %s", memories(s.Unembedded))
	}
	if n := s.States[subjects.MemoryCandidate]; n > 0 {
		a.say("waiting for your decision: %s; %s memory list --state candidate shows them", memories(n), a.program())
	}
}

// counted lists numbers by name, as ": 3 document, 12 fact".
func counted(by map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, fmt.Sprintf("%d %s", by[name], name))
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}
