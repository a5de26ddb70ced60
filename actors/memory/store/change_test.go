//go:build cgo

package store

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"conclave/subjects"
)

func ptr[T any](v T) *T { return &v }

func TestUpdate(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for i, c := range []struct {
		name    string
		edit    subjects.MemoryEdit
		want    string // name, description, corpus, tags
		vectors int
		err     error
	}{
		{"the name", subjects.MemoryEdit{Name: ptr("n")}, "n|about a|what a says|[x y]", 0, nil},
		{"the corpus", subjects.MemoryEdit{Corpus: ptr("c")}, "name of a|about a|c|[x y]", 0, nil},
		{
			"tags leave the vectors",
			subjects.MemoryEdit{Tags: &[]string{"z", "x", "z"}},
			"name of a|about a|what a says|[z x]", 1, nil,
		},
		{"no tags", subjects.MemoryEdit{Tags: &[]string{}}, "name of a|about a|what a says|[]", 1, nil},
		{
			"the same words leave the vectors",
			subjects.MemoryEdit{Name: ptr("name of a")},
			"name of a|about a|what a says|[x y]", 1, nil,
		},
		{"a NUL is made visible", subjects.MemoryEdit{Description: ptr("a\x00b")}, "name of a|a\uFFFDb|what a " +
			"says|[x y]", 0, nil},
		{
			"an empty name",
			subjects.MemoryEdit{Name: ptr("")},
			"name of a|about a|what a says|[x y]", 1,
			ErrInvalid,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newFact(fmt.Sprint("a", i))
			e.Name, e.Description, e.Corpus = "name of a", "about a", "what a says"
			e.Tags = []string{"x", "y"}
			putEntries(t, s, e)
			got, err := s.Update(t.Context(), e.ID, c.edit, testTime.Add(time.Hour))
			if !errors.Is(err, c.err) {
				t.Fatal(err)
			}
			now := getEntry(t, s, e.ID)
			if err == nil && (got.Updated != now.Updated || now.Updated != truncateTime(testTime.Add(time.Hour))) {
				t.Errorf("updated is %v and %v", got.Updated, now.Updated)
			}
			if is := fmt.Sprintf("%s|%s|%s|%v", now.Name, now.Description, now.Corpus, now.Tags); is != c.want {
				t.Errorf("got %s, want %s", is, c.want)
			}
			if n := queryCount(t, s, "SELECT count(*) FROM vectors v JOIN entries e ON e.row = v.row WHERE e.id = ?",
				e.ID); n != c.vectors {
				t.Errorf("%d vectors, want %d", n, c.vectors)
			}
		})
	}
}

func TestUpdateTimeIncreases(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("a"))
	before := getEntry(t, s, "a")
	for i := range 3 { // a clock that stands still, or goes back
		e, err := s.Update(t.Context(), "a", subjects.MemoryEdit{Name: ptr(fmt.Sprint(i))}, testTime.Add(-time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		if !e.Updated.After(before.Updated) {
			t.Errorf("%v is not after %v", e.Updated, before.Updated)
		}
		before = e
	}
	if _, err := s.Update(t.Context(), "b", subjects.MemoryEdit{Name: ptr("n")}, testTime); !errors.Is(err,
		ErrNotFound) {
		t.Error(err)
	}
}

func TestMerge(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	a := newFact("a")
	a.Tags, a.Entities = []string{"x", "y"}, []string{"Anna"}
	putEntries(t, s, a, newFact("b"), newFact("c"))
	if err := s.Merge(t.Context(), "a", Addition{
		Tags: []string{"y", "z"}, Entities: []string{"Anna", "Bob"},
		Correlating: []string{"b", "missing", "a"},
	}); err != nil {
		t.Fatal(err)
	}
	if e := getEntry(t, s, "a"); fmt.Sprint(e.Tags, e.Entities, e.Correlating) != "[x y z] [Anna Bob] [b]" {
		t.Errorf("got %v %v %v", e.Tags, e.Entities, e.Correlating)
	}
	if n := queryCount(t, s, "SELECT count(*) FROM vectors"); n != 3 {
		t.Errorf("%d vectors are left of 3: the words are the same", n)
	}
	if err := s.Merge(t.Context(), "a", Addition{Correlating: []string{"b"}}); err != nil {
		t.Fatal(err)
	}
	e := getEntry(t, s, "a")
	if fmt.Sprint(e.Correlating) != "[b]" || !e.Updated.After(truncateTime(testTime)) {
		t.Errorf("got %+v", e)
	}
	if waiting, err := s.Unembedded(t.Context(), "m", 10); err != nil || ids(waiting) != "" {
		t.Errorf("waiting are %q, %v", ids(waiting), err)
	}
	if err := s.Merge(t.Context(), "missing", Addition{}); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

func TestMergeLinksEntriesInBothDirections(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("a"), newFact("b"), newFact("c"), newFact("d"))
	for range 2 { // the second call links nothing
		if err := s.Merge(t.Context(), "a",
			Addition{Correlating: []string{"b", "c", "a", "missing", "b"}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ of, want string }{{"a", "b c"}, {"b", "a"}, {"d", ""}, {"missing", ""}} {
		if all, err := s.Correlated(t.Context(), c.of); err != nil || ids(all) != c.want {
			t.Errorf("with %s go %q, %v; want %q", c.of, ids(all), err, c.want)
		}
	}
	if all, err := s.Correlated(t.Context(), "b", "a"); err != nil || ids(all) != "c" {
		t.Errorf("with a and b go %q, %v", ids(all), err)
	}
}

func TestPinReturnsChangedEntries(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("a"), newFact("b"))
	changed, err := s.Pin(t.Context(), true, "b", "missing", "a", "a")
	if err != nil || fmt.Sprint(changed) != "[b a]" {
		t.Errorf("pinned are %v, %v", changed, err)
	}
	if changed, err = s.Pin(t.Context(), true, "a"); err != nil || len(changed) != 0 {
		t.Errorf("pinned again are %v, %v", changed, err)
	}
	if !getEntry(t, s, "a").Pinned || !getEntry(t, s, "a").Updated.Equal(truncateTime(testTime)) {
		t.Error("a is not pinned, or counts as changed")
	}
}

func TestSetVectors(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if _, err := s.Put(t.Context(), Item{Entry: newFact("a")}, Item{Entry: newFact("b")}); err != nil {
		t.Fatal(err)
	}
	if n, err := s.CountUnembedded(t.Context(), "m"); n != 2 || err != nil {
		t.Errorf("%d wait, %v", n, err)
	}
	e := getEntry(t, s, "a")
	if err := s.SetVectors(t.Context(), "a", e.Updated, *randomVectors("m", 4, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Update(t.Context(), "a", subjects.MemoryEdit{Corpus: ptr("other")},
		testTime.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := s.SetVectors(t.Context(), "a", e.Updated, *randomVectors("m", 4, 2)); !errors.Is(err, ErrChanged) {
		t.Errorf("vectors of other words: %v", err)
	}
	if err := s.SetVectors(t.Context(), "missing", e.Updated, *randomVectors("m", 4, 2)); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if err := s.SetVectors(t.Context(), "b", e.Updated, *randomVectors("m", 5, 2)); !errors.Is(err, ErrDims) {
		t.Error(err)
	}
	// Another model may have another length; an entry has the vectors of one.
	b := getEntry(t, s, "b")
	for _, v := range []*Vectors{randomVectors("m", 4, 3), randomVectors("n", 7, 3)} {
		if err := s.SetVectors(t.Context(), "b", b.Updated, *v); err != nil {
			t.Fatal(err)
		}
	}
	for model, want := range map[string]string{"m": "b a", "n": "a", "": "a"} {
		if all, err := s.Unembedded(t.Context(), model, 10); err != nil || ids(all) != want {
			t.Errorf("without vectors of %q are %q, %v; want %q", model, ids(all), err, want)
		}
	}
	st, err := s.Stats(t.Context())
	if err != nil || st.Model != "n" || st.Dims != 7 || st.Entries != 2 {
		t.Errorf("stats are %+v, %v", st, err)
	}
	s = reopenStore(t, s)
	if err := s.SetVectors(t.Context(), "b", b.Updated, *randomVectors("m", 5, 2)); !errors.Is(err, ErrDims) {
		t.Errorf("after a restart: %v", err)
	}
}
