package recall

import (
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"conclave/pkg/text"
	"conclave/subjects"
)

const (
	maxResults     = 256
	maxResultBytes = 256 << 10 // text of a result that is kept
	// sameQuestion is the cosine from which two questions with the same words, but for fillers, mean the same.
	sameQuestion = 0.95
	emptyTTL     = time.Minute // of a result without hits, or with notes about what was missing
)

// kindTTL is how long a result with an entry of this kind is kept; the shortest counts.
var kindTTL = map[string]time.Duration{
	subjects.KindEngram: 10 * time.Minute, subjects.KindFact: time.Hour, subjects.KindDocument: 24 * time.Hour,
}

// Key identifies a cached result.
type Key struct {
	Text   string
	Vector []float32 // nil = it was found by words only, and is not cached
	// Scope is everything else that was asked, and who may see it. A result is never given to another scope.
	Scope string
}

// Cache keeps results of recalls, and returns a result to queries with the same meaning in other words. A write empties
// it: any entry may change the rank of others, and the answer to a question is stored with the words of the question.
//
// A recall reads the [Cache.Generation] before it searches and puts the result with it. A writer calls [Cache.Clear]
// after others can find the write. So a result that missed a write is either in the cache when that is called, or is
// put later with an old generation.
//
// The hits of a result are shared: nobody changes what an entry of a hit refers to.
type Cache struct {
	now func() time.Time

	mu         sync.Mutex
	results    []cachedResult // the one that was used last at the end
	generation uint64         // counts writes
}

// cachedResult is a result in the cache.
type cachedResult struct {
	scope, words string
	vector       []float32
	reply        subjects.MemoryReply
	until        time.Time
}

// NewCache returns an empty cache. now must not be nil.
func NewCache(now func() time.Time) *Cache {
	return &Cache{now: now, generation: 1} // a generation of 0 was never taken from here
}

// Get returns the result of the nearest query with the same meaning, scope and words, marked as cached; false when
// there is none that has not expired.
func (c *Cache) Get(key Key) (subjects.MemoryReply, bool) {
	words := questionWords(key.Text)
	c.mu.Lock()
	defer c.mu.Unlock()
	now, best, most := c.now(), -1, sameQuestion
	for i, r := range c.results {
		if now.Before(r.until) && r.scope == key.Scope && r.words == words {
			if near := cosine(r.vector, key.Vector); near >= most {
				best, most = i, near
			}
		}
	}
	if best < 0 {
		return subjects.MemoryReply{}, false
	}
	r := c.results[best]
	c.results = append(slices.Delete(c.results, best, best+1), r)
	reply := r.reply
	reply.Hits, reply.Cached = slices.Clone(reply.Hits), true
	return reply, true
}

// Put stores a result, and evicts the one not used for longest when the cache is full. saw is the [Cache.Generation]
// from before the search: after a write since then it is not stored. Nor is a result without a vector or with more than
// maxResultBytes of text.
func (c *Cache) Put(key Key, reply subjects.MemoryReply, saw uint64) {
	ttl, size := time.Duration(math.MaxInt64), len(key.Text)
	if len(reply.Hits) == 0 || len(reply.Notes) > 0 {
		ttl = emptyTTL
	}
	for _, h := range reply.Hits {
		ttl = min(ttl, kindTTL[h.Entry.Kind])
		size += len(h.Entry.Name) + len(h.Entry.Description) + len(h.Entry.Corpus) + len(h.Segment)
	}
	if key.Vector == nil || size > maxResultBytes {
		return
	}
	reply.Hits = slices.Clone(reply.Hits)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.generation != saw {
		return
	}
	now := c.now()
	c.results = slices.DeleteFunc(c.results, func(old cachedResult) bool { return !now.Before(old.until) })
	if len(c.results) == maxResults {
		c.results = slices.Delete(c.results, 0, 1)
	}
	c.results = append(c.results, cachedResult{
		scope: key.Scope, words: questionWords(key.Text), vector: slices.Clone(key.Vector), reply: reply,
		until: now.Add(ttl),
	})
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

// fillers may be left out of a question or added to it without changing what is asked.
var fillers = text.WordSet("a an the please tell show give find me about")

// questionWords returns the words of a question that must be equal, in order, before it is answered with the result of
// another: all but fillers, folded, without punctuation. Vectors alone do not tell "what do I like" from "what do I not
// like", or "what did Anna say to Ben" from "what did Ben say to Anna".
func questionWords(question string) string {
	words := strings.Fields(text.Fold(question))
	for i, w := range words {
		words[i] = strings.Trim(w, `.,:;!?"'`)
	}
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" || fillers(w) }), " ")
}

// cosine returns the cosine of two vectors, 0 when they have different sizes or one of them no length.
func cosine(a, b []float32) float64 {
	if len(a) != len(b) {
		return 0
	}
	var ab, aa, bb float64
	for i, x := range a {
		y := float64(b[i])
		ab, aa, bb = ab+float64(x)*y, aa+float64(x)*float64(x), bb+y*y
	}
	if c := ab / math.Sqrt(aa*bb); !math.IsNaN(c) {
		return c
	}
	return 0
}
