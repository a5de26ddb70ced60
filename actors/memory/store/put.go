package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"conclave/subjects"
)

// Item is an entry to store.
type Item struct {
	// Entry is stored unchanged. The entries in Supersedes become superseded by it in the same transaction, unless
	// another entry superseded them before. References to entries that do not exist are dropped: a link of an export
	// appears when its other end is restored. Grades are stored for an answer only (see isAnswer).
	Entry   subjects.MemoryEntry
	Vectors *Vectors // nil = embedded later

	// Restore allows an answer that was forgotten: the user imports an export.
	Restore bool
}

// checkedItem is a validated and sanitized [Item] in the form in which the file holds it.
type checkedItem struct {
	entry    subjects.MemoryEntry
	entities string
	flags    string
	vectors  *packedVectors
	restore  bool
}

// isAnswer reports whether e is the answer to a query. There is at most one for each query and respondent.
func isAnswer(e subjects.MemoryEntry) bool {
	return e.Kind == subjects.KindEngram && e.Provenance.QueryID != ""
}

// answerKey returns the primary key of an answer. checkID rejects a line break in either part, so keys cannot collide.
func answerKey(query, respondent string) string { return query + "\n" + respondent }

// Put stores entries, all or none, and returns their row numbers in order. It rejects an id that exists ([ErrExists]),
// an answer that is stored already ([ErrKnown]) or was forgotten ([ErrForgotten], unless Restore is set), an untrusted
// entry that supersedes a trusted one ([ErrTrust]), malformed entries ([ErrInvalid]) and unusable vectors ([ErrVector],
// [ErrDims]). The same id or answer twice in items is rejected too.
func (s *Store) Put(ctx context.Context, items ...Item) ([]uint64, error) {
	if len(items) == 0 {
		return nil, nil
	}
	checked := make([]*checkedItem, len(items))
	for i, it := range items {
		var err error
		if checked[i], err = s.checkItem(it); err != nil {
			return nil, err
		}
	}
	var rows []uint64
	var written []string
	for _, c := range checked {
		written = append(append(written, c.entry.ID), c.entry.Supersedes...)
	}
	err := s.write(ctx, func(t *tx) error {
		return t.keepEntries(changeOf(ctx), written, func() (err error) {
			rows, err = t.put(checked)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// checkItem validates and sanitizes an item. It rejects what [CheckEntry] rejects, an empty name and unusable vectors.
// A zero Created means now, a zero Updated means Created. Nothing that is written later shares memory with it, so the
// caller may change the item afterwards.
func (s *Store) checkItem(it Item) (*checkedItem, error) {
	e := it.Entry
	if e.Created.IsZero() {
		e.Created = s.opts.Now()
	}
	if e.Updated.IsZero() {
		e.Updated = e.Created
	}
	if err := CheckEntry(e); err != nil {
		return nil, err
	}
	p := &e.Provenance
	for _, t := range []*string{
		&e.Name, &e.Description, &e.Corpus, &e.Intent, &e.Sentiment, &e.Grades.Feedback, &e.Grades.Pairwise, &p.Agent,
		&p.SessionID, &p.From, &p.Model, &p.Digest,
	} {
		*t = sanitize(*t)
	}
	if e.Name == "" {
		return nil, invalidf("%s has no name", e.ID)
	}
	e.Tags = unique(sanitizeAll(e.Tags))
	e.Correlating, e.Supersedes = unique(e.Correlating), unique(e.Supersedes)
	c := &checkedItem{restore: it.Restore}
	var err error
	if c.entities, err = encodeList(e.Entities); err != nil {
		return nil, err
	}
	if c.flags, err = encodeList(p.Flags); err != nil {
		return nil, err
	}
	if it.Vectors != nil {
		if c.vectors, err = it.Vectors.pack(); err != nil {
			return nil, fmt.Errorf("vectors of %s: %w", e.ID, err)
		}
	}
	c.entry = e
	return c, nil
}

// put writes checked entries and returns their row numbers in order. All are written before their references to other
// entries, so that entries of one call may refer to each other.
func (t *tx) put(items []*checkedItem) ([]uint64, error) {
	rows := make([]uint64, len(items))
	for i, it := range items {
		row, err := t.putEntry(it)
		if err != nil {
			return nil, err
		}
		rows[i] = uint64(row)
	}
	for i, it := range items {
		if err := t.connectEntry(int64(rows[i]), it.entry); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// putEntry writes one entry with its tags, access count, vectors and, for an answer, grades, and returns its row
// number. Conflicts are looked for only if checkFirst is set: otherwise the primary keys make the transaction fail, and
// it is retried with checkFirst.
func (t *tx) putEntry(it *checkedItem) (int64, error) {
	e, p := it.entry, it.entry.Provenance
	if t.checkFirst {
		if err := t.checkFree(e, it.restore); err != nil {
			return 0, err
		}
	}
	row := t.nextRow
	t.nextRow++
	t.insert("entries", row, e.ID, e.Kind, e.State, p.Trust, string(p.Source), e.Name, e.Description, e.Corpus,
		e.Intent, it.entities, e.Sentiment, e.Respondent,
		p.Agent, p.SessionID, p.QueryID, p.From, int32(p.Part), p.Model, p.Digest, it.flags, "", e.SupersededBy,
		e.Pinned, truncateTime(e.Created), truncateTime(e.Updated),
		e.Conversation, int32(e.Position), e.Speaker, optionalTime(e.Happened))
	for i, tag := range e.Tags {
		t.insert("tags", row, int32(i), tag)
	}
	if e.Accesses > 0 {
		t.insert("access", row, int64(e.Accesses), truncateTime(e.Accessed))
	}
	if err := t.putVectors(row, it.vectors); err != nil {
		return 0, fmt.Errorf("vectors of %s: %w", e.ID, err)
	}
	if !isAnswer(e) {
		return row, nil
	}
	if it.restore {
		// A forgotten answer still has its row in answers.
		n, err := t.exec("UPDATE answers SET id = ? WHERE answer = ? AND id IS NULL", e.ID,
			answerKey(p.QueryID, e.Respondent))
		if err != nil {
			return 0, err
		}
		if n > 0 {
			return row, t.restoreGrades(e)
		}
	}
	t.insert("answers", answerKey(p.QueryID, e.Respondent), p.QueryID, e.Respondent, e.ID)
	return row, t.restoreGrades(e)
}

// checkFree returns [ErrExists] for an entry whose id is stored, [ErrKnown] for an answer that is stored already, and
// unless restore is set [ErrForgotten] for one that was forgotten.
func (t *tx) checkFree(e subjects.MemoryEntry, restore bool) error {
	if there, err := t.entryExists(e.ID); err != nil || there {
		if there {
			err = fmt.Errorf("%w: %s", ErrExists, e.ID)
		}
		return err
	}
	if !isAnswer(e) {
		return nil
	}
	id, state, err := t.findAnswer(e.Provenance.QueryID, e.Respondent)
	switch {
	case err != nil:
		return err
	case state == Stored:
		return fmt.Errorf("%w as %s", ErrKnown, id)
	case state == Forgotten && !restore:
		return fmt.Errorf("%w: the answer of %s to %s", ErrForgotten, e.Respondent, e.Provenance.QueryID)
	}
	return nil
}

func (t *tx) entryExists(id string) (there bool, err error) {
	err = t.query(func(*sql.Rows) error { there = true; return nil }, "SELECT 1 FROM entries WHERE id = ?", id)
	return there, err
}

func (t *tx) findAnswer(query, respondent string) (id, state string, err error) {
	err = t.query(func(r *sql.Rows) error { return r.Scan(&id, &state) }, answerQuery, answerKey(query, respondent))
	return id, state, err
}

// putVectors writes the vectors of an entry, which must have none; nil writes none. The first vectors of a model fix
// its dimensions: others are [ErrDims].
func (t *tx) putVectors(row int64, v *packedVectors) error {
	if v == nil {
		return nil
	}
	dims, known := t.w.dims[v.model]
	if !known {
		dims, known = t.dims[v.model]
	}
	if !known {
		if t.dims == nil {
			t.dims = map[string]int{}
		}
		t.dims[v.model] = v.dims
		t.insert("models", v.model, int32(v.dims))
	} else if dims != v.dims {
		return fmt.Errorf("%w: %s has %d dimensions, got %d", ErrDims, v.model, dims, v.dims)
	}
	t.insert("vectors", row, v.model, int32(v.dims), v.corpus, optionalBlob(v.name), optionalBlob(v.description))
	return nil
}

// optionalBlob returns b as a value of a column that is NULL for nil.
func optionalBlob(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

// connectEntry writes the references of an entry: the entries it supersedes and its links. A successor that does not
// exist, or is the entry itself, is dropped; the entry keeps its state. It fails with [ErrTrust] and for a cycle of
// successors.
func (t *tx) connectEntry(row int64, e subjects.MemoryEntry) error {
	if e.SupersededBy != "" {
		there, err := t.entryExists(e.SupersededBy)
		if err != nil {
			return err
		}
		if !there || e.SupersededBy == e.ID {
			if _, err := t.exec("UPDATE entries SET superseded_by = '' WHERE id = ?", e.ID); err != nil {
				return err
			}
		}
	}
	if err := t.supersedeEntries(e); err != nil {
		return err
	}
	return t.linkEntries(row, e.ID, e.Correlating)
}

// Supersede marks the entries in e.Supersedes as superseded by the stored entry e, as [Store.Put] does. It is a
// part of the change that stored e.
func (s *Store) Supersede(ctx context.Context, e subjects.MemoryEntry) error {
	for _, id := range append([]string{e.ID}, e.Supersedes...) {
		if err := checkID("id", id); err != nil {
			return err
		}
	}
	return s.write(ctx, func(t *tx) error {
		c, err := t.changeThatStored(e.ID)
		if err != nil {
			return err
		}
		return t.keepEntries(c, e.Supersedes, func() error { return t.supersedeEntries(e) })
	})
}

// supersedeEntries marks the entries in e.Supersedes as superseded by e. Those that have a successor already keep it; e
// itself and ids that do not exist are skipped. An untrusted entry that names a trusted one fails with [ErrTrust], a
// cycle of successors with [ErrInvalid].
func (t *tx) supersedeEntries(e subjects.MemoryEntry) error {
	olds := slices.DeleteFunc(slices.Clone(e.Supersedes), func(id string) bool { return id == e.ID })
	if len(olds) == 0 {
		return nil
	}
	for chunk := range slices.Chunk(olds, maxListed) {
		in, ids := inList(chunk)
		if e.Provenance.Trust != subjects.Trusted {
			err := t.query(func(r *sql.Rows) error {
				var id string
				if err := r.Scan(&id); err != nil {
					return err
				}
				return fmt.Errorf("%w: %s and %s", ErrTrust, e.ID, id)
			}, "SELECT id FROM entries WHERE trust = 'trusted' AND id IN "+in, ids...)
			if err != nil {
				return err
			}
		}
		_,
			err := t.exec("UPDATE entries SET state = 'superseded', superseded_by = ? WHERE superseded_by = '' AND "+
			"id IN "+in, append([]any{e.ID}, ids...)...)
		if err != nil {
			return err
		}
	}
	if e.SupersededBy == "" {
		return nil
	}
	return t.rejectCycle(e.ID)
}

// rejectCycle follows the successors of an entry and returns an [ErrInvalid] if they lead into a cycle. Only an entry
// that is stored as superseded can close one.
func (t *tx) rejectCycle(id string) error {
	seen := []string{id}
	for at := id; at != ""; {
		next := ""
		if err := t.query(func(r *sql.Rows) error {
			return r.Scan(&next)
		}, "SELECT superseded_by FROM entries WHERE id = ?", at); err != nil {
			return err
		}
		if slices.Contains(seen, next) {
			return invalidf("%s would supersede itself", id)
		}
		seen = append(seen, next)
		at = next
	}
	return nil
}

// linkEntries links the entry with this row and id with others in both directions. The entry itself, ids that do not
// exist and existing links are skipped. others must not repeat.
func (t *tx) linkEntries(row int64, id string, others []string) error {
	others = slices.DeleteFunc(slices.Clone(others), func(o string) bool { return o == id })
	for chunk := range slices.Chunk(others, maxListed) {
		in, ids := inList(chunk)
		type end struct {
			row int64
			id  string
		}
		var ends []end
		err := t.query(func(r *sql.Rows) error {
			var e end
			err := r.Scan(&e.row, &e.id)
			ends = append(ends, e)
			return err
		}, "SELECT row, id FROM entries WHERE id IN "+in+" AND id NOT IN (SELECT other FROM links WHERE row = ?)",
			append(ids, row)...)
		if err != nil {
			return err
		}
		for _, e := range ends {
			t.insert("links", row, e.id)
			t.insert("links", e.row, id)
		}
	}
	return nil
}
