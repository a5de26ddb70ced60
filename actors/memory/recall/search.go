package recall

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"conclave/pkg/vector"
	"conclave/subjects"
)

// The exact search. Let maxExtra be the largest sum of what speaker, time and shifts add to any row. A lift by
// neighbours never brings a row above the best base of itself and its neighbours. So a row whose score reaches some
// value has itself, or next to it, a row whose base reaches that value minus maxExtra. [search.collectRows] enumerates
// all rows with such a base, and scores them and their neighbours; what it leaves out cannot reach the value.

const (
	// firstFactor is how many times as many rows as wanted a search begins with, at least minFirst.
	firstFactor, minFirst = 3, 48
	// maxByWords is about how many rows with the largest shares of words are scored whatever their vectors are.
	maxByWords = 256
	// slack covers the rounding of bounds.
	slack = 1e-6
)

// search is one search. It is used by one goroutine.
type search struct {
	r        *Recall
	q        Query
	now      time.Time
	question question
	admit    func(key uint64) bool // nil = every row; a hint, see [Query.admits]
	words    *wordQuery
	maxExtra float64 // upper bound of what speaker, time and shifts add to a row

	rows    map[uint64]*candidate // rows whose base is known; nil = not admitted
	scored  []*candidate
	reached float64 // every row whose score reaches it is scored
}

// candidate is a row during a search.
type candidate struct {
	key uint64
	rec *record
	match
	base     float64
	near     float64 // base and lift by neighbours
	score    float64
	isScored bool
	beside   []uint64 // neighbours that the query admits
	besides  [2]uint64
}

// newSearch prepares a search. The caller must release words.
func (r *Recall) newSearch(q Query) *search {
	s := &search{
		r: r, q: q, now: r.o.Now(), admit: r.table.filter(q), words: &wordQuery{},
		rows: map[uint64]*candidate{}, reached: math.Inf(-1),
	}
	s.question = question{r.speakers.findNamed(q.Text), parseDates(q.Text, s.now)}
	if r.o.Hybrid || q.Vector == nil {
		s.words = r.words.search(q.Text)
	}
	if len(s.question.speakers) > 0 {
		s.maxExtra += r.o.Weights.Speaker
	}
	if len(s.question.dates) > 0 {
		s.maxExtra += r.o.Weights.When
	}
	if r.table.shifted.Load() > 0 { // age only takes away
		s.maxExtra += r.o.Weights.Bound
	}
	return s
}

// findTop returns the best top rows. It leaves the rows that were scored in s.scored, best first.
func (s *search) findTop(top int) ([]*candidate, error) {
	if s.q.Exhaustive {
		err := s.scoreRows(s.r.table.keys())
		slices.SortFunc(s.scored, compareCandidates)
		return s.r.selectTop(s.scored, top, s.q.Duplicates), err
	}
	keys, err := s.selectFirstRows(max(firstFactor*top, minFirst))
	if err != nil {
		return nil, err
	}
	if err := s.scoreRows(keys); err != nil {
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

// selectFirstRows returns about n rows of each index that are likely to be the best. They need not be.
func (s *search) selectFirstRows(n int) (keys []uint64, err error) {
	if s.q.Vector != nil {
		for _, x := range s.r.vectors {
			hits, err := x.Nearest(s.q.Vector, n, s.admit)
			if err != nil {
				return nil, fmt.Errorf("comparing vectors: %w", err)
			}
			for _, h := range hits {
				keys = append(keys, h.Key)
			}
		}
	}
	least := s.chooseMinShare(n)
	for _, m := range s.words.matches() {
		if m.share >= least && s.admitsKey(uint64(m.key)) {
			keys = append(keys, uint64(m.key))
		}
	}
	return keys, nil
}

// collectRows scores every row whose score may reach value.
func (s *search) collectRows(value float64) error {
	s.reached = value
	o, w := s.r.o, s.r.o.Weights
	need := value - s.maxExtra - slack // base that itself or a neighbour of such a row has
	least := float32(0)
	if need >= o.Floor {
		least = s.chooseMinShare(maxByWords)
	}
	var keys []uint64
	for _, m := range s.words.matches() {
		if s.isDone(uint64(m.key)) || !s.admitsKey(uint64(m.key)) {
			continue
		}
		if s.q.Vector == nil || s.r.table.marks(uint64(m.key))&markVector == 0 {
			if w.base(match{share: m.share}) >= need {
				keys = append(keys, uint64(m.key))
			}
		} else if m.share >= least {
			keys = append(keys, uint64(m.key))
		}
	}
	if s.q.Vector != nil {
		floor := (max(need, o.Floor-slack) - w.Words*float64(least)) / w.cosine // of a cosine
		for _, x := range s.r.vectors {
			if x.Len() == 0 {
				continue
			}
			if err := x.Visit(s.q.Vector, float32(floor-slack), func(key uint64, upper float32) {
				if s.mayReach(key, upper, value) {
					keys = append(keys, key)
				}
			}); err != nil {
				return fmt.Errorf("comparing vectors: %w", err)
			}
		}
	}
	return s.scoreRows(keys)
}

// mayReach reports whether a row that has a vector with at most this cosine, or a neighbour of that row for its sake,
// can have a score of at least value. It is false for rows that are scored.
func (s *search) mayReach(key uint64, upper float32, value float64) bool {
	if !s.admitsKey(key) {
		return false
	}
	share := s.words.match(key).share
	similarity := s.r.o.Weights.cosine * float64(upper)
	if share == 0 && similarity < s.r.o.Floor-slack {
		return false
	}
	base := similarity + s.r.o.Weights.Words*float64(share)
	if base+s.maxExtra < value-slack {
		return false
	}
	rec := s.r.table.row(key)
	if rec == nil || s.isDone(key) {
		return false
	}
	extra := s.boundExtra(rec)
	var buffer [2]uint64
	for _, beside := range s.r.conversations.appendNeighbours(buffer[:0], rec.conversation, rec.turn(key),
		s.admitsKey) {
		if rec := s.r.table.row(beside); rec != nil {
			extra = max(extra, s.boundExtra(rec))
		}
	}
	return base+extra >= value-slack
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

// admitsKey reports whether the query admits the row with this key, as far as the marks tell.
func (s *search) admitsKey(key uint64) bool { return s.admit == nil || s.admit(key) }

// chooseMinShare returns a share of words that at most about most rows reach, 0 when all of them may.
func (s *search) chooseMinShare(most int) float32 {
	const steps = 256
	matches := s.words.matches()
	if len(matches) <= most {
		return 0
	}
	var counts [steps]int
	for _, m := range matches {
		if s.admitsKey(uint64(m.key)) {
			counts[min(int(m.share*steps), steps-1)]++
		}
	}
	total := 0
	for i := steps - 1; i >= 0; i-- {
		if total += counts[i]; total > most {
			return float32(i+1) / steps
		}
	}
	return 0
}

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
		if rec := s.r.table.row(key); rec != nil && !s.isDone(key) && c.base+s.boundExtra(rec) >= s.reached-slack {
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
			c.beside = s.r.conversations.appendNeighbours(c.besides[:0], c.rec.conversation, c.rec.turn(key),
				s.admitsKey)
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
		if rec := s.r.table.row(key); rec != nil && s.q.admits(rec) {
			missing = append(missing, key)
			found := s.words.match(key)
			s.rows[key] = &candidate{key: key, rec: rec, match: match{share: found.share, found: found.terms}}
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
	if a.happened == unknownTime || b.happened == unknownTime {
		return false
	}
	gap := time.UnixMicro(a.happened).Sub(time.UnixMicro(b.happened))
	return gap > maxGap || gap < -maxGap
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

// exportCandidates returns candidates with their rows and explained reasons.
func (s *search) exportCandidates(list []*candidate) []Candidate {
	out := make([]Candidate, len(list))
	for i, c := range list {
		reasons := s.appendReasons(nil, c)
		for j := range reasons {
			reasons[j].Text = c.explainReason(reasons[j].What, s.words, s.now)
		}
		out[i] = Candidate{
			Row: c.rec.row(c.key), Similarity: s.r.o.Weights.similarity(c.match), Score: c.score,
			Reasons: reasons,
		}
	}
	return out
}

// compareCandidates orders by score, then by key, so that the order is stable.
func compareCandidates(a, b *candidate) int {
	return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.key, b.key))
}
