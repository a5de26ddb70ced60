package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"time"

	"conclave/subjects"
)

// readEntry reads an entry with its tags, or fails with [ErrNotFound]. Other fields of other tables stay empty.
func (t *tx) readEntry(id string) (e storedEntry, err error) {
	err = t.query(func(r *sql.Rows) (err error) {
		e, err = scanEntry(r)
		return err
	}, "SELECT "+entryColumns+" FROM entries WHERE id = ?", id)
	if err == nil && e.ID == "" {
		err = fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	if err == nil {
		err = t.query(appendText(&e.Tags), "SELECT tag FROM tags WHERE row = ? ORDER BY place", e.row)
	}
	return e, err
}

// changeEntry reads an entry, lets change alter its texts, tags, entities, intent, sentiment and digest, and writes it.
// Correlating holds the links to add. v are the vectors of the new text; nil deletes the former ones if the text
// changed, and the entry is embedded later. It rejects an empty name and texts beyond the limits ([ErrInvalid]), and an
// unknown id ([ErrNotFound]). An error of change is returned and nothing is written. The update time is now, or a
// microsecond after the old one if that is not earlier, so that a caller with an older copy can tell. keep runs the
// write and keeps what it must of the states before and after.
func (s *Store) changeEntry(ctx context.Context, id string, now time.Time, v *Vectors,
	keep func(t *tx, write func() error) error, change func(t *tx, e *subjects.MemoryEntry) error,
) error {
	if err := checkTime("update time", now); err != nil {
		return err
	}
	var packed *packedVectors
	if v != nil {
		var err error
		if packed, err = v.pack(); err != nil {
			return fmt.Errorf("vectors of %s: %w", id, err)
		}
	}
	return s.write(ctx, func(t *tx) error {
		return keep(t, func() error { return t.changeEntry(id, now, packed, change) })
	})
}

// changeEntry is the part of [Store.changeEntry] in the transaction.
func (t *tx) changeEntry(id string, now time.Time, v *packedVectors,
	change func(t *tx, e *subjects.MemoryEntry) error,
) error {
	old, err := t.readEntry(id)
	if err != nil {
		return err
	}
	e := old.MemoryEntry
	if err := change(t, &e); err != nil {
		return err
	}
	for _, c := range []struct {
		what string
		text *string
		most int
	}{
		{"name", &e.Name, maxShort},
		{"description", &e.Description, maxText},
		{"corpus", &e.Corpus, maxText},
		{"intent", &e.Intent, maxShort},
		{"sentiment", &e.Sentiment, maxShort},
	} {
		if err := checkLength(c.what, *c.text, c.most); err != nil {
			return err
		}
		*c.text = sanitize(*c.text)
	}
	if e.Name == "" {
		return invalidf("an entry needs a name")
	}
	return t.writeEntry(old, e, v, now)
}

// writeEntry writes what [Store.changeEntry] may have changed of an entry.
func (t *tx) writeEntry(old storedEntry, e subjects.MemoryEntry, v *packedVectors, now time.Time) error {
	if e.Updated = truncateTime(now); !e.Updated.After(old.Updated) {
		e.Updated = old.Updated.Add(time.Microsecond)
	}
	entities, err := encodeList(unique(sanitizeAll(e.Entities)))
	if err != nil {
		return err
	}
	_, err = t.exec("UPDATE entries SET name = ?, description = ?, corpus = ?, entities = ?, intent = ?, "+
		"sentiment = ?, digest = ?, updated = ? WHERE id = ?", e.Name, e.Description, e.Corpus, entities,
		e.Intent, e.Sentiment, sanitize(e.Provenance.Digest), e.Updated, e.ID)
	if err != nil {
		return err
	}
	if tags := unique(sanitizeAll(e.Tags)); !slices.Equal(tags, old.Tags) {
		if _, err := t.exec("DELETE FROM tags WHERE row = ?", old.row); err != nil {
			return err
		}
		for i, tag := range tags {
			t.insert("tags", old.row, int32(i), tag)
		}
	}
	if err := t.linkEntries(old.row, e.ID, unique(e.Correlating)); err != nil {
		return err
	}
	if v == nil && old.Name == e.Name && old.Description == e.Description && old.Corpus == e.Corpus {
		return nil
	}
	return t.replaceVectors(old.row, v)
}

// replaceVectors deletes the vectors of an entry, of whatever model, and writes v; nil leaves the entry without any.
func (t *tx) replaceVectors(row int64, v *packedVectors) error {
	if _, err := t.exec("DELETE FROM vectors WHERE row = ?", row); err != nil {
		return err
	}
	return t.putVectors(row, v)
}

// keepNothing is for a change of an entry by the user, which is none of a call.
func keepNothing(_ *tx, write func() error) error { return write() }

// Update changes the fields of an entry that are not nil in edit and returns the whole entry. Tags replaces all tags.
// An entry whose name or description is given is not described by a model any more. It fails as [Store.changeEntry]
// does, also when the entry is forgotten before the result is read.
func (s *Store) Update(ctx context.Context, id string, edit subjects.MemoryEdit, now time.Time) (
	none subjects.MemoryEntry, err error,
) {
	err = s.changeEntry(ctx, id, now, nil, keepNothing, func(t *tx, e *subjects.MemoryEntry) error {
		was := *e
		setOptional(&e.Name, edit.Name)
		setOptional(&e.Description, edit.Description)
		setOptional(&e.Corpus, edit.Corpus)
		setOptional(&e.Tags, edit.Tags)
		if (edit.Name != nil || edit.Description != nil) && e.Provenance.Digest == subjects.DigestPending {
			e.Provenance.Digest = subjects.DigestGiven
		}
		if e.Name == was.Name && e.Description == was.Description && e.Corpus == was.Corpus {
			return nil
		}
		_, err := t.exec(markForgotSQL) // the file holds the old text until it is rewritten
		return err
	})
	if err != nil {
		return none, err
	}
	entries, err := s.Get(ctx, id)
	if err != nil {
		return none, err
	}
	if len(entries) == 0 { // forgotten meanwhile
		return none, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	return entries[0], nil
}

func setOptional[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// Addition is what a duplicate adds to the entry it repeats: lists that are appended without duplicates.
type Addition struct {
	Tags, Entities, Correlating []string
}

// Merge adds to the entry with the id into. It fails with [ErrNotFound] for an unknown id, and with [ErrInvalid] for
// malformed ids in Correlating. Correlating links the entry with others; ids that do not exist are skipped. The update
// time increases even if nothing changes.
func (s *Store) Merge(ctx context.Context, into string, add Addition) error {
	for _, id := range add.Correlating {
		if err := checkID("id", id); err != nil {
			return err
		}
	}
	keep := func(t *tx, write func() error) error {
		return t.keepEntries(changeOf(ctx), []string{into}, write)
	}
	return s.changeEntry(ctx, into, s.opts.Now(), nil, keep, func(_ *tx, e *subjects.MemoryEntry) error {
		e.Tags, e.Entities = slices.Concat(e.Tags, add.Tags), slices.Concat(e.Entities, add.Entities)
		e.Correlating = add.Correlating
		return nil
	})
}

// Pin pins (true) or unpins (false) entries and returns the ids of those that changed, in the order given and each
// once. Entries that were so already and ids that do not exist are skipped. With an error nothing was changed.
func (s *Store) Pin(ctx context.Context, pinned bool, ids ...string) (changed []string, err error) {
	ids = unique(ids)
	if len(ids) == 0 {
		return nil, nil
	}
	err = s.write(ctx, func(t *tx) error {
		changed = nil
		for chunk := range slices.Chunk(ids, maxListed) {
			in, named := inList(chunk)
			err := t.query(appendText(&changed),
				"UPDATE entries SET pinned = ? WHERE pinned <> ? AND id IN "+in+" RETURNING id",
				append([]any{pinned, pinned}, named...)...)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	order := positions(ids)
	slices.SortFunc(changed, func(a, b string) int { return order[a] - order[b] })
	return changed, nil
}

// SetVectors replaces the vectors of an entry. updated is the update time of the text that was embedded: if the entry
// was changed since, it fails with [ErrChanged] and changes nothing. An unknown id is [ErrNotFound], unusable vectors
// are [ErrVector] or [ErrDims].
func (s *Store) SetVectors(ctx context.Context, id string, updated time.Time, v Vectors) error {
	p, err := v.pack()
	if err != nil {
		return fmt.Errorf("vectors of %s: %w", id, err)
	}
	return s.write(ctx, func(t *tx) error {
		e, err := t.readEntry(id)
		if err == nil && !e.Updated.Equal(truncateTime(updated)) {
			err = fmt.Errorf("%w: %s", ErrChanged, id)
		}
		if err != nil {
			return err
		}
		return t.replaceVectors(e.row, p)
	})
}

// ListUndigested returns the ids of at most limit active entries whose digest is pending, oldest first. limit is capped
// at 1000.
func (s *Store) ListUndigested(ctx context.Context, limit int) (ids []string, err error) {
	err = s.query(ctx, appendText(&ids), "SELECT id FROM entries WHERE digest = ? AND state = ? ORDER BY row LIMIT "+
		strconv.Itoa(max(0, min(limit, maxPageSize))), subjects.DigestPending, subjects.MemoryActive)
	if err != nil {
		return nil, fmt.Errorf("listing entries without a digest of a model: %w", err)
	}
	return ids, nil
}

// SetDigest replaces name, description, corpus, entities, intent, sentiment and digest of the entry with the id of e by
// those of e, and its vectors by v; nil deletes them if a text changed, and the entry is embedded later. It fails as
// [Store.changeEntry] does, and with [ErrChanged] when the entry was changed after e.Updated.
func (s *Store) SetDigest(ctx context.Context, e subjects.MemoryEntry, v *Vectors, now time.Time) error {
	keep := func(t *tx, write func() error) error { return t.followEntry(e.ID, write) }
	return s.changeEntry(ctx, e.ID, now, v, keep, func(_ *tx, is *subjects.MemoryEntry) error {
		if !is.Updated.Equal(truncateTime(e.Updated)) {
			return fmt.Errorf("%w: %s", ErrChanged, e.ID)
		}
		is.Name, is.Description, is.Corpus, is.Entities = e.Name, e.Description, e.Corpus, e.Entities
		is.Intent, is.Sentiment, is.Provenance.Digest = e.Intent, e.Sentiment, e.Provenance.Digest
		return nil
	})
}
