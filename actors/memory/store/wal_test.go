//go:build cgo

package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"conclave/pkg/datatest"
)

// crashed is a memory as a crash leaves it: the file, its log, and how long the log was after each write was
// acknowledged.
func crashed(t *testing.T, writes int) (file, log []byte, lengths []int) {
	t.Helper()
	s := newStore(t)
	for i := range writes {
		putEntries(t, s, newFact(fmt.Sprintf("e%d", i)), newEngram(fmt.Sprintf("g%d", i), fmt.Sprintf("q%d", i), "gen"))
		info, err := os.Stat(s.path + walSuffix)
		if err != nil {
			t.Fatal(err)
		}
		lengths = append(lengths, int(info.Size()))
	}
	var err error
	if file, err = os.ReadFile(s.path); err != nil {
		t.Fatal(err)
	}
	if log, err = os.ReadFile(s.path + walSuffix); err != nil {
		t.Fatal(err)
	}
	return file, log, lengths
}

// Reading the files of an open memory gives up its lock, which nobody else wants here.

func TestTruncatedLog(t *testing.T) {
	t.Parallel()
	file, log, lengths := crashed(t, 8)
	dir := datatest.Dir(t)
	cuts := []int{0, 1, len(log) - 1, len(log), lengths[3] - 1, lengths[3], lengths[3] + 1}
	for range 9 {
		cuts = append(cuts, rand.IntN(len(log)))
	}
	for i, cut := range cuts {
		path := filepath.Join(dir, fmt.Sprint(i), "memory.duckdb")
		leave(t, path, file, log[:cut])
		s, err := Open(t.Context(), path, Options{})
		if err != nil {
			t.Errorf("cut at %d of %d: %v", cut, len(log), err)
			continue
		}
		if err := s.Verify(t.Context()); err != nil {
			t.Errorf("cut at %d: %v", cut, err)
		}
		whole := 0
		for _, l := range lengths {
			if l <= cut {
				whole++
			}
		}
		if n := queryCount(t, s, "SELECT count(*) FROM entries"); n != 2*whole {
			t.Errorf("cut at %d: %d entries, want %d of each transaction up to the cut", cut, n, 2*whole)
		}
		putEntries(t, s, newFact("after")) // and it goes on
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// leave writes a file and its log.
func leave(t *testing.T, path string, file, log []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{path: file, path + walSuffix: log} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLogWithZeroTail(t *testing.T) {
	t.Parallel()
	file, log, lengths := crashed(t, 4)
	for i, at := range []int{len(log), lengths[2], lengths[0]} {
		path := filepath.Join(datatest.Dir(t), "memory.duckdb")
		leave(t, path, file, append(bytes.Clone(log[:at]), make([]byte, 5000)...))
		s := openStore(t, path)
		if n, want := queryCount(t, s, "SELECT count(*) FROM entries"), 2*[]int{4, 3, 1}[i]; n != want {
			t.Errorf("%d entries, want %d", n, want)
		}
	}
}

func TestDamagedLog(t *testing.T) {
	t.Parallel()
	file, log, lengths := crashed(t, 6)
	for _, c := range []struct {
		name   string
		damage func([]byte)
	}{
		{"a byte in the middle", func(b []byte) { b[(lengths[2]+lengths[3])/2] ^= 0x10 }},
		{"zeros in the middle", func(b []byte) { clear(b[lengths[1]:lengths[2]]) }},
		{"zeros and one byte at the end", func(b []byte) { clear(b[lengths[4] : len(b)-1]) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(datatest.Dir(t), "memory.duckdb")
			bad := bytes.Clone(log)
			c.damage(bad)
			leave(t, path, file, bad)
			_, err := Open(t.Context(), path, Options{})
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path+walSuffix) {
				t.Errorf("got %v", err)
			}
			for name, data := range map[string][]byte{path: file, path + walSuffix: bad} {
				if after, err := os.ReadFile(name); err != nil || !bytes.Equal(after, data) {
					t.Errorf("%s was changed, %v", name, err)
				}
			}
			// What the error says: without the log it opens as it was when the log began.
			if err := os.Rename(path+walSuffix, path+".kept"); err != nil {
				t.Fatal(err)
			}
			s := openStore(t, path)
			if n := queryCount(t, s, "SELECT count(*) FROM entries"); n != 0 {
				t.Errorf("%d entries", n)
			}
		})
	}
}

// TestDamagedBlock: a damaged block of the file is found when it is read, at the latest by Verify.
func TestDamagedBlock(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	items := make([]Item, 300)
	for i := range items {
		items[i] = Item{Entry: newFact(fmt.Sprintf("e%d", i)), Vectors: randomVectors("m", 256, uint64(i))}
	}
	if _, err := s.Put(t.Context(), items...); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(whole, items[150].packed(t))
	if at < 0 {
		t.Fatal("the vector is not in the file")
	}
	whole[at+10] ^= 1
	if err := os.WriteFile(s.path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err = Open(t.Context(), s.path, Options{})
	if err == nil {
		err = errors.Join(s.Verify(t.Context()), s.Close(t.Context()))
	}
	if !errors.Is(err, ErrDamaged) {
		t.Errorf("got %v", err)
	}
}

func (i Item) packed(t *testing.T) []byte {
	t.Helper()
	p, err := i.Vectors.pack()
	if err != nil {
		t.Fatal(err)
	}
	return p.corpus
}
