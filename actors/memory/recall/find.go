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

// Query is what is looked for.
type Query struct {
	Text   string
	Vector []float32 // of the text; nil = by words only
	Kind   string    // of this kind only
	All    bool      // superseded rows and candidates too
	Names  int       // 0 = as in [Options]
	Top    int       // 0 = as in [Options]
	// Twins shows rows that say the same, all of them: who wants to forget something wants to forget it everywhere.
	Twins bool
	// Among are the only rows whose names are compared, when it is not nil: an approximate index chose them.
	Among []uint64
}

// Candidate is a row that was found. The reasons add up to the score.
type Candidate struct {
	Row
	Similarity float64 // -1 to 1
	Score      float64 // what it is ranked by: similarity and shifts
	Reasons    []subjects.MemoryReason
}

// Found is what came out.
type Found struct {
	Names []Candidate // nearest by name, and by words when they count; scored by no more than that
	Top   []Candidate // what is left in the end, best first
	Why   string      // why Top is empty
	// Waiting is how many rows were not yet to be found by words. They are found by their vectors.
	Waiting int
}

// mostOfName is how many rows of the same name go on to the second stage. It shows only the best of them, and the others
// would take the places of something else.
const mostOfName = 3

// wider is how many times more names are compared than go on, so that rows of the same name can be left behind.
const wider = 2

// candidate is a row on its way.
type candidate struct {
	key     uint64
	rec     *record
	like    likeness
	reasons []subjects.MemoryReason // without words
	sim     float64
	score   float64
	room    [8]subjects.MemoryReason // for reasons: there are never more
}

// Find looks for the rows that have most to do with the query.
func (r *Recall) Find(q Query) (Found, error) {
	names, top := cmp.Or(q.Names, r.o.Names), cmp.Or(q.Top, r.o.Top)
	switch {
	case q.Vector == nil && strings.TrimSpace(q.Text) == "":
		return Found{}, ErrEmpty
	case names < 0 || top < 0:
		return Found{}, fmt.Errorf("recall of %d names and %d at the end: both must be at least 1", names, top)
	}
	if err := r.checkVector(q.Vector); err != nil {
		return Found{}, fmt.Errorf("looking for it: %w", err)
	}
	names = max(names, top)
	byWords := r.o.Hybrid || q.Vector == nil
	if q.Vector == nil && r.waiting.Load() > 0 {
		// There is nothing else to find rows by, and half of them would be worse than a moment.
		if err := r.Warm(context.Background()); err != nil {
			return Found{}, err
		}
	}
	found := Found{Waiting: int(r.waiting.Load())}

	first, said, err := r.first(q, names, byWords)
	if err != nil {
		return Found{}, err
	}
	now := r.o.Now()
	found.Names = told(first, said, now)
	second, err := r.second(q, first, now)
	if err != nil {
		return Found{}, err
	}
	found.Top = told(r.apart(second, top, q.Twins), said, now)
	if len(found.Top) == 0 {
		found.Why = r.why(q, second, said)
	}
	return found, nil
}

// nearest are the rows whose names are nearest: of all, or of those that somebody else has chosen.
func (r *Recall) nearest(q Query, most int, keep func(uint64) bool) ([]vector.Hit, error) {
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

// first is the first stage: the rows whose names are nearest, and those that share most words, together the best.
func (r *Recall) first(q Query, names int, byWords bool) ([]*candidate, *said, error) {
	keep, said := r.table.keep(q.Kind, q.All), &said{}
	near := make(map[uint64]float32, (wider+1)*names)
	var keys []uint64
	if q.Vector != nil {
		hits, err := r.nearest(q, wider*names, keep)
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
		if rec == nil || !q.counts(rec) { // it went or changed a moment ago
			continue
		}
		c := &room[i]
		c.key, c.rec = key, rec
		c.like.name, c.like.vectors = near[key]
		if s := said.of(uint32(key)); s.found != 0 {
			c.like.share, c.like.found = s.share, s.found
		}
		c.reasons = r.o.Weights.similarity(c.room[:0], c.like, false)
		c.sim = total(c.reasons)
		c.score = c.sim
		list = append(list, c)
	}
	slices.SortFunc(list, better)
	if q.Twins {
		return list[:min(len(list), names)], said, nil
	}
	return r.fewOfName(list, names, r.o.Now()), said, nil
}

// counts reports whether a row is among those that are looked for. It is asked for each row that is found, because the row may
// have changed since the search began.
func (q Query) counts(rec *record) bool {
	return (q.Kind == "" || rec.is.kind == q.Kind) && (q.All || rec.found())
}

// better orders by score; among equals the older row comes first, so that the order is always the same.
func better(a, b *candidate) int {
	return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.key, b.key))
}

// second is the second stage: the descriptions are compared, and what others thought is added. first is changed.
func (r *Recall) second(q Query, first []*candidate, now time.Time) ([]*candidate, error) {
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
		if c.like.vectors {
			c.like.description, c.like.vectors = near[c.key]
		}
		c.reasons = r.o.Weights.similarity(c.room[:0], c.like, true)
		c.sim = total(c.reasons)
		c.reasons = r.o.Weights.shifts(c.reasons, c.rec, now)
		c.score = total(c.reasons)
	}
	slices.SortFunc(first, better)
	return first, nil
}

// low reports whether a row has too little to do with the query: better nothing than anything.
func (r *Recall) low(c *candidate) bool { return c.like.share == 0 && c.sim < r.o.Floor }

// why says why nothing was found.
func (r *Recall) why(q Query, second []*candidate, said *said) string {
	s := r.Stats()
	switch {
	case s.Rows == 0:
		return "nothing is remembered yet"
	case len(second) > 0:
		most := slices.MaxFunc(second, func(a, b *candidate) int { return cmp.Compare(a.sim, b.sim) })
		return fmt.Sprintf("nothing is near enough: the nearest is %q with a similarity of %.2f, and less than %.2f does not count", most.rec.name(), most.sim, r.o.Floor)
	case q.Vector == nil && len(said.words) == 0:
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

// told is candidates as others see them.
func told(list []*candidate, said *said, now time.Time) []Candidate {
	out := make([]Candidate, len(list))
	for i, c := range list {
		out[i] = Candidate{Row: c.rec.row(c.key), Similarity: c.sim, Score: c.score, Reasons: c.explained(said, now)}
	}
	return out
}
