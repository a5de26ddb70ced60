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

// duckDB is the search in SQL: vectors and texts in tables, without an index of vectors.
type duckDB struct {
	db             *sql.DB
	conn           *sql.Conn
	nearest, texts *sql.Stmt
}

// openDuckDB opens a database in the job's folder: with the defaults, or tuned with small row groups, which give two
// threads work from 32,768 vectors on, and without compression, which does not shrink floats much.
func openDuckDB(j job, tuned bool) (_ engine, err error) {
	d := &duckDB{}
	defer func() {
		if err != nil {
			_ = d.close()
		}
	}()
	if d.db, err = sql.Open("duckdb", ""); err != nil {
		return nil, err
	}
	if d.conn, err = d.db.Conn(context.Background()); err != nil {
		return nil, err
	}
	options := ""
	if tuned {
		options = " (ROW_GROUP_SIZE 16384)"
	}
	file := strings.ReplaceAll(filepath.Join(j.Dir, "peer.duckdb"), "'", "''")
	setup := []string{
		"SET autoinstall_known_extensions=false", "SET autoload_known_extensions=false",
		"ATTACH '" + file + "' AS bench" + options, "USE bench",
		"CREATE TABLE vectors (id BIGINT, v FLOAT[768])",
		"CREATE TABLE entries (id BIGINT PRIMARY KEY, corpus VARCHAR)",
	}
	if tuned {
		setup = append(setup, "SET force_compression='uncompressed'")
	}
	for _, s := range setup {
		if _, err = d.conn.ExecContext(context.Background(), s); err != nil {
			return nil, fmt.Errorf("%s: %w", s, err)
		}
	}
	return d, nil
}

func (d *duckDB) load(data *dataset) (time.Duration, error) {
	var spent stopwatch
	err := d.append(&spent, "vectors", func(a *duckdb.Appender) error {
		return data.eachChunk(func(_ int, rows []int, vectors []float32) error {
			return spent.run(func() error {
				for i, row := range rows {
					if err := a.AppendRow(int64(row), vectors[i*dims:(i+1)*dims]); err != nil {
						return err
					}
				}
				return nil
			})
		})
	})
	if err == nil {
		err = d.append(&spent, "entries", func(a *duckdb.Appender) error {
			for i := range data.n {
				corpus := data.corpus(i)
				if err := spent.run(func() error { return a.AppendRow(int64(i), corpus) }); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err == nil {
		err = spent.run(func() error {
			_, err := d.conn.ExecContext(context.Background(), "CHECKPOINT bench")
			return err
		})
	}
	if err == nil {
		err = d.prepare()
	}
	return time.Duration(spent), err
}

// append calls f with an appender of a table.
func (d *duckDB) append(spent *stopwatch, table string, f func(*duckdb.Appender) error) error {
	return d.conn.Raw(func(c any) error {
		a, err := duckdb.NewAppender(c.(driver.Conn), "bench", "main", table)
		if err != nil {
			return err
		}
		err = f(a)
		return errors.Join(err, spent.run(a.Close))
	})
}

func (d *duckDB) prepare() (err error) {
	ctx := context.Background()
	if d.nearest, err = d.conn.PrepareContext(ctx, fmt.Sprintf("SELECT id, array_cosine_similarity(v, ?::FLOAT[768]) "+
		"AS s FROM vectors ORDER BY s DESC LIMIT %d", nearest)); err != nil {
		return err
	}
	d.texts, err = d.conn.PrepareContext(ctx, "SELECT count(*) FROM entries WHERE id IN (?, ?, ?, ?, ?) AND corpus "+
		"<> ''")
	return err
}

func (d *duckDB) search(_ int, v []float32) ([]int, error) {
	got, err := d.nearest.Query(v)
	if err != nil {
		return nil, err
	}
	defer got.Close()
	var rows []int
	for got.Next() {
		var row int
		var similarity float64
		if err := got.Scan(&row, &similarity); err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	if err := got.Err(); err != nil {
		return nil, err
	}
	rows = distinct(rows)
	args := make([]any, len(rows))
	for i, row := range rows {
		args[i] = row
	}
	var count int
	if err := d.texts.QueryRow(args...).Scan(&count); err != nil || count != len(rows) {
		return nil, errors.Join(fmt.Errorf("%d texts of %d were found", count, len(rows)), err)
	}
	return rows, nil
}

func (d *duckDB) describe() string { return "" }

func (d *duckDB) close() error {
	var errs []error
	for _, s := range []*sql.Stmt{d.nearest, d.texts} {
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
