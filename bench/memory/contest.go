package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// figure is what one contender did.
type figure struct {
	Engine   string  `json:"engine"`
	Asked    int     `json:"asked"` // queries that count
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	Recall   float64 `json:"recall"`         // share of the exact rows that it found
	Same     float64 `json:"same"`           // share of the queries with the same rows as exact
	Ordered  float64 `json:"ordered"`        // the same, in the same order
	Rate     float64 `json:"rows_per_sec"`   // taken in
	Resident int64   `json:"resident_bytes"` // of the process, after the last query
	Peak     int64   `json:"peak_bytes"`
	About    string  `json:"about,omitempty"`
	// Prefilter says that ours looked at bits first.
	Prefilter bool `json:"prefilter,omitempty"`
}

// contest has contenders answer the same queries.
type contest struct {
	part    string
	engines []string
	rows    int
	asks    int
	seed    uint64
	scratch string            // a folder for theirs
	dirs    map[string]string // folders that are there already
	budget  time.Duration     // for each contender; a slow one is asked less often
}

// block is how many queries a contender answers in a turn: short enough to interleave, long enough for it to wake up.
const block = 10

// leastAsks is how many queries a slow contender is asked all the same.
const leastAsks = 20

// running is a contender in a contest.
type running struct {
	*child
	figure
	took  []time.Duration
	found [][]int
	count int // how many queries it will be asked
}

// run loads the contenders one after the other, asks them in turns, and compares with want, which is one answer for
// each query. Contenders that cannot stand side by side in memory are given to it one at a time.
func (c contest) run(want []answer) (_ []figure, err error) {
	var all []*running
	defer func() {
		for _, r := range all {
			if stop := r.stop(); stop != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", r.Engine, stop))
			}
		}
	}()
	for _, name := range c.engines {
		say("%s, %s rows: loading %s", c.part, short(c.rows), name)
		dir := c.dirs[name]
		if dir == "" {
			if dir, err = os.MkdirTemp(c.scratch, "engine-"); err != nil {
				return nil, err
			}
			defer os.RemoveAll(dir)
		}
		began := time.Now()
		r := &running{figure: figure{Engine: name}}
		if r.child, err = start(job{Part: c.part, Engine: name, Rows: c.rows, Seed: c.seed, Asks: c.asks, Dir: dir}); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, r)
		l, err := hear[loaded](r.child)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		r.Rate = float64(c.rows) / l.Took.Seconds()
		if err := c.warm(r); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		say("%s, %s rows: %s loaded in %.1f s, will be asked %d times", c.part, short(c.rows), name, time.Since(began).Seconds(), r.count)
	}
	rounds := (c.asks + block - 1) / block
	for round := range rounds {
		for _, r := range all {
			t := turn{round * r.count / rounds, (round + 1) * r.count / rounds}
			if t.First == t.End {
				continue
			}
			got, err := r.ask(t)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.Engine, err)
			}
			r.took, r.found = append(r.took, got.Took...), append(r.found, got.Found...)
		}
	}
	var out []figure
	for _, r := range all {
		if err := r.finish(want); err != nil {
			return nil, fmt.Errorf("%s: %w", r.Engine, err)
		}
		out = append(out, r.figure)
	}
	return out, nil
}

// warm asks some queries that do not count, so that caches are filled and our index has measured itself, and finds out how
// many queries the contender's time is good for.
func (c contest) warm(r *running) error {
	var took []time.Duration
	began := time.Now()
	for i := 0; i < min(64, c.asks) && (i < 2 || time.Since(began) < c.budget/20); i++ {
		got, err := r.ask(turn{i, i + 1})
		if err != nil {
			return err
		}
		took = append(took, got.Took...)
	}
	slices.Sort(took)
	r.count = min(c.asks, max(leastAsks, int(c.budget/max(1, took[len(took)/2]))))
	return nil
}

// finish reads the contender's memory and works out its figures.
func (r *running) finish(want []answer) error {
	if err := r.tell(turn{}); err != nil {
		return err
	}
	l, err := hear[left](r.child)
	if err != nil {
		return err
	}
	r.Resident, r.Peak, r.About, r.Asked = l.Resident, l.Peak, l.About, len(r.took)
	r.Prefilter = prefiltered(r.About)
	slices.Sort(r.took)
	r.P50, r.P99 = millis(r.took, 0.50), millis(r.took, 0.99)
	same, ordered, hits, wanted := 0, 0, 0, 0
	for j, found := range r.found {
		n, all, inOrder := want[j].judge(found)
		hits, wanted = hits+n, wanted+want[j].k
		if all {
			same++
		}
		if inOrder {
			ordered++
		}
	}
	asked := float64(len(r.found))
	r.Same, r.Ordered, r.Recall = float64(same)/asked, float64(ordered)/asked, float64(hits)/float64(wanted)
	return nil
}

func millis(sorted []time.Duration, q float64) float64 {
	return float64(sorted[int(q*float64(len(sorted)-1)+0.5)].Nanoseconds()) / 1e6
}

// scratchFolder makes the folder for everything that a run writes.
func scratchFolder(in string) (string, func(), error) {
	dir, err := os.MkdirTemp(in, "conclave-bench-")
	if err != nil {
		return "", nil, err
	}
	dir, err = filepath.Abs(dir)
	return dir, func() { _ = os.RemoveAll(dir) }, err
}
