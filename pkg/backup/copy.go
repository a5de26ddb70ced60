package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// a file that changed within this time counts as changing: time stamps are coarse
	settleTime    = 30 * time.Millisecond
	smallChange   = 8 << 20 // bytes that may be copied during a pause, if they can be had
	copyRounds    = 4       // before the first pause
	pauseRounds   = 50      // during a pause
	pauseAttempts = 5
)

// content is the kind of a name in the data folder.
type content int

const (
	secret    content = iota // also every unknown name: it may hold a key
	records                  // the backup
	transient                // of the running process; written again by a start
)

// dataContents are the known names of the data folder.
var dataContents = map[string]content{
	"jetstream": records, "audit": records, "memory": records, "version.json": records, "principals.json": records,
	withheldFile:         records,
	"manifest.last.yaml": records, "model-speeds.json": records, "last_session": records,
	"streams.json": records, "damage.json": records,
	"lock": transient, "run.json": transient, "nats.env": transient, "nats.conf": transient,
	"damaged":          transient, // files that were set aside
	"invitations.json": transient, // one that is used after the backup must not be open again
	"http.logins":      transient, // one that is revoked after the backup must not be valid again
}

// kindOf returns the kind of a path in the data folder.
func kindOf(rel string) content {
	top, rest, _ := strings.Cut(rel, "/")
	switch {
	case top == "audit" && (rest == "keyring" || strings.HasPrefix(rest, "keyring/")):
		return secret
	case top == "memory" && strings.HasSuffix(rel, ".tmp"): // to which the database spills
		return transient
	case strings.HasPrefix(top, "."): // a temporary file
		return transient
	}
	return dataContents[top]
}

// takes reports whether a backup of this kind holds a path of the data folder.
func (m Manifest) takes(rel string) bool {
	kind := kindOf(rel)
	return kind == records || kind == secret && m.WithKeys
}

// state identifies the content of a file as far as the file system tells.
type state struct {
	size     int64
	modified time.Time
	inode    uint64
}

// copier copies the files of an installation into a folder, again and again, and each time only those that changed.
type copier struct {
	staging  string
	options  Options
	copied   map[string]state // by path in the backup
	omitted  []string
	progress int64
	all      int64
}

func newCopier(staging string, o Options) *copier {
	return &copier{staging: staging, options: o, copied: map[string]state{}}
}

// paths returns the copied files, sorted.
func (c *copier) paths() []string { return slices.Sorted(maps.Keys(c.copied)) }

// copyConsistent copies everything as it was at one moment. A running system is paused as briefly as possible, and
// several times if the files change even so, by a client that cannot be paused; then the error is [ErrBusy].
func (c *copier) copyConsistent(ctx context.Context) error {
	for range copyRounds {
		n, err := c.copyChanged(ctx)
		if err != nil {
			return err
		}
		if n < smallChange {
			break
		}
	}
	if c.options.Pause == nil {
		return c.copyUntilUnchanged(ctx)
	}
	for range pauseAttempts {
		resume, err := c.options.Pause(ctx)
		if err != nil {
			return err
		}
		err = c.copyUntilUnchanged(ctx)
		if lasted := resume(); err == nil && lasted {
			return nil
		}
		if err != nil && !errors.Is(err, ErrBusy) {
			return err
		}
	}
	return fmt.Errorf("%w: stop the clients and actors that run outside this process, or stop conclave", ErrBusy)
}

// copyUntilUnchanged repeats copyChanged until nothing has changed. After pauseRounds it gives up with [ErrBusy].
func (c *copier) copyUntilUnchanged(ctx context.Context) error {
	for range cmp.Or(c.options.rounds, pauseRounds) {
		n, err := c.copyChanged(ctx)
		if n < 0 || err != nil {
			return err
		}
		select {
		case <-time.After(settleTime): // until the time stamps of the last changes tell later ones apart
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ErrBusy
}

// copyChanged scans the folders and copies each file that differs from its copy. n is the number of bytes copied, and
// -1 when nothing differed: then the copies are the state of the disk at the time of the scan.
func (c *copier) copyChanged(ctx context.Context) (n int64, err error) {
	found, err := c.scan()
	if err != nil {
		return 0, err
	}
	c.all = 0
	for _, s := range found {
		c.all += s.size
	}
	changed := false
	for name := range c.copied {
		if _, ok := found[name]; !ok {
			changed = true
			delete(c.copied, name)
			if err := os.Remove(c.target(name)); err != nil {
				return n, err
			}
		}
	}
	recent := time.Now().Add(-settleTime)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		s := found[name]
		if c.copied[name] == s {
			continue
		}
		changed = true
		if err := ctx.Err(); err != nil {
			return n, err
		}
		m, err := c.copyFile(name)
		n += m
		if errors.Is(err, fs.ErrNotExist) { // removed since the scan; the next one tells
			continue
		}
		if err != nil {
			return n, err
		}
		if s.modified.After(recent) {
			s = state{} // a later change may have the same time stamp: copy it again
		}
		c.copied[name] = s
		c.report(m)
	}
	if !changed {
		return -1, nil
	}
	return n, nil
}

func (c *copier) report(n int64) {
	c.progress += n
	if c.options.Progress != nil {
		c.options.Progress(min(c.progress, c.all), c.all)
	}
}

// scan returns the files that belong to the backup, with their states, by path in the backup.
func (c *copier) scan() (map[string]state, error) {
	found := map[string]state{}
	c.omitted = nil
	home := c.options.Home
	err := scanFolder(home.Data, func(rel string, info fs.FileInfo) error {
		switch kind := kindOf(rel); {
		case kind == transient || info.Mode().Type() == fs.ModeSocket:
			return fs.SkipDir
		case kind == secret && !c.options.WithKeys:
			c.omitted = append(c.omitted, rel)
			return fs.SkipDir
		}
		return addFile(found, path.Join(dataPart, rel), info)
	})
	if err != nil {
		return nil, err
	}
	err = scanFolder(home.Config, func(rel string, info fs.FileInfo) error {
		return addFile(found, path.Join(configPart, rel), info)
	})
	if errors.Is(err, fs.ErrNotExist) { // all settings as shipped
		err = nil
	}
	return found, err
}

// scanFolder calls add for everything below dir; [fs.SkipDir] skips a folder or file. Files that disappear meanwhile
// are left out.
func scanFolder(dir string, add func(rel string, info fs.FileInfo) error) error {
	return filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && name != dir {
			return nil
		}
		if err != nil || name == dir {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		err = add(filepath.ToSlash(rel), info)
		if errors.Is(err, fs.SkipDir) && !d.IsDir() {
			return nil
		}
		return err
	})
}

// addFile adds a regular file to found. It rejects symbolic links and special files: what they stand for is not known.
func addFile(found map[string]state, name string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return nil
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file: move it out of the folder", name)
	}
	s := state{size: info.Size(), modified: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = st.Ino
	}
	found[name] = s
	return nil
}

func (c *copier) target(name string) string {
	return filepath.Join(c.staging, filepath.FromSlash(name))
}

// copyFile copies one file, readable by its owner alone.
func (c *copier) copyFile(name string) (int64, error) {
	part, rel, _ := strings.Cut(name, "/")
	from,
		err := os.OpenFile(filepath.Join(map[string]string{
		dataPart:   c.options.Home.Data,
		configPart: c.options.Home.Config,
	}[part], filepath.FromSlash(rel)),
		os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return 0, err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(filepath.Dir(c.target(name)), 0o700); err != nil {
		return 0, err
	}
	if err := os.Remove(c.target(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	to, err := os.OpenFile(c.target(name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm()&0o600)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(to, from)
	return n, errors.Join(err, to.Close())
}
