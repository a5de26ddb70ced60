// Package file writes small files that survive a crash: a reader finds the whole content or the earlier file, never a part.
package file

import (
	"errors"
	"os"
	"path/filepath"
)

// Replace writes data to the file at path, mode 0600, in place of an earlier one. Content and name are on disk when it returns. Its
// folder must exist.
func Replace(path string, data []byte) error { return write(path, data, os.Rename) }

// Create is [Replace] for a file that does not exist; the error wraps [io/fs.ErrExist] when it does. One of several concurrent calls
// creates the file.
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
