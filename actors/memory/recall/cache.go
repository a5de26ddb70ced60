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
	TTL   map[string]time.Duration
	Empty time.Duration // for results without hits, and for those that came with notes about what was missing; 0 = 1 minute
	// Floor is the similarity from which something new could be part of a result that is not full; 0 = 0.15, somewhat
	// below the floor of a recall, because what was written is judged by one of its vectors only.
	Floor float64
}

const (
	usualResults = 256
	mostResults  = 1024
	usualNear    = 0.95
	usualEmpty   = time.Minute
	usualReach   = 0.15
	// newcomer is what an entry can have more than the cosine that a write is judged by: its other vector, or a pin.
	newcomer = 0.15
	// remembered is how many writes a result may have missed and still be judged against each of them.
	remembered = 256
	// biggest is the text of a result that is kept, in bytes.
	biggest = 256 << 10
)

// Key is what a result was asked for by.
type Key struct {
	Text   string
	Vector []float32 // nil = it was found by words only
	// Options stands for everything else that was asked: kind, whole, all, max.
	Options string
	// Scope says who may see it. A result is never given to another scope.
	Scope string
	// Top is how many hits were wanted. Something new that is farther away than the last of so many cannot be among them;
	// 0 = unknown.
	Top int
}

// Cache keeps results of recalls. It gives one to whoever asks the same in other words, and forgets it as soon as an entry in
// it is written, or something new could be part of it.
//
// A recall takes the [Cache.Generation] before it begins to look, and puts the result with it. A writer tells of what it
// wrote when others can find it. So a result that missed a write is either in the cache when it is told of, or put in
// later with a generation that is too old.
type Cache struct {
	o   CacheOptions
	now func() time.Time

	mu      sync.Mutex
	kept    []*result
	uses    uint64 // counts up, to know which result was used last
	gen     uint64
	written []written // the latest, oldest first; the last one made the generation what it is
}

// result is one that is kept.
type result struct {
	query
	reply subjects.MemoryReply
	ids   []string // sorted
	reach float64  // cosine from which something new could be part of it
	until time.Time
	used  uint64
}

// query is a key as it is compared.
type query struct {
	scope, options string
	text           string // with single blanks
	guard          string // words that must be the same, see guard
	vector         []float32
	words          []string // sorted: what something new may share with it
}

// written is something that was written.
type written struct {
	ids    []string
	vector []float32
	words  []string
	news   bool // vector and words are of something new
	all    bool // whatever there is
}

// NewCache returns an empty one.
func NewCache(o CacheOptions, now func() time.Time) *Cache {
	if o.Max <= 0 {
		o.Max = usualResults
	}
	o.Max = min(o.Max, mostResults)
	if o.Near <= 0 {
		o.Near = usualNear
	}
	if o.Empty == 0 {
		o.Empty = usualEmpty
	}
	if o.Floor == 0 {
		o.Floor = usualReach
	}
	ttl := map[string]time.Duration{subjects.KindEngram: 10 * time.Minute, subjects.KindFact: time.Hour, subjects.KindDocument: 24 * time.Hour}
	for kind, d := range o.TTL {
		ttl[kind] = d
	}
	o.TTL = ttl
	return &Cache{o: o, now: now, gen: 1} // a generation of 0 was never taken from here
}

// Get returns the result of a query that means the same, marked as cached. It is a copy: whoever gets it may change it.
func (c *Cache) Get(key Key) (subjects.MemoryReply, bool) {
	q := readQuery(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	var best *result
	most := 0.0
	for _, r := range c.kept {
		if !now.Before(r.until) {
			continue
		}
		if near := r.means(q); near >= c.o.Near && near > most {
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

// Put keeps a result. saw is the [Cache.Generation] from before it was looked for: when something was written since that
// the result holds or could hold, it is not kept.
func (c *Cache) Put(key Key, reply subjects.MemoryReply, saw uint64) {
	ttl := c.ttl(reply)
	if ttl <= 0 || len(key.Text)+textSize(reply) > biggest {
		return
	}
	r := &result{query: readQuery(key), reply: cloneReply(reply), ids: idsOf(reply), reach: c.reach(key, reply)}
	c.mu.Lock()
	defer c.mu.Unlock()
	// More writes than are remembered; or a generation that was never given out, before which more was written than ever.
	missed := c.gen - saw
	if missed > uint64(len(c.written)) {
		return
	}
	for _, w := range c.written[uint64(len(c.written))-missed:] {
		if w.concerns(r) {
			return
		}
	}
	now := c.now()
	r.until = now.Add(ttl)
	c.uses++
	r.used = c.uses
	c.kept = slices.DeleteFunc(c.kept, func(old *result) bool { return !now.Before(old.until) || old.same(r) })
	if len(c.kept) >= c.o.Max {
		oldest := 0
		for i, old := range c.kept {
			if old.used < c.kept[oldest].used {
				oldest = i
			}
		}
		c.kept = slices.Delete(c.kept, oldest, oldest+1)
	}
	c.kept = append(c.kept, r)
}

// Generation counts writes. Take it before you begin to look for what you want to put.
func (c *Cache) Generation() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gen
}

// Drop forgets every result that holds one of these entries or names it, because it was changed or is gone.
func (c *Cache) Drop(ids ...string) {
	if len(ids) > 0 {
		c.wrote(written{ids: slices.Clone(ids)})
	}
}

// Wrote forgets every result that something new could be part of: its query is near to the vector, or shares a word with
// the text that tells something. Without vector and without words that is every result. Something with several vectors is told
// of once for each.
func (c *Cache) Wrote(vector []float32, text string) {
	w := written{news: true, vector: unit(vector), words: wordsOf(text, nil)}
	w.all = w.vector == nil && len(w.words) == 0
	c.wrote(w)
}

// Clear forgets everything, also what is being looked for now.
func (c *Cache) Clear() { c.wrote(written{all: true}) }

func (c *Cache) wrote(w written) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gen++
	if len(c.written) == remembered {
		c.written = slices.Delete(c.written, 0, 1)
	}
	c.written = append(c.written, w)
	c.kept = slices.DeleteFunc(c.kept, w.concerns)
}

// Len is how many results are kept, those included that are too old.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.kept)
}

// concerns reports whether r may not be given away any more. When in doubt it may not.
func (w written) concerns(r *result) bool {
	if w.all || slices.ContainsFunc(w.ids, func(id string) bool { _, ok := slices.BinarySearch(r.ids, id); return ok }) {
		return true
	}
	if !w.news {
		return false
	}
	if w.vector != nil && r.vector != nil && (len(w.vector) != len(r.vector) || dot(w.vector, r.vector) >= r.reach) {
		return true
	}
	return len(r.words) == 0 || slices.ContainsFunc(w.words, func(word string) bool { _, ok := slices.BinarySearch(r.words, word); return ok })
}

// means is how near two queries are, 0 when they must not be taken for each other.
func (r *result) means(q query) float64 {
	if r.scope != q.scope || r.options != q.options || r.guard != q.guard || len(r.vector) != len(q.vector) {
		return 0
	}
	if q.vector == nil {
		if r.text == q.text {
			return 1
		}
		return 0
	}
	return min(dot(r.vector, q.vector), 1)
}

// same reports whether r was asked by the same words as old.
func (old *result) same(r *result) bool {
	return old.scope == r.scope && old.options == r.options && old.text == r.text && len(old.vector) == len(r.vector)
}

// ttl is how long a result is good for.
func (c *Cache) ttl(reply subjects.MemoryReply) time.Duration {
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

// reach is the cosine from which something new could be part of a result: with fewer hits than were wanted anything that
// counts at all, with enough of them what could come before the last.
func (c *Cache) reach(key Key, reply subjects.MemoryReply) float64 {
	if key.Top <= 0 || len(reply.Hits) < key.Top {
		return c.o.Floor
	}
	last := math.Inf(1)
	for _, h := range reply.Hits {
		last = min(last, h.Score)
	}
	return max(last-newcomer, c.o.Floor)
}

func readQuery(key Key) query {
	return query{
		scope: key.Scope, options: key.Options, text: strings.Join(strings.Fields(key.Text), " "),
		guard: guard(key.Text), vector: unit(key.Vector), words: telling(key.Text),
	}
}

// unit is a copy of v of the length 1; nil when v has none.
func unit(v []float32) []float32 {
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

// dot of two vectors of the same size.
func dot(a, b []float32) float64 {
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
