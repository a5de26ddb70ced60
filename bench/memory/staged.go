package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"conclave/actors/memory/recall"
	"conclave/actors/memory/store"
	"conclave/subjects"
)

// embedder is the name of the model that made the vectors.
const embedder = "made-up"

// created is when every entry was: none is older than another, so that only what is alike counts.
var created = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// stagedOrder is the order of the contenders of the staged recall.
var stagedOrder = []string{"ours", "words", "chromem", "duckdb", "tuned", "stream"}

// stagedEngines open them.
var stagedEngines = map[string]func(job) (engine, error){
	"ours":    func(j job) (engine, error) { return &ours{dir: j.Dir}, nil },
	"words":   func(j job) (engine, error) { return &ours{dir: j.Dir, hybrid: true}, nil },
	"chromem": func(j job) (engine, error) { return openChrome(j, true) },
	"duckdb":  func(j job) (engine, error) { return openDuck(j, false, true) },
	"tuned":   func(j job) (engine, error) { return openDuck(j, true, true) },
	"stream":  func(job) (engine, error) { return &stream{}, nil },
}

// stagedAt are the contenders that the flags leave.
func (s settings) stagedAt() []string {
	var out []string
	for _, e := range stagedOrder {
		if e == "words" && slices.Contains(s.engines, "ours") || slices.Contains(s.engines, e) {
			out = append(out, e)
		}
	}
	return out
}

// ours is the real way: the index of package recall, filled from the store as at a start, and the store for the corpus.
type ours struct {
	dir    string
	hybrid bool
	w      *world
	st     *store.Store
	rc     *recall.Recall

	following sync.Mutex // the index follows the store

	// How long each recall took, and of that the reading of the corpus.
	whole, reading []time.Duration
}

func (o *ours) load(w *world) (time.Duration, error) {
	o.w = w
	began := time.Now()
	if err := o.open(context.Background()); err != nil {
		return 0, err
	}
	took := time.Since(began)
	if o.hybrid {
		if err := o.rc.Warm(context.Background()); err != nil {
			return 0, err
		}
	}
	return took, settle(w, o.rc.DescribeSearch, func(q []float32) error {
		_, err := o.rc.Find(recall.Query{Vector: q})
		return err
	})
}

// open is a start: the store, and the index from it.
func (o *ours) open(ctx context.Context) error {
	if err := o.openStore(ctx); err != nil {
		return err
	}
	return o.openIndex(ctx)
}

func (o *ours) openStore(ctx context.Context) (err error) {
	o.st, err = openStore(ctx, o.dir, o.w)
	return err
}

func (o *ours) openIndex(ctx context.Context) (err error) {
	if o.rc, err = recall.New(recall.Options{Dims: dims, Names: names, Top: top, Hybrid: o.hybrid, Now: time.Now}); err != nil {
		return err
	}
	bad, err := o.rc.Load(func(put func(recall.Row, recall.Vectors) error) error {
		return o.st.Load(ctx, embedder, func(l store.IndexEntry) error {
			return put(rowFor(l), recall.Vectors{Corpus: l.CorpusVector, Description: l.DescriptionVector, Name: l.NameVector})
		})
	})
	if err == nil && len(bad) > 0 {
		err = fmt.Errorf("%d rows have vectors that cannot be used", len(bad))
	}
	return err
}

// rowFor is a row of the index of what the store loads.
func rowFor(l store.IndexEntry) recall.Row {
	return recall.Row{
		Key: l.Row, ID: l.ID, Kind: l.Kind, State: l.State, Trust: l.Trust, Source: l.Source, Respondent: l.Respondent,
		Name: l.Name, Description: l.Description, Tags: l.Tags, Created: l.Created, Pinned: l.Pinned, Grades: l.Grades,
	}
}

func (o *ours) ask(j int, q []float32) ([]int, error) {
	query := recall.Query{Vector: q}
	if o.hybrid {
		query.Text = o.w.queryText(j)
	}
	return o.find(query)
}

// find is one recall end to end.
func (o *ours) find(q recall.Query) ([]int, error) {
	began := time.Now()
	found, err := o.rc.Find(q)
	if err != nil {
		return nil, err
	}
	searched := time.Now()
	ids := make([]string, len(found.Top))
	for i, c := range found.Top {
		ids[i] = c.ID
	}
	entries, err := o.st.GetTexts(context.Background(), ids...)
	if err != nil {
		return nil, err
	}
	o.whole, o.reading = append(o.whole, time.Since(began)), append(o.reading, time.Since(searched))
	if len(entries) != len(ids) {
		return nil, fmt.Errorf("%d entries of %d came", len(entries), len(ids))
	}
	out := make([]int, len(entries))
	for i, e := range entries {
		if e.Corpus == "" {
			return nil, fmt.Errorf("entry %s came without a corpus", e.ID)
		}
		if out[i], err = rowOf(e.ID); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (o *ours) about() string {
	slices.Sort(o.whole)
	slices.Sort(o.reading)
	return fmt.Sprintf("%s; of %s the store takes %s to read the five (p50)", o.rc.DescribeSearch(), ms(millis(o.whole, 0.5)), ms(millis(o.reading, 0.5)))
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

// storeFile is the store's file in its folder.
const storeFile = "memory.duckdb"

// largeLimit is what DuckDB may hold in memory when there are more rows than usual: its indexes of keys stand there whole,
// and with the store's own limit they do not fit at a million rows.
const largeLimit = "4GB"

func openStore(ctx context.Context, dir string, w *world) (*store.Store, error) {
	o := store.Options{Now: time.Now}
	if w.n > sideBySide {
		o.MemoryLimit = largeLimit
	}
	return store.Open(ctx, filepath.Join(dir, storeFile), o)
}

// fillBatch is how many entries are written at a time when a store is filled.
const fillBatch = 500

// filled is a store that was filled.
type filled struct {
	Rows  int     `json:"rows"`
	Rate  float64 `json:"rows_per_sec"`
	Bytes int64   `json:"bytes"` // of the file
}

// item is row i as an entry, with its vectors.
func (w *world) item(i int) store.Item {
	v := store.Vectors{Model: embedder, Corpus: make([]float32, dims), Name: make([]float32, dims), Description: make([]float32, dims)}
	w.name(i, v.Name)
	w.description(i, v.Description)
	copy(v.Corpus, v.Description) // nobody searches it here, but it is written and takes its place
	return store.Item{Vectors: &v, Entry: subjects.MemoryEntry{
		ID: id(i), Kind: subjects.KindEngram, Name: w.nameText(i), Description: w.descriptionText(i), Corpus: w.corpusText(i),
		Tags:       []string{"bench"},
		Provenance: subjects.Provenance{Source: subjects.SourceConversation, Trust: "trusted", SessionID: "bench", QueryID: "q-" + id(i)},
		Respondent: "a", State: subjects.MemoryActive, Created: created, Updated: created,
	}}
}

// fill is the child that writes a store with every row of w.
func fill(j job, w *world) (_ filled, err error) {
	ctx := context.Background()
	file := filepath.Join(j.Dir, storeFile)
	st, err := openStore(ctx, j.Dir, w)
	if err != nil {
		return filled{}, err
	}
	var spent watch
	first := 0
	for ; first < w.n && err == nil; first += fillBatch {
		if first > 0 && first%sideBySide == 0 {
			say("%s rows: %s are in the store, %.0f per second", short(w.n), short(first), float64(first)/time.Duration(spent).Seconds())
		}
		items := make([]store.Item, min(fillBatch, w.n-first))
		for i := range items {
			items[i] = w.item(first + i)
		}
		err = spent.run(func() error {
			_, err := st.Put(ctx, items...)
			return err
		})
	}
	if err = errors.Join(err, spent.run(func() error { return st.Close(ctx) })); err != nil {
		return filled{}, fmt.Errorf("at %d entries: %w", first, err)
	}
	info, err := os.Stat(file)
	if err != nil {
		return filled{}, err
	}
	return filled{w.n, float64(w.n) / time.Duration(spent).Seconds(), info.Size()}, nil
}

// measureStore is everything that needs a filled store: it is written once, used by one process at a time, and the
// writing comes last.
func (s settings) measureStore(rep *report, w *world, queries [][]float32, first [][]scored) error {
	dir, err := os.MkdirTemp(s.scratch, "store-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	j := job{Part: "fill", Rows: w.n, Seed: s.seed, Asks: s.asks, Dir: dir, Count: s.count, Rate: s.rate}
	if s.wants("start") || s.wants("ingest") || slices.Contains(s.engines, "ours") {
		say("%s rows: filling a store", short(w.n))
		f, err := once[filled](j)
		if err != nil {
			return err
		}
		rep.Fills = append(rep.Fills, f)
	}
	if s.wants("staged") {
		if err := s.measureStaged(rep, w, queries, first, dir); err != nil {
			return err
		}
	}
	if s.wants("start") {
		say("%s rows: starting", short(w.n))
		j.Part = "start"
		st, err := bestStart(j)
		if err != nil {
			return err
		}
		rep.Starts = append(rep.Starts, st)
	}
	if s.wants("ingest") {
		say("%s rows: writing %d engrams while recalls run", short(w.n), s.count)
		j.Part = "ingest"
		in, err := once[ingested](j)
		if err != nil {
			return err
		}
		rep.Ingest = append(rep.Ingest, in)
	}
	return nil
}

// measureStaged is the contest of the staged recall. Ours in its two forms needs the one store, which only one process can
// open: the form with words has a copy.
func (s settings) measureStaged(rep *report, w *world, queries [][]float32, first [][]scored, dir string) error {
	want := make([]answer, len(queries))
	for j, q := range queries {
		want[j] = staged(w, q, first[j])
	}
	dirs := map[string]string{"ours": dir, "words": dir}
	engines := s.stagedAt()
	if w.n <= sideBySide && slices.Contains(engines, "words") {
		other, err := os.MkdirTemp(s.scratch, "copy-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(other)
		if err := os.CopyFS(other, os.DirFS(dir)); err != nil {
			return err
		}
		dirs["words"] = other
	}
	figures, err := s.contest("staged", w.n, engines, dirs, want)
	if err != nil {
		return err
	}
	rep.Staged = append(rep.Staged, table{w.n, figures})
	return nil
}
