package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"conclave/subjects"
)

// entryText is the part of an entry that an edit or a merge changes.
type entryText struct {
	row                       int64
	id, kind                  string
	name, description, corpus string
	entities                  string
	updated                   time.Time
}

// readText reads the text of an entry, or fails with [ErrNotFound].
func (t *tx) readText(id string) (e entryText, err error) {
	there := false
	err = t.query(func(r *sql.Rows) error {
		there = true
		return r.Scan(&e.row, &e.id, &e.kind, &e.name, &e.description, &e.corpus, &e.entities, &e.updated)
	}, "SELECT row, id, kind, name, description, corpus, entities, updated FROM entries WHERE id = ?", id)
	if err == nil && !there {
		err = fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	return e, err
}

// writeText replaces name, description, corpus and entities of the entry old with those of e, which must have the same
// row, id and kind. If one of the three texts changed or v is not nil, v replaces the vectors; v nil then deletes them
// and the entry is embedded later. The update time is now, or a microsecond after the old one if that is not earlier,
// so that a caller with an older copy can tell.
func (t *tx) writeText(old, e entryText, v *packedVectors, now time.Time) error {
	if e.updated = truncateTime(now); !e.updated.After(old.updated) {
		e.updated = old.updated.UTC().Add(time.Microsecond)
	}
	_, err := t.exec("UPDATE entries SET name = ?, description = ?, corpus = ?, entities = ?, hash = ?, updated = ? "+
		"WHERE id = ?",
		e.name, e.description, e.corpus, e.entities, pieceHash(e.kind, e.corpus), e.updated, e.id)
	if err != nil {
		return err
	}
	same := old.name == e.name && old.description == e.description && old.corpus == e.corpus
	if same && v == nil {
		return nil
	}
	return t.replaceVectors(e.row, v)
}

// replaceVectors deletes the vectors of an entry, of whatever model, and writes v; nil leaves the entry without any.
func (t *tx) replaceVectors(row int64, v *packedVectors) error {
	if _, err := t.exec("DELETE FROM vectors WHERE row = ?", row); err != nil {
		return err
	}
	return t.putVectors(row, v)
}

// Update changes the fields of an entry that are not nil in edit and returns the whole entry. Tags replaces all tags.
// It rejects an empty name, texts beyond the limits and a time outside the years 1 to 9999 ([ErrInvalid]), unusable
// vectors, and an unknown id ([ErrNotFound]; also if the entry is forgotten before the result is read). v holds the
// vectors of the new text; if name, description or corpus changes and v is nil, the old vectors are deleted and the
// entry is embedded later.
func (s *Store) Update(ctx context.Context, id string, edit subjects.MemoryEdit, v *Vectors,
	now time.Time,
) (subjects.MemoryEntry, error) {
	none := subjects.MemoryEntry{}
	if err := errors.Join(checkEdit(edit.Name, edit.Description, edit.Corpus),
		checkTime("update time", now)); err != nil {
		return none, err
	}
	if edit.Name != nil && sanitize(*edit.Name) == "" {
		return none, invalidf("an entry needs a name")
	}
	p, err := packOptional(v)
	if err != nil {
		return none, fmt.Errorf("vectors of %s: %w", id, err)
	}
	var tags []string
	if edit.Tags != nil {
		tags = unique(sanitizeAll(*edit.Tags))
	}
	name, description, corpus := sanitizeOptional(edit.Name), sanitizeOptional(edit.Description),
		sanitizeOptional(edit.Corpus)
	err = s.write(ctx, func(t *tx) error {
		old, err := t.readText(id)
		if err != nil {
			return err
		}
		e := old
		setOptional(&e.name, name)
		setOptional(&e.description, description)
		setOptional(&e.corpus, corpus)
		if edit.Tags != nil {
			if err := t.setTags(e.row, tags); err != nil {
				return err
			}
		}
		if name != nil || description != nil { // no model names it any more
			if _, err := t.exec("UPDATE entries SET digest = ? WHERE id = ? AND digest = ?", subjects.DigestGiven, id,
				subjects.DigestPending); err != nil {
				return err
			}
		}
		if e != old { // the file holds the old text until it is rewritten
			if _, err := t.exec(markForgotSQL); err != nil {
				return err
			}
		}
		return t.writeText(old, e, p, now)
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

// checkEdit returns an [ErrInvalid] for a name of more than maxShort bytes and a description or corpus of more than
// maxText; nil texts are not checked. An empty text passes.
func checkEdit(name, description, corpus *string) error {
	for _, c := range []struct {
		what string
		text *string
		most int
	}{{"name", name, maxShort}, {"description", description, maxText}, {"corpus", corpus, maxText}} {
		if c.text != nil {
			if err := checkLength(c.what, *c.text, c.most); err != nil {
				return err
			}
		}
	}
	return nil
}

// packOptional is [Vectors.pack] for optional vectors: nil for nil.
func packOptional(v *Vectors) (*packedVectors, error) {
	if v == nil {
		return nil, nil
	}
	return v.pack()
}

// sanitizeOptional returns a sanitized copy of an optional text.
func sanitizeOptional(s *string) *string {
	if s == nil {
		return nil
	}
	c := sanitize(*s)
	return &c
}

func setOptional(to *string, from *string) {
	if from != nil {
		*to = *from
	}
}

// setTags replaces all tags of an entry, in this order. tags must be sanitized and without duplicates.
func (t *tx) setTags(row int64, tags []string) error {
	if _, err := t.exec("DELETE FROM tags WHERE row = ?", row); err != nil {
		return err
	}
	for i, tag := range tags {
		t.insert("tags", row, int32(i), tag)
	}
	return nil
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
	tags, entities, others := sanitizeAll(add.Tags), sanitizeAll(add.Entities), unique(add.Correlating)
	return s.write(ctx, func(t *tx) error {
		old, err := t.readText(into)
		if err != nil {
			return err
		}
		e := old
		had, err := decodeList(old.entities)
		if err != nil {
			return err
		}
		if e.entities, err = encodeList(unique(slices.Concat(had, entities))); err != nil {
			return err
		}
		var known []string
		err = t.query(appendText(&known), "SELECT tag FROM tags WHERE row = ? ORDER BY place", e.row)
		if err != nil {
			return err
		}
		for i, tag := range unique(slices.Concat(known, tags)) {
			if i >= len(known) {
				t.insert("tags", e.row, int32(i), tag)
			}
		}
		if err := t.linkEntries(e.row, into, others); err != nil {
			return err
		}
		return t.writeText(old, e, nil, s.opts.Now())
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
		var row int64
		var is time.Time
		there := false
		err := t.query(func(r *sql.Rows) error {
			there = true
			return r.Scan(&row, &is)
		}, "SELECT row, updated FROM entries WHERE id = ?", id)
		switch {
		case err != nil:
			return err
		case !there:
			return fmt.Errorf("%w: %s", ErrNotFound, id)
		case !is.Equal(truncateTime(updated)):
			return fmt.Errorf("%w: %s", ErrChanged, id)
		}
		return t.replaceVectors(row, p)
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
// those of e, and its vectors by v; nil deletes them if a text changed, and the entry is embedded later. It rejects an
// empty name and texts beyond the limits ([ErrInvalid]), and fails with [ErrChanged] when the entry was changed after
// e.Updated, [ErrNotFound] when there is none.
func (s *Store) SetDigest(ctx context.Context, e subjects.MemoryEntry, v *Vectors, now time.Time) error {
	if err := errors.Join(checkEdit(&e.Name, &e.Description, &e.Corpus), checkTime("update time", now)); err != nil {
		return err
	}
	if sanitize(e.Name) == "" {
		return invalidf("an entry needs a name")
	}
	p, err := packOptional(v)
	if err != nil {
		return fmt.Errorf("vectors of %s: %w", e.ID, err)
	}
	entities, err := encodeList(unique(sanitizeAll(e.Entities)))
	if err != nil {
		return err
	}
	return s.write(ctx, func(t *tx) error {
		old, err := t.readText(e.ID)
		if err != nil {
			return err
		}
		if !old.updated.Equal(truncateTime(e.Updated)) {
			return fmt.Errorf("%w: %s", ErrChanged, e.ID)
		}
		next := old
		next.name, next.description, next.corpus, next.entities = sanitize(e.Name), sanitize(e.Description),
			sanitize(e.Corpus), entities
		_, err = t.exec("UPDATE entries SET intent = ?, sentiment = ?, digest = ? WHERE id = ?", sanitize(e.Intent),
			sanitize(e.Sentiment), sanitize(e.Provenance.Digest), e.ID)
		if err != nil {
			return err
		}
		return t.writeText(old, next, p, now)
	})
}
