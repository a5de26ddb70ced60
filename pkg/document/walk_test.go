package document_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"conclave/pkg/document"
)

func TestWalk(t *testing.T) {
	t.Parallel()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	in := func(p string) string { return filepath.Join(base, p) }
	for _, f := range []string{
		"in/b.md", "in/a.txt", "in/sub/c.txt", "in/.env", "in/.git/config",
		"in/node_modules/x/y.js", "in/sub/.hidden/z", "inside/d.txt", "out/secret.txt",
	} {
		write(t, base, f, "text")
	}
	if err := unix.Mkfifo(in("in/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{
		"in/1-again": "a.txt", "in/2-out": "../out/secret.txt", "in/3-absolute": in("out/secret.txt"),
		"in/4-folder": "sub", "in/5-loop": "5-loop", "in/6-nowhere": "gone",
		"in/7-hidden": ".env", "in/8-begins-alike": "../inside/d.txt", "in/9-up": "..", "in/10-chain": "2-out",
		"in/11-pipe": "pipe", "in/12-modules": "node_modules/x/y.js",
		"door": "in", "named": "out/secret.txt",
	} {
		if err := os.Symlink(to, in(name)); err != nil {
			t.Fatal(err)
		}
	}
	found := []string{"in/a.txt", "in/b.md", "in/sub/c.txt"}
	for _, tt := range []struct {
		name  string
		paths []string
		files []string
		given bool // the first
	}{
		{"a folder", []string{"in"}, found, false},
		{"a folder twice", []string{"in", "in/sub", "in/../in"}, found, false},
		{"a link to a folder, named", []string{"door"}, found, false},
		{"a link to a file, named", []string{"named"}, []string{"out/secret.txt"}, true},
		{"a hidden file, named", []string{"in/.env"}, []string{"in/.env"}, true},
		{"a hidden folder, named", []string{"in/sub/.hidden"}, []string{"in/sub/.hidden/z"}, false},
		{"a file and its folder", []string{"in/a.txt", "in"}, found, true},
		{"sorted", []string{"out", "in/sub", "in/a.txt"}, []string{"in/a.txt", "in/sub/c.txt", "out/secret.txt"}, true},
		{"nothing", nil, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var paths []string
			for _, p := range tt.paths {
				paths = append(paths, base+"/"+p)
			}
			files, skipped := document.Walk(paths...)
			var got []string
			for _, f := range files {
				rel, err := filepath.Rel(base, f.Path)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, rel)
			}
			if !slices.Equal(got, tt.files) || len(files) > 0 && files[0].Given != tt.given {
				t.Errorf("%v, %+v", got, files)
			}
			for _, s := range skipped {
				if s.Err != nil || s.Why == "" {
					t.Errorf("%+v", s)
				}
			}
		})
	}

	_, skipped := document.Walk(in("in"))
	why := map[string]string{}
	for _, s := range skipped {
		why[strings.TrimPrefix(s.Path, in("in")+"/")] = s.Why
	}
	for name, want := range map[string]string{
		".env": "hidden", ".git": "hidden", "sub/.hidden": "hidden", "node_modules": "dependencies",
		"pipe":    "not a regular file",
		"1-again": "included already", "2-out": "out of the folder", "3-absolute": "out of the folder",
		"4-folder": "not a regular file", "5-loop": "broken link",
		"6-nowhere": "broken link", "7-hidden": "skipped file", "8-begins-alike": "out of the folder",
		"9-up": "out of the folder", "10-chain": "out of the folder",
		"11-pipe": "not a regular file", "12-modules": "skipped file",
	} {
		if !strings.Contains(why[name], want) {
			t.Errorf("trick: %s was left out because %q, want %q", name, why[name], want)
		}
		delete(why, name)
	}
	if len(why) > 0 {
		t.Errorf("left out too: %v", why)
	}
}

func TestWalkFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := write(t, dir, "good.txt", "text")
	files, skipped := document.Walk(filepath.Join(dir, "gone"), good, filepath.Join(dir, "pipe"))
	if len(files) != 1 || len(skipped) != 2 || !errors.Is(skipped[0].Err, fs.ErrNotExist) || skipped[1].Err == nil {
		t.Errorf("%v, %v", files, skipped)
	}
}
