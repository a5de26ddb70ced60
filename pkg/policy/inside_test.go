//go:build unix

package policy

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"conclave/subjects"
)

func TestOpenInside(t *testing.T) {
	w := newPathsFixture(t)
	projects := w.home + "/projects"
	w.mustSucceed(t, unix.Mkfifo(projects+"/pipe", 0o644))
	w.mustSucceed(t, os.Link(w.closed+"/keys/root.nk", projects+"/second-name"))
	w.mustSucceed(t, os.Link(projects+"/a.txt", projects+"/third-name"))
	short := t.TempDir() // a socket's path is short
	socket, err := net.Listen("unix", short+"/s")
	w.mustSucceed(t, err)
	defer socket.Close()

	for _, tt := range []struct {
		name, path string
		flag       int
		allowed    []string // nil = projects
		is         error    // nil = opens
	}{
		{name: "a file", path: projects + "/a.txt"},
		{name: "with another name that is not closed", path: projects + "/third-name"},
		{name: "all is allowed", path: w.root + "/outside/secret", allowed: []string{"/"}},
		{name: "a new file", path: projects + "/new.txt", flag: os.O_RDWR | os.O_CREATE},
		{name: "not there", path: projects + "/nothing", is: fs.ErrNotExist},
		{
			name: "new, and there already", path: projects + "/a.txt", flag: os.O_RDWR | os.O_CREATE | os.O_EXCL,
			is: fs.ErrExist,
		},
		{name: "outside", path: w.root + "/outside/secret", is: ErrOutside},
		{name: "a folder", path: projects + "/go", is: ErrNotRegular},

		{
			name: "trick: a link inside, which was not there when the path was judged", path: projects + "/in/b.go",
			is: ErrSwapped,
		},
		{name: "trick: the folder's own link", path: w.home + "/code/a.txt", is: ErrSwapped},
		{name: "trick: nothing is allowed", path: projects + "/a.txt", allowed: []string{}, is: ErrOutside},
		{
			name: "trick: an allowed folder without a name", path: projects + "/a.txt",
			allowed: []string{"", ".", "projects"}, is: ErrOutside,
		},
		{
			name: "trick: an allowed folder that is a link", path: projects + "/a.txt",
			allowed: []string{w.home + "/code"}, is: ErrOutside,
		},
		{name: "trick: a link out", path: projects + "/out-file", is: ErrOutside},
		{
			name: "trick: creating through a link to nothing", path: projects +
				"/dangling", flag: os.O_RDWR | os.O_CREATE,
			is: ErrOutside,
		},
		{name: "trick: ..", path: projects + "/../notes/n.md", is: ErrOutside},
		{name: "trick: a closed folder", path: w.closed + "/keys/root.nk", allowed: []string{"/"}, is: ErrClosed},
		{
			name: "trick: a closed folder by a link", path: projects + "/keys/root.nk", allowed: []string{"/"},
			is: ErrClosed,
		},
		{name: "trick: another name of a closed file", path: projects + "/second-name", is: ErrClosed},
		{
			name: "trick: emptying another name of a closed file", path: projects + "/second-name",
			flag: os.O_RDWR | os.O_TRUNC, is: ErrClosed,
		},
		{
			name: "trick: creating in a closed folder", path: w.closed + "/x", flag: os.O_RDWR | os.O_CREATE,
			allowed: []string{"/"}, is: ErrClosed,
		},
		{name: "trick: a pipe without a writer", path: projects + "/pipe", is: ErrNotRegular},
		{
			name: "trick: writing to a pipe without a reader", path: projects +
				"/pipe", flag: os.O_WRONLY | os.O_CREATE,
			is: ErrNotRegular,
		},
		{name: "trick: a socket", path: short + "/s", allowed: []string{"/"}, is: ErrNotRegular},
		{name: "trick: a device", path: "/dev/zero", allowed: []string{"/"}, is: ErrSpecial},
		{name: "trick: /proc/self", path: "/proc/self/environ", allowed: []string{"/"}, is: ErrSpecial},
		{name: "trick: /proc/self/fd", path: "/proc/self/fd/0", allowed: []string{"/proc/self/fd"}, is: ErrSpecial},
		{
			name: "trick: a link into /proc", path: projects + "/self" + w.root + "/outside/secret",
			allowed: []string{"/"}, is: ErrSpecial,
		},
		{name: "trick: the machine's root", path: "/", allowed: []string{"/"}, is: ErrNotRegular},
	} {
		t.Run(tt.name, func(t *testing.T) {
			allowed := tt.allowed
			if allowed == nil {
				allowed = []string{projects}
			}
			f, err := OpenInside(tt.path, tt.flag, 0o600, allowed, []string{w.closed})
			if err == nil {
				defer f.Close()
			}
			if tt.is == nil && err != nil || !errors.Is(err, tt.is) {
				t.Fatalf("%v, want %v", err, tt.is)
			}
		})
	}
	if b, err := os.ReadFile(w.closed + "/keys/root.nk"); err != nil || len(b) == 0 {
		t.Errorf("the closed file was changed: %q, %v", b, err)
	}
	if _, err := os.Lstat(w.root + "/outside/new"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was created outside: %v", err)
	}
}

func TestOpenInsideRejectsMalformedPaths(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]string{
		"trick: a name beyond 255 bytes": dir + "/" + strings.Repeat("a", 256),
		"trick: a path without end":      dir + strings.Repeat("/a", 5000),
		"trick: relative":                "a.txt",
		"trick: home":                    "~/a.txt",
		"trick: nothing":                 "",
		"trick: NUL":                     dir + "/a\x00b",
	} {
		_, err := OpenInside(p, os.O_RDWR|os.O_CREATE, 0o600, []string{"/"}, nil)
		if err == nil || len(err.Error()) > 250 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := OpenInside(dir+"/a", os.O_RDONLY|unix.O_DIRECTORY, 0, []string{dir}, nil); err == nil {
		t.Error("a flag outside of openFlags was accepted")
	}
}

// TestOpenInsideWrites: create, truncate and append behave as in os.OpenFile.
func TestOpenInsideWrites(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	write := func(flag int, s string) {
		t.Helper()
		f, err := OpenInside(dir+"/a", flag, 0o640, []string{dir}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
	write(os.O_WRONLY|os.O_CREATE|os.O_EXCL, "first")
	write(os.O_WRONLY|os.O_CREATE|os.O_TRUNC, "second")
	write(os.O_WRONLY|os.O_APPEND, ", third")
	f, err := OpenInside(dir+"/a", os.O_RDONLY, 0, []string{dir}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := io.ReadAll(f); string(b) != "second, third" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if info, err := f.Stat(); err != nil || info.Mode().Perm()&^0o640 != 0 || f.Name() != dir+"/a" {
		t.Errorf("%v %s: %v", info.Mode(), f.Name(), err)
	}
}

func TestOpenFolder(t *testing.T) {
	w := newPathsFixture(t)
	f, err := OpenFolder(w.home+"/projects/go/src", []string{w.home}, []string{w.closed})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if names, err := f.Readdirnames(-1); err != nil || len(names) != 1 || names[0] != "b.go" {
		t.Errorf("%q, %v", names, err)
	}
	for p, is := range map[string]error{
		w.home + "/projects/in":    ErrSwapped,
		w.home + "/projects/out":   ErrOutside,
		w.home + "/projects/keys":  ErrClosed,
		w.closed:                   ErrClosed,
		w.home + "/projects/a.txt": ErrNotFolder,
		"/proc/self":               ErrSpecial,
		w.home + "/nothing":        fs.ErrNotExist,
	} {
		if _, err := OpenFolder(p, []string{w.home}, []string{w.closed}); !errors.Is(err, is) {
			t.Errorf("%s: %v, want %v", p, err, is)
		}
	}
}

// TestReplaceInsideRejectsSwappedFolder: a write does not follow a folder that became a symlink after the path was
// judged, although the symlink leads to an allowed folder.
func TestReplaceInsideRejectsSwappedFolder(t *testing.T) {
	w := newPathsFixture(t)
	projects := w.home + "/projects"
	target := projects + "/deep/out/new.txt"
	content := Replacement{Make: func() (FileContent, error) { return FileContent{Data: []byte("x")}, nil }}
	w.mustSucceed(t, os.Symlink(projects+"/go/src", projects+"/deep/out"))
	if _, err := ReplaceInside(target, content, []string{projects}, []string{w.closed}); !errors.Is(err,
		ErrSwapped) {
		t.Errorf("%v, want %v", err, ErrSwapped)
	}
	if _, err := os.Lstat(projects + "/go/src/new.txt"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file was written through the symlink: %v", err)
	}
	w.mustSucceed(t, os.Remove(projects+"/deep/out"))
	if _, err := ReplaceInside(target, content, []string{projects}, []string{w.closed}); err != nil {
		t.Error(err)
	}
}

// TestMakeWorkFolder: the workspace and the working folder are closed to other users, a working folder that belongs to
// the user of programs is accepted, and a workspace that others may change is rejected.
func TestMakeWorkFolder(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	workspace := root + "/workspace"
	r := &subjects.FolderRules{Allowed: []string{workspace + "/q1"}, Work: workspace + "/q1"}
	above := os.FileMode(0o700)
	if os.Geteuid() == 0 {
		above = 0o711
	}
	checkModes := func(when string) {
		t.Helper()
		if err := MakeWorkFolder(r); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		for path, want := range map[string]os.FileMode{workspace: above, r.Work: 0o700} {
			if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != want {
				t.Errorf("%s: %s: %v %v, want %v", when, path, info, err, want)
			}
		}
	}
	checkModes("new")
	if err := errors.Join(os.Chmod(workspace, 0o755), os.Chmod(r.Work, 0o777)); err != nil {
		t.Fatal(err)
	}
	checkModes("opened by a program")
	if os.Geteuid() == 0 {
		if err := os.Chown(r.Work, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		checkModes("lent to the user of programs")
		if err := os.Chown(workspace, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if err := MakeWorkFolder(r); !errors.Is(err, ErrForeign) {
			t.Errorf("the workspace of another user: %v", err)
		}
		if err := os.Chown(workspace, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(workspace, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := MakeWorkFolder(r); !errors.Is(err, ErrForeign) {
		t.Errorf("a workspace that everybody may write to: %v", err)
	}
}

// swapRepeatedly replaces the path at in turn by first and second until stop is set, and counts the replacements.
func swapRepeatedly(t *testing.T, at string, stop *atomic.Bool, first, second func(tmp string) error) (
	times *atomic.Int64, done chan struct{},
) {
	t.Helper()
	times, done = &atomic.Int64{}, make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; !stop.Load(); i++ {
			makeIt := first
			if i%2 == 1 {
				makeIt = second
			}
			tmp := at + ".tmp"
			if err := makeIt(tmp); err != nil {
				t.Error(err)
				return
			}
			// A folder is not replaced by a rename: it is moved away first, which opens other moments.
			_ = os.Rename(at, at+".old")
			if err := os.Rename(tmp, at); err != nil {
				t.Error(err)
				return
			}
			_ = os.RemoveAll(at + ".old")
			times.Add(1)
		}
	}()
	return times, done
}

// TestOpenInsideDetectsSwappedLink opens a file thousands of times while a part of its path is swapped: a denied file
// is never read or written, and the allowed one is opened at least once.
func TestOpenInsideDetectsSwappedLink(t *testing.T) {
	for _, tt := range []struct {
		name    string
		swapped string // below projects
		open    string
		flag    int
		first   func(w pathsFixture, tmp string) error
		second  func(w pathsFixture, tmp string) error
	}{
		{
			name: "trick: the file becomes a link", swapped: "f", open: "f",
			first:  func(_ pathsFixture, tmp string) error { return os.WriteFile(tmp, []byte("mine"), 0o600) },
			second: func(w pathsFixture, tmp string) error { return os.Symlink(w.root+"/outside/secret", tmp) },
		},
		{
			name: "trick: a folder becomes a link", swapped: "d", open: "d/secret",
			first: func(_ pathsFixture, tmp string) error {
				return errors.Join(os.Mkdir(tmp, 0o700), os.WriteFile(tmp+"/secret", []byte("mine"), 0o600))
			},
			second: func(w pathsFixture, tmp string) error { return os.Symlink(w.root+"/outside", tmp) },
		},
		{
			name: "trick: a folder becomes a link to a closed one", swapped: "d", open: "d/root.nk",
			flag: os.O_RDWR | os.O_TRUNC,
			first: func(_ pathsFixture, tmp string) error {
				return errors.Join(os.Mkdir(tmp, 0o700), os.WriteFile(tmp+"/root.nk", []byte("mine"), 0o600))
			},
			second: func(w pathsFixture, tmp string) error { return os.Symlink(w.closed+"/keys", tmp) },
		},
		{
			name: "trick: the file becomes another name of a closed one", swapped: "f", open: "f",
			flag:   os.O_RDWR | os.O_TRUNC,
			first:  func(_ pathsFixture, tmp string) error { return os.WriteFile(tmp, []byte("mine"), 0o600) },
			second: func(w pathsFixture, tmp string) error { return os.Link(w.closed+"/keys/root.nk", tmp) },
		},
		{
			name: "trick: the file becomes a pipe", swapped: "f", open: "f",
			first:  func(_ pathsFixture, tmp string) error { return os.WriteFile(tmp, []byte("mine"), 0o600) },
			second: func(_ pathsFixture, tmp string) error { return unix.Mkfifo(tmp, 0o600) },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newPathsFixture(t)
			projects := w.home + "/projects"
			w.mustSucceed(t, tt.first(w, projects+"/"+tt.swapped))
			var stop atomic.Bool
			times, done := swapRepeatedly(t, projects+"/"+tt.swapped, &stop,
				func(tmp string) error { return tt.second(w, tmp) }, func(tmp string) error { return tt.first(w, tmp) })
			opened, denied := 0, 0
			for opened+denied < 3000 || opened == 0 || denied == 0 || times.Load() < 100 {
				select {
				case <-done:
					t.Fatal("the swapping goroutine ended")
				default:
				}
				f, err := OpenInside(projects+"/"+tt.open, tt.flag, 0, []string{projects}, []string{w.closed})
				if err != nil {
					denied++
					continue
				}
				opened++
				b, err := io.ReadAll(f)
				if s := string(b); err != nil || s != "mine" && s != "" {
					t.Errorf("read %q, %v", b, err)
				}
				f.Close()
			}
			stop.Store(true)
			<-done
			for _, f := range []string{"outside/secret", "home/.conclave/keys/root.nk"} {
				if b, err := os.ReadFile(filepath.Join(w.root, f)); err != nil || string(b) != f {
					t.Errorf("%s holds %q now, %v", f, b, err)
				}
			}
		})
	}
}

func BenchmarkOpenInside(b *testing.B) {
	w := newPathsFixture(b)
	for b.Loop() {
		f, err := OpenInside(w.home+"/projects/go/src/b.go", os.O_RDONLY, 0, []string{w.home + "/projects"},
			[]string{w.closed})
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}
