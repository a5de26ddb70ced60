package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"conclave/subjects"
)

// entryText is what an entry says now.
type entryText struct {
	row                       int64
	id, kind                  string
	name, description, corpus string
	entities                  string
	updated                   time.Time
}

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

// writeText writes what an entry says. Vectors of other words are dropped, and wait to be made when v is nil. The time of the
// change is always later than the one before: whoever holds an older one can tell.
func (t *tx) writeText(old, e entryText, v *packedVectors, now time.Time) error {
	if e.updated = truncateTime(now); !e.updated.After(old.updated) {
		e.updated = old.updated.UTC().Add(time.Microsecond)
	}
	_, err := t.exec("UPDATE entries SET name = ?, description = ?, corpus = ?, entities = ?, hash = ?, updated = ? WHERE id = ?",
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

func (t *tx) replaceVectors(row int64, v *packedVectors) error {
	if _, err := t.exec("DELETE FROM vectors WHERE row = ?", row); err != nil {
		return err
	}
	return t.putVectors(row, v)
}

// Update changes what an entry says, and returns it as it is then. When the words change and v is nil, the vectors are
// dropped and wait to be made.
func (s *Store) Update(ctx context.Context, id string, edit subjects.MemoryEdit, v *Vectors, now time.Time) (subjects.MemoryEntry, error) {
	none := subjects.MemoryEntry{}
	if err := errors.Join(checkEdit(edit.Name, edit.Description, edit.Corpus), checkTime("the time", now)); err != nil {
		return none, err
	}
	if edit.Name != nil && sanitize(*edit.Name) == "" {
		return none, invalidf("an entry needs a name")
	}
	p, err := packOptional(v)
	if err != nil {
		return none, fmt.Errorf("the vectors of %s: %w", id, err)
	}
	var tags []string
	if edit.Tags != nil {
		tags = unique(sanitizeAll(*edit.Tags))
	}
	name, description, corpus := sanitizeOptional(edit.Name), sanitizeOptional(edit.Description), sanitizeOptional(edit.Corpus)
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
		if e != old { // the file holds the old words until it is written anew
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
	if len(entries) == 0 { // forgotten since
		return none, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	return entries[0], nil
}

func checkEdit(name, description, corpus *string) error {
	for _, c := range []struct {
		what string
		text *string
		most int
	}{{"the name", name, maxShort}, {"the description", description, maxText}, {"the corpus", corpus, maxText}} {
		if c.text != nil {
			if err := checkLength(c.what, *c.text, c.most); err != nil {
				return err
			}
		}
	}
	return nil
}

func packOptional(v *Vectors) (*packedVectors, error) {
	if v == nil {
		return nil, nil
	}
	return v.pack()
}

// sanitizeOptional is a clean copy of a text that may be missing.
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

func (t *tx) setTags(row int64, tags []string) error {
	if _, err := t.exec("DELETE FROM tags WHERE row = ?", row); err != nil {
		return err
	}
	for i, tag := range tags {
		t.insert("tags", row, int32(i), tag)
	}
	return nil
}

// Addition is what an entry learns from another that says the same. Texts replace, lists are added.
type Addition struct {
	Corpus, Description         *string
	Tags, Entities, Correlating []string
	Vectors                     *Vectors // of the new words; nil = they are made later when words change
}

// Merge adds to an entry.
func (s *Store) Merge(ctx context.Context, into string, add Addition) error {
	if err := checkEdit(nil, add.Description, add.Corpus); err != nil {
		return err
	}
	p, err := packOptional(add.Vectors)
	if err != nil {
		return fmt.Errorf("the vectors of %s: %w", into, err)
	}
	for _, id := range add.Correlating {
		if err := checkID("an id", id); err != nil {
			return err
		}
	}
	description, corpus := sanitizeOptional(add.Description), sanitizeOptional(add.Corpus)
	tags, entities, others := sanitizeAll(add.Tags), sanitizeAll(add.Entities), unique(add.Correlating)
	return s.write(ctx, func(t *tx) error {
		old, err := t.readText(into)
		if err != nil {
			return err
		}
		e := old
		setOptional(&e.description, description)
		setOptional(&e.corpus, corpus)
		had, err := decodeList(old.entities)
		if err != nil {
			return err
		}
		if e.entities, err = encodeList(unique(slices.Concat(had, entities))); err != nil {
			return err
		}
		var known []string
		err = t.query(func(r *sql.Rows) error {
			var tag string
			err := r.Scan(&tag)
			known = append(known, tag)
			return err
		}, "SELECT tag FROM tags WHERE row = ? ORDER BY place", e.row)
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
		return t.writeText(old, e, p, s.opts.Now())
	})
}

// Link ties entries that go together, both ways. Those in to that are not there are left out.
func (s *Store) Link(ctx context.Context, from string, to ...string) error {
	to = unique(to)
	for _, id := range to {
		if err := checkID("an id", id); err != nil {
			return err
		}
	}
	return s.write(ctx, func(t *tx) error {
		e, err := t.readText(from)
		if err != nil {
			return err
		}
		return t.linkEntries(e.row, from, to)
	})
}

// SetState changes the state of entries and returns those that had another. An entry that becomes active again has lost
// its place to nobody.
func (s *Store) SetState(ctx context.Context, state string, ids ...string) (changed []string, err error) {
	if err := checkOneOf("state", state, subjects.MemoryActive, subjects.MemoryCandidate, subjects.MemorySuperseded); err != nil {
		return nil, err
	}
	change := "UPDATE entries SET state = ?, superseded_by = '' WHERE state <> ?"
	if state == subjects.MemorySuperseded {
		change = "UPDATE entries SET state = ? WHERE state <> ?"
	}
	return s.setColumn(ctx, change, state, ids)
}

// Pin pins entries or lets them go, and returns those for which that is new.
func (s *Store) Pin(ctx context.Context, pinned bool, ids ...string) (changed []string, err error) {
	return s.setColumn(ctx, "UPDATE entries SET pinned = ? WHERE pinned <> ?", pinned, ids)
}

// setColumn sets one value of entries and returns the ids of those that had another.
func (s *Store) setColumn(ctx context.Context, change string, to any, ids []string) (changed []string, err error) {
	ids = unique(ids)
	if len(ids) == 0 {
		return nil, nil
	}
	err = s.write(ctx, func(t *tx) error {
		changed = nil
		for chunk := range slices.Chunk(ids, maxListed) {
			in, named := inList(chunk)
			err := t.query(func(r *sql.Rows) error {
				var id string
				err := r.Scan(&id)
				changed = append(changed, id)
				return err
			}, change+" AND id IN "+in+" RETURNING id", append([]any{to, to}, named...)...)
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

// SetVectors gives an entry its vectors, in place of those it had. An entry that was changed after updated gets none:
// [ErrChanged], they are of other words.
func (s *Store) SetVectors(ctx context.Context, id string, updated time.Time, v Vectors) error {
	p, err := v.pack()
	if err != nil {
		return fmt.Errorf("the vectors of %s: %w", id, err)
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
