// Package file writes small files that survive a crash: a reader finds the whole content or the earlier file, never a
// part. It reads regular files only, and no more than a limit. It makes folders that no other user can have made or can
// change.
package file

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ErrNotRegular means that a path names something else than a regular file.
var ErrNotRegular = errors.New("not a regular file")

// Read returns the content of a regular file of at most limit bytes. It rejects a larger file, and everything but a
// regular file: reading a FIFO or a device could block or have no end.
func Read(path string, limit int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, limit)
}

// readAll returns the content of a file of at most limit bytes.
func readAll(f *os.File, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has more than %d KB", f.Name(), limit>>10)
	}
	return data, err
}

// Open opens a regular file for reading and rejects everything else. The caller closes it.
func Open(path string) (*os.File, error) { return openRegular(path, os.Stat, os.OpenFile) }

// ErrShared means that other users may access a file that is for its owner alone.
var ErrShared = errors.New("other users may read or change")

// ReadPrivate is [Read] for a file that its owner alone may access, else the error wraps [ErrShared]. It does not
// follow a link, which could lead to another user's file.
func ReadPrivate(path string, limit int64) ([]byte, error) {
	f, err := openRegular(path, os.Lstat, func(path string, flag int, mode fs.FileMode) (*os.File, error) {
		return os.OpenFile(path, flag|syscall.O_NOFOLLOW, mode)
	})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = fmt.Errorf("%w %s (mode %o): run chmod 600 on it", ErrShared, path, info.Mode().Perm())
	}
	if err != nil {
		return nil, err
	}
	return readAll(f, limit)
}

// OpenIn is [Open] for a file in root.
func OpenIn(root *os.Root, name string) (*os.File, error) {
	return openRegular(name, root.Stat, root.OpenFile)
}

// openRegular opens a regular file by the functions of a folder.
func openRegular(path string, stat func(string) (fs.FileInfo, error), open func(string, int, fs.FileMode) (*os.File,
	error),
) (*os.File, error) {
	check := func(info fs.FileInfo, err error) error {
		if err == nil && !info.Mode().IsRegular() {
			return fmt.Errorf("%s is %w", path, ErrNotRegular)
		}
		return err
	}
	if err := check(stat(path)); err != nil { // opening a device may have effects
		return nil, err
	}
	f, err := open(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // does not block on a FIFO that replaced the file
	if err != nil {
		return nil, err
	}
	if err := check(f.Stat()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Replace writes data to the file at path, mode 0600, in place of an earlier one. Content and name are on disk when it
// returns. Its folder must exist.
func Replace(path string, data []byte) error { return write(path, data, os.Rename) }

// ReplaceJSON is [Replace] with v as indented JSON.
func ReplaceJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return Replace(path, append(data, '\n'))
}

// Create is [Replace] for a file that does not exist; the error wraps [io/fs.ErrExist] when it does. One of several
// concurrent calls creates the file.
func Create(path string, data []byte) error { return write(path, data, os.Link) }

// write writes data to a temporary file in the folder of path, which place moves to path.
func write(path string, data []byte, place func(from, to string) error) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".tmp-*") // with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := place(tmp.Name(), path); err != nil {
		return err
	}
	return Sync(filepath.Dir(path))
}

// Sync flushes a file to disk, or the names in a folder: without it a power failure undoes a rename.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
