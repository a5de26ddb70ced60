package recall_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"conclave/actors/memory/recall"
	"conclave/subjects"
)

// ticking is a clock that a test moves.
type ticking struct{ at time.Time }

func (c *ticking) now() time.Time        { return c.at }
func (c *ticking) after(d time.Duration) { c.at = c.at.Add(d) }

// reply is a result with these entries, each of the kind before the colon.
func reply(entries ...string) subjects.MemoryReply {
	r := subjects.MemoryReply{Stage: "corpus", Done: true, Hits: []subjects.MemoryHit{}}
	for i, e := range entries {
		kind, id, _ := strings.Cut(e, ":")
		r.Hits = append(r.Hits, subjects.MemoryHit{
			Entry:      subjects.MemoryEntry{ID: id, Kind: kind, Name: "name of " + id, Tags: []string{"t"}},
			Segment:    "what " + id + " says",
			Similarity: 0.8 - 0.1*float64(i), Score: 0.8 - 0.1*float64(i), Reasons: []subjects.MemoryReason{
				{What: "name", Value: 0.8},
			},
		})
	}
	return r
}

// queryTerm is a key in the usual scope.
func queryTerm(text string, cosine float64) recall.Key {
	return recall.Key{Text: text, Vector: near(cosine, 1), Scope: "people"}
}

// TestCacheGet: which questions are answered with the result of "What coffee do I like?".
func TestCacheGet(t *testing.T) {
	t.Parallel()
	const first = "What coffee do I like?"
	change := func(f func(*recall.Key)) recall.Key { k := queryTerm(first, 1); f(&k); return k }
	for _, tt := range []struct {
		name string
		put  recall.Key
		get  recall.Key
		want bool
	}{
		{"the same", queryTerm(first, 1), queryTerm(first, 1), true},
		{"in other words", queryTerm(first, 1), queryTerm("which coffee do I prefer", 0.96), false},
		{"another case and other blanks", queryTerm(first, 1), queryTerm("  WHAT  coffee do I like??", 0.99), true},
		{"a sentence's capital", queryTerm("show me coffee", 1), queryTerm("Show me coffee.", 0.99), true},
		{"politely", queryTerm(first, 1), queryTerm("Please, tell me: what coffee do I like?", 0.97), true},
		{"not near enough", queryTerm(first, 1), queryTerm("what coffee do I like", 0.94), false},
		{"longer vector", queryTerm(first, 1), change(func(k *recall.Key) { k.Vector = append(near(1, 1), 0) }), false},
		{"a vector that is twice as long", queryTerm(first, 1), change(func(k *recall.Key) {
			for i := range k.Vector {
				k.Vector[i] *= 2
			}
		}), true},
		{"trick: another scope", queryTerm(first, 1), change(func(k *recall.Key) { k.Scope = "agent" }), false},
		{"trick: no scope", queryTerm(first, 1), change(func(k *recall.Key) { k.Scope = "" }), false},
		{"with a vector, and now by words", queryTerm(first, 1), change(func(k *recall.Key) { k.Vector = nil }), false},
		{"trick: a vector that is none", queryTerm(first, 1), change(func(k *recall.Key) {
			k.Vector[0] = float32(math.NaN())
		}), false},
		{"trick: not", queryTerm(first, 1), queryTerm("What coffee do I not like?", 0.99), false},
		{"trick: don't", queryTerm(first, 1), queryTerm("What coffee don't I like?", 0.99), false},
		{
			"trick: another name", queryTerm("What coffee does Anna like?", 1),
			queryTerm("What coffee does Anne like?", 0.99), false,
		},
		{
			"trick: another number", queryTerm("What happened in 2023?", 1), queryTerm("What happened in 2024?", 0.99),
			false,
		},
		{
			"trick: before and after", queryTerm("what did we do before lunch", 1),
			queryTerm("what did we do after lunch", 0.99), false,
		},
		{
			"trick: something quoted", queryTerm(`where is "blue moon"`, 1), queryTerm(`where is "blue noon"`, 0.99),
			false,
		},
		{"trick: then and now", queryTerm("where do we live", 1), queryTerm("where did we live", 0.99), false},
		{"trick: whose", queryTerm("what is my address", 1), queryTerm("what is her address", 0.99), false},
		{"trick: only signs differ", queryTerm("how to learn c++", 1), queryTerm("how to learn c#", 0.99), false},
		{"trick: Chinese that says the opposite", queryTerm("我喜欢咖啡吗", 1), queryTerm("我不喜欢咖啡吗", 0.99), false},
	} {
		c := recall.NewCache(clock)
		c.Put(tt.put, reply("fact:m1"), c.Generation())
		if c.Len() != 1 {
			t.Fatalf("%s: not kept", tt.name)
		}
		got, ok := c.Get(tt.get)
		if ok != tt.want || ok && (!got.Cached || len(got.Hits) != 1 || got.Hits[0].Segment != "what m1 says") || !ok &&
			got.Hits != nil {
			t.Errorf("%s: %v, %+v", tt.name, ok, got)
		}
	}
}

// TestCacheNearest: of several that mean the same the nearest is given.
func TestCacheNearest(t *testing.T) {
	t.Parallel()
	c := recall.NewCache(clock)
	for i, cosine := range []float64{0.96, 0.999, 0.97} {
		c.Put(queryTerm(fmt.Sprint("coffee", strings.Repeat("!", i)), cosine), reply(fmt.Sprint("fact:m", i)),
			c.Generation())
	}
	if got, ok := c.Get(queryTerm("coffee", 0.999)); !ok || got.Hits[0].Entry.ID != "m1" {
		t.Errorf("%+v", got)
	}
}

// TestCacheTime: how long results are good for.
func TestCacheTime(t *testing.T) {
	t.Parallel()
	noted := reply("fact:m1")
	noted.Notes = []subjects.Note{{Code: "no_model"}}
	for _, tt := range []struct {
		name  string
		reply subjects.MemoryReply
		want  time.Duration
	}{
		{"an engram", reply("engram:a"), 10 * time.Minute},
		{"a fact", reply("fact:a"), time.Hour},
		{"a document", reply("document:a"), 24 * time.Hour},
		{"the shortest counts", reply("document:a", "engram:b", "fact:c"), 10 * time.Minute},
		{"nothing found", reply(), time.Minute},
		{"something was missing", noted, time.Minute},
	} {
		clock := &ticking{now}
		c := recall.NewCache(clock.now)
		c.Put(queryTerm("coffee", 1), tt.reply, c.Generation())
		clock.after(tt.want - 1)
		if _, ok := c.Get(queryTerm("coffee", 1)); !ok {
			t.Errorf("%s: gone too early", tt.name)
		}
		clock.after(1)
		if _, ok := c.Get(queryTerm("coffee", 1)); ok {
			t.Errorf("%s: there too long", tt.name)
		}
		c.Put(queryTerm("tea", 1), reply("fact:x"), c.Generation())
		if c.Len() > 1 {
			t.Errorf("%s: what is too old is kept", tt.name)
		}
	}
}

// TestCacheClear: a write removes a result, and one whose search began before the write, or whose generation was never
// given out, is not kept.
func TestCacheClear(t *testing.T) {
	t.Parallel()
	key := queryTerm("coffee", 1)
	c := recall.NewCache(clock)
	for _, tt := range []struct {
		name string
		saw  func(before, after uint64) uint64
		want bool
	}{
		{"before the write", func(before, _ uint64) uint64 { return before }, false},
		{"after it", func(_, after uint64) uint64 { return after }, true},
		{"trick: none taken", func(uint64, uint64) uint64 { return 0 }, false},
		{"trick: from the future", func(_, after uint64) uint64 { return after + 1 }, false},
		{"trick: from far in the future", func(uint64, uint64) uint64 { return math.MaxUint64 }, false},
	} {
		before := c.Generation()
		c.Put(key, reply("fact:m1"), before)
		if _, ok := c.Get(key); !ok {
			t.Errorf("%s: not there before", tt.name)
		}
		c.Clear()
		if _, ok := c.Get(key); ok {
			t.Errorf("%s: there after a write", tt.name)
		}
		c.Put(key, reply("fact:m1"), tt.saw(before, c.Generation()))
		if _, ok := c.Get(key); ok != tt.want {
			t.Errorf("%s: there %v", tt.name, ok)
		}
	}
}

// TestCacheMax: the least used goes, and what is too long is not kept.
func TestCacheMax(t *testing.T) {
	t.Parallel()
	const most = 256
	c := recall.NewCache(clock)
	put := func(text string) { c.Put(queryTerm(text, 1), reply("fact:"+text), c.Generation()) }
	there := func(text string) bool { _, ok := c.Get(queryTerm(text, 1)); return ok }
	for i := range most {
		put(fmt.Sprint("q", i))
	}
	if c.Len() != most || !there("q0") {
		t.Errorf("%d", c.Len())
	}
	put("more")
	if c.Len() != most || there("q1") || !there("q0") || !there("q2") || !there("more") {
		t.Error("the wrong one went")
	}
	long := reply("fact:a")
	long.Hits[0].Entry.Corpus = strings.Repeat("x", 1<<20)
	c.Put(queryTerm("long", 1), long, c.Generation())
	if there("long") {
		t.Error("a megabyte is kept")
	}
	c.Clear()
	if c.Len() != 0 {
		t.Error("not cleared")
	}
}

// TestCacheCopies: who gets a result can change its list of hits.
func TestCacheCopies(t *testing.T) {
	t.Parallel()
	c, key := recall.NewCache(clock), queryTerm("coffee", 1)
	given := reply("fact:m1", "fact:m2")
	c.Put(key, given, c.Generation())
	given.Hits[0].Segment = "changed"
	for range 2 {
		got, ok := c.Get(key)
		if !ok || !got.Cached || len(got.Hits) != 2 || got.Hits[0].Segment != "what m1 says" {
			t.Fatalf("%+v", got)
		}
		got.Hits[0] = got.Hits[1]
	}
}
