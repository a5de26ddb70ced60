//go:build cgo

package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"conclave/pkg/datatest"
)

// TestLostWritesAreFound damages the files that a crash leaves. A memory that opens has every write, or says that some
// are lost; it is never replaced by an empty one.
func TestLostWritesAreFound(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for i := range 4 {
		putEntries(t, s, newFact(fmt.Sprintf("e%d", i)))
	}
	var files [3][]byte
	for i, suffix := range []string{"", walSuffix, countSuffix} {
		var err error
		if files[i], err = os.ReadFile(s.path + suffix); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name   string
		damage func(path string) error
		lost   string // "" = none
		broken bool
	}{
		{"nothing", func(string) error { return nil }, "", false},
		{"the log is gone", func(path string) error {
			return os.Remove(path + walSuffix)
		}, "has lost the last 4 of its 5 writes", false},
		{"the log is cut off", func(path string) error {
			return os.Truncate(path+walSuffix, int64(len(files[1])*3/4))
		}, "has lost the last 2 of its 5 writes", false},
		{"the database is gone", func(path string) error {
			return errors.Join(os.Remove(path), os.Remove(path+walSuffix))
		}, "", true},
		{"the count is gone, as in data of an older build", func(path string) error {
			return os.Remove(path + countSuffix)
		}, "", false},
		{"the count is damaged", func(path string) error {
			return os.WriteFile(path+countSuffix, []byte("5"), 0o600)
		}, "cannot be read", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(datatest.Dir(t), "memory", "memory.duckdb")
			leave(t, path, files[0], files[1])
			if err := errors.Join(os.WriteFile(path+countSuffix, files[2], 0o600), tt.damage(path)); err != nil {
				t.Fatal(err)
			}
			s, err := Open(t.Context(), path, Options{})
			if tt.broken {
				if !errors.Is(err, ErrDamaged) {
					t.Errorf("opened: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Lost(); (got == "") != (tt.lost == "") || !strings.Contains(got, tt.lost) {
				t.Errorf("lost %q, want %q", got, tt.lost)
			}
			putEntries(t, s, newFact("later"))
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s, err = Open(t.Context(), path, Options{}); err != nil {
				t.Fatal(err)
			}
			if s.Lost() != "" {
				t.Errorf("reported again: %s", s.Lost())
			}
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestFlippedBytesAreFound flips bytes of a closed memory: it has every entry, or does not open.
func TestFlippedBytesAreFound(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const entries = 40
	for i := range entries {
		putEntries(t, s, newFact(fmt.Sprintf("e%d", i)))
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	intact, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(29, 2))
	found := 0
	for i := range 20 {
		damaged := append([]byte(nil), intact...)
		damaged[rng.IntN(len(damaged))] ^= 1 << rng.IntN(8)
		path := filepath.Join(datatest.Dir(t), fmt.Sprint(i), "memory.duckdb")
		leave(t, path, damaged, nil)
		s, err := Open(t.Context(), path, Options{})
		if err != nil {
			found++
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("not ErrDamaged: %v", err)
			}
			continue
		}
		if st, err := s.Stats(t.Context()); err != nil || st.Entries != entries {
			t.Errorf("%d of %d entries, %v", st.Entries, entries, err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if found == 0 {
		t.Error("no flipped byte was found")
	}
	t.Logf("%d of 20 flipped bytes damaged the memory", found)
}
