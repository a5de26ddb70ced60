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

// findDuplicate returns the active entry whose content a new entry repeats, by content and not by name; false when
// there is none, and without vectors (v nil). Duplicates are merged only at the same trust. Another answer to the same
// query is not compared. Errors are logged.
func (m *Memory) findDuplicate(ctx context.Context, out actor.Out, db *access, e subjects.MemoryEntry,
	v *store.Vectors,
) (old subjects.MemoryEntry, found bool) {
	if v == nil {
		return old, false
	}
	similar, err := m.findSimilar(ctx, db, e, v)
	if err != nil {
		out.LogError(fmt.Errorf("looking for similar entries: %w", err))
		return old, false
	}
	for _, old := range similar {
		isAnswer := old.Provenance.QueryID != "" && old.Provenance.QueryID == e.Provenance.QueryID
		if old.ID != e.ID && old.State == subjects.MemoryActive && !isAnswer &&
			old.Provenance.Trust == e.Provenance.Trust && old.Respondent != subjects.RespondentB &&
			digest.IsRepeated(statementOf(old), statementOf(e)) {
			return old, true
		}
	}
	return old, false
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

// isUnchanged reports whether an entry is as it was read, but for a pin. An error is logged and means that it is not.
// The caller holds editMu.
func isUnchanged(ctx context.Context, out actor.Out, db *access, e subjects.MemoryEntry) bool {
	now, err := db.GetTexts(ctx, e.ID)
	if err != nil {
		out.LogError(fmt.Errorf("reading a compared entry again: %w", err))
	}
	return len(now) == 1 && now[0].State == subjects.MemoryActive && now[0].Updated.Equal(e.Updated)
}

// supersedeContradicted supersedes the entries with a relation that one of relations, which a model made of e,
// contradicts, and returns them with the first reason. An untrusted entry supersedes no trusted one, and pinned
// entries, documents and those that were said later or by another speaker stay. What respondent B said supersedes
// nothing. The relations of e must not be stored yet.
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
		Corpus: e.Corpus, Created: e.Created, Untrusted: e.Provenance.Trust != subjects.Trusted,
		Speaker: e.Speaker, Conversation: e.Conversation, Happened: e.Happened,
	}
	if e.CheckHappened(e.Created) != nil {
		s.Happened = time.Time{}
	}
	if e.Kind == subjects.KindEngram { // the user tells the same in two sessions of one day
		s.Conversation = ""
	}
	return s
}
