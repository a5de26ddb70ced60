package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"conclave/pkg/text"
)

// invariant is something that holds in every file. Its query finds what breaks it: a name to tell and nothing else.
type invariant struct{ violation, query string }

var invariants = []invariant{
	{"two entries have one number", "SELECT row::VARCHAR FROM entries GROUP BY row HAVING count(*) > 1"},
	{"two entries have one id", "SELECT id FROM entries GROUP BY id HAVING count(*) > 1"},
	{"an entry has no number", "SELECT id FROM entries WHERE row < 1"},
	{"an entry has a kind, state, trust or source that does not exist", `SELECT id FROM entries WHERE kind NOT IN ('engram', 'fact', 'document')
		OR state NOT IN ('active', 'candidate', 'superseded') OR trust NOT IN ('trusted', 'untrusted')
		OR source NOT IN ('user', 'conversation', 'agent', 'document', 'external')`},

	{"an entry is superseded by one that is not there", `SELECT id FROM entries WHERE superseded_by <> '' AND superseded_by NOT IN (SELECT id FROM entries)`},
	{"an entry is not superseded although another took its place", "SELECT id FROM entries WHERE superseded_by <> '' AND state <> 'superseded'"},
	{"entries took each other's place", `WITH RECURSIVE up(id, top, n) AS (
			SELECT id, superseded_by, 1 FROM entries WHERE superseded_by <> ''
			UNION ALL SELECT up.id, e.superseded_by, up.n + 1 FROM up JOIN entries e ON e.id = up.top WHERE e.superseded_by <> '' AND up.n < 1000 AND up.top <> up.id
		) SELECT DISTINCT id FROM up WHERE top = id OR n >= 1000`},

	{"vectors belong to no entry", "SELECT row::VARCHAR FROM vectors WHERE row NOT IN (SELECT row FROM entries)"},
	{"an entry has its vectors twice", "SELECT row::VARCHAR FROM vectors GROUP BY row HAVING count(*) > 1"},
	{"vectors have the wrong size", `SELECT v.row::VARCHAR FROM vectors v LEFT JOIN models m ON m.model = v.model
		WHERE m.dims IS NULL OR v.dims <> m.dims OR octet_length(v.name) <> 4 * v.dims OR octet_length(v.description) <> 4 * v.dims
			OR v.corpus IS NOT NULL AND octet_length(v.corpus) <> 4 * v.dims`},
	{"a model has two sizes", "SELECT model FROM models GROUP BY model HAVING count(*) > 1"},

	{"a tag belongs to no entry", "SELECT row::VARCHAR FROM tags WHERE row NOT IN (SELECT row FROM entries)"},
	{"an entry has a tag twice", "SELECT row::VARCHAR FROM tags GROUP BY row, tag HAVING count(*) > 1"},
	{"a link begins nowhere", "SELECT row::VARCHAR FROM links WHERE row NOT IN (SELECT row FROM entries)"},
	{"a link leads nowhere", "SELECT other FROM links WHERE other NOT IN (SELECT id FROM entries)"},
	{"a link leads one way", `SELECT e.id FROM links l JOIN entries e ON e.row = l.row JOIN entries o ON o.id = l.other
		WHERE NOT EXISTS (SELECT 1 FROM links b WHERE b.row = o.row AND b.other = e.id)`},
	{"a link is there twice", "SELECT row::VARCHAR FROM links GROUP BY row, other HAVING count(*) > 1"},
	{"a count belongs to no entry", "SELECT row::VARCHAR FROM access WHERE row NOT IN (SELECT row FROM entries)"},
	{"an entry is counted twice", "SELECT row::VARCHAR FROM access GROUP BY row HAVING count(*) > 1"},

	{"an answer is not known as one", `SELECT id FROM entries e WHERE kind = 'engram' AND query <> ''
		AND NOT EXISTS (SELECT 1 FROM answers a WHERE a.query = e.query AND a.respondent = e.respondent AND a.id = e.id)`},
	{"a known answer is not there", "SELECT id FROM answers WHERE id IS NOT NULL AND id NOT IN (SELECT id FROM entries)"},
	{"a forgotten answer has grades", `SELECT g.query FROM grades g JOIN answers a ON a.query = g.query AND (g.respondent = '' OR a.respondent = g.respondent)
		GROUP BY g.query, g.respondent HAVING count(a.id) = 0`},
	{"a grade makes no sense", "SELECT query FROM grades WHERE critic NOT BETWEEN 1 AND 5 OR NOT reward BETWEEN -1 AND 1 OR rewards < 0"},

	{"a line of the graph belongs to no entry", "SELECT id FROM relations WHERE row NOT IN (SELECT row FROM entries)"},
	{"a line of the graph is about nobody", "SELECT id FROM relations WHERE subject NOT IN (SELECT id FROM entities) OR object NOT IN (SELECT id FROM entities)"},
	{"a line of the graph is trusted and its entry is not", "SELECT r.id FROM relations r JOIN entries e ON e.row = r.row WHERE r.trust = 'trusted' AND e.trust <> 'trusted'"},
	{"a line of the graph is there twice", "SELECT id FROM relations GROUP BY id HAVING count(*) > 1"},
	{"somebody is in the graph and nothing is said of him", "SELECT folded FROM entities WHERE id NOT IN (SELECT subject FROM relations) AND id NOT IN (SELECT object FROM relations)"},
	{"somebody is in the graph twice", "SELECT folded FROM entities GROUP BY folded HAVING count(*) > 1"},

	{"a number is missing", "SELECT 'meta' FROM (SELECT count(*) AS n FROM meta WHERE name IN ('schema', 'high', 'forgot')) WHERE n <> 3"},
}

// Verify looks at everything: that every block can be read, and that what belongs together is together. It returns
// [ErrDamaged] or [ErrInconsistent] with what it found. It takes about as long as reading the file.
func (s *Store) Verify(ctx context.Context) error {
	return s.readSnapshot(ctx, func(m snapshot) error {
		for _, table := range tables {
			if err := readTable(ctx, m, table); err != nil {
				return fmt.Errorf("reading %s: %w", table, err)
			}
		}
		return errors.Join(verifyIDs(ctx, m), verifyInvariants(ctx, m))
	})
}

func verifyInvariants(ctx context.Context, m snapshot) error {
	var errs []error
	for _, r := range invariants {
		var first string
		n := 0
		err := m.queryOnce(ctx, func(rows *sql.Rows) error {
			if n++; n > 1 {
				return nil
			}
			return rows.Scan(&first)
		}, r.query)
		if err != nil {
			return fmt.Errorf("looking whether %s: %w", r.violation, err)
		}
		if n > 0 {
			errs = append(errs, fmt.Errorf("%w: %s: %s (%d in all)", ErrInconsistent, r.violation, text.OneLine(first, maxID), n))
		}
	}
	return errors.Join(errs...)
}

// verifyIDs looks whether the newest entries are found by their ids: that is another way to them than reading all.
func verifyIDs(ctx context.Context, m querier) error {
	var ids []string
	err := m.query(ctx, func(r *sql.Rows) error {
		var id string
		err := r.Scan(&id)
		ids = append(ids, id)
		return err
	}, fmt.Sprintf("SELECT id FROM entries ORDER BY row DESC LIMIT %d", maxListed))
	if err != nil || len(ids) == 0 {
		return err
	}
	in, named := inList(ids)
	n := 0
	if err := m.query(ctx, func(r *sql.Rows) error { return r.Scan(&n) }, "SELECT count(*) FROM entries WHERE id IN "+in, named...); err != nil {
		return err
	}
	if n != len(ids) {
		return fmt.Errorf("%w: of %d entries only %d are found by their ids", ErrInconsistent, len(ids), n)
	}
	return nil
}

// readTable reads every value of a table.
func readTable(ctx context.Context, m snapshot, table string) error {
	var columns []string
	err := m.queryOnce(ctx, func(r *sql.Rows) error {
		var name string
		err := r.Scan(&name)
		columns = append(columns, "bit_xor(hash("+name+"))")
		return err
	}, "SELECT column_name FROM duckdb_columns() WHERE database_name = ? AND table_name = ?", catalog, table)
	if err != nil {
		return err
	}
	return m.queryOnce(ctx, func(*sql.Rows) error { return nil }, "SELECT "+strings.Join(columns, ", ")+" FROM "+table)
}
