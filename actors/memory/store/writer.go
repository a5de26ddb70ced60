package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Limits of the write queue and of one transaction, in writes.
const (
	maxQueued = 256
	maxBatch  = 256
)

// writeRequest is one change in the queue of the writer.
type writeRequest struct {
	abandoned func() error    // a non-nil error = the caller no longer waits
	apply     func(*tx) error // may be called again after a rollback, and must reset what it sets outside
	done      chan error
}

// writer is the only goroutine that writes. It commits queued requests together. DuckDB has no savepoints: when one
// request fails, the transaction is rolled back and each is committed alone.
type writer struct {
	store     *Store
	conn      *sql.Conn
	queue     chan *writeRequest
	stopped   chan struct{}
	prepared  statementCache
	appenders map[string]appender // by table

	nextRow    int64
	nextEntity int64
	writes     int64          // transactions so far, see openCount
	dims       map[string]int // of each model's vectors
}

// appender adds many rows to a table quickly.
type appender interface {
	AppendRow(values ...driver.Value) error
	Flush() error
	Clear() error
	Close() error
}

// newWriter reads the counters of the file and starts the goroutine of the writer, which ends when its queue is closed.
// ctx only bounds the start. writes is the number of transactions so far.
func newWriter(ctx context.Context, s *Store, writes int64) (w *writer, err error) {
	w = &writer{
		store: s, writes: writes, queue: make(chan *writeRequest, maxQueued), stopped: make(chan struct{}),
		appenders: map[string]appender{}, dims: map[string]int{},
	}
	if w.conn, err = s.db.Conn(ctx); err != nil {
		return nil, fmt.Errorf("connecting to the memory: %w", explainError(err))
	}
	w.prepared.on = w.conn
	if err := w.loadCounters(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("reading counters: %w", err), w.conn.Close())
	}
	go w.run()
	return w, nil
}

// loadCounters reads the next free row and entity numbers, and the dimensions of each model.
func (w *writer) loadCounters(ctx context.Context) error {
	err := w.conn.QueryRowContext(ctx, `SELECT greatest((SELECT coalesce(max(row), 0) FROM entries),
		(SELECT value FROM meta WHERE name = 'high')) + 1,
		(SELECT coalesce(max(id), 0) FROM entities) + 1`).Scan(&w.nextRow, &w.nextEntity)
	if err != nil {
		return explainError(err)
	}
	rows, err := w.conn.QueryContext(ctx, "SELECT model, dims FROM models")
	return scanRows(rows, err, func(r *sql.Rows) error {
		var model string
		var dims int
		err := r.Scan(&model, &dims)
		w.dims[model] = dims
		return err
	})
}

// write queues a change and waits until it is durable. When ctx ends first the caller gets ctx's error, and the change
// may still be made. An error of run is returned and nothing is changed. run may be called again after a rollback, in
// another goroutine, and must reset what it sets outside. A closed store is [ErrClosed].
func (s *Store) write(ctx context.Context, run func(*tx) error) error {
	w := &writeRequest{abandoned: ctx.Err, apply: run, done: make(chan error, 1)}
	if err := s.enqueue(ctx, w); err != nil {
		return err
	}
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// enqueue waits for room in the queue of the writer, until ctx ends. A closed store is [ErrClosed].
func (s *Store) enqueue(ctx context.Context, w *writeRequest) error {
	s.lifecycle.RLock()
	defer s.lifecycle.RUnlock()
	if s.closed {
		return ErrClosed
	}
	select {
	case s.writer.queue <- w:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run commits queued requests in batches of at most maxBatch until the queue is closed and empty, then writes the
// remaining access counts and closes stopped.
func (w *writer) run() {
	defer close(w.stopped)
	for first := range w.queue {
		batch := []*writeRequest{first}
	waiting:
		for len(batch) < maxBatch {
			select {
			case next, ok := <-w.queue:
				if !ok {
					break waiting
				}
				batch = append(batch, next)
			default:
				break waiting
			}
		}
		w.commit(batch)
	}
	w.commitBatch(nil) // what was touched
}

// commit makes changes durable and sends each caller its result. Requests whose caller no longer waits are dropped
// unapplied. A rejected change does not affect the others: when the batch fails, each is committed alone.
func (w *writer) commit(batch []*writeRequest) {
	batch = slices.DeleteFunc(batch, func(c *writeRequest) bool {
		err := c.abandoned()
		if err != nil {
			c.done <- err
		}
		return err != nil
	})
	if len(batch) == 0 {
		return
	}
	t, err := w.commitBatch(batch)
	var ours *duckError
	switch {
	case err == nil:
		w.acknowledge(t, batch)
	case len(batch) == 1 && !errors.As(err, &ours):
		batch[0].done <- err // a rejected request would be rejected again
	default:
		for _, c := range batch {
			t, err := w.commitOnce(true, c)
			if err != nil {
				c.done <- err
				continue
			}
			w.acknowledge(t, []*writeRequest{c})
		}
	}
}

// acknowledge reports success to the callers of a committed batch, after a checkpoint where content was deleted.
func (w *writer) acknowledge(t *tx, batch []*writeRequest) {
	if t.checkpoint {
		// So that the log no longer holds deleted content. When this fails the change is durable nevertheless, and the
		// log is cleared by the next checkpoint.
		_, _ = w.conn.ExecContext(context.Background(), "CHECKPOINT "+catalog)
	}
	for _, c := range batch {
		c.done <- nil
	}
}

// commitBatch commits changes together with the access counts since the last commit; batch may be empty. On an error no
// change was made, and counts that cannot be written alone are lost.
func (w *writer) commitBatch(batch []*writeRequest) (*tx, error) {
	touched := w.store.accesses.take()
	if len(touched) == 0 {
		return w.commitOnce(false, batch...)
	}
	touches := &writeRequest{apply: func(t *tx) error { return t.writeAccesses(touched) }}
	t, err := w.commitOnce(false, append(slices.Clone(batch), touches)...)
	if err != nil && len(batch) > 0 {
		// Access counts must not make the retry fail: they are written now or lost.
		_, _ = w.commitOnce(true, touches)
	}
	return t, err
}

// commitOnce applies changes in one transaction, all or none. careful makes inserts look for conflicts before they
// write. On an error the transaction is rolled back and t is nil.
func (w *writer) commitOnce(careful bool, batch ...*writeRequest) (t *tx, err error) {
	t = &tx{w: w, checkFirst: careful, nextRow: w.nextRow, nextEntity: w.nextEntity}
	if _, err := w.conn.ExecContext(context.Background(), "BEGIN TRANSACTION"); err != nil {
		return nil, explainError(err)
	}
	for _, c := range batch {
		if err = c.apply(t); err != nil {
			break
		}
	}
	if err == nil {
		_, err = t.exec("UPDATE meta SET value = ? WHERE name = 'writes'", w.writes+1)
	}
	if err == nil {
		if _, cerr := w.conn.ExecContext(context.Background(), "COMMIT"); cerr != nil {
			err = explainError(cerr)
		}
	}
	if err != nil {
		for _, a := range w.appenders {
			_ = a.Clear()
		}
		// It fails after a failed commit, which has rolled back already.
		_, _ = w.conn.ExecContext(context.Background(), "ROLLBACK")
		return nil, err
	}
	w.nextRow, w.nextEntity, w.writes = t.nextRow, t.nextEntity, w.writes+1
	_ = w.store.writeCount(w.writes) // the change is durable; an older count finds fewer losses
	for model, dims := range t.dims {
		w.dims[model] = dims
	}
	return t, nil
}

// close closes appenders, statements and the connection. run must have ended.
func (w *writer) close() error {
	var errs []error
	for _, a := range w.appenders {
		errs = append(errs, a.Close())
	}
	return errors.Join(append(errs, w.prepared.close(), w.conn.Close())...)
}

// tx is a transaction of the writer. It is not bound to the context of any caller: a batch serves several.
type tx struct {
	w          *writer
	checkFirst bool // look for conflicts before writing: the first attempt failed

	nextRow    int64
	nextEntity int64
	dims       map[string]int // of models that this transaction adds
	rows       map[string][][]any
	checkpoint bool // checkpoint after the commit
}

// insert adds a row to a table with the next flush, which writes all rows of a table together.
func (t *tx) insert(table string, values ...any) {
	if t.rows == nil {
		t.rows = map[string][][]any{}
	}
	t.rows[table] = append(t.rows[table], values)
}

// maxSingleInserts is the number of rows up to which a prepared statement is faster than an appender.
const maxSingleInserts = 2

// flush writes the rows that insert added, in the order of tables. A table that is not in that list is never written.
func (t *tx) flush() error {
	for _, table := range tables {
		rows := t.rows[table]
		if len(rows) == 0 {
			continue
		}
		delete(t.rows, table)
		var err error
		if len(rows) <= maxSingleInserts {
			err = t.insertSingly(table, rows)
		} else {
			err = t.appendRows(table, rows)
		}
		if err != nil {
			return fmt.Errorf("writing %s: %w", table, explainError(err))
		}
	}
	return nil
}

// insertSingly writes rows one by one with a prepared statement. rows must not be empty and all have a value for every
// column.
func (t *tx) insertSingly(table string, rows [][]any) error {
	st, err := t.w.prepared.get(context.Background(), "INSERT INTO "+table+" VALUES ("+placeholders(len(rows[0]))+")")
	if err != nil {
		return err
	}
	for _, r := range rows {
		if _, err := st.ExecContext(context.Background(), r...); err != nil {
			return err
		}
	}
	return nil
}

// appendRows writes rows together with the appender of the table, which stays open for the next transaction. rows must
// not be empty and all have a value for every column.
func (t *tx) appendRows(table string, rows [][]any) error {
	a := t.w.appenders[table]
	if a == nil {
		err := t.w.conn.Raw(func(c any) (err error) {
			a, err = newAppender(c, table)
			return err
		})
		if err != nil {
			return err
		}
		t.w.appenders[table] = a
	}
	values := make([]driver.Value, len(rows[0]))
	for _, r := range rows {
		for i, v := range r {
			values[i] = v
		}
		if err := a.AppendRow(values...); err != nil {
			return err
		}
	}
	return a.Flush()
}

// exec writes the inserted rows, runs a prepared statement and returns the number of changed rows.
func (t *tx) exec(query string, args ...any) (int64, error) {
	if err := t.flush(); err != nil {
		return 0, err
	}
	st, err := t.w.prepared.get(context.Background(), query)
	if err != nil {
		return 0, explainError(err)
	}
	res, err := st.ExecContext(context.Background(), args...)
	if err != nil {
		return 0, explainError(err)
	}
	n, err := res.RowsAffected()
	return n, err
}

// query writes the inserted rows, runs a prepared statement and calls each for every row, as seen by this transaction.
func (t *tx) query(each func(*sql.Rows) error, query string, args ...any) error {
	if err := t.flush(); err != nil {
		return err
	}
	st, err := t.w.prepared.get(context.Background(), query)
	if err != nil {
		return explainError(err)
	}
	rows, err := st.QueryContext(context.Background(), args...)
	return scanRows(rows, err, each)
}

// scanRows calls each for every row and closes rows. err is the error of the query: rows may be nil then. An error of
// each ends it and is returned unchanged, others are classified by explainError.
func scanRows(rows *sql.Rows, err error, each func(*sql.Rows) error) error {
	if err != nil {
		return explainError(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := each(rows); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return explainError(err)
	}
	return nil
}

// appendText returns a function for scanRows that appends the one column of each row to a list.
func appendText(to *[]string) func(*sql.Rows) error {
	return func(r *sql.Rows) error {
		var text string
		err := r.Scan(&text)
		*to = append(*to, text)
		return err
	}
}

// placeholders returns n placeholders for values.
func placeholders(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }

// maxListed bounds the values of one IN list.
const maxListed = 512

// inList returns the placeholders of an IN list and its values. Longer lists are padded to a power of two by repeating
// the last value, so that lists of any length share few prepared statements. values must not be empty.
func inList[T any](values []T) (in string, out []any) {
	size := len(values)
	if size > exactListLength {
		for size = exactListLength; size < len(values); {
			size *= 2
		}
	}
	out = make([]any, size)
	for i := range out {
		out[i] = values[min(i, len(values)-1)]
	}
	return "(" + placeholders(size) + ")", out
}

// exactListLength is the length up to which lists are not padded.
const exactListLength = 8

// truncateTime returns t in UTC with the microsecond precision of the file.
func truncateTime(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// optionalTime returns t as a value of a column that is NULL for the zero time.
func optionalTime(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return truncateTime(t)
}
