package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// catalog is the name under which the file is attached. The database that DuckDB starts with is in memory and stays
	// empty: only an attached file can have small row groups and a path with arbitrary characters.
	catalog = "kept"
	// rowGroup is how many rows a checkpoint rewrites when one of them was added. DuckDB's default of 122,880 would
	// write a gigabyte of vectors at each checkpoint.
	rowGroup = 2048

	walSuffix  = ".wal"
	newSuffix  = ".new" // a file that is being written; it replaces the other when it is complete
	tempSuffix = ".tmp" // folder to which DuckDB spills

	maxConns = 8
)

// engine is a running DuckDB with the file attached.
type engine struct {
	db       *sql.DB
	attached atomic.Bool
}

// newEngine starts DuckDB with nothing attached. path only names the folder to which DuckDB spills; the file is not
// opened. It neither downloads nor loads extensions by itself. o must have its defaults filled in.
func newEngine(path string, o Options) (*engine, error) {
	settings := url.Values{
		"autoinstall_known_extensions": {"false"},
		"autoload_known_extensions":    {"false"},
		"allow_community_extensions":   {"false"},
		"allow_unsigned_extensions":    {"false"},
		"allow_persistent_secrets":     {"false"},
		"threads":                      {"1"}, // per query: queries are short and run concurrently
		"memory_limit":                 {o.MemoryLimit},
		"temp_directory":               {path + tempSuffix},
		// What queries have freed goes back to the system at once, and by a thread of the allocator: by default it is
		// kept.
		"allocator_flush_threshold":                   {"1MB"},
		"allocator_background_threads":                {"true"},
		"allocator_bulk_deallocation_flush_threshold": {"1MB"},
		// DuckDB caches the plan of a prepared statement, and the first two derive it from the values in the tables at
		// that time: a condition that no row met is dropped, and texts are sorted and grouped up to the length of the
		// longest. Later results would lack rows and mix texts up. The third turns each short list into a join.
		"disabled_optimizers": {"compressed_materialization,statistics_propagation,in_clause"},
	}
	e := &engine{}
	c, err := newConnector(settings.Encode(), func(x driver.ExecerContext) error {
		if !e.attached.Load() {
			return nil
		}
		_, err := x.ExecContext(context.Background(), "USE "+catalog, nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("starting DuckDB: %w", err)
	}
	e.db = sql.OpenDB(c)
	e.db.SetMaxOpenConns(maxConns)
	e.db.SetMaxIdleConns(maxConns)
	return e, nil
}

// openEngine starts DuckDB and attaches the file, which it creates if it is missing. No native code is
// loaded. A tail of zeros in the log is truncated. The error is ctx's if ctx ended, else [ErrLocked], [ErrNewer],
// [ErrDamaged] or one of the file system; DuckDB is stopped then.
func openEngine(ctx context.Context, path string, o Options) (*engine, error) {
	e, err := newEngine(path, o)
	if err != nil {
		return nil, err
	}
	err = e.attach(ctx, path)
	if err != nil && truncateZeroTail(path, err) {
		err = e.attach(ctx, path)
	}
	switch {
	case err == nil:
		return e, nil
	case ctx.Err() != nil: // canceled: not an error of the file
		err = ctx.Err()
	default:
		err = explainOpenError(path, err)
	}
	return nil, errors.Join(err, e.close())
}

// attach opens the file, or creates it if it is missing; every new connection uses it from then on. Its errors are
// DuckDB's, unclassified.
func (e *engine) attach(ctx context.Context, path string) error {
	conn, err := e.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // returns it to the pool
	for _, q := range []string{
		fmt.Sprintf("ATTACH %s AS %s (ROW_GROUP_SIZE %d)", quoteSQL(path), catalog, rowGroup),
		"USE " + catalog,
	} {
		if _, err := conn.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	e.attached.Store(true)
	return nil
}

// lockDown irrevocably denies SQL access to other files, to the network and to DuckDB's configuration. Whatever must be
// attached or loaded has to be so before.
func (e *engine) lockDown(ctx context.Context) error {
	for _, q := range []string{"SET enable_external_access = false", "SET lock_configuration = true"} {
		if _, err := e.db.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("denying DuckDB access to files and the network: %w", explainError(err))
		}
	}
	return nil
}

// skipCheckpoint disables the checkpoint at close, so that closing leaves the file unchanged.
func (e *engine) skipCheckpoint(ctx context.Context) error {
	_, err := e.db.ExecContext(ctx, "PRAGMA disable_checkpoint_on_shutdown")
	return err
}

func (e *engine) close() error {
	if err := e.db.Close(); err != nil {
		return fmt.Errorf("closing DuckDB: %w", err)
	}
	return nil
}

// quoteSQL returns s as an SQL string literal.
func quoteSQL(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// statementCache holds prepared statements by their text until close.
type statementCache struct {
	on interface { // the database or a connection
		PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	}
	mu       sync.Mutex
	prepared map[string]*sql.Stmt
}

// maxStatements bounds the cache. Reaching it is a bug: query texts come from this package and are few.
const maxStatements = 500

// get returns the prepared statement of a query text, and prepares it the first time. It fails when maxStatements are
// cached: none is evicted. The cache owns the statement: the caller must not close it.
func (r *statementCache) get(ctx context.Context, query string) (*sql.Stmt, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if st := r.prepared[query]; st != nil {
		return st, nil
	}
	if len(r.prepared) >= maxStatements {
		return nil, errors.New("too many prepared statements")
	}
	st, err := r.on.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	if r.prepared == nil {
		r.prepared = map[string]*sql.Stmt{}
	}
	r.prepared[query] = st
	return st, nil
}

// close closes all statements and empties the cache. No statement may be in use.
func (r *statementCache) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, st := range r.prepared {
		errs = append(errs, st.Close())
	}
	r.prepared = nil
	return errors.Join(errs...)
}
