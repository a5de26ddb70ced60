package recall

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"

	"conclave/pkg/text"
)

// Bounds of the index of words. What lies beyond is found by what lies before.
const (
	maxQueryTerms       = 32      // words of a query that count: one bit each
	maxQueryBytes       = 4 << 10 // bytes of a query that are read
	maxNameBytes        = 512     // bytes of a row's parts
	maxDescriptionBytes = 2 << 10
	maxTextBytes        = 2000
	maxTags             = 32
	maxRows             = 1 << 26 // a posting is a number of this size and how often
	maxCount            = 1<<6 - 1
	minSweep            = 1024 // removed rows before their postings are looked for
)

// Parameters of BM25.
const (
	bm25K1 = 0.9
	bm25B  = 0.4
)

// maxStems is how many words the index remembers with their terms, to stem each once.
const maxStems = 1 << 15

// wordIndex compares rows with queries by words, with BM25 over stems. The score is a share: 1 is a row that has every
// word of the query again and again, 0 one that has none.
//
// Rows get a new number each time they are written, so that a number never stands for two texts. Numbers of removed
// rows stay in the posting lists until a sweep has removed them; only then are they reused. The caller of add and
// remove excludes all others.
type wordIndex struct {
	terms       map[string]uint32
	lists       [][]posting  // by term
	docs        []indexedRow // by number; 0 is none
	live        int
	totalLength int // of all live ones

	dead []uint32 // numbers that no sweep has taken out
	free []uint32

	splitter    text.TermSplitter // for writing
	stemmer     stemmer           // for writing
	stems       map[string]uint32 // for writing: the terms of words, as they were written; at most maxStems
	rowTerms    []uint32          // for writing: the terms of a row
	scratchPool sync.Pool
}

type (
	posting    uint32 // number of the row, and how often
	indexedRow struct {
		key    uint64
		length uint16
		live   bool
	}
	// tally is what a search has counted for a row.
	tally struct {
		score float32
		terms uint32 // words of the query, a bit each
	}
	scratch struct {
		tallies []tally // by number; all zero between searches
		touched []uint32
		shares  paged[float32] // by key; all zero between searches
		split   text.TermSplitter
		stemmer stemmer
	}
)

func newWordIndex() *wordIndex {
	return &wordIndex{
		terms: map[string]uint32{}, stems: map[string]uint32{}, docs: make([]indexedRow, 1),
		scratchPool: sync.Pool{New: func() any { return new(scratch) }},
	}
}

// add indexes the beginnings of the texts of a row and returns its number, 0 when the index is full (maxRows). A name
// or a description that is part of the text, which is that of [subjects.MemoryEntry.SearchText], is not counted again.
func (x *wordIndex) add(rec *record, description, text string) (number uint32) {
	n, ok := x.allocate()
	if !ok {
		return 0
	}
	x.rowTerms = x.rowTerms[:0]
	size := x.readTerms(text, maxTextBytes)
	for _, part := range []struct {
		s    string
		most int
	}{{rec.name, maxNameBytes}, {description, maxDescriptionBytes}} {
		from := len(x.rowTerms)
		more := x.readTerms(part.s, part.most)
		if contains(x.rowTerms[:from], x.rowTerms[from:]) {
			x.rowTerms, more = x.rowTerms[:from], 0
		}
		size += more
	}
	for _, tag := range rec.tags[:min(len(rec.tags), maxTags)] {
		size += x.readTerms(tag, maxNameBytes)
	}
	slices.Sort(x.rowTerms)
	for i := 0; i < len(x.rowTerms); {
		term, times := x.rowTerms[i], uint32(0)
		for ; i < len(x.rowTerms) && x.rowTerms[i] == term; i++ {
			times++
		}
		x.lists[term] = append(x.lists[term], posting(n<<6|min(times, maxCount)))
	}
	x.docs[n] = indexedRow{key: rec.key, length: uint16(min(size, math.MaxUint16)), live: true}
	x.live++
	x.totalLength += int(x.docs[n].length)
	return n
}

// remove removes the row with this number; 0 is ignored. The number is reused after a sweep.
func (x *wordIndex) remove(number uint32) {
	if number == 0 {
		return
	}
	x.live--
	x.totalLength -= int(x.docs[number].length)
	x.docs[number].live = false
	x.dead = append(x.dead, number)
	x.sweep()
}

// allocate returns a number that no posting list holds. It is not ok when the index has maxRows numbers and none is
// free.
func (x *wordIndex) allocate() (n uint32, ok bool) {
	if last := len(x.free) - 1; last >= 0 {
		n, x.free = x.free[last], x.free[:last]
		return n, true
	}
	if len(x.docs) == maxRows {
		return 0, false
	}
	x.docs = append(x.docs, indexedRow{})
	return uint32(len(x.docs) - 1), true
}

// readTerms appends the terms of the first most bytes of a text to x.rowTerms, in order, and returns the number of
// words.
func (x *wordIndex) readTerms(s string, most int) (words int) {
	x.splitter.Each(s[:min(len(s), most)], func(word []byte, single bool) {
		x.rowTerms = append(x.rowTerms, x.termID(word))
		if !single {
			words++
		}
	})
	return words
}

// contains reports whether part is a run within all.
func contains(all, part []uint32) bool {
	for i := 0; i+len(part) <= len(all); i++ {
		if slices.Equal(all[i:i+len(part)], part) {
			return true
		}
	}
	return false
}

// termID returns the number of the term of a word, adding it when it is new. word is copied.
func (x *wordIndex) termID(word []byte) uint32 {
	if id, ok := x.stems[string(word)]; ok {
		return id
	}
	stem := x.stemmer.stem(word)
	id, ok := x.terms[stem]
	if !ok {
		id = uint32(len(x.lists))
		x.terms[strings.Clone(stem)] = id
		x.lists = append(x.lists, nil)
	}
	if len(x.stems) >= maxStems {
		clear(x.stems)
	}
	x.stems[string(word)] = id
	return id
}

// sweep removes the dead rows from all posting lists, and terms without rows, which are renumbered. It does nothing
// until at least minSweep rows are dead, and a quarter as many as are live.
func (x *wordIndex) sweep() {
	if len(x.dead) < minSweep || len(x.dead) < x.live/4 {
		return
	}
	terms, lists := map[string]uint32{}, make([][]posting, 0, len(x.lists))
	for word, id := range x.terms {
		list := slices.DeleteFunc(x.lists[id], func(p posting) bool { return !x.docs[p>>6].live })
		if len(list) > 0 {
			terms[word] = uint32(len(lists))
			lists = append(lists, slices.Clone(list)) // without the room of those that went
		}
	}
	x.terms, x.lists = terms, lists
	clear(x.stems)
	x.free, x.dead = append(x.free, x.dead...), nil
}

// queryTerm is one word of a query.
type queryTerm struct {
	word     string // as it was written, folded
	weight   float64
	postings []posting
}

// wordQuery is a query with every row that shares words with it. It serves one search, which must release it.
type wordQuery struct {
	terms       []queryTerm
	totalWeight float64 // of the rarities
	tmp         *scratch
	index       *wordIndex
}

// match returns what the row with this number shares with the query. The result is valid until release.
func (s *wordQuery) match(number uint32) match {
	if s.tmp == nil || s.tmp.tallies[number].terms == 0 {
		return match{}
	}
	t := s.tmp.tallies[number]
	return match{share: float32(min(float64(t.score)/s.totalWeight, 1)), found: t.terms}
}

// matches returns the keys of all rows that share a word with the query, and what they share, in no order.
func (s *wordQuery) matches() iter.Seq2[uint64, float32] {
	return func(yield func(uint64, float32) bool) {
		if s.tmp == nil {
			return
		}
		for _, number := range s.tmp.touched {
			if d := s.index.docs[number]; d.live && !yield(d.key, s.match(number).share) {
				return
			}
		}
	}
}

// shares returns what each row shares with the query, by its key. The result is valid until release.
func (s *wordQuery) shares() paged[float32] {
	if s.tmp == nil {
		return nil
	}
	for key, share := range s.matches() {
		s.tmp.shares.set(key, share)
	}
	return s.tmp.shares
}

// release returns the memory of the matches. The words stay.
func (s *wordQuery) release() {
	if s.tmp == nil {
		return
	}
	for key := range s.matches() {
		if s.tmp.shares.get(key) != 0 {
			s.tmp.shares.set(key, 0)
		}
	}
	for _, number := range s.tmp.touched {
		s.tmp.tallies[number] = tally{}
	}
	s.tmp.touched = s.tmp.touched[:0]
	s.index.scratchPool.Put(s.tmp)
	s.tmp = nil
}

// explain names the words of the query whose bits are set in found, for users.
func (s *wordQuery) explain(found uint32) string {
	var list []string
	for i, w := range s.terms {
		if found&(1<<i) != 0 {
			list = append(list, w.word)
		}
	}
	return "words: " + strings.Join(list, ", ")
}

// search returns the query with every row that shares a word with it. The caller must release the result, which is
// never nil; a query without words has no terms and matches nothing.
func (x *wordIndex) search(query string) *wordQuery {
	tmp := x.scratchPool.Get().(*scratch)
	s := x.parseQuery(query, tmp)
	s.tmp, s.index = tmp, x
	if len(tmp.tallies) < len(x.docs) {
		tmp.tallies = make([]tally, len(x.docs)+len(x.docs)/4)
	}
	x.tallyRows(s, tmp)
	return s
}

// parseQuery splits the first maxQueryBytes of a query into at most maxQueryTerms different terms; beyond that the
// rarest that some row has are kept. Stop words, and words that more than half of the rows have, count only when there
// are no others.
func (x *wordIndex) parseQuery(query string, tmp *scratch) *wordQuery {
	var telling, rest []queryTerm
	seen := map[string]bool{}
	tmp.split.Each(query[:min(len(query), maxQueryBytes)], func(word []byte, single bool) {
		if single {
			return
		}
		shown := string(word)
		stemmed := tmp.stemmer.stem(word)
		if seen[stemmed] {
			return
		}
		seen[stemmed] = true
		a := queryTerm{word: shown}
		if id, ok := x.terms[stemmed]; ok {
			a.postings = x.lists[id]
		}
		n := float64(len(a.postings))
		a.weight = math.Log(1 + (max(float64(x.live)-n, 0)+0.5)/(n+0.5))
		if stopWords(shown) || x.live >= 8 && len(a.postings) > x.live/2 {
			rest = append(rest, a)
		} else {
			telling = append(telling, a)
		}
	})
	s := &wordQuery{terms: telling}
	if len(telling) == 0 {
		s.terms = rest
	}
	if len(s.terms) > maxQueryTerms { // those that some row has, the rarest first
		slices.SortStableFunc(s.terms, func(a, b queryTerm) int {
			return cmp.Or(cmp.Compare(min(len(b.postings), 1), min(len(a.postings), 1)),
				cmp.Compare(b.weight, a.weight))
		})
		s.terms = s.terms[:maxQueryTerms]
	}
	for _, w := range s.terms {
		s.totalWeight += w.weight
	}
	return s
}

// tallyRows adds up the BM25 score of each row in tmp.tallies, which must be zero and hold all numbers, and lists the
// rows in tmp.touched. Dead rows are counted too; the caller skips them.
func (x *wordIndex) tallyRows(s *wordQuery, tmp *scratch) {
	mean := max(float64(x.totalLength)/float64(max(x.live, 1)), 1)
	base, perWord := float32(bm25K1*(1-bm25B)), float32(bm25K1*bm25B/mean)
	for i, w := range s.terms {
		rarity, bit := float32(w.weight), uint32(1)<<i
		for _, p := range w.postings {
			num := uint32(p >> 6)
			times := float32(p & maxCount)
			t := &tmp.tallies[num]
			if t.terms == 0 {
				tmp.touched = append(tmp.touched, num)
			}
			t.terms |= bit
			t.score += rarity * times / (times + base + perWord*float32(x.docs[num].length))
		}
	}
}
