package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"conclave/pkg/text"
)

// invariant is a condition that holds in every file. Its query returns one column that identifies each violating row.
type invariant struct{ violation, query string }

var invariants = []invariant{
	{"duplicate row number", "SELECT row::VARCHAR FROM entries GROUP BY row HAVING count(*) > 1"},
	{"duplicate entry id", "SELECT id FROM entries GROUP BY id HAVING count(*) > 1"},
	{"entry without a row number", "SELECT id FROM entries WHERE row < 1"},
	{"entry with an unknown kind, state, trust or source", `SELECT id FROM entries
		WHERE kind NOT IN ('engram', 'fact', 'document')
		OR state NOT IN ('active', 'candidate', 'superseded') OR trust NOT IN ('trusted', 'untrusted')
		OR source NOT IN ('user', 'conversation', 'agent', 'document', 'external')`},

	{
		"entry superseded by a missing entry",
		`SELECT id FROM entries WHERE superseded_by <> '' AND superseded_by NOT IN (SELECT id FROM entries)`,
	},
	{"entry with a successor that is not superseded", "SELECT id FROM entries WHERE superseded_by <> '' AND state <> " +
		"'superseded'"},
	{"entries that supersede each other", `WITH RECURSIVE up(id, top, n) AS (
			SELECT id, superseded_by, 1 FROM entries WHERE superseded_by <> ''
			UNION ALL SELECT up.id, e.superseded_by, up.n + 1 FROM up JOIN entries e ON e.id = up.top
				WHERE e.superseded_by <> '' AND up.n < 1000 AND up.top <> up.id
		) SELECT DISTINCT id FROM up WHERE top = id OR n >= 1000`},

	{"vectors without an entry", "SELECT row::VARCHAR FROM vectors WHERE row NOT IN (SELECT row FROM entries)"},
	{"duplicate vectors of an entry", "SELECT row::VARCHAR FROM vectors GROUP BY row HAVING count(*) > 1"},
	{"vectors with wrong dimensions", `SELECT v.row::VARCHAR FROM vectors v LEFT JOIN models m ON m.model = v.model
		WHERE m.dims IS NULL OR v.dims <> m.dims OR octet_length(v.corpus) <> 4 * v.dims
			OR v.name IS NOT NULL AND octet_length(v.name) <> 4 * v.dims 
			OR v.description IS NOT NULL AND octet_length(v.description) <> 4 * v.dims`},
	{
		"entry with an invalid context",
		`SELECT id FROM entries WHERE conversation IS NULL OR speaker IS NULL OR position IS NULL OR position < 0`,
	},
	{"duplicate embedding model", "SELECT model FROM models GROUP BY model HAVING count(*) > 1"},

	{"tag without an entry", "SELECT row::VARCHAR FROM tags WHERE row NOT IN (SELECT row FROM entries)"},
	{"duplicate tag of an entry", "SELECT row::VARCHAR FROM tags GROUP BY row, tag HAVING count(*) > 1"},
	{"link from a missing entry", "SELECT row::VARCHAR FROM links WHERE row NOT IN (SELECT row FROM entries)"},
	{"link to a missing entry", "SELECT other FROM links WHERE other NOT IN (SELECT id FROM entries)"},
	{"link in one direction only", `SELECT e.id FROM links l JOIN entries e ON e.row = l.row 
		JOIN entries o ON o.id = l.other
		WHERE NOT EXISTS (SELECT 1 FROM links b WHERE b.row = o.row AND b.other = e.id)`},
	{"duplicate link", "SELECT row::VARCHAR FROM links GROUP BY row, other HAVING count(*) > 1"},
	{"access count without an entry", "SELECT row::VARCHAR FROM access WHERE row NOT IN (SELECT row FROM entries)"},
	{"duplicate access count of an entry", "SELECT row::VARCHAR FROM access GROUP BY row HAVING count(*) > 1"},

	{"engram of a query without its row in answers", `SELECT id FROM entries e WHERE kind = 'engram' AND query <> ''
		AND NOT EXISTS (SELECT 1 FROM answers a WHERE a.query = e.query 
			AND a.respondent = e.respondent AND a.id = e.id)`},
	{"answer of a missing entry", "SELECT id FROM answers WHERE id IS NOT NULL AND id NOT IN (SELECT id FROM entries)"},
	{"grade of a forgotten answer", `SELECT g.query FROM grades g JOIN answers a 
		ON a.query = g.query AND (g.respondent = '' OR a.respondent = g.respondent)
		GROUP BY g.query, g.respondent HAVING count(a.id) = 0`},
	{"grade out of range", "SELECT query FROM grades WHERE critic NOT BETWEEN 1 AND 5 OR NOT reward BETWEEN -1 AND 1 " +
		"OR rewards < 0"},

	{"relation without an entry", "SELECT id FROM relations WHERE row NOT IN (SELECT row FROM entries)"},
	{"relation with a missing subject or object", "SELECT id FROM relations WHERE subject NOT IN (SELECT id FROM " +
		"entities) OR object NOT IN (SELECT id FROM entities)"},
	{"trusted relation of an untrusted entry", "SELECT r.id FROM relations r JOIN entries e ON e.row = r.row WHERE " +
		"r.trust = 'trusted' AND e.trust <> 'trusted'"},
	{"duplicate relation", "SELECT id FROM relations GROUP BY id HAVING count(*) > 1"},
	{"graph entity without a relation", "SELECT folded FROM entities WHERE id NOT IN (SELECT subject FROM relations) " +
		"AND id NOT IN (SELECT object FROM relations)"},
	{"duplicate graph entity", "SELECT folded FROM entities GROUP BY folded HAVING count(*) > 1"},

	{"missing row in meta", "SELECT 'meta' FROM (SELECT count(*) AS n FROM meta WHERE name IN ('schema', 'high', " +
		"'forgot')) WHERE n <> 3"},
}

// Verify reads every block and checks every invariant, without changing anything. It returns nil, [ErrDamaged] for a
// block that cannot be read, or [ErrInconsistent] with all violations. It takes about as long as reading the file.
func (s *Store) Verify(ctx context.Context) error {
	return s.readSnapshot(ctx, func(m snapshot) error {
		if err := s.readAll(ctx); err != nil {
			return err
		}
		return errors.Join(verifyIDs(ctx, m), verifyInvariants(ctx, m))
	})
}

// verifyInvariants returns a joined [ErrInconsistent] for each violated invariant, with the first violating row and
// their number, nil when all hold. An error of a query ends it.
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
			return fmt.Errorf("checking for %s: %w", r.violation, err)
		}
		if n > 0 {
			errs = append(errs, fmt.Errorf("%w: %s: %s (total %d)", ErrInconsistent, r.violation,
				text.OneLine(first, maxID), n))
		}
	}
	return errors.Join(errs...)
}

// verifyIDs returns an [ErrInconsistent] if the index of ids does not find the maxListed newest entries, which are read
// without it.
func verifyIDs(ctx context.Context, m querier) error {
	var ids []string
	err := m.query(ctx, appendText(&ids), fmt.Sprintf("SELECT id FROM entries ORDER BY row DESC LIMIT %d", maxListed))
	if err != nil || len(ids) == 0 {
		return err
	}
	in, named := inList(ids)
	n := 0
	if err := m.query(ctx, func(r *sql.Rows) error {
		return r.Scan(&n)
	}, "SELECT count(*) FROM entries WHERE id IN "+in, named...); err != nil {
		return err
	}
	if n != len(ids) {
		return fmt.Errorf("%w: the index of ids finds %d of %d entries", ErrInconsistent, n, len(ids))
	}
	return nil
}
