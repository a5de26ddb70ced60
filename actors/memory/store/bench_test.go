//go:build cgo

package store

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// typical is an engram of usual size with vectors of the usual length.
func typical(i uint64) Item {
	e := newEngram(typicalID(i), fmt.Sprintf("q%d", i), "generator")
	e.Name, e.Description = "what somebody asked on day "+fmt.Sprint(i), strings.Repeat("a description ", 12)
	e.Corpus = strings.Repeat(fmt.Sprintf("some text of entry %d that stands for an answer. ", i), 16)
	e.Tags, e.Entities = []string{"one", "two"}, []string{"Anna", "Berlin"}
	e.Created = testTime.Add(time.Duration(i) * time.Second)
	return Item{Entry: e, Vectors: randomVectors("nomic-embed-text", 768, i)}
}

func filled(b *testing.B, n int) *Store {
	b.Helper()
	s, err := Open(b.Context(), filepath.Join(b.TempDir(), "memory.duckdb"), Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close(b.Context()) })
	const batch = 500
	for i := 0; i < n; i += batch {
		items := make([]Item, min(batch, n-i))
		for k := range items {
			items[k] = typical(uint64(i + k))
		}
		if _, err := s.Put(b.Context(), items...); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

func BenchmarkPutAlone(b *testing.B) {
	s := filled(b, 0)
	i := uint64(0)
	for b.Loop() {
		b.StopTimer()
		it := typical(i)
		i++
		b.StartTimer()
		if _, err := s.Put(b.Context(), it); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(i)/b.Elapsed().Seconds(), "entries/s")
}

// BenchmarkPutTogether is many who write at once and are committed together.
func BenchmarkPutTogether(b *testing.B) {
	s := filled(b, 0)
	var next atomic.Uint64
	items := make([]Item, 256)
	for i := range items {
		items[i] = typical(uint64(i))
	}
	b.SetParallelism(50)
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			i := next.Add(1)
			it := items[i%256]
			it.Entry.ID, it.Entry.Provenance.QueryID = typicalID(i), fmt.Sprintf("q%d", i)
			if _, err := s.Put(b.Context(), it); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "entries/s")
}

// BenchmarkPut100 is a hundred in one call.
func BenchmarkPut100(b *testing.B) {
	s := filled(b, 0)
	i := uint64(0)
	for b.Loop() {
		b.StopTimer()
		items := make([]Item, 100)
		for k := range items {
			items[k] = typical(i)
			i++
		}
		b.StartTimer()
		if _, err := s.Put(b.Context(), items...); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(i)/b.Elapsed().Seconds(), "entries/s")
}

func BenchmarkLoad100k(b *testing.B) {
	const n = 100_000
	s := filled(b, n)
	if err := s.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	for range b.N {
		s, err := Open(b.Context(), s.path, Options{})
		if err != nil {
			b.Fatal(err)
		}
		seen, sum := 0, float32(0)
		begun := time.Now()
		if err := s.Load(b.Context(), "nomic-embed-text", func(l IndexEntry) error {
			seen++
			sum += l.Vectors.Corpus[0] + l.Vectors.Description[1]
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(begun).Seconds(), "load-s")
		if seen != n {
			b.Fatal(seen)
		}
		b.StopTimer()
		if err := s.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkRead100k(b *testing.B) {
	const n = 100_000
	s := filled(b, n)
	id := func(i int) string { return typicalID(uint64(i)) }
	b.Run("Get1", func(b *testing.B) {
		for i := range b.N {
			if all, err := s.Get(b.Context(), id(i*7919%n)); err != nil || len(all) != 1 {
				b.Fatal(len(all), err)
			}
		}
	})
	b.Run("Get5", func(b *testing.B) {
		for i := range b.N {
			if all, err := s.Get(b.Context(), id(i*7919%n), id(i*104729%n), id(i*1299709%n), id(i*15485863%n),
				id(i*86028121%n)); err != nil || len(all) == 0 {
				b.Fatal(len(all), err)
			}
		}
	})
	b.Run("Lights1", func(b *testing.B) {
		for i := range b.N {
			if all, err := s.IndexEntries(b.Context(), "nomic-embed-text", id(i*7919%n)); err != nil || len(all) != 1 {
				b.Fatal(len(all), err)
			}
		}
	})
	b.Run("Known", func(b *testing.B) {
		for i := range b.N {
			if _, state, err := s.FindAnswer(b.Context(), fmt.Sprintf("q%d", i*7919%n), "generator"); err != nil ||
				state != Stored {
				b.Fatal(state, err)
			}
		}
	})
	b.Run("List50", func(b *testing.B) {
		for range b.N {
			if all, _, err := s.List(b.Context(), Filter{}); err != nil || len(all) != 50 {
				b.Fatal(len(all), err)
			}
		}
	})
	b.Run("ListText", func(b *testing.B) {
		for range b.N {
			if all, _, err := s.List(b.Context(), Filter{Text: "of entry 4711 that"}); err != nil || len(all) != 1 {
				b.Fatal(len(all), err)
			}
		}
	})
}

func typicalID(i uint64) string { return fmt.Sprintf("%024x", i*0x9E3779B97F4A7C15) }
