package memory

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"conclave/actors/memory/recall"
	"conclave/actors/memory/store"
	"conclave/pkg/audit"
	"conclave/subjects"
)

const (
	footprintEnv  = "CONCLAVE_TEST_FOOTPRINT" // the file that the child process loads
	footprintDims = 384
	maxFootprint  = 450 // MB resident, with 100,000 entries
)

// TestChaosFootprint fills a memory with plain notes, whose only vector is that of the corpus, and measures in another
// process what store and index hold after startup and after searches. CONCLAVE_CHAOS=1 does so with 100,000 entries.
func TestChaosFootprint(t *testing.T) {
	if path := os.Getenv(footprintEnv); path != "" {
		measureFootprint(t, path)
		return
	}
	entries := 2000
	if os.Getenv("CONCLAVE_CHAOS") != "" {
		entries = 100_000
	}
	path := filepath.Join(t.TempDir(), "memory", "memory.duckdb")
	fillFootprint(t, path, entries)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(exe, "-test.run=^TestChaosFootprint$", "-test.v")
	child.Env = append(os.Environ(), footprintEnv+"="+path)
	out, err := child.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// fillFootprint writes a memory of so many notes.
func fillFootprint(t *testing.T, path string, entries int) {
	t.Helper()
	s, err := store.Open(t.Context(), path, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	items := make([]store.Item, 0, 1000)
	for i := range entries {
		words := make([]string, 30)
		for j := range words {
			words[j] = "word" + strconv.Itoa(r.IntN(20_000))
		}
		v := make([]float32, footprintDims)
		for j := range v {
			v[j] = r.Float32() - 0.5
		}
		items = append(items, store.Item{Vectors: &store.Vectors{Model: "m", Corpus: v}, Entry: subjects.MemoryEntry{
			ID: fmt.Sprintf("%024x", r.Uint64()), Kind: subjects.KindFact, State: subjects.MemoryActive,
			Name:        strings.Join(words[:8], " "),
			Description: strings.Join(words[:20], " "), Corpus: strings.Join(words, " "), Created: noon,
			Conversation: fmt.Sprint("chat ", i/50), Position: i%50 + 1, Speaker: "Ana", Happened: noon,
			Provenance: subjects.Provenance{Source: subjects.SourceUser, Trust: subjects.Trusted},
		}})
		if len(items) == cap(items) || i == entries-1 {
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
func measureFootprint(t *testing.T, path string) {
	logFootprint(t, "empty process")
	db, err := store.Open(t.Context(), path, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := audit.LoadHasher(filepath.Join(t.TempDir(), "params.key"))
	if err != nil {
		t.Fatal(err)
	}
	w := &fixture{t: t, auditErrors: map[string]error{}}
	m, err := newMemory(t.Context(), plainConfig(), db, w, h, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(t.Context())
	logFootprint(t, "loaded")
	r := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		v := make([]float32, footprintDims)
		for j := range v {
			v[j] = r.Float32() - 0.5
		}
		found, err := m.searchIndex(recall.Query{Text: fmt.Sprint("word", r.IntN(20_000)), Vector: v})
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range found.Top {
			if _, err := db.Get(t.Context(), h.Entry.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("index: %+v", m.search.index.Stats())
	if mb := logFootprint(t, "searched"); mb > maxFootprint {
		t.Errorf("%d MB resident, at most %d", mb, maxFootprint)
	}
}

// logFootprint logs what this process holds, and returns it in MB.
func logFootprint(t *testing.T, when string) int {
	t.Helper()
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(status), "VmRSS:")
	kb, err := strconv.Atoi(strings.Fields(line)[0])
	if err != nil {
		t.Fatal(err)
	}
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	t.Logf("%s: resident %d MB, of it Go %d MB, heap in use %d MB", when, kb>>10, (s.Sys-s.HeapReleased)>>20,
		s.HeapInuse>>20)
	return kb >> 10
}
