package memory

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"conclave/actors/memory/digest"
	"conclave/actors/memory/recall"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/subjects"
)

const (
	minCompareSimilarity = 0.6 // of an entry to be compared
	maxCompared          = 3
)

// comparison is the relation of a new entry to existing ones: at most one of duplicateOf and supersedes is set.
type comparison struct {
	duplicateOf string
	supersedes  []string
	why         string
	seen        map[string]time.Time // last update of each of these entries when it was compared
}

// compareWithSimilar compares a new entry with the most similar active ones by plain rules, by content and not by name;
// the zero result means that it stands beside them. Nothing is superseded by a guess: without vectors (v nil), and when
// the rules are not sure, both entries stay. An untrusted entry cannot supersede a trusted one, duplicates are merged
// only at the same trust, and pinned entries are never superseded. Another answer to the same query is not compared.
// Errors are logged.
func (m *Memory) compareWithSimilar(ctx context.Context, out actor.Out, db *access, e subjects.MemoryEntry,
	v *store.Vectors,
) (c comparison) {
	if v == nil {
		return c
	}
	c.seen = map[string]time.Time{}
	similar, err := m.findSimilar(ctx, db, e, v)
	if err != nil {
		out.LogError(fmt.Errorf("looking for similar entries: %w", err))
		return c
	}
	for _, old := range similar {
		if old.ID == e.ID || old.State != subjects.MemoryActive || old.Provenance.QueryID != "" &&
			old.Provenance.QueryID == e.Provenance.QueryID {
			continue
		}
		if old.Provenance.Trust == subjects.Trusted && e.Provenance.Trust != subjects.Trusted {
			continue
		}
		is := digest.Compare(statementOf(old), statementOf(e))
		switch {
		case is.Kind == digest.Same && old.Provenance.Trust == e.Provenance.Trust &&
			old.Respondent != subjects.RespondentB:
			return comparison{
				duplicateOf: old.ID, why: cmp.Or(is.Why, "it says the same"),
				seen: map[string]time.Time{old.ID: old.Updated},
			}
		case is.Kind == digest.Contradicts && !old.Pinned:
			c.supersedes, c.seen[old.ID] = append(c.supersedes, old.ID), old.Updated
			c.why = cmp.Or(c.why, is.Why, "it says otherwise")
		}
	}
	return c
}

// findSimilar returns at most maxCompared entries with a similarity to e of at least minCompareSimilarity, most similar
// first. Documents are left out; e itself may be among them. v must not be nil. It compares vectors alone: a whole text
// shares some word with most entries, and scoring them all took most of the time of a write.
func (m *Memory) findSimilar(ctx context.Context, db *access, e subjects.MemoryEntry,
	v *store.Vectors,
) ([]subjects.MemoryEntry, error) {
	found, err := m.searchIndex(recall.Query{Vector: v.Corpus})
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, f := range found.Top {
		if f.Entry.Kind != subjects.KindDocument && f.Similarity >= minCompareSimilarity && len(ids) < maxCompared {
			ids = append(ids, f.Entry.ID)
		}
	}
	return db.Get(ctx, ids...)
}

// recheckComparison returns c without what no longer holds: entries that were edited, superseded or forgotten while
// they were compared, and entries to supersede that were pinned. When they cannot be read, nothing holds. The caller
// holds editMu.
func recheckComparison(ctx context.Context, out actor.Out, db *access, c comparison) comparison {
	now, err := db.Get(ctx, slices.Collect(maps.Keys(c.seen))...)
	if err != nil {
		out.LogError(fmt.Errorf("reading compared entries again: %w", err))
		return comparison{}
	}
	changed := func(id string) bool {
		at := slices.IndexFunc(now, func(e subjects.MemoryEntry) bool { return e.ID == id })
		return at < 0 || now[at].State != subjects.MemoryActive || !now[at].Updated.Equal(c.seen[id]) ||
			now[at].Pinned && id != c.duplicateOf
	}
	if c.duplicateOf != "" && changed(c.duplicateOf) {
		c.duplicateOf = ""
	}
	c.supersedes = slices.DeleteFunc(c.supersedes, changed)
	return c
}

// supersedeContradicted supersedes the entries with a relation that one of relations, which a model made of e,
// contradicts, and returns them with the first reason. As in compareWithSimilar an untrusted entry supersedes no
// trusted one, and pinned entries, documents and those that were said later or by another speaker stay. What respondent
// B said supersedes nothing. The relations of e must not be stored yet.
func supersedeContradicted(ctx context.Context, db *access, e subjects.MemoryEntry,
	relations []digest.Relation,
) (olds []string, why string, err error) {
	if e.State != subjects.MemoryActive || e.Respondent == subjects.RespondentB {
		return nil, "", nil
	}
	reasons := map[string]string{}
	for _, r := range relations {
		known, err := db.Relations(ctx, store.GraphQuery{People: []string{r.Subject}, Limit: maxGraphLines})
		if err != nil {
			return nil, "", fmt.Errorf("reading relations of %s: %w", r.Subject, err)
		}
		for _, k := range known {
			if reason := r.Contradicts(digest.Relation{
				Subject: k.Subject, Predicate: k.Predicate, Object: k.Object, Tense: k.Tense,
			}); reason != "" && k.Entry != e.ID {
				reasons[k.Entry] = cmp.Or(reasons[k.Entry], reason)
			}
		}
	}
	entries, err := db.Get(ctx, slices.Sorted(maps.Keys(reasons))...)
	if err != nil {
		return nil, "", fmt.Errorf("reading contradicted entries: %w", err)
	}
	for _, old := range entries {
		if old.State == subjects.MemoryActive && !old.Pinned && old.Kind != subjects.KindDocument &&
			digest.CheckOrder(statementOf(old), statementOf(e)) == "" {
			olds, why = append(olds, old.ID), cmp.Or(why, reasons[old.ID])
		}
	}
	if len(olds) == 0 {
		return nil, "", nil
	}
	e.Supersedes = olds
	return olds, why, db.Supersede(ctx, e)
}

// statementOf returns what an entry claims. A time in the future, as earlier versions accepted it, counts as unknown.
func statementOf(e subjects.MemoryEntry) digest.Statement {
	s := digest.Statement{
		Description: e.Description, Corpus: e.Corpus, Created: e.Created,
		Untrusted: e.Provenance.Trust != subjects.Trusted,
		Speaker:   e.Speaker, Conversation: e.Conversation, Happened: e.Happened,
	}
	if e.CheckHappened(e.Created) != nil {
		s.Happened = time.Time{}
	}
	if e.Kind == subjects.KindEngram { // the user tells the same in two sessions of one day
		s.Conversation = ""
	}
	return s
}
