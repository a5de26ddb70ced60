package store

import (
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"

	"conclave/subjects"
)

// IndexEntry is an entry with what the search index needs, see indexColumns: the corpus is the first 2000 characters,
// and grades are without feedback.
type IndexEntry struct {
	Row uint64
	subjects.MemoryEntry
	// Vectors are nil when there are none of the model. Those of [Store.Load] are valid during the call only.
	Vectors *Vectors
}

const (
	// loadWorkers read at the same time: one waits for the disk or for the callback while the other works.
	loadWorkers = 2
	// loadRangeSize is the number of rows that one query reads: a result is whole in memory before the first row is
	// seen.
	loadRangeSize = rowGroup
)

// Load calls each for every entry, one at a time and in no particular order, with its vectors of model where it has
// any; model "" loads no vectors. It returns when all were delivered, or with the first error of each, of the file or
// of ctx. It is meant for start-up: writes during Load may or may not be seen.
func (s *Store) Load(ctx context.Context, model string, each func(IndexEntry) error) error {
	var first, last sql.NullInt64
	err := s.query(ctx, func(r *sql.Rows) error {
		return r.Scan(&first, &last)
	}, "SELECT min(row), max(row) FROM entries")
	if err != nil {
		return fmt.Errorf("loading the memory: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var tasks sync.WaitGroup
	var one sync.Mutex // each is called by one at a time
	next := make(chan int64)
	for range loadWorkers {
		tasks.Go(func() {
			for from := range next {
				if err := s.loadRange(ctx, model, from, &one, each); err != nil {
					cancel(err)
				}
			}
		})
	}
	for from := first.Int64; first.Valid && from <= last.Int64 && ctx.Err() == nil; from += loadRangeSize {
		next <- from
	}
	close(next)
	tasks.Wait()
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("loading the memory: %w", err)
	}
	return nil
}

// loadRange calls each, under one, for the entries of the loadRangeSize rows from a number on, until ctx ends.
func (s *Store) loadRange(ctx context.Context, model string, from int64, one *sync.Mutex,
	each func(IndexEntry) error,
) error {
	rows := condition{"row BETWEEN ? AND ?", []any{from, from + loadRangeSize - 1}}
	all := map[int64]*IndexEntry{}
	deliver := func(row int64, e *IndexEntry) error {
		delete(all, row)
		one.Lock()
		defer one.Unlock()
		if err := ctx.Err(); err != nil { // another worker failed
			return err
		}
		return each(*e)
	}
	return s.readSnapshot(ctx, func(m snapshot) error {
		if err := readIndexEntries(ctx, m, rows, func() condition { return rows }, all); err != nil {
			return err
		}
		if err := readVectors(ctx, m, model, rows, all, deliver); err != nil {
			return err
		}
		for row, e := range all { // without vectors
			if err := deliver(row, e); err != nil {
				return err
			}
		}
		return nil
	})
}

// IndexEntries returns entries for the index in the order of ids, with their vectors of model; model "" reads none.
// Unknown ids are left out.
func (s *Store) IndexEntries(ctx context.Context, model string, ids ...string) ([]IndexEntry, error) {
	ids = unique(sanitizeAll(ids))
	var out []IndexEntry
	err := s.readSnapshot(ctx, func(m snapshot) error {
		for chunk := range slices.Chunk(ids, maxListed) {
			all := map[int64]*IndexEntry{}
			rows := func() condition { return oneOf("row", slices.Collect(maps.Keys(all))) }
			if err := readIndexEntries(ctx, m, oneOf("id", chunk), rows, all); err != nil {
				return err
			}
			err := readVectors(ctx, m, model, rows(), all, func(_ int64, e *IndexEntry) error {
				v := *e.Vectors
				v.Corpus, v.Name = slices.Clone(v.Corpus), slices.Clone(v.Name)
				v.Description, e.Vectors = slices.Clone(v.Description), &v
				return nil
			})
			if err != nil {
				return err
			}
			for _, e := range all {
				out = append(out, *e)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading entries: %w", err)
	}
	order := positions(ids)
	slices.SortFunc(out, func(a, b IndexEntry) int { return order[a.ID] - order[b.ID] })
	return out, nil
}

// condition is a condition of a query with its arguments.
type condition struct {
	sql  string
	args []any
}

// oneOf returns the condition that a column has one of values, at most maxListed and not none.
func oneOf[T any](column string, values []T) condition {
	in, args := inList(values)
	return condition{column + " IN " + in, args}
}

// indexColumns are the columns that scanIndexEntry reads, in its order.
const indexColumns = `row, id, kind, state, trust, source, name, description, respondent, pinned, created,
	conversation, position, speaker, happened, left(corpus, 2000)`

// scanIndexEntry reads a row of indexColumns. A start reads all entries: half of the columns cost half of the time.
func scanIndexEntry(r *sql.Rows) (*IndexEntry, error) {
	e := &IndexEntry{}
	var happened sql.NullTime
	err := r.Scan(&e.Row, &e.ID, &e.Kind, &e.State, &e.Provenance.Trust, &e.Provenance.Source, &e.Name, &e.Description,
		&e.Respondent, &e.Pinned, &e.Created, &e.Conversation, &e.Position, &e.Speaker, &happened, &e.Corpus)
	e.Created, e.Happened = e.Created.UTC(), timeOrZero(happened)
	return e, err
}

// readIndexEntries reads the entries that a condition selects into byRow, with tags and grades. Tables that have no ids
// are read by rows, which is called when there is an entry in byRow.
func readIndexEntries(ctx context.Context, m snapshot, selected condition, rows func() condition,
	byRow map[int64]*IndexEntry,
) error {
	err := m.query(ctx, func(r *sql.Rows) error {
		e, err := scanIndexEntry(r)
		byRow[int64(e.Row)] = e
		return err
	}, "SELECT "+indexColumns+" FROM entries WHERE "+selected.sql, selected.args...)
	if err != nil || len(byRow) == 0 {
		return err
	}
	// The row of all answers to a query comes before that of the respondent.
	err = m.query(ctx, func(r *sql.Rows) error {
		var row int64
		var g gradeRow
		err := r.Scan(&row, &g.critic, &g.pairwise, &g.reward, &g.rewards)
		if e := byRow[row]; err == nil && e != nil {
			g.applyTo(&e.Grades)
		}
		return err
	}, `SELECT e.row, g.critic, g.pairwise, g.reward, g.rewards FROM
		(SELECT row, query, respondent FROM entries WHERE kind = 'engram' AND `+selected.sql+`) e
		JOIN grades g ON g.query = e.query AND (g.respondent = e.respondent OR g.respondent = '')
		ORDER BY e.row, g.respondent`, selected.args...)
	if err != nil {
		return err
	}
	return readTags(ctx, m, rows(), func(row int64, tags []string) {
		if e := byRow[row]; e != nil {
			e.Tags = tags
		}
	})
}

// readVectors calls each for those of byRow that have vectors of model, with these, which are valid until each returns.
// It reads the rows that a condition selects, and none when model is "" or byRow is empty.
func readVectors(ctx context.Context, m snapshot, model string, rows condition, byRow map[int64]*IndexEntry,
	each func(row int64, e *IndexEntry) error,
) error {
	if model == "" || len(byRow) == 0 {
		return nil
	}
	var buffers [3][]float32
	return m.query(ctx, func(r *sql.Rows) error {
		var row int64
		var by string
		var dims int
		var texts [3]sql.RawBytes // valid until the next row
		if err := r.Scan(&row, &by, &dims, &texts[0], &texts[1], &texts[2]); err != nil {
			return err
		}
		e := byRow[row]
		if e == nil || by != model {
			return nil
		}
		e.Vectors = &Vectors{Model: model}
		for i, to := range []*[]float32{&e.Vectors.Corpus, &e.Vectors.Name, &e.Vectors.Description} {
			if texts[i] == nil && i > 0 {
				continue
			}
			if dims <= 0 || len(texts[i]) != 4*dims {
				return fmt.Errorf("%w: the vectors of %s have the wrong size", ErrDamaged, e.ID)
			}
			buffers[i] = unpackVector(buffers[i][:0], texts[i])
			*to = buffers[i]
		}
		return each(row, e)
	}, "SELECT row, model, dims, corpus, name, description FROM vectors WHERE "+rows.sql, rows.args...)
}

// unpackVector appends the numbers of a vector as it is stored.
func unpackVector(to []float32, packed []byte) []float32 {
	for ; len(packed) >= 4; packed = packed[4:] {
		to = append(to, math.Float32frombits(binary.LittleEndian.Uint32(packed)))
	}
	return to
}

// DropVectors deletes the vectors of entries, so that they are embedded again.
func (s *Store) DropVectors(ctx context.Context, ids ...string) error {
	return s.write(ctx, func(t *tx) error {
		for chunk := range slices.Chunk(ids, maxListed) {
			in, args := inList(chunk)
			_, err := t.exec("DELETE FROM vectors WHERE row IN (SELECT row FROM entries WHERE id IN "+in+")", args...)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// unembeddedFrom are entries without vectors of a model, or of any when the model is "".
const unembeddedFrom = " FROM entries WHERE row NOT IN (SELECT row FROM vectors WHERE ? = '' OR model = ?)"

// Unembedded returns at most limit entries without vectors of a model, or without any if model is "": active ones
// first, then the newest. limit is capped at 1000; 0 or less returns none.
func (s *Store) Unembedded(ctx context.Context, model string, limit int) ([]subjects.MemoryEntry, error) {
	if limit <= 0 {
		return nil, nil
	}
	var ids []string
	model = sanitize(model)
	err := s.query(ctx, appendText(&ids),
		"SELECT id"+unembeddedFrom+" ORDER BY state = 'active' DESC, row DESC LIMIT ?", model, model,
		min(limit, maxPageSize))
	if err != nil {
		return nil, fmt.Errorf("looking for entries without vectors: %w", err)
	}
	return s.Get(ctx, ids...)
}

// CountUnembedded returns the number of entries without vectors of a model, or without any if model is "".
func (s *Store) CountUnembedded(ctx context.Context, model string) (n int, err error) {
	model = sanitize(model)
	if err := s.query(ctx, func(r *sql.Rows) error {
		return r.Scan(&n)
	}, "SELECT count(*)"+unembeddedFrom, model, model); err != nil {
		return 0, fmt.Errorf("counting entries without vectors: %w", err)
	}
	return n, nil
}
