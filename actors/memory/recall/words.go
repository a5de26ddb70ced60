package recall

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"sync"

	"conclave/pkg/text"
)

// Bounds of the index of words. What lies beyond is found by what lies before.
const (
	mostAsked    = 32      // words of a query that count: one bit each
	mostQuery    = 4 << 10 // bytes of a query that are read
	mostName     = 512     // bytes of a row's parts
	mostAbout    = 2 << 10
	mostBegin    = 2000
	mostTags     = 32
	mostDocs     = 1 << 26 // a posting is a number of this size and how often
	mostTimes    = 1<<6 - 1
	leastToSweep = 1024 // removed rows before their postings are looked for
	sweepStep    = 4096 // postings that one write looks at then
)

// What one occurrence of a word counts.
const (
	timesName  = 3 // and tags
	timesAbout = 2
	timesBegin = 1
)

// rarity and length as in BM25, with a steep rise: a word that is there once is as good as there.
const (
	steep  = 0.6
	length = 0.3
)

// words finds rows by words, ranked by BM25. The score is told as a share: 1 would be a row that has every word of the
// query again and again, 0 one that has none.
//
// Rows are numbered anew each time they are written, so that a number never stands for two texts. Numbers of rows that are
// gone stay in the lists until a sweep, which writes do step by step, has taken them out; only then are they used again.
type words struct {
	mu     sync.RWMutex
	terms  map[string]uint32
	lists  [][]posting // by term
	docs   []doc       // by number
	at     numbers     // number of a row, plus one
	live   int
	length int // of all live ones

	dead   []uint32 // numbers that no sweep has taken out
	doomed []uint32 // those that the sweep under way takes out
	free   []uint32
	next   int // list that the sweep comes to next; without a sweep -1
	empty  int // lists that the sweep under way found without a row

	split text.TermSplitter // for writing
	parts []uint64          // for writing: the terms of a row, each with what it counts
	idle  sync.Pool
}

type (
	posting uint32 // number of the row, and how often
	doc     struct {
		key    uint32
		length uint16
		live   bool
	}
	// tally is what a search has counted for a row so far.
	tally struct {
		score float32
		found uint32 // words of the query, a bit each
	}
	scratch struct {
		tallies []tally // by number; all zero between searches
		touched []uint32
		split   text.TermSplitter
	}
)

func newWords() *words {
	return &words{terms: map[string]uint32{}, next: -1, idle: sync.Pool{New: func() any { return new(scratch) }}}
}

// numbers is an array with holes: the keys are counted up by the store, and may begin anywhere.
type numbers []*[pageSize]uint32

func (n numbers) of(key uint32) uint32 {
	if page := int(key >> pageBits); page < len(n) && n[page] != nil {
		return n[page][key%pageSize]
	}
	return 0
}

func (n *numbers) set(key, to uint32) {
	page := int(key >> pageBits)
	if page >= len(*n) {
		*n = append(*n, make(numbers, page+1-len(*n))...)
	}
	if (*n)[page] == nil {
		(*n)[page] = new([pageSize]uint32)
	}
	(*n)[page][key%pageSize] = to
}

// wording is what of a row is found by words.
type wording struct {
	name, about string
	tags        []string
	begin       string // of the corpus
}

// put indexes a row, in place of what was there by this key.
func (x *words) put(key uint32, w wording) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(key)
	n, ok := x.number()
	if !ok {
		return
	}
	x.parts = x.parts[:0]
	size := 0
	read := func(s string, most int, times uint64) {
		x.split.Each(s[:min(len(s), most)], func(word []byte, single bool) {
			x.parts = append(x.parts, uint64(x.term(text.StemPlural(word)))<<8|times)
			if !single {
				size++
			}
		})
	}
	read(w.name, mostName, timesName)
	for _, tag := range w.tags[:min(len(w.tags), mostTags)] {
		read(tag, mostName, timesName)
	}
	read(w.about, mostAbout, timesAbout)
	read(w.begin, mostBegin, timesBegin)
	slices.Sort(x.parts)
	for i := 0; i < len(x.parts); {
		term, times := x.parts[i]>>8, uint64(0)
		for ; i < len(x.parts) && x.parts[i]>>8 == term; i++ {
			times += x.parts[i] & 0xff
		}
		x.lists[term] = append(x.lists[term], posting(n<<6|uint32(min(times, mostTimes))))
	}
	x.docs[n] = doc{key: key, length: uint16(min(size, math.MaxUint16)), live: true}
	x.at.set(key, n+1)
	x.live++
	x.length += int(x.docs[n].length)
	x.sweep()
}

// remove forgets a row.
func (x *words) remove(key uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(key)
	x.sweep()
}

func (x *words) drop(key uint32) {
	n := x.at.of(key)
	if n == 0 {
		return
	}
	n--
	x.live--
	x.length -= int(x.docs[n].length)
	x.docs[n].live = false
	x.at.set(key, 0)
	x.dead = append(x.dead, n)
}

// number is one that no list holds.
func (x *words) number() (n uint32, ok bool) {
	if last := len(x.free) - 1; last >= 0 {
		n, x.free = x.free[last], x.free[:last]
		return n, true
	}
	if len(x.docs) == mostDocs {
		return 0, false
	}
	x.docs = append(x.docs, doc{})
	return uint32(len(x.docs) - 1), true
}

func (x *words) term(word []byte) uint32 {
	if id, ok := x.terms[string(word)]; ok {
		return id
	}
	id := uint32(len(x.lists))
	x.terms[string(word)] = id
	x.lists = append(x.lists, nil)
	return id
}

// sweep takes rows that are gone out of some lists, when there are enough of them.
func (x *words) sweep() {
	if x.next < 0 {
		if len(x.dead) < leastToSweep || len(x.dead) < x.live/4 {
			return
		}
		x.doomed, x.dead, x.next, x.empty = x.dead, nil, 0, 0
	}
	for looked := 0; looked < sweepStep && x.next < len(x.lists); x.next++ {
		list := x.lists[x.next]
		looked += len(list) + 1
		x.lists[x.next] = slices.DeleteFunc(list, func(p posting) bool { return !x.docs[p>>6].live })
		switch left := x.lists[x.next]; {
		case len(left) == 0:
			x.lists[x.next] = nil
			x.empty++
		case len(left) < cap(left)/2:
			x.lists[x.next] = slices.Clone(left)
		}
	}
	if x.next < len(x.lists) {
		return
	}
	x.free, x.doomed, x.next = append(x.free, x.doomed...), nil, -1
	if x.empty > leastToSweep && x.empty > len(x.lists)/2 {
		x.renumber()
	}
}

// renumber forgets the words that no row has.
func (x *words) renumber() {
	terms, lists := map[string]uint32{}, make([][]posting, 0, len(x.lists)-x.empty)
	for word, id := range x.terms {
		if len(x.lists[id]) > 0 {
			terms[strings.Clone(word)] = uint32(len(lists))
			lists = append(lists, x.lists[id])
		}
	}
	x.terms, x.lists = terms, lists
}

// asked is one word of a query.
type asked struct {
	word   string // as it was written, folded
	rarity float64
	list   []posting
}

// said is a query, cut into words, with what the index knew of them. It is good for one search.
type said struct {
	words []asked
	sum   float64 // of the rarities
	best  []shared
	by    map[uint32]shared
}

// shared is a row that has words of the query.
type shared struct {
	key   uint32
	share float64
	found uint32
}

// of is what a row shares with the query.
func (s *said) of(key uint32) shared { return s.by[key] }

// text names the words that a row shares with the query.
func (s *said) text(found uint32) string {
	var list []string
	for i, w := range s.words {
		if found&(1<<i) != 0 {
			list = append(list, w.word)
		}
	}
	return "words: " + strings.Join(list, ", ")
}

// search finds the n rows that share most with the query, best first and among equals the smaller key first; keep says
// which rows count, nil = all. also are rows to be told of whatever they share.
func (x *words) search(query string, n int, keep func(key uint64) bool, also []uint64) *said {
	tmp := x.idle.Get().(*scratch)
	defer x.idle.Put(tmp)
	x.mu.RLock()
	defer x.mu.RUnlock()
	s := x.ask(query, tmp)
	if len(tmp.tallies) < len(x.docs) {
		tmp.tallies = make([]tally, len(x.docs)+len(x.docs)/4)
	}
	tmp.touched = tmp.touched[:0]
	x.count(s, tmp)
	s.by = make(map[uint32]shared, len(also)+n)
	for _, key := range also {
		if key >= maxKey {
			continue
		}
		if num := x.at.of(uint32(key)); num > 0 && tmp.tallies[num-1].found != 0 {
			s.by[uint32(key)] = s.shared(uint32(key), tmp.tallies[num-1])
		}
	}
	for _, num := range tmp.touched {
		t := tmp.tallies[num]
		tmp.tallies[num] = tally{}
		d := x.docs[num]
		if !d.live || n == 0 {
			continue
		}
		have := s.shared(d.key, t)
		if len(s.best) == n && order(s.best[n-1], have) < 0 || keep != nil && !keep(uint64(d.key)) {
			continue
		}
		at, _ := slices.BinarySearchFunc(s.best, have, order)
		if len(s.best) == n {
			s.best = s.best[:n-1]
		}
		s.best = slices.Insert(s.best, at, have)
	}
	for _, have := range s.best {
		s.by[have.key] = have
	}
	for i := range s.words {
		s.words[i].list = nil // it belongs to the lock
	}
	return s
}

func order(a, b shared) int {
	return cmp.Or(cmp.Compare(b.share, a.share), cmp.Compare(a.key, b.key))
}

func (s *said) shared(key uint32, t tally) shared {
	return shared{key, min(float64(t.score)/s.sum, 1), t.found}
}

// ask cuts a query into the words that tell something. Words that tell nothing, by themselves or because more than half of
// the rows have them, count only when there are no others.
func (x *words) ask(query string, tmp *scratch) *said {
	var telling, rest []asked
	seen := map[string]bool{}
	tmp.split.Each(query[:min(len(query), mostQuery)], func(word []byte, single bool) {
		if single {
			return
		}
		shown := string(word)
		stemmed := text.StemPlural(word)
		if seen[string(stemmed)] {
			return
		}
		seen[string(stemmed)] = true
		a := asked{word: shown}
		if id, ok := x.terms[string(stemmed)]; ok {
			a.list = x.lists[id]
		}
		n := float64(len(a.list))
		a.rarity = math.Log(1 + (max(float64(x.live)-n, 0)+0.5)/(n+0.5))
		if common[shown] || x.live >= 8 && len(a.list) > x.live/2 {
			rest = append(rest, a)
		} else {
			telling = append(telling, a)
		}
	})
	s := &said{words: telling}
	if len(telling) == 0 {
		s.words = rest
	}
	if len(s.words) > mostAsked { // those that some row has, the rarest first
		slices.SortStableFunc(s.words, func(a, b asked) int {
			return cmp.Or(cmp.Compare(min(len(b.list), 1), min(len(a.list), 1)), cmp.Compare(b.rarity, a.rarity))
		})
		s.words = s.words[:mostAsked]
	}
	for _, w := range s.words {
		s.sum += w.rarity
	}
	return s
}

// count adds up what each row has of the query.
func (x *words) count(s *said, tmp *scratch) {
	mean := max(float64(x.length)/float64(max(x.live, 1)), 1)
	base, perWord := float32(steep*(1-length)), float32(steep*length/mean)
	for i, w := range s.words {
		rarity, bit := float32(w.rarity), uint32(1)<<i
		for _, p := range w.list {
			num := uint32(p >> 6)
			times := float32(p & mostTimes)
			t := &tmp.tallies[num]
			if t.found == 0 {
				tmp.touched = append(tmp.touched, num)
			}
			t.found |= bit
			t.score += rarity * times / (times + base + perWord*float32(x.docs[num].length))
		}
	}
}

// size is how many rows and how many different words there are.
func (x *words) size() (rows, terms int) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.live, len(x.terms)
}
