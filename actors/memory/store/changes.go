package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"conclave/subjects"
)

// Change is what writes are a part of, see [WithChange].
type Change struct {
	ID    string
	Made  time.Time
	About string // of the caller, kept with it
	// Required rejects a write whose states cannot be kept ([ErrFull]); otherwise it is made and not kept.
	Required bool
	// Kept are the ids of the entries whose states are kept, when the writes have returned without an error.
	Kept []string
}

// ErrFull means that what a change would keep exceeds the limit.
var ErrFull = errors.New("the kept changes have reached their limit")

type changeKey struct{}

// WithChange returns a context with which [Store.Put], [Store.Merge], [Store.Forget] and [Store.RestoreEntries] keep
// each entry as it was before and after, as a part of c and in the transaction of the write.
func WithChange(ctx context.Context, c *Change) context.Context {
	return context.WithValue(ctx, changeKey{}, c)
}

// changeOf returns the change that the writes with ctx are a part of, nil for none.
func changeOf(ctx context.Context) *Change {
	c, _ := ctx.Value(changeKey{}).(*Change)
	return c
}

// KeptEntry is an entry as it was before and after a change.
type KeptEntry struct {
	Change, About string
	Made          time.Time
	Entry         string
	Before, After []byte // as [EncodeEntry] writes them, nil = there was none
}

// EncodeEntry returns the columns of an entry and its tags as text, for comparison and to restore them.
func EncodeEntry(e subjects.MemoryEntry) ([]byte, error) {
	e.Correlating, e.Supersedes, e.Grades, e.Accesses, e.Accessed = nil, nil, subjects.Grades{}, 0, time.Time{}
	data, err := json.MarshalIndent(e, "", "  ")
	return append(data, '\n'), err
}

// encode returns entries as [EncodeEntry], by id; those that do not exist are left out.
func (t *tx) encode(ids []string) (map[string][]byte, error) {
	all := map[string][]byte{}
	for _, id := range ids {
		e, err := t.readEntry(id)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err == nil {
			all[id], err = EncodeEntry(e.MemoryEntry)
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// keepEntries runs act, which writes the entries with these ids, and keeps their states before and after it as a part
// of c. With c nil nothing is kept.
func (t *tx) keepEntries(c *Change, ids []string, act func() error) error {
	if c == nil || t.w.store.opts.KeepDays == 0 {
		return act()
	}
	ids = unique(ids)
	before, err := t.encode(ids)
	if err == nil {
		err = act()
	}
	if err != nil {
		return err
	}
	after, err := t.encode(ids)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if bytes.Equal(before[id], after[id]) {
			continue
		}
		if err := t.keepEntry(c, id, before[id], after[id]); errors.Is(err, ErrFull) && !c.Required {
			continue
		} else if err != nil {
			return err
		}
		c.Kept = unique(append(c.Kept, id))
	}
	return nil
}

// keepEntry keeps one entry as a part of c, and removes what expired. An entry that c wrote before keeps its first
// state.
func (t *tx) keepEntry(c *Change, id string, before, after []byte) error {
	n, err := t.exec("UPDATE changes SET after = ?, size = coalesce(strlen(before), 0) + ? WHERE change = ? AND "+
		"entry = ?", optionalText(after), len(after), c.ID, id)
	if err != nil || n > 0 {
		return err
	}
	o := t.w.store.opts
	if _, err := t.exec("DELETE FROM changes WHERE made < ?", o.keptSince()); err != nil {
		return err
	}
	used := int64(0)
	if err := t.query(func(r *sql.Rows) error { return r.Scan(&used) },
		"SELECT coalesce(sum(size), 0)::BIGINT FROM changes"); err != nil {
		return err
	}
	size := int64(len(before) + len(after))
	if used+size > o.KeepBytes {
		return ErrFull
	}
	t.insert("changes", c.ID, truncateTime(c.Made), c.About, id, optionalText(before), optionalText(after), size)
	return nil
}

// keptSince returns the time of the oldest change that has not expired.
func (o Options) keptSince() time.Time { return truncateTime(o.Now().AddDate(0, 0, -o.KeepDays)) }

// optionalText returns a text as a value of a column that is NULL for nil.
func optionalText(b []byte) any {
	if b == nil {
		return nil
	}
	return string(b)
}

// followEntry runs act, which is upkeep of an entry: when the entry is as a change left it, that counts as its state
// after the change from then on.
func (t *tx) followEntry(id string, act func() error) error {
	before, err := t.encode([]string{id})
	if err == nil {
		err = act()
	}
	if err != nil || before[id] == nil {
		return err
	}
	after, err := t.encode([]string{id})
	if err == nil {
		_, err = t.exec("UPDATE changes SET after = ?, size = coalesce(strlen(before), 0) + ? WHERE entry = ? AND "+
			"after = ?", optionalText(after[id]), len(after[id]), id, string(before[id]))
	}
	return err
}

// changeThatStored returns the change that stored an entry, nil for none that is kept: what the entry supersedes later
// is a part of it too.
func (t *tx) changeThatStored(id string) (c *Change, err error) {
	err = t.query(func(r *sql.Rows) error {
		c = &Change{}
		return r.Scan(&c.ID, &c.About, &c.Made)
	}, "SELECT change, about, made FROM changes WHERE entry = ? AND before IS NULL ORDER BY made DESC LIMIT 1", id)
	return c, err
}

// Changes returns what is kept and has not expired, by the time and the id of the change.
func (s *Store) Changes(ctx context.Context) (all []KeptEntry, err error) {
	err = s.query(ctx, func(r *sql.Rows) error {
		var k KeptEntry
		var before, after sql.NullString
		err := r.Scan(&k.Change, &k.Made, &k.About, &k.Entry, &before, &after)
		k.Made = k.Made.UTC()
		if before.Valid {
			k.Before = []byte(before.String)
		}
		if after.Valid {
			k.After = []byte(after.String)
		}
		all = append(all, k)
		return err
	}, "SELECT change, made, about, entry, before, after FROM changes WHERE made >= ? ORDER BY made, change, entry",
		s.opts.keptSince())
	if err != nil {
		return nil, fmt.Errorf("reading the kept changes: %w", err)
	}
	return all, nil
}

// PurgeChanges removes what is kept of changes, of all without ids, and returns of how many something was.
func (s *Store) PurgeChanges(ctx context.Context, ids ...string) (purged int, err error) {
	err = s.write(ctx, func(t *tx) error {
		in, named := "(SELECT change FROM changes)", []any{}
		if len(ids) > 0 {
			in, named = inList(ids)
		}
		if err := t.query(func(r *sql.Rows) error { return r.Scan(&purged) },
			"SELECT count(DISTINCT change) FROM changes WHERE change IN "+in, named...); err != nil {
			return err
		}
		t.checkpoint = true
		if _, err := t.exec("DELETE FROM changes WHERE change IN "+in, named...); err != nil {
			return err
		}
		_, err := t.exec(markForgotSQL)
		return err
	})
	return purged, err
}

// Restoration is an entry to write as it was.
type Restoration struct {
	ID       string
	From, To []byte // as [EncodeEntry] writes them, nil = there is none; From is what must be stored now
}

// RestoreEntries writes entries as they were, all or none, and returns those that it deleted. One that is not as From
// says is [ErrChanged]. Relations that a deleted entry had made past are current again; its own are gone.
func (s *Store) RestoreEntries(ctx context.Context, all ...Restoration) (gone []Deleted, err error) {
	entries := map[string]*checkedItem{}
	ids := make([]string, len(all))
	for i, r := range all {
		ids[i] = r.ID
		if r.To == nil {
			continue
		}
		it := Item{Restore: true}
		if err := json.Unmarshal(r.To, &it.Entry); err != nil {
			return nil, err
		}
		if entries[r.ID], err = s.checkItem(it); err != nil {
			return nil, err
		}
	}
	c := changeOf(ctx)
	err = s.write(ctx, func(t *tx) error {
		gone = nil
		now, err := t.encode(ids)
		if err != nil {
			return err
		}
		for _, r := range all {
			if !bytes.Equal(now[r.ID], r.From) {
				return fmt.Errorf("%w: %s", ErrChanged, r.ID)
			}
		}
		written := slices.Clone(ids)
		for _, r := range all {
			if r.To != nil {
				continue
			}
			// they get another successor
			err := t.query(appendText(&written), "SELECT id FROM entries WHERE superseded_by = ?", r.ID)
			if err != nil {
				return err
			}
		}
		return t.keepEntries(c, written, func() (err error) {
			gone, err = t.restoreEntries(all, entries)
			return err
		})
	})
	return gone, err
}

// restoreEntries writes the entries of all that are to be there, and then deletes the others.
func (t *tx) restoreEntries(all []Restoration, entries map[string]*checkedItem) (gone []Deleted, err error) {
	for _, r := range all {
		it := entries[r.ID]
		switch {
		case it == nil:
			continue
		case r.From == nil:
			_, err = t.put([]*checkedItem{it})
		default:
			err = t.rewriteEntry(it)
		}
		if err != nil {
			return nil, err
		}
	}
	absent := slices.DeleteFunc(slices.Clone(all), func(r Restoration) bool { return r.To != nil || r.From == nil })
	for _, r := range absent {
		_, err := t.exec("UPDATE relations SET tense = 'is', until = '', ended_by = '' WHERE ended_by IN (SELECT id "+
			"FROM relations WHERE row = (SELECT row FROM entries WHERE id = ?))", r.ID)
		if err != nil {
			return nil, err
		}
		deleted, err := t.deleteEntries([]string{r.ID})
		if err != nil {
			return nil, err
		}
		for _, e := range deleted {
			gone = append(gone, Deleted{ID: e.id, Row: uint64(e.row)})
		}
	}
	if len(gone) == 0 {
		return nil, nil
	}
	t.checkpoint = true
	if _, err := t.exec("UPDATE meta SET value = greatest(value, ?) WHERE name = 'high'", t.nextRow-1); err != nil {
		return nil, err
	}
	_, err = t.exec(markForgotSQL)
	return gone, err
}

// rewriteEntry writes a stored entry as it was.
func (t *tx) rewriteEntry(it *checkedItem) error {
	old, err := t.readEntry(it.entry.ID)
	if err != nil {
		return err
	}
	e := it.entry
	e.Correlating = nil
	if err := t.writeEntry(old, e, nil, e.Updated); err != nil {
		return err
	}
	_, err = t.exec("UPDATE entries SET state = ?, superseded_by = ?, pinned = ?, updated = ? WHERE id = ?", e.State,
		e.SupersededBy, e.Pinned, truncateTime(e.Updated), e.ID)
	return err
}
