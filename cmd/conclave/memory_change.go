package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/client"
	"conclave/subjects"
)

const (
	maxFact   = 64 << 10  // bytes of a fact; longer text is a document
	maxCorpus = 256 << 10 // bytes of text that an edit may set
)

// memoryMarkCommand returns the command pin, unpin, accept or reject: op is the verb, done its past form in the
// message. Unknown ids are an error after the others were changed; when none exists nothing is changed.
func memoryMarkCommand(a *cli.App, op, short, long, done string) *cobra.Command {
	return &cobra.Command{
		Use:   op + " <id...>",
		Short: short,
		Long: short + ". " + long + "\n\nThe exit code is 1 when an id is unknown; the others are changed. With " +
			"--json it prints one document with changed and missing.",
		Example: fmt.Sprintf(`  conclave memory %s 3f9c01d2
  conclave memory %s 3f9c01d2 77ab01ce --json`, op, op),
		Args:              cli.Args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: completeMemories(a),
		RunE: func(cmd *cobra.Command, v []string) error {
			ids, err := checkMemoryIDs(v)
			if err != nil {
				return err
			}
			// An interrupt is an error: whether it was done is unknown.
			return a.WithClient(func(c *client.Client) error {
				changed, missing, err := c.MarkMemories(cmd.Context(), op, ids)
				if err != nil {
					return a.MemoryError(err)
				}
				text := fmt.Sprintf("%s %s", view.Memories(changed), done)
				if same := len(ids) - changed - len(missing); same > 0 {
					text += fmt.Sprintf("; %d unchanged", same)
				}
				report := map[string]any{"changed": changed, "missing": missing}
				return cmp.Or(a.Print(report, nil, a.Saying("%s", text)), missingMemories(a, missing))
			})
		},
	}
}

// readText returns text, or stdin for "-": up to one byte more than limit, which the caller rejects. An interrupt is an
// error.
func readText(ctx context.Context, a *cli.App, text string, limit int) (string, error) {
	if text != "-" {
		return text, nil
	}
	text, err := a.ReadAll(ctx, limit, "")
	if errors.Is(err, term.ErrStopped) {
		return "", cli.Fail(cli.ExitFailed, "stopped", "nothing was changed")
	}
	return text, err
}

// memoryAddCommand stores a fact of the user: trusted, unless it comes from stdin without --trusted. It rejects an
// empty one and one above [maxFact].
func memoryAddCommand(a *cli.App) *cobra.Command {
	var fact subjects.MemoryEntry
	var at string
	var trusted bool
	cmd := &cobra.Command{
		Use:   "add <text...>",
		Short: "Remember something",
		Long: `Remembers a fact that you state; it is trusted. "-" reads it from stdin: such text is UNTRUSTED,
because others may have written it, unless --trusted says that you trust every word. A known fact is
merged with it. A fact that it contradicts is superseded, and no longer recalled, when the small
model has described it.

--speaker, --at, --conversation and --position say who said it, when it was said or took place, and
where it stands in a conversation. They help to find it by questions such as "what did Ana say about
the boat in May?". Without --position it follows the last memory of its conversation.

stderr shows whether it was stored, merged or supersedes another. With --json it prints one document
with id, action, other and why.`,
		Example: `  conclave memory add 'My sister Anna lives in Bremen since 2024'
  conclave memory add --tag house 'The boiler was serviced in March'
  conclave memory add --speaker Ana --at 2023-05-08 'I sold the boat.'
  conclave memory add - < note.txt`,
		Args: cli.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			typed := strings.Join(v, " ")
			text, err := readText(cmd.Context(), a, typed, maxFact)
			switch {
			case err != nil:
				return err
			case strings.TrimSpace(text) == "":
				return cli.Usage("the text is empty: write it after %s", cmd.CommandPath())
			case len(text) > maxFact:
				return cli.Usage("the text is longer than %s: write it into a file and use conclave memory import",
					term.Bytes(maxFact))
			}
			fact.Corpus = text
			if fact.Happened, err = subjects.ParseHappened(at); err == nil {
				err = fact.CheckContext()
			}
			if err != nil {
				return cli.Usage("%v", err)
			}
			external := typed == "-" && !trusted
			if external {
				a.Say("text from stdin is stored as untrusted; use --trusted if every word is yours")
			}
			return a.WithClient(func(c *client.Client) error { return addMemory(cmd.Context(), a, c, fact, external) })
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringSliceVar(&fact.Tags, "tag", nil, "a `tag`; repeatable")
	f.BoolVar(&trusted, "trusted", false, "you trust every word of the text from stdin")
	f.StringVar(&fact.Speaker, "speaker", "", "`name` of who said it")
	f.StringVar(&at, "at", "", "`time` when it was said or took place: 2023-05-08T13:56:00Z, or 2023-05-08")
	f.StringVar(&fact.Conversation, "conversation", "", "`id` of the conversation that it is from")
	f.IntVar(&fact.Position, "position", 0, "`order` in the conversation, from 1")
	return cmd
}

// addMemory stores a fact and shows whether it was stored, merged or supersedes another. A fact that memory refuses is
// an error with its reason. The caller has checked it. An external text was not typed by the user.
func addMemory(ctx context.Context, a *cli.App, c *client.Client, fact subjects.MemoryEntry, external bool) error {
	w, notes, err := c.AddMemory(ctx, fact, external)
	if err != nil {
		return a.MemoryError(err)
	}
	if w.Action == "refused" {
		err = cli.Fail(cli.ExitFailed, "it is not remembered: "+term.Plain(cmp.Or(w.Why, "memory gave no reason")),
			"rephrase it")
	}
	return cmp.Or(err, a.Print(w, nil, func() {
		if err == nil {
			view.MemoryWritten(a.Streams, w, notes)
		}
	}))
}

// memoryForgetCommand deletes memories by ids or by a search, not both. A search lists them and asks first, unless
// --yes is given; an empty search is rejected.
func memoryForgetCommand(a *cli.App) *cobra.Command {
	var query, of string
	var yes bool
	cmd := &cobra.Command{
		Use:   "forget <id...> | forget --query <words> | forget --client <name>",
		Short: "Forget memories for good",
		Long: `Deletes memories for good: text, embeddings, grades and relations. With --query it searches for
memories, lists them and asks you before it deletes those that were listed; without a terminal this
needs --yes. With --client it does so for everything that memory has from a client: what it added,
and the answers to its questions.

Conversations and the event log keep the messages until they expire; the audit log records that
something was forgotten, never what. With --json it prints one document with forgotten and missing.`,
		Example: `  conclave memory forget 3f9c01d2
  conclave memory forget --query 'my old address'
  conclave memory forget --client phone
  conclave memory forget --query 'my old address' --yes --json`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeMemories(a),
		RunE: func(cmd *cobra.Command, v []string) error {
			byQuery, byClient := cmd.Flags().Changed("query"), cmd.Flags().Changed("client")
			find := func(ctx context.Context, c *client.Client) ([]subjects.MemoryEntry, error) {
				return c.FindMemoriesToForget(ctx, query)
			}
			if byClient {
				find = func(ctx context.Context, c *client.Client) ([]subjects.MemoryEntry, error) {
					entries, _, err := c.ListMemories(ctx, subjects.MemoryAdminRequest{From: subjects.ClientOrigin(of)},
						0)
					return entries, err
				}
			}
			switch {
			case byQuery && byClient || (byQuery || byClient) && len(v) > 0:
				return cli.Usage("ids, --query and --client exclude each other")
			case byClient && strings.TrimSpace(of) == "":
				return cli.Usage("--client: give the name of a client; see %s principal list", a.Program())
			case byQuery && strings.TrimSpace(query) == "":
				return cli.Usage("--query: give words to search for; an empty query would mean everything")
			case !byQuery && !byClient && len(v) == 0:
				return cli.Usage("give ids, --query and words, or --client and a name: see %s --help",
					cmd.CommandPath())
			}
			ids, err := checkMemoryIDs(v)
			if err != nil {
				return err
			}
			return a.WithClient(func(c *client.Client) error {
				if byQuery || byClient {
					var err error
					if ids, err = selectToForget(cmd.Context(), a, c, find, yes); err != nil || len(ids) == 0 {
						return err
					}
				}
				return forgetMemories(cmd.Context(), a, c, ids)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&query, "query", "", "delete the memories that a search for these `words` finds")
	f.StringVar(&of, "client", "", "delete everything from the client with this `name`")
	f.BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// selectToForget lists what find returns and asks for confirmation, or returns it at once with yes. No ids without an
// error mean that nothing matches, which is printed. It fails when the user does not confirm, interrupts, or cannot be
// asked.
func selectToForget(ctx context.Context, a *cli.App, c *client.Client,
	find func(context.Context, *client.Client) ([]subjects.MemoryEntry, error), yes bool,
) (ids []string, err error) {
	found, err := find(ctx, c)
	if err != nil {
		return nil, a.MemoryError(err)
	}
	if len(found) == 0 {
		a.Say("no memory matches")
		if a.JSON {
			return nil, a.PrintJSON(forgotten{[]string{}, []string{}})
		}
		return nil, nil
	}
	for _, e := range found {
		ids = append(ids, e.ID)
	}
	if !yes {
		view.MemoryTable(a.Err, found)
	}
	what := "forget " + view.Memories(len(ids))
	return ids, a.RequireYes(ctx, yes, what, what+" for good?", "nothing was forgotten")
}

// forgotten is the result of forget.
type forgotten struct {
	Forgotten []string `json:"forgotten"`
	Missing   []string `json:"missing"`
}

// forgetMemories deletes the memories with these ids or prefixes and prints them. Unknown ones are an error after the
// others were deleted. After a failure it still says how many were deleted.
func forgetMemories(ctx context.Context, a *cli.App, c *client.Client, ids []string) error {
	entries, missing, err := c.ForgetMemories(ctx, ids)
	if err != nil {
		if len(entries) > 0 {
			a.Say("%s forgotten before that", view.Memories(len(entries)))
		}
		return a.MemoryError(err)
	}
	out := forgotten{[]string{}, missing}
	for _, e := range entries {
		out.Forgotten = append(out.Forgotten, e.ID)
	}
	return cmp.Or(missingMemories(a, missing), a.Print(out, nil, func() {
		for _, e := range entries {
			a.Say("forgotten: %s  %s", term.Visible(term.ShortID(e.ID)), term.Visible(term.Clip(e.Name, 80)))
		}
		a.Say("%s forgotten", view.Memories(len(entries)))
		if len(entries) > 0 {
			a.Say("conversations and the event log keep the messages until they expire")
		}
	}))
}

// editHelp is the help text of conclave memory edit.
const editHelp = `Changes the name, description, text or tags of a memory, each with its flag; everything else is
unchanged. --tags replaces all tags, and --tags '' removes them. --corpus - reads the text from
stdin; --trusted must say that you trust every word of it, because the memory may be trusted.

Without a flag, on a terminal, it opens the memory in $VISUAL or $EDITOR. Closing the editor without
a change changes nothing.`

// memoryEditCommand changes fields of a memory by flags, or in the user's editor without any. It rejects an empty name,
// a text that is empty or above [maxCorpus], and a text from stdin that the user does not vouch for: the memory may be
// trusted.
func memoryEditCommand(a *cli.App) *cobra.Command {
	var name, description, corpus string
	var tags []string
	var trusted bool
	cmd := &cobra.Command{
		Use:   "edit <id>",
		Short: "Change a memory",
		Long:  editHelp,
		Example: `  conclave memory edit 3f9c01d2
  conclave memory edit 3f9c01d2 --name 'Where Anna lives' --tags family,places
  conclave memory edit 3f9c01d2 --corpus - --trusted < text.txt`,
		Args:              cli.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: cli.FirstArg(completeMemories(a)),
		RunE: func(cmd *cobra.Command, v []string) error {
			if err := cli.CheckPrefix(v[0]); err != nil {
				return err
			}
			var edit subjects.MemoryEdit
			f := cmd.Flags()
			if f.Changed("name") {
				edit.Name = &name
			}
			if f.Changed("description") {
				edit.Description = &description
			}
			if f.Changed("corpus") {
				if corpus == "-" && !trusted {
					return cli.Usage("text from stdin may be written by others: add --trusted if you trust every " +
						"word, or use conclave memory import")
				}
				text, err := readText(cmd.Context(), a, corpus, maxCorpus)
				if err != nil {
					return err
				}
				edit.Corpus = &text
			}
			if f.Changed("tags") {
				t := cleanTags(tags)
				edit.Tags = &t
			}
			if err := checkEdit(edit); err != nil {
				return err
			}
			return a.WithClient(func(c *client.Client) error {
				if edit == (subjects.MemoryEdit{}) {
					return editInEditor(cmd.Context(), a, c, v[0])
				}
				return editMemory(cmd.Context(), a, c, v[0], edit)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&name, "name", "", "the new name")
	f.StringVar(&description, "description", "", "the new description")
	f.StringVar(&corpus, "corpus", "", "the new `text`; - reads it from stdin")
	f.StringSliceVar(&tags, "tags", nil, "the new tags, separated by commas")
	f.BoolVar(&trusted, "trusted", false, "you trust every word of the text from stdin")
	return cmd
}

// cleanTags trims tags and removes empty and duplicate ones; blanks inside become one. It is never nil: an empty list
// removes all tags.
func cleanTags(tags []string) []string {
	out := []string{}
	for _, t := range tags {
		if t = strings.Join(strings.Fields(t), " "); t != "" && !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

// checkEdit rejects an edit that sets an empty name or text, without which a memory could not be found again, and a
// text above [maxCorpus]. Fields that are nil are not set and pass, so an empty edit passes.
func checkEdit(e subjects.MemoryEdit) error {
	switch {
	case e.Name != nil && strings.TrimSpace(*e.Name) == "":
		return cli.Usage("a memory needs a name")
	case e.Corpus != nil && strings.TrimSpace(*e.Corpus) == "":
		return cli.Usage("a memory needs a text: use conclave memory forget to remove it")
	case e.Corpus != nil && len(*e.Corpus) > maxCorpus:
		return cli.Usage("the text is longer than %s: use conclave memory import", term.Bytes(maxCorpus))
	}
	return nil
}

// editMemory applies an edit to the memory with an id or prefix and prints it. Fields that the edit does not name stay.
// Unknown and ambiguous ids are errors.
func editMemory(ctx context.Context, a *cli.App, c *client.Client, id string, edit subjects.MemoryEdit) error {
	e, err := c.EditMemory(ctx, id, edit)
	return a.Print(e, memoryLookupError(a, id, err), a.Saying("edited %s  %s", term.Visible(term.ShortID(e.ID)),
		term.Visible(term.Clip(e.Name, 80))))
}

// editInEditor opens a memory in the user's editor and stores the changes; without any it stores nothing. It rejects
// --json and streams that are no terminal. The text is kept in a file, which is named, when it is invalid or cannot be
// stored.
func editInEditor(ctx context.Context, a *cli.App, c *client.Client, id string) error {
	if _, ok := term.Keyboard(a.In); !ok || !term.IsTerminal(a.Out) || a.JSON {
		return cli.Usage("give what to change: --name, --description, --corpus or --tags; on a terminal an editor " +
			"opens")
	}
	old, err := c.ShowMemory(ctx, id)
	if err != nil {
		return memoryLookupError(a, id, err)
	}
	dir, err := os.MkdirTemp("", "conclave-memory-") // with mode 0700
	if err != nil {
		return cli.Fail(cli.ExitFailed, err.Error(), "set TMPDIR to a folder that you can write to")
	}
	file := filepath.Join(dir, "memory.txt")
	edit, keep, err := runEditor(old, file)
	switch {
	case err != nil:
	case edit == (subjects.MemoryEdit{}):
		a.Say("nothing was changed")
	default:
		err = editMemory(ctx, a, c, old.ID, edit)
		keep = err != nil
	}
	if keep {
		a.Say("your text is kept in %s", file)
		return err
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// runEditor writes a memory to file, runs $VISUAL, $EDITOR or vi on it, and returns the changes; an empty edit means
// none. keep says that the file has text that is invalid and should not be lost. The editor gets the terminal of this
// process.
func runEditor(old subjects.MemoryEntry, file string) (edit subjects.MemoryEdit, keep bool, err error) {
	if err := os.WriteFile(file, []byte(formatMemory(old)), 0o600); err != nil {
		return edit, false, err
	}
	command := strings.Fields(cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"), "vi"))
	if len(command) == 0 {
		command = []string{"vi"}
	}
	editor := exec.Command(command[0], append(command[1:], file)...)
	editor.Stdin, editor.Stdout, editor.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := editor.Run(); err != nil {
		return edit, false, cli.Fail(cli.ExitFailed, "the editor failed: "+err.Error(), "nothing was changed; set "+
			"$EDITOR to another editor")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return edit, false, cli.Fail(cli.ExitFailed, "the edited text cannot be read: "+err.Error(),
			"nothing was changed")
	}
	if edit, err = parseMemory(old, string(text)); err == nil {
		err = checkEdit(edit)
	}
	return edit, err != nil, err
}

// textMarker separates the fields from the text in an editor.
const textMarker = "--- the text begins below this line ---"

// formatMemory is a memory as text for an editor.
func formatMemory(e subjects.MemoryEntry) string {
	line := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	return fmt.Sprintf("name: %s\ntags: %s\ndescription: %s\n%s\n%s\n", line(e.Name), line(strings.Join(e.Tags, ", ")),
		line(e.Description), textMarker, e.Corpus)
}

// parseMemory reads the changes from a text in the form of [formatMemory]. An empty text changes nothing; a field that
// reads as it was written, or is missing, is unchanged. A missing marker, and an unknown, repeated or malformed field,
// are usage errors.
func parseMemory(old subjects.MemoryEntry, text string) (e subjects.MemoryEdit, err error) {
	if strings.TrimSpace(text) == "" {
		return e, nil
	}
	text = strings.ReplaceAll(text, "\r\n", "\n")
	head, corpus, ok := strings.Cut(text, "\n"+textMarker+"\n")
	if !ok {
		return e, cli.Usage("the line %q is missing: nothing was changed", textMarker)
	}
	before, _, _ := strings.Cut(formatMemory(old), "\n"+textMarker+"\n")
	was := strings.Split(before, "\n")
	seen := map[string]bool{}
	for l := range strings.Lines(head) {
		l = strings.TrimSpace(l)
		name, value, ok := strings.Cut(l, ":")
		value = strings.TrimSpace(value)
		if l == "" {
			continue
		}
		if !ok || seen[name] || !slices.Contains([]string{"name", "tags", "description"}, name) {
			return e, cli.Usage("invalid line %q: write name, tags and description, each on one line; nothing was "+
				"changed", term.Clip(l, 40))
		}
		seen[name] = true
		switch {
		case slices.Contains(was, name+": "+value):
		case name == "name":
			e.Name = &value
		case name == "description":
			e.Description = &value
		default:
			tags := cleanTags(strings.Split(value, ","))
			e.Tags = &tags
		}
	}
	if corpus = strings.TrimRight(corpus, "\n"); corpus != strings.TrimRight(old.Corpus, "\n") {
		e.Corpus = &corpus
	}
	return e, nil
}
