package memory

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/actors/memory/digest"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/model"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Limits of one entry, in bytes where they are about text.
const (
	maxCorpus      = 64 << 10 // longer texts are documents, which the client splits into pieces
	maxName        = 200
	maxDescription = 2 << 10
	maxTags        = 32
	maxTag         = 64
)

// deriveID derives an id from the parts that identify something: the same parts always give the same id.
func deriveID(parts ...string) string { return hashParts(parts...)[:24] }

// hashParts returns the SHA-256 of parts in hexadecimal.
func hashParts(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}

// redactEntry removes everything that looks like a credential from the texts, tags and entities of an entry, and
// normalizes intent, sentiment and tags. It does not change the slices of e.
func redactEntry(e subjects.MemoryEntry) subjects.MemoryEntry {
	e.Tags, e.Entities = slices.Clone(e.Tags), slices.Clone(e.Entities)
	for _, list := range [][]string{e.Tags, e.Entities} {
		for i := range list {
			list[i], _ = firewall.Redact(list[i])
		}
	}
	for _, t := range []*string{
		&e.Name, &e.Description, &e.Corpus, &e.Intent, &e.Sentiment, &e.Grades.Feedback,
		&e.Speaker, &e.Conversation,
	} {
		*t, _ = firewall.Redact(*t)
	}
	e.Intent, e.Sentiment, e.Tags = text.OneLine(e.Intent, maxName), text.OneLine(e.Sentiment, maxName),
		cleanTags(e.Tags)
	return e
}

// cleanTags returns tags in lower case, on one line of at most maxTag bytes each, without blank ones and duplicates,
// the first maxTags of them; nil when none is left.
func cleanTags(tags []string) (out []string) {
	for _, t := range tags {
		if t = strings.ToLower(text.OneLine(strings.TrimSpace(t), maxTag)); t != "" && !slices.Contains(out, t) &&
			len(out) < maxTags {
			out = append(out, t)
		}
	}
	return out
}

// mergeFlags returns the flags of a session, then those that a digest found, each once. labels may be nil. It changes
// neither.
func mergeFlags(labels *subjects.Labels, found []string) []string {
	if labels == nil {
		return found
	}
	all := slices.Clone(labels.Flags)
	for _, f := range found {
		if !slices.Contains(all, f) {
			all = append(all, f)
		}
	}
	return all
}

// fillFromDigest sets the fields of e that are empty from a digest of its text and adds the entities. The corpus is
// always the digest's, unless that is empty.
func fillFromDigest(e subjects.MemoryEntry, d digest.Digest) subjects.MemoryEntry {
	e.Name = cmp.Or(e.Name, text.OneLine(d.Name, maxName))
	e.Description = cmp.Or(e.Description, text.Clip(d.Description, maxDescription))
	e.Corpus = cmp.Or(d.Corpus, e.Corpus)
	e.Intent, e.Sentiment = cmp.Or(e.Intent, d.Intent), cmp.Or(e.Sentiment, d.Sentiment)
	for _, n := range d.Entities {
		if !slices.Contains(e.Entities, n) {
			e.Entities = append(e.Entities, n)
		}
	}
	e.Provenance.Digest = cmp.Or(e.Provenance.Digest, d.By)
	return e
}

// storeEntry stores e redacted, indexes it and publishes what became of it once durable, even if ctx ends meanwhile;
// why is the reason for the event. Active entries but documents and respondent B's answers are compared first: a
// duplicate is stored as superseded ("merged"). Without a position it follows the last entry of its conversation.
// "unchanged" means that the id or answer exists or was forgotten: nothing is stored or published. An unavailable model
// is no error. After an error e may be stored; a failed merge is only logged.
func (m *Memory) storeEntry(ctx context.Context, out actor.Out, db *access, by string, e subjects.MemoryEntry,
	why string,
) (subjects.MemoryWriteResult, error) {
	e = redactEntry(e)
	if e.Conversation != "" && e.Position == 0 {
		var err error
		if e.Position, err = db.FindPosition(ctx, e.Conversation, e.Provenance.Trust,
			e.Provenance.QueryID); err != nil {
			return subjects.MemoryWriteResult{}, err
		}
	}
	vectors := m.tryEmbedEntry(ctx, out, e)
	done := subjects.MemoryWriteResult{ID: e.ID, Action: "stored", Why: why}
	if e.State == subjects.MemoryActive && e.Kind != subjects.KindDocument && e.Respondent != subjects.RespondentB {
		if old, found := m.findDuplicate(ctx, out, db, e, vectors); found {
			m.editMu.Lock() // the compared entry must not change until this one is stored
			defer m.editMu.Unlock()
			if isUnchanged(ctx, out, db, old) {
				e.State, e.SupersededBy = subjects.MemorySuperseded, old.ID
				done.Action, done.Other, done.Why = "merged", old.ID, "both have the same words"
			}
		}
	}
	if e.State == subjects.MemoryCandidate {
		done.Action = "candidate"
	}
	return m.writeEntry(ctx, out, db, by, store.Item{Entry: e, Vectors: vectors}, done)
}

// writeEntry is the part of storeEntry that is completed when the caller has gone: it writes the entry, merges a
// duplicate, indexes and publishes. done is the result so far. An id or answer that exists gives the action
// "unchanged". A failure of the merge is only logged.
func (m *Memory) writeEntry(ctx context.Context, out actor.Out, db *access, by string, it store.Item,
	done subjects.MemoryWriteResult,
) (subjects.MemoryWriteResult, error) {
	ctx, cancel := detach(ctx)
	defer cancel()
	if m.cfg.Model && it.Entry.State == subjects.MemoryActive && it.Entry.Provenance.Digest == subjects.DigestPlain {
		it.Entry.Provenance.Digest = subjects.DigestPending
	}
	e := it.Entry
	_, err := db.Put(ctx, it)
	if errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrKnown) {
		done.Action = "unchanged"
		return done, m.refreshIndex(ctx, e.ID) // a crash may have come between storing and indexing it
	} else if err != nil {
		return done, fmt.Errorf("storing %s: %w", e.ID, err)
	}
	touched := []string{e.ID}
	if done.Action == "merged" {
		if err := db.Merge(ctx, e.SupersededBy, store.Addition{
			Tags: e.Tags, Entities: e.Entities,
			Correlating: e.Correlating,
		}); err != nil {
			out.LogError(fmt.Errorf("merging %s: %w", e.ID, err))
		}
		touched = append(touched, e.SupersededBy)
	}
	if err := m.refreshIndex(ctx, touched...); err != nil {
		return done, err
	}
	if it.Vectors == nil || e.Provenance.Digest == subjects.DigestPending {
		m.wakeBackfill()
	}
	return done, m.emitStoredOnce(ctx, out, e.ID, subjects.MemoryEvent{
		SessionID: e.Provenance.SessionID, QueryID: e.Provenance.QueryID, Action: done.Action, IDs: touched,
		Why: done.Why, By: by,
	})
}

// tryEmbedEntry returns the vectors of an entry, or nil when embedding fails, which is logged unless the model actor
// has put it off: the entry is found by its words then, until the backfill embeds it. The caller wakes the backfill.
func (m *Memory) tryEmbedEntry(ctx context.Context, out actor.Out, e subjects.MemoryEntry) *store.Vectors {
	v, failed, err := m.embedEntries(ctx, out, e)
	if err = cmp.Or(err, failed[0]); errors.Is(err, model.ErrSwap) {
		return nil
	} else if err != nil {
		out.LogError(fmt.Errorf("embedding failed, so the entry is found by words only for now: %w", err))
		return nil
	}
	return v[0]
}

// storeRelations stores the relations that an entry states, with the trust of the entry. An entry that is not active,
// such as a duplicate or a candidate, states none. The entry must be stored already.
func storeRelations(ctx context.Context, db *access, e subjects.MemoryEntry, relations []digest.Relation) error {
	if len(relations) == 0 || e.State != subjects.MemoryActive {
		return nil
	}
	writes := make([]store.RelationWrite, 0, len(relations))
	for _, r := range relations {
		writes = append(writes, store.RelationWrite{Single: r.Single, Relation: subjects.Relation{
			ID: deriveID("relation", e.ID, r.Subject, r.Predicate, r.Object, r.Tense), Subject: r.Subject,
			Predicate: r.Predicate, Object: r.Object, Kind: r.Kind,
			Tense: r.Tense, From: r.From, Until: r.Until, Entry: e.ID, Trust: e.Provenance.Trust, Said: saidAt(e),
		}})
	}
	if err := db.PutRelations(ctx, writes...); err != nil {
		return fmt.Errorf("storing the relations of %s: %w", e.ID, err)
	}
	return nil
}

// saidAt returns when the text of an entry was said, as far as it is known, else when it was stored. A time after it
// was stored does not count: it must not win over what is said later.
func saidAt(e subjects.MemoryEntry) time.Time {
	if e.Happened.IsZero() || e.Happened.After(e.Created) {
		return e.Created
	}
	return e.Happened
}

// deleteEntries forgets entries and removes them from the index and the cache. Unknown ids are ignored. It is completed
// when the caller has gone.
func (m *Memory) deleteEntries(ctx context.Context, db *access, ids ...string) error {
	ctx, cancel := detach(ctx)
	defer cancel()
	deleted, err := db.Forget(ctx, ids...)
	if err != nil {
		return fmt.Errorf("forgetting: %w", err)
	}
	m.removeFromIndex(deleted)
	return nil
}

// emitStored publishes what was done to entries.
func (m *Memory) emitStored(ctx context.Context, out actor.Out, ev subjects.MemoryEvent) error {
	return actor.Emit(ctx, out.WithIDs(ev.SessionID, ev.QueryID), subjects.MemoryStored, ev)
}

// emitStoredOnce publishes what became of a message that may be delivered again. The event id is the same then, so that
// the stream keeps one; it is keyed, so that nobody else can take it first.
func (m *Memory) emitStoredOnce(ctx context.Context, out actor.Out, id string, ev subjects.MemoryEvent) error {
	return actor.EmitOnce(ctx, out.WithIDs(ev.SessionID, ev.QueryID), subjects.MemoryStored,
		m.hash.Hash([]byte("stored "+id)), ev)
}
