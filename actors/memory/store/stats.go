package store

import (
	"context"
	"database/sql"
	"fmt"
)

// Stats are the counts of a store.
type Stats struct {
	Entries   int
	Kinds     map[string]int
	States    map[string]int
	Relations int
	Documents int
	Schema    int
	DuckDB    string // its version

	// Model is the one that made the most vectors, "" when there are none, and Dims how many numbers they have.
	Model   string
	Dims    int
	Vectors map[string]int // entries with vectors, by model
}

// Stats counts entries, vectors, relations and documents in one snapshot. Every kind, state and model with a row has an
// entry in its map; others are missing. Model is the one with the most vectors, the first by name of several.
func (s *Store) Stats(ctx context.Context) (Stats, error) {
	st := Stats{Kinds: map[string]int{}, States: map[string]int{}, Vectors: map[string]int{}, Schema: len(s.steps)}
	err := s.readSnapshot(ctx, func(m snapshot) error {
		err := m.query(ctx, func(r *sql.Rows) error {
			var kind, state string
			var n int
			err := r.Scan(&kind, &state, &n)
			st.Kinds[kind] += n
			st.States[state] += n
			st.Entries += n
			return err
		}, "SELECT kind, state, count(*) FROM entries GROUP BY kind, state")
		if err != nil {
			return err
		}
		err = m.query(ctx, func(r *sql.Rows) error {
			var model string
			var n, dims int
			err := r.Scan(&model, &n, &dims)
			st.Vectors[model] = n
			if st.Model == "" { // the first is the one with the most
				st.Model, st.Dims = model, dims
			}
			return err
		}, "SELECT model, count(*) AS n, max(dims) FROM vectors GROUP BY model ORDER BY n DESC, model")
		if err != nil {
			return err
		}
		return m.query(ctx, func(r *sql.Rows) error { return r.Scan(&st.Relations, &st.Documents, &st.DuckDB) },
			"SELECT (SELECT count(*) FROM relations), (SELECT count(*) FROM documents), version()")
	})
	if err != nil {
		return Stats{}, fmt.Errorf("counting: %w", err)
	}
	return st, nil
}
