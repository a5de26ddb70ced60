package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"conclave/actors/memory/digest"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/text"
	"conclave/subjects"
)

// onWrite stores entries or pieces of a document for the user. It rejects a request with both or neither. With Restore
// the entries are those of an export. Entries of a client, whose session the request has, are untrusted and name it. An
// entry that is rejected is a result and does not keep the others of the message from being stored; any other error
// ends the message, with the entries before it stored.
func (m *Memory) onWrite(ctx context.Context, in actor.Msg[subjects.MemoryWriteRequest],
	out actor.Out,
) (subjects.MemoryWriteReply, error) {
	if m.unavailable != nil {
		return subjects.MemoryWriteReply{}, m.unavailable
	}
	w := in.Body
	if (w.Document == nil) == (len(w.Entries) == 0) {
		return subjects.MemoryWriteReply{}, subjects.Faultf(subjects.CodeMalformed, "give either entries or a document")
	}
	client, clientSession := subjects.ClientOf(in.Session), ""
	if client != "" {
		w.External, w.Trusted, clientSession = true, false, in.Session
	}
	target, params := "entries", ""
	if w.Document != nil {
		target, params = "document", w.Document.From+"\n"+w.Document.Hash+"\n"+strconv.Itoa(w.Document.First)
	}
	for _, e := range w.Entries {
		params += e.ID + "\n" + e.Corpus + "\n"
	}
	a := act{
		caller: in.From, action: subjects.ActionMemoryWrite, target: target, params: []byte(params),
		session: in.Session, query: in.Query,
	}
	return audited(ctx, m, out, a, func(ctx context.Context, db *access) (subjects.MemoryWriteReply, error) {
		if w.Document != nil {
			return m.importDocument(ctx, out, db, in.From, *w.Document)
		}
		written := subjects.MemoryWriteReply{Results: []subjects.MemoryWriteResult{}}
		for _, e := range w.Entries {
			if ctx.Err() != nil {
				return written, ctx.Err()
			}
			if !w.Restore {
				e.Provenance = subjects.Provenance{From: subjects.ClientOrigin(client), SessionID: clientSession}
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

// writeOne stores or restores one entry for the account by. A rejected entry is a result with the action "refused" and
// the reason, not an error.
func (m *Memory) writeOne(ctx context.Context, out actor.Out, db *access, by string, e subjects.MemoryEntry,
	w subjects.MemoryWriteRequest,
) (res subjects.MemoryWriteResult, err error) {
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

// storeFact stores a fact that the user states: trusted, unless it is external, which the user did not type. Of an
// external one only the text, tags and context of given count; otherwise its name, description and pin too. Its id is
// new, but for a turn: conversation, position and text together identify that, and one that is stored is unchanged.
// Without a position it follows the last entry of its conversation. It rejects what checkFact rejects, and a text that
// is invisible.
func (m *Memory) storeFact(ctx context.Context, out actor.Out, db *access, by string, given subjects.MemoryEntry,
	external bool,
) (none subjects.MemoryWriteResult, err error) {
	given.Corpus = strings.TrimSpace(given.Corpus)
	if err := checkFact(given, out.Now()); err != nil {
		return none, err
	}
	e, why := newFact(out, by, attributeText(given, given.Corpus, out.Now()), external)
	if e.Position > 0 {
		known, err := db.GetTexts(ctx, e.ID)
		if err != nil || len(known) > 0 {
			return subjects.MemoryWriteResult{ID: e.ID, Action: "unchanged", Why: "this turn of the conversation is " +
				"stored already"}, err
		}
	}
	d, err := plainDigester().Note(ctx, e.Speaker, given.Corpus, external)
	if errors.Is(err, digest.ErrNothing) || err == nil && strings.TrimSpace(d.Corpus) == "" {
		return none, subjects.Faultf(subjects.CodeMalformed, "the text has no visible words")
	}
	if err != nil {
		return none, fmt.Errorf("digesting the text: %w", err)
	}
	if external {
		e.Provenance.Flags = d.Flags
	}
	return m.storeEntry(ctx, out, db, by, fillFromDigest(e, d), why)
}

// attributeText returns e with the speaker and the time that an attribution in its text states, where e has none, and
// with a conversation made of the time when e has none: the turns of one conversation often carry one time. A text by
// another speaker than e's, and an attribution that is no valid context, change nothing.
func attributeText(e subjects.MemoryEntry, said string, now time.Time) subjects.MemoryEntry {
	speaker, happened, _, ok := digest.ParseAttribution(said)
	if !ok || e.Speaker != "" && e.Speaker != speaker {
		return e
	}
	filled := e
	filled.Speaker = speaker
	if e.Happened.IsZero() {
		filled.Happened = happened
	}
	if e.Conversation == "" && !happened.IsZero() {
		filled.Conversation = "said " + happened.UTC().Format(time.RFC3339)
	}
	if filled.CheckContext() != nil || filled.CheckHappened(now) != nil {
		return e
	}
	return filled
}

// checkFact rejects a fact whose text is empty, has more than maxCorpus bytes or is not UTF-8, an invalid context, a
// time in the future, and credentials in any of its texts.
func checkFact(given subjects.MemoryEntry, now time.Time) error {
	if err := checkText("the text", given.Corpus, maxCorpus); err != nil {
		return err
	}
	if given.Corpus == "" {
		return subjects.Faultf(subjects.CodeMalformed, "the text is empty")
	}
	if err := cmp.Or(given.CheckContext(), given.CheckHappened(now)); err != nil {
		return subjects.Faultf(subjects.CodeMalformed, "%v", err)
	}
	return rejectCredential("the text",
		append([]string{given.Corpus, given.Name, given.Description, given.Speaker, given.Conversation},
			given.Tags...)...)
}

// newFact returns the entry of a fact that checkFact accepts, without its corpus, and the reason for its event. See
// storeFact.
func newFact(out actor.Out, by string, given subjects.MemoryEntry, external bool) (e subjects.MemoryEntry, why string) {
	now := out.Now().UTC()
	e = subjects.MemoryEntry{
		ID: out.NewID(), Kind: subjects.KindFact, State: subjects.MemoryActive, Name: text.OneLine(given.Name, maxName),
		Description: text.Clip(given.Description, maxDescription),
		Tags:        cleanTags(given.Tags), Pinned: given.Pinned, Created: now, Updated: now,
		Conversation: given.Conversation, Position: given.Position, Speaker: given.Speaker, Happened: given.Happened,
		Provenance: subjects.Provenance{
			Source: subjects.SourceUser, Trust: subjects.Trusted, Agent: by,
			From: given.Provenance.From, SessionID: given.Provenance.SessionID,
		},
	}
	why = "the user said so"
	if external {
		e.Name, e.Description, e.Pinned, why = "", "", false, cmp.Or(e.Provenance.From, "the user")+" passed it on"
		e.Provenance.Source, e.Provenance.Trust = subjects.SourceExternal, subjects.Untrusted
		if digest.IsReservedName(e.Speaker) {
			e.Speaker = ""
		}
	}
	if e.Name != "" {
		e.Provenance.Digest = subjects.DigestGiven
	}
	if given.Conversation == "" { // a position without a conversation says nothing
		e.Position = 0
	} else if e.Position > 0 {
		e.ID = deriveID("turn", e.Provenance.Trust, e.Conversation, strconv.Itoa(e.Position), e.Speaker,
			e.Happened.UTC().Format(time.RFC3339), given.Corpus)
	}
	return e, why
}

// restoreEntry stores an entry of an export with its id, times, grades and provenance, without credentials, also one
// that was forgotten since. An id or answer that exists is left unchanged. Unless the user vouches for the export, the
// entry is stored as untrusted, without grades and pin: anybody could have written the file. A time in the future is
// dropped. It rejects what checkRestored rejects, and an untrusted entry that supersedes a trusted one.
func (m *Memory) restoreEntry(ctx context.Context, out actor.Out, db *access, by string, e subjects.MemoryEntry,
	vouched bool,
) (none subjects.MemoryWriteResult, err error) {
	if err := checkRestored(e); err != nil {
		return none, err
	}
	e = redactEntry(e)
	why := "restored from an export"
	if e.CheckHappened(out.Now()) != nil {
		e.Happened, why = time.Time{}, why+", without its time, which is in the future"
	}
	if !vouched { // nor are grades, pins and names of speakers in the file those of the user
		e.Grades, e.Pinned = subjects.Grades{}, false
		if digest.IsReservedName(e.Speaker) {
			e.Speaker = ""
		}
		if e.Provenance.Digest == subjects.DigestPending {
			e.Provenance.Digest = subjects.DigestPlain
		}
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
	w := subjects.MemoryWriteResult{ID: e.ID, Action: "stored", Why: why}
	return w, m.emitStored(ctx, out, subjects.MemoryEvent{Action: "restored", IDs: []string{e.ID}, Why: w.Why, By: by})
}

// rejectCredential rejects texts in which something looks like a credential, with a fault that does not repeat it. what
// names the field for the user.
func rejectCredential(what string, texts ...string) error {
	if _, hidden := firewall.Redact(strings.Join(texts, "\n")); hidden > 0 {
		return subjects.Faultf(subjects.CodeMalformed, "%s contains something that looks like a password or a key; "+
			"store those with conclave secret set", what)
	}
	return nil
}

// checkText rejects text that is not UTF-8 or contains NUL (malformed), or has more than most bytes (too large). what
// names the field for the user. "" passes.
func checkText(what, s string, most int) error {
	switch {
	case !utf8.ValidString(s), strings.ContainsRune(s, 0):
		return subjects.Faultf(subjects.CodeMalformed, "%s is not text", what)
	case len(s) > most:
		return subjects.Faultf(subjects.CodeTooLarge, "%s has %d bytes, the limit of one entry is %d; conclave "+
			"memory import splits a file into pieces", what, len(s), most)
	}
	return nil
}

// checkRestored rejects an entry that memory could not have exported: texts beyond the limits, ids that are no tokens,
// a missing name or creation time, and whatever the store rejects. It must see the entry before its trust is lowered,
// so that an unknown trust or source is rejected and not replaced.
func checkRestored(e subjects.MemoryEntry) error {
	for _, t := range []struct {
		what, text string
		most       int
	}{
		{"name", e.Name, 4 * maxName},
		{"description", e.Description, 2 * maxDescription},
		{"corpus", e.Corpus, maxCorpus},
		{"from", e.Provenance.From, 4096},
	} {
		if err := checkText(t.what, t.text, t.most); err != nil {
			return err
		}
	}
	for _, id := range slices.Concat([]string{e.ID}, e.Correlating, e.Supersedes) {
		if subjects.CheckToken(id) != nil {
			return subjects.Faultf(subjects.CodeMalformed, "%q is not a valid id", text.Clip(id, 40))
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
