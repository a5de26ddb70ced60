package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"
	"unsafe"

	"conclave/subjects"
)

// IndexEntry is an entry with the fields that the search index needs.
type IndexEntry struct {
	Row                            uint64
	ID, Kind, State, Trust, Source string
	Respondent                     string
	Name, Description              string
	Words                          string // [subjects.SearchText] of the first 2000 characters of the corpus
	Conversation, Speaker          string
	Position                       int       // in the conversation; 0 = unknown
	Happened                       time.Time // zero = unknown
	Tags                           []string
	Created                        time.Time
	Pinned                         bool
	Grades                         subjects.Grades // without feedback
	// CorpusVector is nil when the entry has no vectors of the model. NameVector and DescriptionVector are nil then,
	// and when they are the same as CorpusVector. Those of Load are valid during the callback.
	CorpusVector, NameVector, DescriptionVector []float32
}

const (
	indexColumns = "row, id, kind, state, trust, source, respondent, name, description, created, pinned, " +
		"left(corpus, 2000), conversation, position, speaker, happened"
	// loadWorkers read at the same time: one waits for the disk or for the callback while the other works.
	loadWorkers = 2
	// loadRangeSize is the number of rows that one query reads: a result is whole in memory before the first row is
	// seen.
	loadRangeSize = 2 * rowGroup
)

// Load calls each for every entry, one at a time and in no particular order, with its vectors of model where it has
// any; model "" loads no vectors. It returns when all were delivered, or with the first error of each, of the file or
// of ctx. It is meant for start-up: writes during Load may or may not be seen.
func (s *Store) Load(ctx context.Context, model string, each func(IndexEntry) error) error {
	leave, err := s.beginRead()
	if err != nil {
		return err
	}
	defer leave()
	var first, last sql.NullInt64
	err = s.query(ctx, func(r *sql.Rows) error {
		return r.Scan(&first, &last)
	}, "SELECT min(row), max(row) FROM entries")
	if err != nil {
		return fmt.Errorf("loading the memory: %w", err)
	}
	if !first.Valid {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var tasks sync.WaitGroup
	var one sync.Mutex // each is called by one at a time
	next := make(chan int64)
	for range loadWorkers {
		tasks.Go(func() {
			if err := s.loadRanges(ctx, model, next, &one, each); err != nil {
				cancel(err)
			}
		})
	}
feed:
	for from := first.Int64; from <= last.Int64; from += loadRangeSize {
		select {
		case next <- from:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	tasks.Wait()
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("loading the memory: %w", err)
	}
	return nil
}

// loadRanges reads the ranges of loadRangeSize rows that begin at the numbers from ranges, until that is closed, with a
// connection of its own. one serializes each between workers. It bypasses database/sql, which costs as much as all the
// rest.
func (s *Store) loadRanges(ctx context.Context, model string, ranges <-chan int64, one *sync.Mutex,
	each func(IndexEntry) error,
) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return explainError(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.Raw(func(c any) error {
		q, ok := c.(driver.QueryerContext)
		if !ok {
			return errors.New("no connection of DuckDB")
		}
		for from := range ranges {
			if err := loadRange(ctx, q, model, from, from+loadRangeSize-1, one, each); err != nil {
				return err
			}
		}
		return nil
	})
}

// loadRange calls each, under one, for the entries with row numbers from to to, both included. It fails with ctx's
// error once another worker has failed.
func loadRange(ctx context.Context, q driver.QueryerContext, model string, from, to int64, one *sync.Mutex,
	each func(IndexEntry) error,
) error {
	lights := make(map[int64]*IndexEntry, loadRangeSize)
	err := scanDriverRows(ctx, q, func(v []driver.Value) error {
		l, err := scanIndexEntry(v)
		lights[int64(l.Row)] = l
		return err
	}, "SELECT "+indexColumns+" FROM entries WHERE row BETWEEN ? AND ?", from, to)
	if err != nil {
		return err
	}
	err = scanDriverRows(ctx, q, func(v []driver.Value) error {
		row, tag, err := scanPair[int64, string](v)
		if l := lights[row]; l != nil {
			l.Tags = append(l.Tags, tag)
		}
		return err
	}, "SELECT row, tag FROM tags WHERE row BETWEEN ? AND ? ORDER BY row, place", from, to)
	if err != nil {
		return err
	}
	// The row of all answers to a query comes before that of the respondent.
	err = scanDriverRows(ctx, q, func(v []driver.Value) error {
		row, g, err := scanIndexGrades(v)
		if l := lights[row]; err == nil && l != nil {
			g.applyTo(&l.Grades)
		}
		return err
	}, `SELECT e.row, g.critic, g.pairwise, g.reward, g.rewards FROM entries e JOIN grades g
		ON g.query = e.query AND e.kind = 'engram' AND (g.respondent = e.respondent OR g.respondent = '')
		WHERE e.row BETWEEN ? AND ? ORDER BY e.row, g.respondent`, from, to)
	if err != nil {
		return err
	}
	deliver := func(e *IndexEntry) error {
		one.Lock()
		defer one.Unlock()
		if err := ctx.Err(); err != nil { // another worker failed
			return err
		}
		return each(*e)
	}
	return deliverRange(ctx, q, model, from, to, lights, deliver)
}

// deliverRange calls deliver for every entry of a range, with its vectors of model where it has any; model "" reads
// none. It removes entries with vectors from the map. The vectors are valid during the call only.
func deliverRange(ctx context.Context, q driver.QueryerContext, model string, from, to int64,
	entries map[int64]*IndexEntry, deliver func(*IndexEntry) error,
) error {
	if model != "" {
		err := scanDriverRows(ctx, q, func(v []driver.Value) error {
			row, _ := v[0].(int64)
			e := entries[row]
			if e == nil {
				return nil // written since
			}
			delete(entries, row)
			if err := e.setVectors(v[1], v[2], v[3], v[4]); err != nil {
				return err
			}
			return deliver(e)
		}, "SELECT row, dims, corpus, name, description FROM vectors WHERE row BETWEEN ? AND ? AND model = ?", from, to,
			model)
		if err != nil {
			return err
		}
	}
	for _, e := range entries {
		if err := deliver(e); err != nil {
			return err
		}
	}
	return nil
}

// scanDriverRows runs a query on the driver's connection and calls each for every row. An error of each ends it. The
// values are valid until each returns.
func scanDriverRows(ctx context.Context, q driver.QueryerContext, each func([]driver.Value) error, query string,
	args ...any,
) error {
	named := make([]driver.NamedValue, len(args))
	for i, a := range args {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: a}
	}
	rows, err := q.QueryContext(ctx, query, named)
	if err != nil {
		return explainError(err)
	}
	values := make([]driver.Value, len(rows.Columns()))
	for err == nil {
		switch err = rows.Next(values); {
		case err == nil:
			err = each(values)
		case errors.Is(err, io.EOF):
			return rows.Close()
		default:
			err = explainError(err)
		}
	}
	return errors.Join(err, rows.Close())
}

var errColumns = errors.New("a column is not what it should be")

// scanPair returns the first two columns of a row, or errColumns if they have other types.
func scanPair[A, B any](v []driver.Value) (a A, b B, err error) {
	a, one := v[0].(A)
	b, two := v[1].(B)
	if !one || !two {
		err = errColumns
	}
	return a, b, err
}

// scanIndexEntry reads a row of indexColumns, or fails with errColumns if one has another type. The entry is never nil.
func scanIndexEntry(v []driver.Value) (*IndexEntry, error) {
	l := &IndexEntry{}
	ok := true
	row, is := v[0].(int64)
	ok = ok && is
	l.Row = uint64(row)
	for i, to := range []*string{
		&l.ID, &l.Kind, &l.State, &l.Trust, &l.Source, &l.Respondent, &l.Name,
		&l.Description,
	} {
		*to, is = v[1+i].(string)
		ok = ok && is
	}
	l.Created, is = v[9].(time.Time)
	ok = ok && is
	l.Pinned, is = v[10].(bool)
	ok = ok && is
	l.Words, is = v[11].(string)
	ok = ok && is
	l.Conversation, is = v[12].(string)
	ok = ok && is
	position, is := v[13].(int32)
	ok = ok && is
	l.Speaker, is = v[14].(string)
	if !ok || !is {
		return l, errColumns
	}
	happened, known := v[15].(time.Time)
	l.setContext(int(position), sql.NullTime{Time: happened, Valid: known})
	return l, nil
}

// setContext sets position and times of l, and its Words, which hold the corpus. Speaker must be set.
func (l *IndexEntry) setContext(position int, happened sql.NullTime) {
	l.Position, l.Created, l.Happened = position, l.Created.UTC(), timeOrZero(happened)
	l.Words = subjects.SearchText(l.Speaker, l.Happened, l.Words)
}

// setVectors sets the vectors of l from columns of the table vectors, whose bytes they may share; name and description
// may be NULL. A size that does not match dims is [ErrDamaged].
func (l *IndexEntry) setVectors(dims, corpus, name, description driver.Value) error {
	n, _ := dims.(int32)
	for i, column := range []driver.Value{corpus, name, description} {
		b, _ := column.([]byte)
		if b == nil && i > 0 {
			continue
		}
		if n <= 0 || len(b) != int(n)*4 {
			return fmt.Errorf("%w: the vectors of %s have the wrong size", ErrDamaged, l.ID)
		}
		*[]*[]float32{&l.CorpusVector, &l.NameVector, &l.DescriptionVector}[i] = unpackVector(b)
	}
	return nil
}

// littleEndian says whether numbers stand in the file as they stand in memory.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// unpackVector decodes a vector of packVector. Where the machine allows it the result shares the memory of b, because
// vectors are many. The length of b must be a multiple of 4.
func unpackVector(b []byte) []float32 {
	if p := unsafe.Pointer(unsafe.SliceData(b)); littleEndian && uintptr(p)%unsafe.Alignof(float32(0)) == 0 {
		return unsafe.Slice((*float32)(p), len(b)/4)
	}
	v := make([]float32, len(b)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v
}

// scanIndexGrades reads a row number and grades without feedback, or fails with errColumns. A NULL critic or pairwise
// grade stays unset.
func scanIndexGrades(v []driver.Value) (row int64, g gradeRow, err error) {
	row, one := v[0].(int64)
	g.critic.Int32, g.critic.Valid = v[1].(int32)
	g.pairwise.String, g.pairwise.Valid = v[2].(string)
	g.reward, _ = v[3].(float64)
	n, two := v[4].(int32)
	g.rewards = int(n)
	if !one || !two {
		err = errColumns
	}
	return row, g, err
}

// IndexEntries returns entries for the index in the order of ids, with their vectors of model; model "" reads none.
// Unknown ids are left out.
func (s *Store) IndexEntries(ctx context.Context, model string, ids ...string) ([]IndexEntry, error) {
	ids = unique(sanitizeAll(ids))
	byRow := map[int64]*IndexEntry{}
	err := s.readSnapshot(ctx, func(m snapshot) error {
		for chunk := range slices.Chunk(ids, maxListed) {
			if err := readIndexEntries(ctx, m, model, chunk, byRow); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading entries: %w", err)
	}
	out := make([]IndexEntry, 0, len(byRow))
	for _, l := range byRow {
		out = append(out, *l)
	}
	order := positions(ids)
	slices.SortFunc(out, func(a, b IndexEntry) int { return order[a.ID] - order[b.ID] })
	return out, nil
}

// readIndexEntries reads the entries with these ids into byRow, with tags, grades and their vectors of model ("" =
// none). ids must not be empty and hold at most maxListed.
func readIndexEntries(ctx context.Context, m snapshot, model string, ids []string, byRow map[int64]*IndexEntry) error {
	in, named := inList(ids)
	var rows []int64
	var grades []gradeTarget
	err := m.query(ctx, func(r *sql.Rows) error {
		var l IndexEntry
		var row int64
		var query string
		var happened sql.NullTime
		err := r.Scan(&row, &l.ID, &l.Kind, &l.State, &l.Trust, &l.Source, &l.Respondent, &l.Name, &l.Description,
			&l.Created, &l.Pinned, &l.Words,
			&l.Conversation, &l.Position, &l.Speaker, &happened, &query)
		l.Row = uint64(row)
		l.setContext(l.Position, happened)
		byRow[row] = &l
		rows = append(rows, row)
		if l.Kind == subjects.KindEngram && query != "" {
			grades = append(grades, gradeTarget{query, l.Respondent, &l.Grades})
		}
		return err
	}, "SELECT "+indexColumns+", query FROM entries WHERE id IN "+in, named...)
	if err != nil || len(rows) == 0 {
		return err
	}
	if err := readTags(ctx, m, rows, func(row int64, tags []string) { byRow[row].Tags = tags }); err != nil {
		return err
	}
	if err := readGrades(ctx, m, grades); err != nil {
		return err
	}
	for _, g := range grades {
		g.to.Feedback = ""
	}
	if model == "" {
		return nil
	}
	inRows, numbers := inList(rows)
	return m.query(ctx, func(r *sql.Rows) error {
		var row int64
		var by string
		var dims int32
		var corpus, name, description []byte
		if err := r.Scan(&row, &by, &dims, &corpus, &name, &description); err != nil || by != model {
			return err
		}
		return byRow[row].setVectors(dims, corpus, name, description)
	}, "SELECT row, model, dims, corpus, name, description FROM vectors WHERE row IN "+inRows, numbers...)
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
