//go:build cgo

package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
)

// The size of the memory whose footprint is measured, and the limit, in MB: of a process that has loaded the entries as
// the index does, without an index.
const (
	footprintDims    = 384
	footprintEntries = 100_000
	maxFootprint     = 220
)

// TestChaosFootprint fills a memory with notes and answers, whose only vector is that of the corpus, and measures what
// another process holds after it has loaded them, read some and written some. CONCLAVE_CHAOS=1 does so with 100,000
// entries.
func TestChaosFootprint(t *testing.T) {
	entries := 5000
	if os.Getenv("CONCLAVE_CHAOS") != "" {
		entries = footprintEntries
	}
	path := os.Getenv("CONCLAVE_FOOTPRINT_FILE") // an existing one is measured without filling it
	if path == "" {
		path = filepath.Join(t.TempDir(), "memory.duckdb")
	}
	if _, err := os.Stat(path); err != nil {
		fillFootprint(t, path, entries)
	}
	o := startChild(t, "footprint", path)
	for o.lines.Scan() {
		t.Log(o.lines.Text())
		name, mb, ok := strings.Cut(o.lines.Text(), ": resident ")
		n, err := strconv.Atoi(strings.Split(mb, " ")[0])
		if ok && (err != nil || n > maxFootprint) {
			t.Errorf("%s: %d MB resident, at most %d", name, n, maxFootprint)
		}
	}
	if err := o.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// fillFootprint writes a memory of so many notes.
func fillFootprint(t *testing.T, path string, entries int) {
	t.Helper()
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	items := make([]Item, 0, 1000)
	for i := range entries {
		words := make([]string, 30)
		for j := range words {
			words[j] = "word" + strconv.Itoa(r.IntN(20_000))
		}
		id := fmt.Sprintf("%024x", r.Uint64())
		e := newFact(id)
		if i%2 == 0 {
			e = newEngram(id, "query-"+id, "generator")
		}
		e.Name, e.Description, e.Corpus = strings.Join(words[:8], " "), strings.Join(words[:20], " "),
			strings.Join(words, " ")
		e.Conversation, e.Position, e.Speaker, e.Happened = fmt.Sprint("chat ", i/50), i%50+1, "Ana", testTime
		v := make([]float32, footprintDims)
		for j := range v {
			v[j] = r.Float32() - 0.5
		}
		if items = append(items, Item{Entry: e, Vectors: &Vectors{Model: "m", Corpus: v}}); len(items) == cap(items) ||
			i == entries-1 {
			if _, err := s.Put(t.Context(), items...); err != nil {
				t.Fatal(err)
			}
			items = items[:0]
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// measureFootprint is the child process of [TestChaosFootprint].
func measureFootprint(path string) error {
	ctx := context.Background()
	s, err := Open(ctx, path, Options{MemoryLimit: os.Getenv("CONCLAVE_FOOTPRINT_LIMIT")})
	if err != nil {
		return err
	}
	if err := s.printFootprint(ctx, "opened"); err != nil {
		return err
	}
	var ids []string
	if err := s.Load(ctx, "m", func(l IndexEntry) error { ids = append(ids, l.ID); return nil }); err != nil {
		return err
	}
	if err := s.printFootprint(ctx, "loaded"); err != nil {
		return err
	}
	for i := range 200 {
		if _, err := s.Get(ctx, ids[(i*7919)%len(ids)]); err != nil {
			return err
		}
		if _,
			err := s.Put(ctx, Item{
			Entry:   newFact(fmt.Sprintf("new%d-%d", os.Getpid(), i)),
			Vectors: randomVectors("m", footprintDims, uint64(i)),
		}); err != nil {
			return err
		}
	}
	if _, _, err := s.List(ctx, Filter{Text: "word7 word8", Limit: 5}); err != nil {
		return err
	}
	if err := s.printFootprint(ctx, "used"); err != nil {
		return err
	}
	return s.Close(ctx)
}

// printFootprint tells the parent what this process holds, and of it DuckDB's buffers and Go's memory.
func (s *Store) printFootprint(ctx context.Context, when string) error {
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	_, line, _ := strings.Cut(string(status), "VmRSS:")
	kb, err := strconv.Atoi(strings.Fields(line)[0])
	if err != nil {
		return err
	}
	var buffers int64
	if err := s.db.QueryRowContext(ctx, "SELECT sum(memory_usage_bytes)::BIGINT FROM duckdb_memory()").
		Scan(&buffers); err != nil {
		return err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	printLine(fmt.Sprintf("%s: resident %d MB, of it buffers of DuckDB %d MB and Go %d MB", when, kb>>10, buffers>>20,
		(m.Sys-m.HeapReleased)>>20))
	return nil
}

// TestMemoryLimitFollowsTheFile: the default limit grows with the file, and a limit that is set is used.
func TestMemoryLimitFollowsTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "memory.duckdb")
	for size, want := range map[int64]string{
		0: "67108864B", 8 << 20: "68157440B", 1 << 30: "335544320B",
		1 << 40: "2147483648B",
	} {
		if got := memoryLimit(size); got != want {
			t.Errorf("limit for %d bytes is %s, want %s", size, got, want)
		}
	}
	for _, tt := range []struct {
		size int
		set  string
		want string
	}{{0, "", "67108864B"}, {8 << 20, "", "68157440B"}, {8 << 20, "1GB", "1GB"}} {
		if err := os.WriteFile(path, make([]byte, tt.size), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := (Options{MemoryLimit: tt.set}).withDefaults(path).MemoryLimit; got != tt.want {
			t.Errorf("limit of %d bytes is %s, want %s", tt.size, got, tt.want)
		}
	}
}
