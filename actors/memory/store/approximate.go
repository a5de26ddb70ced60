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

// ApproximateIndex is an approximate nearest-neighbor index over vectors. It is in memory and not in the file, which
// DuckDB's persistent HNSW index can leave unreadable.
type ApproximateIndex interface {
	// Put adds vectors, concatenated in the order of rows. The vector of a row that exists is replaced.
	Put(ctx context.Context, rows []uint64, vectors []float32) error
	Remove(ctx context.Context, rows ...uint64) error
	// Nearest returns approximately the k rows with the largest cosine to q, best first.
	Nearest(ctx context.Context, q []float32, k int) ([]Neighbor, error)
}

// Neighbor is a row and the cosine of its vector to that of the query.
type Neighbor struct {
	Row    uint64
	Cosine float32
}

// loadVSS loads DuckDB's extension for approximate search from a local file. It rejects a path that is not absolute and
// anything but a regular file (symbolic links are followed). Nothing is downloaded or installed.
func loadVSS(ctx context.Context, db *sql.DB, file string) error {
	if !filepath.IsAbs(file) {
		return fmt.Errorf("loading the vss extension: %s is not an absolute path", file)
	}
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("loading the vss extension: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("loading the vss extension: %s is not a regular file", file)
	}
	if _, err := db.ExecContext(ctx, "LOAD "+quoteSQL(file)); err != nil {
		return fmt.Errorf("loading the vss extension from %s: %w; it must be built for this version of DuckDB and "+
			"this machine", file, &duckError{err})
	}
	return nil
}

// NewApproximate returns an empty index for vectors of dims dimensions. It fails with the error of loading the
// extension ([ErrNoVSS] if none is configured), and with [ErrVector] for dims outside 1 to 65536. A store has one
// index: the one created before is emptied and must not be used any more.
func (s *Store) NewApproximate(ctx context.Context, dims int) (ApproximateIndex, error) {
	if s.vssErr != nil {
		return nil, s.vssErr
	}
	return newHNSW(ctx, s.db, dims, true)
}

// hnsw is a table of vectors in memory with DuckDB's HNSW index.
type hnsw struct {
	db   *sql.DB
	dims int
	mu   sync.Mutex // serializes writes
}

// approximateCatalog is the name of the in-memory database.
const approximateCatalog = "near"

// newHNSW creates the table, and the index over it if index is true. Without index every vector is compared, which
// tests use where there is no extension. It replaces the table of an earlier call, and rejects dims outside 1 to
// maxDims with [ErrVector].
func newHNSW(ctx context.Context, db *sql.DB, dims int, index bool) (*hnsw, error) {
	if dims <= 0 || dims > maxDims {
		return nil, fmt.Errorf("%w: %d dimensions", ErrVector, dims)
	}
	statements := []string{
		"ATTACH IF NOT EXISTS ':memory:' AS " + approximateCatalog,
		fmt.Sprintf("CREATE OR REPLACE TABLE %s.vectors (row BIGINT NOT NULL, v FLOAT[%d] NOT NULL)",
			approximateCatalog, dims),
	}
	if index {
		statements = append(statements, fmt.Sprintf("CREATE INDEX vectors_near ON %s.vectors USING HNSW (v) WITH "+
			"(metric = 'cosine')", approximateCatalog))
	}
	for _, q := range statements {
		if _, err := db.ExecContext(ctx, q); err != nil {
			return nil, fmt.Errorf("creating the approximate index: %w", explainError(err))
		}
	}
	return &hnsw{db: db, dims: dims}, nil
}

// Put implements [ApproximateIndex]. It rejects a length of vectors other than len(rows)*dims ([ErrDims]) and zero, NaN
// and infinite vectors ([ErrVector]) before it writes anything. rows must not repeat. If the insert fails, the former
// vectors of rows are gone: they are deleted in a transaction of their own.
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
	// in a transaction of its own: the index fails on a delete and an insert in one
	if err := h.remove(ctx, rows); err != nil {
		return err
	}
	tx, err := h.db.BeginTx(ctx, nil)
	if err != nil {
		return explainError(err)
	}
	for i, r := range rows {
		q := fmt.Sprintf("INSERT INTO %s.vectors VALUES (?, ?::FLOAT[%d])", approximateCatalog, h.dims)
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

// remove deletes the vectors of rows; rows that are not in the index are ignored. The caller must hold mu.
func (h *hnsw) remove(ctx context.Context, rows []uint64) error {
	for chunk := range slices.Chunk(rows, maxListed) {
		numbers := make([]int64, len(chunk))
		for i, r := range chunk {
			numbers[i] = int64(r)
		}
		in, named := inList(numbers)
		if _, err := h.db.ExecContext(ctx, "DELETE FROM "+approximateCatalog+".vectors WHERE row IN "+in,
			named...); err != nil {
			return explainError(err)
		}
	}
	return nil
}

// Nearest implements [ApproximateIndex]. It rejects a query of other dimensions ([ErrDims]) and a zero, NaN or infinite
// one ([ErrVector]). With k of 0 or less it returns none.
func (h *hnsw) Nearest(ctx context.Context, q []float32, k int) (near []Neighbor, err error) {
	if len(q) != h.dims {
		return nil, fmt.Errorf("%w: got %d, not %d", ErrDims, len(q), h.dims)
	}
	if _, err := packVector(q); err != nil {
		return nil, err
	}
	if k <= 0 {
		return nil, nil
	}
	rows, err := h.db.QueryContext(ctx,
		fmt.Sprintf("SELECT row, array_cosine_distance(v, ?::FLOAT[%d]) AS d FROM %s.vectors ORDER BY d LIMIT %d",
			h.dims, approximateCatalog, k), q)
	err = scanRows(rows, err, func(r *sql.Rows) error {
		var row int64
		var d float32
		err := r.Scan(&row, &d)
		near = append(near, Neighbor{Row: uint64(row), Cosine: 1 - d})
		return err
	})
	return near, err
}
