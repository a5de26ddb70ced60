//go:build cgo

package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestVSSUnavailable(t *testing.T) {
	dir, home := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home) // where DuckDB would install
	text := filepath.Join(dir, "vss.duckdb_extension")
	if err := os.WriteFile(text, []byte(strings.Repeat("this is no extension ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, file, want string }{
		{"nothing named", "", ErrNoVSS.Error()},
		{"no such file", filepath.Join(dir, "missing"), "no such file"},
		{"a folder", dir, "is not a regular file"},
		{"a name and no path", "vss", "not an absolute path"},
		{"a file that is no extension", text, "loading the vss extension from " + text},
		{"a quote in the name", filepath.Join(dir, "a'; DROP TABLE entries; --"), "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := Open(t.Context(), filepath.Join(t.TempDir(), "memory.duckdb"), Options{VSS: c.file})
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.NewApproximate(t.Context(), 4)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if named := s.ErrVSS(); (named != nil) != (c.file != "") {
				t.Errorf("what the user is told: %v", named)
			}
			putEntries(t, s, newFact("a")) // and everything else works
			if left := files(t, home); len(left) != 0 {
				t.Errorf("something was installed: %v", left)
			}
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestApproximateWithoutIndex: the same statements without the HNSW index, whose extension is not available everywhere,
// are exact.
func TestApproximateWithoutIndex(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if _, err := newHNSW(t.Context(), s.db, 4, true); err == nil || !strings.Contains(err.Error(), "HNSW") {
		t.Errorf("an index without the extension: %v", err)
	}
	var a ApproximateIndex
	a, err := newHNSW(t.Context(), s.db, 2, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Put(t.Context(), []uint64{1, 2, 3}, []float32{1, 0, 0, 1, -1, 0}); err != nil {
		t.Fatal(err)
	}
	if err := a.Put(t.Context(), []uint64{2}, []float32{2, 2}); err != nil { // in place of the other
		t.Fatal(err)
	}
	near := func(k int) string {
		t.Helper()
		all, err := a.Nearest(t.Context(), []float32{3, 0}, k)
		if err != nil {
			t.Fatal(err)
		}
		out := ""
		for _, n := range all {
			out += fmt.Sprintf("%d:%.2f ", n.Row, n.Cosine)
		}
		return strings.TrimSpace(out)
	}
	if got := near(5); got != "1:1.00 2:0.71 3:-1.00" {
		t.Errorf("got %s", got)
	}
	if err := a.Remove(t.Context(), 1, 99); err != nil {
		t.Fatal(err)
	}
	if got := near(1); got != "2:0.71" {
		t.Errorf("got %s", got)
	}
	if err := a.Put(t.Context(), []uint64{4}, []float32{1}); !errors.Is(err, ErrDims) {
		t.Error(err)
	}
	if err := a.Put(t.Context(), []uint64{4}, []float32{0, 0}); !errors.Is(err, ErrVector) {
		t.Error(err)
	}
	if _, err := a.Nearest(t.Context(), []float32{1}, 1); !errors.Is(err, ErrDims) {
		t.Error(err)
	}
	// Nothing of it is in the file.
	putEntries(t, s, newFact("a"))
	s = reopenStore(t, s)
	if n := queryCount(t, s, "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'names'"); n != 0 {
		t.Error("the index is in the file")
	}
}
