package store

import (
	"context"
	"database/sql"
	"maps"
	"slices"
	"sync"
	"time"
)

// accessCounts counts recalled entries in memory. The counts are written with the next write, so that a recall costs
// none; a crash may lose the last of them.
type accessCounts struct {
	mu      sync.Mutex
	waiting map[string]accessCount
}

type accessCount struct {
	times int64
	last  time.Time
}

// maxPendingAccesses is how many entries may have unwritten counts before they are written on their own.
const maxPendingAccesses = 256

// Touch counts a recall of entries at a time. It waits for a write only when maxPendingAccesses entries have unwritten
// counts: otherwise the count is not durable yet when it returns, and a crash may lose it. Ids that do not exist are
// ignored. It rejects a time outside the years 1 to 9999.
func (s *Store) Touch(ctx context.Context, at time.Time, ids ...string) error {
	if err := checkTime("access time", at); err != nil {
		return err
	}
	if s.accesses.add(truncateTime(at), sanitizeAll(ids)) < maxPendingAccesses {
		return nil
	}
	return s.write(ctx, func(*tx) error { return nil })
}

// add counts one access of each id, a repeated id as often as it is given, and returns how many entries have unwritten
// counts. An at before the last access leaves the time unchanged.
func (t *accessCounts) add(at time.Time, ids []string) (waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting == nil {
		t.waiting = map[string]accessCount{}
	}
	for _, id := range ids {
		c := t.waiting[id]
		c.times++
		if at.After(c.last) {
			c.last = at
		}
		t.waiting[id] = c
	}
	return len(t.waiting)
}

// take returns the unwritten counts, which the caller writes.
func (t *accessCounts) take() map[string]accessCount {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.waiting
	t.waiting = nil
	return all
}

// addTo adds the unwritten counts to entries that were read from the file.
func (t *accessCounts) addTo(byID map[string]*storedEntry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, c := range t.waiting {
		if e := byID[id]; e != nil {
			e.Accesses += int(c.times)
			if c.last.After(e.Accessed) {
				e.Accessed = c.last
			}
		}
	}
}

// writeAccesses adds counts, by entry id, to those in the file. Those of deleted entries are dropped.
func (t *tx) writeAccesses(all map[string]accessCount) error {
	for chunk := range slices.Chunk(slices.Sorted(maps.Keys(all)), maxListed) {
		ids, err := t.rowsOf(chunk)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			continue
		}
		var rows, times, lasts []int64
		for row, id := range ids {
			rows, times, lasts = append(rows, row), append(times, all[id].times), append(lasts,
				all[id].last.UnixMicro())
		}
		err = t.query(func(r *sql.Rows) error {
			var row int64
			err := r.Scan(&row)
			delete(ids, row)
			return err
		}, `UPDATE access SET times = access.times + c.times, last = greatest(access.last, make_timestamp(c.last))
			FROM (SELECT unnest(?::BIGINT[]) AS row, unnest(?::BIGINT[]) AS times, unnest(?::BIGINT[]) AS last) c
			WHERE access.row = c.row RETURNING access.row`, rows, times, lasts)
		if err != nil {
			return err
		}
		for row, id := range ids {
			t.insert("access", row, all[id].times, all[id].last)
		}
	}
	return nil
}

// rowsOf returns the ids of the entries that exist, by row number. ids must not be empty and hold at most maxListed.
func (t *tx) rowsOf(ids []string) (map[int64]string, error) {
	rows := map[int64]string{}
	in, named := inList(ids)
	err := t.query(func(r *sql.Rows) error {
		var row int64
		var id string
		err := r.Scan(&row, &id)
		rows[row] = id
		return err
	}, "SELECT row, id FROM entries WHERE id IN "+in, named...)
	return rows, err
}
