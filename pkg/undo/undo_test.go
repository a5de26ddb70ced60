package undo

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"conclave/pkg/file"
	"conclave/subjects"
)

// fixture is a store, and a folder of files that are changed.
type fixture struct {
	*Store
	dir   string
	rules *subjects.FolderRules
	now   time.Time
}

var testLimits = Limits{Days: 30, Size: 1 << 20, MaxFile: 64 << 10}

func newFixture(t testing.TB, dir string, limits Limits, step func(string)) *fixture {
	t.Helper()
	s, err := Open(filepath.Join(dir, "store"), limits, step)
	if err != nil {
		t.Fatal(err)
	}
	files := filepath.Join(dir, "files")
	if err := os.MkdirAll(files, 0o700); err != nil {
		t.Fatal(err)
	}
	return &fixture{
		s, files, &subjects.FolderRules{Allowed: []string{files}},
		time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC),
	}
}

func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func (f *fixture) path(name string) string { return filepath.Join(f.dir, name) }

// change changes a file as a tool does: captured, then replaced.
func (f *fixture) change(id, name string, makeContent func(old []byte) ([]byte, error)) error {
	f.now = f.now.Add(time.Second)
	c := Change{ID: id, Time: f.now, Tool: "fs_write", Query: "q", Session: "s"}
	if err := f.Capture(c, f.path(name), 10, f.rules, f.now); err != nil {
		return err
	}
	_, err := f.Replace(c, f.path(name), makeContent, f.rules)
	return err
}

func (f *fixture) write(t testing.TB, id, name, content string) {
	t.Helper()
	if err := f.change(id, name, func([]byte) ([]byte, error) { return []byte(content), nil }); err != nil {
		t.Fatalf("change %s: %v", id, err)
	}
}

func (f *fixture) edit(t testing.TB, name, content string) {
	t.Helper()
	if err := os.WriteFile(f.path(name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// undo undoes changes all or none, and returns the reasons of the refusals.
func (f *fixture) undo(t testing.TB, id string, sel Selection) (reasons []string) {
	t.Helper()
	f.now = f.now.Add(time.Second)
	p, err := PlanUndo(f, sel, f.rules)
	if err != nil {
		t.Fatal(err)
	}
	refusals := p.Refusals
	if len(refusals) == 0 {
		if refusals, err = f.Undo(Change{ID: id, Time: f.now, Undoes: sel.IDs}, p, f.rules); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range refusals {
		reasons = append(reasons, r.Reason)
	}
	return reasons
}

func (f *fixture) read(name string) string {
	data, err := os.ReadFile(f.path(name))
	if err != nil {
		return "absent"
	}
	return string(data)
}

// TestUndo: each undo restores the file byte for byte, keeps what others did since, or refuses with the reason and
// changes nothing.
func TestUndo(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		do      func(t *testing.T, f *fixture)
		sel     Selection
		reasons []string
		want    string // of the file a
	}{
		"overwritten": {
			func(t *testing.T, f *fixture) { f.write(t, "c1", "a", "new") },
			Selection{IDs: []string{"c1"}},
			nil, "old\n",
		},
		"two changes": {func(t *testing.T, f *fixture) {
			f.write(t, "c1", "a", "new")
			f.write(t, "c2", "a", "newer")
		}, Selection{IDs: []string{"c1", "c2"}}, nil, "old\n"},
		"the earlier of two appends": {func(t *testing.T, f *fixture) {
			f.write(t, "c1", "a", "old\n1\n")
			f.write(t, "c2", "a", "old\n1\n2\n")
		}, Selection{IDs: []string{"c1"}}, nil, "old\n2\n"},
		"the user added a line": {func(t *testing.T, f *fixture) {
			f.write(t, "c1", "a", "old\n1\n")
			f.edit(t, "a", "mine\nold\n1\n")
		}, Selection{IDs: []string{"c1"}}, nil, "mine\nold\n"},
		"refused: the user changed the line": {func(t *testing.T, f *fixture) {
			f.write(t, "c1", "a", "old\n1\n")
			f.edit(t, "a", "old\nmine\n")
		}, Selection{IDs: []string{"c1"}}, []string{ReasonChanged}, "old\nmine\n"},
		"overwrite": {func(t *testing.T, f *fixture) {
			f.write(t, "c1", "a", "old\n1\n")
			f.edit(t, "a", "old\nmine\n")
		}, Selection{IDs: []string{"c1"}, Overwrite: true}, nil, "old\n"},
		"refused: a later change replaced it": {func(t *testing.T, f *fixture) {
			f.write(t, "c1", "a", "1\n")
			f.write(t, "c2", "a", "2\n")
		}, Selection{IDs: []string{"c1"}}, []string{ReasonChanged}, "2\n"},
		"refused: the user removed it": {func(t *testing.T, f *fixture) {
			f.write(t, "c1", "a", "1\n")
			if err := os.Remove(f.path("a")); err != nil {
				t.Fatal(err)
			}
		}, Selection{IDs: []string{"c1"}}, []string{ReasonDeleted}, "absent"},
		"refused: binary": {func(t *testing.T, f *fixture) {
			f.write(t, "c1", "a", "1\x00")
			f.edit(t, "a", "1\x00mine")
		}, Selection{IDs: []string{"c1"}}, []string{ReasonBinary}, "1\x00mine"},
		"refused: unknown": {
			func(*testing.T, *fixture) {},
			Selection{IDs: []string{"c9"}},
			[]string{ReasonUnknown},
			"old\n",
		},
		"refused: not a name": {
			func(*testing.T, *fixture) {},
			Selection{IDs: []string{"../store"}},
			[]string{ReasonUnknown},
			"old\n",
		},
		"refused: undone already": {func(t *testing.T, f *fixture) {
			f.write(t, "c1", "a", "1\n")
			f.undo(t, "u1", Selection{IDs: []string{"c1"}})
		}, Selection{IDs: []string{"c1"}}, []string{ReasonUndone}, "old\n"},
		"the undo is undone": {func(t *testing.T, f *fixture) {
			f.write(t, "c1", "a", "1\n")
			f.undo(t, "u1", Selection{IDs: []string{"c1"}})
		}, Selection{IDs: []string{"u1"}}, nil, "1\n"},
		"undone again after the undo was undone": {func(t *testing.T, f *fixture) {
			f.write(t, "c1", "a", "1\n")
			f.undo(t, "u1", Selection{IDs: []string{"c1"}})
			f.undo(t, "u2", Selection{IDs: []string{"u1"}})
		}, Selection{IDs: []string{"c1"}}, nil, "old\n"},
		"refused: the kept content is gone": {func(t *testing.T, f *fixture) {
			f.write(t, "c1", "a", "1\n")
			if err := os.Remove(f.object(sum([]byte("old\n")))); err != nil {
				t.Fatal(err)
			}
		}, Selection{IDs: []string{"c1"}}, []string{ReasonLost}, "1\n"},
		"refused: the kept content was changed": {func(t *testing.T, f *fixture) {
			f.write(t, "c1", "a", "1\n")
			if err := os.WriteFile(f.object(sum([]byte("old\n"))), []byte("evil"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, Selection{IDs: []string{"c1"}}, []string{ReasonLost}, "1\n"},
		"refused: the file is a symlink now": {func(t *testing.T, f *fixture) {
			f.write(t, "c1", "a", "1\n")
			if err := errors.Join(os.Rename(f.path("a"), f.path("b")), os.Symlink("b", f.path("a"))); err != nil {
				t.Fatal(err)
			}
		}, Selection{IDs: []string{"c1"}}, []string{ReasonOutside}, "1\n"},
		"one file of two": {func(t *testing.T, f *fixture) {
			f.write(t, "c1", "a", "1\n")
			f.write(t, "c2", "b", "2\n")
		}, Selection{IDs: []string{"c1", "c2"}, Only: []string{"b"}}, nil, "1\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, tempDir(t), testLimits, nil)
			sel := tt.sel
			for i, p := range sel.Only {
				sel.Only[i] = f.path(p)
			}
			f.edit(t, "a", "old\n")
			tt.do(t, f)
			if got := f.undo(t, "u9", sel); !slices.Equal(got, tt.reasons) {
				t.Errorf("refused with %v, want %v", got, tt.reasons)
			}
			if got := f.read("a"); got != tt.want {
				t.Errorf("the file holds %q, want %q", got, tt.want)
			}
		})
	}
}

// TestUndoNewFile: an undo removes a new file and the folders that the change made, and keeps those of others.
func TestUndoNewFile(t *testing.T) {
	t.Parallel()
	f := newFixture(t, tempDir(t), testLimits, nil)
	f.write(t, "c1", "x/y/new", "1")
	f.write(t, "c2", "x/z/new", "1")
	if got := f.undo(t, "u1", Selection{IDs: []string{"c1"}}); got != nil {
		t.Fatal(got)
	}
	if f.read("x/y/new") != "absent" || f.read("x/z/new") != "1" {
		t.Error("the wrong file is gone")
	}
	if _, err := os.Stat(f.path("x/y")); err == nil {
		t.Error("the folder of the change is still there")
	}
	f.edit(t, "x/mine", "2")
	f.undo(t, "u2", Selection{IDs: []string{"c2"}})
	if f.read("x/mine") != "2" || f.read("x/z/new") != "absent" {
		t.Error("a folder with a file of the user was removed")
	}
	if got := f.undo(t, "u3", Selection{IDs: []string{"u1"}}); got != nil || f.read("x/y/new") != "1" {
		t.Errorf("the undo of the undo: %v, %q", got, f.read("x/y/new"))
	}
}

// TestNotKept: what cannot be restored is not captured, and says why.
func TestNotKept(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		limits Limits
		do     func(f *fixture) error
		want   string
	}{
		"switched off": {Limits{Size: 1 << 20, MaxFile: 1 << 10}, nil, "undo.days is 0"},
		"too large": {testLimits, func(f *fixture) error {
			return os.WriteFile(f.path("a"), make([]byte, 65<<10), 0o600)
		}, "more than 64KB"},
		"hard link": {testLimits, func(f *fixture) error {
			return errors.Join(os.WriteFile(f.path("a"), nil, 0o600), os.Link(f.path("a"), f.path("b")))
		}, "hard link"},
		"full": {Limits{Days: 1, Size: 20, MaxFile: 1 << 10}, func(f *fixture) error {
			return os.WriteFile(f.path("a"), make([]byte, 11), 0o600)
		}, "reached the limit of 20B"},
		"outside": {testLimits, func(f *fixture) error {
			f.rules.Allowed = []string{f.path("other")}
			return nil
		}, "outside the allowed folders"},
	} {
		f := newFixture(t, tempDir(t), tt.limits, nil)
		if tt.do != nil {
			if err := tt.do(f); err != nil {
				t.Fatal(err)
			}
		}
		err := f.Capture(Change{ID: "c1", Time: f.now}, f.path("a"), 10, f.rules, f.now)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// TestReplaceKeepsWhatIsThere: a change that came between the capture and the write is kept, not the older state; and
// without room for it nothing is written.
func TestReplaceKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	f := newFixture(t, tempDir(t), Limits{Days: 1, Size: 100, MaxFile: 1 << 10}, nil)
	f.edit(t, "a", "first")
	c := Change{ID: "c1", Time: f.now}
	if err := f.Capture(c, f.path("a"), 10, f.rules, f.now); err != nil {
		t.Fatal(err)
	}
	f.edit(t, "a", "second")
	appended := func(old []byte) ([]byte, error) { return append(old, "!"...), nil }
	if _, err := f.Replace(c, f.path("a"), appended, f.rules); err != nil || f.read("a") != "second!" {
		t.Fatal(err, f.read("a"))
	}
	f.undo(t, "u1", Selection{IDs: []string{"c1"}})
	if f.read("a") != "second" {
		t.Errorf("restored %q", f.read("a"))
	}
	f.edit(t, "a", strings.Repeat("x", 90))
	c.ID = "c2"
	if _, err := f.Replace(c, f.path("a"), appended, f.rules); !errors.Is(err, ErrNotKept) {
		t.Errorf("written without room: %v", err)
	}
	if entries, err := os.ReadDir(f.dir); err != nil || len(entries) != 1 || len(f.read("a")) != 90 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// TestCollect: expired changes and their contents are removed, and contents that a later change names stay.
func TestCollect(t *testing.T) {
	t.Parallel()
	f := newFixture(t, tempDir(t), testLimits, nil)
	f.write(t, "c1", "a", "one")
	f.write(t, "c2", "b", "one")
	f.now = f.now.Add(31 * 24 * time.Hour)
	f.write(t, "c3", "b", "two")
	all, err := f.Changes()
	if err != nil || len(all) != 1 || all[0].ID != "c3" {
		t.Fatal(all, err)
	}
	if size, err := f.Size(); err != nil || size != 6 {
		t.Errorf("%d bytes, %v", size, err)
	}
	if n, err := f.Purge(nil); err != nil || n != 1 {
		t.Error(n, err)
	}
	if size, err := f.Size(); err != nil || size != 0 || f.read("b") != "two" {
		t.Errorf("after a purge: %d bytes, %v", size, err)
	}
}

// crashSteps are the steps at which a crash is tested.
var crashSteps = []string{"kept", "captured", "staged", "stored", "begun", "replaced", "done"}

// TestCrash: a process that is killed at any step leaves a change that happened and can be undone, or none; and no
// other file.
func TestCrash(t *testing.T) {
	t.Parallel()
	if at := os.Getenv("UNDO_CRASH"); at != "" {
		crash(t, at)
		return
	}
	for _, act := range []string{"write", "create", "undo", "undo of a new file"} {
		for _, step := range crashSteps {
			t.Run(act+" "+step, func(t *testing.T) {
				t.Parallel()
				dir := tempDir(t)
				f := newFixture(t, dir, testLimits, nil)
				before, after := prepareCrash(t, f, act)
				cmd := exec.Command(os.Args[0], "-test.run", "^TestCrash$")
				cmd.Env = append(os.Environ(), "UNDO_CRASH="+step, "UNDO_ACT="+act, "UNDO_DIR="+dir)
				out, err := cmd.CombinedOutput()
				if isKilled := err != nil && strings.Contains(err.Error(), "killed"); !isKilled {
					isCapture := step == "kept" || step == "captured"
					if !isCapture || !strings.HasPrefix(act, "undo") {
						t.Fatalf("not killed: %v\n%s", err, out)
					}
				}
				checkCrash(t, f, before, after)
			})
		}
	}
}

// prepareCrash makes the state before an act and returns the contents before and after it.
func prepareCrash(t *testing.T, f *fixture, act string) (before, after string) {
	t.Helper()
	switch act {
	case "write":
		f.edit(t, "a", "old")
		return "old", "new"
	case "create":
		return "absent", "new"
	case "undo":
		f.edit(t, "a", "old")
		f.write(t, "c0", "a", "new")
		return "new", "old"
	}
	f.write(t, "c0", "a", "new")
	return "new", "absent"
}

// crash does an act and kills its own process at a step.
func crash(t *testing.T, at string) {
	f := newFixture(t, os.Getenv("UNDO_DIR"), testLimits, func(name string) {
		if name == at {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			select {}
		}
	})
	f.now = f.now.Add(time.Minute)
	if act := os.Getenv("UNDO_ACT"); strings.HasPrefix(act, "undo") {
		f.undo(t, "c1", Selection{IDs: []string{"c0"}})
		return
	}
	f.write(t, "c1", "a", "new")
}

// checkCrash checks the state after a crash, and undoes the change if it happened.
func checkCrash(t *testing.T, f *fixture, before, after string) {
	t.Helper()
	all, err := f.Changes()
	if err != nil {
		t.Fatal(err)
	}
	happened := slices.ContainsFunc(all, func(c Change) bool { return c.ID == "c1" })
	if got := f.read("a"); happened && got != after || !happened && got != before {
		t.Errorf("happened: %v, the file holds %q", happened, got)
	}
	if happened {
		f.now = f.now.Add(time.Hour)
		if got := f.undo(t, "c2", Selection{IDs: []string{"c1"}}); got != nil || f.read("a") != before {
			t.Errorf("undone: %v, the file holds %q, want %q", got, f.read("a"), before)
		}
	}
	f.now = f.now.Add(2 * time.Hour)
	if err := f.Capture(Change{ID: "c9", Time: f.now}, f.path("a"), 0, f.rules, f.now); err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadDir(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if n.Name() != "a" {
			t.Errorf("left behind: %s", n.Name())
		}
	}
}

// TestUndoMany: 100 files are undone at once. With CONCLAVE_UNDO, on a quiet machine, it takes little longer than it
// takes to write them safely, which is most of a second on a slow disk.
func TestUndoMany(t *testing.T) {
	f := newFixture(t, tempDir(t), testLimits, nil)
	var sel Selection
	for i := range 100 {
		id, name := fmt.Sprintf("c%d", i), fmt.Sprintf("f%d", i)
		f.edit(t, name, "old "+name)
		f.write(t, id, name, "new "+name)
		sel.IDs = append(sel.IDs, id)
	}
	begun := time.Now()
	for i := range 100 {
		if err := file.Replace(f.path(fmt.Sprintf("g%d", i)), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	plain := time.Since(begun)
	begun = time.Now()
	if got := f.undo(t, "u1", sel); got != nil {
		t.Fatal(got)
	}
	took := time.Since(begun)
	t.Logf("undone in %v; 100 files are written in %v", took, plain)
	if os.Getenv("CONCLAVE_UNDO") != "" && took > max(time.Second, 6*plain) {
		t.Errorf("took %v, and writing 100 files %v", took, plain)
	}
	for i := range 100 {
		if name := fmt.Sprintf("f%d", i); f.read(name) != "old "+name {
			t.Errorf("%s holds %q", name, f.read(name))
		}
	}
}
