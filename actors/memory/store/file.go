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

	"conclave/pkg/file"
)

// openPaths are the files that this process has open. DuckDB's lock excludes other processes only: two stores of one
// process on one file would destroy it, and closing any handle of it would release the lock.
var openPaths struct {
	sync.Mutex
	paths map[string]bool
}

// claimPath creates the folder of the file and reserves the file for the caller until free is called. It rejects a path
// with ? or *, a folder that createFolder rejects and, with [ErrLocked], a path that this process has claimed already.
// full is the absolute path without symbolic links in its folder. Other processes are not excluded; DuckDB's lock does
// that.
func claimPath(path string) (full string, free func(), err error) {
	if full, err = filepath.Abs(path); err != nil {
		return "", nil, fmt.Errorf("finding %s: %w", path, err)
	}
	if strings.ContainsAny(full, "?*") { // DuckDB parses them as parameters and wildcards
		return "", nil, fmt.Errorf("invalid memory path %s: use a path without ? and *", full)
	}
	if err := createFolder(full); err != nil {
		return "", nil, err
	}
	// Two paths of one folder must give one claim.
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

// createFolder creates the folder of the file full with mode 0700: the log and DuckDB's temporary files are as private
// as the file. An existing folder that other users can access is restricted to 0700 if every name in it begins with
// that of the file, and rejected otherwise.
func createFolder(full string) error {
	dir, name := filepath.Split(full)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("creating the folder of the memory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("checking the folder of the memory: %w", err)
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	all, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("checking the folder of the memory: %w", err)
	}
	for _, f := range all {
		if !strings.HasPrefix(f.Name(), name) {
			return fmt.Errorf("other users can access %s, and it holds more than the memory (%s); give the memory a "+
				"folder of its own", dir, f.Name())
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("restricting the folder of the memory: %w", err)
	}
	return nil
}

// prepareFile creates the file if there is none, and restricts an existing one to mode 0600. It rejects anything but a
// regular file, one that this user cannot read and write, and with [ErrDamaged] an empty one.
func (s *Store) prepareFile(ctx context.Context) error {
	info, err := os.Stat(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s.createFile(ctx)
	case err != nil:
		return fmt.Errorf("checking the memory: %w", err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file; move it away, or give the memory another path", s.path)
	case info.Size() == 0:
		return damagedError(s.path, errors.New("it is empty"))
	}
	// Opened here first, because DuckDB does not tell a missing permission from a damaged file.
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("opening the memory: %w", err)
	}
	if err := errors.Join(f.Chmod(0o600), f.Close()); err != nil {
		return fmt.Errorf("restricting the memory to this user: %w", err)
	}
	return nil
}

// createFile creates an empty memory. It is written under another name first, so that a crash leaves no file or a
// complete one. A log or a count of writes without its file is [ErrDamaged]: a new file would not match it. If another
// process creates the file meanwhile, that one is kept and the result is nil.
func (s *Store) createFile(ctx context.Context) error {
	if _, err := os.Lstat(s.path + walSuffix); err == nil {
		return fmt.Errorf("%w: %s is missing but its log %s exists; restore the file, or move the log and %s away "+
			"to start a new memory", ErrDamaged, s.path, s.path+walSuffix, s.path+countSuffix)
	}
	if n, err := readCount(s.path); n > 0 || err != nil {
		return fmt.Errorf("%w: %s is missing, and was written to; restore it from a backup, or delete %s to start a "+
			"new memory", ErrDamaged, s.path, s.path+countSuffix)
	}
	fresh := fmt.Sprintf("%s%s-%d", s.path, newSuffix, os.Getpid())
	for _, leftover := range []string{fresh, fresh + walSuffix} {
		if err := os.Remove(leftover); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing an incomplete file: %w", err)
		}
	}
	e, err := openEngine(ctx, fresh, Options{MemoryLimit: s.opts.MemoryLimit})
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
		return fmt.Errorf("creating the memory: %w", err)
	}
	// A link, unlike a rename, does not replace a file that another process has created meanwhile. On a file system
	// without links, the lock of the data folder excludes other processes.
	switch err := os.Link(fresh, s.path); {
	case errors.Is(err, fs.ErrExist):
		return os.Remove(fresh)
	case err == nil:
		err = errors.Join(os.Chmod(s.path, 0o600), os.Remove(fresh), file.Sync(filepath.Dir(s.path)))
		if err != nil {
			return fmt.Errorf("creating the memory: %w", err)
		}
		return nil
	}
	return replaceFile(fresh, s.path)
}

// removeLeftovers removes the files beside path that a crash left incomplete: all whose name begins with that of path
// and newSuffix. The caller must hold the claim on path.
func removeLeftovers(path string) error {
	dir, name := filepath.Split(path)
	all, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("finding incomplete files: %w", err)
	}
	for _, f := range all {
		if strings.HasPrefix(f.Name(), name+newSuffix) {
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("removing an incomplete file: %w", err)
			}
		}
	}
	return nil
}

// replaceFile syncs fresh, restricts it to mode 0600 and renames it to path, which it replaces. When it returns nil,
// the rename is durable.
func replaceFile(fresh, path string) error {
	f, err := os.OpenFile(fresh, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("replacing the memory file: %w", err)
	}
	err = errors.Join(f.Chmod(0o600), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err == nil {
		err = file.Sync(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("replacing the memory file: %w", err)
	}
	return nil
}

// walEntryHeader is the size of the header of a log entry, size and checksum. DuckDB reports the position behind it.
const walEntryHeader = 16

// truncateZeroTail truncates the log of path at the position that err, DuckDB's error of opening, reports as corrupt,
// if only zeros follow. It reports whether it did and opening is worth a retry; false leaves the log unchanged, unless
// truncating or syncing itself failed. A power failure may leave such a tail, which DuckDB rejects. It was never
// acknowledged: an acknowledged write is synced.
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
