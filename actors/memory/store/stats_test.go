//go:build cgo

package store_test

import (
	"path/filepath"
	"testing"
	"time"

	"conclave/actors/memory/store"
	"conclave/subjects"
)

// TestStatsBeforeAndAfter: a statement prepared over an empty table counts correctly later. DuckDB 1.5 returned wrong
// texts.
func TestStatsBeforeAndAfter(t *testing.T) {
	t.Parallel()
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "m.duckdb"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	if _, err := s.Stats(t.Context()); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	for i, kind := range []string{subjects.KindFact, subjects.KindEngram, subjects.KindFact} {
		e := subjects.MemoryEntry{
			ID: "entry" + string(rune('a'+i)), Kind: kind, State: subjects.MemoryActive, Name: "n", Created: now,
			Updated:    now,
			Provenance: subjects.Provenance{Source: subjects.SourceUser, Trust: subjects.Trusted},
		}
		if _, err := s.Put(t.Context(), store.Item{Entry: e}); err != nil {
			t.Fatal(err)
		}
		got, err := s.Stats(t.Context())
		if err != nil || got.Kinds[kind] == 0 || got.States[subjects.MemoryActive] != i+1 {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	for i, model := range []string{"m", "a-model", "a-model-with-a-longer-name"} {
		e := subjects.MemoryEntry{
			ID: "vector" + string(rune('a'+i)), Kind: subjects.KindFact, State: subjects.MemoryActive, Name: "n",
			Created: now, Updated: now,
			Provenance: subjects.Provenance{Source: subjects.SourceUser, Trust: subjects.Trusted},
		}
		v := &store.Vectors{Model: model, Corpus: []float32{1, 0}, Name: []float32{0, 1}}
		if _, err := s.Put(t.Context(), store.Item{Entry: e, Vectors: v}); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Stats(t.Context()); err != nil || got.Vectors[model] != 1 || len(got.Vectors) != i+1 {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	entries, _, err := s.List(t.Context(), store.Filter{Kind: subjects.KindFact})
	if err != nil || len(entries) != 5 || entries[0].Kind != subjects.KindFact {
		t.Fatalf("%+v, %v", entries, err)
	}
}
