package undo

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"conclave/pkg/file"
	"conclave/subjects"
)

// Store keeps contents and the journal in a folder. Its methods may be called concurrently, and by several processes
// with the same folder.
type Store struct {
	dir    string
	limits Limits
	step   func(name string) // for crash tests

	trees     sync.Mutex // held while the files of a folder are in memory
	mu        sync.Mutex // held while the folder is locked, see [Store.locked]
	collected time.Time
	used      int64     // bytes of all contents when the folder of contents had the time usedAt
	usedAt    time.Time // zero = not known
}

const (
	// lockTimeout is how long a change waits for others that write to the store.
	lockTimeout = time.Minute
	// collectInterval is how often expired changes are removed.
	collectInterval = time.Hour
	// maxEntry bounds an entry of the journal, in bytes.
	maxEntry = 16 << 20
)

// Open returns the store in the folder dir, which it makes, closed to other users. Limits must be valid. step is called
// between two steps that a crash may separate; nil = nothing to call.
func Open(dir string, limits Limits, step func(name string)) (*Store, error) {
	if step == nil {
		step = func(string) {}
	}
	s := &Store{dir: dir, limits: limits, step: step}
	for _, f := range []string{dir, s.journal(), s.objects()} {
		if err := file.MakeFolder(f); err != nil {
			return nil, fmt.Errorf("opening the store of changes: %w", err)
		}
	}
	return s, nil
}

func (s *Store) journal() string { return filepath.Join(s.dir, "journal") }

func (s *Store) objects() string { return filepath.Join(s.dir, "objects") }

func (s *Store) entry(id string) string { return filepath.Join(s.journal(), id+".json") }

func (s *Store) object(sum string) string { return filepath.Join(s.objects(), sum) }

// locked runs act while no other process and no other goroutine writes to the store.
func (s *Store) locked(act func() error) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	unlock, err := file.LockFolder(s.dir, lockTimeout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	return act()
}

// sum returns the name of a content.
func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

// putObject stores a content, unless it is there. The store must be locked. It fails with [ErrNotKept] when it would
// exceed the limits.
func (s *Store) putObject(data []byte) error {
	at := s.object(sum(data))
	if _, err := os.Lstat(at); err == nil {
		return nil
	}
	if int64(len(data)) > int64(s.limits.MaxFile) {
		return notKept("the file has %d bytes, limit %s", len(data), s.limits.MaxFile)
	}
	used, err := s.usedBytes()
	if err != nil {
		return err
	}
	if used+int64(len(data)) > int64(s.limits.Size) {
		return notKept("the kept changes have reached the limit of %s", s.limits.Size)
	}
	if err := file.Replace(at, data); err != nil {
		return err
	}
	info, err := os.Stat(s.objects())
	if err == nil {
		s.used, s.usedAt = used+int64(len(data)), info.ModTime()
	}
	return err
}

// usedBytes is [Store.Size], read again only when a file was added or removed since. The store must be locked.
func (s *Store) usedBytes() (int64, error) {
	info, err := os.Stat(s.objects())
	if err == nil && !info.ModTime().Equal(s.usedAt) {
		s.used, err = s.Size()
		s.usedAt = info.ModTime()
	}
	return s.used, err
}

// getObject returns a kept content. One that is gone or damaged is a [Refusal].
func (s *Store) getObject(path, name string) ([]byte, error) {
	data, err := os.ReadFile(s.object(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, refuse(path, ReasonLost, "what %s held is no longer kept", path)
	case err != nil:
		return nil, err
	case sum(data) != name:
		return nil, refuse(path, ReasonLost, "what is kept of %s is damaged", path)
	}
	return data, nil
}

// Size returns the bytes of all kept contents.
func (s *Store) Size() (total int64, err error) {
	entries, err := os.ReadDir(s.objects())
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		total += info.Size()
	}
	return total, err
}

// putEntry stores an entry of the journal. The store must be locked.
func (s *Store) putEntry(c Change) error { return file.ReplaceJSON(s.entry(c.ID), c) }

// noteEntry stores an entry that a crash may lose or leave incomplete. The store must be locked.
func (s *Store) noteEntry(c Change) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return os.WriteFile(s.entry(c.ID), append(data, '\n'), 0o600)
}

// appended follows an entry of the journal: an object of it as it is now, or what the change is at its end.
type appended struct {
	At     int     `json:"at,omitempty"`
	Object *Object `json:"object,omitempty"`
	End    *Change `json:"end,omitempty"`
}

// appendEntry adds to the stored entry of a change. This takes half of the time of [Store.putEntry], and nearly none
// without sync, when a crash may lose it. The store must be locked.
func (s *Store) appendEntry(id string, a appended, sync bool) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(s.entry(id), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if sync {
		err = errors.Join(err, f.Sync())
	}
	return errors.Join(err, f.Close())
}

// getEntry returns an entry of the journal as it is stored; a missing one is [fs.ErrNotExist]. An incomplete addition,
// which a crash left, did not happen.
func (s *Store) getEntry(id string) (c Change, err error) {
	if subjects.CheckToken(id) != nil {
		return c, fs.ErrNotExist
	}
	data, err := file.Read(s.entry(id), maxEntry)
	if err != nil {
		return c, err
	}
	values := json.NewDecoder(bytes.NewReader(data))
	if err := values.Decode(&c); err != nil {
		return c, err
	}
	for a := (appended{}); values.Decode(&a) == nil; a = (appended{}) {
		switch {
		case a.End != nil:
			c = *a.End
		case a.Object != nil && a.At >= 0 && a.At < len(c.Objects):
			c.Objects[a.At] = *a.Object
		}
	}
	if c.ID != id {
		err = fmt.Errorf("the entry %s of the journal of changes belongs to another change", id)
	}
	return c, err
}

// entries returns the entries of the journal as they are stored, oldest first. An unreadable one is left out: what it
// kept cannot be restored, and the others can.
func (s *Store) entries() (all []Change, err error) {
	names, err := os.ReadDir(s.journal())
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		id, isEntry := strings.CutSuffix(n.Name(), ".json")
		if !isEntry || strings.HasPrefix(id, ".") {
			continue
		}
		if c, err := s.getEntry(id); err == nil {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b Change) int { return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.ID, b.ID)) })
	return all, nil
}

// collect removes the changes that are older than the limit, those of which nothing came, contents that no change
// names, and what a crash left beside a file; at most once in collectInterval.
func (s *Store) collect(now time.Time) error {
	var unfinished []Change
	err := s.locked(func() error {
		if !s.collected.IsZero() && now.Sub(s.collected) < collectInterval {
			return nil
		}
		s.collected = now
		all, err := s.entries()
		if err != nil {
			return err
		}
		_, err = s.drop(all, func(c Change) bool {
			age := now.Sub(c.Time)
			if c.Phase == Captured && age > collectInterval {
				unfinished = append(unfinished, c)
				return true
			}
			return age > time.Duration(s.limits.Days)*24*time.Hour
		})
		return err
	})
	for _, c := range unfinished { // not under the lock of the store: a change takes that of the folder first
		for _, o := range c.Objects {
			s.removeTemp(c.ID, o.Path)
		}
	}
	return err
}

// drop removes the entries of all that isGone selects, and the contents that none of the others names. It returns how
// many entries there were. The store must be locked.
func (s *Store) drop(all []Change, isGone func(Change) bool) (dropped int, err error) {
	used := map[string]struct{}{}
	for _, c := range all {
		if isGone(c) {
			if err := os.Remove(s.entry(c.ID)); err != nil {
				return dropped, err
			}
			dropped++
			continue
		}
		for _, o := range c.Objects {
			used[o.Before.Sum], used[o.After.Sum] = struct{}{}, struct{}{}
		}
	}
	entries, err := os.ReadDir(s.objects())
	for _, e := range entries {
		if _, isUsed := used[e.Name()]; !isUsed {
			err = errors.Join(err, os.Remove(filepath.Join(s.objects(), e.Name())))
		}
	}
	return dropped, err
}

// Purge removes what is kept of the changes with these ids at once, all of them without ids, and returns how many there
// were. The files of the user stay as they are.
func (s *Store) Purge(ids []string) (purged int, err error) {
	err = s.locked(func() error {
		all, err := s.entries()
		if err != nil {
			return err
		}
		purged, err = s.drop(all, func(c Change) bool {
			return c.Phase != Begun && (len(ids) == 0 || slices.Contains(ids, c.ID))
		})
		return err
	})
	return purged, err
}
