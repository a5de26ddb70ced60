package config

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"conclave/pkg/actor"
	"conclave/pkg/document"
	"conclave/pkg/story"
	"conclave/subjects"
)

// What the user does beside asking: their own hand on memory, and what they think of an answer.

// ChangeMemory implements [story.System], under the user's key.
func (st *Harness) ChangeMemory(ctx context.Context, m story.Memory) error {
	switch {
	case m.Add != nil:
		e := subjects.MemoryEntry{Corpus: m.Add.Text, Name: m.Add.Name, Tags: m.Add.Tags, Pinned: m.Add.Pinned}
		return st.write(ctx, subjects.MemoryWrites{Entries: []subjects.MemoryEntry{e}})
	case m.Import != nil:
		return st.importFile(ctx, *m.Import)
	case m.Edit != nil:
		return st.edit(ctx, *m.Edit)
	case m.Forget != "":
		return st.admin(ctx, m.Forget, subjects.MemoryAdmin{Op: "forget", Query: m.Forget})
	case m.Pin != "":
		return st.each(ctx, "pin", m.Pin, "")
	case m.Unpin != "":
		return st.each(ctx, "unpin", m.Unpin, "")
	case m.Accept != "":
		return st.each(ctx, "accept", m.Accept, subjects.MemoryCandidate)
	case m.Reject != "":
		return st.each(ctx, "reject", m.Reject, subjects.MemoryCandidate)
	}
	return errors.New("nothing to do with memory")
}

// write hands something in. What memory does not take is its refusal.
func (st *Harness) write(ctx context.Context, w subjects.MemoryWrites) error {
	done, err := actor.Ask(ctx, st.out, subjects.MemoryWriting, w)
	if err != nil {
		return err
	}
	for _, r := range done.Results {
		if r.Action == "refused" {
			return subjects.Faultf(subjects.CodeMalformed, "%s", r.Why)
		}
	}
	if len(done.Results) == 0 {
		return errors.New("memory took nothing")
	}
	return nil
}

// mostPieces is what fits into one message; a story's file has fewer.
const mostPieces = 64

// importFile reads a file of the story as it would be read from a disk, since its name says what it is.
func (st *Harness) importFile(ctx context.Context, f story.Import) error {
	dir := filepath.Join(st.dir, "files")
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
	if len(all) > mostPieces {
		return fmt.Errorf("%s has %d pieces, and a story's file at most %d", f.From, len(all), mostPieces)
	}
	pieces := make([]subjects.DocumentPiece, len(all))
	for i, p := range all {
		pieces[i] = subjects.DocumentPiece{Heading: p.Heading, Text: p.Text}
	}
	return st.write(ctx, subjects.MemoryWrites{Document: &subjects.MemoryDocument{
		From: f.From, Title: d.Title, Hash: d.Hash, Modified: d.Modified, Trust: f.Trust, First: 1, Pieces: pieces, Last: true,
	}})
}

// admin does something that must change something: words are what it is about.
func (st *Harness) admin(ctx context.Context, words string, a subjects.MemoryAdmin) error {
	done, err := actor.Ask(ctx, st.out, subjects.MemoryAdminOf, a)
	if err == nil && done.Changed == 0 {
		err = fmt.Errorf("%s changed nothing: memory has nothing about %q that could be changed", a.Op, words)
	}
	return err
}

// having are the ids of the entries that hold some words, in this state or in any.
func (st *Harness) having(ctx context.Context, words, state string) (ids []string, err error) {
	if words == story.All && state != "" {
		words = ""
	}
	q := subjects.MemoryAdmin{Op: "list", Text: words, State: state}
	for {
		page, err := actor.Ask(ctx, st.out, subjects.MemoryAdminOf, q)
		if err != nil {
			return nil, err
		}
		for _, e := range page.Entries {
			ids = append(ids, e.ID)
		}
		if q.After = page.Next; q.After == "" {
			return ids, nil
		}
	}
}

// each does op to the entries that hold some words.
func (st *Harness) each(ctx context.Context, op, words, state string) error {
	ids, err := st.having(ctx, words, state)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return fmt.Errorf("nothing to %s: memory has nothing with %q in it", op, words)
	}
	return st.admin(ctx, words, subjects.MemoryAdmin{Op: op, IDs: ids})
}

func (st *Harness) edit(ctx context.Context, e story.Edit) error {
	ids, err := st.having(ctx, e.Of, "")
	if err != nil {
		return err
	}
	if len(ids) != 1 {
		return fmt.Errorf("%d entries have %q in them, and one can be changed", len(ids), e.Of)
	}
	return st.admin(ctx, e.Of, subjects.MemoryAdmin{Op: "edit", IDs: ids, Edit: &subjects.MemoryEdit{Name: e.Name, Corpus: e.Text}})
}

// SendFeedback implements [story.System], under the user's key.
func (st *Harness) SendFeedback(ctx context.Context, session string, f subjects.Feedback) error {
	return actor.Emit(ctx, st.out.About(session, f.QueryID), subjects.UserFeedback, f)
}
