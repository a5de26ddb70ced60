package recall

import (
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"conclave/subjects"
)

// CacheOptions are how long results are good for. The zero value of each field is useful.
type CacheOptions struct {
	Max  int     // results; 0 = 256, and never more than 1024
	Near float64 // cosine from which two queries mean the same; 0 = 0.95
	// TTL is how long a result with an entry of this kind is kept; the shortest counts. A kind that is missing has its
	// usual time: an engram 10 minutes, a fact an hour, a document a day. 0 or less means that it is not kept.
	TTL map[string]time.Duration
	// for results without hits, and for those that came with notes about what was missing; 0 = 1 minute
	Empty time.Duration
	// Floor is the cosine from which something new could be part of a result that is not full; 0 = 0.15, somewhat below
	// the floor of a recall.
	Floor float64
	// Margin is what an entry can have more than the best cosine of its vectors without sharing a word with the query,
	// see [Weights.Extras]; 0 = that of [DefaultWeights].
	Margin float64
}

const (
	defaultResults  = 256
	maxResults      = 1024
	defaultNear     = 0.95
	defaultEmptyTTL = time.Minute
	defaultReach    = 0.15
	// maxWrites is how many writes a result may have missed and still be judged against each of them.
	maxWrites = 256
	// maxResultBytes is the text of a result that is kept, in bytes.
	maxResultBytes = 256 << 10
)

// Key identifies a cached result.
type Key struct {
	Text   string
	Vector []float32 // nil = it was found by words only
	// Options stands for everything else that was asked: kind, whole, all, max.
	Options string
	// Scope says who may see it. A result is never given to another scope.
	Scope string
	// Top is how many hits were wanted. Something new that is farther away than the last of so many cannot be among
	// them; 0 = unknown.
	Top int
}

// Cache keeps results of recalls. It returns a result to queries with the same meaning in other words, and drops it as
// soon as an entry in it is written or a new entry could be part of it.
//
// A recall reads the [Cache.Generation] before it searches and puts the result with it. A writer reports a write after
// others can find it. So a result that missed a write is either in the cache when the write is reported, or is put
// later with an old generation.
type Cache struct {
	o   CacheOptions
	now func() time.Time

	mu         sync.Mutex
	results    []*cachedResult
	uses       uint64 // counts up, to know which result was used last
	generation uint64
	writes     []cacheWrite // the latest, oldest first; the last one made the generation what it is
}

// cachedResult is a result in the cache.
type cachedResult struct {
	cacheQuery
	reply subjects.MemoryReply
	ids   []string // sorted
	reach float64  // cosine from which something new could be part of it
	until time.Time
	used  uint64
}

// cacheQuery is a key as it is compared.
type cacheQuery struct {
	scope, options string
	text           string // with single blanks
	guard          string // words that must be the same, see guard
	vector         []float32
	words          []string // sorted: what something new may share with it
}

// cacheWrite is a write that may invalidate results.
type cacheWrite struct {
	ids     []string
	vectors [][]float32
	words   []string
	isNew   bool // vectors and words are of something new
	isAll   bool // whatever there is
}

// NewCache returns an empty cache with the defaults filled in. now must not be nil.
func NewCache(o CacheOptions, now func() time.Time) *Cache {
	if o.Max <= 0 {
		o.Max = defaultResults
	}
	o.Max = min(o.Max, maxResults)
	if o.Near <= 0 {
		o.Near = defaultNear
	}
	if o.Empty == 0 {
		o.Empty = defaultEmptyTTL
	}
	if o.Floor == 0 {
		o.Floor = defaultReach
	}
	if o.Margin == 0 {
		o.Margin = DefaultWeights().Extras()
	}
	ttl := map[string]time.Duration{
		subjects.KindEngram: 10 * time.Minute, subjects.KindFact: time.Hour,
		subjects.KindDocument: 24 * time.Hour,
	}
	for kind, d := range o.TTL {
		ttl[kind] = d
	}
	o.TTL = ttl
	return &Cache{o: o, now: now, generation: 1} // a generation of 0 was never taken from here
}

// Get returns a copy of the result of the nearest query with the same meaning, scope, options and guard words, marked
// as cached; false when there is none that has not expired. A key without a vector only matches the same text.
func (c *Cache) Get(key Key) (subjects.MemoryReply, bool) {
	q := newCacheQuery(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	var best *cachedResult
	most := 0.0
	for _, r := range c.results {
		if !now.Before(r.until) {
			continue
		}
		if near := r.similarity(q); near >= c.o.Near && near > most {
			best, most = r, near
		}
	}
	if best == nil {
		return subjects.MemoryReply{}, false
	}
	c.uses++
	best.used = c.uses
	reply := cloneReply(best.reply)
	reply.Cached = true
	return reply, true
}

// Put stores a result, replaces that of the same query, and evicts the one not used for longest when the cache is full.
// saw is the [Cache.Generation] from before the search: when a write since then could affect the result, or more than
// maxWrites came, it is not stored. Nor is a result without a lifetime or with more than maxResultBytes of text.
func (c *Cache) Put(key Key, reply subjects.MemoryReply, saw uint64) {
	ttl := c.ttlOf(reply)
	if ttl <= 0 || len(key.Text)+textSize(reply) > maxResultBytes {
		return
	}
	r := &cachedResult{
		cacheQuery: newCacheQuery(key), reply: cloneReply(reply), ids: referencedIDs(reply),
		reach: c.reachOf(key, reply),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// More writes than are remembered; or a generation that was never given out, before which more was written than
	// ever.
	missed := c.generation - saw
	if missed > uint64(len(c.writes)) {
		return
	}
	for _, w := range c.writes[uint64(len(c.writes))-missed:] {
		if w.invalidates(r) {
			return
		}
	}
	now := c.now()
	r.until = now.Add(ttl)
	c.uses++
	r.used = c.uses
	c.results = slices.DeleteFunc(c.results, func(old *cachedResult) bool {
		return !now.Before(old.until) || old.isSameQuery(r)
	})
	if len(c.results) >= c.o.Max {
		oldest := 0
		for i, old := range c.results {
			if old.used < c.results[oldest].used {
				oldest = i
			}
		}
		c.results = slices.Delete(c.results, oldest, oldest+1)
	}
	c.results = append(c.results, r)
}

// Generation counts writes. The caller reads it before a search whose result it wants to put.
func (c *Cache) Generation() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.generation
}

// Drop removes every result that holds or names one of these entries, because they were changed or removed.
func (c *Cache) Drop(ids ...string) {
	if len(ids) > 0 {
		c.recordWrite(cacheWrite{ids: slices.Clone(ids)})
	}
}

// Wrote removes every result that a new entry could be part of: its query is near to one of the vectors or shares a
// content word with text. vectors may be empty or hold nil. Without vectors and words that is every result. It does not
// know the neighbours of an entry: a write that changes the scores of other entries, as [Recall.Put] reports, must
// [Cache.Clear] all.
func (c *Cache) Wrote(vectors Vectors, text string) {
	w := cacheWrite{isNew: true, words: extractTerms(text, nil)}
	for _, v := range vectors.list() {
		if v = normalize(v); v != nil {
			w.vectors = append(w.vectors, v)
		}
	}
	w.isAll = w.vectors == nil && len(w.words) == 0
	c.recordWrite(w)
}

// Clear removes everything, also results of searches under way.
func (c *Cache) Clear() { c.recordWrite(cacheWrite{isAll: true}) }

// recordWrite starts a new generation, remembers the write for results that are put later (the last maxWrites) and
// removes the results that it invalidates.
func (c *Cache) recordWrite(w cacheWrite) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	if len(c.writes) == maxWrites {
		c.writes = slices.Delete(c.writes, 0, 1)
	}
	c.writes = append(c.writes, w)
	c.results = slices.DeleteFunc(c.results, w.invalidates)
}

// Len returns how many results are kept, expired ones included.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.results)
}

// invalidates reports whether r may not be returned any more: it names a written entry, or a new entry is near to its
// query or shares a word with it. When in doubt it may not: also a query without words, or with vectors of another
// size.
func (w cacheWrite) invalidates(r *cachedResult) bool {
	if w.isAll || slices.ContainsFunc(w.ids, func(id string) bool {
		_, ok := slices.BinarySearch(r.ids, id)
		return ok
	}) {
		return true
	}
	if !w.isNew {
		return false
	}
	for _, v := range w.vectors {
		if r.vector != nil && (len(v) != len(r.vector) || dotProduct(v, r.vector) >= r.reach) {
			return true
		}
	}
	return len(r.words) == 0 || slices.ContainsFunc(w.words, func(word string) bool {
		_, ok := slices.BinarySearch(r.words, word)
		return ok
	})
}

// similarity returns how near two queries are, 1 at most, 0 when one must not answer the other: another scope, other
// options or guard words, vectors of different sizes, or only one with a vector. Without vectors it is 1 for the same
// text.
func (r *cachedResult) similarity(q cacheQuery) float64 {
	if r.scope != q.scope || r.options != q.options || r.guard != q.guard || len(r.vector) != len(q.vector) {
		return 0
	}
	if q.vector == nil {
		if r.text == q.text {
			return 1
		}
		return 0
	}
	return min(dotProduct(r.vector, q.vector), 1)
}

// isSameQuery reports whether r has the same words as old.
func (old *cachedResult) isSameQuery(r *cachedResult) bool {
	return old.scope == r.scope && old.options == r.options && old.text == r.text && len(old.vector) == len(r.vector)
}

// ttlOf returns how long a result is valid: the shortest time of the kinds of its entries, and at most
// [CacheOptions.Empty] for one without hits, with notes or with an unknown kind. 0 or less means that it is not kept.
func (c *Cache) ttlOf(reply subjects.MemoryReply) time.Duration {
	ttl := time.Duration(math.MaxInt64)
	for _, h := range reply.Hits {
		known, ok := c.o.TTL[h.Entry.Kind]
		if !ok {
			known = c.o.Empty
		}
		ttl = min(ttl, known)
	}
	if len(reply.Hits) == 0 || len(reply.Notes) > 0 {
		ttl = min(ttl, c.o.Empty)
	}
	return ttl
}

// reachOf returns the cosine from which a new entry could be part of a result: with fewer hits than wanted, or an
// unknown number wanted, the floor, else what could come before the last hit.
func (c *Cache) reachOf(key Key, reply subjects.MemoryReply) float64 {
	if key.Top <= 0 || len(reply.Hits) < key.Top {
		return c.o.Floor
	}
	last := math.Inf(1)
	for _, h := range reply.Hits {
		last = min(last, h.Score)
	}
	return max(last-c.o.Margin, c.o.Floor)
}

func newCacheQuery(key Key) cacheQuery {
	return cacheQuery{
		scope: key.Scope, options: key.Options, text: strings.Join(strings.Fields(key.Text), " "),
		guard: guardWords(key.Text), vector: normalize(key.Vector), words: contentTerms(key.Text),
	}
}

// normalize returns a copy of v of length 1, nil when v is empty, of zeros or not finite.
func normalize(v []float32) []float32 {
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if !(sum > 0) || math.IsInf(sum, 0) {
		return nil
	}
	out := make([]float32, len(v))
	for i, x := range v {
		out[i] = float32(float64(x) / math.Sqrt(sum))
	}
	return out
}

// dotProduct returns the dot product of two vectors. b must be at least as long as a.
func dotProduct(a, b []float32) float64 {
	b = b[:len(a)]
	var s0, s1, s2, s3 float32
	i := 0
	for ; i+4 <= len(a); i += 4 {
		s0 += a[i] * b[i]
		s1 += a[i+1] * b[i+1]
		s2 += a[i+2] * b[i+2]
		s3 += a[i+3] * b[i+3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return float64(s0) + float64(s1) + float64(s2) + float64(s3)
}
