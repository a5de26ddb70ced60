package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"conclave/subjects"
)

// States of an answer that [Store.FindAnswer] returns.
const (
	Stored    = "stored"
	Forgotten = "forgotten"
)

const answerQuery = "SELECT coalesce(id, ''), CASE WHEN id IS NULL THEN '" + Forgotten + "' ELSE '" + Stored +
	"' END FROM answers WHERE answer = ?"

// FindAnswer returns the state of the answer of respondent to a query, [Stored] with its id or [Forgotten]; "" means
// never stored.
func (s *Store) FindAnswer(ctx context.Context, query, respondent string) (id, state string, err error) {
	err = s.query(ctx, func(r *sql.Rows) error {
		return r.Scan(&id, &state)
	}, answerQuery, answerKey(sanitize(query), sanitize(respondent)))
	if err != nil {
		return "", "", fmt.Errorf("finding an answer: %w", err)
	}
	return id, state, nil
}

// querier is the store or a [snapshot] of it. each is called for every row.
type querier interface {
	query(ctx context.Context, each func(*sql.Rows) error, query string, args ...any) error
}

// query runs a prepared statement outside of a snapshot and calls each for every row. Query texts must be few:
// statements are cached by text. A closed store is [ErrClosed].
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

// snapshot is a read transaction, for several queries whose results must be consistent.
type snapshot struct {
	s  *Store
	tx *sql.Tx
}

// query runs a prepared and cached statement.
func (m snapshot) query(ctx context.Context, each func(*sql.Rows) error, query string, args ...any) error {
	st, err := m.s.statements.get(ctx, query)
	if err != nil {
		return explainError(err)
	}
	rows, err := m.tx.StmtContext(ctx, st).QueryContext(ctx, args...)
	return scanRows(rows, err, each)
}

// queryOnce runs a statement that is built for one call, without caching it.
func (m snapshot) queryOnce(ctx context.Context, each func(*sql.Rows) error, query string, args ...any) error {
	rows, err := m.tx.QueryContext(ctx, query, args...)
	return scanRows(rows, err, each)
}

// readSnapshot calls read with a snapshot that is valid until read returns, and returns its error. It does not wait for
// writes and does not see those committed meanwhile. A closed store is [ErrClosed].
func (s *Store) readSnapshot(ctx context.Context, read func(snapshot) error) error {
	leave, err := s.beginRead()
	if err != nil {
		return err
	}
	defer leave()
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return explainError(err)
	}
	defer func() { _ = tx.Rollback() }() // it only read
	return read(snapshot{s, tx})
}

// entryColumns are the columns that scanEntry reads, in its order.
const entryColumns = `row, id, kind, state, trust, source, name, description, intent, entities, sentiment,
	respondent, agent, session, query, origin, part,
	model, digest, flags, superseded_by, pinned, created, updated, conversation, position, speaker, happened, corpus`

// storedEntry is an entry and its row number.
type storedEntry struct {
	row int64
	subjects.MemoryEntry
}

// scanEntry reads a row of entryColumns. Fields that are in other tables stay empty. A list that is not valid JSON is
// [ErrDamaged].
func scanEntry(r *sql.Rows) (e storedEntry, err error) {
	var entities, flags string
	var happened sql.NullTime
	p := &e.Provenance
	err = r.Scan(&e.row, &e.ID, &e.Kind, &e.State, &p.Trust, &p.Source, &e.Name, &e.Description, &e.Intent, &entities,
		&e.Sentiment, &e.Respondent,
		&p.Agent, &p.SessionID, &p.QueryID, &p.From, &p.Part, &p.Model, &p.Digest, &flags, &e.SupersededBy, &e.Pinned,
		&e.Created, &e.Updated,
		&e.Conversation, &e.Position, &e.Speaker, &happened, &e.Corpus)
	if err != nil {
		return e, err
	}
	e.Created, e.Updated, e.Happened = e.Created.UTC(), e.Updated.UTC(), timeOrZero(happened)
	if e.Entities, err = decodeList(entities); err != nil {
		return e, err
	}
	p.Flags, err = decodeList(flags)
	return e, err
}

// timeOrZero returns the time of a column in UTC, zero for NULL.
func timeOrZero(t sql.NullTime) time.Time {
	if !t.Valid {
		return time.Time{}
	}
	return t.Time.UTC()
}

// Get reads whole entries in the order of ids, each once. Ids that do not exist are left out, without an error.
func (s *Store) Get(ctx context.Context, ids ...string) (out []subjects.MemoryEntry, err error) {
	if len(ids) == 0 {
		return []subjects.MemoryEntry{}, nil
	}
	err = s.readSnapshot(ctx, func(m snapshot) error {
		all, err := readEntries(ctx, m, ids)
		if err == nil {
			err = s.fillRelated(ctx, m, all)
		}
		out = entriesOf(all)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading entries: %w", err)
	}
	return out, nil
}

// GetTexts reads entries in the order of ids without tags, links, grades, access counts and Supersedes, which are in
// other tables. Ids that do not exist are left out. It is one statement, where [Store.Get] is seven.
func (s *Store) GetTexts(ctx context.Context, ids ...string) ([]subjects.MemoryEntry, error) {
	all, err := readEntries(ctx, s, ids)
	if err != nil {
		return nil, fmt.Errorf("reading entries: %w", err)
	}
	return entriesOf(all), nil
}

// readEntries reads entries in the order of ids, each once, without what is in other tables.
func readEntries(ctx context.Context, m querier, ids []string) (all []storedEntry, err error) {
	ids = unique(sanitizeAll(ids))
	for chunk := range slices.Chunk(ids, maxListed) {
		in, named := inList(chunk)
		err := m.query(ctx, func(r *sql.Rows) error {
			e, err := scanEntry(r)
			all = append(all, e)
			return err
		}, "SELECT "+entryColumns+" FROM entries WHERE id IN "+in, named...)
		if err != nil {
			return nil, err
		}
	}
	order := positions(ids)
	slices.SortFunc(all, func(a, b storedEntry) int { return order[a.ID] - order[b.ID] })
	return all, nil
}

// FindPosition returns the position of the answers to a query among the entries of this trust in a conversation: that
// of one that is stored, or else the one after the last entry. query may be "". Entries of another trust do not count:
// their positions may be chosen by anybody.
func (s *Store) FindPosition(ctx context.Context, conversation, trust, query string) (n int, err error) {
	err = s.query(ctx, func(r *sql.Rows) error { return r.Scan(&n) },
		"SELECT coalesce(max(CASE WHEN query = ? AND query <> '' AND position > 0 THEN position END), max(position) "+
			"+ 1, 1) FROM entries WHERE conversation = ? AND trust = ?",
		sanitize(query), sanitize(conversation), trust)
	if err != nil {
		return 0, fmt.Errorf("finding the position in a conversation: %w", err)
	}
	return min(n, subjects.MaxPosition), nil
}

// positions maps each value to its first index in list.
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

// fillRelated sets the fields of entries that are in other tables: tags, links, access counts, Supersedes and grades.
func (s *Store) fillRelated(ctx context.Context, m querier, all []storedEntry) error {
	for chunk := range slices.Chunk(all, maxListed) {
		if err := s.fillRelatedChunk(ctx, m, chunk); err != nil {
			return err
		}
	}
	return nil
}

// fillRelatedChunk is fillRelated for 1 to maxListed entries. Links and Supersedes are sorted by id, and access counts
// include those not written yet.
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
	// Sorting happens here: in DuckDB it costs more than the reading.
	err := readTags(ctx, m, oneOf("row", rows), func(row int64, tags []string) { byRow[row].Tags = tags })
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

// readTags calls set with the tags, in their order, of each row with any that a condition on the table tags selects.
func readTags(ctx context.Context, m querier, rows condition, set func(row int64, tags []string)) error {
	type tag struct {
		place int
		word  string
	}
	all := map[int64][]tag{}
	err := m.query(ctx, func(r *sql.Rows) error {
		var row int64
		var t tag
		err := r.Scan(&row, &t.place, &t.word)
		all[row] = append(all[row], t)
		return err
	}, "SELECT row, place, tag FROM tags WHERE "+rows.sql, rows.args...)
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

// Correlated reads the whole entries that are linked with any of ids, without those in ids, sorted by id (per maxListed
// of ids). Unknown ids have no links.
func (s *Store) Correlated(ctx context.Context, ids ...string) ([]subjects.MemoryEntry, error) {
	ids = unique(sanitizeAll(ids))
	var others []string
	for chunk := range slices.Chunk(ids, maxListed) {
		in, named := inList(chunk)
		err := s.query(ctx, appendText(&others),
			"SELECT DISTINCT other FROM links WHERE row IN (SELECT row FROM entries WHERE id IN "+in+") ORDER BY other",
			named...)
		if err != nil {
			return nil, fmt.Errorf("reading links: %w", err)
		}
	}
	others = slices.DeleteFunc(others, func(id string) bool { return slices.Contains(ids, id) })
	return s.Get(ctx, others...)
}

// maxIDMatches bounds the result of [Store.FindIDs].
const maxIDMatches = 10

// FindIDs returns the ids with a prefix in alphabetical order, an exact match first, at most maxIDMatches. "" matches
// every id.
func (s *Store) FindIDs(ctx context.Context, prefix string) (ids []string, err error) {
	err = s.query(ctx, appendText(&ids),
		fmt.Sprintf("SELECT id FROM entries WHERE starts_with(id, ?) ORDER BY id = ? DESC, id LIMIT %d", maxIDMatches),
		sanitize(prefix), sanitize(prefix))
	if err != nil {
		return nil, fmt.Errorf("finding ids: %w", err)
	}
	return ids, nil
}
