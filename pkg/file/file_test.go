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

// TestWrite shows that Replace replaces and Create does not, that the file is readable by its owner alone, and that nothing else is
// left in the folder, also after an error.
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

// TestRead: only regular files are read, up to the limit. A FIFO does not block, and a device without an end is not read.
func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(path("full"), make([]byte, 1024), 0o600), os.WriteFile(path("more"), make([]byte, 1025), 0o600), syscall.Mkfifo(path("fifo"), 0o600), os.Symlink("/dev/zero", path("zero"))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		path("full"): "", path("more"): "more than 1 KB", path("fifo"): "not a regular file", path("zero"): "not a regular file", "/dev/zero": "not a regular file", dir: "not a regular file", path("none"): "no such file",
	} {
		data, err := file.Read(name, 1024)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || err == nil && len(data) != 1024 {
			t.Errorf("%s: %d bytes, %v, want %q", name, len(data), err, want)
		}
	}
}
