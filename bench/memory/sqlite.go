//go:build sqlitevec

package main

import (
	"database/sql"
	"time"
	"unsafe"

	vec "github.com/asg017/sqlite-vec-go-bindings/cgo"
	_ "github.com/mattn/go-sqlite3" // the driver
)

// sqliteVec says that sqlite-vec is built in. It is behind a build tag because it needs SQLite's header file, which not
// every machine has.
const sqliteVec = true

// lite is sqlite-vec's virtual table in memory, with the cosine as its distance.
type lite struct {
	db      *sql.DB
	nearest *sql.Stmt
}

func openLite(job) (engine, error) {
	vec.Auto()
	db, err := sql.Open("sqlite3", ":memory:")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // each connection would have a database of its own
	if _, err := db.Exec("CREATE VIRTUAL TABLE names USING vec0(v float[768] distance_metric=cosine)"); err != nil {
		_ = db.Close()
		return nil, err
	}
	return &lite{db: db}, nil
}

// bytesOf is a vector as sqlite-vec takes it: little-endian, which every machine with these figures is.
func bytesOf(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

func (l *lite) load(w *world) (time.Duration, error) {
	var spent watch
	err := w.stream(w.name, func(first int, vectors []float32) error {
		return spent.run(func() error { return l.add(first, vectors) })
	})
	if err == nil {
		l.nearest, err = l.db.Prepare("SELECT rowid FROM names WHERE v MATCH ? AND k = ? ORDER BY distance")
	}
	return time.Duration(spent), err
}

func (l *lite) add(first int, vectors []float32) error {
	tx, err := l.db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	insert, err := tx.Prepare("INSERT INTO names (rowid, v) VALUES (?, ?)")
	if err != nil {
		return err
	}
	defer insert.Close()
	for i := range len(vectors) / dims {
		if _, err := insert.Exec(first+i, bytesOf(vectors[i*dims:(i+1)*dims])); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (l *lite) ask(_ int, q []float32) ([]int, error) {
	got, err := l.nearest.Query(bytesOf(q), names)
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

func (l *lite) about() string { return "" }
func (l *lite) close() error  { return l.db.Close() }
