package file_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"conclave/pkg/file"
)

// TestWrite shows that Replace replaces and Create does not, that the file is readable by its owner alone, and that
// nothing else is left in the folder, also after an error.
func TestWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	if err := os.WriteFile(path, []byte("old and longer"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := file.Create(path, []byte("new")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("creating a file that exists: %v", err)
	}
	if err := file.Replace(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); string(got) != "new" || err != nil {
		t.Errorf("content %q, %v", got, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := file.Replace(filepath.Join(dir, "none", "a"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing folder: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// TestCreateOnce shows that one of several concurrent calls creates the file, whole.
func TestCreateOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a")
	var running sync.WaitGroup
	var mu sync.Mutex
	var created []string
	for i := range 8 {
		running.Go(func() {
			text := fmt.Sprint("content ", i)
			switch err := file.Create(path, []byte(text)); {
			case err == nil:
				mu.Lock()
				created = append(created, text)
				mu.Unlock()
			case !errors.Is(err, fs.ErrExist):
				t.Error(err)
			}
		})
	}
	running.Wait()
	if got, err := os.ReadFile(path); err != nil || len(created) != 1 || string(got) != created[0] {
		t.Errorf("created by %q, content %q, %v", created, got, err)
	}
}

// TestRead: only regular files are read, up to the limit. A FIFO does not block, and a device without an end is not
// read.
func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(path("full"), make([]byte, 1024), 0o600),
		os.WriteFile(path("more"), make([]byte, 1025), 0o600), syscall.Mkfifo(path("fifo"), 0o600),
		os.Symlink("/dev/zero", path("zero"))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		path("full"): "", path("more"): "more than 1 KB", path("fifo"): "not a regular file",
		path("zero"): "not a regular file", "/dev/zero": "not a regular file", dir: "not a regular file",
		path("none"): "no such file",
	} {
		data, err := file.Read(name, 1024)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || err == nil &&
			len(data) != 1024 {
			t.Errorf("%s: %d bytes, %v, want %q", name, len(data), err, want)
		}
	}
}

// TestMakeFolder: a new folder is closed to other users whatever the umask, and one that another user made or can
// replace is rejected.
func TestMakeFolder(t *testing.T) {
	t.Parallel()
	private := fs.FileMode(0o700)
	if os.Geteuid() == 0 {
		private = 0o711
	}
	isRoot := os.Geteuid() == 0
	for name, tt := range map[string]struct {
		prepare  func(base string) error // base exists and has the folder a
		asRoot   bool                    // needs the right to give a folder away
		rejected bool
	}{
		"nothing there":            {prepare: func(string) error { return nil }},
		"own and open for reading": {prepare: func(b string) error { return os.Mkdir(b+"/a/b", 0o755) }},
		"everybody may write": {prepare: func(b string) error {
			return errors.Join(os.Mkdir(b+"/a/b", 0o700), os.Chmod(b+"/a/b", 0o777))
		}, rejected: true},
		"the group may write": {prepare: func(b string) error {
			return errors.Join(os.Mkdir(b+"/a/b", 0o700), os.Chmod(b+"/a/b", 0o770))
		}, rejected: true},
		"everybody may write, sticky": {prepare: func(b string) error {
			return errors.Join(os.Mkdir(b+"/a/b", 0o700), os.Chmod(b+"/a/b", 0o777|fs.ModeSticky))
		}, rejected: true},
		"made by another user": {prepare: func(b string) error {
			return errors.Join(os.Mkdir(b+"/a/b", 0o700), os.Chown(b+"/a/b", 65533, 65533))
		}, asRoot: true, rejected: true},
		"a symlink": {prepare: func(b string) error {
			return errors.Join(os.Mkdir(b+"/x", 0o700), os.Symlink(b+"/x", b+"/a/b"))
		}, rejected: true},
		"a file": {prepare: func(b string) error {
			return os.WriteFile(b+"/a/b", nil, 0o600)
		}, rejected: true},
		"the one above belongs to another": {prepare: func(b string) error {
			return os.Chown(b+"/a", 65533, 65533)
		}, asRoot: true, rejected: true},
		"everybody may replace it": {prepare: func(b string) error {
			return os.Chmod(b+"/a", 0o777)
		}, rejected: true},
		"nobody owns the one above": {prepare: func(b string) error {
			return os.Chown(b+"/a", 65534, 65534)
		}, asRoot: true, rejected: true},
		"a group may replace the one of root": {prepare: func(b string) error {
			return os.Chmod(b+"/a", 0o775)
		}, asRoot: true, rejected: true},
		"above it is a sticky folder, as /tmp": {prepare: func(b string) error {
			return os.Chmod(b+"/a", 0o777|fs.ModeSticky)
		}},
		"above it is a symlink": {prepare: func(b string) error {
			return errors.Join(os.Rename(b+"/a", b+"/x"), os.Symlink(b+"/x", b+"/a"))
		}, rejected: true},
		"two are missing": {prepare: func(b string) error { return os.Remove(b + "/a") }},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.asRoot && !isRoot {
				t.Skip("needs root, to give a folder to another user")
			}
			base, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(base, "a", "b")
			if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o755), tt.prepare(base)); err != nil {
				t.Fatal(err)
			}
			before, _ := os.Lstat(path)
			err = file.MakeFolder(path)
			after, _ := os.Lstat(path)
			switch {
			case tt.rejected && err == nil:
				t.Error("accepted")
			case tt.rejected && before != nil && after.Mode() != before.Mode():
				t.Errorf("rejected, and its mode changed from %v to %v", before.Mode(), after.Mode())
			case !tt.rejected && (err != nil || after.Mode().Perm() != private):
				t.Errorf("%v, %v", err, after)
			}
		})
	}
}
