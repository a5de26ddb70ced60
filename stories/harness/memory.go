package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"conclave/pkg/document"
	"conclave/pkg/story"
	"conclave/subjects"
)

// ChangeMemory implements [story.System]. It does the first operation that m has and fails when it has none, or when
// the operation changes nothing. A rejection by memory is a [subjects.Fault].
func (h *Harness) ChangeMemory(ctx context.Context, m story.Memory) error {
	switch {
	case m.Add != nil:
		e := subjects.MemoryEntry{
			Corpus: m.Add.Text, Name: m.Add.Name, Tags: m.Add.Tags, Pinned: m.Add.Pinned,
			Speaker: m.Add.Speaker, Happened: m.Add.Happened,
		}
		return h.writeMemory(ctx, subjects.MemoryWriteRequest{Entries: []subjects.MemoryEntry{e}})
	case m.Import != nil:
		return h.importDocument(ctx, *m.Import)
	case m.Forget != "":
		return h.adminMemory(ctx, m.Forget, subjects.MemoryAdminRequest{Op: "forget", Query: m.Forget})
	case m.Pin != "":
		return h.markMemories(ctx, "pin", m.Pin, "")
	case m.Unpin != "":
		return h.markMemories(ctx, "unpin", m.Unpin, "")
	case m.Accept != "":
		return h.markMemories(ctx, "accept", m.Accept, subjects.MemoryCandidate)
	case m.Reject != "":
		return h.markMemories(ctx, "reject", m.Reject, subjects.MemoryCandidate)
	}
	return errors.New("changing memory: no operation given")
}

// writeMemory stores entries or a document. A refused entry is a [subjects.Fault]; no result at all is another error.
func (h *Harness) writeMemory(ctx context.Context, w subjects.MemoryWriteRequest) error {
	done, err := h.user.WriteMemory(ctx, w)
	if err != nil {
		return err
	}
	for _, r := range done.Results {
		if r.Action == "refused" {
			return subjects.Faultf(subjects.CodeMalformed, "%s", r.Why)
		}
	}
	if len(done.Results) == 0 {
		return errors.New("writing memory: nothing was stored")
	}
	return nil
}

// maxPieces is the largest number of pieces that fits into one message.
const maxPieces = 64

// importDocument imports a file of the story. It is written to disk first, because the extension of its name decides
// how it is read. It rejects a file with more than maxPieces pieces. f.From must be a plain file name.
func (h *Harness) importDocument(ctx context.Context, f story.Import) error {
	dir := filepath.Join(h.dir, "files")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file := filepath.Join(dir, f.From)
	if err := os.WriteFile(file, []byte(f.Text), 0o600); err != nil {
		return err
	}
	d, err := document.Read(ctx, file, document.Options{})
	if err != nil {
		return fmt.Errorf("reading %s: %w", f.From, err)
	}
	all := document.Pieces(d)
	if len(all) > maxPieces {
		return fmt.Errorf("%s has %d pieces; a file of a story may have %d", f.From, len(all), maxPieces)
	}
	pieces := make([]subjects.DocumentPiece, len(all))
	for i, p := range all {
		pieces[i] = subjects.DocumentPiece{Heading: p.Heading, Text: p.Text}
	}
	return h.writeMemory(ctx, subjects.MemoryWriteRequest{Document: &subjects.MemoryDocument{
		From: f.From, Title: d.Title, Hash: d.Hash, Modified: d.Modified, Trust: f.Trust, First: 1, Pieces: pieces,
		Last: true,
	}})
}

// adminMemory sends an administrative request about some words. It fails when nothing changed.
func (h *Harness) adminMemory(ctx context.Context, words string, a subjects.MemoryAdminRequest) error {
	done, err := h.user.AdminMemory(ctx, a)
	if err == nil && done.Changed == 0 {
		err = fmt.Errorf("memory %s: no entry about %q was changed", a.Op, words)
	}
	return err
}

// markMemories applies op to all entries in state ("" is any) that contain some words; [story.All] with a state stands
// for any words. It fails when there are none.
func (h *Harness) markMemories(ctx context.Context, op, words, state string) error {
	find := subjects.MemoryAdminRequest{Text: words, State: state}
	if words == story.All && state != "" {
		find.Text = ""
	}
	entries, _, err := h.user.ListMemories(ctx, find, 0)
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		return fmt.Errorf("memory %s: no entry contains %q", op, words)
	}
	marked := subjects.MemoryAdminRequest{Op: op}
	for _, e := range entries {
		marked.IDs = append(marked.IDs, e.ID)
	}
	return h.adminMemory(ctx, words, marked)
}
