package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"conclave/subjects"
)

func (a *app) memoryExportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "export [file]",
		Short: "Write all memories as JSON lines",
		Long: `Writes every memory with all that is known of it, one JSON object on a line, newest first: to stdout, or to a file that is
not there yet and that only you can read. conclave memory import reads it back. Vectors are not in it; they are made anew. Nor is the
knowledge graph: copy the file of the memory, with conclave stopped, to keep that too.

With a file, stderr says how many there are; with --json that is a document on stdout.`,
		Example: `  conclave memory export memory.jsonl
  conclave memory export | jq -r 'select(.kind == "fact") | .corpus'`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			m, done, err := a.memory()
			if err != nil {
				return err
			}
			defer done()
			if len(v) == 0 || v[0] == "-" {
				n, err := m.export(cmd.Context(), a.stdout)
				if err != nil && n > 0 { // a cut export must not look like a whole one
					return fail(exitFailed, oneLine(err.Error()), "what was written is not whole")
				}
				return err
			}
			n, err := m.exportTo(cmd.Context(), v[0])
			switch {
			case err != nil:
				return err
			case a.json:
				return a.document(struct {
					File    string `json:"file"`
					Entries int    `json:"entries"`
				}{v[0], n})
			}
			a.say("exported %s to %s", memories(n), v[0])
			return nil
		},
	}
}

// export writes every entry as a line.
func (m *memory) export(ctx context.Context, w io.Writer) (n int, err error) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_, err = m.pages(ctx, subjects.MemoryAdminRequest{Op: "list", Whole: true}, 0, func(e subjects.MemoryEntry) error {
		n++
		return enc.Encode(e)
	})
	return n, err
}

// exportTo leaves a whole file or none.
func (m *memory) exportTo(ctx context.Context, file string) (int, error) {
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		return 0, fail(exitFailed, file+" is there already", "choose another name")
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".export-*") // 0600
	if err != nil {
		return 0, fail(exitFailed, err.Error(), "choose a folder that you can write to")
	}
	defer os.Remove(tmp.Name())
	n, err := m.export(ctx, tmp)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return n, err
	}
	return n, os.Link(tmp.Name(), file) // unlike a rename, a link never replaces
}
