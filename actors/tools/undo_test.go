package tools_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"conclave/actors/tools"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/undo"
	"conclave/subjects"
)

// undoFixture runs tools that keep the state of files in a store.
type undoFixture struct {
	*fileFixture
	tools []*tools.Tool
	now   time.Time
}

func newUndoFixture(t testing.TB, limits undo.Limits) *undoFixture {
	t.Helper()
	f := &undoFixture{fileFixture: newFileFixture(t), now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
	f.tools = tools.Configured(tools.Config{
		Workspace: tools.Workspace{Undo: limits}, UndoFolder: filepath.Join(f.closed, "undo"),
	})
	return f
}

// order gives a tool an order, as the broker does.
func (f *undoFixture) order(t testing.TB, name string, o subjects.ToolOrder) (got subjects.ToolResult) {
	t.Helper()
	f.now = f.now.Add(time.Second)
	o.CallID, o.Folders = "call", &f.rules
	at := slices.IndexFunc(f.tools, func(x *tools.Tool) bool { return x.Name() == name })
	reply, err := (&actortest.Recorder{Time: f.now}).Deliver(t, f.tools[at], actortest.Message{
		Subject: "tool.request." + name, Deadline: f.now.Add(time.Minute), Body: o,
	})
	must(t, err)
	must(t, json.Unmarshal([]byte(reply), &got))
	return got
}

// call captures the state and makes the call as the change id.
func (f *undoFixture) call(t testing.TB, id, name, args string) subjects.ToolResult {
	t.Helper()
	o := subjects.ToolOrder{Args: json.RawMessage(args), Mode: subjects.ModeCapture, Change: &subjects.ChangeOrder{
		Change: subjects.Change{ID: id, Tool: name, Query: "q1", Call: "call-" + id, Time: f.now},
	}}
	kept := f.order(t, name, o)
	if kept.Change == nil {
		t.Fatalf("not kept: %+v", kept)
	}
	for _, path := range kept.Change.Files {
		o.Change.Files = append(o.Change.Files, subjects.ChangeFile{Path: path})
	}
	o.Mode = ""
	return f.order(t, name, o)
}

// undo takes changes back, by any of the tools.
func (f *undoFixture) undo(t testing.TB, id string, q subjects.UndoRequest) (reply subjects.UndoReply) {
	t.Helper()
	got := f.order(t, "fs_write", subjects.ToolOrder{Mode: subjects.ModeUndo, Change: &subjects.ChangeOrder{
		Change: subjects.Change{ID: id}, Undo: &q,
	}})
	if got.Error != nil {
		t.Fatal(got.Error)
	}
	must(t, json.Unmarshal([]byte(got.Result), &reply))
	return reply
}

func apply(s subjects.ChangeSelection) subjects.UndoRequest {
	return subjects.UndoRequest{ChangeSelection: s, Action: subjects.UndoApply}
}

var keepAll = undo.Limits{Days: 30, Size: 1 << 20, MaxFile: 1 << 20}

// TestUndoTools: what each tool that changes files did is taken back, and what was added later stays.
func TestUndoTools(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ file, before, args, later string }{
		"fs_write": {
			"a.txt", "old\n", `{"path":"DIR/a.txt","content":"new\n","append":true}`,
			`{"path":"DIR/a.txt","content":"later\n","append":true}`,
		},
		"notes_add": {
			"a.md", "# Notes\n", `{"path":"DIR/a.md","text":"from a page"}`,
			`{"path":"DIR/a.md","text":"mine"}`,
		},
		"calendar_add": {
			"a.ics", "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nEND:VCALENDAR\r\n",
			`{"path":"DIR/a.ics","title":"Party","start":"2026-12-24 18:00"}`,
			`{"path":"DIR/a.ics","title":"Mine","start":"2026-12-25 18:00"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newUndoFixture(t, keepAll)
			in := func(args string) string { return strings.ReplaceAll(args, "DIR", f.allowed) }
			if tt.before != "" {
				f.write(t, tt.file, tt.before)
			}
			content := func() string {
				data, err := os.ReadFile(f.allowed + "/" + tt.file)
				if err != nil {
					return ""
				}
				return string(data)
			}
			if got := f.call(t, "change1", name, in(tt.args)); got.Error != nil || got.Change == nil ||
				got.Change.ID != "change1" || content() == tt.before {
				t.Fatalf("%+v, %q", got, content())
			}
			last := apply(subjects.ChangeSelection{Last: true})
			if got := f.undo(t, "undo1", last); !got.Done || content() != tt.before {
				t.Fatalf("%+v, %q", got, content())
			}
			first := f.call(t, "change2", name, in(tt.args))
			f.call(t, "change3", name, in(tt.later))
			both := content()
			got := f.undo(t, "undo2", apply(subjects.ChangeSelection{ID: "change2"}))
			if !got.Done || len(got.Refusals) > 0 || !got.Files[0].Merged {
				t.Fatalf("%+v %+v %q", got, first, both)
			}
			for _, gone := range []string{"new", "from a page", "Party"} {
				if strings.Contains(content(), gone) {
					t.Errorf("still there: %q", content())
				}
			}
			if !strings.Contains(strings.ToLower(content()), "later") && !strings.Contains(strings.ToLower(content()),
				"mine") {
				t.Errorf("the later change is gone: %q", content())
			}
		})
	}
}

// TestCaptureChangesNothing: a capture leaves file and folders as they are, and what cannot be kept says so and still
// can be done.
func TestCaptureChangesNothing(t *testing.T) {
	t.Parallel()
	f := newUndoFixture(t, undo.Limits{Days: 30, Size: 1 << 20, MaxFile: 1 << 10})
	f.write(t, "a", "old")
	order := func(path string) subjects.ToolOrder {
		return subjects.ToolOrder{
			Args: json.RawMessage(`{"path":"` + f.allowed + path + `","content":"new"}`), Mode: subjects.ModeCapture,
			Change: &subjects.ChangeOrder{Change: subjects.Change{ID: "change1", Time: f.now}},
		}
	}
	for _, path := range []string{"/a", "/new/folder/b", "/space/q1/c"} {
		if got := f.order(t, "fs_write", order(path)); got.Change == nil {
			t.Errorf("%s: not kept: %+v", path, got)
		}
	}
	if entries, err := os.ReadDir(f.allowed); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
	f.write(t, "big", strings.Repeat("x", 2<<10))
	if got := f.order(t, "fs_write", order("/big")); got.Change != nil || !strings.Contains(got.Result, "limit") &&
		!strings.Contains(got.Result, "more than") {
		t.Errorf("%+v", got)
	}
	for _, path := range []string{"/../outside/secret.txt", "/../closed/key"} {
		if got := f.order(t, "fs_write", order(path)); got.Change != nil || got.Error == nil {
			t.Errorf("trick: %s is kept: %+v", path, got)
		}
	}
}

// TestChangeOfAnotherFile: a tool does not change another file than the one whose state it kept.
func TestChangeOfAnotherFile(t *testing.T) {
	t.Parallel()
	f := newUndoFixture(t, keepAll)
	got := f.order(t, "fs_write", subjects.ToolOrder{
		Args: json.RawMessage(`{"path":"` + f.allowed + `/b","content":"new"}`),
		Change: &subjects.ChangeOrder{Change: subjects.Change{
			ID: "change1", Files: []subjects.ChangeFile{{Path: f.allowed + "/a"}},
		}},
	})
	if _, err := os.Stat(f.allowed + "/b"); got.Error == nil || err == nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestSelectChanges: a call, a question, the last change, or a clear beginning of an id is taken back, and no other.
func TestSelectChanges(t *testing.T) {
	t.Parallel()
	f := newUndoFixture(t, keepAll)
	write := func(id, file string) {
		f.call(t, id, "fs_write", `{"path":"`+f.allowed+"/"+file+`","content":"`+id+`"}`)
	}
	write("aaaa1", "a")
	write("aaaa2", "b")
	write("bbbb1", "c")
	missing := "there is no change %s that can be undone; conclave changes lists them"
	for want, q := range map[string]subjects.UndoRequest{
		"aaaa means several changes; write more of the id": apply(subjects.ChangeSelection{ID: "aaaa"}),
		fmt.Sprintf(missing, "bbb"):                        apply(subjects.ChangeSelection{ID: "bbb"}), // too short
		fmt.Sprintf(missing, "cccc"):                       apply(subjects.ChangeSelection{ID: "cccc"}),
		"there is nothing to undo":                         apply(subjects.ChangeSelection{}),
		"q2 has changed nothing that can be undone":        apply(subjects.ChangeSelection{Query: "q2"}),
		"s1 has changed nothing that can be undone":        apply(subjects.ChangeSelection{Session: "s1"}),
		"the change has no such file: /elsewhere": {
			ChangeSelection: subjects.ChangeSelection{ID: "bbbb1"}, Action: subjects.UndoPlan,
			Only: []string{"/elsewhere"},
		},
	} {
		got := f.order(t, "fs_write", subjects.ToolOrder{Mode: subjects.ModeUndo, Change: &subjects.ChangeOrder{
			Change: subjects.Change{ID: "undo0"}, Undo: &q,
		}})
		code := subjects.CodeNoChange
		if strings.Contains(want, "several") || len(q.Only) > 0 {
			code = subjects.CodeMalformed
		}
		if got.Error == nil || got.Error.Code != code || got.Error.Text != want {
			t.Errorf("%+v, want %s: %s", got, code, want)
		}
	}
	for _, tt := range []struct {
		s    subjects.ChangeSelection
		want []string
	}{
		{subjects.ChangeSelection{Last: true}, []string{"bbbb1"}},
		{subjects.ChangeSelection{ID: "call-aaaa1"}, []string{"aaaa1"}},
		{subjects.ChangeSelection{Query: "q1"}, []string{"bbbb1", "aaaa2", "aaaa1"}},
	} {
		q := apply(tt.s)
		q.Action = subjects.UndoPlan
		if got := f.undo(t, "undo1", q); !slices.Equal(got.Changes, tt.want) || got.Done {
			t.Errorf("%+v: %+v, want %v", tt.s, got, tt.want)
		}
	}
	q := apply(subjects.ChangeSelection{Query: "q1"})
	q.Only = []string{f.allowed + "/a"}
	if got := f.undo(t, "undo2", q); len(got.Files) != 1 || !got.Done {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(f.allowed + "/b"); err != nil {
		t.Error("another file was restored as well")
	}
	q = apply(subjects.ChangeSelection{Query: "q1"})
	q.Plan = "what the user saw before"
	if got := f.undo(t, "undo3", q); got.Done || len(got.Refusals) != 1 {
		t.Errorf("done although the plan has changed: %+v", got)
	}
	q = subjects.UndoRequest{ChangeSelection: subjects.ChangeSelection{All: true}, Action: subjects.UndoPurge}
	if got := f.undo(t, "purge1", q); got.Purged != 4 {
		t.Errorf("%+v", got)
	}
}

// TestUndoProgram: what a program did in its working folder is one change, and an undo restores every file.
func TestUndoProgram(t *testing.T) {
	t.Parallel()
	requireSandbox(t)
	p := newProgramFixture(t)
	f := &undoFixture{
		fileFixture: &fileFixture{allowed: p.rules.Work, rules: *p.rules},
		now:         time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC),
	}
	p.config.Undo = keepAll
	f.tools = tools.Configured(tools.Config{Workspace: p.config, UndoFolder: filepath.Join(p.base, "undo")})
	first := f.call(t, "change1", "run_shell",
		`{"command":"echo one > a; mkdir d; echo two > d/b; mkdir -p .cache; echo x > .cache/x"}`)
	if first.Error != nil || first.Change == nil || len(first.Change.Files) != 2 {
		t.Fatalf("%+v, %+v", first, first.Change)
	}
	second := f.call(t, "change2", "run_shell", `{"command":"echo more >> a; rm d/b; echo three > c"}`)
	if second.Change == nil || len(second.Change.Files) != 3 {
		t.Fatalf("%+v, %+v", second, second.Change)
	}
	if got := f.undo(t, "undo1", apply(subjects.ChangeSelection{ID: "change2"})); !got.Done || len(got.Refusals) > 0 {
		t.Fatalf("%+v", got)
	}
	for name, want := range map[string]string{"a": "one\n", "d/b": "two\n", "c": ""} {
		data, err := os.ReadFile(filepath.Join(p.rules.Work, name))
		if string(data) != want || (err != nil) != (want == "") {
			t.Errorf("%s holds %q, %v", name, data, err)
		}
	}
}

// TestProgramsOfOneFolder: programs that are called together run one after the other, so that the change of each has
// its own files only; installed packages, whose state is not kept, can be used and not changed; and a program does not
// run in another folder than the one that was kept.
func TestProgramsOfOneFolder(t *testing.T) {
	t.Parallel()
	requireSandbox(t)
	p := newProgramFixture(t)
	f := &undoFixture{fileFixture: &fileFixture{allowed: p.rules.Work, rules: *p.rules}, now: time.Now()}
	p.config.Undo = keepAll
	f.tools = tools.Configured(tools.Config{Workspace: p.config, UndoFolder: filepath.Join(p.base, "undo")})
	must(t, os.MkdirAll(p.rules.Work+"/packages", 0o755))
	must(t, os.WriteFile(p.rules.Work+"/packages/lib.sh", []byte("echo used\n"), 0o644))
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			name := fmt.Sprint("file", i)
			got := f.call(t, "change-"+name, "run_shell",
				`{"command":"echo x > `+name+`; sleep 0.2; echo y > `+name+`2"}`)
			want := []string{filepath.Join(p.rules.Work, name), filepath.Join(p.rules.Work, name+"2")}
			if got.Error != nil || got.Change == nil || !slices.Equal(got.Change.Files, want) {
				t.Errorf("%s: %+v, %+v", name, got, got.Change)
			}
		})
	}
	wg.Wait()
	for _, trick := range []string{"echo bad > packages/lib.sh", "rm -r packages", "mv packages p; mkdir packages"} {
		got := f.call(t, "change-"+trick[:2], "run_shell", `{"command":"`+trick+`; sh packages/lib.sh"}`)
		if !strings.Contains(got.Result, "used") || strings.Contains(got.Result, "bad") {
			t.Errorf("trick: %s: %+v", trick, got)
		}
	}
	elsewhere := subjects.ToolOrder{
		Args: json.RawMessage(`{"command":"echo ran > ran"}`),
		Change: &subjects.ChangeOrder{
			Change: subjects.Change{ID: "elsewhere", Time: f.now, Files: []subjects.ChangeFile{{Path: p.base}}},
		},
	}
	if got := f.order(t, "run_shell", elsewhere); got.Error == nil || !strings.Contains(got.Error.Text, "kept") {
		t.Errorf("trick: another folder: %+v", got)
	}
	if _, err := os.Stat(p.rules.Work + "/ran"); err == nil {
		t.Error("trick: the program ran in a folder that was not kept")
	}
}

// TestProgramFolderIsNotKept: a program whose sandbox or whose store is not there, and one without a working folder,
// keeps nothing, so the user is asked; the capture runs nothing.
func TestProgramFolderIsNotKept(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(c *tools.Config, f *subjects.FolderRules){
		"no sandbox":                 func(c *tools.Config, _ *subjects.FolderRules) { c.Workspace.Folder = "" },
		"no store":                   func(c *tools.Config, _ *subjects.FolderRules) { c.UndoFolder = "" },
		"nothing is kept":            func(c *tools.Config, _ *subjects.FolderRules) { c.Workspace.Undo.Days = 0 },
		"no working folder":          func(_ *tools.Config, f *subjects.FolderRules) { f.Work = "" },
		"trick: a file with 2 links": func(*tools.Config, *subjects.FolderRules) {},
	} {
		p := newProgramFixture(t)
		must(t, os.MkdirAll(p.rules.Work, 0o700))
		must(t, os.WriteFile(p.rules.Work+"/a", []byte("mine"), 0o600))
		if name == "trick: a file with 2 links" {
			must(t, os.Link(p.rules.Work+"/a", p.base+"/b"))
		}
		c := tools.Config{Workspace: p.config, UndoFolder: filepath.Join(p.base, "undo")}
		c.Workspace.Undo = keepAll
		change(&c, p.rules)
		f := &undoFixture{
			fileFixture: &fileFixture{rules: *p.rules}, tools: tools.Configured(c), now: time.Now(),
		}
		for tool, args := range map[string]string{
			"run_shell": `{"command":"echo ran > ran"}`,
			"run_code":  `{"language":"shell","code":"echo ran > ran"}`,
		} {
			got := f.order(t, tool, subjects.ToolOrder{
				Args: json.RawMessage(args), Mode: subjects.ModeCapture,
				Change: &subjects.ChangeOrder{Change: subjects.Change{ID: "change1", Time: f.now}},
			})
			if got.Change != nil {
				t.Errorf("%s: %s keeps %+v", name, tool, got.Change)
			}
		}
		if _, err := os.Stat(p.rules.Work + "/ran"); err == nil {
			t.Errorf("%s: the program ran", name)
		}
	}
}
