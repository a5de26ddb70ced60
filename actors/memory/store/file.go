package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// openPaths are the files that this process has open. DuckDB's lock keeps other processes out, and only them: two stores
// of one process on one file would destroy it, and closing any handle of it would give up the lock.
var openPaths struct {
	sync.Mutex
	paths map[string]bool
}

// claimPath makes the folder and keeps the file to the caller until free is called. It returns the file's full name.
func claimPath(path string) (full string, free func(), err error) {
	if full, err = filepath.Abs(path); err != nil {
		return "", nil, fmt.Errorf("finding %s: %w", path, err)
	}
	if strings.ContainsAny(full, "?*") { // DuckDB takes what follows for something else than a name
		return "", nil, fmt.Errorf("the memory cannot be at %s: give it a path without ? and *", full)
	}
	if err := createFolder(full); err != nil {
		return "", nil, err
	}
	// The same file under another name is the same file.
	dir, err := filepath.EvalSymlinks(filepath.Dir(full))
	if err != nil {
		return "", nil, fmt.Errorf("finding %s: %w", path, err)
	}
	full = filepath.Join(dir, filepath.Base(full))
	openPaths.Lock()
	defer openPaths.Unlock()
	if openPaths.paths[full] {
		return "", nil, fmt.Errorf("%w: this process has %s open already", ErrLocked, full)
	}
	if openPaths.paths == nil {
		openPaths.paths = map[string]bool{}
	}
	openPaths.paths[full] = true
	return full, func() {
		openPaths.Lock()
		defer openPaths.Unlock()
		delete(openPaths.paths, full)
	}, nil
}

// createFolder makes the folder of the file, closed to others: the log and what DuckDB swaps out are as private as the file.
// A folder that others may look into and that holds something else is not ours to close.
func createFolder(full string) error {
	dir, name := filepath.Split(full)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the folder of the memory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("looking at the folder of the memory: %w", err)
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	all, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("looking at the folder of the memory: %w", err)
	}
	for _, f := range all {
		if !strings.HasPrefix(f.Name(), name) {
			return fmt.Errorf("others may look into %s, and it holds more than the memory (%s); give the memory a folder of its own", dir, f.Name())
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("closing the folder of the memory to others: %w", err)
	}
	return nil
}

// prepareFile makes sure that there is a whole file. A new one is written under another name first, so that a crash leaves
// none or a whole one.
func (s *Store) prepareFile(ctx context.Context) error {
	info, err := os.Stat(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s.createFile(ctx)
	case err != nil:
		return fmt.Errorf("looking at the memory: %w", err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is no file; move it away, or give the memory another place", s.path)
	case info.Size() == 0:
		return damagedError(s.path, errors.New("it is empty"))
	}
	// What the system does not let us do is not the file's fault, and DuckDB would not tell the difference.
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("opening the memory: %w", err)
	}
	if err := errors.Join(f.Chmod(0o600), f.Close()); err != nil {
		return fmt.Errorf("closing the memory to others: %w", err)
	}
	return nil
}

// createFile begins a new memory.
func (s *Store) createFile(ctx context.Context) error {
	if _, err := os.Lstat(s.path + walSuffix); err == nil {
		return fmt.Errorf("%w: %s is gone and its log %s is there; put the file back, or move the log away to begin a new memory", ErrDamaged, s.path, s.path+walSuffix)
	}
	fresh := fmt.Sprintf("%s%s-%d", s.path, newSuffix, os.Getpid())
	for _, leftover := range []string{fresh, fresh + walSuffix} {
		if err := os.Remove(leftover); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing what a crash left: %w", err)
		}
	}
	e, _, err := openEngine(ctx, fresh, Options{Threads: s.opts.Threads, MemoryLimit: s.opts.MemoryLimit})
	if err != nil {
		return err
	}
	err = createMeta(ctx, e.db)
	if err == nil {
		err = migrate(ctx, e, fresh, s.steps)
	}
	if err == nil {
		_, err = e.db.ExecContext(ctx, "CHECKPOINT "+catalog)
	}
	if err := errors.Join(err, e.close()); err != nil {
		return fmt.Errorf("beginning a new memory: %w", err)
	}
	// A link does not take the place of a file that another process has made meanwhile. Where there are no links, the
	// system that runs here keeps others out of its data folder anyway.
	switch err := os.Link(fresh, s.path); {
	case errors.Is(err, fs.ErrExist):
		return os.Remove(fresh)
	case err == nil:
		err = errors.Join(os.Chmod(s.path, 0o600), os.Remove(fresh), syncFolder(filepath.Dir(s.path)))
		if err != nil {
			return fmt.Errorf("beginning a new memory: %w", err)
		}
		return nil
	}
	return replaceFile(fresh, s.path)
}

// removeLeftovers removes what a crash left of files that were being written. Only the one who has the file may.
func removeLeftovers(path string) error {
	dir, name := filepath.Split(path)
	all, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("looking for what a crash left: %w", err)
	}
	for _, f := range all {
		if strings.HasPrefix(f.Name(), name+newSuffix) {
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("removing what a crash left: %w", err)
			}
		}
	}
	return nil
}

// replaceFile puts a whole file in the place of another.
func replaceFile(fresh, path string) error {
	f, err := os.OpenFile(fresh, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("putting the new file in its place: %w", err)
	}
	err = errors.Join(f.Chmod(0o600), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err == nil {
		err = syncFolder(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("putting the new file in its place: %w", err)
	}
	return nil
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// walEntryHeader stands before what DuckDB gives the position of: the size of an entry and its checksum.
const walEntryHeader = 16

// truncateZeroTail cuts a log whose end was never written: a system that lost its power may leave nothing but zeros there. DuckDB
// refuses such a log. Only what is all zeros is cut; it was never acknowledged, since an acknowledged end was synced.
func truncateZeroTail(path string, err error) bool {
	m := brokenLog.FindStringSubmatch(err.Error())
	if m == nil {
		return false
	}
	at, aerr := strconv.ParseInt(m[1], 10, 64)
	f, oerr := os.OpenFile(path+walSuffix, os.O_RDWR, 0)
	if aerr != nil || oerr != nil {
		return false
	}
	at -= walEntryHeader
	defer func() { _ = f.Close() }()
	if at < 0 {
		return false
	}
	tail, rerr := io.ReadAll(io.NewSectionReader(f, at, 1<<40))
	if rerr != nil || len(tail) == 0 || len(bytes.Trim(tail, "\x00")) != 0 {
		return false
	}
	return f.Truncate(at) == nil && f.Sync() == nil
}
