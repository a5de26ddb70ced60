//go:build !cgo

package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestWithoutDuckDB(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "memory")
	if _, err := Open(t.Context(), filepath.Join(dir, "memory.duckdb"), Options{}); !errors.Is(err, ErrNoDuckDB) {
		t.Errorf("got %v", err)
	}

	if _, err := os.Stat(dir); err == nil {
		t.Error("a folder was created without DuckDB")
	}
}
