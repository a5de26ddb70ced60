// Package recall finds what is remembered: by meaning, by words, and by what others thought of it.
//
// It works on what is in memory and knows no bus, no database and no model. Rows are put in with the vectors of their name
// and their description. [Recall.Find] compares the names first, the descriptions of the nearest then, and says of each
// row that is left why it is there: the reasons add up to the score. [Cache] keeps whole results for queries that mean
// the same, and forgets each as soon as something is written that could change it.
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

// What can be wrong with a call, beside what can be wrong with a vector.
var (
	ErrEmpty   = errors.New("there is nothing to look for: give some words, or a vector")
	ErrVectors = errors.New("a row has the vectors of both its name and its description, or none")
	ErrRow     = errors.New("a row needs an id, and a key below 4294967296")
)

// Row is what a recall knows of an entry.
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
	Top     int // rows at the end; 0 = 5
	// Hybrid lets words count beside vectors. Without it they are used only when a query has no vector.
	Hybrid bool
	// Floor is the similarity below which a row that shares no word with the query is left out; 0 = 0.25.
	Floor float64
	// Twins is the cosine of two descriptions above which only the better row is shown; 0 = 0.97.
	Twins   float64
	Weights Weights // all zero = [DefaultWeights]
	Now     func() time.Time
}

// What options are when they are not given.
const (
	usualNames = 20
	usualTop   = 5
	usualFloor = 0.25
	usualTwins = 0.97
)

// Recall holds the rows and finds among them. Finding waits for nobody who writes, but for moments in the index of words.
type Recall struct {
	o                   Options
	names, descriptions *vector.Index
	table               table
	words               *words
	signs               []float32

	mu      sync.Mutex // one hand at a time writes
	shut    bool
	turn    uint32
	labels  map[labels]*labels
	queue   []unread     // rows whose words are not indexed, in the order they came
	waiting atomic.Int64 // how many that are, at most
}

// unread is a row whose words wait to be indexed. It counts as long as the row's turn is this one.
type unread struct {
	key   uint64
	turn  uint32
	words string
}

// New returns an empty one.
func New(o Options) (*Recall, error) {
	if o.Names == 0 {
		o.Names = usualNames
	}
	if o.Top == 0 {
		o.Top = usualTop
	}
	if o.Floor == 0 {
		o.Floor = usualFloor
	}
	if o.Twins == 0 {
		o.Twins = usualTwins
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
	descriptions, err := vector.New(vector.Options{Dims: o.Dims, Threads: o.Threads, Prefilter: vector.Off}) // it is only asked for single rows
	if err != nil {
		return nil, errors.Join(err, names.Close())
	}
	return &Recall{o: o, names: names, descriptions: descriptions, words: newWords(), signs: signs(o.Dims), labels: map[labels]*labels{}}, nil
}

// Put adds a row, in place of the one with the same key. When it returns, the row is found by its words too. Without
// vectors it is found by words only, until it is put again with them. When something is wrong with the row or its vectors
// nothing has changed.
func (r *Recall) Put(row Row, name, description []float32) error {
	if err := r.check(row, name, description); err != nil {
		return err
	}
	for _, v := range [][]float32{name, description} {
		if err := r.checkVector(v); err != nil {
			return fmt.Errorf("row %s: %w", row.ID, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shut {
		return vector.ErrClosed
	}
	_, err := r.set(row, name, description)
	r.words.put(uint32(row.Key), wording{row.Name, row.Description, row.Tags, row.Words})
	return err
}

// label is l as it is kept for all rows that have it.
func (r *Recall) label(l labels) *labels {
	kept := r.labels[l]
	if kept == nil {
		kept = &labels{strings.Clone(l.kind), strings.Clone(l.state), strings.Clone(l.trust), strings.Clone(l.source)}
		r.labels[*kept] = kept
	}
	return kept
}

// Remove takes rows away. Who begins to look after it has returned does not find them.
func (r *Recall) Remove(keys ...uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shut {
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

// Grade sets what others think of a row. It reports whether there is one.
func (r *Recall) Grade(key uint64, g subjects.Grades) bool {
	return r.change(key, func(rec *record) { rec.grades = gradesOf(g) })
}

// State sets a row's state. It reports whether there is one.
func (r *Recall) State(key uint64, state string) bool {
	return r.change(key, func(rec *record) {
		l := *rec.is
		l.state = state
		rec.is = r.label(l)
	})
}

// Pin sets whether a row is pinned. It reports whether there is one.
func (r *Recall) Pin(key uint64, pinned bool) bool {
	return r.change(key, func(rec *record) { rec.pinned = pinned })
}

func (r *Recall) change(key uint64, f func(*record)) bool {
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

// Stats is how much there is.
type Stats struct {
	Rows    int   // all of them
	Active  int   // of these, in the state in which they are found
	Vectors int   // rows with vectors
	Words   int   // rows that are found by words
	Waiting int   // rows whose words are still to be indexed; see [Recall.Warm]
	Terms   int   // different words
	Bytes   int64 // of the vectors
}

// Stats tells how much there is now.
func (r *Recall) Stats() Stats {
	rows, other := r.table.rows.Load(), r.table.other.Load()
	s := Stats{Rows: int(rows), Active: int(rows - other), Vectors: r.names.Len(), Waiting: int(r.waiting.Load()), Bytes: r.names.Bytes() + r.descriptions.Bytes()}
	s.Words, s.Terms = r.words.size()
	return s
}

// Path says in words for a person how a search goes now.
func (r *Recall) Path() string {
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

// Close gives the memory back. Nobody may search any more.
func (r *Recall) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shut {
		return nil
	}
	r.shut = true
	return errors.Join(r.names.Close(), r.descriptions.Close())
}

// check looks at everything of a row but the numbers in its vectors.
func (r *Recall) check(row Row, name, description []float32) error {
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

// checkVector looks at one that was given; nil is none.
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
