package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/client"
	"conclave/subjects"
)

// memoryCommand is the parent of the commands that show and change what is remembered.
func memoryCommand(a *cli.App) *cobra.Command {
	return cli.Group("memory", "Show, change and forget memories",
		`Shows what the assistant remembers and why something is recalled, and lets you change, pin and
forget it. Answers are remembered automatically, facts when you or the assistant store them,
documents and chats when you import them.

Memories with external content are marked UNTRUSTED. The first 6 characters of an id are enough.`,
		`  conclave memory search where does my sister live
  conclave memory list --kind fact
  conclave memory import ~/notes
  conclave memory forget 3f9c01d2`,
		memoryListCommand(a), memorySearchCommand(a), memoryShowCommand(a), memoryGraphCommand(a),
		memoryStatusCommand(a),
		memoryAddCommand(a), memoryEditCommand(a), memoryForgetCommand(a),
		memoryMarkCommand(a, "pin", "Keep memories ranked high, however old they are", "A pinned memory does not "+
			"lose rank with age, and is not superseded automatically. Trusted pinned facts are in the prompt of "+
			"every question: the newest 10, 1,200 bytes together.", "pinned"),
		memoryMarkCommand(a, "unpin", "Let pinned memories age again", "They are ranked like all others again.",
			"no longer pinned"),
		memoryMarkCommand(a, "accept", "Accept memories that a subagent proposed", "Subagents only propose memories; "+
			"accepted ones are recalled from now on.", "accepted"),
		memoryMarkCommand(a, "reject", "Reject memories that a subagent proposed", "Rejected memories are forgotten. "+
			"They were never recalled.", "rejected"),
		memoryExportCommand(a), memoryImportCommand(a))
}

// missingMemories is the error of ids that do not exist, nil when there are none. ids may be prefixes.
func missingMemories(a *cli.App, ids []string) error {
	what := "there are no memories "
	switch len(ids) {
	case 0:
		return nil
	case 1:
		what = "there is no memory "
	}
	return cli.Fail(cli.ExitFailed, what+term.Visible(strings.Join(ids, ", ")), "list them with "+a.Program()+
		" memory list")
}

// memoryLookupError explains an error of looking up a memory by id or prefix: unknown, ambiguous, or a fault of memory.
func memoryLookupError(a *cli.App, id string, err error) error {
	return findError("memory", id, "list them with "+a.Program()+" memory list", a.MemoryError(err))
}

// checkMemoryIDs rejects an id or prefix that is no valid token or has fewer than 6 characters, and removes duplicates.
// Whether the memories exist is not checked.
func checkMemoryIDs(v []string) (ids []string, err error) {
	for _, id := range v {
		if err := cli.CheckPrefix(id); err != nil {
			return nil, err
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// completeMemories completes the ids of the newest memories, one page of them, with their names as descriptions.
func completeMemories(a *cli.App) cli.Completion {
	return a.CompleteFrom(func(ctx context.Context, c *client.Client) (ids []string, err error) {
		entries, _, err := c.ListMemories(ctx, subjects.MemoryAdminRequest{}, client.MemoryPage)
		for _, e := range entries {
			if subjects.CheckToken(e.ID) == nil {
				ids = append(ids, e.ID+"\t"+term.Clip(term.Plain(e.Name), 50))
			}
		}
		return ids, err
	})
}

// memoryStatusCommand shows the number and size of memories and how they are searched. It fails when no memory actor
// runs.
func memoryStatusCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show how much is remembered, and how it is searched",
		Long: `Shows the number of memories of each kind and state, the size of the file, how a search works now
and why, the embedding model, and how many memories wait for an embedding. With --json it prints one
document.`,
		Example: `  conclave memory status
  conclave memory status --json | jq .unembedded`,
		Args: cli.NoArgs,
		RunE: a.Read(func(ctx context.Context, c *client.Client, _ []string) error {
			s, err := c.MemoryStatus(ctx)
			return a.Print(s, a.MemoryError(err), func() { view.MemoryStatus(a.Streams, s, a.Program()) })
		}),
	}
}

// memoryListCommand lists memories by kind, state, tag, source, trust and text. It rejects unknown kinds, states and
// trusts, a negative limit (0 is all), and --all with --state. Without either only active memories are listed.
func memoryListCommand(a *cli.App) *cobra.Command {
	var filter subjects.MemoryAdminRequest
	var all bool
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List memories, newest first",
		Long: `Lists memories, newest first: id, kind, state, trust, age and name. Only active ones, unless --state
or --all says otherwise. Filters combine; --text searches name, description and text literally. With
--json it prints one document with entries, and next when there are more.`,
		Example: `  conclave memory list
  conclave memory list --kind document --from notes/garden.md
  conclave memory list --state candidate
  conclave memory list --limit 0 --json | jq -r '.entries[].name'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case limit < 0:
				return cli.Usage("--limit %d: give a number, or 0 for all", limit)
			case all && filter.State != "":
				return cli.Usage("--all and --state exclude each other")
			}
			if err := cmp.Or(cli.OneOf("kind", filter.Kind, client.MemoryKinds...),
				cli.OneOf("state", filter.State, client.MemoryStates...),
				cli.OneOf("trust", filter.Trust, client.MemoryTrust...)); err != nil {
				return err
			}
			if !all {
				filter.State = cmp.Or(filter.State, subjects.MemoryActive)
			}
			filter.From = resolveSource(filter.From)
			return a.ReadWithClient(cmd.Context(), func(c *client.Client) error {
				return listMemories(cmd.Context(), a, c, filter, limit)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&filter.Kind, "kind", "", "only engram, fact or document")
	f.StringVar(&filter.State, "state", "", "only active, candidate or superseded")
	f.StringVar(&filter.Trust, "trust", "", "only trusted or untrusted")
	f.StringVar(&filter.Tag, "tag", "", "only with this tag")
	f.StringVar(&filter.From, "from", "", "only from this `file` or address")
	f.StringVar(&filter.Text, "text", "", "only with this text")
	f.IntVar(&limit, "limit", client.MemoryPage, "how many at most; 0 for all")
	f.BoolVar(&all, "all", false, "also superseded ones and candidates")
	cli.CompleteFlags(cmd, map[string]cli.Completion{
		"kind": cli.Words(client.MemoryKinds...), "state": cli.Words(client.MemoryStates...),
		"trust": cli.Words(client.MemoryTrust...),
	})
	return cmd
}

// listMemories prints at most limit memories that pass the filter, 0 for all, and says on stderr when there are more or
// none. No match is no error.
func listMemories(ctx context.Context, a *cli.App, c *client.Client, filter subjects.MemoryAdminRequest,
	limit int,
) error {
	entries, next, err := c.ListMemories(ctx, filter, limit)
	return a.Print(subjects.MemoryAdminReply{Entries: entries, Next: next}, a.MemoryError(err), func() {
		if len(entries) == 0 {
			a.Say("no memory matches: see %s memory status", a.Program())
			return
		}
		view.MemoryTable(a.Out, entries)
		if next != "" {
			a.Say("there are more: --limit %d lists twice as many, --limit 0 all", 2*limit)
		}
	})
}

// resolveSource is the name under which a document was imported: the absolute path, without links, of a file that
// exists. Anything else, such as an address, is returned as it is.
func resolveSource(from string) string {
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

// memorySearchCommand recalls as the assistant does, and with --why explains each score. It rejects an empty query, a
// negative --max (0 is as configured), and an unknown kind.
func memorySearchCommand(a *cli.App) *cobra.Command {
	var q subjects.MemoryQuery
	var reasons bool
	cmd := &cobra.Command{
		Use:   "search <words...>",
		Short: "Recall memories as the assistant does",
		Long: `Recalls as the assistant does, and shows what it would get: rank, similarity, score, age, source,
and the relevant part of the text. --why breaks each score down. Untrusted memories are marked.

With --json it prints one document with hits, notes and the time it took.`,
		Example: `  conclave memory search where does my sister live
  conclave memory search --why --max 3 tomatoes
  conclave memory search --json tomatoes | jq -r '.hits[].segment'`,
		Args: cli.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			q.Query = strings.TrimSpace(strings.Join(v, " "))
			switch {
			case q.Query == "":
				return cli.Usage("give words to search for: see %s --help", cmd.CommandPath())
			case q.Max < 0:
				return cli.Usage("--max %d: give a number, or 0 for the default", q.Max)
			}
			if err := cli.OneOf("kind", q.Kind, client.MemoryKinds...); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
			defer cancel()
			return a.ReadWithClient(cmd.Context(), func(c *client.Client) error {
				r, err := c.SearchMemory(ctx, q)
				if errors.Is(err, client.ErrIncomplete) {
					return cli.Fail(cli.ExitFailed, "memory: "+err.Error(), "try again")
				}
				return a.Print(r, a.MemoryError(err), func() { view.MemoryHits(a.Streams, r, reasons, q.Whole) })
			})
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.IntVar(&q.Max, "max", 0, "how many at most; 0 as configured")
	f.StringVar(&q.Kind, "kind", "", "only engram, fact or document")
	f.BoolVar(&q.Whole, "whole", false, "the whole text, not only the relevant part")
	f.BoolVar(&q.Fresh, "fresh", false, "do not use the cache")
	f.BoolVar(&q.All, "all", false, "also superseded ones and candidates")
	f.BoolVar(&reasons, "why", false, "break each score down")
	cli.CompleteFlags(cmd, map[string]cli.Completion{"kind": cli.Words(client.MemoryKinds...)})
	return cmd
}

// memoryShowCommand prints one memory in full, by id or prefix. Unknown and ambiguous ids are errors; missing related
// memories are only a remark on stderr.
func memoryShowCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "show <id>",
		Short: "Print everything about a memory",
		Long: `Prints a memory in full: its text, source and trust, grades and feedback, what it supersedes or is
superseded by, related memories, and how often it was recalled.

With --json it prints one document with entry and correlated.`,
		Example: `  conclave memory show 3f9c01d2
  conclave memory show 3f9c01d2 --json | jq .entry.provenance`,
		Args:              cli.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: cli.FirstArg(completeMemories(a)),
		RunE: func(cmd *cobra.Command, v []string) error {
			if err := cli.CheckPrefix(v[0]); err != nil {
				return err
			}
			return a.ReadWithClient(cmd.Context(), func(c *client.Client) error {
				e, err := c.ShowMemory(cmd.Context(), v[0])
				if err != nil {
					return memoryLookupError(a, v[0], err)
				}
				related, err := c.RelatedMemories(cmd.Context(), e)
				if err != nil { // the memory is still worth showing
					a.Say("related memories are not available: %s", term.OneLine(a.MemoryError(err).Error()))
				}
				return a.Print(struct {
					Entry      subjects.MemoryEntry   `json:"entry"`
					Correlated []subjects.MemoryEntry `json:"correlated"`
				}{e, related}, nil, func() { view.Memory(a.Out, e, related) })
			})
		},
	}
}

// memoryGraphCommand prints the relations of the knowledge graph, all or those of a name, at most --limit, which must
// be positive.
func memoryGraphCommand(a *cli.App) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "graph [name]",
		Short: "Show relations between people, places and things",
		Long: `Shows the knowledge graph: relations between people, places and things, all or those of a name.
Current relations come first, then past ones, each with its dates, if known, and the memory it comes
from. With --json it prints one document with relations.`,
		Example: `  conclave memory graph
  conclave memory graph Anna
  conclave memory graph Anna --json | jq -r '.relations[] | select(.tense == "is") | .object'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, v []string) error {
			if limit < 1 {
				return cli.Usage("--limit %d: give a number of at least 1", limit)
			}
			return a.ReadWithClient(cmd.Context(), func(c *client.Client) error {
				relations, err := c.MemoryGraph(cmd.Context(), strings.TrimSpace(strings.Join(v, " ")), limit)
				return a.Print(map[string]any{"relations": relations}, a.MemoryError(err),
					func() { view.MemoryGraph(a.Streams, relations) })
			})
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().IntVar(&limit, "limit", 200, "how many at most")
	return cmd
}

// memoryExportCommand writes all memories as JSON lines that import reads back: to stdout without a name or for "-",
// otherwise to a file that must not exist. An incomplete export is an error, and leaves no file.
func memoryExportCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "export [file]",
		Short: "Write all memories as JSON lines",
		Long: `Writes every memory with everything about it, one JSON object per line, newest first: to stdout, or
to a new file that only you can read. conclave memory import reads it back. It has no embeddings,
which are computed again, and no knowledge graph: to keep that, copy the file of the memory while
conclave is stopped.

With a file, stderr shows the number of memories; with --json that is a document on stdout.`,
		Example: `  conclave memory export memory.jsonl
  conclave memory export | jq -r 'select(.kind == "fact") | .corpus'`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			return a.WithClient(func(c *client.Client) error {
				if len(v) == 0 || v[0] == "-" {
					n, err := c.ExportMemories(cmd.Context(), a.Out)
					if err != nil && n > 0 { // a partial export must not look complete
						return cli.Fail(cli.ExitFailed, term.OneLine(a.MemoryError(err).Error()),
							"the output is incomplete")
					}
					return a.MemoryError(err)
				}
				n := 0
				err := cli.WriteNewFile(v[0], func(w io.Writer) (err error) {
					n, err = c.ExportMemories(cmd.Context(), w)
					return err
				})
				return a.Print(struct {
					File    string `json:"file"`
					Entries int    `json:"entries"`
				}{v[0], n}, a.MemoryError(err), a.Saying("exported %s to %s", view.Memories(n), v[0]))
			})
		},
	}
}
