package recall_test

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"conclave/actors/memory/recall"
	"conclave/subjects"
)

// TestCacheWhileWriting: with recalls and writes at the same time no result is ever given that misses a write which was
// over before it was asked for. An entry's version stands in its segment; new entries are counted by the empty
// segment's length.
func TestCacheWhileWriting(t *testing.T) {
	t.Parallel()
	const entries, writes = 4, 300
	c := recall.NewCache(clock)
	var stored, told [entries]atomic.Int64 // versions that can be found, and those that the cache was told of
	var added, addedTold atomic.Int64      // entries about a subject of its own

	key := func(e int) recall.Key {
		return recall.Key{
			Text: fmt.Sprint("entry", e), Vector: near(1, 1), Scope: fmt.Sprint("people ", e),
		}
	}
	news := recall.Key{Text: "mountains", Vector: near(1, 2), Scope: "people news"}
	look := func(e int) subjects.MemoryReply {
		r := reply(fmt.Sprint("fact:m", e))
		r.Hits[0].Segment = fmt.Sprint(stored[e].Load())
		return r
	}
	version := func(r subjects.MemoryReply) int64 {
		v, err := strconv.ParseInt(r.Hits[0].Segment, 10, 64)
		if err != nil {
			t.Error(err)
		}
		return v
	}
	var writers, readers sync.WaitGroup
	done := make(chan struct{})
	for e := range entries {
		writers.Go(func() {
			for v := range int64(writes) {
				stored[e].Store(v + 1)
				c.Clear()
				told[e].Store(v + 1)
			}
		})
	}
	writers.Go(func() {
		for v := range int64(writes) {
			added.Store(v + 1)
			c.Clear()
			addedTold.Store(v + 1)
		}
	})
	var hits atomic.Int64
	for reader := range 4 {
		readers.Go(func() {
			for i := 0; ; i++ {
				e := (i + reader) % entries
				least, leastAdded := told[e].Load(), addedTold.Load()
				if r, ok := c.Get(key(e)); ok {
					hits.Add(1)
					if v := version(r); v < least {
						t.Errorf("version %d of entry %d was given when %d was stored", v, e, least)
						return
					}
				} else {
					saw := c.Generation()
					c.Put(key(e), look(e), saw)
				}
				if r, ok := c.Get(news); ok {
					if v := version(r); v < leastAdded {
						t.Errorf("a result with %d new entries was given when there were %d", v, leastAdded)
						return
					}
				} else {
					saw := c.Generation()
					r := reply("fact:other")
					r.Hits[0].Segment = fmt.Sprint(added.Load())
					c.Put(news, r, saw)
				}
				if i%50 == 0 {
					c.Len()
				}
				select {
				case <-done:
					if i > 100 {
						return
					}
				default:
				}
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
	for e := range entries {
		if r, ok := c.Get(key(e)); ok && version(r) != writes {
			t.Errorf("entry %d: version %d was left behind", e, version(r))
		}
	}
	if hits.Load() == 0 {
		t.Error("nothing was ever found in the cache")
	}
}
