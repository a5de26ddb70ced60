package memory

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/text"
	"conclave/subjects"
)

// onWrite keeps what the user hands in: facts, an export, or the pieces of a document.
func (m *Memory) onWrite(ctx context.Context, in actor.Msg[subjects.MemoryWriteRequest], out actor.Out) (subjects.MemoryWriteReply, error) {
	if m.unavailable != nil {
		return subjects.MemoryWriteReply{}, m.unavailable
	}
	w := in.Body
	written := subjects.MemoryWriteReply{Results: []subjects.MemoryWriteResult{}}
	if (w.Document == nil) == (len(w.Entries) == 0) {
		return written, subjects.Faultf(subjects.CodeMalformed, "hand in entries or a document, one of them")
	}
	what, params := "entries", ""
	if w.Document != nil {
		what, params = "document", w.Document.From+"\n"+w.Document.Hash+"\n"+strconv.Itoa(w.Document.First)
	}
	for _, e := range w.Entries {
		params += e.ID + "\n" + e.Corpus + "\n"
	}
	a := act{who: in.From, action: actWrite, tool: what, params: []byte(params), session: in.Session, query: in.Query}
	err := m.recorded(ctx, out, a, func() error {
		if w.Document != nil {
			return m.importDocument(ctx, out, in.From, *w.Document, &written)
		}
		for _, e := range w.Entries {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			var res subjects.MemoryWriteResult
			var err error
			if w.Restore {
				res, err = m.restoreEntry(ctx, out, in.From, e, w.Trusted)
			} else {
				res, err = m.storeFact(ctx, out, in.From, e)
			}
			var f *subjects.Fault
			if errors.As(err, &f) { // one that cannot be kept is no reason against the others
				res, err = subjects.MemoryWriteResult{ID: text.Clip(e.ID, subjects.MaxToken), Action: "refused", Why: f.Text}, nil
			}
			if err != nil {
				return err
			}
			written.Results = append(written.Results, res)
		}
		return nil
	})
	return written, err
}

// storeFact keeps what the user says by hand.
func (m *Memory) storeFact(ctx context.Context, out actor.Out, by string, given subjects.MemoryEntry) (subjects.MemoryWriteResult, error) {
	content := strings.TrimSpace(given.Corpus)
	if err := checkText("the text", content, maxCorpus); err != nil {
		return subjects.MemoryWriteResult{}, err
	}
	if content == "" {
		return subjects.MemoryWriteResult{}, subjects.Faultf(subjects.CodeMalformed, "there is nothing to remember in it")
	}
	if _, hidden := firewall.Redact(strings.Join(append([]string{content, given.Name, given.Description}, given.Tags...), "\n")); hidden > 0 {
		return subjects.MemoryWriteResult{}, subjects.Faultf(subjects.CodeMalformed, "it holds something that looks like a password or a key; conclave secret set keeps those")
	}
	d, err := m.newDigester(out).Note(ctx, content, false)
	if err != nil {
		return subjects.MemoryWriteResult{}, fmt.Errorf("reading what is to be remembered: %w", err)
	}
	now := out.Now().UTC()
	e := subjects.MemoryEntry{
		ID: out.NewID(), Kind: subjects.KindFact, State: subjects.MemoryActive, Name: text.OneLine(given.Name, maxName), Description: text.Clip(given.Description, maxDescription),
		Tags: cleanTags(given.Tags), Pinned: given.Pinned, Created: now, Updated: now,
		Provenance: subjects.Provenance{Source: subjects.SourceUser, Trust: subjects.Trusted, Agent: by},
	}
	if e.Name != "" {
		e.Provenance.Digest = "given"
	}
	return m.storeEntry(ctx, out, by, fillFromDigest(e, d), d.Relations, "the user said so")
}

// restoreEntry takes an entry of an export as it is, also one that was forgotten since: the user wants it back.
func (m *Memory) restoreEntry(ctx context.Context, out actor.Out, by string, e subjects.MemoryEntry, vouched bool) (subjects.MemoryWriteResult, error) {
	if err := checkRestored(e); err != nil {
		return subjects.MemoryWriteResult{}, err
	}
	e = redactEntry(e)
	if !vouched { // whoever wrote the file could have written anything into it
		e.Provenance.Trust = subjects.Untrusted
		if e.Provenance.Source != subjects.SourceDocument {
			e.Provenance.Source = subjects.SourceExternal
		}
	}
	ctx, end := detach(ctx)
	defer end()
	switch _, err := m.unaudited.Put(ctx, store.Item{Entry: e, Restore: true}); {
	case errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrKnown):
		return subjects.MemoryWriteResult{ID: e.ID, Action: "unchanged", Why: "it is here"}, nil
	case errors.Is(err, store.ErrInvalid) || errors.Is(err, store.ErrTrust):
		return subjects.MemoryWriteResult{}, subjects.Faultf(subjects.CodeMalformed, "%v", err)
	case err != nil:
		return subjects.MemoryWriteResult{}, fmt.Errorf("storing %s: %w", e.ID, err)
	}
	if err := m.refreshIndex(ctx, append([]string{e.ID}, e.Supersedes...)...); err != nil {
		return subjects.MemoryWriteResult{}, err
	}
	m.wakeBackfill() // its vectors are made beside
	w := subjects.MemoryWriteResult{ID: e.ID, Action: "stored", Why: "read back from an export"}
	return w, m.emitStored(ctx, out, subjects.MemoryEvent{Action: "restored", IDs: []string{e.ID}, Why: w.Why, By: by})
}

// checkText refuses what is no text or too much of it.
func checkText(what, s string, most int) error {
	switch {
	case !utf8.ValidString(s), strings.ContainsRune(s, 0):
		return subjects.Faultf(subjects.CodeMalformed, "%s is not text", what)
	case len(s) > most:
		return subjects.Faultf(subjects.CodeTooLarge, "%s has %d bytes, at most %d are kept in one entry; conclave memory import cuts a file into pieces", what, len(s), most)
	}
	return nil
}

// checkRestored refuses an entry that memory could not have written.
func checkRestored(e subjects.MemoryEntry) error {
	for _, t := range []struct {
		what, text string
		most       int
	}{{"name", e.Name, 4 * maxName}, {"description", e.Description, 2 * maxDescription}, {"corpus", e.Corpus, maxCorpus}, {"from", e.Provenance.From, 4096}} {
		if err := checkText(t.what, t.text, t.most); err != nil {
			return err
		}
	}
	oneOf := func(what, v string, all ...string) error {
		if !slices.Contains(all, v) {
			return subjects.Faultf(subjects.CodeMalformed, "%s is %q and must be one of %s", what, text.Clip(v, 40), strings.Join(all, ", "))
		}
		return nil
	}
	named := func(ids ...string) error {
		for _, id := range ids {
			if subjects.CheckToken(id) != nil {
				return subjects.Faultf(subjects.CodeMalformed, "%q cannot be an id", text.Clip(id, 40))
			}
		}
		return nil
	}
	return errors.Join(
		named(e.ID), named(e.Correlating...), named(e.Supersedes...),
		oneOf("kind", e.Kind, subjects.KindEngram, subjects.KindFact, subjects.KindDocument),
		oneOf("state", e.State, subjects.MemoryActive, subjects.MemoryCandidate, subjects.MemorySuperseded),
		oneOf("trust", e.Provenance.Trust, subjects.Trusted, subjects.Untrusted),
		oneOf("source", string(e.Provenance.Source), subjects.SourceUser, subjects.SourceConversation, subjects.SourceAgent, subjects.SourceDocument, subjects.SourceExternal),
		func() error {
			if e.Created.IsZero() || e.Name == "" || e.Grades.Critic < 0 || e.Grades.Critic > 5 {
				return subjects.Faultf(subjects.CodeMalformed, "name, created or grades are missing or make no sense")
			}
			return nil
		}(),
	)
}

// Bounds of a document.
const (
	maxPieces = 64 // in one message
	maxPiece  = 16 << 10
	maxParts  = 100_000
)

// importDocument keeps pieces of a file. A piece that is known is left as it is; one that changed takes the place of the old one,
// which is forgotten; after the last, what the file no longer holds is forgotten too.
func (m *Memory) importDocument(ctx context.Context, out actor.Out, by string, d subjects.MemoryDocument, written *subjects.MemoryWriteReply) error {
	if err := checkDocument(d); err != nil {
		return err
	}
	m.importMu.Lock()
	defer m.importMu.Unlock()
	trust := subjects.Untrusted
	if d.Trust == subjects.Trusted {
		trust = subjects.Trusted
	}
	known, ok, err := m.unaudited.FindDocument(ctx, d.From)
	if err != nil {
		return fmt.Errorf("looking for %s: %w", d.From, err)
	}
	if ok && known.Hash == d.Hash+" "+trust {
		written.Unchanged = true
		return nil
	}
	if ok && d.First == 1 {
		// From here on it is neither what it was nor what it will be: an import that is broken off is not taken for whole.
		known.Hash = "importing"
		if err := m.unaudited.PutDocument(ctx, known); err != nil {
			return fmt.Errorf("noting that %s is imported: %w", d.From, err)
		}
	}
	old, err := m.unaudited.Pieces(ctx, d.From)
	if err != nil {
		return fmt.Errorf("reading the pieces of %s: %w", d.From, err)
	}
	var fresh []subjects.MemoryEntry
	var stale []string
	now := out.Now().UTC()
	for i, p := range d.Pieces {
		part := d.First + i
		hash := pieceHash(trust, d.Title, p)
		id := deriveID("piece", d.From, strconv.Itoa(part), hash)
		is := subjects.MemoryWriteResult{ID: id, Action: "stored"}
		for _, o := range old { // two when a crash came between storing the one and forgetting the other
			if o.Part == part && o.ID != id {
				stale, is.Action, is.Other = append(stale, o.ID), "updated", o.ID
			}
		}
		if slices.ContainsFunc(old, func(o store.Piece) bool { return o.ID == id }) {
			written.Results = append(written.Results, subjects.MemoryWriteResult{ID: id, Action: "unchanged"})
			continue
		}
		written.Results = append(written.Results, is)
		e := subjects.MemoryEntry{
			ID: id, Kind: subjects.KindDocument, State: subjects.MemoryActive, Corpus: p.Text, Created: now, Updated: now,
			Provenance: subjects.Provenance{Source: subjects.SourceDocument, Trust: trust, Agent: by, From: d.From, Part: part},
		}
		made := m.newDigester(out).Piece(d.Title, p.Heading, p.Text)
		if trust != subjects.Trusted {
			e.Provenance.Flags = made.Flags
		}
		fresh = append(fresh, redactEntry(fillFromDigest(e, made)))
	}
	if d.Last {
		last := d.First + len(d.Pieces) - 1
		for _, o := range old {
			if o.Part > last {
				stale = append(stale, o.ID)
				written.Removed++
			}
		}
	}
	if err := m.replacePieces(ctx, out, by, d.From, fresh, stale); err != nil {
		return err
	}
	if !d.Last {
		return nil
	}
	return m.unaudited.PutDocument(ctx, store.Document{
		From: d.From, Title: text.OneLine(d.Title, maxName), Hash: d.Hash + " " + trust, Modified: d.Modified, Pieces: d.First + len(d.Pieces) - 1, Imported: now,
	})
}

// replacePieces puts new pieces in, and then takes the old ones out: in between both are there, never none.
func (m *Memory) replacePieces(ctx context.Context, out actor.Out, by, from string, fresh []subjects.MemoryEntry, stale []string) error {
	if len(fresh) > 0 {
		vectors, err := m.embedEntries(ctx, out, fresh...)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			out.LogError(fmt.Errorf("no vectors for now, so pieces are found by their words: %w", err))
			m.wakeBackfill()
		}
		items, ids := make([]store.Item, len(fresh)), make([]string, len(fresh))
		for i, e := range fresh {
			items[i], ids[i] = store.Item{Entry: e}, e.ID
			if vectors != nil {
				items[i].Vectors = vectors[i]
			}
		}
		ctx, end := detach(ctx)
		defer end()
		if err := m.storePieces(ctx, items); err != nil {
			return fmt.Errorf("storing pieces of %s: %w", from, err)
		}
		if err := m.refreshIndex(ctx, ids...); err != nil {
			return err
		}
		if err := m.emitStored(ctx, out, subjects.MemoryEvent{Action: "imported", IDs: ids, Why: "pieces of " + text.OneLine(from, 200), By: by}); err != nil {
			return err
		}
	}
	if len(stale) > 0 {
		return m.deleteEntries(ctx, stale...)
	}
	return nil
}

// storePieces stores pieces. When one of them is there already, each is stored by itself.
func (m *Memory) storePieces(ctx context.Context, items []store.Item) error {
	_, err := m.unaudited.Put(ctx, items...)
	if !errors.Is(err, store.ErrExists) {
		return err
	}
	for _, it := range items {
		if _, err := m.unaudited.Put(ctx, it); err != nil && !errors.Is(err, store.ErrExists) {
			return err
		}
	}
	return nil
}

// pieceHash tells one form of a piece from another.
func pieceHash(trust, title string, p subjects.DocumentPiece) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{trust, title, p.Heading, p.Text}, "\x00")))
	return hex.EncodeToString(sum[:])
}

func checkDocument(d subjects.MemoryDocument) error {
	switch {
	case strings.TrimSpace(d.From) == "" || d.Hash == "":
		return subjects.Faultf(subjects.CodeMalformed, "a document needs where it is from and the hash of its text")
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
		if err := errors.Join(checkText("a heading", p.Heading, 4096), checkText("a piece", p.Text, maxPiece)); err != nil {
			return err
		}
	}
	return nil
}
