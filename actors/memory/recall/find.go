package recall

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/pkg/vector"
	"conclave/subjects"
)

// Query is a search.
type Query struct {
	Text   string
	Vector []float32 // of the text; nil = by words only
	Kind   string    // of this kind only
	All    bool      // superseded rows and candidates too
	Names  int       // 0 = as in [Options]
	Top    int       // 0 = as in [Options]
	// Duplicates shows rows that say the same, all of them: a caller that forgets something wants to forget it everywhere.
	Duplicates bool
	// Among are the only rows whose names are compared, when it is not nil: an approximate index chose them.
	Among []uint64
}

// Candidate is a row that was found. The reasons add up to the score.
type Candidate struct {
	Row
	Similarity float64 // -1 to 1
	Score      float64 // similarity and shifts
	Reasons    []subjects.MemoryReason
}

// Found is the result of a search.
type Found struct {
	Names []Candidate // nearest by name, and by words when they count; scored by no more than that
	Top   []Candidate // the result, best first
	Why   string      // why Top is empty
	// Waiting is how many rows were not yet to be found by words. They are found by their vectors.
	Waiting int
}

// maxPerName is how many rows of the same name go on to the second stage. Only the best of them is shown, and more would
// displace others.
const maxPerName = 3

// nameFactor is how many times more names are compared than go on, so that rows of the same name can be dropped.
const nameFactor = 2

// candidate is a row during a search.
type candidate struct {
	key          uint64
	rec          *record
	likeness     likeness
	reasons      []subjects.MemoryReason // without words
	similarity   float64
	score        float64
	reasonBuffer [8]subjects.MemoryReason // for reasons: there are never more
}

// Find returns the rows that match the query best, with the reasons. It fails with [ErrEmpty] when the query has neither words
// nor a vector, for negative Names or Top, and for a vector of another size, of zeros or not finite. No match is no error:
// Found.Why says why. A query without a vector waits until the words of all loaded rows are indexed.
func (r *Recall) Find(q Query) (Found, error) {
	names, top := cmp.Or(q.Names, r.o.Names), cmp.Or(q.Top, r.o.Top)
	switch {
	case q.Vector == nil && strings.TrimSpace(q.Text) == "":
		return Found{}, ErrEmpty
	case names < 0 || top < 0:
		return Found{}, fmt.Errorf("recall of %d names and %d at the end: both must be at least 1", names, top)
	}
	if err := r.checkVector(q.Vector); err != nil {
		return Found{}, fmt.Errorf("searching memory: %w", err)
	}
	names = max(names, top)
	byWords := r.o.Hybrid || q.Vector == nil
	if q.Vector == nil && r.pending.Load() > 0 {
		// There is nothing else to find rows by, and half of them would be worse than a moment.
		if err := r.Warm(context.Background()); err != nil {
			return Found{}, err
		}
	}
	found := Found{Waiting: int(r.pending.Load())}

	first, said, err := r.findByName(q, names, byWords)
	if err != nil {
		return Found{}, err
	}
	now := r.o.Now()
	found.Names = exportCandidates(first, said, now)
	second, err := r.scoreCandidates(q, first, now)
	if err != nil {
		return Found{}, err
	}
	found.Top = exportCandidates(r.selectTop(second, top, q.Duplicates), said, now)
	if len(found.Top) == 0 {
		found.Why = r.explainEmpty(q, second, said)
	}
	return found, nil
}

// nearestNames returns at most most rows whose names are nearest to q.Vector, best first, among q.Among when it is not nil. keep
// admits rows; nil = all. q.Vector must not be nil.
func (r *Recall) nearestNames(q Query, most int, keep func(uint64) bool) ([]vector.Hit, error) {
	if q.Among == nil {
		return r.names.Nearest(q.Vector, most, keep)
	}
	hits, err := r.names.Cosines(q.Vector, slices.DeleteFunc(slices.Clone(q.Among), func(key uint64) bool { return keep != nil && !keep(key) }))
	if err != nil {
		return nil, err
	}
	slices.SortFunc(hits, func(a, b vector.Hit) int { return cmp.Or(cmp.Compare(b.Cosine, a.Cosine), cmp.Compare(a.Key, b.Key)) })
	return hits[:min(most, len(hits))], nil
}

// findByName is the first stage: the best names rows of those whose names are nearest and, with byWords, of those that share most
// words. They are scored by name and words only, best first. The second result holds the words of the query; it is never nil
// without an error.
func (r *Recall) findByName(q Query, names int, byWords bool) ([]*candidate, *wordQuery, error) {
	keep, said := r.table.filter(q.Kind, q.All), &wordQuery{}
	near := make(map[uint64]float32, (nameFactor+1)*names)
	var keys []uint64
	if q.Vector != nil {
		hits, err := r.nearestNames(q, nameFactor*names, keep)
		if err != nil {
			return nil, nil, fmt.Errorf("comparing names: %w", err)
		}
		for _, h := range hits {
			keys = append(keys, h.Key)
			near[h.Key] = h.Cosine
		}
	}
	if byWords {
		said = r.words.search(q.Text, names, keep, keys)
		var more []uint64
		for _, s := range said.best {
			if _, ok := near[uint64(s.key)]; !ok {
				more = append(more, uint64(s.key))
			}
		}
		keys = append(keys, more...)
		if q.Vector != nil && len(more) > 0 { // their names are compared too, so that all are measured by the same
			hits, err := r.names.Cosines(q.Vector, more)
			if err != nil {
				return nil, nil, fmt.Errorf("comparing names: %w", err)
			}
			for _, h := range hits {
				near[h.Key] = h.Cosine
			}
		}
	}
	list, room := make([]*candidate, 0, len(keys)), make([]candidate, len(keys))
	for i, key := range keys {
		rec := r.table.row(key)
		if rec == nil || !q.admits(rec) { // it went or changed a moment ago
			continue
		}
		c := &room[i]
		c.key, c.rec = key, rec
		c.likeness.name, c.likeness.vectors = near[key]
		if s := said.match(uint32(key)); s.terms != 0 {
			c.likeness.share, c.likeness.found = s.share, s.terms
		}
		c.reasons = r.o.Weights.appendSimilarity(c.reasonBuffer[:0], c.likeness, false)
		c.similarity = sumReasons(c.reasons)
		c.score = c.similarity
		list = append(list, c)
	}
	slices.SortFunc(list, compareCandidates)
	if q.Duplicates {
		return list[:min(len(list), names)], said, nil
	}
	return r.limitPerName(list, names, r.o.Now()), said, nil
}

// admits reports whether the query asks for rows of this kind and state. It is called for each row found, because the row may
// have changed since the search began.
func (q Query) admits(rec *record) bool {
	return (q.Kind == "" || rec.labels.kind == q.Kind) && (q.All || rec.isRecallable())
}

// compareCandidates orders by score, then by key, so that the order is stable.
func compareCandidates(a, b *candidate) int {
	return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.key, b.key))
}

// scoreCandidates is the second stage: it compares descriptions, adds the shifts and sorts, best first. It changes first in place
// and returns it. A row whose vectors were removed meanwhile is scored by words only.
func (r *Recall) scoreCandidates(q Query, first []*candidate, now time.Time) ([]*candidate, error) {
	near := make(map[uint64]float32, len(first))
	if q.Vector != nil {
		keys := make([]uint64, len(first))
		for i, c := range first {
			keys[i] = c.key
		}
		hits, err := r.descriptions.Cosines(q.Vector, keys)
		if err != nil {
			return nil, fmt.Errorf("comparing descriptions: %w", err)
		}
		for _, h := range hits {
			near[h.Key] = h.Cosine
		}
	}
	for _, c := range first {
		if c.likeness.vectors {
			c.likeness.description, c.likeness.vectors = near[c.key]
		}
		c.reasons = r.o.Weights.appendSimilarity(c.reasonBuffer[:0], c.likeness, true)
		c.similarity = sumReasons(c.reasons)
		c.reasons = r.o.Weights.appendShifts(c.reasons, c.rec, now)
		c.score = sumReasons(c.reasons)
	}
	slices.SortFunc(first, compareCandidates)
	return first, nil
}

// isBelowFloor reports whether a row has too little to do with the query to be shown: it shares no word and its similarity is
// below [Options.Floor].
func (r *Recall) isBelowFloor(c *candidate) bool {
	return c.likeness.share == 0 && c.similarity < r.o.Floor
}

// explainEmpty explains to a user why nothing was found. second are the candidates of the second stage, all of them below the
// floor.
func (r *Recall) explainEmpty(q Query, second []*candidate, said *wordQuery) string {
	s := r.Stats()
	switch {
	case s.Rows == 0:
		return "nothing is remembered yet"
	case len(second) > 0:
		most := slices.MaxFunc(second, func(a, b *candidate) int { return cmp.Compare(a.similarity, b.similarity) })
		return fmt.Sprintf("nothing is near enough: the nearest is %q with a similarity of %.2f, and less than %.2f does not count", most.rec.name(), most.similarity, r.o.Floor)
	case q.Vector == nil && len(said.terms) == 0:
		return "there is no word in the query"
	case q.Vector == nil:
		return "nothing has one of these words, and without a vector there is nothing else to compare"
	case q.Kind != "":
		return fmt.Sprintf("nothing of the kind %q is remembered", q.Kind)
	case s.Vectors == 0:
		return "nothing has one of these words, and no memory has a vector yet"
	}
	return "nothing that is remembered counts any more: it is superseded, or waits for a decision"
}

// exportCandidates returns candidates with their rows and explained reasons.
func exportCandidates(list []*candidate, said *wordQuery, now time.Time) []Candidate {
	out := make([]Candidate, len(list))
	for i, c := range list {
		out[i] = Candidate{Row: c.rec.row(c.key), Similarity: c.similarity, Score: c.score, Reasons: c.explainReasons(said, now)}
	}
	return out
}
