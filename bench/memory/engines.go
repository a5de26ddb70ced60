package main

import (
	"fmt"
	"strings"
	"time"

	"conclave/pkg/vector"
)

// flatOrder is the order of the contenders in a table.
var flatOrder = []string{"ours", "exact", "chromem", "hnsw", "duckdb", "tuned", "sqlite-vec", "stream"}

// titles are their names for people.
var titles = map[string]string{
	"ours":       "ours",
	"exact":      "ours, prefilter off",
	"words":      "ours, with words",
	"chromem":    "chromem-go",
	"hnsw":       "coder/hnsw",
	"duckdb":     "DuckDB SQL, defaults",
	"tuned":      "DuckDB SQL, tuned",
	"sqlite-vec": "sqlite-vec",
	"stream":     "one read of the f32 bytes, one thread",
}

// flatEngines open the contenders of the search for the nearest.
var flatEngines = map[string]func(job) (engine, error){
	"ours":       func(job) (engine, error) { return openIndex(vector.Auto) },
	"exact":      func(job) (engine, error) { return openIndex(vector.Off) },
	"chromem":    func(j job) (engine, error) { return openChrome(j, false) },
	"hnsw":       func(j job) (engine, error) { return openGraph(j) },
	"duckdb":     func(j job) (engine, error) { return openDuck(j, false, false) },
	"tuned":      func(j job) (engine, error) { return openDuck(j, true, false) },
	"sqlite-vec": openLite,
	"stream":     func(job) (engine, error) { return &stream{}, nil },
}

// prefilterFrom is the number of rows above which the index may look at bits first.
const prefilterFrom = 300_000

// flatAt are the contenders at a size: building the graph takes too long above 100,000 rows, and without a prefilter ours
// is the same thing twice.
func (s settings) flatAt(n int) []string {
	var out []string
	for _, e := range s.engines {
		if e == "hnsw" && n > sideBySide || e == "exact" && n <= prefilterFrom {
			continue
		}
		out = append(out, e)
	}
	return out
}

// index is ours: pkg/vector.
type index struct {
	x       *vector.Index
	decides bool // it may use a prefilter
}

func openIndex(p vector.Prefilter) (*index, error) {
	x, err := vector.New(vector.Options{Dims: dims, Prefilter: p})
	return &index{x, p == vector.Auto}, err
}

func (x *index) load(w *world) (time.Duration, error) {
	var spent watch
	keys := make([]uint64, chunk)
	err := w.stream(w.name, func(first int, vectors []float32) error {
		for i := range keys {
			keys[i] = uint64(first + i)
		}
		return spent.run(func() error { return x.x.Add(keys[:len(vectors)/dims], vectors) })
	})
	if err == nil && x.decides {
		err = settle(w, x.x.Path, func(q []float32) error {
			_, err := x.x.Nearest(q, names, nil)
			return err
		})
	}
	return time.Duration(spent), err
}

// prefiltered says of the path of a search whether it looks at bits first.
func prefiltered(path string) bool { return strings.Contains(path, "1-bit prefilter (") }

// settle asks until a large index has made up its mind about its prefilter: it is built in the background and then tried
// on queries. They are others than those that count.
func settle(w *world, path func() string, ask func(q []float32) error) error {
	const others = 1 << 30
	began := time.Now()
	for j := others; w.n > prefilterFrom && !prefiltered(path()) && !strings.Contains(path(), "switched off"); j++ {
		if time.Since(began) > 2*time.Minute {
			return fmt.Errorf("the index has not decided on its prefilter in two minutes: %s", path())
		}
		if err := ask(w.query(j)); err != nil {
			return err
		}
	}
	return nil
}

func (x *index) ask(_ int, q []float32) ([]int, error) {
	hits, err := x.x.Nearest(q, names, nil)
	out := make([]int, len(hits))
	for i, h := range hits {
		out[i] = int(h.Key)
	}
	return out, err
}

func (x *index) about() string { return x.x.Path() }
func (x *index) close() error  { return x.x.Close() }
