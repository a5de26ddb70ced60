package undo

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"conclave/pkg/policy"
	"conclave/subjects"
)

// Capture keeps the state of the file at path for a change that may follow, and reserves room for size bytes that the
// file will hold then. The error wraps [ErrNotKept] when the state cannot be kept. now removes what expired.
func (s *Store) Capture(c Change, path string, size int64, f *subjects.FolderRules, now time.Time) error {
	if s.limits.Days == 0 {
		return notKept("the setting undo.days is 0")
	}
	if size > int64(s.limits.MaxFile) {
		return notKept("the file would have %d bytes, limit %s", size, s.limits.MaxFile)
	}
	data, state, err := s.Read(path, f)
	if err != nil {
		return err
	}
	c.Phase, c.Objects = Captured, []Object{{Path: path, Before: state}}
	if err := s.collect(now); err != nil {
		return err
	}
	return s.locked(func() error {
		used, err := s.usedBytes()
		switch {
		case err != nil:
			return err
		case used+int64(len(data))+size > int64(s.limits.Size):
			return notKept("the kept changes have reached the limit of %s", s.limits.Size)
		case state.Exists():
			err = s.putObject(data)
		}
		s.step("kept")
		if err == nil {
			err = s.noteEntry(c) // the change stores it again
		}
		s.step("captured")
		return err
	})
}

// Read implements [Keeper]: it returns the content and the state of a file in the folders of f. One that is not there
// has the zero state.
// The error wraps [ErrNotKept] for a file that could not be restored as it is.
func (s *Store) Read(path string, f *subjects.FolderRules) ([]byte, State, error) {
	if f == nil {
		return nil, State{}, policy.ErrOutside
	}
	file, err := policy.OpenInside(path, os.O_RDONLY, 0, f.Allowed, f.Closed)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, State{}, nil
	}
	if err != nil {
		return nil, State{}, err
	}
	defer file.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return nil, State{}, err
	}
	switch {
	case st.Nlink > 1:
		return nil, State{}, notKept("the file has another name, a hard link")
	case int(st.Uid) != os.Geteuid() && os.Geteuid() != 0: // the user of programs, when this is root
		return nil, State{}, notKept("the file belongs to another user")
	}
	limit := int64(s.limits.MaxFile)
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = notKept("the file has more than %s", s.limits.MaxFile)
	}
	return data, State{Sum: sum(data), Size: int64(len(data)), Mode: fs.FileMode(st.Mode).Perm()}, err
}

// Replace writes the file at path with what makeContent returns for its content, nil for a new file, as the change c,
// which can be undone after it. The content that makeContent gets is kept before the file changes, also when it is not
// the one that was captured. The error wraps [ErrNotKept] when it cannot be kept; then nothing has changed.
func (s *Store) Replace(c Change, path string, makeContent func(old []byte) ([]byte, error),
	f *subjects.FolderRules,
) (created bool, err error) {
	c.Objects = []Object{{Path: path, Folder: missingFolder(path)}}
	created, err = s.apply(&c, 0, func(old []byte, _ State) (policy.FileContent, error) {
		data, err := makeContent(old)
		return policy.FileContent{Data: data}, err
	}, f)
	if err != nil {
		return created, err
	}
	return created, s.finish(&c)
}

// tempName is the name under which the new content of a file is written beside it, so that it is found after a crash.
func tempName(id, path string) string { return ".conclave-" + sum([]byte(id + path))[:16] }

// removeTemp removes the new content that a crash left beside a file. What cannot be removed stays.
func (s *Store) removeTemp(id, path string) {
	dir := filepath.Dir(path)
	_, _ = policy.RemoveInside(filepath.Join(dir, tempName(id, path)), func() bool { return false }, []string{dir})
}

// missingFolder returns the topmost folder of path that does not exist, "" for none.
func missingFolder(path string) (missing string) {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			return missing
		}
		missing = dir
	}
}

// apply changes the object number i of c to what makeContent returns, in the steps of the package. The state before is
// read under the lock of the folder.
func (s *Store) apply(c *Change, i int, makeContent func(old []byte, state State) (policy.FileContent, error),
	f *subjects.FolderRules,
) (created bool, err error) {
	if f == nil {
		return false, policy.ErrOutside
	}
	o := &c.Objects[i]
	var old, next []byte
	return policy.ReplaceInside(o.Path, policy.Replacement{
		Temp: tempName(c.ID, o.Path),
		Make: func() (content policy.FileContent, err error) {
			if old, o.Before, err = s.Read(o.Path, f); err != nil {
				return content, err
			}
			if content, err = makeContent(old, o.Before); err != nil {
				return content, err
			}
			next, o.After = content.Data, State{}
			if !content.Gone {
				o.After = State{
					Sum: sum(next), Size: int64(len(next)), Mode: cmp.Or(content.Mode, o.Before.Mode),
				}
			}
			return content, nil
		},
		Begin: func(temp string) error {
			s.step("staged")
			o.Temp = temp
			return s.locked(func() error { return s.begin(c, i, old, next) })
		},
		End: func(changed bool) error {
			s.step("replaced")
			if changed {
				return nil // until it is stored, the missing temporary file says so
			}
			*o = Object{Path: o.Path}
			return s.locked(func() error { return s.putEntry(*c) })
		},
	}, f.Allowed, f.Closed)
}

// begin stores both contents of the object number i of c, and the entry in the state begun. The store must be locked.
func (s *Store) begin(c *Change, i int, old, next []byte) error {
	o := c.Objects[i]
	if o.Before.Exists() {
		if err := s.putObject(old); err != nil {
			return err
		}
	}
	if o.After.Exists() {
		if err := s.putObject(next); err != nil {
			return err
		}
	}
	s.step("stored")
	var err error
	if c.Phase == Begun {
		err = s.appendEntry(c.ID, appended{At: i, Object: &o}, true)
	} else {
		c.Phase = Begun
		err = s.putEntry(*c)
	}
	s.step("begun")
	return err
}

// finish stores c as done, with the objects that changed; without any as captured, of which nothing came.
func (s *Store) finish(c *Change) error {
	c.Objects = slices.DeleteFunc(c.Objects, func(o Object) bool { return !o.Before.Exists() && !o.After.Exists() })
	isStored := c.Phase == Begun && c.Tree == ""
	c.Phase = Done
	if len(c.Objects) == 0 {
		c.Phase = Captured
	}
	for i := range c.Objects {
		c.Objects[i].Temp = ""
	}
	err := s.locked(func() error {
		if isStored { // a crash that loses the end leaves what [Store.Changes] completes
			return s.appendEntry(c.ID, appended{End: c}, false)
		}
		return s.putEntry(*c)
	})
	s.step("done")
	return err
}

// Changes returns the changes in the order of their time. It first completes those that a crash ended: a file with its
// temporary one beside it was not replaced, a file that still has its content was not removed, and a folder is compared
// with its kept state. One that is still happening is waited for; a program that still runs is left out.
func (s *Store) Changes() ([]Change, error) {
	all, err := s.entries()
	if err != nil {
		return nil, err
	}
	for i, c := range all {
		if c.Phase != Begun {
			continue
		}
		complete := s.recover
		if c.Tree != "" {
			complete = s.recoverTree
		}
		if all[i], err = complete(c); err != nil {
			all[i].Phase = Begun // it must not hide the others
		}
	}
	return slices.DeleteFunc(all, func(c Change) bool { return c.Phase != Done }), nil
}

// recover completes a change that is in the state begun: at once, or after the process that is at it.
func (s *Store) recover(c Change) (Change, error) {
	for i, o := range c.Objects {
		if !o.Before.Exists() && !o.After.Exists() { // its turn did not come
			s.removeTemp(c.ID, o.Path)
			continue
		}
		over := false
		at := o.Path
		if o.Temp != "" {
			at = filepath.Join(filepath.Dir(o.Path), o.Temp)
		}
		found, err := policy.RemoveInside(at, func() bool { // under the lock of the folder: nobody is at this file
			now, err := s.getEntry(c.ID)
			over = err != nil || now.Phase != Begun
			return over || o.Temp == ""
		}, []string{filepath.Dir(o.Path)})
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // without the folder the file is gone as well
			return c, err
		}
		if over {
			return s.getEntry(c.ID)
		}
		unchanged := found
		if o.Temp == "" && o.Before.Exists() { // a removal
			_, state, err := s.Read(o.Path, &subjects.FolderRules{Allowed: []string{filepath.Dir(o.Path)}})
			unchanged = err == nil && state.Sum == o.Before.Sum
		}
		if unchanged {
			c.Objects[i] = Object{Path: o.Path}
		}
	}
	return c, s.finish(&c)
}
