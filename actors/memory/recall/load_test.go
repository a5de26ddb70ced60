package recall

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"conclave/subjects"
)

// A row of PutLater is found by its vector at once, and by its words once they are indexed. Rows that were written or
// removed meanwhile are not found by the words that they had.
func TestPutLater(t *testing.T) {
	t.Parallel()
	const rows = 3 * wordBatch
	m, err := New(Options{Dims: 256, Hybrid: true, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	unitVector := func(i int) []float32 {
		v := make([]float32, 256)
		v[i] = 1
		return v
	}
	for i := range rows {
		e := subjects.MemoryEntry{
			ID: fmt.Sprintf("e%d", i), State: subjects.MemoryActive, Corpus: fmt.Sprintf("the number w%d", i),
		}
		if err := m.PutLater(uint64(i), e, Vectors{Corpus: unitVector(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if n := m.Stats().Words; n != 0 {
		t.Errorf("%d rows are indexed", n)
	}
	found, err := m.Find(Query{Text: "w7", Vector: unitVector(7)})
	if err != nil || len(found.Top) == 0 || found.Top[0].Entry.ID != "e7" || m.Stats().Words != 0 {
		t.Errorf("%+v, %v", found, err)
	}
	m.Remove(8)
	changed := subjects.MemoryEntry{ID: "e9", State: subjects.MemoryActive, Corpus: "changed"}
	if err := m.Put(9, changed, Vectors{}); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := m.IndexWords(ended); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for text, want := range map[string]string{"w7": "e7", "w8": "", "w9": "", "changed": "e9"} {
		found, err := m.Find(Query{Text: text})
		got := ""
		if len(found.Top) > 0 {
			got = found.Top[0].Entry.ID
		}
		if err != nil || got != want {
			t.Errorf("%s: found %q, %v", text, got, err)
		}
	}
	if n := m.Stats().Words; n != rows-1 {
		t.Errorf("%d rows are indexed of %d", n, rows-1)
	}
}
