//go:build cgo

package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"conclave/subjects"
)

func TestListFilters(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	at := func(hours int, e subjects.MemoryEntry) subjects.MemoryEntry {
		e.Created = testTime.Add(time.Duration(hours) * time.Hour)
		return e
	}
	a := at(1, newFact("a"))
	a.Tags, a.Corpus = []string{"food", "anna"}, "Anna trinkt K\u00c4SE im Caf\u00e9"
	b := at(2, newEngram("b", "q", "g"))
	b.Description, b.Tags, b.Pinned = "100% sure_", []string{"food"}, true
	c := at(3, newFact("c"))
	c.Provenance.Trust, c.State, c.Kind, c.Provenance.From = subjects.Untrusted, subjects.MemoryCandidate,
		subjects.KindDocument, "/x.md"
	putEntries(t, s, a, b, c)
	for _, x := range []struct {
		name string
		f    Filter
		want string
	}{
		{"all, the newest first", Filter{}, "c b a"},
		{"kind", Filter{Kind: "fact"}, "a"},
		{"state", Filter{State: "candidate"}, "c"},
		{"trust", Filter{Trust: "trusted"}, "b a"},
		{"tag", Filter{Tag: "food"}, "b a"},
		{"part of a tag does not match", Filter{Tag: "foo"}, ""},
		{"from", Filter{From: "/x.md"}, "c"},
		{"pinned", Filter{Pinned: true}, "b"},
		{"several", Filter{Tag: "food", Kind: "engram"}, "b"},
		{"substring of the corpus", Filter{Text: "trinkt"}, "a"},
		{"without case and accents", Filter{Text: "kase IM CAFE"}, "a"},
		{"with other accents", Filter{Text: "caf\u00e8"}, "a"},
		{"substring of the name", Filter{Text: "NAME of c"}, "c"},
		{"SQL wildcards", Filter{Text: "100% sure_"}, "b"},
		{"SQL wildcards match literally", Filter{Text: "100_ sure%"}, ""},
		{"SQL", Filter{Kind: "' OR true --"}, ""},
		{"a NUL", Filter{Text: "\x00"}, ""},
	} {
		all, next, err := s.List(t.Context(), x.f)
		if err != nil || ids(all) != x.want || next != "" {
			t.Errorf("%s: got %q, next %q, %v; want %q", x.name, ids(all), next, err, x.want)
		}
		for _, e := range all {
			if e.Corpus == "" {
				t.Errorf("%s: the corpus of %s is missing", x.name, e.ID)
			}
		}
	}
	if got, _, err := s.List(t.Context(), Filter{Kind: "fact"}); err != nil ||
		fmt.Sprint(got[0].Tags) != "[food anna]" {
		t.Errorf("tags are %v, %v", got[0].Tags, err)
	}
}

func TestListPages(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var items []Item
	for i := range 23 { // many of the same moment
		e := newFact(fmt.Sprintf("e%02d", i))
		e.Created = testTime.Add(time.Duration(i/7) * time.Second)
		items = append(items, Item{Entry: e})
	}
	if _, err := s.Put(t.Context(), items...); err != nil {
		t.Fatal(err)
	}
	whole, _, err := s.List(t.Context(), Filter{})
	if err != nil || len(whole) != 23 {
		t.Fatal(len(whole), err)
	}
	for _, size := range []int{1, 5, 7, 23, 24} {
		var got []subjects.MemoryEntry
		f := Filter{Limit: size}
		for pages := 0; ; pages++ {
			page, next, err := s.List(t.Context(), f)
			if err != nil || len(page) > size || pages > 23 {
				t.Fatal(len(page), pages, err)
			}
			got = append(got, page...)
			if next == "" {
				break
			}
			if next != CursorAfter(page[len(page)-1]) {
				t.Errorf("next is %q", next)
			}
			f.After = next
		}
		if ids(got) != ids(whole) {
			t.Errorf("in pages of %d: %s\nwant %s", size, ids(got), ids(whole))
		}
	}
	for _, bad := range []string{"x", ".", "!.a", "zzzzzzzzzzzzzzzzzzzz.a", "1.", "zzzzzzzzzzzz.a", "1.a\x00"} {
		if _, _, err := s.List(t.Context(), Filter{After: bad}); !errors.Is(err, ErrCursor) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzCursor(f *testing.F) {
	for _, s := range []string{CursorAfter(newFact("a")), "", ".", "-1.a", "zzzzzzzzzzzzz.a", "1.a.b", "0x1.a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		created, id, err := parseCursor(s)
		if err != nil {
			if !errors.Is(err, ErrCursor) {
				t.Error(err)
			}
			return
		}
		e := subjects.MemoryEntry{ID: id, Created: created}
		again, same, err := parseCursor(CursorAfter(e))
		if err != nil || !again.Equal(created) || same != id {
			t.Errorf("%q is %v %q and then %v %q, %v", s, created, id, again, same, err)
		}
	})
}

func TestFindIDs(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var items []Item
	for i := range 15 {
		items = append(items, Item{Entry: newFact(fmt.Sprintf("ab%02d", i))})
	}
	items = append(items, Item{Entry: newFact("ab")}, Item{Entry: newFact("x%y")})
	if _, err := s.Put(t.Context(), items...); err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"ab03": "ab03", "x": "x%y", "x%": "x%y", "%": "", "zz": "",
		"ab1": "ab10 ab11 ab12 ab13 ab14", "ab": "ab ab00 ab01 ab02 ab03 ab04 ab05 ab06 ab07 ab08",
	} {
		got, err := s.FindIDs(t.Context(), in)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: got %v, %v; want %s", in, got, err, want)
		}
	}
}
