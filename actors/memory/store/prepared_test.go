//go:build cgo

package store

import (
	"database/sql"
	"fmt"
	"slices"
	"testing"

	"conclave/subjects"
)

// TestPreparedStatementsSeeLaterRows: a statement prepared when the tables were empty or different returns the same as
// a new one. DuckDB plans with the values of a table and caches the plan.
func TestPreparedStatementsSeeLaterRows(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	questions := []string{
		"SELECT id FROM entries WHERE kind = 'document'",
		"SELECT id FROM entries WHERE row > 3 ORDER BY id",
		"SELECT id FROM entries WHERE row BETWEEN 2 AND 100 ORDER BY id",
		"SELECT id FROM entries WHERE state NOT IN ('active')",
		"SELECT id FROM entries WHERE created > TIMESTAMP '2027-01-01' ORDER BY id",
		"SELECT count(*), max(row), sum(row) FROM entries",
		"SELECT count(*) FROM entries WHERE superseded_by <> ''",
		"SELECT count(*) FROM entries WHERE pinned",
		"SELECT DISTINCT kind FROM entries ORDER BY kind",
		"SELECT kind, state, count(*) FROM entries GROUP BY kind, state ORDER BY kind, state",
		"SELECT row, count(*) FROM tags GROUP BY row ORDER BY row",
		"SELECT id FROM entries ORDER BY id",
		"SELECT id, row FROM entries ORDER BY row DESC LIMIT 3",
		"SELECT query FROM answers WHERE id IS NULL",
		"SELECT query FROM answers WHERE id IS NOT NULL",
		"SELECT count(*), count(*) FILTER (id IS NULL) FROM answers",
		"SELECT e.id FROM entries e JOIN answers a ON a.id = e.id ORDER BY 1",
		"SELECT id FROM entries WHERE row NOT IN (SELECT row FROM vectors) ORDER BY id",
	}
	var prepared []*sql.Stmt
	for _, q := range questions {
		st, err := s.db.PrepareContext(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		prepared = append(prepared, st)
	}
	same := func(when string) {
		t.Helper()
		for i, q := range questions {
			was, err := shown(prepared[i].QueryContext(t.Context()))
			if err != nil {
				t.Fatal(err)
			}
			is, err := shown(s.db.QueryContext(t.Context(), q))
			if err != nil {
				t.Fatal(err)
			}
			if was != is {
				t.Errorf("%s: %s\nprepared %s\nnow      %s", when, q, was, is)
			}
		}
	}
	same("nothing")
	for round := range 2 {
		putEntries(t, s, newFact(fmt.Sprint("a", round)))
		same("a fact")
		d := newFact(fmt.Sprint("d", round))
		d.Kind, d.Tags, d.Pinned = subjects.KindDocument, []string{
			"x",
			"a tag that is much longer than twelve letters",
		}, true
		putEntries(t, s, d)
		same("a document")
		e := newEngram(fmt.Sprint("e", round, " with an id of many letters"), fmt.Sprint("q", round), "g")
		e.State, e.Created = subjects.MemoryCandidate, testTime.AddDate(1, 0, 0)
		if _, err := s.Put(t.Context(), Item{Entry: e}); err != nil {
			t.Fatal(err)
		}
		same("an answer")
		n := newFact(fmt.Sprint("n", round))
		n.Supersedes = []string{d.ID}
		putEntries(t, s, n)
		same("something new in the place of the document")
		forgetEntries(t, s, e.ID) // and what is there is written into the file
		same("the answer was forgotten")
	}
	for _, st := range slices.Backward(prepared) {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}
}

// shown is a result as one text.
func shown(rows *sql.Rows, err error) (string, error) {
	out := ""
	err = scanRows(rows, err, func(r *sql.Rows) error {
		columns, err := r.Columns()
		if err != nil {
			return err
		}
		values, places := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			places[i] = &values[i]
		}
		err = r.Scan(places...)
		out += fmt.Sprint(values)
		return err
	})
	return out, err
}
