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
	Vectors *Vectors // nil = none of the model
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
	err := s.readSnapshot(ctx, func(m snapshot) error {
		return readIndexEntries(ctx, m, model, rows, func() condition { return rows }, all)
	})
	if err != nil {
		return err
	}
	one.Lock()
	defer one.Unlock()
	for _, e := range all {
		if ctx.Err() != nil { // another worker failed
			return ctx.Err()
		}
		if err := each(*e); err != nil {
			return err
		}
	}
	return nil
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
			if err := readIndexEntries(ctx, m, model, oneOf("id", chunk), rows, all); err != nil {
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

// readIndexEntries reads the entries that a condition selects into byRow, with tags, grades and their vectors of model
// ("" = none). Tables that have no ids are read by rows, which is called when there is an entry in byRow.
func readIndexEntries(ctx context.Context, m snapshot, model string, selected condition, rows func() condition,
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
	tables := rows()
	err = readTags(ctx, m, tables, func(row int64, tags []string) {
		if e := byRow[row]; e != nil {
			e.Tags = tags
		}
	})
	if err != nil || model == "" {
		return err
	}
	return m.query(ctx, func(r *sql.Rows) error {
		var row int64
		var by string
		var dims int
		var texts [3]sql.RawBytes // valid until the next row
		err := r.Scan(&row, &by, &dims, &texts[0], &texts[1], &texts[2])
		if e := byRow[row]; err == nil && e != nil && by == model {
			e.Vectors, err = unpackVectors(e.ID, by, dims, texts)
		}
		return err
	}, "SELECT row, model, dims, corpus, name, description FROM vectors WHERE "+tables.sql, tables.args...)
}

// unpackVectors decodes the vectors of corpus, name and description; the last two may be nil. A size that does not
// match dims is [ErrDamaged].
func unpackVectors(id, model string, dims int, texts [3]sql.RawBytes) (*Vectors, error) {
	v := &Vectors{Model: model}
	for i, to := range []*[]float32{&v.Corpus, &v.Name, &v.Description} {
		if texts[i] == nil && i > 0 {
			continue
		}
		if dims <= 0 || len(texts[i]) != 4*dims {
			return nil, fmt.Errorf("%w: the vectors of %s have the wrong size", ErrDamaged, id)
		}
		*to = make([]float32, dims)
		for d := range *to {
			(*to)[d] = math.Float32frombits(binary.LittleEndian.Uint32(texts[i][4*d:]))
		}
	}
	return v, nil
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
