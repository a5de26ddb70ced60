package store

import (
	"context"
	"database/sql"
	"slices"

	"conclave/subjects"
)

// Gone is an entry that is no more.
type Gone struct {
	ID  string
	Row uint64
}

// lost is what has to be known of an entry to remove all that belongs to it.
type lost struct {
	row                               int64
	id, kind, query, respondent, from string
	successor                         string
}

// Forget removes entries with everything that belongs to them: vectors, tags, links, grades, what they said of people and
// places, and a document that has no piece left. That an answer was there is noted, so that a repeated event does not
// bring it back. What a forgotten entry had superseded stays superseded: its successor's successor takes the place, or
// nobody.
//
// Then the log is written into the file, and no longer holds their bytes. The file may: DuckDB marks rows as deleted and
// leaves the blocks as they are (measured: every byte was still there after CHECKPOINT and VACUUM). [Store.Close] writes
// the file anew when something was forgotten, and only then nothing is left of it.
func (s *Store) Forget(ctx context.Context, ids ...string) (gone []Gone, err error) {
	ids = unique(ids)
	if len(ids) == 0 {
		return nil, nil
	}
	err = s.write(ctx, func(t *tx) error {
		gone = nil
		for chunk := range slices.Chunk(ids, mostListed) {
			all, err := t.forget(chunk)
			if err != nil {
				return err
			}
			for _, e := range all {
				gone = append(gone, Gone{ID: e.id, Row: uint64(e.row)})
			}
		}
		if len(gone) == 0 {
			return nil
		}
		t.checkpoint = true
		if _, err := t.exec("UPDATE meta SET value = greatest(value, ?) WHERE name = 'high'", t.nextRow-1); err != nil {
			return err
		}
		_, err := t.exec("UPDATE meta SET value = 1 WHERE name = 'forgot' AND value <> 1")
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(gone, func(a, b Gone) int { return slices.Index(ids, a.ID) - slices.Index(ids, b.ID) })
	return gone, nil
}

func (t *tx) forget(ids []string) (all []lost, err error) {
	in, named := listed(ids)
	err = t.query(func(r *sql.Rows) error {
		var e lost
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
	inRows, numbers := listed(rows)
	inIDs, names := listed(there)
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
	if err := t.forgetRelations(rows); err != nil {
		return nil, err
	}
	return all, t.untie(all)
}

// untie removes what others know of entries that are gone.
func (t *tx) untie(all []lost) error {
	heirs := map[string]string{} // who took the place of one that is gone
	for _, e := range all {
		heirs[e.id] = e.successor
	}
	origins := map[string]bool{}
	for _, e := range all {
		heir := e.successor
		for range all {
			next, gone := heirs[heir]
			if !gone {
				break
			}
			heir = next
		}
		if _, err := t.exec("UPDATE entries SET superseded_by = ? WHERE superseded_by = ?", heir, e.id); err != nil {
			return err
		}
		if e.kind == subjects.KindDocument && e.from != "" {
			origins[e.from] = true
		}
		if e.kind == subjects.KindEngram && e.query != "" {
			if err := t.forgetAnswer(e.query, e.respondent); err != nil {
				return err
			}
		}
	}
	for from := range origins {
		_, err := t.exec("DELETE FROM documents WHERE origin = ? AND NOT EXISTS (SELECT 1 FROM entries WHERE kind = 'document' AND origin = ?)", from, from)
		if err != nil {
			return err
		}
	}
	return nil
}

// forgetAnswer notes that an answer was forgotten and removes what others thought of it.
func (t *tx) forgetAnswer(query, respondent string) error {
	if _, err := t.exec("UPDATE answers SET id = NULL WHERE query = ? AND respondent = ?", query, respondent); err != nil {
		return err
	}
	// What is said of all answers goes with the last.
	_, err := t.exec(`DELETE FROM grades WHERE query = ? AND (respondent = ?
		OR respondent = '' AND NOT EXISTS (SELECT 1 FROM answers WHERE query = ? AND id IS NOT NULL))`, query, respondent, query)
	return err
}
