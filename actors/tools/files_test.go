package tools_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

// fileFixture has an allowed folder, a closed one and one that is neither, with a file each.
type fileFixture struct {
	root, allowed, closed, outside string
	rules                          subjects.FolderRules
}

const (
	outsideCanary = "CANARY-OUTSIDE"
	closedCanary  = "CANARY-CLOSED"
)

func newFileFixture(t testing.TB) *fileFixture {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f := &fileFixture{root: root, allowed: root + "/allowed", closed: root + "/closed", outside: root + "/outside"}
	for _, d := range []string{f.allowed, f.closed, f.outside} {
		must(t, os.Mkdir(d, 0o700))
	}
	must(t, os.WriteFile(f.outside+"/secret.txt", []byte(outsideCanary), 0o600))
	must(t, os.WriteFile(f.closed+"/key", []byte(closedCanary), 0o600))
	f.rules = subjects.FolderRules{Allowed: []string{f.allowed}, Closed: []string{f.closed}, Work: f.allowed +
		"/space/q1"}
	return f
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run runs a file tool. args are values by name.
func (f *fileFixture) run(t testing.TB, name string, args map[string]any) subjects.ToolResult {
	t.Helper()
	return f.runMode(t, name, "", args)
}

func (f *fileFixture) runMode(t testing.TB, name, mode string, args map[string]any) subjects.ToolResult {
	t.Helper()
	raw, err := json.Marshal(args)
	must(t, err)
	at := time.Now()
	reply, err := (&actortest.Recorder{Time: at}).Deliver(t, tool(t, name), actortest.Message{
		Subject: "tool.request." + name, Deadline: at.Add(time.Minute),
		Body: subjects.ToolOrder{CallID: "c1", QueryID: "q1", Args: raw, Mode: mode, Folders: &f.rules},
	})
	must(t, err)
	var got subjects.ToolResult
	must(t, json.Unmarshal([]byte(reply), &got))
	return got
}

func (f *fileFixture) write(t testing.TB, name, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(f.allowed+"/"+name), 0o700))
	must(t, os.WriteFile(f.allowed+"/"+name, []byte(content), 0o600))
}

func TestFSRead(t *testing.T) {
	t.Parallel()
	f := newFileFixture(t)
	f.write(t, "a.txt", "one\ntwo\nthree\n")
	f.write(t, "empty", "")
	f.write(t, "image.png", "\x89PNG\r\n\x1a\n\x00\x00")
	f.write(t, "long.txt", strings.Repeat("0123456789\n", 5000))
	f.write(t, "line.txt", strings.Repeat("é", 50_000))
	must(t, os.Symlink(f.outside+"/secret.txt", f.allowed+"/link"))
	must(t, os.Symlink(f.allowed+"/a.txt", f.allowed+"/inner"))
	must(t, os.Link(f.closed+"/key", f.allowed+"/hard"))
	for _, tt := range []struct {
		name, path   string
		offset       int
		limit        int
		want, failed string
	}{
		{name: "whole", path: "a.txt", want: "one\ntwo\nthree\n"},
		{name: "a range", path: "a.txt", offset: 2, limit: 1, want: "two\n[lines 2 to 2 of 3; continue with offset 3]"},
		{name: "the end", path: "a.txt", offset: 3, want: "three\n[lines 3 to 3 of 3]"},
		{name: "beyond the end", path: "a.txt", offset: 9, want: "[the file has 3 lines; line 9 is beyond its end]"},
		{name: "empty", path: "empty", want: "[the file is empty]"},
		{name: "binary", path: "image.png", want: "binary file, image/png, 10 bytes; its content is not shown"},
		{name: "missing", path: "nothing", failed: "read failed: no such file or folder"},
		{name: "a folder", path: "", failed: "read failed: it is not a regular file"},
		{name: "trick: a link inside that appeared after the decision", path: "inner", failed: "replaced after it " +
			"was checked"},
		{name: "trick: a link out", path: "link", failed: "read failed: it is outside the allowed folders"},
		{name: "trick: up and out", path: "../outside/secret.txt", failed: "read failed: it is outside the allowed " +
			"folders"},
		{name: "trick: closed", path: "../closed/key", failed: "read failed: it is outside the allowed folders"},
		{name: "trick: a hard link of a closed file", path: "hard", failed: "closed to every tool"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := map[string]any{"path": strings.TrimSuffix(f.allowed+"/"+tt.path, "/")}
			if tt.offset > 0 {
				args["offset"] = tt.offset
			}
			if tt.limit > 0 {
				args["limit"] = tt.limit
			}
			got := f.run(t, "fs_read", args)
			if tt.failed != "" {
				if got.Error == nil || !strings.Contains(got.Error.Text, tt.failed) || got.Result != "" {
					t.Fatalf("%q %v, want %q", got.Result, got.Error, tt.failed)
				}
				return
			}
			if got.Error != nil || got.Result != tt.want {
				t.Errorf("%q %v, want %q", got.Result, got.Error, tt.want)
			}
		})
	}
	// Every part of a long file can be read, each within the limit.
	var whole strings.Builder
	for offset := 1; offset <= 5000; {
		got := f.run(t, "fs_read", map[string]any{"path": f.allowed + "/long.txt", "offset": offset})
		if got.Error != nil || len(got.Result) > 13<<10 {
			t.Fatalf("%d bytes, %v", len(got.Result), got.Error)
		}
		lines := 0
		for l := range strings.SplitSeq(got.Result, "\n") {
			if l == "0123456789" {
				whole.WriteString(l + "\n")
				lines++
			}
		}
		if lines == 0 {
			t.Fatalf("no lines at %d: %q", offset, got.Result)
		}
		offset += lines
	}
	if whole.Len() != 55_000 {
		t.Errorf("%d bytes were read in parts", whole.Len())
	}
	if got := f.run(t, "fs_read", map[string]any{"path": f.allowed + "/line.txt"}); !strings.Contains(got.Result,
		"line 1 is cut") || strings.Contains(got.Result, "\uFFFD") {
		t.Errorf("a long line: %q", got.Result[max(0, len(got.Result)-100):])
	}
	f.rules = subjects.FolderRules{Closed: []string{f.closed}}
	if got := f.run(t, "fs_read", map[string]any{"path": f.allowed + "/a.txt"}); got.Error == nil {
		t.Error("a file was read although no folder is allowed")
	}
}

func TestFSWrite(t *testing.T) {
	t.Parallel()
	f := newFileFixture(t)
	f.write(t, "script.sh", "old\n")
	must(t, os.Chmod(f.allowed+"/script.sh", 0o754))
	must(t, os.Symlink(f.outside+"/secret.txt", f.allowed+"/link"))
	must(t, os.Symlink(f.allowed+"/script.sh", f.allowed+"/inner"))
	must(t, os.Symlink(f.outside+"/made", f.allowed+"/dangling"))
	must(t, os.Symlink(f.outside, f.allowed+"/folder"))
	must(t, os.Link(f.closed+"/key", f.allowed+"/hard"))
	must(t, os.MkdirAll(f.allowed+"/space", 0o700))

	got := f.run(t, "fs_write", map[string]any{"path": f.allowed + "/script.sh", "content": "new\n"})
	info, err := os.Stat(f.allowed + "/script.sh")
	must(t, err)
	if got.Error != nil || readText(t, f.allowed+"/script.sh") != "new\n" || info.Mode().Perm() != 0o754 {
		t.Errorf("%+v %v %v", got, got.Error, info.Mode())
	}
	got = f.run(t, "fs_write", map[string]any{"path": f.allowed + "/script.sh", "content": "more\n", "append": true})
	if got.Error != nil || readText(t, f.allowed+"/script.sh") != "new\nmore\n" {
		t.Errorf("append: %v", got.Error)
	}
	made := f.rules.Work + "/a/b/c.txt"
	got = f.run(t, "fs_write", map[string]any{"path": made, "content": "x"})
	if want := fmt.Sprintf(`{"path":%q,"bytes":1,"created":true}`, made); got.Result != want ||
		len(got.Artifacts) != 1 || got.Artifacts[0] != made {
		t.Errorf("%+v %v, want %s", got, got.Error, want)
	}
	if info, err := os.Stat(f.rules.Work); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the working folder: %v %v", info, err)
	}
	for name, tt := range map[string]struct{ path, failed string }{
		"trick: a link out":                   {"/link", "symbolic link"},
		"trick: a link inside":                {"/inner", "symbolic link"},
		"trick: a link to nothing":            {"/dangling", "symbolic link"},
		"trick: through a folder that is one": {"/folder/new", "outside"},
		"trick: up and out":                   {"/../outside/new", "outside"},
		"trick: into the closed folder":       {"/../closed/new", "outside"},
		"trick: a hard link of a closed file": {"/hard", "closed"},
		"trick: a folder":                     {"/space", "not a regular file"},
	} {
		got := f.run(t, "fs_write", map[string]any{"path": f.allowed + tt.path, "content": "pwned"})
		if got.Error == nil || !strings.Contains(got.Error.Text, tt.failed) {
			t.Errorf("%s: %q %v, want %q", name, got.Result, got.Error, tt.failed)
		}
	}
	f.checkUntouched(t)
	if left, _ := filepath.Glob(f.allowed + "/.conclave-*"); len(left) > 0 {
		t.Errorf("temporary files remain: %v", left)
	}
	must(t, os.Chmod(f.allowed+"/space", 0o777)) // others could replace the working folder
	if got := f.run(t, "fs_write", map[string]any{"path": f.rules.Work + "/d.txt", "content": "x"}); got.Error == nil ||
		!strings.Contains(got.Error.Text, "another user") {
		t.Errorf("a workspace that others may change: %v", got.Error)
	}
}

// checkUntouched fails when anything outside of the allowed folder was written.
func (f *fileFixture) checkUntouched(t testing.TB) {
	t.Helper()
	if readText(t, f.outside+"/secret.txt") != outsideCanary || readText(t, f.closed+"/key") != closedCanary {
		t.Error("a file outside was changed")
	}
	for _, d := range []string{f.outside, f.closed} {
		if all, err := os.ReadDir(d); err != nil || len(all) != 1 {
			t.Errorf("%s has %v, %v", d, all, err)
		}
	}
}

func readText(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

// TestFSWritePreview: a preview is a diff, and changes nothing.
func TestFSWritePreview(t *testing.T) {
	t.Parallel()
	f := newFileFixture(t)
	f.write(t, "a.txt", "one\ntwo\nthree\n")
	f.write(t, "b.bin", "\x00\x01")
	for _, tt := range []struct {
		name, path, content string
		isAppend            bool
		want                string
	}{
		{
			"a change", "a.txt", "one\n2\nthree\n", false,
			"--- FILE\n+++ FILE\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n",
		},
		{"an addition", "a.txt", "four\n", true, "--- FILE\n+++ FILE\n@@ -1,3 +1,4 @@\n one\n two\n three\n+four\n"},
		{"a new file", "new.txt", "hello\n", false, "--- /dev/null\n+++ FILE\n@@ -0,0 +1,1 @@\n+hello\n"},
		{"nothing", "a.txt", "one\ntwo\nthree\n", false, "FILE would stay as it is"},
		{"a binary file", "b.bin", "text", false, "FILE is a binary file, application/octet-stream, 2 bytes; 4 bytes " +
			"of text would be written"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := f.runMode(t, "fs_write", subjects.ModePreview, map[string]any{
				"path":    f.allowed + "/" + tt.path,
				"content": tt.content, "append": tt.isAppend,
			})
			want := strings.ReplaceAll(tt.want, "FILE", f.allowed+"/"+tt.path)
			if got.Error != nil || got.Result != want {
				t.Errorf("%q %v, want %q", got.Result, got.Error, want)
			}
		})
	}
	if _, err := os.Stat(f.allowed + "/new.txt"); err == nil || readText(t, f.allowed+"/a.txt") != "one\ntwo\nthree\n" {
		t.Error("the preview wrote")
	}
	got := f.runMode(t, "fs_write", subjects.ModePreview, map[string]any{
		"path":    f.outside + "/secret.txt",
		"content": "x",
	})
	if got.Error == nil || strings.Contains(got.Error.Text, "CANARY") {
		t.Errorf("outside: %+v", got)
	}
	for _, name := range []string{"fs_read", "fs_list", "get_datetime"} {
		if got := f.runMode(t, name, subjects.ModePreview, map[string]any{}); got.Error == nil ||
			got.Error.Text != name+" has no preview" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestFSListAndSearch(t *testing.T) {
	t.Parallel()
	f := newFileFixture(t)
	f.write(t, "a.txt", "alpha\nbeta (gamma\n")
	f.write(t, "sub/b.go", "package b // alpha\n")
	f.write(t, "sub/deep/c.go", "alpha\n")
	f.write(t, ".git/config", "alpha\n")
	f.write(t, "x.bin", "alpha\x00")
	must(t, os.Symlink(f.outside, f.allowed+"/out"))
	must(t, os.Chtimes(f.allowed+"/a.txt", time.Time{}, time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)))

	got := f.run(t, "fs_list", map[string]any{"path": f.allowed})
	if want := ".git/\na.txt  18 bytes  2026-01-02 03:04\nout  symbolic link\nsub/\nx.bin  6 bytes"; !strings.HasPrefix(
		got.Result, want) {
		t.Errorf("%q %v", got.Result, got.Error)
	}
	got = f.run(t, "fs_list", map[string]any{"path": f.allowed + "/sub", "depth": 2})
	if !strings.Contains(got.Result, "deep/\ndeep/c.go") {
		t.Errorf("%q %v", got.Result, got.Error)
	}
	must(t, os.Mkdir(f.allowed+"/space", 0o700))
	if got = f.run(t, "fs_list", map[string]any{"path": f.rules.Work}); got.Result != "[the folder is empty]" {
		t.Errorf("a working folder that did not exist: %q %v", got.Result, got.Error)
	}
	for _, p := range []string{"/out", "/../outside", "/../closed", "/a.txt"} {
		if got = f.run(t, "fs_list", map[string]any{"path": f.allowed + p}); got.Error == nil {
			t.Errorf("%s was listed: %q", p, got.Result)
		}
	}

	for _, tt := range []struct{ name, path, pattern, glob, want string }{
		{"all files", "", "alpha", "", "a.txt:1: alpha\nsub/b.go:1: package b // alpha\nsub/deep/c.go:1: alpha"},
		{"a glob", "", "alpha", "*.go", "sub/b.go:1: package b // alpha\nsub/deep/c.go:1: alpha"},
		{"a glob with a folder", "", "alpha", "sub/*.go", "sub/b.go:1: package b // alpha"},
		{"one file", "/a.txt", "^be", "", "a.txt:2: beta (gamma"},
		{"not a regular expression", "", "(gamma", "", "a.txt:2: beta (gamma\n[the pattern is not a regular " +
			"expression and was searched for as it is]"},
		{"nothing", "", "omega", "", "[no matches]"},
		{"trick: outside by a link", "", "CANARY", "", "[no matches]"},
	} {
		args := map[string]any{"path": f.allowed + tt.path, "pattern": tt.pattern}
		if tt.glob != "" {
			args["glob"] = tt.glob
		}
		if got := f.run(t, "fs_search", args); got.Error != nil || got.Result != tt.want {
			t.Errorf("%s: %q %v, want %q", tt.name, got.Result, got.Error, tt.want)
		}
	}
	f.write(t, "many.txt", strings.Repeat("match\n", 500))
	if got := f.run(t, "fs_search", map[string]any{"path": f.allowed, "pattern": "match"}); strings.Count(got.Result,
		"many.txt:") != 100 || !strings.Contains(got.Result, "ended by the limit of matches") {
		t.Errorf("%q", got.Result)
	}
	for _, p := range []string{"/out", "/../closed"} {
		if got := f.run(t, "fs_search", map[string]any{"path": f.allowed + p, "pattern": "CANARY"}); got.Error == nil {
			t.Errorf("%s was searched: %q", p, got.Result)
		}
	}
}

// TestFileToolsUnderSwappedLinks: while another process swaps a folder and a symlink to the outside under the same
// name, no tool reads or writes outside.
func TestFileToolsUnderSwappedLinks(t *testing.T) {
	t.Parallel()
	f := newFileFixture(t)
	name := f.allowed + "/name"
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for { // errors: a tool may have made the name first
			select {
			case <-stop:
				return
			default:
			}
			_ = os.RemoveAll(name)
			_ = os.Mkdir(name, 0o700)
			_ = os.WriteFile(name+"/secret.txt", []byte("inside"), 0o600)
			_ = os.RemoveAll(name)
			_ = os.Symlink(f.outside, name)
		}
	})
	read, written := 0, 0
	for i := range 120 {
		var all bytes.Buffer
		file := name + "/secret.txt"
		got := f.run(t, "fs_read", map[string]any{"path": file})
		if fmt.Fprintln(&all, got.Result, got.Error); got.Result == "inside" {
			read++
		}
		if i%3 == 0 {
			for tool, args := range map[string]map[string]any{
				"fs_list":   {"path": f.allowed, "depth": 3},
				"fs_search": {"path": f.allowed, "pattern": "."},
			} {
				got := f.run(t, tool, args)
				fmt.Fprintln(&all, got.Result, got.Error)
			}
			got := f.runMode(t, "fs_write", subjects.ModePreview, map[string]any{"path": file, "content": "x"})
			fmt.Fprintln(&all, got.Result, got.Error)
		}
		if strings.Contains(all.String(), outsideCanary) {
			t.Fatalf("a file outside was read: %s", all.String())
		}
		if got := f.run(t, "fs_write",
			map[string]any{"path": name + "/new.txt", "content": "inside"}); got.Error == nil {
			written++
		}
		if readText(t, f.outside+"/secret.txt") != outsideCanary {
			t.Fatal("a file outside was changed")
		}
		if _, err := os.Lstat(f.outside + "/new.txt"); err == nil {
			t.Fatal("a file was written outside")
		}
	}
	close(stop)
	wg.Wait()
	f.checkUntouched(t)
	t.Logf("%d reads and %d writes of 120 hit the folder inside", read, written)
}
