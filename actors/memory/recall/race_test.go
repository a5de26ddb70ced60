package recall_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"conclave/actors/memory/recall"
	"conclave/subjects"
)

// TestFindWhileWriting: searches go on while rows come, change and go. What was there all the time is always found,
// what went before a search began never is, and a row is never mixed up with another.
func TestFindWhileWriting(t *testing.T) {
	t.Parallel()
	m := newMind(t)
	m.put(row(1, "coffee", ""), 0.99, 0.99)
	const rounds = 250
	// Keys above 1000 are put and removed, those above 100000 put and superseded, one after the other.
	var removed, superseded atomic.Uint64
	removed.Store(1000)
	superseded.Store(100_000)
	var writers, readers sync.WaitGroup
	done := make(chan struct{})
	named := func(key uint64) entry { return row(key, fmt.Sprint("row", key), fmt.Sprint("coffee of ", key)) }
	writers.Go(func() {
		for i := range uint64(rounds) {
			key := 1001 + i
			m.put(named(key), 0.8, 0.8)
			m.Grade(key, subjects.Grades{Critic: 5})
			m.put(named(key), 0.9, 0.9)
			m.Remove(key)
			removed.Store(key)
		}
	})
	writers.Go(func() {
		for i := range uint64(rounds) {
			key := 100_001 + i
			m.put(named(key), 0.8, 0.8)
			old := named(key)
			old.Pinned, old.State = true, subjects.MemorySuperseded
			m.put(old, 0.8, 0.8)
			superseded.Store(key)
		}
	})
	writers.Go(func() {
		for i := range uint64(rounds) { // the same rows again and again, with vectors and without
			key := 2 + i%20
			if i%2 == 0 {
				m.bare(named(key))
			} else {
				m.put(named(key), 0.7, 0.7)
			}
			m.Stats()
		}
	})
	writers.Go(func() {
		for i := range 5 {
			m.put(named(uint64(500+i)), 0.6, 0.6)
			m.put(named(uint64(600+i)), 0.6, 0.6)
		}
	})
	for reader := range 3 {
		readers.Go(func() {
			q := recall.Query{Text: "coffee", Vector: cacheQuery()}
			if reader == 2 {
				q = recall.Query{Text: "coffee there"}
			}
			for searches := 0; ; searches++ {
				gone, old := removed.Load(), superseded.Load()
				f, err := m.Find(q)
				if err != nil {
					t.Error(err)
					return
				}
				if reader < 2 && (len(f.Top) == 0 || f.Top[0].Entry.ID != "m1") {
					t.Errorf("the best was not found: %s", ids(f.Top))
					return
				}
				for _, c := range slices.Concat(f.Names, f.Top) {
					var key uint64
					if _, err := fmt.Sscanf(c.Entry.ID, "m%d", &key); err != nil {
						t.Error(err)
						return
					}
					switch {
					case key > 1000 && key <= gone, key > 100_000 && key <= old, c.Entry.State != subjects.MemoryActive:
						t.Errorf("row %d is shown, which is %s", key, c.Entry.State)
						return
					case key != 1 && c.Entry.Name != fmt.Sprint("row", key), !addUp(c):
						t.Errorf("%+v", c)
						return
					}
				}
				select {
				case <-done:
					if searches > 10 {
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
	if s := m.Stats(); s.Rows != 1+20+10+rounds || s.Active != 31 || s.Words != s.Rows || s.Vectors != s.Rows-10 {
		t.Errorf("%+v", s)
	}
}
