//go:build cgo

package store

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"conclave/subjects"
)

// loaded are all entries, by id.
func loaded(t *testing.T, s *Store, model string) map[string]IndexEntry {
	t.Helper()
	all := map[string]IndexEntry{}
	running := 0
	err := s.Load(t.Context(), model, func(l IndexEntry) error {
		running++
		defer func() { running-- }()
		if running != 1 {
			return errors.New("two at once")
		}
		if _, twice := all[l.ID]; twice {
			return fmt.Errorf("%s comes twice", l.ID)
		}
		if l.Vectors != nil { // valid during the call only
			v := *l.Vectors
			v.Corpus, v.Name, v.Description = slices.Clone(v.Corpus), slices.Clone(v.Name), slices.Clone(v.Description)
			l.Vectors = &v
		}
		all[l.ID] = l
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestLoad(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if got := loaded(t, s, "m"); len(got) != 0 {
		t.Errorf("an empty memory has %v", got)
	}
	a := whole("a")
	va, vb := randomVectors("m", 8, 1), randomVectors("other", 3, 2)
	va.Description = nil // the same as the corpus
	rows, err := s.Put(t.Context(), Item{Entry: a, Vectors: va}, Item{Entry: newFact("b"), Vectors: vb},
		Item{Entry: newFact("c")})
	if err != nil {
		t.Fatal(err)
	}
	stored := getEntry(t, s, "a")
	stored.Grades.Feedback = ""
	want := IndexEntry{Row: rows[0], MemoryEntry: subjects.MemoryEntry{
		ID: "a", Kind: stored.Kind, State: stored.State, Name: stored.Name, Description: stored.Description,
		Corpus: stored.Corpus, Tags: stored.Tags, Respondent: stored.Respondent, Pinned: stored.Pinned,
		Provenance: subjects.Provenance{Source: stored.Provenance.Source, Trust: stored.Provenance.Trust},
		Created:    stored.Created, Happened: stored.Happened, Speaker: stored.Speaker,
		Conversation: stored.Conversation, Position: stored.Position, Grades: stored.Grades,
	}, Vectors: va}
	for _, when := range []string{"at once", "after a restart"} {
		got := loaded(t, s, "m")
		if len(got) != 3 || !reflect.DeepEqual(got["a"], want) {
			t.Errorf("%s: %d entries, a is\n%+v, want\n%+v", when, len(got), got["a"], want)
		}
		if got["b"].Vectors != nil || got["c"].Vectors != nil {
			t.Errorf("%s: vectors of another model, or of none", when)
		}
		if got = loaded(t, s, "other"); !reflect.DeepEqual(got["b"].Vectors, vb) {
			t.Errorf("%s: the vectors of b are %v", when, got["b"].Vectors)
		}
		lights, err := s.IndexEntries(t.Context(), "m", "c", "missing", "a")
		if err != nil || len(lights) != 2 || lights[0].ID != "c" || !reflect.DeepEqual(lights[1], want) {
			t.Errorf("%s: lights are %+v, %v", when, lights, err)
		}
		s = reopenStore(t, s)
	}
}

// TestLoadMany: more rows than one statement reads, with gaps.
func TestLoadMany(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const n = 2*loadRangeSize + 100
	items := make([]Item, n)
	for i := range items {
		e := newFact(fmt.Sprint("e", i))
		e.Tags = []string{fmt.Sprint("t", i), "x"}
		items[i] = Item{Entry: e}
		if i%3 == 0 {
			items[i].Vectors = &Vectors{Model: "m", Corpus: []float32{float32(i), 1}, Name: []float32{1, float32(i)}}
		}
	}
	if _, err := s.Put(t.Context(), items...); err != nil {
		t.Fatal(err)
	}
	var gone []string
	for i := 100; i < loadRangeSize+700; i++ {
		gone = append(gone, fmt.Sprint("e", i))
	}
	forgetEntries(t, s, gone...)
	got := loaded(t, s, "m")
	if len(got) != n-len(gone) {
		t.Fatalf("%d entries, want %d", len(got), n-len(gone))
	}
	for i := range n {
		l, there := got[fmt.Sprint("e", i)]
		if there != (i < 100 || i >= loadRangeSize+700) {
			t.Fatalf("e%d is there: %v", i, there)
		}
		if !there {
			continue
		}
		if fmt.Sprint(l.Tags) != fmt.Sprintf("[t%d x]", i) || (l.Vectors != nil) != (i%3 == 0) || i%3 == 0 &&
			(l.Vectors.Corpus[0] != float32(i) || l.Vectors.Name[1] != float32(i) || l.Vectors.Description != nil) {
			t.Fatalf("e%d is %+v", i, l)
		}
	}
}

func TestLoadStops(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("a"), newFact("b"), newFact("c"))
	enough := errors.New("enough")
	seen := 0
	if err := s.Load(t.Context(), "m", func(IndexEntry) error { seen++; return enough }); !errors.Is(err, enough) ||
		seen != 1 {
		t.Errorf("got %v after %d", err, seen)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := s.Load(ctx, "m", func(IndexEntry) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := s.db.Exec("UPDATE vectors SET name = '\\x00'::BLOB WHERE row = 2"); err != nil {
		t.Fatal(err)
	}
	if err := s.Load(t.Context(), "m", func(IndexEntry) error { return nil }); !errors.Is(err, ErrDamaged) {
		t.Errorf("a vector of the wrong size: %v", err)
	}
	if err := s.Verify(t.Context()); !errors.Is(err, ErrInconsistent) {
		t.Errorf("a vector of the wrong size: %v", err)
	}
	forgetEntries(t, s, "b")
}

func TestDropVectors(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("a"), newFact("b"))
	if err := s.DropVectors(t.Context(), "a", "missing"); err != nil {
		t.Fatal(err)
	}
	if waiting, err := s.Unembedded(t.Context(), "m", 10); err != nil || ids(waiting) != "a" {
		t.Errorf("waiting are %q, %v", ids(waiting), err)
	}
}
