package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// ApproximateIndex finds near vectors quickly and not always all of them. It is in memory, beside the file: an index of this
// kind inside the file may leave it unreadable.
type ApproximateIndex interface {
	// Put adds vectors, one after the other in one slice. A row that is there is replaced.
	Put(ctx context.Context, rows []uint64, vectors []float32) error
	Remove(ctx context.Context, rows ...uint64) error
	// Nearest are about the k rows with the largest cosine to q, best first.
	Nearest(ctx context.Context, q []float32, k int) ([]Neighbor, error)
}

// Neighbor is a row and how near it is.
type Neighbor struct {
	Row    uint64
	Cosine float32
}

// loadVSS loads DuckDB's extension for approximate search from a file of this machine. Nothing is installed.
func loadVSS(ctx context.Context, db *sql.DB, file string) error {
	if !filepath.IsAbs(file) {
		return fmt.Errorf("loading the vss extension: %s is not a full path", file)
	}
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("loading the vss extension: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("loading the vss extension: %s is no file", file)
	}
	if _, err := db.ExecContext(ctx, "LOAD "+quoteSQL(file)); err != nil {
		return fmt.Errorf("loading the vss extension from %s: %w; it must be made for this version of DuckDB and this machine", file, &duckError{err})
	}
	return nil
}

// NewApproximate makes an empty index for vectors of so many numbers. It is an error when the extension was not loaded.
func (s *Store) NewApproximate(ctx context.Context, dims int) (ApproximateIndex, error) {
	if s.vssErr != nil {
		return nil, s.vssErr
	}
	return newHNSW(ctx, s.db, dims, true)
}

// hnsw is the table of vectors, with DuckDB's index over it.
type hnsw struct {
	db   *sql.DB
	dims int
	mu   sync.Mutex // one writes
}

// approximateCatalog is the name of the database in memory.
const approximateCatalog = "near"

// newHNSW makes the table. Without the index it is searched from end to end, which tests use.
func newHNSW(ctx context.Context, db *sql.DB, dims int, index bool) (*hnsw, error) {
	if dims <= 0 || dims > maxDims {
		return nil, fmt.Errorf("%w: %d numbers", ErrVector, dims)
	}
	make := []string{
		"ATTACH IF NOT EXISTS ':memory:' AS " + approximateCatalog,
		fmt.Sprintf("CREATE OR REPLACE TABLE %s.names (row BIGINT NOT NULL, v FLOAT[%d] NOT NULL)", approximateCatalog, dims),
	}
	if index {
		make = append(make, fmt.Sprintf("CREATE INDEX names_near ON %s.names USING HNSW (v) WITH (metric = 'cosine')", approximateCatalog))
	}
	for _, q := range make {
		if _, err := db.ExecContext(ctx, q); err != nil {
			return nil, fmt.Errorf("making the approximate index: %w", explainError(err))
		}
	}
	return &hnsw{db: db, dims: dims}, nil
}

// Put implements [ApproximateIndex].
func (h *hnsw) Put(ctx context.Context, rows []uint64, vectors []float32) error {
	if len(vectors) != len(rows)*h.dims {
		return fmt.Errorf("%w: %d numbers for %d rows of %d", ErrDims, len(vectors), len(rows), h.dims)
	}
	for i := range rows {
		if _, err := packVector(vectors[i*h.dims : (i+1)*h.dims]); err != nil {
			return err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.remove(ctx, rows); err != nil { // before, in a transaction of its own: an index does not like both at once
		return err
	}
	tx, err := h.db.BeginTx(ctx, nil)
	if err != nil {
		return explainError(err)
	}
	for i, r := range rows {
		q := fmt.Sprintf("INSERT INTO %s.names VALUES (?, ?::FLOAT[%d])", approximateCatalog, h.dims)
		if _, err := tx.ExecContext(ctx, q, int64(r), vectors[i*h.dims:(i+1)*h.dims]); err != nil {
			return errors.Join(explainError(err), tx.Rollback())
		}
	}
	return explainError(tx.Commit())
}

// Remove implements [ApproximateIndex].
func (h *hnsw) Remove(ctx context.Context, rows ...uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.remove(ctx, rows)
}

func (h *hnsw) remove(ctx context.Context, rows []uint64) error {
	for chunk := range slices.Chunk(rows, maxListed) {
		numbers := make([]int64, len(chunk))
		for i, r := range chunk {
			numbers[i] = int64(r)
		}
		in, named := inList(numbers)
		if _, err := h.db.ExecContext(ctx, "DELETE FROM "+approximateCatalog+".names WHERE row IN "+in, named...); err != nil {
			return explainError(err)
		}
	}
	return nil
}

// Nearest implements [ApproximateIndex].
func (h *hnsw) Nearest(ctx context.Context, q []float32, k int) (near []Neighbor, err error) {
	if len(q) != h.dims {
		return nil, fmt.Errorf("%w: %d numbers and not %d", ErrDims, len(q), h.dims)
	}
	if _, err := packVector(q); err != nil {
		return nil, err
	}
	if k <= 0 {
		return nil, nil
	}
	rows, err := h.db.QueryContext(ctx,
		fmt.Sprintf("SELECT row, array_cosine_distance(v, ?::FLOAT[%d]) AS d FROM %s.names ORDER BY d LIMIT %d", h.dims, approximateCatalog, k), q)
	err = scanRows(rows, err, func(r *sql.Rows) error {
		var row int64
		var d float32
		err := r.Scan(&row, &d)
		near = append(near, Neighbor{Row: uint64(row), Cosine: 1 - d})
		return err
	})
	return near, err
}
