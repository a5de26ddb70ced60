package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"conclave/actors/memory/recall"
	"conclave/actors/memory/store"
	"conclave/subjects"
)

// top is the number of entries that a search returns.
const top = 5

// embedder is the name of the model of the vectors.
const embedder = "synthetic"

// created is when every entry was stored.
var created = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// ours is memory's own search: the index of package recall, filled from the store as at a start, and the store for the
// texts.
type ours struct {
	dir   string
	words bool // the score as shipped; false = the best cosine alone, as the peers compute it
	data  *dataset
	st    *store.Store
	rc    *recall.Recall

	reading []time.Duration // of each search, the time for the texts
}

func (o *ours) load(d *dataset) (time.Duration, error) {
	o.data = d
	began := time.Now()
	if err := o.open(context.Background()); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}

// open opens the store and builds the index from it.
func (o *ours) open(ctx context.Context) (err error) {
	if o.st, err = store.Open(ctx, filepath.Join(o.dir, storeFile), store.Options{}); err != nil {
		return err
	}
	options := recall.Options{Dims: dims, Hybrid: o.words, Now: time.Now}
	if !o.words {
		options.Weights = recall.Weights{Hashed: 1, HalfLife: time.Hour} // all that counts beside the cosine is 0
	}
	if o.rc, err = recall.New(options); err != nil {
		return err
	}
	return o.st.Load(ctx, embedder, func(e store.IndexEntry) error {
		var v recall.Vectors
		if e.Vectors != nil {
			v = recall.Vectors{Corpus: e.Vectors.Corpus, Description: e.Vectors.Description, Name: e.Vectors.Name}
		}
		return o.rc.Put(e.Row, e.MemoryEntry, v)
	})
}

func (o *ours) query(j int, v []float32) recall.Query {
	q := recall.Query{Vector: v, Top: top, Duplicates: !o.words}
	if o.words {
		q.Text = o.data.queryText(j)
	}
	return q
}

func (o *ours) search(j int, v []float32) ([]int, error) {
	found, err := o.rc.Find(o.query(j, v))
	if err != nil {
		return nil, err
	}
	began := time.Now()
	ids := make([]string, len(found.Top))
	for i, c := range found.Top {
		ids[i] = c.Entry.ID
	}
	entries, err := o.st.GetTexts(context.Background(), ids...)
	if err != nil {
		return nil, err
	}
	o.reading = append(o.reading, time.Since(began))
	if len(entries) != len(ids) || slices.ContainsFunc(entries, func(e subjects.MemoryEntry) bool {
		return e.Corpus == ""
	}) {
		return nil, fmt.Errorf("not all of the %d texts were found", len(ids))
	}
	return rowsOf(found.Top)
}

// findExhaustive is search without texts, by scoring every entry.
func (o *ours) findExhaustive(j int, v []float32) ([]int, error) {
	q := o.query(j, v)
	q.Exhaustive = true
	found, err := o.rc.Find(q)
	if err != nil {
		return nil, err
	}
	return rowsOf(found.Top)
}

func rowsOf(found []subjects.MemoryHit) (rows []int, err error) {
	rows = make([]int, len(found))
	for i, c := range found {
		if rows[i], err = rowOf(c.Entry.ID); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

func (o *ours) describe() string {
	return fmt.Sprintf("%s; %s of a search for the texts (p50)", o.rc.DescribeSearch(), ms(percentile(o.reading, 0.5)))
}

func (o *ours) close() error {
	var errs []error
	if o.rc != nil {
		errs = append(errs, o.rc.Close())
	}
	if o.st != nil {
		errs = append(errs, o.st.Close(context.Background()))
	}
	return errors.Join(errs...)
}

const (
	storeFile = "memory.duckdb"
	fillBatch = 500
	// largeLimit is the memory of DuckDB while a store of more entries than alternate is filled: its indexes of keys
	// must fit.
	largeLimit = "4GB"
)

// filled is the outcome of filling a store.
type filled struct {
	Rows  int     `json:"rows"`
	Rate  float64 `json:"rows_per_sec"`
	Bytes int64   `json:"bytes"` // of the file
}

// item returns entry i without vectors.
func (d *dataset) item(i int) store.Item {
	e := subjects.MemoryEntry{
		ID: id(i), Kind: subjects.KindFact, Name: d.name(i), Description: d.description(i), Corpus: d.corpus(i),
		Speaker: d.speaker(i), Happened: d.happened(i),
		Provenance: subjects.Provenance{Source: subjects.SourceUser, Trust: subjects.Trusted},
		State:      subjects.MemoryActive, Created: created, Updated: created,
	}
	e.Conversation, e.Position = d.conversation(i)
	return store.Item{Entry: e}
}

// addVectors sets the synthetic vectors of an entry.
func (d *dataset) addVectors(i int, it *store.Item) {
	it.Vectors = &store.Vectors{Model: embedder}
	for sort, into := range map[int]*[]float32{
		ofCorpus: &it.Vectors.Corpus, ofDescription: &it.Vectors.Description,
		ofName: &it.Vectors.Name,
	} {
		if has(sort, i) {
			*into = make([]float32, dims)
			d.vector(sort, i, *into)
		}
	}
}

// fillStore writes all entries to a new store, in batches. setVectors is called for each entry; its time does not
// count.
func fillStore(ctx context.Context, file string, d *dataset, setVectors func(i int, it *store.Item)) (_ filled,
	err error,
) {
	var o store.Options
	if d.n > alternating {
		o.MemoryLimit = largeLimit
	}
	st, err := store.Open(ctx, file, o)
	if err != nil {
		return filled{}, err
	}
	var spent stopwatch
	first := 0
	for ; first < d.n && err == nil; first += fillBatch {
		if first > 0 && first%alternating == 0 {
			logProgress("%s of %s entries are in the store, %.0f per second", short(first), short(d.n),
				float64(first)/time.Duration(spent).Seconds())
		}
		items := make([]store.Item, min(fillBatch, d.n-first))
		for i := range items {
			items[i] = d.item(first + i)
			setVectors(first+i, &items[i])
		}
		err = spent.run(func() error {
			_, err := st.Put(ctx, items...)
			return err
		})
	}
	if err = errors.Join(err, spent.run(func() error { return st.Close(ctx) })); err != nil {
		return filled{}, fmt.Errorf("filling the store, at %d entries: %w", first, err)
	}
	info, err := os.Stat(file)
	if err != nil {
		return filled{}, err
	}
	return filled{d.n, float64(d.n) / time.Duration(spent).Seconds(), info.Size()}, nil
}
