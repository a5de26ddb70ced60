package memory

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"conclave/actors/memory/digest"
	"conclave/actors/memory/recall"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Bounds of what is kept of one thing.
const (
	maxCorpus      = 64 << 10 // what is longer is a document, and cut into pieces before it comes here
	maxName        = 200
	maxDescription = 2 << 10 // of a description
	maxTags        = 32
	maxTag         = 64
)

// deriveID makes an id of what tells one thing from another: the same thing said twice has the same.
func deriveID(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:12])
}

// onResponse keeps an answer. Who gave it is what the server wrote into the subject.
func (m *Memory) onResponse(ctx context.Context, in actor.Msg[subjects.Response], out actor.Out) error {
	r := in.Body
	query := cmp.Or(r.QueryID, in.Query)
	if r.Error != nil || strings.TrimSpace(r.Answer) == "" || subjects.CheckToken(query) != nil {
		return nil // nothing was learned, or nobody could ever say about what
	}
	if subjects.CheckToken(r.SessionID) != nil {
		r.SessionID = in.Session
	}
	id, state, err := m.unaudited.FindAnswer(ctx, query, in.From)
	if err != nil {
		return fmt.Errorf("looking for the answer to %s: %w", query, err)
	}
	if state == store.Forgotten {
		return nil // the user does not want it
	}
	if state == store.Stored { // told again after a crash: under the same id it is stored once
		if err := m.refreshIndex(ctx, id); err != nil {
			return err
		}
		return m.emitStoredOnce(ctx, out, id, subjects.MemoryEvent{SessionID: r.SessionID, QueryID: query, Action: "stored", IDs: []string{id}, Why: "an answer", By: in.From})
	}
	a := act{who: in.From, action: actWrite, tool: subjects.KindEngram, params: []byte(query + "\n" + in.From), session: r.SessionID, query: query}
	return m.retryEvent(ctx, out, func() error {
		return m.recorded(ctx, out, a, func() error { return m.storeAnswer(ctx, out, in.From, query, r) })
	})
}

// storeAnswer makes an entry of an answer.
func (m *Memory) storeAnswer(ctx context.Context, out actor.Out, from, query string, r subjects.Response) error {
	external := r.Labels == nil || r.Labels.Trust != subjects.Trusted // what nobody vouches for is nobody's
	asked, _ := firewall.Redact(r.Query)                              // a password that somebody typed is not remembered
	answered, _ := firewall.Redact(r.Answer)
	d, err := m.newDigester(out).Answer(ctx, asked, answered, external)
	if errors.Is(err, digest.ErrNothing) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the answer to %s: %w", query, err)
	}
	now := out.Now().UTC()
	e := subjects.MemoryEntry{
		ID: deriveID(subjects.KindEngram, query, from), Kind: subjects.KindEngram, State: subjects.MemoryActive, Respondent: from, Created: now, Updated: now,
		Provenance: subjects.Provenance{
			Source: subjects.SourceConversation, Trust: subjects.Trusted, Agent: from, SessionID: r.SessionID, QueryID: query, Model: text.Clip(r.Model, 200),
		},
	}
	if external {
		e.Provenance.Source, e.Provenance.Trust = subjects.SourceExternal, subjects.Untrusted
		e.Provenance.Flags = d.Flags
		if r.Labels != nil {
			e.Provenance.Flags = mergeFlags(r.Labels.Flags, d.Flags)
		}
	}
	for _, id := range r.Recalls {
		if subjects.CheckToken(id) == nil && len(e.Correlating) < maxTags {
			e.Correlating = append(e.Correlating, id)
		}
	}
	_, err = m.storeEntry(ctx, out, from, fillFromDigest(e, d), d.Relations, "an answer")
	return err
}

// redactEntry is an entry without anything that looks like a credential, whatever it went through on its way here.
func redactEntry(e subjects.MemoryEntry) subjects.MemoryEntry {
	for _, t := range []*string{&e.Name, &e.Description, &e.Corpus, &e.Intent, &e.Sentiment, &e.Grades.Feedback} {
		*t, _ = firewall.Redact(*t)
	}
	e.Intent, e.Sentiment, e.Tags = text.OneLine(e.Intent, maxName), text.OneLine(e.Sentiment, maxName), cleanTags(e.Tags)
	return e
}

// mergeFlags is what is in either.
func mergeFlags(a, b []string) []string {
	out := slices.Clone(a)
	for _, v := range b {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// fillFromDigest puts what was made of a text into an entry. What is there already stays.
func fillFromDigest(e subjects.MemoryEntry, d digest.Digest) subjects.MemoryEntry {
	e.Name = cmp.Or(e.Name, text.OneLine(d.Name, maxName))
	e.Description = cmp.Or(e.Description, text.Clip(d.Description, maxDescription))
	e.Corpus = cmp.Or(d.Corpus, e.Corpus)
	e.Intent, e.Sentiment = cmp.Or(e.Intent, d.Intent), cmp.Or(e.Sentiment, d.Sentiment)
	for _, n := range d.Entities {
		if !slices.Contains(e.Entities, n.Name) {
			e.Entities = append(e.Entities, n.Name)
		}
	}
	e.Provenance.Digest = cmp.Or(e.Provenance.Digest, d.By)
	return e
}

// comparison is what becomes of something new beside what is there.
type comparison struct {
	same     string   // it says what this one says
	replaces []string // it takes the place of these
	why      string
	seen     map[string]time.Time // when each of those was last changed
}

// storeEntry stores something new, unless it is there already, and takes the place of what it contradicts. It tells of it when it
// is durable.
func (m *Memory) storeEntry(ctx context.Context, out actor.Out, by string, e subjects.MemoryEntry, relations []digest.Relation, why string) (subjects.MemoryWriteResult, error) {
	e = redactEntry(e)
	vectors := m.tryEmbedEntry(ctx, out, e)
	done := subjects.MemoryWriteResult{ID: e.ID, Action: "stored", Why: why}
	// What nobody was told takes nobody's place.
	if e.State == subjects.MemoryActive && e.Kind != subjects.KindDocument && e.Respondent != subjects.RespondentB {
		v := m.compareWithSimilar(ctx, out, e, vectors)
		if len(v.seen) > 0 { // what it was compared with stays as it is until this one is stored
			m.editMu.Lock()
			defer m.editMu.Unlock()
			v = m.recheckComparison(ctx, out, v)
		}
		switch {
		case v.same != "":
			e.State, e.SupersededBy = subjects.MemorySuperseded, v.same
			done.Action, done.Other, done.Why = "merged", v.same, v.why
		case len(v.replaces) > 0:
			e.Supersedes = v.replaces
			done.Action, done.Other, done.Why = "superseded", v.replaces[0], v.why
		}
	}
	if e.State == subjects.MemoryCandidate {
		done.Action = "candidate"
	}
	ctx, end := detach(ctx)
	defer end()
	rows, err := m.unaudited.Put(ctx, store.Item{Entry: e, Vectors: vectors})
	if errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrKnown) {
		done.Action = "unchanged"
		return done, m.refreshIndex(ctx, e.ID) // whoever stored it may have gone before the index knew
	} else if err != nil {
		return done, fmt.Errorf("storing: %w", err)
	}
	touched := append([]string{e.ID}, e.Supersedes...)
	if done.Action == "merged" {
		// The one that stays learns what it did not know.
		if err := m.unaudited.Merge(ctx, e.SupersededBy, store.Addition{Tags: e.Tags, Entities: e.Entities, Correlating: e.Correlating}); err != nil {
			out.LogError(fmt.Errorf("merging %s: %w", e.ID, err))
		}
		touched = append(touched, e.SupersededBy)
	}
	if err := m.storeRelations(ctx, e, relations); err != nil {
		out.LogError(err)
	}
	if err := m.indexNewEntry(ctx, rows[0], e, vectors, touched); err != nil {
		return done, err
	}
	if vectors == nil {
		m.wakeBackfill()
	}
	return done, m.emitStoredOnce(ctx, out, e.ID, subjects.MemoryEvent{
		SessionID: e.Provenance.SessionID, QueryID: e.Provenance.QueryID, Action: done.Action, IDs: touched, Why: done.Why, By: by,
	})
}

// tryEmbedEntry are an entry's vectors, nil when they cannot be made now.
func (m *Memory) tryEmbedEntry(ctx context.Context, out actor.Out, e subjects.MemoryEntry) *store.Vectors {
	v, err := m.embedEntries(ctx, out, e)
	if err != nil {
		out.LogError(fmt.Errorf("no vectors for now, so it is found by its words: %w", err))
		return nil
	}
	return v[0]
}

// How near something must be to be looked at, and how many are.
const (
	minCompareSimilarity = 0.6
	maxCompared          = 3
)

// compareWithSimilar looks at what is nearest to something new. Nothing takes another's place by a guess: without vectors, and when the
// small model or the plain rules are not sure, both stay.
func (m *Memory) compareWithSimilar(ctx context.Context, out actor.Out, e subjects.MemoryEntry, v *store.Vectors) (all comparison) {
	if v == nil {
		return all
	}
	all.seen = map[string]time.Time{}
	found, err := m.searchIndex(ctx, recall.Query{Text: e.Name + " " + e.Description, Vector: v.Name})
	if err != nil {
		out.LogError(fmt.Errorf("looking for what is like it: %w", err))
		return all
	}
	var ids []string
	for _, c := range found.Top {
		if c.Kind != subjects.KindDocument && c.Similarity >= minCompareSimilarity && len(ids) < maxCompared {
			ids = append(ids, c.ID)
		}
	}
	near, err := m.unaudited.Get(ctx, ids...)
	if err != nil {
		out.LogError(fmt.Errorf("reading what is like it: %w", err))
		return all
	}
	d := m.newDigester(out)
	for _, old := range near {
		if old.ID == e.ID || old.State != subjects.MemoryActive || old.Provenance.QueryID != "" && old.Provenance.QueryID == e.Provenance.QueryID {
			continue // another answer to the same question is no repetition: they are compared by others
		}
		if old.Provenance.Trust == subjects.Trusted && e.Provenance.Trust != subjects.Trusted {
			continue // a stranger's word takes nobody's place
		}
		is, err := d.Compare(ctx, statementOf(old), statementOf(e))
		if err != nil {
			out.LogError(fmt.Errorf("comparing with %s: %w", old.ID, err))
			continue
		}
		switch is.Kind {
		case digest.Same:
			if old.Provenance.Trust == e.Provenance.Trust && old.Respondent != subjects.RespondentB {
				return comparison{same: old.ID, why: cmp.Or(is.Why, "it says the same"), seen: map[string]time.Time{old.ID: old.Updated}}
			}
		case digest.Contradicts:
			if !old.Pinned {
				all.replaces, all.seen[old.ID] = append(all.replaces, old.ID), old.Updated
				all.why = cmp.Or(all.why, is.Why, "it says otherwise")
			}
		}
	}
	return all
}

// recheckComparison is what of a verdict holds. A model took its time over it, and meanwhile the user may have changed, pinned or
// forgotten what it was about.
func (m *Memory) recheckComparison(ctx context.Context, out actor.Out, v comparison) comparison {
	now, err := m.unaudited.Get(ctx, slices.Collect(maps.Keys(v.seen))...)
	if err != nil {
		out.LogError(fmt.Errorf("reading what is like it again: %w", err))
		return comparison{}
	}
	changed := func(id string) bool {
		at := slices.IndexFunc(now, func(e subjects.MemoryEntry) bool { return e.ID == id })
		return at < 0 || now[at].State != subjects.MemoryActive || !now[at].Updated.Equal(v.seen[id]) || now[at].Pinned && id != v.same
	}
	if v.same != "" && changed(v.same) {
		v.same = ""
	}
	v.replaces = slices.DeleteFunc(v.replaces, changed)
	return v
}

func statementOf(e subjects.MemoryEntry) digest.Statement {
	return digest.Statement{Name: e.Name, Description: e.Description, Corpus: e.Corpus, Created: e.Created, Untrusted: e.Provenance.Trust != subjects.Trusted}
}

// storeRelations writes the lines of the knowledge graph that an entry says.
func (m *Memory) storeRelations(ctx context.Context, e subjects.MemoryEntry, relations []digest.Relation) error {
	if len(relations) == 0 || e.State != subjects.MemoryActive {
		return nil
	}
	lines := make([]store.RelationWrite, 0, len(relations))
	for _, r := range relations {
		lines = append(lines, store.RelationWrite{Single: r.Single, Relation: subjects.Relation{
			ID: deriveID("relation", e.ID, r.Subject, r.Predicate, r.Object, r.Tense), Subject: r.Subject, Predicate: r.Predicate, Object: r.Object, Kind: r.Kind,
			Tense: r.Tense, From: r.From, Until: r.Until, Entry: e.ID, Trust: e.Provenance.Trust, Said: e.Created,
		}})
	}
	if err := m.unaudited.PutRelations(ctx, lines...); err != nil {
		return fmt.Errorf("writing what %s says of people and places: %w", e.ID, err)
	}
	return nil
}

// emitStored says what was done.
func (m *Memory) emitStored(ctx context.Context, out actor.Out, ev subjects.MemoryEvent) error {
	return actor.Emit(ctx, out.WithIDs(ev.SessionID, ev.QueryID), subjects.MemoryStored, ev)
}

// emitStoredOnce says what became of something that may be handed in again, under an id that nobody can guess and that is the
// same then, whatever became of it.
func (m *Memory) emitStoredOnce(ctx context.Context, out actor.Out, id string, ev subjects.MemoryEvent) error {
	return actor.EmitOnce(ctx, out.WithIDs(ev.SessionID, ev.QueryID), subjects.MemoryStored, m.hash.Hash([]byte("stored "+id)), ev)
}
