package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"conclave/actors/memory/digest"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/text"
	"conclave/subjects"
)

// onWrite stores entries or pieces of a document for the user. It rejects a request with both or neither. With Restore the
// entries are those of an export. An entry that is rejected is a result and does not keep the others of the message from being
// stored; any other error ends the message, with the entries before it stored.
func (m *Memory) onWrite(ctx context.Context, in actor.Msg[subjects.MemoryWriteRequest], out actor.Out) (subjects.MemoryWriteReply, error) {
	if m.unavailable != nil {
		return subjects.MemoryWriteReply{}, m.unavailable
	}
	w := in.Body
	if (w.Document == nil) == (len(w.Entries) == 0) {
		return subjects.MemoryWriteReply{}, subjects.Faultf(subjects.CodeMalformed, "give either entries or a document")
	}
	target, params := "entries", ""
	if w.Document != nil {
		target, params = "document", w.Document.From+"\n"+w.Document.Hash+"\n"+strconv.Itoa(w.Document.First)
	}
	for _, e := range w.Entries {
		params += e.ID + "\n" + e.Corpus + "\n"
	}
	a := act{caller: in.From, action: subjects.ActionMemoryWrite, target: target, params: []byte(params), session: in.Session, query: in.Query}
	return audited(ctx, m, out, a, func(ctx context.Context, db *access) (subjects.MemoryWriteReply, error) {
		if w.Document != nil {
			return m.importDocument(ctx, out, db, in.From, *w.Document)
		}
		written := subjects.MemoryWriteReply{Results: []subjects.MemoryWriteResult{}}
		for _, e := range w.Entries {
			if ctx.Err() != nil {
				return written, ctx.Err()
			}
			res, err := m.writeOne(ctx, out, db, in.From, e, w)
			if err != nil {
				return written, err
			}
			written.Results = append(written.Results, res)
		}
		return written, nil
	})
}

// writeOne stores or restores one entry for the account by. A rejected entry is a result with the action "refused" and the
// reason, not an error.
func (m *Memory) writeOne(ctx context.Context, out actor.Out, db *access, by string, e subjects.MemoryEntry, w subjects.MemoryWriteRequest) (res subjects.MemoryWriteResult, err error) {
	if w.Restore {
		res, err = m.restoreEntry(ctx, out, db, by, e, w.Trusted)
	} else {
		res, err = m.storeFact(ctx, out, db, by, e, w.External)
	}
	var f *subjects.Fault
	if errors.As(err, &f) {
		return subjects.MemoryWriteResult{ID: text.Clip(e.ID, subjects.MaxToken), Action: "refused", Why: f.Text}, nil
	}
	return res, err
}

// storeFact stores a fact that the user states, under a new id: trusted, unless it is external, which the user did not type. Of
// an external text instructions are removed, and only the text and harmless tags of given count; otherwise its name, description
// and pin too. It rejects a text that is empty, invisible or nothing but instructions, one of more than maxCorpus bytes or not
// UTF-8, and credentials in any of them.
func (m *Memory) storeFact(ctx context.Context, out actor.Out, db *access, by string, given subjects.MemoryEntry, external bool) (none subjects.MemoryWriteResult, err error) {
	content := strings.TrimSpace(given.Corpus)
	if err := checkText("the text", content, maxCorpus); err != nil {
		return none, err
	}
	if content == "" {
		return none, subjects.Faultf(subjects.CodeMalformed, "the text is empty")
	}
	if err := rejectCredential("the text", append([]string{content, given.Name, given.Description}, given.Tags...)...); err != nil {
		return none, err
	}
	d, err := m.newDigester(out).Note(ctx, content, external)
	if errors.Is(err, digest.ErrNothing) || err == nil && strings.TrimSpace(d.Corpus) == "" {
		return none, subjects.Faultf(subjects.CodeMalformed, "the text has no visible words but instructions")
	}
	if err != nil {
		return none, fmt.Errorf("digesting the text: %w", err)
	}
	now := out.Now().UTC()
	e := subjects.MemoryEntry{
		ID: out.NewID(), Kind: subjects.KindFact, State: subjects.MemoryActive, Name: text.OneLine(given.Name, maxName), Description: text.Clip(given.Description, maxDescription),
		Tags: cleanTags(given.Tags), Pinned: given.Pinned, Created: now, Updated: now,
		Provenance: subjects.Provenance{Source: subjects.SourceUser, Trust: subjects.Trusted, Agent: by},
	}
	why := "the user said so"
	if external {
		e.Name, e.Description, e.Pinned, why = "", "", false, "the user passed it on"
		e.Provenance.Source, e.Provenance.Trust, e.Provenance.Flags = subjects.SourceExternal, subjects.Untrusted, d.Flags
		e.Tags = slices.DeleteFunc(e.Tags, func(t string) bool { return !digest.IsHarmless(t) })
	}
	if e.Name != "" {
		e.Provenance.Digest = "given"
	}
	return m.storeEntry(ctx, out, db, by, fillFromDigest(e, d), d.Relations, why)
}

// restoreEntry stores an entry of an export with its id, times, grades and provenance, without credentials, also one that was
// forgotten since. An id or answer that exists is left unchanged. Unless the user vouches for the export, the entry is stored as
// untrusted: anybody could have written the file. It rejects what checkRestored rejects, and an untrusted entry that supersedes a
// trusted one.
func (m *Memory) restoreEntry(ctx context.Context, out actor.Out, db *access, by string, e subjects.MemoryEntry, vouched bool) (none subjects.MemoryWriteResult, err error) {
	if err := checkRestored(e); err != nil {
		return none, err
	}
	e = redactEntry(e)
	if !vouched {
		e.Provenance.Trust = subjects.Untrusted
		if e.Provenance.Source != subjects.SourceDocument {
			e.Provenance.Source = subjects.SourceExternal
		}
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	switch _, err := db.Put(ctx, store.Item{Entry: e, Restore: true}); {
	case errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrKnown):
		return subjects.MemoryWriteResult{ID: e.ID, Action: "unchanged", Why: "it exists"}, nil
	case errors.Is(err, store.ErrInvalid) || errors.Is(err, store.ErrTrust):
		return none, subjects.Faultf(subjects.CodeMalformed, "%v", err)
	case err != nil:
		return none, fmt.Errorf("storing %s: %w", e.ID, err)
	}
	if err := m.refreshIndex(ctx, append([]string{e.ID}, e.Supersedes...)...); err != nil {
		return none, err
	}
	m.wakeBackfill() // an export has no vectors
	w := subjects.MemoryWriteResult{ID: e.ID, Action: "stored", Why: "restored from an export"}
	return w, m.emitStored(ctx, out, subjects.MemoryEvent{Action: "restored", IDs: []string{e.ID}, Why: w.Why, By: by})
}

// rejectCredential rejects texts in which something looks like a credential, with a fault that does not repeat it. what names the
// field for the user.
func rejectCredential(what string, texts ...string) error {
	if _, hidden := firewall.Redact(strings.Join(texts, "\n")); hidden > 0 {
		return subjects.Faultf(subjects.CodeMalformed, "%s contains something that looks like a password or a key; store those with conclave secret set", what)
	}
	return nil
}

// checkText rejects text that is not UTF-8 or contains NUL (malformed), or has more than most bytes (too large). what names the
// field for the user. "" passes.
func checkText(what, s string, most int) error {
	switch {
	case !utf8.ValidString(s), strings.ContainsRune(s, 0):
		return subjects.Faultf(subjects.CodeMalformed, "%s is not text", what)
	case len(s) > most:
		return subjects.Faultf(subjects.CodeTooLarge, "%s has %d bytes, the limit of one entry is %d; conclave memory import splits a file into pieces", what, len(s), most)
	}
	return nil
}

// checkRestored rejects an entry that memory could not have exported: texts beyond the limits, ids that are no tokens, a missing
// name or creation time, and whatever the store rejects. It must see the entry before its trust is lowered, so that an
// unknown trust or source is rejected and not replaced.
func checkRestored(e subjects.MemoryEntry) error {
	for _, t := range []struct {
		what, text string
		most       int
	}{{"name", e.Name, 4 * maxName}, {"description", e.Description, 2 * maxDescription}, {"corpus", e.Corpus, maxCorpus}, {"from", e.Provenance.From, 4096}} {
		if err := checkText(t.what, t.text, t.most); err != nil {
			return err
		}
	}
	for _, id := range slices.Concat([]string{e.ID}, e.Correlating, e.Supersedes) {
		if subjects.CheckToken(id) != nil {
			return subjects.Faultf(subjects.CodeMalformed, "%q is no valid id", text.Clip(id, 40))
		}
	}
	if e.Created.IsZero() || e.Name == "" {
		return subjects.Faultf(subjects.CodeMalformed, "name or creation time is missing")
	}
	if err := store.CheckEntry(e); err != nil {
		return subjects.Faultf(subjects.CodeMalformed, "%v", err)
	}
	return nil
}
