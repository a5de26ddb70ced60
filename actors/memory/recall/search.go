package recall

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"conclave/pkg/date"
	"conclave/pkg/vector"
	"conclave/subjects"
)

// The exact search. One pass over all vectors gives an upper bound of the base of each row. Let maxExtra be the largest
// sum of what speaker, time and shifts add to any row. A lift by neighbours never brings a row above the best base of
// itself and its neighbours. So a row whose score reaches some value has itself, or next to it, a row whose base
// reaches that value minus maxExtra. [search.collectRows] enumerates all rows with such a bound, and scores them and
// their neighbours; what it leaves out cannot reach the value.

const (
	// firstFactor is how many times as many rows as wanted a search begins with, at least minFirst.
	firstFactor, minFirst = 3, 48
	// slack covers the rounding of bounds.
	slack = 1e-6
)

// search is one search. It is used by one goroutine.
type search struct {
	r        *Recall
	q        Query
	now      time.Time
	question question
	words    *wordQuery
	maxExtra float64 // upper bound of what speaker, time and shifts add to a row

	bounds  []bound
	rows    map[uint64]*candidate // rows whose base is known; nil = not admitted
	scored  []*candidate
	reached float64 // every row whose score reaches it is scored
}

// candidate is a row during a search.
type candidate struct {
	rec *record
	match
	base     float64
	near     float64 // base and lift by neighbours
	score    float64
	isScored bool
	beside   []uint64 // neighbours that the query admits
	besides  [2]uint64
}

// bound is an upper bound of the base of a row.
type bound struct {
	key    uint64
	base   float64
	counts bool // false = it is below the floor by itself
}

// newSearch prepares a search. The caller must hold mu until it is done, and release words.
func (r *Recall) newSearch(q Query) *search {
	s := &search{
		r: r, q: q, now: r.o.Now(), words: &wordQuery{}, rows: map[uint64]*candidate{}, reached: math.Inf(-1),
	}
	s.question = question{
		r.speakers.findNamed(q.Text), date.FindRanges(q.Text[:min(len(q.Text), maxQueryBytes)], s.now),
	}
	if r.o.Hybrid || q.Vector == nil {
		s.words = r.words.search(q.Text)
	}
	if len(s.question.speakers) > 0 {
		s.maxExtra += r.o.Weights.Speaker
	}
	if len(s.question.dates) > 0 {
		s.maxExtra += r.o.Weights.When
	}
	if r.shifted > 0 { // age only takes away
		s.maxExtra += r.o.Weights.Bound
	}
	return s
}

// findTop returns the best top rows. It leaves the rows that were scored in s.scored, best first.
func (s *search) findTop(top int) ([]*candidate, error) {
	if s.q.Exhaustive {
		all := make([]uint64, len(s.r.rows)*pageSize)
		for key := range all {
			all[key] = uint64(key)
		}
		err := s.scoreRows(all)
		slices.SortFunc(s.scored, compareCandidates)
		return s.r.selectTop(s.scored, top, s.q.Duplicates), err
	}
	if err := s.boundRows(); err != nil {
		return nil, err
	}
	if err := s.scoreRows(s.selectFirstRows(max(firstFactor*top, minFirst))); err != nil {
		return nil, err
	}
	for s.reached = math.Inf(1); ; {
		slices.SortFunc(s.scored, compareCandidates)
		best := s.r.selectTop(s.scored, top, s.q.Duplicates)
		last := math.Inf(-1)
		if len(best) == top {
			last = best[top-1].score
		}
		// A better row may hide duplicates, so that the last one is worse than before.
		if last >= s.reached {
			return best, nil
		}
		if err := s.collectRows(last); err != nil {
			return nil, err
		}
	}
}

// boundRows bounds the base of every row, also of those that the query does not admit. A row with several vectors has a
// bound for each. Records are all over the memory: they are read only for rows without vectors.
func (s *search) boundRows() error {
	w, floor := s.r.o.Weights, s.r.floor-slack
	if s.q.Vector == nil || s.r.vectors[ofCorpus].Len() < s.r.count {
		for key, share := range s.words.matches() {
			rec := s.admitted(key)
			if rec != nil && (s.q.Vector == nil || !rec.vectors) {
				s.bounds = append(s.bounds, bound{key, w.base(match{share: share}), true})
			}
		}
	}
	if s.q.Vector == nil {
		return nil
	}
	shares, all := s.words.shares(), 0
	for _, x := range s.r.vectors {
		all += x.Len()
	}
	s.bounds = slices.Grow(s.bounds, all)
	for _, x := range s.r.vectors {
		hits, err := x.Bounds(s.q.Vector)
		if err != nil {
			return fmt.Errorf("comparing vectors: %w", err)
		}
		for _, h := range hits {
			similarity, share := w.cosine*float64(h.Cosine), shares.get(h.Key)
			base := similarity + w.Words*float64(share)
			s.bounds = append(s.bounds, bound{h.Key, base, share > 0 || similarity >= floor})
		}
	}
	return nil
}

// selectFirstRows returns the rows with the n largest bounds that the query admits.
func (s *search) selectFirstRows(n int) []uint64 {
	best := make([]bound, 0, n+1)
	for _, b := range s.bounds {
		if len(best) == n && b.base <= best[n-1].base || !s.admits(b.key) {
			continue
		}
		at, _ := slices.BinarySearchFunc(best, b, func(x, b bound) int { return cmp.Compare(b.base, x.base) })
		best = slices.Insert(best, at, b)
		best = best[:min(n, len(best))]
	}
	keys := make([]uint64, len(best))
	for i, b := range best {
		keys[i] = b.key
	}
	return keys
}

// collectRows scores every row whose score may reach value.
func (s *search) collectRows(value float64) error {
	s.reached = value
	var keys []uint64
	for _, b := range s.bounds {
		if b.counts && b.base+s.maxExtra >= value-slack && s.mayReach(b, value) {
			keys = append(keys, b.key)
		}
	}
	return s.scoreRows(keys)
}

// mayReach reports whether a row with this bound, or a neighbour of that row for its sake, can have a score of at least
// value. It is false for rows that are scored, and for those that the query does not admit.
func (s *search) mayReach(b bound, value float64) bool {
	rec := s.admitted(b.key)
	if rec == nil || s.isDone(b.key) {
		return false
	}
	extra := s.boundExtra(rec)
	var buffer [2]uint64
	for _, beside := range rec.beside.appendNeighbours(buffer[:0], rec.turn(), s.admits) {
		extra = max(extra, s.boundExtra(s.r.rows.get(beside)))
	}
	return b.base+extra >= value-slack
}

// boundExtra returns an upper bound of what speaker, time and shifts add to a row: all but the age of a row without
// grades.
func (s *search) boundExtra(rec *record) (most float64) {
	w := s.r.o.Weights
	if rec.speaker != nil && s.question.speakers[rec.speaker] {
		most += w.Speaker
	}
	if len(s.question.dates) > 0 {
		most += w.When * rateCloseness(s.question.dates, rec.time())
	}
	if rec.grades != nil || rec.pinned {
		var buffer [maxReasons]subjects.MemoryReason
		most += sumReasons(w.appendShifts(buffer[:0], rec, s.now))
	}
	return most
}

// isDone reports whether a row is scored, or known not to be admitted.
func (s *search) isDone(key uint64) bool {
	c, ok := s.rows[key]
	return ok && (c == nil || c.isScored)
}

// admitted returns the row with this key, nil when there is none that the query admits.
func (s *search) admitted(key uint64) *record {
	if rec := s.r.rows.get(key); rec != nil && s.q.admits(rec) {
		return rec
	}
	return nil
}

// admits reports whether there is a row with this key that the query admits.
func (s *search) admits(key uint64) bool { return s.admitted(key) != nil }

// scoreRows scores rows, and the neighbours of those that may lift one to what the search has reached. Rows that were
// scored before are skipped.
func (s *search) scoreRows(keys []uint64) error {
	if err := s.loadRows(keys); err != nil {
		return err
	}
	list := s.addCandidates(make([]*candidate, 0, len(keys)), keys)
	var beside []uint64
	for _, some := range [][]*candidate{s.scored, list} {
		for _, c := range some {
			beside = s.appendLifted(beside, c)
		}
	}
	if err := s.loadRows(beside); err != nil {
		return err
	}
	list = s.addCandidates(list, beside)
	beside = beside[:0]
	for _, c := range list {
		beside = append(beside, c.beside...)
	}
	if err := s.loadRows(beside); err != nil {
		return err
	}
	for _, c := range list {
		var buffer [maxReasons]subjects.MemoryReason
		c.near = c.base + s.computeLift(c)
		c.score = sumReasons(s.appendReasons(buffer[:0], c))
	}
	s.scored = append(s.scored, list...)
	return nil
}

// appendLifted appends the neighbours of a row that are not scored and that it may lift to what the search has reached.
func (s *search) appendLifted(keys []uint64, c *candidate) []uint64 {
	if c.base+s.maxExtra < s.reached-slack {
		return keys
	}
	for _, key := range c.beside {
		if !s.isDone(key) && c.base+s.boundExtra(s.r.rows.get(key)) >= s.reached-slack {
			keys = append(keys, key)
		}
	}
	return keys
}

// addCandidates appends the rows of keys that are admitted and not scored to list, each once, and finds their
// neighbours.
func (s *search) addCandidates(list []*candidate, keys []uint64) []*candidate {
	for _, key := range keys {
		if c := s.rows[key]; c != nil && !c.isScored {
			c.isScored = true
			if !s.q.Alone {
				c.beside = c.rec.beside.appendNeighbours(c.besides[:0], c.rec.turn(), s.admits)
			}
			list = append(list, c)
		}
	}
	return list
}

// loadRows compares the rows of keys with the query, each once in a search.
func (s *search) loadRows(keys []uint64) error {
	missing := make([]uint64, 0, len(keys))
	for _, key := range keys {
		if _, ok := s.rows[key]; ok {
			continue
		}
		s.rows[key] = nil
		if rec := s.admitted(key); rec != nil {
			missing = append(missing, key)
			s.rows[key] = &candidate{rec: rec, match: s.words.match(rec.number)}
		}
	}
	if s.q.Vector != nil && len(missing) > 0 {
		for of, x := range s.r.vectors {
			if err := s.compareVectors(vectorOf(of), x, missing); err != nil {
				return fmt.Errorf("comparing vectors: %w", err)
			}
		}
	}
	for _, key := range missing {
		c := s.rows[key]
		c.base = s.r.o.Weights.base(c.match)
	}
	return nil
}

// compareVectors sets the best cosines of rows that have a vector in x. The rows must be in s.rows.
func (s *search) compareVectors(of vectorOf, x *vector.Index, keys []uint64) error {
	if x.Len() == 0 {
		return nil
	}
	hits, err := x.Cosines(s.q.Vector, keys)
	if err != nil {
		return err
	}
	for _, h := range hits {
		if c := s.rows[h.Key]; !c.vectors || h.Cosine > c.cosine {
			c.vectors, c.cosine, c.best = true, h.Cosine, of
		}
	}
	return nil
}

// computeLift returns what the neighbours of a row add to its base. Those of which nothing could be compared, and those
// that happened more than maxGap before or after it, do not count.
func (s *search) computeLift(c *candidate) float64 {
	best := c.base
	for _, key := range c.beside {
		if n := s.rows[key]; n != nil && (n.vectors || n.share > 0) && !areApart(c.rec, n.rec) {
			best = max(best, n.base)
		}
	}
	return s.r.o.Weights.Neighbours * (best - c.base)
}

// areApart reports whether two rows are known to have happened more than maxGap from each other.
func areApart(a, b *record) bool {
	return !a.happened.IsZero() && !b.happened.IsZero() && a.happened.Sub(b.happened).Abs() > maxGap
}

// maxReasons is how many reasons a row has at most.
const maxReasons = 9

// appendReasons appends the reasons of a scored row to an empty list, without texts. They add up to the score.
func (s *search) appendReasons(to []subjects.MemoryReason, c *candidate) []subjects.MemoryReason {
	w := s.r.o.Weights
	to = w.appendBase(to, c.match)
	if c.near > c.base {
		to = append(to, subjects.MemoryReason{What: whatNeighbours, Value: c.near - c.base})
	}
	to = w.appendContext(to, c.rec, s.question)
	return w.appendShifts(to, c.rec, s.now)
}

// hits returns candidates as entries without their texts, with explained reasons.
func (s *search) hits(list []*candidate) []subjects.MemoryHit {
	out := make([]subjects.MemoryHit, len(list))
	for i, c := range list {
		reasons := s.appendReasons(nil, c)
		for j := range reasons {
			reasons[j].Text = c.explainReason(reasons[j].What, s.words, s.now)
		}
		out[i] = subjects.MemoryHit{
			Entry: c.rec.entry(), Similarity: s.r.o.Weights.similarity(c.match), Score: c.score, Reasons: reasons,
		}
	}
	return out
}

// compareCandidates orders by score, then by key, so that the order is stable.
func compareCandidates(a, b *candidate) int {
	return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.rec.key, b.rec.key))
}
