package config

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"conclave/pkg/file"
)

// fileEdit is a change of a file of the user's folder that the loader accepts.
type fileEdit struct {
	path          string
	before, after []byte // nil = no file
}

// EditFile changes a file of the config folder dir, which is made when it is missing. change returns the new content of
// the file at path. No file is written when change fails or when the loader rejects the folder with the new content.
// changed is false when the content is the same. Edits of several processes follow one another.
func EditFile(dir, name string, change func(data []byte, path string) ([]byte, error)) (changed bool, err error) {
	unlock, err := lockConfig(dir)
	if err != nil {
		return false, err
	}
	defer unlock()
	e, err := prepareEdit(dir, name, change)
	if err != nil || bytes.Equal(e.before, e.after) {
		return false, err
	}
	return true, e.write()
}

// lockTimeout is how long an edit waits for the others; one takes milliseconds.
const lockTimeout = 30 * time.Second

// lockConfig makes the config folder when it is missing, and waits until no other process edits a file in it. The
// caller must call unlock.
func lockConfig(dir string) (unlock func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return file.LockFolder(dir, lockTimeout)
}

// prepareEdit is [EditFile] without the lock and the write.
func prepareEdit(dir, name string, change func(data []byte, path string) ([]byte, error)) (e fileEdit, err error) {
	e.path = filepath.Join(dir, name)
	if e.before, _, err = readFile(dir, name); err != nil {
		return e, err
	}
	if e.after, err = change(e.before, e.path); err != nil {
		return e, err
	}
	c := Config{edited: map[string][]byte{name: e.after}}
	return e, c.load(dir)
}

func (e fileEdit) write() error { return replaceFile(e.path, e.after) }

// undo restores the content before the edit.
func (e fileEdit) undo() error { return replaceFile(e.path, e.before) }

// replaceFile writes a file of the config folder, or removes it when there is no data. It keeps the mode, and follows a
// symbolic link.
func replaceFile(path string, data []byte) error {
	if len(data) == 0 {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	info, statErr := os.Stat(path)
	if err := file.Replace(path, data); err != nil || statErr != nil {
		return err
	}
	return os.Chmod(path, info.Mode().Perm())
}
