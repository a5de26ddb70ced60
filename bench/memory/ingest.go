package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"conclave/actors/memory/recall"
	"conclave/actors/memory/store"
	"conclave/subjects"
)

// pace is the time between the starts of two recalls, the same while engrams are written and while none are.
const pace = 25 * time.Millisecond

// writers is how many answers are remembered at once. Each waits until its engram is stored before it hands in the next,
// so the store is given what has come meanwhile, and never a batch made for the benchmark.
const writers = 32

// spell is a number of recalls.
type spell struct {
	Recalls int     `json:"recalls"`
	P50     float64 `json:"p50_ms"`
	P99     float64 `json:"p99_ms"`
}

// ingested is what writing did to recalling.
type ingested struct {
	Rows  int     `json:"rows"`
	Idle  spell   `json:"idle"`
	Kinds []wrote `json:"kinds"`
}

// wrote is one way of writing.
type wrote struct {
	Kind   string  `json:"kind"`
	Count  int     `json:"count"`
	Rate   float64 `json:"per_second"`       // with recalls beside it
	Alone  float64 `json:"alone_per_second"` // without
	During spell   `json:"during"`
}

// The ways of writing.
const (
	readBack = "stored, read back, indexed" // as memory does it: the index gets what the store says
	handedOn = "stored, indexed"            // the index gets what the store got: what both can do
)

// ingest is the child that writes and recalls. Some engrams are written alone for the rate, then all of them with recalls
// beside. Idle recalls come before and after, because there are more rows after than before.
func ingest(j job, w *world) (_ ingested, err error) {
	ctx := context.Background()
	o := &ours{dir: j.Dir}
	defer func() { err = errors.Join(err, o.close()) }()
	if _, err := o.load(w); err != nil {
		return ingested{}, err
	}
	queries := w.queries(max(j.Asks, 50))
	out := ingested{Rows: j.Rows}
	idle, err := o.recalls(queries, func(n int) bool { return n < len(queries) })
	if err != nil {
		return out, err
	}
	next := w.n
	for _, kind := range []string{readBack, handedOn} {
		one, err := o.writeBeside(ctx, kind, next, j, queries)
		if err != nil {
			return out, err
		}
		next += 2 * j.Count
		out.Kinds = append(out.Kinds, one)
	}
	after, err := o.recalls(queries, func(n int) bool { return n < len(queries) })
	out.Idle = spellOf(append(idle, after...))
	return out, err
}

// writeBeside writes in one way, first alone and then with recalls beside it.
func (o *ours) writeBeside(ctx context.Context, kind string, first int, j job, queries [][]float32) (wrote, error) {
	out := wrote{Kind: kind, Count: j.Count}
	some := (j.Count + 3) / 4
	took, err := o.write(ctx, kind, first, some, j.Rate)
	if err != nil {
		return out, err
	}
	out.Alone = float64(some) / took.Seconds()
	var writing atomic.Bool
	writing.Store(true)
	var wg sync.WaitGroup
	var during []time.Duration
	var recalling error
	wg.Go(func() {
		during, recalling = o.recalls(queries, func(int) bool { return writing.Load() })
	})
	took, err = o.write(ctx, kind, first+some, j.Count, j.Rate)
	writing.Store(false)
	wg.Wait()
	out.Rate, out.During = float64(j.Count)/took.Seconds(), spellOf(during)
	return out, errors.Join(err, recalling)
}

// recalls makes one recall after the other, each at its time, while more says so.
func (o *ours) recalls(queries [][]float32, more func(n int) bool) ([]time.Duration, error) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	var took []time.Duration
	for n := 0; more(n); n++ {
		<-tick.C
		began := time.Now()
		if _, err := o.find(recall.Query{Vector: queries[n%len(queries)]}); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}

func spellOf(took []time.Duration) spell {
	if len(took) == 0 {
		return spell{}
	}
	slices.Sort(took)
	return spell{len(took), millis(took, 0.50), millis(took, 0.99)}
}

// write stores count engrams from number first on, as fast as it goes or at a rate per second.
func (o *ours) write(ctx context.Context, kind string, first, count, rate int) (time.Duration, error) {
	items := make([]store.Item, count) // made before: a model would have made them elsewhere
	for i := range items {
		items[i] = o.w.item(first + i)
	}
	var next atomic.Int64
	errs := make([]error, writers)
	var wg sync.WaitGroup
	began := time.Now()
	for t := range writers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= count {
					return
				}
				if rate > 0 {
					time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(rate))))
				}
				if errs[t] = o.remember(ctx, kind, items[i]); errs[t] != nil {
					next.Store(int64(count)) // the others end too
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(began), errors.Join(errs...)
}

// remember is what memory does with an engram: it is stored, and then it can be found.
func (o *ours) remember(ctx context.Context, kind string, it store.Item) error {
	rows, err := o.st.Put(ctx, it)
	if err != nil {
		return err
	}
	if kind == handedOn {
		_, err := o.rc.Put(rowFor(lightOf(rows[0], it.Entry)), recall.Vectors{Corpus: it.Vectors.Corpus, Description: it.Vectors.Description, Name: it.Vectors.Name})
		return err
	}
	o.following.Lock() // one hand at a time, as in the actor
	defer o.following.Unlock()
	lights, err := o.st.IndexEntries(ctx, embedder, it.Entry.ID)
	if err != nil {
		return err
	}
	for _, l := range lights {
		if _, err := o.rc.Put(rowFor(l), recall.Vectors{Corpus: l.CorpusVector, Description: l.DescriptionVector, Name: l.NameVector}); err != nil {
			return err
		}
	}
	return nil
}

// lightOf is what the store would say of an entry that was just written.
func lightOf(row uint64, e subjects.MemoryEntry) store.IndexEntry {
	return store.IndexEntry{
		Row: row, ID: e.ID, Kind: e.Kind, State: e.State, Trust: e.Provenance.Trust, Source: string(e.Provenance.Source), Respondent: e.Respondent,
		Name: e.Name, Description: e.Description, Tags: e.Tags, Created: e.Created,
	}
}
