package store

import (
	"context"
	"database/sql"
	"slices"

	"conclave/subjects"
)

// Deleted is an entry that [Store.Forget] deleted.
type Deleted struct {
	ID  string
	Row uint64
}

// deletedEntry holds the columns of an entry that are needed to delete its references in other tables.
type deletedEntry struct {
	row                               int64
	id, kind, query, respondent, from string
	successor                         string
}

// markForgotSQL records that the file may hold bytes of deleted or changed entries.
const markForgotSQL = "UPDATE meta SET value = 1 WHERE name = 'forgot' AND value <> 1"

// NeedsRewrite reports whether the file may hold bytes of forgotten or changed entries. [Store.Close] rewrites it if
// its deadline allows. A closed store is [ErrClosed].
func (s *Store) NeedsRewrite(ctx context.Context) (bool, error) {
	leave, err := s.beginRead()
	if err != nil {
		return false, err
	}
	defer leave()
	n, err := s.readMark(ctx, markForgot)
	return n != 0, err
}

// Forget deletes entries with their vectors, tags, links, grades and relations, and documents without a piece left, and
// returns those that existed, in the order given. Unknown ids are skipped. The key of a forgotten answer is kept, so
// that a redelivered event does not store it again. What changes kept of the entries is deleted too, unless this is a
// part of a change, which keeps them. Entries that a forgotten one superseded stay superseded, by its
// successor if it had one.
//
// Then the log is checkpointed and no longer holds the deleted bytes. The file may: DuckDB marks rows as deleted and
// leaves the blocks unchanged (measured: every byte was still there after CHECKPOINT and VACUUM). [Store.Close]
// rewrites the file, which removes them; if its deadline is too short for that, a later Close does.
func (s *Store) Forget(ctx context.Context, ids ...string) (gone []Deleted, err error) {
	ids = unique(ids)
	if len(ids) == 0 {
		return nil, nil
	}
	c := changeOf(ctx)
	err = s.write(ctx, func(t *tx) error {
		gone = nil
		kept := int64(0) // states that changes kept
		for chunk := range slices.Chunk(ids, maxListed) {
			err := t.keepEntries(c, chunk, func() error {
				all, err := t.deleteEntries(chunk)
				for _, e := range all {
					gone = append(gone, Deleted{ID: e.id, Row: uint64(e.row)})
				}
				return err
			})
			if err == nil && c == nil { // forgetting is final
				in, named := inList(chunk)
				n, failed := t.exec("DELETE FROM changes WHERE entry IN "+in, named...)
				kept, err = kept+n, failed
			}
			if err != nil {
				return err
			}
		}
		if len(gone) == 0 && kept == 0 {
			return nil
		}
		t.checkpoint = true
		if _, err := t.exec("UPDATE meta SET value = greatest(value, ?) WHERE name = 'high'", t.nextRow-1); err != nil {
			return err
		}
		_, err := t.exec(markForgotSQL)
		return err
	})
	if err != nil {
		return nil, err
	}
	order := positions(ids)
	slices.SortFunc(gone, func(a, b Deleted) int { return order[a.ID] - order[b.ID] })
	return gone, nil
}

// ForgetAnswer makes an answer that is not stored count as forgotten. One that is stored is left as it is.
func (s *Store) ForgetAnswer(ctx context.Context, query, respondent string) error {
	return s.write(ctx, func(t *tx) error {
		_, err := t.exec("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, NULL)", answerKey(query, respondent), query,
			respondent)
		return err
	})
}

// deleteEntries deletes entries and everything that refers to them, and returns those that existed, in no particular
// order. ids must not be empty and hold at most maxListed.
func (t *tx) deleteEntries(ids []string) (all []deletedEntry, err error) {
	in, named := inList(ids)
	err = t.query(func(r *sql.Rows) error {
		var e deletedEntry
		err := r.Scan(&e.row, &e.id, &e.kind, &e.query, &e.respondent, &e.from, &e.successor)
		all = append(all, e)
		return err
	}, "SELECT row, id, kind, query, respondent, origin, superseded_by FROM entries WHERE id IN "+in, named...)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	rows, there := make([]int64, len(all)), make([]string, len(all))
	for i, e := range all {
		rows[i], there[i] = e.row, e.id
	}
	inRows, numbers := inList(rows)
	inIDs, names := inList(there)
	for _, d := range []struct {
		sql  string
		args []any
	}{
		{"DELETE FROM vectors WHERE row IN " + inRows, numbers},
		{"DELETE FROM tags WHERE row IN " + inRows, numbers},
		{"DELETE FROM access WHERE row IN " + inRows, numbers},
		{"DELETE FROM links WHERE row IN " + inRows, numbers},
		{"DELETE FROM links WHERE other IN " + inIDs, names},
		{"DELETE FROM entries WHERE id IN " + inIDs, names},
	} {
		if _, err := t.exec(d.sql, d.args...); err != nil {
			return nil, err
		}
	}
	if err := t.deleteRelations(rows); err != nil {
		return nil, err
	}
	return all, t.deleteReferences(all)
}

// deleteReferences updates the rows of other tables that refer to deleted entries: their successor takes over the
// entries that they superseded, documents without a piece left are deleted, answers are marked as forgotten and their
// grades deleted. Grades of all answers to a query are deleted with the last of these. The entries must be deleted
// already.
func (t *tx) deleteReferences(all []deletedEntry) error {
	if err := t.inheritSuperseded(all); err != nil {
		return err
	}
	var origins, queries, answers []string
	for _, e := range all {
		if e.kind == subjects.KindDocument && e.from != "" {
			origins = append(origins, e.from)
		}
		if e.kind == subjects.KindEngram && e.query != "" {
			queries, answers = append(queries, e.query), append(answers, answerKey(e.query, e.respondent))
		}
	}
	if len(origins) > 0 {
		in, names := inList(unique(origins))
		_, err := t.exec("DELETE FROM documents WHERE origin IN "+in+" AND origin NOT IN (SELECT origin FROM entries "+
			"WHERE kind = 'document')", names...)
		if err != nil {
			return err
		}
	}
	if len(answers) == 0 {
		return nil
	}
	// The keys of the answers stay. Grades of one answer go with it, grades of all answers to a query with the last of
	// them.
	in, names := inList(answers)
	if _, err := t.exec("UPDATE answers SET id = NULL WHERE answer IN "+in, names...); err != nil {
		return err
	}
	if _, err := t.exec("DELETE FROM grades WHERE answer IN "+in, names...); err != nil {
		return err
	}
	in, names = inList(unique(queries))
	_, err := t.exec("DELETE FROM grades WHERE query IN "+in+" AND respondent = '' AND query NOT IN (SELECT query "+
		"FROM answers WHERE id IS NOT NULL)", names...)
	return err
}

// inheritSuperseded makes the successor of a deleted entry the successor of the entries that it had superseded, past
// successors that are deleted too. Without one left they stay superseded, by "".
func (t *tx) inheritSuperseded(all []deletedEntry) error {
	heirs := map[string]string{}
	ids := make([]string, len(all))
	for i, e := range all {
		heirs[e.id], ids[i] = e.successor, e.id
	}
	olds := map[string]string{}
	in, names := inList(ids)
	err := t.query(func(r *sql.Rows) error {
		var id, by string
		err := r.Scan(&id, &by)
		olds[id] = by
		return err
	}, "SELECT id, superseded_by FROM entries WHERE superseded_by IN "+in, names...)
	if err != nil {
		return err
	}
	for id, by := range olds {
		for range all {
			next, gone := heirs[by]
			if !gone {
				break
			}
			by = next
		}
		if _, err := t.exec("UPDATE entries SET superseded_by = ? WHERE id = ?", by, id); err != nil {
			return err
		}
	}
	return nil
}
