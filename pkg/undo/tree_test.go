package undo

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// program is what a program does in its folder: it changes, makes and removes a file, makes one executable, and fills
// its cache.
func (f *fixture) program(t *testing.T) {
	t.Helper()
	f.edit(t, "work/changed", "new\n")
	f.edit(t, "work/made", "made\n")
	if err := errors.Join(os.Remove(f.path("work/removed")), os.MkdirAll(f.path("work/.cache"), 0o700),
		os.Chmod(f.path("work/mode"), 0o755)); err != nil {
		t.Fatal(err)
	}
	f.edit(t, "work/.cache/x", strings.Repeat("x", 1000))
}

func (f *fixture) prepareTree(t *testing.T) Change {
	t.Helper()
	if err := os.MkdirAll(f.path("work"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"changed", "removed", "same", "mode"} {
		f.edit(t, "work/"+name, "old "+name+"\n")
	}
	f.now = f.now.Add(time.Second)
	c := Change{ID: "c1", Time: f.now, Tool: "run_code"}
	if err := f.CaptureTree(c, f.path("work"), []string{".cache"}, f.rules, f.now); err != nil {
		t.Fatal(err)
	}
	return c
}

func (f *fixture) checkTreeUndone(t *testing.T) {
	t.Helper()
	if got := f.undo(t, "u1", Selection{IDs: []string{"c1"}}); got != nil {
		t.Fatal(got)
	}
	for _, name := range []string{"changed", "removed", "same", "mode"} {
		if got := f.read("work/" + name); got != "old "+name+"\n" {
			t.Errorf("%s holds %q", name, got)
		}
	}
	info, err := os.Stat(f.path("work/mode"))
	if f.read("work/made") != "absent" || err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("made %q, %v, %v", f.read("work/made"), info.Mode(), err)
	}
}

// TestTree: what a program did in its folder is one change, and an undo restores every file of it.
func TestTree(t *testing.T) {
	t.Parallel()
	f := newFixture(t, tempDir(t), testLimits, nil)
	c := f.prepareTree(t)
	end, err := f.BeginTree(c, f.path("work"), []string{".cache"}, f.rules)
	if err != nil {
		t.Fatal(err)
	}
	f.program(t)
	if all, err := f.Changes(); err != nil || len(all) != 0 {
		t.Errorf("a running program is listed: %v, %v", all, err)
	}
	changed, err := end()
	want := []string{f.path("work/changed"), f.path("work/made"), f.path("work/mode"), f.path("work/removed")}
	if err != nil || !slices.Equal(changed, want) {
		t.Fatalf("%v, %v", changed, err)
	}
	f.checkTreeUndone(t)
}

// TestTreeCrash: a process that dies while the program runs leaves a change of what the program did until then.
func TestTreeCrash(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	f := newFixture(t, dir, testLimits, nil)
	c := f.prepareTree(t)
	c.Phase, c.Tree, c.Skip = Begun, f.path("work"), []string{".cache"}
	if err := f.keepTree(&c, f.path("work"), c.Skip, f.rules, Begun); err != nil {
		t.Fatal(err)
	}
	f.program(t)
	again := newFixture(t, dir, testLimits, nil)
	again.now = f.now
	again.checkTreeUndone(t)
}

// TestTreeNotKept: a folder that exceeds the limits is not kept, and says so.
func TestTreeNotKept(t *testing.T) {
	t.Parallel()
	limits := testLimits
	limits.Size = 100
	f := newFixture(t, tempDir(t), limits, nil)
	f.edit(t, "large", strings.Repeat("x", 101))
	err := f.CaptureTree(Change{ID: "c1", Time: f.now}, f.dir, nil, f.rules, f.now)
	if !errors.Is(err, ErrNotKept) {
		t.Errorf("%v", err)
	}
	if _, err := f.BeginTree(Change{ID: "c2", Time: f.now}, f.dir, nil, f.rules); !errors.Is(err, ErrNotKept) {
		t.Errorf("%v", err)
	}
	if all, err := f.Changes(); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
}

// TestTreeOfAnyProgram: whatever a program leaves in its folder, its change ends, what its files held before can be
// restored, and other changes are listed and undone.
func TestTreeOfAnyProgram(t *testing.T) {
	t.Parallel()
	f := newFixture(t, tempDir(t), testLimits, nil)
	f.write(t, "c0", "note", "mine")
	c := f.prepareTree(t)
	end, err := f.BeginTree(c, f.path("work"), nil, f.rules)
	if err != nil {
		t.Fatal(err)
	}
	f.program(t)
	if err := os.Link(f.path("work/changed"), f.path("work/linked")); err != nil {
		t.Fatal(err)
	}
	for i := range maxTreeFiles {
		f.edit(t, fmt.Sprintf("work/z%d", i), "")
	}
	changed, err := end()
	if err != nil || !slices.Contains(changed, f.path("work/changed")) ||
		!slices.Contains(changed, f.path("work/made")) || !slices.Contains(changed, f.path("work/removed")) {
		t.Errorf("%d files, %v", len(changed), err)
	}
	if all, err := f.Changes(); err != nil || len(all) != 2 {
		t.Errorf("%d changes, %v", len(all), err)
	}
	// What a crash left in a folder that cannot be read hides no other change.
	c.ID, c.Phase, c.Tree = "c9", Begun, "/proc/1/mem/none\x00"
	if err := f.locked(func() error { return f.putEntry(c) }); err != nil {
		t.Fatal(err)
	}
	if all, err := f.Changes(); err != nil || len(all) != 2 {
		t.Errorf("beside one that cannot be completed: %d changes, %v", len(all), err)
	}
	f.now = f.now.Add(time.Hour)
	if got := f.undo(t, "u1", Selection{IDs: []string{"c0"}}); got != nil {
		t.Errorf("%v", got)
	}
	linked := Selection{IDs: []string{"c1"}, Only: []string{f.path("work/changed")}, Overwrite: true}
	if got := f.undo(t, "u2", linked); got == nil {
		t.Error("a file with another name was replaced")
	}
	if err := os.Remove(f.path("work/linked")); err != nil {
		t.Fatal(err)
	}
	if got := f.undo(t, "u3", linked); got != nil || f.read("work/changed") != "old changed\n" {
		t.Errorf("trick: a link took the content before: %v, %q", got, f.read("work/changed"))
	}
}

// TestTreeOfManyFiles: new files of a program, however many and large, push no file out that was there, and are not
// read beyond the limits of a folder.
func TestTreeOfManyFiles(t *testing.T) {
	t.Parallel()
	limits := testLimits
	limits.MaxFile, limits.Size = maxTreeBytes, 4*maxTreeBytes
	f := newFixture(t, tempDir(t), limits, nil)
	c := f.prepareTree(t)
	end, err := f.BeginTree(c, f.path("work"), nil, f.rules)
	if err != nil {
		t.Fatal(err)
	}
	f.program(t)
	if err := os.Truncate(f.path("work/changed"), maxTreeBytes); err != nil { // all that may be read of changed files
		t.Fatal(err)
	}
	for i := range maxTreeFiles {
		f.edit(t, fmt.Sprintf("work/#%d", i), "") // before those that were there, in the order of names
	}
	for i := range 500 { // 32 GB that use no space
		name := f.path(fmt.Sprintf("work/!%d", i)) // before all others
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, maxTreeBytes)); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	changed, err := end()
	if err != nil || slices.Contains(changed, f.path("work/same")) ||
		!slices.Contains(changed, f.path("work/changed")) {
		t.Errorf("%d files, %v", len(changed), err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("sealed after %s: it read what it does not keep", took)
	}
	for _, name := range []string{"changed", "removed", "mode"} {
		only := Selection{IDs: []string{"c1"}, Only: []string{f.path("work/" + name)}}
		if got := f.undo(t, "u-"+name, only); got != nil || f.read("work/"+name) != "old "+name+"\n" {
			t.Errorf("%s: %v, %q", name, got, f.read("work/"+name))
		}
	}
}
