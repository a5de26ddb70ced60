package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"conclave/subjects"
)

// maxCorpus is the longest text that an edit may give a memory.
const maxCorpus = 256 << 10

func (a *app) memoryEditCommand() *cobra.Command {
	var name, description, corpus string
	var tags []string
	cmd := &cobra.Command{
		Use:   "edit <id>",
		Short: "Change what a memory says",
		Long: `Changes name, description, text and tags of a memory, and nothing else: where it came from stays as it was. What is not
named stays as it is; --tags replaces all tags, and --tags '' takes them away. --corpus - reads the text from stdin.

Without a flag, on a terminal, it opens the memory in $VISUAL or $EDITOR. Leave it as it is to give up.`,
		Example: `  conclave memory edit 3f9c01d2
  conclave memory edit 3f9c01d2 --name 'Where Anna lives' --tags family,places
  conclave memory edit 3f9c01d2 --corpus - < text.txt`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.firstMemory,
		RunE: func(cmd *cobra.Command, v []string) error {
			if err := checkShort(v[0]); err != nil {
				return err
			}
			var e subjects.MemoryEdit
			f := cmd.Flags()
			if f.Changed("name") {
				e.Name = &name
			}
			if f.Changed("description") {
				e.Description = &description
			}
			if f.Changed("corpus") {
				text, err := a.given(cmd.Context(), corpus, maxCorpus)
				if err != nil {
					return err
				}
				e.Corpus = &text
			}
			if f.Changed("tags") {
				t := cleanTags(tags)
				e.Tags = &t
			}
			if err := checkEdit(e); err != nil {
				return err
			}
			m, done, err := a.memory()
			if err != nil {
				return err
			}
			defer done()
			if e == (subjects.MemoryEdit{}) {
				return m.inEditor(cmd.Context(), v[0])
			}
			return m.edit(cmd.Context(), v[0], e)
		},
	}
	f := cmd.Flags()
	f.StringVar(&name, "name", "", "the new name")
	f.StringVar(&description, "description", "", "the new description")
	f.StringVar(&corpus, "corpus", "", "the new `text`; - reads it from stdin")
	f.StringSliceVar(&tags, "tags", nil, "the new tags, with commas between")
	return cmd
}

// cleanTags takes out blanks, and tags that stand there twice. It is never nil: an empty list takes all tags away.
func cleanTags(tags []string) []string {
	out := []string{}
	for _, t := range tags {
		if t = strings.Join(strings.Fields(t), " "); t != "" && !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

// checkEdit refuses a memory without a name or a text: it could not be found again.
func checkEdit(e subjects.MemoryEdit) error {
	switch {
	case e.Name != nil && strings.TrimSpace(*e.Name) == "":
		return usage("a memory needs a name")
	case e.Corpus != nil && strings.TrimSpace(*e.Corpus) == "":
		return usage("a memory needs a text: conclave memory forget takes it away")
	case e.Corpus != nil && len(*e.Corpus) > maxCorpus:
		return usage("that is more than %s: use conclave memory import", size(maxCorpus))
	}
	return nil
}

func (m *memory) edit(ctx context.Context, id string, e subjects.MemoryEdit) error {
	r, err := m.admin(ctx, subjects.MemoryAdminRequest{Op: "edit", IDs: []string{id}, Edit: &e})
	switch {
	case err != nil:
		return err
	case len(r.Missing) > 0 || len(r.Entries) == 0:
		return m.unknown([]string{id})
	case m.json:
		return m.document(r.Entries[0])
	}
	m.say("edited %s  %s", visible(short(r.Entries[0].ID)), visible(clip(r.Entries[0].Name, 80)))
	return nil
}

// inEditor lets the user edit the memory as a text. What was typed is not lost when it cannot be sent.
func (m *memory) inEditor(ctx context.Context, id string) (err error) {
	f, is := m.stdin.(*os.File)
	if !is || !isTerminal(f) || !isTerminal(m.stdout) || m.json {
		return usage("say what to change: --name, --description, --corpus or --tags; on a terminal an editor opens")
	}
	old, err := m.show(ctx, id)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "conclave-memory-") // 0700
	if err != nil {
		return fail(exitFailed, err.Error(), "set TMPDIR to a folder that you can write to")
	}
	file := filepath.Join(dir, "memory.txt")
	keep := false
	defer func() {
		if keep {
			m.say("your text is kept in %s", file)
			return
		}
		os.RemoveAll(dir)
	}()
	if err := os.WriteFile(file, []byte(editable(old)), 0o600); err != nil {
		return err
	}
	if err := runEditor(file); err != nil {
		return fail(exitFailed, "the editor ended with an error: "+err.Error(), "nothing was changed; $EDITOR names the editor")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return fail(exitFailed, "the edited text cannot be read: "+err.Error(), "nothing was changed")
	}
	e, err := edited(old, string(text))
	if err == nil {
		err = checkEdit(e)
	}
	if err != nil {
		keep = true
		return err
	}
	if e == (subjects.MemoryEdit{}) {
		m.say("nothing was changed")
		return nil
	}
	if err := m.edit(ctx, old.ID, e); err != nil {
		keep = true
		return err
	}
	return nil
}

// runEditor runs the user's editor on a file. It needs the terminal, so it gets ours.
func runEditor(file string) error {
	command := strings.Fields(or(os.Getenv("VISUAL"), or(os.Getenv("EDITOR"), "vi")))
	if len(command) == 0 {
		return errors.New("it has no name")
	}
	cmd := exec.Command(command[0], append(command[1:], file)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

// ruler stands between what is one line and the text.
const ruler = "--- the text begins below this line ---"

// editable is a memory as a text for an editor.
func editable(e subjects.MemoryEntry) string {
	line := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	return fmt.Sprintf("name: %s\ntags: %s\ndescription: %s\n%s\n%s\n", line(e.Name), line(strings.Join(e.Tags, ", ")), line(e.Description), ruler, e.Corpus)
}

// edited is what was changed in such a text. What reads as it was written counts as unchanged.
func edited(old subjects.MemoryEntry, text string) (e subjects.MemoryEdit, err error) {
	if strings.TrimSpace(text) == "" {
		return e, nil // the user gave up
	}
	text = strings.ReplaceAll(text, "\r\n", "\n")
	head, corpus, ok := strings.Cut(text, "\n"+ruler+"\n")
	if !ok {
		return e, usage("the line %q is missing: nothing was changed", ruler)
	}
	before, _, _ := strings.Cut(editable(old), "\n"+ruler+"\n")
	was := strings.Split(before, "\n")
	seen := map[string]bool{}
	for l := range strings.Lines(head) {
		l = strings.TrimSpace(l)
		name, value, ok := strings.Cut(l, ":")
		if value = strings.TrimSpace(value); l == "" {
			continue
		}
		if !ok || seen[name] {
			return e, usage("the line %q is not understood: write name, tags and description, each on one line; nothing was changed", clip(l, 40))
		}
		seen[name] = true
		same := slices.Contains(was, name+": "+value)
		switch {
		case name != "name" && name != "tags" && name != "description":
			return e, usage("the line %q is not understood: write name, tags and description, each on one line; nothing was changed", clip(l, 40))
		case same:
		case name == "name":
			e.Name = &value
		case name == "description":
			e.Description = &value
		default:
			tags := cleanTags(strings.Split(value, ","))
			e.Tags = &tags
		}
	}
	if strings.TrimRight(corpus, "\n") != strings.TrimRight(old.Corpus, "\n") {
		corpus = strings.TrimRight(corpus, "\n")
		e.Corpus = &corpus
	}
	return e, nil
}
