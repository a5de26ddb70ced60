package recall

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"conclave/pkg/vector"
	"conclave/subjects"
)

// Query is a search.
type Query struct {
	Text   string
	Vector []float32 // of the text; nil = by words only
	Kind   string    // of this kind only
	All    bool      // superseded rows and candidates too
	// Trusted leaves out untrusted rows.
	Trusted bool
	// Alone has a row count for what it says itself: its neighbours in the conversation do not lift it.
	Alone bool
	Names int // how many [Found.Names] shows; 0 = 20, and at least Top
	Top   int // rows of the result; 0 = 5
	// Duplicates shows rows that say the same, all of them: a caller that forgets something wants to forget it
	// everywhere.
	Duplicates bool
	// Exhaustive scores every row. The result is the same and takes much longer: it is the reference of measurements.
	Exhaustive bool
}

// Defaults of a query.
const (
	defaultNames = 20
	defaultTop   = 5
)

// Found is the result of a search. Its entries have no texts; the reasons of a hit add up to its score. Similarity is
// between -1 and 1: the best cosine of the row's vectors, or [Weights.Alone] times the share of the query's words where
// no vectors could be compared.
type Found struct {
	Names []subjects.MemoryHit // the first rows that were scored, best first, with duplicates and those below the floor
	Top   []subjects.MemoryHit // the result, best first: the same as if every row had been scored
}

// Find returns the rows that match the query best, with the reasons. It fails with [ErrEmpty] when the query has
// neither words nor a vector, for negative Names or Top, and for a vector of another size, of zeros or not finite. No
// match is no error. A query without a vector, or with one that is made of words, waits for [Recall.IndexWords], others
// only for the last wordBatch rows.
func (r *Recall) Find(q Query) (Found, error) {
	names, top := cmp.Or(q.Names, defaultNames), cmp.Or(q.Top, defaultTop)
	switch {
	case q.Vector == nil && strings.TrimSpace(q.Text) == "":
		return Found{}, ErrEmpty
	case names < 0 || top < 0:
		return Found{}, fmt.Errorf("recall of %d names and %d at the end: both must be at least 1", names, top)
	}
	if q.Vector != nil {
		if err := vector.Check(q.Vector, r.o.Dims); err != nil {
			return Found{}, fmt.Errorf("searching memory: %w", err)
		}
	}
	names = max(names, top)
	r.mu.RLock()
	if n := len(r.unindexed); n > 0 && (q.Vector == nil || r.o.Hashed || n <= wordBatch) {
		r.mu.RUnlock()
		if err := r.IndexWords(context.Background()); err != nil {
			return Found{}, err
		}
		r.mu.RLock()
	}
	defer r.mu.RUnlock()
	s := r.newSearch(q)
	defer s.words.release()
	best, err := s.findTop(top)
	if err != nil {
		return Found{}, err
	}
	return Found{Names: s.hits(s.scored[:min(names, len(s.scored))]), Top: s.hits(best)}, nil
}

// admits reports whether the query asks for rows of this kind, state and trust.
func (q Query) admits(rec *record) bool {
	return (q.Kind == "" || rec.kind == q.Kind) && (q.All || rec.isRecallable()) &&
		(!q.Trusted || rec.isTrusted())
}

// isBelowFloor reports whether a row has too little to do with the query to be shown: it shares no word, and neither
// its similarity nor its neighbours bring it to minSimilarity.
func (r *Recall) isBelowFloor(c *candidate) bool {
	return c.share == 0 && (c.near < r.floor || c.near == 0)
}
