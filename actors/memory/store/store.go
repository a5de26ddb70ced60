// Package store is memory's system of record: one DuckDB file. It is the only importer of DuckDB.
//
// What is written is durable when the call returns: a transaction is in the log and the log is synced. One goroutine
// writes; what waits for it together is committed together. Readers never wait for it.
//
// No index over vectors is in the file. They are kept as plain bytes and read into memory at the start ([Store.Load]).
//
// Without a C compiler the package builds and [Open] returns [ErrNoDuckDB].
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Options is how the database is opened. The zero value is useful.
type Options struct {
	Threads     int              // of one query; 0 = 1: queries are short, and several run beside each other
	MemoryLimit string           // of DuckDB, in its words: "512MB"; "" = 512MB
	VSS         string           // file of DuckDB's extension for approximate search; "" = not used
	Now         func() time.Time // nil = time.Now
}

// Usual settings.
const (
	defaultThreads     = 1
	defaultMemoryLimit = "512MB"
)

func (o Options) withDefaults() Options {
	if o.Threads <= 0 {
		o.Threads = defaultThreads
	}
	if o.MemoryLimit == "" {
		o.MemoryLimit = defaultMemoryLimit
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Store is the open file. Its methods may be called by many at once.
type Store struct {
	path       string
	opts       Options
	engine     *engine
	db         *sql.DB
	writer     *writer
	statements statementCache
	vssErr     error // why there is no approximate search
	accesses   accessCounts
	steps      []string // of the schema

	lifecycle sync.RWMutex // held for reading by whoever hands in a write, and for a moment by whoever begins to read
	closed    bool
	readers   sync.WaitGroup // readers
	release   func()         // lets others in this process open the file
}

// Open opens the memory at path, an absolute or relative name of a file. It makes the folder closed to others, and the
// file; brings an older file up to date; and recovers what a crash left in the log.
//
// A file that cannot be used is never changed: [ErrDamaged], [ErrNewer] and [ErrLocked] say what to do.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	return openWithSteps(ctx, path, o, steps)
}

// openWithSteps is Open with other steps of the schema, for tests.
func openWithSteps(ctx context.Context, path string, o Options, steps []string) (*Store, error) {
	if !haveDuckDB {
		return nil, ErrNoDuckDB
	}
	o = o.withDefaults()
	path, free, err := claimPath(path)
	if err != nil {
		return nil, err
	}
	s := &Store{path: path, opts: o, release: free, steps: steps}
	if err := s.start(ctx); err != nil {
		if s.engine != nil {
			err = errors.Join(err, s.engine.close())
		}
		free()
		return nil, err
	}
	return s, nil
}

func (s *Store) start(ctx context.Context) error {
	if err := s.prepareFile(ctx); err != nil {
		return err
	}
	var err error
	if s.engine, s.vssErr, err = openEngine(ctx, s.path, s.opts); err != nil {
		return err
	}
	s.db = s.engine.db
	if err := removeLeftovers(s.path); err != nil {
		return err
	}
	if err := migrate(ctx, s.engine, s.path, s.steps); err != nil {
		return err
	}
	if err := s.engine.lockDown(ctx); err != nil {
		return err
	}
	s.statements.db = s.db
	s.writer, err = newWriter(ctx, s)
	return err
}

// beginRead is called by whoever reads, before; he calls leave after. The file is not closed in between.
func (s *Store) beginRead() (leave func(), err error) {
	s.lifecycle.RLock()
	defer s.lifecycle.RUnlock()
	if s.closed {
		return nil, ErrClosed
	}
	s.readers.Add(1)
	return s.readers.Done, nil
}

// Close waits for what was handed in and for those who read, writes the log into the file and closes it. When something
// was forgotten since the file was last written anew it writes it anew ([Compact]); when ctx ends before, that is left for
// the next time.
func (s *Store) Close(ctx context.Context) error {
	s.lifecycle.Lock()
	if s.closed {
		s.lifecycle.Unlock()
		return nil
	}
	s.closed = true
	close(s.writer.queue)
	s.lifecycle.Unlock()
	<-s.writer.stopped
	s.readers.Wait()
	defer s.release()

	forgot, err := s.readMark(context.WithoutCancel(ctx), markForgot)
	errs := []error{err}
	if _, err := s.db.ExecContext(context.WithoutCancel(ctx), "CHECKPOINT "+catalog); err != nil {
		errs = append(errs, fmt.Errorf("writing the log into the file: %w", explainError(err)))
	}
	errs = append(errs, s.writer.close(), s.statements.close(), s.engine.close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing the memory: %w", err)
	}
	if forgot == 0 {
		return nil
	}
	if err := rewriteFile(ctx, s.path, s.opts, s.steps); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// Size is how many bytes the file and its log have.
func (s *Store) Size() int64 {
	var sum int64
	for _, name := range []string{s.path, s.path + walSuffix} {
		// Looking at it is harmless. Opening and closing it would give up the lock that DuckDB holds on it.
		if info, err := os.Stat(name); err == nil {
			sum += info.Size()
		}
	}
	return sum
}

// ErrVSS is why there is no approximate search although the settings name a file for it; nil when all is well.
func (s *Store) ErrVSS() error {
	if s.opts.VSS == "" {
		return nil
	}
	return s.vssErr
}
