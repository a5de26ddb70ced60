package memory

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"conclave/actors/memory/recall"
	"conclave/actors/memory/store"
	"conclave/subjects"
)

// guess is an approximate index that knows what it was given, and misses or fails when it is told to.
type guess struct {
	mu     sync.Mutex
	rows   map[uint64][]float32
	missed uint64
	err    error
}

func (g *guess) Put(_ context.Context, rows []uint64, vectors []float32) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	dims := len(vectors) / len(rows)
	for i, r := range rows {
		g.rows[r] = slices.Clone(vectors[i*dims : (i+1)*dims])
	}
	return nil
}

func (g *guess) Remove(_ context.Context, rows ...uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range rows {
		delete(g.rows, r)
	}
	return nil
}

func (g *guess) Nearest(_ context.Context, q []float32, k int) (near []store.Neighbor, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range slices.Sorted(maps.Keys(g.rows)) {
		dot := float32(0)
		for i, x := range g.rows[r] {
			dot += x * q[i]
		}
		if r != g.missed {
			near = append(near, store.Neighbor{Row: r, Cosine: dot})
		}
	}
	slices.SortFunc(near, func(a, b store.Neighbor) int { return cmp.Compare(b.Cosine, a.Cosine) })
	return near[:min(k, len(near))], g.err
}

// TestApproximate: the extension only selects whose names are compared. An error falls back to exact search, and
// written and forgotten entries appear and disappear in its index.
func TestApproximate(t *testing.T) {
	t.Parallel()
	w := newFixture(t, func(c *Config) { c.Hybrid = false })
	for _, text := range []string{"The user drinks coffee black.", "The cat is called Momo.", "The car is in the " +
		"garage."} {
		w.storeFact(text)
	}
	g := &guess{rows: map[uint64][]float32{}}
	w.m.cfg.VSS = "/named/by/the/person"
	if err := w.m.loadApproximate(t.Context(), g, w.m.search.model); err != nil {
		t.Fatal(err)
	}
	w.m.search.approximate = g
	w.m.approximateReady.Store(true)
	found := func(what string) (names []string) {
		t.Helper()
		v, err := w.m.embedQuery(t.Context(), w.rec.Out(), what)
		if err != nil {
			t.Fatal(err)
		}
		f, err := w.m.searchIndex(t.Context(), recall.Query{Text: what, Vector: v})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range f.Top {
			names = append(names, c.Name)
		}
		return names
	}
	has := func(names []string, word string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return strings.Contains(strings.ToLower(n), word) })
	}
	if got := found("coffee black"); len(g.rows) != 3 || !has(got, "coffee") {
		t.Errorf("%d rows, found %v", len(g.rows), got)
	}
	w.storeFact("The dog is called Rex.")
	if got := found("dog called Rex"); len(g.rows) != 4 || !has(got, "dog") {
		t.Errorf("%d rows after a write, found %v", len(g.rows), got)
	}
	id := w.storeFact("The canary is called Pip.")
	if _, err := w.admin(subjects.MemoryAdminRequest{Op: "forget", IDs: []string{id}}); err != nil || len(g.rows) != 4 {
		t.Errorf("%d rows after one was forgotten, %v", len(g.rows), err)
	}
	g.missed = slices.Max(slices.Collect(maps.Keys(g.rows)))
	if got := found("dog called Rex"); has(got, "dog") {
		t.Errorf("what it misses was found: %v", got)
	}
	g.err = errors.New("no")
	if got := found("dog called Rex"); !has(got, "dog") {
		t.Errorf("it fails, and nobody else looks: %v", got)
	}
	if p := w.m.searchMethod(); !strings.Contains(p, "approximate by DuckDB") {
		t.Error(p)
	}
	w.m.search.approximate = nil
	if p := w.m.searchMethod(); !strings.Contains(p, "being filled") {
		t.Error(p)
	}
}

// TestApproximateWithoutTheExtension: searches are exact when the file is no extension, and the status says so.
func TestApproximateWithoutTheExtension(t *testing.T) {
	t.Parallel()
	w := newFixture(t, func(c *Config) { c.VSS = "/nowhere/vss.duckdb_extension" })
	w.m.fillApproximate(t.Context(), w.rec.Out())
	if w.m.search.approximate != nil || w.m.approximateReady.Load() {
		t.Errorf("%v", w.m.search.approximate)
	}
}
