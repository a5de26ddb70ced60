//go:build cgo

package store

import (
	"fmt"
	"testing"
	"time"
)

func TestTouch(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("a"), newFact("b"))
	touch := func(hours int, ids ...string) {
		t.Helper()
		if err := s.Touch(t.Context(), testTime.Add(time.Duration(hours)*time.Hour), ids...); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when, id string, times, hours int) {
		t.Helper()
		want := truncateTime(testTime.Add(time.Duration(hours) * time.Hour))
		if e := getEntry(t, s, id); e.Accesses != times || !e.Accessed.Equal(want) {
			t.Errorf("%s: %s was recalled %d times, last %v; want %d, %v", when, id, e.Accesses, e.Accessed, times,
				want)
		}
	}
	touch(1, "a", "missing")
	touch(3, "a", "b")
	touch(2, "a")
	check("before it is written", "a", 3, 3)
	putEntries(t, s, newFact("c")) // with this
	check("written", "a", 3, 3)
	if n := queryCount(t, s, "SELECT count(*) FROM access"); n != 2 {
		t.Errorf("%d counts, want 2", n)
	}
	touch(5, "a")
	putEntries(t, s, newFact("d"))
	check("added to what is written", "a", 4, 5)
	check("left as it was", "b", 1, 3)
	touch(4, "a", "b")
	s = reopenStore(t, s)
	check("after a restart", "a", 5, 5)
	check("after a restart", "b", 2, 4)
	if n := len(s.accesses.waiting); n != 0 {
		t.Errorf("%d still wait", n)
	}
}

// TestTouchMany: many accesses without another write are written on their own.
func TestTouchMany(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	putEntries(t, s, newFact("a"))
	var ids []string
	for i := range maxPendingAccesses {
		ids = append(ids, fmt.Sprint("x", i))
	}
	if err := s.Touch(t.Context(), testTime, append(ids, "a")...); err != nil {
		t.Fatal(err)
	}
	if n := queryCount(t, s, "SELECT count(*) FROM access"); n != 1 || len(s.accesses.waiting) != 0 {
		t.Errorf("%d counts are written and %d wait", n, len(s.accesses.waiting))
	}
	if err := s.Touch(t.Context(), time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), "a"); err == nil {
		t.Error("a year of five digits was taken")
	}
}
