package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"conclave/pkg/document"
	"conclave/subjects"
)

// What became of a file.
const (
	fileImported  = "imported"
	fileUpdated   = "updated"
	fileUnchanged = "unchanged"
	fileRestored  = "restored"
	fileSkipped   = "skipped"
	fileFailed    = "failed"
)

// imported is a file and what became of it.
type imported struct {
	File    string         `json:"file"`
	State   string         `json:"state"`
	Pieces  int            `json:"pieces,omitempty"`
	Actions map[string]int `json:"actions,omitempty"` // what became of its pieces, or of the entries of an export
	Removed int            `json:"removed,omitempty"` // pieces of an older form
	Notes   []string       `json:"notes,omitempty"`
	Why     string         `json:"why,omitempty"`
}

// importing is an import.
type importing struct {
	*memory
	trusted bool
	jobs    int
	bar     *importBar
}

func (a *app) memoryImportCommand() *cobra.Command {
	p := &importing{}
	cmd := &cobra.Command{
		Use:   "import <files or folders...>",
		Short: "Remember documents, or read an export back",
		Long: `Remembers documents piece by piece: Markdown, plain text, source code, tables, HTML and PDF (with pdftotext, from
poppler-utils). Folders are walked; hidden files and node_modules are left out, and links that lead out of the folder are
not followed. Importing a file again updates what changed and removes what is gone.

What a document says is marked UNTRUSTED, because others may have written in it. --trusted says that you vouch for every
word.

A .jsonl file that conclave memory export wrote is read back as it is, with ids, times and grades. Name such files
themselves, and nothing else beside them. Whoever wrote such a file could have written anything: every entry in it is
UNTRUSTED, unless you say with --trusted that it is your own; then each has the trust that it had.

A file that fails does not stop the rest; then the exit code is 1. Piped, stdout has a line for each file; with --json it is
one document with files.`,
		Example: `  conclave memory import ~/notes manual.pdf
  conclave memory import --trusted diary.md
  conclave memory import --trusted memory.jsonl
  conclave memory import ~/notes --json | jq '.files[] | select(.state == "failed")'`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, v []string) error {
			if p.jobs < 1 || p.jobs > 64 {
				return usage("--jobs %d: give a number from 1 to 64", p.jobs)
			}
			m, done, err := a.memory()
			if err != nil {
				return err
			}
			defer done()
			p.memory = m
			return p.run(cmd.Context(), v)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&p.trusted, "trusted", false, "you vouch for every word in these documents, or the export is your own")
	f.IntVar(&p.jobs, "jobs", min(4, runtime.NumCPU()), "how many files at once")
	return cmd
}

// report is everything that became of an import, as a document.
type report struct {
	Files  []imported     `json:"files"`
	States map[string]int `json:"states"`
}

func (p *importing) run(ctx context.Context, paths []string) error {
	files, skipped := document.Walk(paths...)
	r := report{Files: []imported{}, States: map[string]int{}}
	p.bar = &importBar{app: p.app, all: len(files)}
	for _, s := range skipped {
		state := fileSkipped
		if s.Err != nil {
			state = fileFailed
		}
		p.tell(&r, imported{File: s.Path, State: state, Why: s.Why})
	}
	// Asked once before a thousand files are read for nobody.
	if len(files) > 0 {
		if _, err := p.admin(ctx, subjects.MemoryAdminRequest{Op: "status"}); err != nil {
			return err
		}
	}
	restore := p.exports(files)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	for f := range p.each(ctx, files, restore, stop) {
		p.tell(&r, f)
	}
	p.bar.clear()
	if p.json {
		if err := p.document(r); err != nil {
			return err
		}
	} else {
		p.say("%s: %s", count(len(r.Files), "file"), or(strings.TrimPrefix(counted(r.States), ": "), "nothing"))
	}
	if err := context.Cause(ctx); err != nil {
		if errors.Is(err, context.Canceled) {
			err = fail(exitFailed, "stopped", "what was imported stays; import again to go on")
		}
		return err
	}
	if n := r.States[fileFailed]; n > 0 {
		return fail(exitFailed, fmt.Sprintf("%d of %s could not be imported", n, count(len(r.Files), "file")), "mend what is said of each, and import again: what is there is not sent twice")
	}
	return p.stdout.err
}

// each works through the files, several at once, and gives what became of them in their order. An answer that is no longer
// waited for ends the work.
func (p *importing) each(ctx context.Context, files []document.File, restore map[string]bool, stop context.CancelCauseFunc) func(func(imported) bool) {
	return func(yield func(imported) bool) {
		results := make([]chan imported, len(files))
		for i := range results {
			results[i] = make(chan imported, 1)
		}
		next := make(chan int)
		var wg sync.WaitGroup
		defer wg.Wait()
		for range min(p.jobs, len(files)) {
			wg.Go(func() {
				for i := range next {
					r, err := p.one(ctx, files[i], restore[files[i].Path])
					if errors.Is(err, errNoMemory) {
						stop(err)
					}
					results[i] <- r
				}
			})
		}
		wg.Go(func() {
			defer close(next)
			for i := range files {
				select {
				case next <- i:
				case <-ctx.Done():
					return
				}
			}
		})
		for _, c := range results {
			select {
			case r := <-c:
				if !yield(r) {
					stop(context.Canceled)
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// one imports one file.
func (p *importing) one(ctx context.Context, f document.File, restore bool) (imported, error) {
	r := imported{File: f.Path, Actions: map[string]int{}}
	var err error
	switch {
	case restore:
		err = p.restore(ctx, f.Path, &r)
	default:
		err = p.sendFile(ctx, f, &r)
	}
	switch {
	case err != nil:
		r.State, r.Why = fileFailed, oneLine(err.Error())
	case r.Actions["refused"] > 0:
		r.State = fileFailed
		r.Why = or(r.Why, "some of it was refused")
	}
	return r, err
}

// sendFile reads a document and hands it to memory.
func (p *importing) sendFile(ctx context.Context, f document.File, r *imported) error {
	if p.isExport(f) {
		return errors.New("it is an export of memory, which is taken at its word: import it by itself, and nothing else beside it")
	}
	d, err := document.Read(ctx, f.Path, document.Options{})
	if err != nil {
		// What is no document is no failure in a folder: pictures lie among texts.
		if !f.Given && (errors.Is(err, document.ErrNotText) || errors.Is(err, document.ErrEmpty)) {
			r.State, r.Why = fileSkipped, err.Error()
			return nil
		}
		return err
	}
	r.Notes = d.Notes
	pieces := document.Pieces(d)
	r.Pieces = len(pieces)
	doc := subjects.MemoryDocument{From: f.Path, Title: d.Title, Hash: d.Hash, Modified: d.Modified, Trust: subjects.Untrusted, First: 1}
	if p.trusted {
		doc.Trust = subjects.Trusted
	}
	for batch, rest := cutPieces(pieces); len(batch) > 0; batch, rest = cutPieces(rest) {
		doc.Pieces, doc.Last = batch, len(rest) == 0
		w, err := p.write(ctx, subjects.MemoryWriteRequest{Document: &doc})
		if err != nil {
			return err
		}
		r.took(w)
		if w.Unchanged {
			break
		}
		doc.First += len(batch)
	}
	r.State = r.became()
	return nil
}

// Bounds of one message, well below what a message may have: memory makes vectors for all of it before it answers.
const (
	batchPieces  = 64
	batchEntries = 64
	batchBytes   = 256 << 10
)

// cutPieces takes as many pieces as go into one message.
func cutPieces(pieces []document.Piece) (batch []subjects.DocumentPiece, rest []document.Piece) {
	n := 0
	for i, p := range pieces {
		if n += len(p.Heading) + len(p.Text); i > 0 && (i == batchPieces || n > batchBytes) {
			return batch, pieces[i:]
		}
		batch = append(batch, subjects.DocumentPiece{Heading: p.Heading, Text: p.Text})
	}
	return batch, nil
}

// took counts what became of what was sent.
func (r *imported) took(w subjects.MemoryWriteReply) {
	for _, one := range w.Results {
		r.Actions[plain(one.Action)]++
		if one.Action == "refused" && r.Why == "" {
			r.Why = "refused: " + plain(or(one.Why, "memory does not say why"))
		}
	}
	if w.Unchanged {
		r.Actions[fileUnchanged] += r.Pieces
	}
	r.Removed += w.Removed
	for _, n := range w.Notes {
		r.Notes = append(r.Notes, plain(n.Text))
	}
}

// became is the state of a document whose pieces were all taken.
func (r *imported) became() string {
	switch {
	case r.Actions[fileUnchanged] == r.Pieces && r.Removed == 0:
		return fileUnchanged
	case r.Actions[fileUnchanged]+r.Actions[fileUpdated]+r.Removed > 0:
		return fileUpdated
	}
	return fileImported
}

// tell says what became of a file: a line of data when stdout is piped, and failures to the user in any case.
func (p *importing) tell(r *report, f imported) {
	r.Files = append(r.Files, f)
	r.States[f.State]++
	p.bar.clear()
	switch bad := f.State == fileFailed; {
	case p.json:
	case bad:
		p.say("%s: %s", shownPath(f.File), plain(f.Why))
	case !isTerminal(p.stdout):
		fmt.Fprintf(p.stdout, "%-9s %s%s\n", f.State, shownPath(f.File), f.details())
	}
	if !p.json {
		for _, n := range f.Notes {
			p.say("%s: %s", shownPath(f.File), plain(n))
		}
	}
	p.bar.show(len(r.Files), f.File)
}

// details is what became of the parts of a file.
func (f imported) details() string {
	var parts []string
	for _, a := range slices.Sorted(maps.Keys(f.Actions)) {
		parts = append(parts, fmt.Sprintf("%d %s", f.Actions[a], a))
	}
	if f.Removed > 0 {
		parts = append(parts, fmt.Sprintf("%d removed", f.Removed))
	}
	if f.Why != "" {
		parts = append(parts, plain(f.Why))
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}

// shownPath is a path as a person writes it: from here, when it is below.
func shownPath(path string) string {
	if here, err := filepath.Abs("."); err == nil {
		if rel, err := filepath.Rel(here, path); err == nil && filepath.IsLocal(rel) {
			path = rel
		}
	}
	return visible(path)
}

// importBar shows on a terminal how far an import is.
type importBar struct {
	*app
	all   int
	drawn bool
}

func (b *importBar) show(done int, file string) {
	if !isTerminal(b.stderr) || done >= b.all || b.all == 0 {
		return
	}
	const width = 20
	full := width * done / b.all
	columns, _, _ := terminal(b.stderr)
	text := fmt.Sprintf("%d of %s  [%s%s]  %s", done, count(b.all, "file"), strings.Repeat("#", full), strings.Repeat("-", width-full), shownPath(file))
	fmt.Fprint(b.stderr, "\r\x1b[K"+fit(text, columns-1, 0)[0])
	b.drawn = true
}

func (b *importBar) clear() {
	if b.drawn {
		fmt.Fprint(b.stderr, "\r\x1b[K")
		b.drawn = false
	}
}
