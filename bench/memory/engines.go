package main

// engineOrder is the order of the engines in a table. cosine is the reference of the peers, so it is measured before
// them.
var engineOrder = []string{"hybrid", "cosine", "chromem", "sqlite", "sqlite-words", "duckdb", "duckdb-tuned"}

// engines are the engines by their names in flags. reference is the engine whose exhaustive search an engine is
// compared with, "" for one with another score.
var engines = map[string]struct {
	title, reference string
	open             func(job) (engine, error)
}{
	"hybrid":       {"ours", "hybrid", func(j job) (engine, error) { return &ours{dir: j.Dir, words: true}, nil }},
	"cosine":       {"ours, cosine alone", "cosine", func(j job) (engine, error) { return &ours{dir: j.Dir}, nil }},
	"chromem":      {"chromem-go", "cosine", openChromem},
	"sqlite":       {"sqlite-vec", "cosine", func(job) (engine, error) { return openSQLite(false) }},
	"sqlite-words": {"sqlite-vec and FTS5", "", func(job) (engine, error) { return openSQLite(true) }},
	"duckdb":       {"DuckDB, defaults", "cosine", func(j job) (engine, error) { return openDuckDB(j, false) }},
	"duckdb-tuned": {"DuckDB, tuned", "cosine", func(j job) (engine, error) { return openDuckDB(j, true) }},
}

// nearest is how many vectors a peer is asked for: an entry has up to three, and the best top entries are wanted.
const nearest = len(sorts) * top

// distinct returns the first top entries of a list in which an entry can be several times.
func distinct(rows []int) []int {
	out := make([]int, 0, top)
	seen := map[int]bool{}
	for _, row := range rows {
		if !seen[row] && len(out) < top {
			out = append(out, row)
		}
		seen[row] = true
	}
	return out
}
