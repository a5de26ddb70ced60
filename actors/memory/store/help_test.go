//go:build cgo

package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"conclave/pkg/datatest"
	"conclave/subjects"
)

// clock is a time that stands still until it is told to go on.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

var testTime = time.Date(2026, 5, 4, 12, 0, 0, 123456789, time.UTC)

// emptyDatabase are the bytes of a memory with nothing in it, made once.
var emptyDatabase = datatest.MakeOnce(func(path string) error {
	s, err := Open(context.Background(), path, Options{})
	if err != nil {
		return err
	}
	return s.Close(context.Background())
})

// newStore is a store on a file of its own that is verified and closed at the end.
func newStore(t testing.TB) *Store {
	t.Helper()
	data, err := emptyDatabase()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(datatest.Dir(t), "memory")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "memory.duckdb")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return openStore(t, path)
}

func openStore(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, Options{Now: (&clock{testTime}).now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Verify(context.Background()); err != nil && !s.closed {
			t.Errorf("verify at the end: %v", err)
		}
		if err := s.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// reopenStore closes s and opens its file again.
func reopenStore(t testing.TB, s *Store) *Store {
	t.Helper()
	if err := s.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return openStore(t, s.path)
}

// newFact is an entry that can be stored.
func newFact(id string) subjects.MemoryEntry {
	return subjects.MemoryEntry{
		ID: id, Kind: subjects.KindFact, State: subjects.MemoryActive, Name: "name of " + id, Description: "about " +
			id, Corpus: "what " + id + " says", Created: testTime, Updated: testTime,
		Provenance: subjects.Provenance{Source: subjects.SourceUser, Trust: subjects.Trusted},
	}
}

// newEngram is an answer to a question.
func newEngram(id, query, respondent string) subjects.MemoryEntry {
	e := newFact(id)
	e.Kind, e.Respondent = subjects.KindEngram, respondent
	e.Provenance = subjects.Provenance{
		Source: subjects.SourceConversation, Trust: subjects.Trusted, QueryID: query,
		SessionID: "s1",
	}
	return e
}

// randomVectors are three of them, all different.
func randomVectors(model string, dims int, seed uint64) *Vectors {
	r := rand.New(rand.NewPCG(seed, 7))
	one := func() []float32 {
		v := make([]float32, dims)
		for i := range v {
			v[i] = r.Float32() - 0.5
		}
		return v
	}
	return &Vectors{Model: model, Corpus: one(), Name: one(), Description: one()}
}

func putEntries(t testing.TB, s *Store, entries ...subjects.MemoryEntry) []uint64 {
	t.Helper()
	items := make([]Item, len(entries))
	for i, e := range entries {
		items[i] = Item{Entry: e, Vectors: randomVectors("m", 4, uint64(i))}
	}
	rows, err := s.Put(t.Context(), items...)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func getEntry(t testing.TB, s *Store, id string) subjects.MemoryEntry {
	t.Helper()
	all, err := s.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 {
		t.Fatalf("there are %d entries %s, want 1", len(all), id)
	}
	return all[0]
}

func forgetEntries(t testing.TB, s *Store, ids ...string) []Deleted {
	t.Helper()
	gone, err := s.Forget(t.Context(), ids...)
	if err != nil {
		t.Fatal(err)
	}
	return gone
}

func ids(entries []subjects.MemoryEntry) string {
	out := ""
	for i, e := range entries {
		if i > 0 {
			out += " "
		}
		out += e.ID
	}
	return out
}

// queryCount asks for one number.
func queryCount(t testing.TB, s *Store, query string, args ...any) (n int) {
	t.Helper()
	if err := s.db.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatal(fmt.Errorf("%s: %w", query, err))
	}
	return n
}
