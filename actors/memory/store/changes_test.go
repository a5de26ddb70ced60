//go:build cgo

package store

import (
	"testing"
	"time"
)

// TestKeptChangesAreBounded: what is kept ends after its days, its size is that of the states, and a
// full limit keeps nothing of an entry that is superseded later, but does not prevent that.
func TestKeptChangesAreBounded(t *testing.T) {
	t.Parallel()
	s, now := newStore(t), &clock{testTime}
	s.opts.Now, s.opts.KeepDays, s.opts.KeepBytes = now.now, 30, 1<<20
	old, fact := newFact("old"), newFact("new")
	putEntries(t, s, old)
	ctx := WithChange(t.Context(), &Change{ID: "c1", Made: testTime, About: "{}"})
	if _, err := s.Put(ctx, Item{Entry: fact}); err != nil {
		t.Fatal(err)
	}
	s.opts.KeepBytes = 1
	fact.Supersedes = []string{old.ID}
	if err := s.Supersede(t.Context(), fact); err != nil {
		t.Errorf("superseding with a full limit: %v", err)
	}
	var size, bytes int64
	if err := s.db.QueryRow("SELECT sum(size), sum(coalesce(strlen(before), 0) + coalesce(strlen(after), 0)) FROM "+
		"changes").Scan(&size, &bytes); err != nil || size != bytes {
		t.Errorf("size %d, kept are %d bytes, %v", size, bytes, err)
	}
	if all, err := s.Changes(t.Context()); len(all) != 1 || err != nil {
		t.Errorf("%d kept, %v", len(all), err)
	}
	now.at = testTime.Add(31 * 24 * time.Hour)
	if all, err := s.Changes(t.Context()); len(all) != 0 || err != nil {
		t.Errorf("%d kept after 31 days, %v", len(all), err)
	}
}
