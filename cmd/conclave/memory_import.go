package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/pkg/client"
	"conclave/pkg/document"
	"conclave/pkg/file"
	"conclave/subjects"
)

// States of an imported file.
const (
	fileImported  = "imported" // new to memory
	fileUpdated   = "updated"  // an earlier version was known
	fileUnchanged = "unchanged"
	fileRestored  = "restored" // an export
	fileSkipped   = "skipped"  // not imported, which is no failure
	fileRemoved   = "removed"  // no longer in the folder
	fileFailed    = "failed"
)

// importedFile is the result of importing one file.
type importedFile struct {
	File    string         `json:"file"`
	State   string         `json:"state"`
	Pieces  int            `json:"pieces,omitempty"`
	Actions map[string]int `json:"actions,omitempty"` // of its pieces, or of the entries of an export
	Removed int            `json:"removed,omitempty"` // pieces of an older version
	Notes   []string       `json:"notes,omitempty"`
	Why     string         `json:"why,omitempty"`
}

// importReport is the result of an import.
type importReport struct {
	Files  []importedFile `json:"files"`
	States map[string]int `json:"states"` // number of files by state
}

// importer imports files.
type importer struct {
	*cli.App
	c       *client.Client
	trusted bool  // the user vouches for documents, and for the trust marks of an export
	jobs    int   // files at once
	chat    *bool // whether files are chat exports; nil = by their content
	total   int   // files to import, without skipped ones
	began   time.Time
	report  importReport

	drawing sync.Mutex // guards line and turns: a chat draws its progress while others are imported
	line    *term.Progress
	turns   int // of all chats, sent so far
}

// memoryImportCommand imports documents and chat exports as untrusted content, or reads an export of memory back. It
// rejects --jobs outside 1 to 64.
func memoryImportCommand(a *cli.App) *cobra.Command {
	var chat bool
	p := &importer{App: a, report: importReport{[]importedFile{}, map[string]int{}}}
	cmd := &cobra.Command{
		Use:   "import <files or folders...>",
		Short: "Remember documents and chats, or read an export back",
		Long: `Remembers documents in pieces: Markdown, plain text, source code, tables, HTML and PDF (with
pdftotext, from poppler-utils). Folders are walked; hidden files and node_modules are skipped, and
links out of the folder are not followed. Importing a file again updates what changed in it.
Importing a folder again also removes the documents whose files are gone from it; not when the
folder has no files at all, because it may be an unmounted disk.

Documents are UNTRUSTED, because others may have written in them. --trusted says that you trust
every word.

A .jsonl file of conclave memory export is read back with ids, times and grades. It cannot be mixed
with documents in one command. Because anybody could have written such a file, every entry in it
becomes UNTRUSTED; with --trusted each entry keeps the trust that the file states.

A chat export is remembered turn by turn, each with its speaker, time and place in the conversation:
plain text with lines such as "[2023-05-08 13:56] Ana: text" (WhatsApp, Signal), or JSON with
messages (speaker, text, time; Telegram, ChatGPT). A .txt or .json file that you name is recognized
by its content; --chat says that every file is one, --chat=false that none is. Turns are UNTRUSTED
like documents. Times without a zone are taken as UTC. Importing a longer export at the same path
adds what is new.

When a file fails, the others are still imported, and the exit code is 1. In a pipe, stdout has a
line for each file; with --json it has one document with files.`,
		Example: `  conclave memory import ~/notes manual.pdf
  conclave memory import --trusted diary.md
  conclave memory import --trusted memory.jsonl
  conclave memory import chat.txt
  conclave memory import ~/notes --json | jq '.files[] | select(.state == "failed")'`,
		Args: cli.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, paths []string) error {
			if p.jobs < 1 || p.jobs > 64 {
				return cli.Usage("--jobs %d: give a number from 1 to 64", p.jobs)
			}
			if cmd.Flags().Changed("chat") {
				p.chat = &chat
			}
			return a.WithClient(func(c *client.Client) error {
				p.c, p.line, p.began = c, term.NewProgress(a.Err), time.Now()
				return p.run(cmd.Context(), paths)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&p.trusted, "trusted", false, "trust every word of the documents, or the trust marks of your own export")
	f.BoolVar(&chat, "chat", false, "the files are chat exports; by default their content decides")
	f.IntVar(&p.jobs, "jobs", min(4, runtime.NumCPU()), "how many files at once")
	return cmd
}

// run imports the files below the paths and prints the report. A failed file does not stop the others; the error at the
// end counts them. Without a memory actor nothing is read. A memory that goes away, or an interrupt, stops the import
// with an error, and the files imported so far stay.
func (p *importer) run(ctx context.Context, paths []string) error {
	files, skipped := document.Walk(paths...)
	p.total = len(files)
	for _, s := range skipped {
		state := fileSkipped
		if s.Err != nil {
			state = fileFailed
		}
		p.add(importedFile{File: s.Path, State: state, Why: s.Why})
	}
	if len(files) > 0 { // fail before a thousand files are read
		if _, err := p.c.AdminMemory(ctx, subjects.MemoryAdminRequest{Op: "status"}); err != nil {
			return p.MemoryError(err)
		}
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	p.importAll(ctx, files, stop)
	if ctx.Err() == nil {
		if err := p.removeGone(ctx, paths, files); err != nil {
			return p.MemoryError(err)
		}
	}
	p.line.Clear()
	printed := p.Print(p.report, nil, p.Saying("%s: %s%s", term.Count(len(p.report.Files), "file"),
		cmp.Or(view.CountBy(p.report.States), "nothing"), p.summarizeRate()))
	if err := context.Cause(ctx); errors.Is(err, context.Canceled) {
		return cli.Fail(cli.ExitFailed, "stopped", "imported files are kept; import again to continue")
	} else if err != nil {
		return err
	}
	if n := p.report.States[fileFailed]; n > 0 {
		return cli.Fail(cli.ExitFailed, fmt.Sprintf("%d of %s could not be imported", n,
			term.Count(len(p.report.Files), "file")), "correct the errors above, and import again: unchanged files "+
			"are not sent twice")
	}
	return printed
}

// importAll imports files, p.jobs at once, and adds the results in the order of the files. When memory is gone it calls
// stop, which must cancel ctx; the end of ctx ends it, without the results that are missing then. It returns when all
// workers have ended.
func (p *importer) importAll(ctx context.Context, files []document.File, stop context.CancelCauseFunc) {
	exports := areExports(files)
	results := make([]chan importedFile, len(files))
	for i := range results {
		results[i] = make(chan importedFile, 1)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	var next atomic.Int64
	for range min(p.jobs, len(files)) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(files)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				r, err := p.importFile(ctx, files[i], exports)
				if errors.Is(err, cli.ErrNoMemory) {
					stop(err)
				}
				results[i] <- r
			}
		})
	}
	for _, c := range results {
		select {
		case r := <-c:
			p.add(r)
		case <-ctx.Done():
			return
		}
	}
}

// removeGone removes from memory the documents below the folders among paths whose files no longer exist. Of a folder
// without any file nothing is removed.
func (p *importer) removeGone(ctx context.Context, paths []string, files []document.File) error {
	for _, path := range paths {
		folder, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		if info, err := os.Stat(folder); err != nil || !info.IsDir() || !hasFileBelow(files, folder) {
			continue
		}
		origins, err := p.c.DocumentsBelow(ctx, folder)
		if err != nil {
			return err
		}
		for _, origin := range origins {
			if _, err := os.Lstat(origin); !errors.Is(err, os.ErrNotExist) {
				continue
			}
			w, err := p.c.RemoveDocument(ctx, origin)
			if err != nil {
				return err
			}
			p.add(importedFile{File: origin, State: fileRemoved, Removed: w.Removed})
		}
	}
	return nil
}

// hasFileBelow reports whether one of the files is below the folder.
func hasFileBelow(files []document.File, folder string) bool {
	return slices.ContainsFunc(files, func(f document.File) bool {
		rel, err := filepath.Rel(folder, f.Path)
		return err == nil && filepath.IsLocal(rel)
	})
}

// areExports reports whether the files are read back as exports. An export states itself what each entry is, so it must
// be meant: every file was named by the user, and all of them are exports. One that was found in a folder or is beside
// a document is not. It is true for no files.
func areExports(files []document.File) bool {
	return !slices.ContainsFunc(files, func(f document.File) bool { return !isExport(f) })
}

// isExport reports whether the user named the file, it ends in .jsonl, and its first entry is valid. The rest is not
// read.
func isExport(f document.File) bool {
	if !f.Given || !strings.EqualFold(filepath.Ext(f.Path), ".jsonl") {
		return false
	}
	for _, err := range readExportFile(f.Path) {
		return err == nil
	}
	return false
}

// readExportFile yields the entries of an export in a file. An error, also of opening it, is yielded last. It can be
// iterated again.
func readExportFile(path string) iter.Seq2[subjects.MemoryEntry, error] {
	return func(yield func(subjects.MemoryEntry, error) bool) {
		f, err := file.Open(path)
		if err != nil {
			yield(subjects.MemoryEntry{}, err)
			return
		}
		defer f.Close()
		client.ReadExport(f)(yield)
	}
}

// importFile imports a document, or reads an export back. The error is in the result too, as a failed state with its
// reason; a document of which memory refused a part, and a chat of which it refused every turn, is a failed one without
// an error.
func (p *importer) importFile(ctx context.Context, f document.File, asExport bool) (importedFile, error) {
	r := importedFile{File: f.Path, Actions: map[string]int{}}
	turns, chat, err := p.readChat(f)
	switch {
	case err != nil:
	case chat:
		err = p.importChat(ctx, f.Path, turns, &r)
	case asExport:
		err = p.restore(ctx, f.Path, &r)
	default:
		err = p.importDocument(ctx, f, &r)
	}
	switch err = p.MemoryError(err); {
	case err != nil:
		r.State, r.Why = fileFailed, term.OneLine(err.Error())
	case chat && r.Actions["refused"] > 0 && r.Actions["refused"] < r.Pieces:
		// some turns of a chat are orders to somebody
		r.Notes, r.Why = append(r.Notes, fmt.Sprintf("%d of %s not remembered; the first was %s", r.Actions["refused"],
			term.Count(r.Pieces, "turn"), r.Why)), ""
	case r.Actions["refused"] > 0:
		r.State, r.Why = fileFailed, cmp.Or(r.Why, "some of it was rejected")
	}
	return r, err
}

// restore reads an export back and counts its entries in r. All of it is checked first: an export with an error is not
// started. Entries are untrusted unless p.trusted is set.
func (p *importer) restore(ctx context.Context, path string, r *importedFile) error {
	for _, err := range readExportFile(path) {
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
	}
	w, err := p.c.RestoreMemories(ctx, readExportFile(path), p.trusted)
	r.count(w)
	r.State = fileRestored
	return err
}

// importDocument sends one document to memory and notes the result in r. It rejects an export of memory beside
// documents, whose trust marks would be used. A file that is no text or empty is skipped when it was found in a folder,
// and fails when the user named it. The document is untrusted unless p.trusted is set.
func (p *importer) importDocument(ctx context.Context, f document.File, r *importedFile) error {
	if isExport(f) {
		return errors.New("it is an export of memory, whose trust marks would be used: import it alone")
	}
	d, err := document.Read(ctx, f.Path, document.Options{})
	if err != nil {
		// A file in a folder that is no document is no failure.
		if !f.Given && (errors.Is(err, document.ErrNotText) || errors.Is(err, document.ErrEmpty)) {
			r.State, r.Why = fileSkipped, err.Error()
			return nil
		}
		return err
	}
	r.Notes = d.Notes
	doc := subjects.MemoryDocument{
		From: f.Path, Title: d.Title, Hash: d.Hash, Modified: d.Modified,
		Trust: subjects.Untrusted,
	}
	if p.trusted {
		doc.Trust = subjects.Trusted
	}
	for _, piece := range document.Pieces(d) {
		doc.Pieces = append(doc.Pieces, subjects.DocumentPiece{Heading: piece.Heading, Text: piece.Text})
	}
	r.Pieces = len(doc.Pieces)
	w, err := p.c.ImportDocument(ctx, doc)
	r.count(w)
	switch unchanged := r.Actions[fileUnchanged]; {
	case unchanged == r.Pieces && r.Removed == 0:
		r.State = fileUnchanged
	case unchanged+r.Actions[fileUpdated]+r.Removed > 0:
		r.State = fileUpdated
	default:
		r.State = fileImported
	}
	return err
}

// readChat returns the turns of a file that is a chat export, because the user says so or by its content. It fails when
// the user says so and it is none.
func (p *importer) readChat(f document.File) (turns []document.Turn, isChat bool, err error) {
	switch {
	case p.chat == nil && f.Given:
		turns, isChat = document.DetectChat(f.Path)
	case p.chat != nil && *p.chat:
		isChat = true
		turns, err = document.ReadChat(f.Path)
	}
	return turns, isChat, err
}

// importChat sends the turns of a chat export to memory and counts them in r. They are untrusted unless p.trusted is
// set.
func (p *importer) importChat(ctx context.Context, path string, turns []document.Turn, r *importedFile) error {
	facts := make([]subjects.MemoryEntry, len(turns))
	ids, last := map[string]string{}, map[string]int{}
	for i, t := range turns {
		if ids[t.Conversation] == "" {
			ids[t.Conversation] = chatConversation(path, p.trusted, t)
		}
		id := ids[t.Conversation]
		last[id]++
		facts[i] = subjects.MemoryEntry{
			Kind: subjects.KindFact, Corpus: t.Text, Conversation: id, Position: last[id],
			Speaker: t.Speaker, Happened: t.Happened,
		}
	}
	r.Pieces = len(turns)
	sent := 0
	w, err := p.c.AddMemories(ctx, facts, !p.trusted, func(done int) {
		p.drawing.Lock()
		defer p.drawing.Unlock()
		p.turns += done - sent
		sent = done
		p.draw(done, len(facts), p.turns, "turn", path)
	})
	r.count(w)
	r.State = fileImported
	if r.Actions[fileUnchanged] == r.Pieces {
		r.State = fileUnchanged
	}
	return err
}

// chatConversation returns the id of a conversation of an export: the name of the file and a hash of its path, of the
// trust of the import and of the first turn. So a longer export at the same path continues the conversation; files of
// the same name, such as _chat.txt, are others, and trusted turns never stand beside untrusted ones.
func chatConversation(path string, trusted bool, first document.Turn) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %t %q %q %s %q", path, trusted, first.Conversation, first.Speaker,
		first.Happened.UTC().Format(time.RFC3339), first.Text))
	hash := hex.EncodeToString(sum[:12])
	if id := filepath.Base(path) + " " + hash; (subjects.MemoryEntry{Conversation: id}).CheckContext() == nil {
		return id
	}
	return hash
}

// count adds what became of the entries that were sent: actions, removed pieces and notes, and the reason of the first
// refusal. r.Pieces must be set: an unchanged document counts all its pieces.
func (r *importedFile) count(w subjects.MemoryWriteReply) {
	for _, one := range w.Results {
		r.Actions[term.Plain(one.Action)]++
		if one.Action == "refused" && r.Why == "" {
			r.Why = "rejected: " + term.Plain(cmp.Or(one.Why, "memory gave no reason"))
		}
	}
	if w.Unchanged {
		r.Actions[fileUnchanged] += r.Pieces
	}
	r.Removed += w.Removed
	for _, n := range w.Notes {
		r.Notes = append(r.Notes, term.Plain(n.Text))
	}
}

// add adds a result to the report, prints it and draws the progress. Failures and notes go to stderr; other results are
// a line on stdout only where that is no terminal. With --json nothing is printed here.
func (p *importer) add(f importedFile) {
	p.drawing.Lock()
	defer p.drawing.Unlock()
	p.report.Files = append(p.report.Files, f)
	p.report.States[f.State]++
	p.line.Clear()
	if !p.JSON {
		path := shortPath(f.File)
		switch {
		case f.State == fileFailed:
			p.Say("%s: %s", path, term.Plain(f.Why))
		case !term.IsTerminal(p.Out):
			fmt.Fprintf(p.Out, "%-9s %s%s\n", f.State, path, f.details())
		}
		for _, n := range f.Notes {
			p.Say("%s: %s", path, term.Plain(n))
		}
	}
	if done := len(p.report.Files); done < p.total {
		p.draw(done, p.total, done, "file", f.File)
	}
}

// draw draws the progress: how many of all units of a file or of the import are done, how many units per second were,
// of which there were rated since the import began, and how long the rest takes at that rate. The caller holds drawing.
// all must be positive.
func (p *importer) draw(done, all, rated int, unit, path string) {
	pace := ""
	if took := time.Since(p.began); rated > 0 && took > time.Second {
		left := time.Duration(float64(took) / float64(rated) * float64(all-done)).Round(time.Second)
		pace = fmt.Sprintf("%s, %s left  ", formatRate(rated, took), left)
	}
	p.line.Draw("%d of %s  %s  %s%s", done, term.Count(all, unit), term.Bar(int64(done), int64(all)), pace,
		shortPath(path))
}

// formatRate is a number of things per second.
func formatRate(n int, took time.Duration) string {
	rate := float64(n) / took.Seconds()
	if rate < 10 {
		return fmt.Sprintf("%.1f per second", rate)
	}
	return fmt.Sprintf("%.0f per second", rate)
}

// minRated is the least number of memories for which the summary has a rate.
const minRated = 100

// summarizeRate is how many memories were sent and how fast, after a semicolon; "" for few.
func (p *importer) summarizeRate() string {
	n := 0
	for _, f := range p.report.Files {
		for _, m := range f.Actions {
			n += m
		}
	}
	took := max(time.Since(p.began), time.Millisecond)
	if n < minRated {
		return ""
	}
	return fmt.Sprintf("; %s in %s, %s", view.Memories(n), took.Round(100*time.Millisecond), formatRate(n, took))
}

// details is what became of the parts of a file, after a colon; "" when there is nothing to say.
func (f importedFile) details() string {
	var parts []string
	if s := view.CountBy(f.Actions); s != "" {
		parts = append(parts, s)
	}
	if f.Removed > 0 {
		parts = append(parts, fmt.Sprintf("%d removed", f.Removed))
	}
	if f.Why != "" {
		parts = append(parts, term.Plain(f.Why))
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}

// shortPath is a path with hidden characters escaped, relative to the current folder when it is below it.
func shortPath(path string) string {
	if here, err := filepath.Abs("."); err == nil {
		if rel, err := filepath.Rel(here, path); err == nil && filepath.IsLocal(rel) {
			path = rel
		}
	}
	return term.Visible(path)
}
