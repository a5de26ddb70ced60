// Package recall searches memory by vectors, by words and by grades.
//
// It works on rows in RAM and knows no bus, no database and no model. A row is put with the vectors of its name and its
// description. [Recall.Find] compares names first, then the descriptions of the nearest, and explains each result: the
// reasons add up to the score. [Cache] keeps results for queries with the same meaning, and drops each as soon as a write
// could change it.
package recall

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"conclave/pkg/vector"
	"conclave/subjects"
)

// Errors of a call, beside those of a vector.
var (
	ErrEmpty   = errors.New("empty query: give some words, or a vector")
	ErrVectors = errors.New("a row has the vectors of both its name and its description, or none")
	ErrRow     = errors.New("a row needs an id, and a key below 4294967296")
)

// Row is an entry as a recall holds it.
type Row struct {
	Key                            uint64 // the row's number in the database
	ID, Kind, State, Trust, Source string
	Name, Description, Respondent  string
	Tags                           []string
	Created                        time.Time
	Pinned                         bool
	Grades                         subjects.Grades // without the critic's words, which the database has
	// Words is the beginning of the corpus, for the index of words. It is not kept.
	Words string
}

// Options of a [Recall]. The zero value of each field but Dims and Now is useful.
type Options struct {
	Dims    int
	Threads int // of a search; 0 = all processors
	Names   int // rows that go on to the second stage; 0 = 20
	Top     int // rows of the result; 0 = 5
	// Hybrid lets words count beside vectors. Without it they are used only when a query has no vector.
	Hybrid bool
	// Floor is the similarity below which a row that shares no word with the query is left out; 0 = 0.25.
	Floor float64
	// Duplicates is the cosine of two descriptions above which only the better row is shown; 0 = 0.97.
	Duplicates float64
	Weights    Weights // all zero = [DefaultWeights]
	Now        func() time.Time
}

// Defaults of options.
const (
	defaultNames      = 20
	defaultTop        = 5
	defaultFloor      = 0.25
	defaultDuplicates = 0.97
)

// Recall holds rows and searches them. Searches take no lock but that of the word index; writers exclude each other.
type Recall struct {
	o                   Options
	names, descriptions *vector.Index
	table               table
	words               *wordIndex
	signs               []float32

	mu      sync.Mutex // serializes writers
	closed  bool
	version uint32
	labels  map[labels]*labels
	queue   []pendingRow // rows whose words are not indexed, in the order they came
	pending atomic.Int64 // the length of queue, at most
}

// pendingRow is a row whose words are not indexed yet. It is obsolete when the row has another version by then.
type pendingRow struct {
	key     uint64
	version uint32
	words   string
}

// New returns an empty Recall. It rejects options without a clock, with negative counts, with invalid weights or with dimensions
// that package vector rejects.
func New(o Options) (*Recall, error) {
	if o.Names == 0 {
		o.Names = defaultNames
	}
	if o.Top == 0 {
		o.Top = defaultTop
	}
	if o.Floor == 0 {
		o.Floor = defaultFloor
	}
	if o.Duplicates == 0 {
		o.Duplicates = defaultDuplicates
	}
	if o.Weights == (Weights{}) {
		o.Weights = DefaultWeights()
	}
	switch {
	case o.Now == nil:
		return nil, errors.New("recall needs a clock")
	case o.Names < 0 || o.Top < 0:
		return nil, fmt.Errorf("recall of %d names and %d at the end: both must be at least 1", o.Names, o.Top)
	}
	if err := o.Weights.validate(); err != nil {
		return nil, err
	}
	names, err := vector.New(vector.Options{Dims: o.Dims, Threads: o.Threads})
	if err != nil {
		return nil, err
	}
	descriptions, err := vector.New(vector.Options{Dims: o.Dims, Threads: o.Threads, Prefilter: vector.Off}) // only single rows are compared
	if err != nil {
		return nil, errors.Join(err, names.Close())
	}
	return &Recall{o: o, names: names, descriptions: descriptions, words: newWordIndex(), signs: randomSigns(o.Dims), labels: map[labels]*labels{}}, nil
}

// Put adds a row or replaces the one with the same key. When it returns, the row is found by words; name and description are its
// vectors, both nil = found only by words. It rejects a row without an id or with a key of 2^32 or more ([ErrRow]), one vector
// without the other ([ErrVectors]), and vectors of another size, of zeros or not finite; nothing has changed then. After any
// other error the row is found by words only.
func (r *Recall) Put(row Row, name, description []float32) error {
	if err := r.checkRow(row, name, description); err != nil {
		return err
	}
	for _, v := range [][]float32{name, description} {
		if err := r.checkVector(v); err != nil {
			return fmt.Errorf("row %s: %w", row.ID, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return vector.ErrClosed
	}
	_, err := r.storeRow(row, name, description)
	r.words.add(uint32(row.Key), rowText{row.Name, row.Description, row.Tags, row.Words})
	return err
}

// internLabels returns the one shared copy of l. The caller must hold mu.
func (r *Recall) internLabels(l labels) *labels {
	kept := r.labels[l]
	if kept == nil {
		kept = &labels{strings.Clone(l.kind), strings.Clone(l.state), strings.Clone(l.trust), strings.Clone(l.source)}
		r.labels[*kept] = kept
	}
	return kept
}

// Remove removes rows; unknown keys are ignored. A search that begins after Remove returned does not find them. It does nothing
// after Close.
func (r *Recall) Remove(keys ...uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	for _, key := range keys {
		if r.table.row(key) == nil {
			continue
		}
		r.table.set(key, nil)
		r.words.remove(uint32(key))
	}
	r.names.Remove(keys...)
	r.descriptions.Remove(keys...)
}

// Grade sets the grades of a row. It reports whether the row exists.
func (r *Recall) Grade(key uint64, g subjects.Grades) bool {
	return r.update(key, func(rec *record) { rec.grades = gradesOf(g) })
}

// State sets the state of a row, which is not checked. It reports whether the row exists.
func (r *Recall) State(key uint64, state string) bool {
	return r.update(key, func(rec *record) {
		l := *rec.labels
		l.state = state
		rec.labels = r.internLabels(l)
	})
}

// Pin sets whether a row is pinned. It reports whether the row exists.
func (r *Recall) Pin(key uint64, pinned bool) bool {
	return r.update(key, func(rec *record) { rec.pinned = pinned })
}

// update replaces a row by a copy that f changed, so that searches see the old or the new one. It reports whether the row exists;
// f is not called otherwise. f runs under mu.
func (r *Recall) update(key uint64, f func(*record)) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.table.row(key)
	if old == nil {
		return false
	}
	rec := *old
	f(&rec)
	r.table.set(key, &rec)
	return true
}

// Stats counts what a [Recall] holds.
type Stats struct {
	Rows    int
	Active  int   // rows that a search finds without asking for all
	Vectors int   // rows with vectors
	Words   int   // rows that are found by words
	Waiting int   // rows whose words are still to be indexed; see [Recall.Warm]
	Terms   int   // different words
	Bytes   int64 // of the vectors
}

// Stats returns the current counts.
func (r *Recall) Stats() Stats {
	rows, other := r.table.rows.Load(), r.table.inactive.Load()
	s := Stats{Rows: int(rows), Active: int(rows - other), Vectors: r.names.Len(), Waiting: int(r.pending.Load()), Bytes: r.names.Bytes() + r.descriptions.Bytes()}
	s.Words, s.Terms = r.words.size()
	return s
}

// DescribeSearch describes for users how a search works now: how many names are compared and how, and whether words count.
func (r *Recall) DescribeSearch() string {
	s := r.Stats()
	path := fmt.Sprintf("%d names: %s", s.Vectors, r.names.Path())
	switch {
	case !r.o.Hybrid:
		path += "; words only for queries without a vector"
	case s.Waiting > 0:
		path += fmt.Sprintf("; words of %d rows, %d are still being read", s.Words, s.Waiting)
	default:
		path += fmt.Sprintf("; words of %d rows", s.Words)
	}
	return path
}

// Close frees the memory of the vectors. No search may run meanwhile or afterwards; Put and Load fail then, and Remove does
// nothing. A second call returns nil.
func (r *Recall) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	return errors.Join(r.names.Close(), r.descriptions.Close())
}

// checkRow rejects a row without an id or with a key of maxKey or more ([ErrRow]), one vector without the other ([ErrVectors]),
// and vectors of the wrong size. Both nil is valid. It does not read the vectors.
func (r *Recall) checkRow(row Row, name, description []float32) error {
	switch {
	case row.ID == "" || row.Key >= maxKey:
		return fmt.Errorf("row %d with the id %q: %w", row.Key, row.ID, ErrRow)
	case (name == nil) != (description == nil):
		return fmt.Errorf("row %s: %w", row.ID, ErrVectors)
	case name != nil && (len(name) != r.o.Dims || len(description) != r.o.Dims):
		return fmt.Errorf("row %s has vectors of %d and %d numbers, and %d are needed: %w", row.ID, len(name), len(description), r.o.Dims, vector.ErrDims)
	}
	return nil
}

// checkVector rejects a vector of the wrong size, with a number that is not finite, or of zeros, with the errors of package
// vector. nil is valid; an empty vector is not.
func (r *Recall) checkVector(v []float32) error {
	if v == nil {
		return nil
	}
	if len(v) != r.o.Dims {
		return fmt.Errorf("the vector has %d numbers, and %d are needed: %w", len(v), r.o.Dims, vector.ErrDims)
	}
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	switch {
	case math.IsNaN(sum) || math.IsInf(sum, 0):
		return vector.ErrNotFinite
	case sum == 0:
		return vector.ErrZero
	}
	return nil
}
