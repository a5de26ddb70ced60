package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// figure is the outcome of one engine.
type figure struct {
	Engine   string  `json:"engine"`
	Asked    int     `json:"asked"` // queries that were measured
	P50      float64 `json:"p50_ms"`
	P95      float64 `json:"p95_ms"`
	Compared int     `json:"compared"` // queries with a result of exhaustive scoring
	Recall   float64 `json:"recall"`   // share of those entries that were found
	Same     float64 `json:"same"`     // share of those queries with the same entries in the same order
	Rate     float64 `json:"rows_per_sec"`
	Resident int64   `json:"resident_bytes"` // after the last query
	About    string  `json:"about,omitempty"`
}

// comparison has engines answer the same queries.
type comparison struct {
	rows    int
	queries int
	seed    uint64
	budget  time.Duration     // for each engine; a slow one answers fewer queries
	scratch string            // a folder for new ones
	dirs    map[string]string // folders of engines that have one
	// references are the results of exhaustive scoring, by engine.
	references map[string][][]int
}

const (
	block      = 10 // queries that an engine answers before the next engine does
	minQueries = 20 // of a slow engine
	// maxScored is the number of entries that are scored for a reference, divided by that of a query the number of
	// queries.
	maxScored = 20_000_000
)

// running is an engine during a comparison.
type running struct {
	*child
	figure
	took  []time.Duration
	found [][]int
	count int // queries that it will answer
}

// run loads the engines one after the other, has them answer in alternating blocks, and compares their results with the
// references, which it adds to. A reference must be among the names or in a former run.
func (c *comparison) run(ctx context.Context, names ...string) (_ []figure, err error) {
	var all []*running
	defer func() {
		for _, r := range all {
			if stop := r.stop(); stop != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", r.Engine, stop))
			}
		}
	}()
	for _, name := range names {
		dir := c.dirs[name]
		if dir == "" {
			if dir, err = os.MkdirTemp(c.scratch, "engine-"); err != nil {
				return nil, err
			}
			defer os.RemoveAll(dir)
		}
		r := &running{figure: figure{Engine: name}}
		if r.child, err = startChild(ctx, job{
			Engine: name, Rows: c.rows, Seed: c.seed, Queries: c.queries,
			Dir: dir,
		}); err != nil {
			return nil, err
		}
		all = append(all, r)
		if err := c.prepare(r); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	rounds := (c.queries + block - 1) / block
	for round := range rounds {
		for _, r := range all {
			if err := r.search(request{
				First: round * r.count / rounds,
				End:   (round + 1) * r.count / rounds,
			}); err != nil {
				return nil, fmt.Errorf("%s: %w", r.Engine, err)
			}
		}
	}
	var out []figure
	for _, r := range all {
		if err := c.finish(r); err != nil {
			return nil, fmt.Errorf("%s: %w", r.Engine, err)
		}
		out = append(out, r.figure)
	}
	return out, nil
}

// prepare waits until an engine is loaded, asks some queries that are not measured, so that its caches are filled, and
// determines how many it can answer in its time.
func (c *comparison) prepare(r *running) error {
	began := time.Now()
	l, err := receive[loaded](r.child)
	if err != nil {
		return err
	}
	r.Rate = float64(c.rows) / l.Took.Seconds()
	var took []time.Duration
	for i, from := 0, time.Now(); i < min(64, c.queries) && (i < 2 || time.Since(from) < c.budget/20); i++ {
		got, err := call[response](r.child, request{First: i, End: i + 1})
		if err != nil {
			return err
		}
		took = append(took, got.Took...)
	}
	slices.Sort(took)
	r.count = min(c.queries, max(minQueries, int(c.budget/max(1, took[len(took)/2]))))
	logProgress("%s entries: %s loaded in %.1f s, %d queries", short(c.rows), r.Engine, time.Since(began).Seconds(),
		r.count)
	return nil
}

// search has the engine answer queries, none when the request has none.
func (r *running) search(q request) error {
	if q.First == q.End {
		return nil
	}
	got, err := call[response](r.child, q)
	r.took, r.found = append(r.took, got.Took...), append(r.found, got.Found...)
	return err
}

// finish completes the figure of an engine. An engine that is a reference scores every entry then.
func (c *comparison) finish(r *running) error {
	s, err := call[state](r.child, request{})
	if err != nil {
		return err
	}
	r.Resident, r.About, r.Asked = s.Resident, s.Description, len(r.took)
	r.P50, r.P95 = percentile(r.took, 0.50), percentile(r.took, 0.95)
	reference := engines[r.Engine].reference
	if reference == r.Engine {
		got, err := call[response](r.child, request{
			End:        min(c.queries, max(minQueries, maxScored/c.rows)),
			Exhaustive: true,
		})
		if err != nil {
			return err
		}
		c.references[r.Engine] = got.Found
		logProgress("%s entries: %s scores every entry, p50 %s", short(c.rows), r.Engine, ms(percentile(got.Took, 0.5)))
	}
	r.compare(c.references[reference])
	logProgress("%s entries: %s p50 %s, p95 %s, %.0f %% of %d results the same, resident %s", short(c.rows), r.Engine,
		ms(r.P50), ms(r.P95), 100*r.Same, r.Compared, megabytes(r.Resident))
	return nil
}

// compare sets how many of the wanted entries were found.
func (f *running) compare(want [][]int) {
	f.Compared = min(len(want), len(f.found))
	hits, wanted, same := 0, 0, 0
	for j, found := range f.found[:f.Compared] {
		for _, row := range want[j] {
			if slices.Contains(found, row) {
				hits++
			}
		}
		wanted += len(want[j])
		if slices.Equal(found, want[j]) {
			same++
		}
	}
	if wanted > 0 {
		f.Recall, f.Same = float64(hits)/float64(wanted), float64(same)/float64(f.Compared)
	}
}

// percentile returns a percentile in milliseconds, 0 of none.
func percentile(took []time.Duration, p float64) float64 {
	if len(took) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(took))
	return float64(sorted[int(p*float64(len(sorted)-1)+0.5)].Nanoseconds()) / 1e6
}
