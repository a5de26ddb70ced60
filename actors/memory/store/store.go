// Package store is memory's system of record: one DuckDB file. It is the only importer of DuckDB.
//
// A write is durable when its call returns: the transaction is in the log and the log is synced. One goroutine writes
// and commits queued writes together. Readers never wait for it.
//
// The file has no vector index. Vectors are stored as plain bytes and loaded into memory at start ([Store.Load]).
//
// Without a C compiler the package builds and [Open] returns [ErrNoDuckDB].
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

// Options configures the database. The zero value is usable.
type Options struct {
	MemoryLimit string           // of DuckDB, in its syntax; "" = by the size of the file, see memoryLimit
	Now         func() time.Time // nil = time.Now
	// KeepDays is how long the states of entries before and after a change are kept, 0 = not at all; KeepBytes is the
	// limit of all of them.
	KeepDays  int
	KeepBytes int64
}

const (
	minMemoryLimit = 64 << 20
	maxMemoryLimit = 2 << 30
	largeFile      = 512 << 20
)

// memoryLimit returns the default limit of DuckDB's memory for a file of size bytes: 64 MB and an eighth of the file,
// for each byte above largeFile three eighths, at most 2 GB. DuckDB fills what it may have with blocks that it has
// read, and loading reads each once; what it cannot do without, the indexes of keys, grows with the file. A file that
// outgrows its limit has a higher one after the next start.
func memoryLimit(size int64) string {
	limit := minMemoryLimit + size/8 + max(0, size-largeFile)/4
	return strconv.FormatInt(min(limit, maxMemoryLimit), 10) + "B"
}

// withDefaults returns o with the defaults for an empty MemoryLimit for the file at path, which need not exist, and a
// nil Now.
func (o Options) withDefaults(path string) Options {
	if o.MemoryLimit == "" {
		var size int64
		for _, name := range []string{path, path + walSuffix} {
			if info, err := os.Stat(name); err == nil {
				size += info.Size()
			}
		}
		o.MemoryLimit = memoryLimit(size)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Store is an open database. Its methods are safe for concurrent use.
type Store struct {
	path       string
	opts       Options
	engine     *engine
	db         *sql.DB
	writer     *writer
	statements statementCache
	accesses   accessCounts
	steps      []string // of the schema
	count      *os.File // of the acknowledged transactions, see openCount
	lost       string   // see [Store.Lost]

	lifecycle sync.RWMutex // guards closed: held for reading while a write is queued or a read begins
	closed    bool
	readers   sync.WaitGroup // readers
	release   func()         // lets this process open the file again
}

// Open opens the database at path and creates file and folder, readable by the owner only, when they are missing. It
// migrates an older schema and replays the log that a crash left.
//
// A file that cannot be used is never changed; [ErrDamaged], [ErrNewer] and [ErrLocked] name the remedy.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	return openWithSteps(ctx, path, o, steps)
}

// openWithSteps is [Open] with other schema steps, for tests. On an error nothing stays open or claimed.
func openWithSteps(ctx context.Context, path string, o Options, steps []string) (*Store, error) {
	if !haveDuckDB {
		return nil, ErrNoDuckDB
	}
	path, free, err := claimPath(path)
	if err != nil {
		return nil, err
	}
	o = o.withDefaults(path)
	s := &Store{path: path, opts: o, release: free, steps: steps}
	if err := s.start(ctx); err != nil {
		if s.engine != nil {
			err = errors.Join(err, s.engine.close())
		}
		if s.count != nil {
			err = errors.Join(err, s.count.Close())
		}
		free()
		return nil, err
	}
	return s, nil
}

// start creates or opens the file, removes leftovers of a crash, migrates, denies DuckDB other files, reads everything
// and starts the writer. On an error the caller closes s.engine and s.count, if they are set.
func (s *Store) start(ctx context.Context) error {
	if err := s.prepareFile(ctx); err != nil {
		return err
	}
	var err error
	if s.engine, err = openEngine(ctx, s.path, s.opts); err != nil {
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
	if err := s.readAll(ctx); err != nil {
		return errors.Join(err, s.engine.skipCheckpoint(ctx))
	}
	s.statements.on = s.db
	writes, err := s.openCount(ctx)
	if err != nil {
		return err
	}
	s.writer, err = newWriter(ctx, s, writes)
	return err
}

// beginRead keeps the file open until leave is called, which must happen exactly once: [Store.Close] waits for it. A
// closed store is [ErrClosed].
func (s *Store) beginRead() (leave func(), err error) {
	s.lifecycle.RLock()
	defer s.lifecycle.RUnlock()
	if s.closed {
		return nil, ErrClosed
	}
	s.readers.Add(1)
	return s.readers.Done, nil
}

// Close waits for queued writes and running reads, whatever ctx says, checkpoints and closes the file. When content was
// forgotten or changed since the file was last rewritten it rewrites it; when ctx ends before, it returns nil and the
// rewrite is left to the next close. A second call returns nil at once, also while the first still waits.
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
		errs = append(errs, fmt.Errorf("checkpointing: %w", explainError(err)))
	}
	errs = append(errs, s.writer.close(), s.statements.close(), s.engine.close(), s.count.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing the memory: %w", err)
	}
	if forgot == 0 {
		return nil
	}
	if err := rewriteFile(ctx, s.path, s.opts); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// Size returns the size of the file and its log in bytes. A file that is missing or cannot be read counts as 0.
func (s *Store) Size() int64 {
	var sum int64
	for _, name := range []string{s.path, s.path + walSuffix} {
		// Stat only: opening and closing the file would release the lock that DuckDB holds on it.
		if info, err := os.Stat(name); err == nil {
			sum += info.Size()
		}
	}
	return sum
}
