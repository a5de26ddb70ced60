//go:build sqlitevec

package main

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unsafe"

	vec "github.com/asg017/sqlite-vec-go-bindings/cgo"
	_ "github.com/mattn/go-sqlite3" // the driver
)

// hasSQLite reports that sqlite-vec is built in. It needs a build tag because it needs SQLite's header file.
const hasSQLite = true

// sqliteEngine is sqlite-vec's virtual table in memory, with the cosine as distance; with words also an index of FTS5,
// and the two rankings fused by reciprocal ranks.
type sqliteEngine struct {
	db                     *sql.DB
	data                   *dataset
	withWords              bool
	nearest, matches, text *sql.Stmt
}

func openSQLite(withWords bool) (engine, error) {
	vec.Auto()
	db, err := sql.Open("sqlite3", ":memory:")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // each connection would have a database of its own
	setup := []string{
		"CREATE VIRTUAL TABLE vectors USING vec0(v float[768] distance_metric=cosine)",
		"CREATE TABLE entries (id INTEGER PRIMARY KEY, corpus TEXT)",
	}
	if withWords {
		setup = append(setup, "CREATE VIRTUAL TABLE words USING fts5(text, content='')")
	}
	for _, s := range setup {
		if _, err := db.Exec(s); err != nil {
			return nil, errors.Join(fmt.Errorf("%s (build with -tags sqlitevec,sqlite_fts5): %w", s, err), db.Close())
		}
	}
	return &sqliteEngine{db: db, withWords: withWords}, nil
}

// bytesOf returns a vector in the form of sqlite-vec, on a little-endian machine.
func bytesOf(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

func (l *sqliteEngine) load(d *dataset) (time.Duration, error) {
	l.data = d
	var spent stopwatch
	if err := d.eachChunk(func(sort int, rows []int, vectors []float32) error {
		return spent.run(func() error { return l.add(sort, rows, vectors) })
	}); err != nil {
		return 0, err
	}
	prepare := map[**sql.Stmt]string{
		&l.nearest: "SELECT rowid / 3 FROM vectors WHERE v MATCH ? AND k = ? ORDER BY distance",
		&l.text:    "SELECT corpus FROM entries WHERE id = ?",
	}
	if l.withWords {
		prepare[&l.matches] = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?"
	}
	for into, text := range prepare {
		var err error
		if *into, err = l.db.Prepare(text); err != nil {
			return 0, err
		}
	}
	return time.Duration(spent), nil
}

// add inserts vectors, and the texts with those of the corpus.
func (l *sqliteEngine) add(sort int, rows []int, vectors []float32) error {
	tx, err := l.db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for i, row := range rows {
		_, err := tx.Exec("INSERT INTO vectors (rowid, v) VALUES (?, ?)", 3*row+sort,
			bytesOf(vectors[i*dims:(i+1)*dims]))
		if err == nil && sort == ofCorpus {
			_, err = tx.Exec("INSERT INTO entries VALUES (?, ?)", row, l.data.corpus(row))
		}
		if err == nil && sort == ofCorpus && l.withWords {
			_, err = tx.Exec("INSERT INTO words (rowid, text) VALUES (?, ?)", row, l.data.description(row)+" "+
				l.data.corpus(row))
		}
		if err != nil {
			return err
		}
	}
	return tx.Commit()
}

// Of the fusion: candidates of each ranking, and the constant of reciprocal ranks.
const (
	fused    = 100
	rankBase = 60
)

func (l *sqliteEngine) search(j int, v []float32) ([]int, error) {
	most := nearest
	if l.withWords {
		most = fused
	}
	rows, err := queryRows(l.nearest, bytesOf(v), most)
	if err != nil {
		return nil, err
	}
	if l.withWords {
		matched, err := queryRows(l.matches, strings.Join(strings.Fields(l.data.queryText(j)), " OR "), fused)
		if err != nil {
			return nil, err
		}
		rows = fuse(rows, matched)
	}
	rows = distinct(rows)
	for _, row := range rows {
		var corpus string
		if err := l.text.QueryRow(row).Scan(&corpus); err != nil || corpus == "" {
			return nil, errors.Join(fmt.Errorf("no text of entry %d", row), err)
		}
	}
	return rows, nil
}

// fuse orders the entries of two rankings by the sums of their reciprocal ranks.
func fuse(rankings ...[]int) []int {
	scores := map[int]float64{}
	for _, rows := range rankings {
		for rank, row := range rows {
			scores[row] += 1 / float64(rankBase+rank)
		}
	}
	all := slices.Concat(rankings...)
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	return all
}

func queryRows(s *sql.Stmt, args ...any) ([]int, error) {
	got, err := s.Query(args...)
	if err != nil {
		return nil, err
	}
	defer got.Close()
	var out []int
	for got.Next() {
		var row int
		if err := got.Scan(&row); err != nil {
			return nil, err
		}
		out = append(out, row)
	}
	return out, got.Err()
}

func (l *sqliteEngine) describe() string { return "" }
func (l *sqliteEngine) close() error     { return l.db.Close() }
