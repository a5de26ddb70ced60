package store

import (
	"context"
	"database/sql"
	"slices"

	"conclave/subjects"
)

// Deleted is an entry that is no more.
type Deleted struct {
	ID  string
	Row uint64
}

// deletedEntry is what has to be known of an entry to remove all that belongs to it.
type deletedEntry struct {
	row                               int64
	id, kind, query, respondent, from string
	successor                         string
}

// markForgotSQL says that the file holds bytes that it should not.
const markForgotSQL = "UPDATE meta SET value = 1 WHERE name = 'forgot' AND value <> 1"

// NeedsRewrite reports whether the file may hold bytes of what was forgotten or changed. Closing writes it anew, when there is
// time for that.
func (s *Store) NeedsRewrite(ctx context.Context) (bool, error) {
	leave, err := s.beginRead()
	if err != nil {
		return false, err
	}
	defer leave()
	n, err := s.readMark(ctx, markForgot)
	return n != 0, err
}

// Forget removes entries with everything that belongs to them: vectors, tags, links, grades, what they said of people and
// places, and a document that has no piece left. That an answer was there is noted, so that a repeated event does not
// bring it back. What a forgotten entry had superseded stays superseded: its successor's successor takes the place, or
// nobody.
//
// Then the log is written into the file, and no longer holds their bytes. The file may: DuckDB marks rows as deleted and
// leaves the blocks as they are (measured: every byte was still there after CHECKPOINT and VACUUM). [Store.Close] writes
// the file anew when something was forgotten, and only then nothing is left of it. A stop that has no time for a large file
// leaves it to the next start.
func (s *Store) Forget(ctx context.Context, ids ...string) (gone []Deleted, err error) {
	ids = unique(ids)
	if len(ids) == 0 {
		return nil, nil
	}
	err = s.write(ctx, func(t *tx) error {
		gone = nil
		for chunk := range slices.Chunk(ids, maxListed) {
			all, err := t.deleteEntries(chunk)
			if err != nil {
				return err
			}
			for _, e := range all {
				gone = append(gone, Deleted{ID: e.id, Row: uint64(e.row)})
			}
		}
		if len(gone) == 0 {
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

// deleteReferences removes what others know of entries that are gone.
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
		_, err := t.exec("DELETE FROM documents WHERE origin IN "+in+" AND origin NOT IN (SELECT origin FROM entries WHERE kind = 'document')", names...)
		if err != nil {
			return err
		}
	}
	if len(answers) == 0 {
		return nil
	}
	// That they were there is noted. What is thought of one goes with it, what is thought of all with the last.
	in, names := inList(answers)
	if _, err := t.exec("UPDATE answers SET id = NULL WHERE answer IN "+in, names...); err != nil {
		return err
	}
	if _, err := t.exec("DELETE FROM grades WHERE answer IN "+in, names...); err != nil {
		return err
	}
	in, names = inList(unique(queries))
	_, err := t.exec("DELETE FROM grades WHERE query IN "+in+" AND respondent = '' AND query NOT IN (SELECT query FROM answers WHERE id IS NOT NULL)", names...)
	return err
}

// inheritSuperseded gives what was superseded by entries that are gone to those who superseded them.
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
