// Package recall searches memory by vectors, words, neighbours in a conversation, speaker, date and grades.
//
// It works on rows in RAM and knows no bus, no database and no model. [Recall.Find] scores rows on everything that is
// known of them: the best cosine of their vectors, the words they share with the query, their neighbours in the
// conversation, who spoke and when, then grades, pins and age; see [Weights]. Each result is explained: the reasons add
// up to the score.
//
// The result equals that of scoring every row. The search scores only the rows whose upper bound reaches the last row
// of the result; the vector index and the word index bound every row.
//
// [Cache] keeps results for queries with the same meaning, and drops each as soon as a write could change it.
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
	ErrVectors = errors.New("a row with vectors needs that of its corpus")
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
	Conversation                   string          // id; "" = none
	Position                       int             // in the conversation, from 1; 0 = not known
	Speaker                        string          // who said it; "" = not known
	Happened                       time.Time       // when it was said or took place; zero = not known
	// Words is the beginning of the searchable text, for the index of words. Neither it nor Description is kept: a
	// search returns rows without them.
	Words string
}

// Vectors are the vectors of a row. Without Corpus there must be none. A nil Description or Name means that the text
// says nothing that the corpus does not: the vector of the corpus stands for it.
type Vectors struct{ Corpus, Description, Name []float32 }

// list returns the vectors by what they were made of.
func (v Vectors) list() [3][]float32 {
	return [3][]float32{ofCorpus: v.Corpus, ofDescription: v.Description, ofName: v.Name}
}

// Options of a [Recall]. The zero value of each field but Dims and Now is useful.
type Options struct {
	Dims  int
	Names int // rows that [Found.Names] shows; 0 = 20
	Top   int // rows of the result; 0 = 5
	// Hybrid lets words count beside vectors. Without it they are used only when a query has no vector.
	Hybrid bool
	// Hashed says that the vectors are made of letters and words and not of meaning, so that only a part of a cosine
	// counts, see [Weights.Hashed].
	Hashed bool
	// Floor is the cosine below which a row that shares no word with the query is left out, unless a neighbour lifts it
	// to that; 0 = 0.25.
	Floor   float64
	Weights Weights // all zero = [DefaultWeights]
	Now     func() time.Time
}

// Defaults of options.
const (
	defaultNames = 20
	defaultTop   = 5
	defaultFloor = 0.25
)

// Recall holds rows and searches them. Searches take no lock but that of the word index; writers exclude each other.
type Recall struct {
	o Options
	// vectors are the indexes by what the vectors were made of. Those of descriptions and names hold only the rows with
	// a vector of their own.
	vectors       [3]*vector.Index
	table         table
	words         *wordIndex
	conversations conversations
	speakers      speakers
	signs         []float32

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
	text    rowText
}

// New returns an empty Recall. It rejects options without a clock, with negative counts, with invalid weights or with
// dimensions that package vector rejects.
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
	o.Weights = o.Weights.OrDefault()
	switch {
	case o.Now == nil:
		return nil, errors.New("recall needs a clock")
	case o.Names < 0 || o.Top < 0:
		return nil, fmt.Errorf("recall of %d names and %d at the end: both must be at least 1", o.Names, o.Top)
	}
	if err := o.Weights.Problems().Err(); err != nil {
		return nil, fmt.Errorf("weights of a recall: %w", err)
	}
	if o.Weights.cosine = 1; o.Hashed {
		o.Weights.cosine = o.Weights.Hashed
		o.Weights.When *= o.Weights.Hashed
	}
	o.Floor *= o.Weights.cosine
	r := &Recall{
		o: o, words: newWordIndex(), signs: randomSigns(max(o.Dims, 0)), labels: map[labels]*labels{},
		conversations: conversations{byKey: map[conversationKey]*conversation{}},
		speakers:      speakers{byName: map[string]*speaker{}},
	}
	for of := range r.vectors {
		x, err := vector.New(o.Dims)
		if err != nil {
			return nil, errors.Join(err, r.closeVectors())
		}
		r.vectors[of] = x
	}
	return r, nil
}

// closeVectors closes the vector indexes that exist.
func (r *Recall) closeVectors() (err error) {
	for _, x := range r.vectors {
		if x != nil {
			err = errors.Join(err, x.Close())
		}
	}
	return err
}

// Put adds a row or replaces the one with the same key. When it returns, the row is found by words; v are its vectors,
// none = found only by words. It rejects a row without an id or with a key of 2^32 or more ([ErrRow]), other vectors
// without that of the corpus ([ErrVectors]), and vectors of another size, of zeros or not finite; nothing has changed
// then. After any other error the row is found by words only.
func (r *Recall) Put(row Row, v Vectors) error {
	if err := r.checkRow(row, v); err != nil {
		return err
	}
	for _, v := range v.list() {
		if err := r.checkVector(v); err != nil {
			return fmt.Errorf("row %s: %w", row.ID, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return vector.ErrClosed
	}
	_, err := r.storeRow(row, v)
	r.words.add(uint32(row.Key), indexedText(row))
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

// Remove removes rows; unknown keys are ignored. A search that begins after Remove returned does not find them. It does
// nothing after Close.
func (r *Recall) Remove(keys ...uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	for _, key := range keys {
		rec := r.table.row(key)
		if rec == nil {
			continue
		}
		r.table.set(key, nil)
		r.words.remove(uint32(key))
		r.conversations.remove(rec.conversation, rec.turn(key))
		r.speakers.remove(rec.speaker)
	}
	for _, x := range r.vectors {
		x.Remove(keys...)
	}
}

// Grade sets the grades of a row. It reports whether the row exists.
func (r *Recall) Grade(key uint64, g subjects.Grades) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.table.row(key)
	if old == nil {
		return false
	}
	rec := *old // searches see the old or the new one
	rec.grades = packGrades(g)
	r.table.set(key, &rec)
	return true
}

// Stats counts what a [Recall] holds.
type Stats struct {
	Rows    int
	Active  int   // rows that a search finds without asking for all
	Vectors int   // rows with vectors
	Own     int   // further vectors, of descriptions and names
	Words   int   // rows that are found by words
	Waiting int   // rows whose words are still to be indexed; see [Recall.Warm]
	Terms   int   // different words
	Bytes   int64 // of the vectors
}

// Stats returns the current counts.
func (r *Recall) Stats() Stats {
	rows, other := r.table.rows.Load(), r.table.inactive.Load()
	s := Stats{
		Rows: int(rows), Active: int(rows - other), Vectors: r.vectors[ofCorpus].Len(),
		Waiting: int(r.pending.Load()),
	}
	s.Own = r.vectors[ofDescription].Len() + r.vectors[ofName].Len()
	for _, x := range r.vectors {
		s.Bytes += x.Bytes()
	}
	s.Words, s.Terms = r.words.size()
	return s
}

// DescribeSearch describes for users how a search works now: how many texts are compared and how, and whether words
// count.
func (r *Recall) DescribeSearch() string {
	s := r.Stats()
	path := fmt.Sprintf("%d texts: exact result, begins with %s", s.Vectors, r.vectors[ofCorpus].Path())
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

// Close frees the memory of the vectors. No search may run meanwhile or afterwards; Put and Load fail then, and Remove
// does nothing. A second call returns nil.
func (r *Recall) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	return r.closeVectors()
}

// checkRow rejects a row without an id or with a key of maxKey or more ([ErrRow]), other vectors without that of the
// corpus ([ErrVectors]), and vectors of the wrong size. No vector is valid. It does not read the vectors.
func (r *Recall) checkRow(row Row, v Vectors) error {
	switch {
	case row.ID == "" || row.Key >= maxKey:
		return fmt.Errorf("row %d with the id %q: %w", row.Key, row.ID, ErrRow)
	case v.Corpus == nil && (v.Description != nil || v.Name != nil):
		return fmt.Errorf("row %s: %w", row.ID, ErrVectors)
	}
	for _, v := range v.list() {
		if v != nil && len(v) != r.o.Dims {
			return fmt.Errorf("row %s has a vector of %d numbers, and %d are needed: %w", row.ID, len(v), r.o.Dims,
				vector.ErrDims)
		}
	}
	return nil
}

// checkVector rejects a vector of the wrong size, with a number that is not finite, or of zeros, with the errors of
// package vector. nil is valid; an empty vector is not.
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
