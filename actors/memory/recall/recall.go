// Package recall searches memory by vectors, words, neighbours in a conversation, speaker, date and grades.
//
// It works on rows in RAM and knows no bus, no database and no model. [Recall.Put] is the way in for each change,
// [Recall.PutLater] at the start. [Recall.Find] scores rows on everything that is known of them: the best cosine of
// their vectors, the words they share with the query, their neighbours in the conversation, who spoke and when, then
// grades, pins and age; see [Weights]. Each result is explained: the reasons add up to the score.
//
// The result equals that of scoring every row, once [Recall.IndexWords] has ended after a start. The search scores only
// the rows whose upper bound reaches the last row of the result; the vector index and the word index bound every row.
//
// [Cache] keeps results for queries with the same meaning, and drops each as soon as a write could change it.
package recall

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

// Vectors are the vectors of a row. Without Corpus there must be none. A nil Description or Name means that the text
// says nothing that the corpus does not: the vector of the corpus stands for it.
type Vectors struct{ Corpus, Description, Name []float32 }

// list returns the vectors by what they were made of.
func (v Vectors) list() [3][]float32 {
	return [3][]float32{ofCorpus: v.Corpus, ofDescription: v.Description, ofName: v.Name}
}

// Options of a [Recall]. The zero value of each field but Dims and Now is useful.
type Options struct {
	Dims int
	// Hybrid lets words count beside vectors. Without it they are used only when a query has no vector.
	Hybrid bool
	// Hashed says that the vectors are made of letters and words and not of meaning, so that only a part of a cosine
	// counts, see [Weights.Hashed].
	Hashed  bool
	Weights Weights // all zero = [DefaultWeights]
	Now     func() time.Time
}

// minSimilarity is the cosine below which a row that shares no word with the query is left out, unless a neighbour
// lifts it to that.
const minSimilarity = 0.25

// Recall holds rows and searches them. Searches run at the same time; a writer waits for them, and they for the writer.
type Recall struct {
	o     Options
	floor float64 // minSimilarity, as far as a cosine counts

	mu     sync.RWMutex
	closed bool
	// vectors are the indexes by what the vectors were made of. Those of descriptions and names hold only the rows with
	// a vector of their own.
	vectors       [3]*vector.Index
	rows          paged[*record]
	words         *wordIndex
	conversations conversations
	speakers      speakers
	unindexed     []unindexed // rows that are not found by words yet

	count, inactive, shifted int // rows; those that are not recallable; those with grades or a pin
}

// New returns an empty Recall. It rejects options without a clock, with invalid weights or with dimensions that package
// vector rejects.
func New(o Options) (*Recall, error) {
	o.Weights = o.Weights.OrDefault()
	if o.Now == nil {
		return nil, errors.New("recall needs a clock")
	}
	if err := o.Weights.Problems().Err(); err != nil {
		return nil, fmt.Errorf("weights of a recall: %w", err)
	}
	o.Weights.cosine = 1
	if o.Hashed {
		o.Weights.cosine = o.Weights.Hashed
		o.Weights.When *= o.Weights.Hashed
	}
	r := &Recall{
		o: o, floor: minSimilarity * o.Weights.cosine, words: newWordIndex(), conversations: conversations{},
		speakers: speakers{},
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

// Put adds an entry or replaces the one with the same key, its row number in the database. The corpus may be the
// beginning of a longer one; what it leaves out is not found by words. v are its vectors, none = found only by words.
// It rejects an entry without an id or with a key of 2^32 or more ([ErrRow]), other vectors without that of the corpus
// ([ErrVectors]), and vectors of another size, of zeros or not finite; nothing has changed then. After any other error
// the row is found by words only.
func (r *Recall) Put(key uint64, e subjects.MemoryEntry, v Vectors) error {
	return r.put(key, e, v, false)
}

// PutLater is [Recall.Put] for the many rows of a start: they are found by words once [Recall.IndexWords] has ended,
// which takes longer than all else.
func (r *Recall) PutLater(key uint64, e subjects.MemoryEntry, v Vectors) error {
	return r.put(key, e, v, true)
}

func (r *Recall) put(key uint64, e subjects.MemoryEntry, v Vectors, later bool) error {
	switch {
	case e.ID == "" || key >= maxKey:
		return fmt.Errorf("row %d with the id %q: %w", key, e.ID, ErrRow)
	case v.Corpus == nil && (v.Description != nil || v.Name != nil):
		return fmt.Errorf("row %s: %w", e.ID, ErrVectors)
	}
	for _, v := range v.list() {
		if v == nil {
			continue
		}
		if err := vector.Check(v, r.o.Dims); err != nil {
			return fmt.Errorf("row %s: %w", e.ID, err)
		}
	}
	rec := newRecord(key, e)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return vector.ErrClosed
	}
	r.drop(key)
	var err error
	for of, v := range v.list() {
		if v == nil || err != nil {
			r.vectors[of].Remove(key)
		} else if err = r.vectors[of].Add(key, v); err == nil {
			rec.vectors = true
		}
	}
	if err != nil {
		rec.vectors = false
		for _, x := range r.vectors {
			x.Remove(key)
		}
		err = fmt.Errorf("indexing the vectors of %s: %w", e.ID, err)
	}
	if later {
		r.unindexed = append(r.unindexed, unindexed{rec, e.Description, e.SearchText()})
	} else {
		rec.number = r.words.add(rec, e.Description, e.SearchText())
	}
	rec.beside = r.conversations.add(conversationKey{rec.conversation, rec.isTrusted()}, rec.turn())
	rec.speaker = r.speakers.add(intern(e.Speaker))
	r.rows.set(key, rec)
	r.countRow(rec, 1)
	return err
}

// unindexed is a row with the texts whose words are not indexed yet.
type unindexed struct {
	rec               *record
	description, text string
}

// wordBatch is how many rows are indexed while searches and writers wait.
const wordBatch = 64

// IndexWords indexes the words of the rows of [Recall.PutLater] until all are or ctx ends, and returns ctx's error
// then. Several callers share the work.
func (r *Recall) IndexWords(ctx context.Context) error {
	for ctx.Err() == nil {
		if !r.indexBatch() {
			return nil
		}
	}
	return ctx.Err()
}

// indexBatch indexes the words of at most wordBatch rows but for those that were written or removed since, and reports
// whether there are more.
func (r *Recall) indexBatch() (more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(wordBatch, len(r.unindexed))
	for _, u := range r.unindexed[:n] {
		if r.rows.get(u.rec.key) == u.rec {
			u.rec.number = r.words.add(u.rec, u.description, u.text)
		}
	}
	clear(r.unindexed[:n]) // their texts are not needed any more
	if r.unindexed = r.unindexed[n:]; len(r.unindexed) == 0 {
		r.unindexed = nil
	}
	return r.unindexed != nil
}

// countRow adds n to the counts that rec is part of. The caller must hold mu.
func (r *Recall) countRow(rec *record, n int) {
	r.count += n
	if !rec.isRecallable() {
		r.inactive += n
	}
	if rec.grades != nil || rec.pinned {
		r.shifted += n
	}
}

// drop removes a row but for its vectors, and reports whether it was there. The caller must hold mu.
func (r *Recall) drop(key uint64) bool {
	rec := r.rows.get(key)
	if rec == nil {
		return false
	}
	r.countRow(rec, -1)
	r.rows.set(key, nil)
	r.words.remove(rec.number)
	r.conversations.remove(rec.beside, rec.turn())
	r.speakers.remove(rec.speaker)
	return true
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
		r.drop(key)
	}
	for _, x := range r.vectors {
		x.Remove(keys...)
	}
}

// Grade sets the grades of a row. It reports whether the row exists.
func (r *Recall) Grade(key uint64, g subjects.Grades) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.rows.get(key)
	if rec == nil {
		return false
	}
	r.countRow(rec, -1)
	rec.grades = keepGrades(g)
	r.countRow(rec, 1)
	return true
}

// Stats counts what a [Recall] holds.
type Stats struct {
	Rows    int
	Active  int   // rows that a search finds without asking for all
	Vectors int   // rows with vectors
	Words   int   // rows that are found by words
	Bytes   int64 // of the vectors
}

// Stats returns the current counts.
func (r *Recall) Stats() Stats {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.stats()
}

// stats is [Recall.Stats] for a caller that holds mu.
func (r *Recall) stats() Stats {
	s := Stats{
		Rows: r.count, Active: r.count - r.inactive, Vectors: r.vectors[ofCorpus].Len(),
		Words: r.words.live,
	}
	for _, x := range r.vectors {
		s.Bytes += x.Bytes()
	}
	return s
}

// DescribeSearch describes for users how a search works now: how many texts are compared and how, and whether words
// count.
func (r *Recall) DescribeSearch() string {
	s := r.Stats()
	path := fmt.Sprintf("%d texts: exact result, begins with %s", s.Vectors, r.vectors[ofCorpus].Path())
	if !r.o.Hybrid {
		return path + "; words only for queries without a vector"
	}
	return path + fmt.Sprintf("; words of %d rows", s.Words)
}

// Close frees the memory of the vectors. Put fails afterwards, and so does a search with a vector. A second call
// returns nil.
func (r *Recall) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	return r.closeVectors()
}
