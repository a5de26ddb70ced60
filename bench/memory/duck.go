package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/duckdb/duckdb-go/v2"
)

// duck is the search as SQL in DuckDB: the vectors in a table, without an index.
type duck struct {
	db   *sql.DB
	conn *sql.Conn
	// stages has the tables of the second and third stage too.
	stages bool
	nearest,
	describe,
	fetch *sql.Stmt
}

// openDuck opens a database in the job's folder: as it comes, or tuned with small row groups, so that a table of a hundred
// thousand rows is more than one piece of work, and without compression, which floats do not take well.
func openDuck(j job, tuned, stages bool) (_ *duck, err error) {
	ctx := context.Background()
	d := &duck{stages: stages}
	defer func() {
		if err != nil {
			_ = d.close()
		}
	}()
	if d.db, err = sql.Open("duckdb", ""); err != nil {
		return nil, err
	}
	if d.conn, err = d.db.Conn(ctx); err != nil {
		return nil, err
	}
	options := ""
	if tuned {
		options = " (ROW_GROUP_SIZE 16384)"
	}
	// The folder is one that we made; a quote in the name of the system's folder for such things is doubled.
	file := strings.ReplaceAll(filepath.Join(j.Dir, "sql.duckdb"), "'", "''")
	setup := []string{
		"SET autoinstall_known_extensions=false", "SET autoload_known_extensions=false",
		"ATTACH '" + file + "' AS bench" + options, "USE bench",
		"CREATE TABLE names (id BIGINT, v FLOAT[768])",
	}
	if stages {
		setup = append(setup,
			"CREATE TABLE descriptions (id BIGINT PRIMARY KEY, v FLOAT[768])",
			"CREATE TABLE entries (id BIGINT PRIMARY KEY, name VARCHAR, description VARCHAR, corpus VARCHAR)")
	}
	if tuned {
		setup = append(setup, "SET force_compression='uncompressed'")
	}
	for _, s := range setup {
		if _, err = d.conn.ExecContext(ctx, s); err != nil {
			return nil, fmt.Errorf("%s: %w", s, err)
		}
	}
	return d, nil
}

func (d *duck) load(w *world) (time.Duration, error) {
	ctx := context.Background()
	var spent watch
	err := d.vectors(&spent, "names", w, w.name)
	if err == nil && d.stages {
		if err = d.vectors(&spent, "descriptions", w, w.description); err == nil {
			err = d.entries(&spent, w)
		}
	}
	if err != nil {
		return 0, err
	}
	if err := spent.run(func() error {
		_, err := d.conn.ExecContext(ctx, "CHECKPOINT bench")
		return err
	}); err != nil {
		return 0, err
	}
	return time.Duration(spent), d.prepare(ctx)
}

// prepare makes the statements. The vector is bound, as a program would do it.
func (d *duck) prepare(ctx context.Context) error {
	for text, into := range map[string]**sql.Stmt{
		"SELECT id, array_cosine_similarity(v, ?::FLOAT[768]) AS s FROM names ORDER BY s DESC LIMIT 20":                  &d.nearest,
		"SELECT id, array_cosine_similarity(v, ?::FLOAT[768]) AS s FROM descriptions WHERE id IN (" + marks(names) + ")": &d.describe,
		"SELECT id, corpus FROM entries WHERE id IN (" + marks(top) + ")":                                                &d.fetch,
	} {
		if into != &d.nearest && !d.stages {
			continue
		}
		s, err := d.conn.PrepareContext(ctx, text)
		if err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
		*into = s
	}
	return nil
}

func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }

// append runs f with an appender on a table.
func (d *duck) append(spent *watch, table string, f func(*duckdb.Appender) error) error {
	return d.conn.Raw(func(c any) error {
		a, err := duckdb.NewAppender(c.(driver.Conn), "bench", "main", table)
		if err != nil {
			return err
		}
		err = f(a)
		return errors.Join(err, spent.run(a.Close))
	})
}

func (d *duck) vectors(spent *watch, table string, w *world, what func(int, []float32)) error {
	return d.append(spent, table, func(a *duckdb.Appender) error {
		return w.stream(what, func(first int, vectors []float32) error {
			return spent.run(func() error {
				for i := range len(vectors) / dims {
					if err := a.AppendRow(int64(first+i), vectors[i*dims:(i+1)*dims]); err != nil {
						return err
					}
				}
				return nil
			})
		})
	})
}

func (d *duck) entries(spent *watch, w *world) error {
	return d.append(spent, "entries", func(a *duckdb.Appender) error {
		for i := range w.n {
			name, description, corpus := w.nameText(i), w.descriptionText(i), w.corpusText(i)
			if err := spent.run(func() error { return a.AppendRow(int64(i), name, description, corpus) }); err != nil {
				return err
			}
		}
		return nil
	})
}

func (d *duck) ask(_ int, q []float32) ([]int, error) {
	first, err := d.scores(d.nearest, q)
	if err != nil || !d.stages {
		return rows(first), err
	}
	return d.second(q, first)
}

// second is the descriptions of those that were found, and the corpus of what remains.
func (d *duck) second(q []float32, first []scored) ([]int, error) {
	args := []any{q}
	byName := map[int]float64{}
	for _, s := range first {
		args = append(args, s.row)
		byName[s.row] = s.score
	}
	for len(args) <= names { // of fewer rows than that, the last one again
		args = append(args, args[len(args)-1])
	}
	described, err := d.scores(d.describe, args...)
	if err != nil {
		return nil, err
	}
	all := best{k: top}
	for _, s := range described {
		all.show(scored{s.row, mixName*byName[s.row] + mixDescription*s.score})
	}
	return rows(all.rows), d.corpora(all.rows)
}

// corpora reads the corpus of each and makes sure that it came.
func (d *duck) corpora(of []scored) error {
	args := make([]any, 0, top)
	for i := range top {
		args = append(args, of[min(i, len(of)-1)].row)
	}
	got, err := d.fetch.Query(args...)
	if err != nil {
		return err
	}
	defer got.Close()
	count := 0
	for got.Next() {
		var row int
		var corpus string
		if err := got.Scan(&row, &corpus); err != nil {
			return err
		}
		if corpus != "" {
			count++
		}
	}
	if err := got.Err(); err != nil {
		return err
	}
	if count != len(of) {
		return fmt.Errorf("%d corpora of %d came", count, len(of))
	}
	return nil
}

func (d *duck) scores(s *sql.Stmt, args ...any) ([]scored, error) {
	got, err := s.Query(args...)
	if err != nil {
		return nil, err
	}
	defer got.Close()
	var out []scored
	for got.Next() {
		var one scored
		if err := got.Scan(&one.row, &one.score); err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, got.Err()
}

func (d *duck) about() string { return "" }

func (d *duck) close() error {
	var errs []error
	for _, s := range []*sql.Stmt{d.nearest, d.describe, d.fetch} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	if d.conn != nil {
		errs = append(errs, d.conn.Close())
	}
	if d.db != nil {
		errs = append(errs, d.db.Close())
	}
	return errors.Join(errs...)
}
