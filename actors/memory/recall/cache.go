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
}

const (
	defaultResults  = 256
	maxResults      = 1024
	defaultNear     = 0.95
	defaultEmptyTTL = time.Minute
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
}

// Cache keeps results of recalls, and returns a result to queries with the same meaning in other words. A write empties
// it: any entry may change the rank of others, and the answer to a question is stored with the words of the question.
//
// A recall reads the [Cache.Generation] before it searches and puts the result with it. A writer calls [Cache.Clear]
// after others can find the write. So a result that missed a write is either in the cache when that is called, or is
// put later with an old generation.
type Cache struct {
	o   CacheOptions
	now func() time.Time

	mu         sync.Mutex
	results    []*cachedResult
	uses       uint64 // counts up, to know which result was used last
	generation uint64 // counts writes
}

// cachedResult is a result in the cache.
type cachedResult struct {
	cacheQuery
	reply subjects.MemoryReply
	until time.Time
	used  uint64
}

// cacheQuery is a key as it is compared.
type cacheQuery struct {
	scope, options string
	text           string // with single blanks
	guard          string // words that must be the same, see guard
	vector         []float32
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
// saw is the [Cache.Generation] from before the search: after a write since then it is not stored. Nor is a result
// without a lifetime or with more than maxResultBytes of text.
func (c *Cache) Put(key Key, reply subjects.MemoryReply, saw uint64) {
	ttl := c.ttlOf(reply)
	if ttl <= 0 || len(key.Text)+textSize(reply) > maxResultBytes {
		return
	}
	r := &cachedResult{cacheQuery: newCacheQuery(key), reply: cloneReply(reply)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.generation != saw {
		return
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

// Clear removes everything, also results of searches under way.
func (c *Cache) Clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	c.results = nil
}

// Len returns how many results are kept, expired ones included.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.results)
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

func newCacheQuery(key Key) cacheQuery {
	return cacheQuery{
		scope: key.Scope, options: key.Options, text: strings.Join(strings.Fields(key.Text), " "),
		guard: guardWords(key.Text), vector: normalize(key.Vector),
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
