package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"conclave/subjects"
)

// What became of an answer, as [Store.FindAnswer] tells.
const (
	Stored    = "stored"
	Forgotten = "forgotten"
)

const answerQuery = "SELECT id FROM answers WHERE answer = ?"

func scanAnswer(r *sql.Rows) (id, state string, err error) {
	var is sql.NullString
	if err := r.Scan(&is); err != nil {
		return "", "", err
	}
	if !is.Valid {
		return "", Forgotten, nil
	}
	return is.String, Stored, nil
}

// FindAnswer tells what became of the answer of respondent to a question: "" when it was never seen.
func (s *Store) FindAnswer(ctx context.Context, query, respondent string) (id, state string, err error) {
	err = s.query(ctx, func(r *sql.Rows) error {
		id, state, err = scanAnswer(r)
		return err
	}, answerQuery, answerKey(sanitize(query), sanitize(respondent)))
	if err != nil {
		return "", "", fmt.Errorf("looking for an answer: %w", err)
	}
	return id, state, nil
}

// caller is who can be asked: the store, or a moment of it.
type querier interface {
	query(ctx context.Context, each func(*sql.Rows) error, query string, args ...any) error
}

// query asks the store as it is now.
func (s *Store) query(ctx context.Context, each func(*sql.Rows) error, query string, args ...any) error {
	leave, err := s.beginRead()
	if err != nil {
		return err
	}
	defer leave()
	st, err := s.statements.get(ctx, query)
	if err != nil {
		return explainError(err)
	}
	rows, err := st.QueryContext(ctx, args...)
	return scanRows(rows, err, each)
}

// snapshot is the store as it is at one moment, for several questions whose answers must fit together.
type snapshot struct {
	s  *Store
	tx *sql.Tx
}

// query asks one of the questions that are asked often.
func (m snapshot) query(ctx context.Context, each func(*sql.Rows) error, query string, args ...any) error {
	st, err := m.s.statements.get(ctx, query)
	if err != nil {
		return explainError(err)
	}
	rows, err := m.tx.StmtContext(ctx, st).QueryContext(ctx, args...)
	return scanRows(rows, err, each)
}

// queryOnce asks a question that is put together for one time.
func (m snapshot) queryOnce(ctx context.Context, each func(*sql.Rows) error, query string, args ...any) error {
	rows, err := m.tx.QueryContext(ctx, query, args...)
	return scanRows(rows, err, each)
}

// readSnapshot asks several questions about one moment.
func (s *Store) readSnapshot(ctx context.Context, ask func(snapshot) error) error {
	leave, err := s.beginRead()
	if err != nil {
		return err
	}
	defer leave()
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return explainError(err)
	}
	defer func() { _ = tx.Rollback() }() // nothing was changed
	return ask(snapshot{s, tx})
}

// entryColumns are what an entry is made of, in the order of scanEntry. The corpus is the last one.
const entryColumns = `row, id, kind, state, trust, source, name, description, intent, entities, sentiment, respondent, agent, session, query, origin, part,
	model, digest, flags, superseded_by, pinned, created, updated, `

// storedEntry is an entry and the number of its row.
type storedEntry struct {
	row int64
	subjects.MemoryEntry
}

func scanEntry(r *sql.Rows) (e storedEntry, err error) {
	var entities, flags string
	p := &e.Provenance
	err = r.Scan(&e.row, &e.ID, &e.Kind, &e.State, &p.Trust, &p.Source, &e.Name, &e.Description, &e.Intent, &entities, &e.Sentiment, &e.Respondent,
		&p.Agent, &p.SessionID, &p.QueryID, &p.From, &p.Part, &p.Model, &p.Digest, &flags, &e.SupersededBy, &e.Pinned, &e.Created, &e.Updated, &e.Corpus)
	if err != nil {
		return e, err
	}
	e.Created, e.Updated = e.Created.UTC(), e.Updated.UTC()
	if e.Entities, err = decodeList(entities); err != nil {
		return e, err
	}
	p.Flags, err = decodeList(flags)
	return e, err
}

// Get reads entries in the order asked. Those that are not there are left out.
func (s *Store) Get(ctx context.Context, ids ...string) ([]subjects.MemoryEntry, error) {
	ids = unique(sanitizeAll(ids))
	all, err := s.readEntries(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("reading entries: %w", err)
	}
	order := positions(ids)
	slices.SortFunc(all, func(a, b storedEntry) int { return order[a.ID] - order[b.ID] })
	return entriesOf(all), nil
}

// GetTexts reads entries as they stand in their own table, in the order asked: all but tags, links, grades, access and what
// they superseded. It is one statement, where [Store.Get] is seven.
func (s *Store) GetTexts(ctx context.Context, ids ...string) ([]subjects.MemoryEntry, error) {
	ids = unique(sanitizeAll(ids))
	var all []storedEntry
	for chunk := range slices.Chunk(ids, maxListed) {
		in, named := inList(chunk)
		err := s.query(ctx, func(r *sql.Rows) error {
			e, err := scanEntry(r)
			all = append(all, e)
			return err
		}, "SELECT "+entryColumns+"corpus FROM entries WHERE id IN "+in, named...)
		if err != nil {
			return nil, fmt.Errorf("reading entries: %w", err)
		}
	}
	order := positions(ids)
	slices.SortFunc(all, func(a, b storedEntry) int { return order[a.ID] - order[b.ID] })
	return entriesOf(all), nil
}

// HasGrades reports whether somebody has said something about the answers to a question.
func (s *Store) HasGrades(ctx context.Context, query string) (is bool, err error) {
	err = s.query(ctx, func(r *sql.Rows) error { return r.Scan(&is) }, "SELECT count(*) > 0 FROM grades WHERE query = ?", sanitize(query))
	if err != nil {
		return false, fmt.Errorf("looking for grades: %w", err)
	}
	return is, nil
}

// GetRows reads entries by the numbers of their rows, in the order asked. Those that are not there are left out.
func (s *Store) GetRows(ctx context.Context, rows ...uint64) ([]subjects.MemoryEntry, error) {
	numbers := make([]int64, 0, len(rows))
	for _, r := range rows {
		if r <= 1<<62 {
			numbers = append(numbers, int64(r))
		}
	}
	// By their ids, which an index finds: a number leads to the 2048 rows around it, and all their texts would be read.
	var ids []string
	for chunk := range slices.Chunk(numbers, maxListed) {
		in, named := inList(chunk)
		err := s.query(ctx, func(r *sql.Rows) error {
			var id string
			err := r.Scan(&id)
			ids = append(ids, id)
			return err
		}, "SELECT id FROM entries WHERE row IN "+in, named...)
		if err != nil {
			return nil, fmt.Errorf("reading entries: %w", err)
		}
	}
	all, err := s.readEntries(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("reading entries: %w", err)
	}
	order := positions(numbers)
	slices.SortFunc(all, func(a, b storedEntry) int { return order[a.row] - order[b.row] })
	return entriesOf(all), nil
}

// positions says where each stands.
func positions[T comparable](list []T) map[T]int {
	m := make(map[T]int, len(list))
	for i, v := range list {
		if _, there := m[v]; !there {
			m[v] = i
		}
	}
	return m
}

func entriesOf(all []storedEntry) []subjects.MemoryEntry {
	out := make([]subjects.MemoryEntry, len(all))
	for i, e := range all {
		out[i] = e.MemoryEntry
	}
	return out
}

// readEntries reads entries with everything that belongs to them.
func (s *Store) readEntries(ctx context.Context, ids []string) (all []storedEntry, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	err = s.readSnapshot(ctx, func(m snapshot) error {
		for chunk := range slices.Chunk(ids, maxListed) {
			in, named := inList(chunk)
			err := m.query(ctx, func(r *sql.Rows) error {
				e, err := scanEntry(r)
				all = append(all, e)
				return err
			}, "SELECT "+entryColumns+"corpus FROM entries WHERE id IN "+in, named...)
			if err != nil {
				return err
			}
		}
		return s.fillRelated(ctx, m, all)
	})
	return all, err
}

// fillRelated adds to entries what stands in other tables.
func (s *Store) fillRelated(ctx context.Context, m querier, all []storedEntry) error {
	for chunk := range slices.Chunk(all, maxListed) {
		if err := s.fillRelatedChunk(ctx, m, chunk); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) fillRelatedChunk(ctx context.Context, m querier, all []storedEntry) error {
	byRow, byID := map[int64]*storedEntry{}, map[string]*storedEntry{}
	rows, ids := make([]int64, len(all)), make([]string, len(all))
	for i := range all {
		e := &all[i]
		byRow[e.row], byID[e.ID] = e, e
		rows[i], ids[i] = e.row, e.ID
	}
	inRows, numbers := inList(rows)
	inIDs, names := inList(ids)
	// What there is in each table is put in order here: that costs DuckDB more than the reading.
	err := readTags(ctx, m, rows, func(row int64, tags []string) { byRow[row].Tags = tags })
	if err != nil {
		return err
	}
	err = m.query(ctx, func(r *sql.Rows) error {
		var row int64
		var other string
		err := r.Scan(&row, &other)
		byRow[row].Correlating = append(byRow[row].Correlating, other)
		return err
	}, "SELECT row, other FROM links WHERE row IN "+inRows, numbers...)
	if err != nil {
		return err
	}
	err = m.query(ctx, func(r *sql.Rows) error {
		var row int64
		var times int
		var last time.Time
		err := r.Scan(&row, &times, &last)
		byRow[row].Accesses, byRow[row].Accessed = times, last.UTC()
		return err
	}, "SELECT row, times, last FROM access WHERE row IN "+inRows, numbers...)
	if err != nil {
		return err
	}
	err = m.query(ctx, func(r *sql.Rows) error {
		var old, by string
		err := r.Scan(&old, &by)
		byID[by].Supersedes = append(byID[by].Supersedes, old)
		return err
	}, "SELECT id, superseded_by FROM entries WHERE superseded_by IN "+inIDs, names...)
	if err != nil {
		return err
	}
	grades := make([]gradeTarget, 0, len(all))
	for i := range all {
		e := &all[i]
		slices.Sort(e.Correlating)
		slices.Sort(e.Supersedes)
		if isAnswer(e.MemoryEntry) {
			grades = append(grades, gradeTarget{e.Provenance.QueryID, e.Respondent, &e.Grades})
		}
	}
	if err := readGrades(ctx, m, grades); err != nil {
		return err
	}
	s.accesses.addTo(byID)
	return nil
}

// readTags reads the tags of rows in their order.
func readTags(ctx context.Context, m querier, rows []int64, set func(row int64, tags []string)) error {
	type tag struct {
		place int
		word  string
	}
	all := map[int64][]tag{}
	in, numbers := inList(rows)
	err := m.query(ctx, func(r *sql.Rows) error {
		var row int64
		var t tag
		err := r.Scan(&row, &t.place, &t.word)
		all[row] = append(all[row], t)
		return err
	}, "SELECT row, place, tag FROM tags WHERE row IN "+in, numbers...)
	if err != nil {
		return err
	}
	for row, tags := range all {
		slices.SortFunc(tags, func(a, b tag) int { return a.place - b.place })
		words := make([]string, len(tags))
		for i, t := range tags {
			words[i] = t.word
		}
		set(row, words)
	}
	return nil
}

// Correlated reads what goes with any of these, without these.
func (s *Store) Correlated(ctx context.Context, ids ...string) ([]subjects.MemoryEntry, error) {
	ids = unique(sanitizeAll(ids))
	var others []string
	for chunk := range slices.Chunk(ids, maxListed) {
		in, named := inList(chunk)
		err := s.query(ctx, func(r *sql.Rows) error {
			var id string
			err := r.Scan(&id)
			others = append(others, id)
			return err
		}, "SELECT DISTINCT other FROM links WHERE row IN (SELECT row FROM entries WHERE id IN "+in+") ORDER BY other", named...)
		if err != nil {
			return nil, fmt.Errorf("looking for what goes together: %w", err)
		}
	}
	others = slices.DeleteFunc(others, func(id string) bool { return slices.Contains(ids, id) })
	return s.Get(ctx, others...)
}

// maxIDMatches is how many ids with the same beginning are told.
const maxIDMatches = 10

// FindIDs finds the ids that begin with some letters, at most ten.
func (s *Store) FindIDs(ctx context.Context, letters string) (ids []string, err error) {
	err = s.query(ctx, func(r *sql.Rows) error {
		var id string
		err := r.Scan(&id)
		ids = append(ids, id)
		return err
	}, fmt.Sprintf("SELECT id FROM entries WHERE starts_with(id, ?) ORDER BY id = ? DESC, id LIMIT %d", maxIDMatches), sanitize(letters), sanitize(letters))
	if err != nil {
		return nil, fmt.Errorf("looking for an id: %w", err)
	}
	return ids, nil
}
