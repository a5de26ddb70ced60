package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Limits of a document.
const (
	maxPieces = 64       // in one message
	maxPiece  = 16 << 10 // bytes
	maxParts  = 100_000
)

// importDocument stores pieces of a document for the account by. Known pieces stay as they are, a changed piece
// replaces the former one, and the last message removes the pieces that the document no longer has. A document whose
// hash and trust are known is unchanged. The pieces are untrusted unless d.Trust says trusted. It rejects what
// checkDocument rejects.
func (m *Memory) importDocument(ctx context.Context, out actor.Out, db *access, by string, d subjects.MemoryDocument) (
	written subjects.MemoryWriteReply, err error,
) {
	written.Results = []subjects.MemoryWriteResult{}
	if err := checkDocument(d); err != nil {
		return written, err
	}
	m.importMu.Lock()
	defer m.importMu.Unlock()
	trust := subjects.Untrusted
	if d.Trust == subjects.Trusted {
		trust = subjects.Trusted
	}
	known, found, err := db.FindDocument(ctx, d.From)
	if err != nil {
		return written, fmt.Errorf("looking for %s: %w", d.From, err)
	}
	if found && known.Hash == d.Hash+" "+trust {
		written.Unchanged = true
		return written, nil
	}
	if found && d.First == 1 { // an import that stops half-way must not pass for complete
		known.Hash = "importing"
		if err := db.PutDocument(ctx, known); err != nil {
			return written, fmt.Errorf("marking %s as incomplete: %w", d.From, err)
		}
	}
	old, err := db.Pieces(ctx, d.From)
	if err != nil {
		return written, fmt.Errorf("reading the pieces of %s: %w", d.From, err)
	}
	now := out.Now().UTC()
	fresh, stale := m.diffPieces(out, by, trust, d, old, &written)
	for i := range fresh {
		fresh[i].Created, fresh[i].Updated = now, now
	}
	last := d.First + len(d.Pieces) - 1
	if d.Last {
		for _, o := range old {
			if o.Part > last {
				stale = append(stale, o.ID)
				written.Removed++
			}
		}
	}
	if err := m.replacePieces(ctx, out, db, by, d.From, fresh, stale); err != nil || !d.Last {
		return written, err
	}
	return written, db.PutDocument(ctx, store.Document{
		From: d.From, Title: text.OneLine(d.Title, maxName), Hash: d.Hash + " " + trust, Modified: d.Modified,
		Pieces: last, Imported: now,
	})
}

// diffPieces returns the pieces of d that are new or changed, digested and without credentials, and the ids of those
// that they replace. The caller sets their times. old are the stored pieces of the document; a part may have two when a
// crash came between storing one and deleting the other. The result of each piece is added to written.
func (m *Memory) diffPieces(out actor.Out, by, trust string, d subjects.MemoryDocument, old []store.Piece,
	written *subjects.MemoryWriteReply,
) (fresh []subjects.MemoryEntry, stale []string) {
	for i, p := range d.Pieces {
		part := d.First + i
		id := deriveID("piece", d.From, strconv.Itoa(part), hashParts(trust, d.Title, p.Heading, p.Text))
		res := subjects.MemoryWriteResult{ID: id, Action: "stored"}
		for _, o := range old {
			if o.Part == part && o.ID != id {
				stale, res.Action, res.Other = append(stale, o.ID), "updated", o.ID
			}
		}
		if slices.ContainsFunc(old, func(o store.Piece) bool { return o.ID == id }) {
			written.Results = append(written.Results, subjects.MemoryWriteResult{ID: id, Action: "unchanged"})
			continue
		}
		written.Results = append(written.Results, res)
		e := subjects.MemoryEntry{
			ID: id, Kind: subjects.KindDocument, State: subjects.MemoryActive, Corpus: p.Text,
			Conversation: documentConversation(d.From), Position: part,
			Provenance: subjects.Provenance{
				Source: subjects.SourceDocument, Trust: trust, Agent: by, From: d.From,
				Part: part,
			},
		}
		digested := plainDigester().Piece(d.Title, p.Heading, p.Text)
		if trust != subjects.Trusted {
			e.Provenance.Flags = digested.Flags
		}
		fresh = append(fresh, redactEntry(fillFromDigest(e, digested)))
	}
	return fresh, stale
}

// documentConversation returns the conversation of the pieces of a document: its origin, or an id derived from it where
// that is no valid one.
func documentConversation(from string) string {
	if (subjects.MemoryEntry{Conversation: from}).CheckContext() != nil {
		return deriveID("document", from)
	}
	return from
}

// replacePieces stores and indexes the pieces fresh and then deletes the ids stale: in between both can be recalled,
// never neither. Without an embedding model the pieces are stored without vectors. When ctx ends during embedding,
// nothing is changed.
func (m *Memory) replacePieces(ctx context.Context, out actor.Out, db *access, by, from string,
	fresh []subjects.MemoryEntry, stale []string,
) error {
	if len(fresh) > 0 {
		vectors, failed, err := m.embedEntries(ctx, out, fresh...)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			out.LogError(fmt.Errorf("embedding failed, so the pieces are found by words only for now: %w", err))
		}
		if err != nil || len(failed) > 0 {
			m.wakeBackfill()
		}
		items, ids := make([]store.Item, len(fresh)), make([]string, len(fresh))
		for i, e := range fresh {
			items[i], ids[i] = store.Item{Entry: e}, e.ID
			if vectors != nil {
				items[i].Vectors = vectors[i]
			}
		}
		ctx, cancel := detach(ctx)
		defer cancel()
		if err := storePieces(ctx, db, items); err != nil {
			return fmt.Errorf("storing pieces of %s: %w", from, err)
		}
		if err := m.refreshIndex(ctx, ids...); err != nil {
			return err
		}
		if err := m.emitStored(ctx, out, subjects.MemoryEvent{Action: "imported", IDs: ids, Why: "pieces of " +
			text.OneLine(from, 200), By: by}); err != nil {
			return err
		}
	}
	if len(stale) > 0 {
		return m.deleteEntries(ctx, db, stale...)
	}
	return nil
}

// storePieces stores pieces together, or one by one when one of them exists already; those that exist are left
// unchanged and are no error.
func storePieces(ctx context.Context, db *access, items []store.Item) error {
	_, err := db.Put(ctx, items...)
	if !errors.Is(err, store.ErrExists) {
		return err
	}
	for _, it := range items {
		if _, err := db.Put(ctx, it); err != nil && !errors.Is(err, store.ErrExists) {
			return err
		}
	}
	return nil
}

// checkDocument rejects a document without origin or hash, with part numbers outside 1 to maxParts, more than maxPieces
// pieces in a message (or none, unless it is the last), texts that are too long or not UTF-8, and an unknown trust. An
// empty trust passes and means untrusted.
func checkDocument(d subjects.MemoryDocument) error {
	switch {
	case strings.TrimSpace(d.From) == "" || d.Hash == "":
		return subjects.Faultf(subjects.CodeMalformed, "a document needs its origin and the hash of its text")
	case d.First < 1 || d.First > maxParts || d.First+len(d.Pieces) > maxParts:
		return subjects.Faultf(subjects.CodeMalformed, "pieces are counted from 1, up to %d", maxParts)
	case len(d.Pieces) == 0 && !d.Last || len(d.Pieces) > maxPieces:
		return subjects.Faultf(subjects.CodeMalformed, "between 1 and %d pieces in one message", maxPieces)
	case d.Trust != "" && d.Trust != subjects.Trusted && d.Trust != subjects.Untrusted:
		return subjects.Faultf(subjects.CodeMalformed, "trust is trusted or untrusted")
	}
	for _, t := range []string{d.From, d.Title, d.Hash} {
		if err := checkText("the name of a document", t, 4096); err != nil {
			return err
		}
	}
	for _, p := range d.Pieces {
		if err := errors.Join(checkText("a heading", p.Heading, 4096),
			checkText("a piece", p.Text, maxPiece)); err != nil {
			return err
		}
	}
	return nil
}
