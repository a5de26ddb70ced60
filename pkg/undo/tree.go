package undo

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"conclave/pkg/file"
	"conclave/subjects"
)

// A program in the sandbox may change any file of its folder. Its change is the difference of the folder before and
// after it: captured and begun with the state of every file, and sealed when the program has ended, or after a crash.

const (
	maxTreeFiles = 2000
	maxTreeBytes = 64 << 20
	maxTreePaths = 96 << 10 // bytes of all paths, so that a list of the files fits into a message
)

// CaptureTree keeps the state of the files in a folder for a program that may run in it, except those below the folders
// named skip, which the program makes again. The error wraps [ErrNotKept] when it cannot be kept.
func (s *Store) CaptureTree(c Change, dir string, skip []string, f *subjects.FolderRules, now time.Time) error {
	if s.limits.Days == 0 {
		return notKept("the setting undo.days is 0")
	}
	err := s.collect(now)
	if err == nil {
		err = s.keepTree(&c, dir, skip, f, Captured)
	}
	s.step("captured")
	return err
}

// BeginTree is [Store.CaptureTree] for a program that runs now. The caller calls end when the program has ended; it
// returns the files that have changed.
func (s *Store) BeginTree(c Change, dir string, skip []string, f *subjects.FolderRules) (end func() ([]string, error),
	err error,
) {
	if err := os.WriteFile(s.runLock(c.ID), nil, 0o600); err != nil {
		return nil, err
	}
	unlock, err := file.LockFolder(s.runLock(c.ID), 0)
	if err == nil {
		err = s.keepTree(&c, dir, skip, f, Begun)
	}
	s.step("begun")
	if err != nil {
		if unlock != nil {
			err = errors.Join(err, unlock())
		}
		return nil, errors.Join(err, os.Remove(s.runLock(c.ID)))
	}
	return func() ([]string, error) {
		s.step("replaced")
		err := errors.Join(s.sealTree(&c, f), unlock())
		var changed []string
		for _, o := range c.Objects {
			changed = append(changed, o.Path)
		}
		return changed, err
	}, nil
}

// runLock is a file that is locked while the program of a change runs.
func (s *Store) runLock(id string) string { return filepath.Join(s.dir, "running-"+id) }

// keepTree stores the contents of the files in a folder, and the entry of c in a phase.
func (s *Store) keepTree(c *Change, dir string, skip []string, f *subjects.FolderRules, phase string) error {
	s.trees.Lock()
	defer s.trees.Unlock()
	c.Phase, c.Tree, c.Skip, c.Objects = phase, dir, skip, nil
	var left treeBudget
	var contents [][]byte
	err := walkTree(c, false, func(path string, info fs.FileInfo) error {
		if !left.take(path, info.Size()) {
			return notKept("the folder has more than %d files, more than %d MB, or too long paths", maxTreeFiles,
				maxTreeBytes>>20)
		}
		data, at, err := s.Read(path, f)
		if err == nil && at.Exists() {
			contents = append(contents, data)
			c.Objects = append(c.Objects, Object{Path: path, Before: at})
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.locked(func() error {
		for _, data := range contents {
			if err := s.putObject(data); err != nil {
				return err
			}
		}
		return s.putEntry(*c)
	})
}

// treeBudget is what was read of a folder.
type treeBudget struct {
	files, paths int
	bytes        int64
}

// take reports whether a file of a size can be read too, and counts it then.
func (b *treeBudget) take(path string, size int64) bool {
	if b.files == maxTreeFiles || b.bytes+size > maxTreeBytes || b.paths+len(path) > maxTreePaths {
		return false
	}
	b.files, b.bytes, b.paths = b.files+1, b.bytes+size, b.paths+len(path)
	return true
}

// walkTree calls visit for the regular files in the folder of c, without those below what c skips. What cannot be read
// is an error; when tolerant it is left out.
func walkTree(c *Change, tolerant bool, visit func(path string, info fs.FileInfo) error) error {
	return filepath.WalkDir(c.Tree, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // the folder is made with the first file
			return nil
		case err != nil && tolerant:
			return nil
		case err != nil:
			return err
		case d.IsDir() && filepath.Dir(path) == c.Tree && slices.Contains(c.Skip, d.Name()):
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return nil // it was removed meanwhile
		}
		return visit(path, info)
	})
}

// sealTree stores what a program has changed in its folder. A file that cannot be read or kept any more counts as
// removed: no program takes away what the file held before. Files that were there are read first, so that new ones do
// not push them out; sizes are looked at before anything is read.
func (s *Store) sealTree(c *Change, f *subjects.FolderRules) error {
	s.trees.Lock()
	defer s.trees.Unlock()
	var left treeBudget
	var contents [][]byte
	var objects []Object
	read := func(path string, was State, info fs.FileInfo) {
		at := State{}
		if isSameSize := was.Exists() && info.Size() == was.Size; isSameSize || left.take(path, info.Size()) {
			if data, now, err := s.Read(path, f); err == nil && now.Exists() {
				at = now
				if at != was {
					contents = append(contents, data)
				}
			}
		}
		if at != was {
			objects = append(objects, Object{Path: path, Before: was, After: at})
		}
	}
	before := map[string]struct{}{}
	for _, o := range c.Objects {
		before[o.Path] = struct{}{}
		if info, err := os.Lstat(o.Path); err == nil && info.Mode().IsRegular() {
			read(o.Path, o.Before, info)
		} else {
			objects = append(objects, Object{Path: o.Path, Before: o.Before})
		}
	}
	err := walkTree(c, true, func(path string, info fs.FileInfo) error {
		if _, ok := before[path]; !ok {
			read(path, State{}, info)
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(objects, func(a, b Object) int { return cmp.Compare(a.Path, b.Path) })
	c.Objects, c.Skip = objects, nil
	err = s.locked(func() error {
		for _, data := range contents {
			if err := s.putObject(data); err != nil && !errors.Is(err, ErrNotKept) {
				return err
			}
		}
		return nil
	})
	return errors.Join(err, s.finish(c), os.Remove(s.runLock(c.ID)))
}

// recoverTree seals the change of a program that a crash ended, unless the program still runs.
func (s *Store) recoverTree(c Change) (Change, error) {
	unlock, err := file.LockFolder(s.runLock(c.ID), 0)
	if errors.Is(err, file.ErrLocked) {
		return c, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	if now, err := s.getEntry(c.ID); err != nil || now.Phase != Begun {
		return now, err
	}
	err = s.sealTree(&c, &subjects.FolderRules{Allowed: []string{c.Tree}})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // the lock was removed with the store's other temporary files
	}
	if unlock != nil {
		err = errors.Join(err, unlock())
	}
	return c, err
}
