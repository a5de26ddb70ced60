package policy

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"conclave/subjects"
)

// pathsFixture is a home with projects, notes and Conclave's own folder in it, and links of every kind.
type pathsFixture struct {
	root, home, closed string
	manifest           Manifest
}

func newPathsFixture(t testing.TB) pathsFixture {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := pathsFixture{root: root, home: filepath.Join(root, "home"), closed: filepath.Join(root, "home", ".conclave")}
	for _, d := range []string{
		"home/projects/go/src", "home/projects/deep/er", "home/.conclave/keys", "home/notes",
		"outside/deep", "shared",
	} {
		w.mustSucceed(t, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	for _, f := range []string{
		"home/projects/a.txt", "home/projects/go/src/b.go", "home/.conclave/keys/root.nk",
		"home/notes/n.md", "outside/secret", "home/projects2",
	} {
		w.mustSucceed(t, os.WriteFile(filepath.Join(root, f), []byte(f), 0o644))
	}
	for link, target := range map[string]string{
		"home/projects/in":         "go/src",
		"home/projects/out":        root + "/outside",
		"home/projects/out-file":   root + "/outside/secret",
		"home/projects/dangling":   root + "/outside/new",
		"home/projects/dangling-2": "not/../../../outside/new",
		"home/projects/up":         "../..",
		"home/projects/keys":       root + "/home/.conclave/keys",
		"home/projects/loop":       "loop",
		"home/projects/self":       "/proc/self/root",
		"home/projects/deep/dots":  "../../../outside/deep",
		"home/code":                "projects",
		"home/projects/home":       root + "/home",
		"home/.conclave/escape":    root + "/home/projects",
	} {
		w.mustSucceed(t, os.Symlink(target, filepath.Join(root, link)))
	}
	w.manifest = Manifest{
		Types: map[string]AgentType{
			"operator": {Tools: []string{"fs_read", "fs_write"}, Paths: map[string][]string{
				"fs_read":  {"/"},
				"fs_write": {"~/"},
			}},
			"coder": {Tools: []string{"fs_read", "fs_write"}, Paths: map[string][]string{
				"fs_read":  {"~/code/"},
				"fs_write": {"~/projects/go/"},
			}},
			"reader":    {Tools: []string{"fs_read"}, Paths: map[string][]string{"fs_read": {"~/"}}},
			"free":      {Tools: []string{"fs_read"}, Paths: map[string][]string{"fs_read": {"~/"}}, Unbound: true},
			"planner":   {Delegable: []string{"fs_read"}},
			"assistant": {Tools: []string{"fs_read"}},
		},
		Accounts: map[string]string{
			"operator": "operator", "generator": "coder", "orchestrator": "planner",
			"committee": "assistant",
		},
	}
	return w
}

func (w pathsFixture) mustSucceed(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w pathsFixture) layer() pathsLayer {
	return newSystemPathsLayer(w.manifest, w.home, []string{w.closed})
}

// fileCall returns a call of a file tool. $ in the path stands for the fixture root.
func (w pathsFixture) fileCall(account, typ, tool, path string, line ...SpawnedAgent) Call {
	c := newCall()
	c.Caller, c.Type, c.Lineage = subjects.Caller{Account: account}, typ, line
	for _, s := range line {
		c.Caller.Path = append(c.Caller.Path, s.Name)
	}
	effect := ReadsPrivate
	if tool != "fs_read" {
		effect = Mutate
	}
	c.Tool = Tool{Name: tool, Zone: "tools", Known: true, Effects: Declare(effect), Paths: []string{"path"}}
	c.Args, _ = json.Marshal(map[string]string{"path": strings.ReplaceAll(path, "$", w.root)})
	return c
}

func TestPathsLayer(t *testing.T) {
	w := newPathsFixture(t)
	l := w.layer()
	for _, tt := range []struct{ name, tool, path, rule string }{
		{"a file", "fs_read", "~/projects/a.txt", ""},
		{"from the root", "fs_read", "$/home/projects/a.txt", ""},
		{"through the folder's own link", "fs_read", "~/code/a.txt", ""},
		{"the folder itself", "fs_read", "~/projects", ""},
		{"the folder itself, with slashes", "fs_read", "~//projects//", ""},
		{"a file that is not there yet", "fs_write", "~/projects/go/new/file.go", ""},
		{"a link that stays inside", "fs_read", "~/projects/in/b.go", ""},
		{"up and down again, inside", "fs_read", "~/projects/go/../a.txt", ""},
		{"a name of dots", "fs_read", "~/projects/...", ""},
		{"a name in another case", "fs_read", "~/projects/ａ.txt", ""},
		{"outside", "fs_read", "$/outside/secret", ruleOutside},
		{"outside, and not there", "fs_read", "$/outside/nothing/here", ruleOutside},
		{"another folder of the tool", "fs_write", "~/projects/a.txt", ruleOutside},
		{"home", "fs_read", "~", ruleOutside},

		{"trick: ..", "fs_read", "~/projects/../notes/n.md", ruleOutside},
		{"trick: .. far up", "fs_read", "~/projects/../../../../../../../../etc/passwd", ruleOutside},
		{"trick: .. behind a link is above its target", "fs_read", "~/projects/out/../home/notes/n.md", ruleOutside},
		{"trick: .. behind a link that looks inside", "fs_read", "~/projects/deep/dots/../a.txt", ruleOutside},
		{"trick: .. from what is not there", "fs_read", "~/projects/nothing/../a.txt", ruleUnresolved},
		{"trick: .. from a file", "fs_read", "~/projects/a.txt/../a.txt", ruleUnresolved},
		{"trick: a prefix that is no folder", "fs_read", "~/projects2", ruleOutside},
		{"trick: a link to a folder outside", "fs_read", "~/projects/out/secret", ruleOutside},
		{"trick: a link to a file outside", "fs_read", "~/projects/out-file", ruleOutside},
		{"trick: a link to what is not there yet", "fs_read", "~/projects/dangling", ruleOutside},
		{"trick: a link up", "fs_read", "~/projects/up/outside/secret", ruleOutside},
		{"trick: a link that goes up from nowhere", "fs_read", "~/projects/dangling-2", ruleUnresolved},
		{"trick: a link to itself", "fs_read", "~/projects/loop", ruleUnresolved},
		{"trick: another case of the folder", "fs_read", "~/PROJECTS/a.txt", ruleOutside},
		{"trick: a trailing dot", "fs_read", "~/projects./a.txt", ruleOutside},
		{"trick: a trailing blank", "fs_read", "~/projects /a.txt", ruleOutside},
		{"trick: a look-alike slash", "fs_read", "~/projects∕..∕notes", ruleOutside},
		{"trick: a backslash", "fs_read", `~/projects\..\notes`, ruleOutside},
		// just a name that is not there
		{"trick: escapes of an address", "fs_read", "~/projects/%2e%2e/notes/n.md", ""},
		{"trick: an address of a file", "fs_read", "file:///etc/passwd", rulePathForm},
		{"trick: relative", "fs_read", "projects/a.txt", rulePathForm},
		{"trick: relative with ..", "fs_read", "../../etc/passwd", rulePathForm},
		{"trick: the home of another", "fs_read", "~root/.ssh/id_rsa", rulePathForm},
		{"trick: nothing", "fs_read", "", rulePathForm},
		{"trick: a line break", "fs_read", "~/projects/a\n.txt", rulePathForm},
		{"trick: NUL", "fs_read", "~/projects/a.txt\x00.png", rulePathForm},
		{"trick: an escape sequence", "fs_read", "~/projects/\x1b[2J", rulePathForm},
		{"trick: a name beyond 255 bytes", "fs_read", "~/projects/" + strings.Repeat("a", 256), rulePathForm},
		{"trick: a path beyond 4096 bytes", "fs_read", "~/projects" + strings.Repeat("/a", 2100), rulePathForm},
		{"trick: a variable", "fs_read", "${HOME}/projects/a.txt", ruleOutside}, // the root and then {HOME}

		{"trick: Conclave's own folder", "fs_read", "~/.conclave/keys/root.nk", ruleClosed},
		{"trick: Conclave's own folder by a link", "fs_read", "~/projects/keys/root.nk", ruleClosed},
		{"trick: Conclave's own folder by two links", "fs_read", "~/code/home/.conclave", ruleClosed},
		{"trick: Conclave's own folder by ..", "fs_read", "~/projects/../.conclave/keys", ruleClosed},
		{"trick: Conclave's own folder in other case", "fs_read", "~/.Conclave/KEYS/root.nk", ruleClosed},
		{"trick: Conclave's own folder with slashes", "fs_read", "~//.conclave///keys", ruleClosed},
		{"trick: a link out of Conclave's own folder", "fs_read", "~/.conclave/escape/a.txt", ruleClosed},
		{"trick: /proc", "fs_read", "/proc/self/environ", ruleSpecialPath},
		{"trick: /proc as a way out", "fs_read", "/proc/self/root$/home/projects/a.txt", ruleSpecialPath},
		{"trick: /proc as a way in and out", "fs_read", "/proc/self/../..$/home/projects/a.txt", ruleSpecialPath},
		{"trick: a folder of a process", "fs_read", "/proc/1/cwd", ruleSpecialPath},
		{"trick: a link into /proc", "fs_read", "~/projects/self$/outside/secret", ruleSpecialPath},
		{"trick: /sys", "fs_read", "/sys/kernel", ruleSpecialPath},
		{"trick: a device", "fs_read", "/dev/zero", ruleSpecialPath},
		{"trick: an open file", "fs_read", "/dev/fd/0", ruleSpecialPath},
		{"trick: /dev with slashes and dots", "fs_read", "//./dev/./stdin", ruleSpecialPath},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := w.fileCall("generator", "coder", tt.tool, tt.path)
			rule, reason, allowed := judgeCall(t, l, c)
			if rule != tt.rule {
				t.Errorf("rule %q (%s), want %q", rule, reason, tt.rule)
			}
			if len(reason) > 300 {
				t.Errorf("the reason has %d bytes: %s", len(reason), reason)
			}
			if rule == ruleOutside && len(allowed) == 0 {
				t.Errorf("the denial does not list what is allowed")
			}
			// ALL lifts the folders of the manifest and nothing else.
			c.Override.Level = subjects.OverrideAll
			want := tt.rule
			if want == ruleOutside {
				want = ""
			}
			if rule, reason, _ := judgeCall(t, l, c); rule != want {
				t.Errorf("under ALL: rule %q (%s), want %q", rule, reason, want)
			}
		})
	}
}

func TestPathsArguments(t *testing.T) {
	w := newPathsFixture(t)
	quote := func(s string) string { return strings.ReplaceAll(s, "$", w.root) }
	for _, tt := range []struct{ name, args, rule string }{
		{"a list of paths", `{"path":["~/projects/a.txt","~/projects/go"]}`, ""},
		{"none given", `{}`, ""},
		{"another argument is no path", `{"path":"~/projects/a.txt","content":"/etc/passwd"}`, ""},
		{"trick: one of a list is outside", `{"path":["~/projects/a.txt","/etc/passwd"]}`, ruleOutside},
		{"trick: a number", `{"path":7}`, rulePathForm},
		{"trick: null", `{"path":null}`, rulePathForm},
		{"trick: an object", `{"path":{"path":"/etc/passwd"}}`, rulePathForm},
		{"trick: a list of lists", `{"path":[["/etc/passwd"]]}`, rulePathForm},
		{"trick: given twice", `{"path":"~/projects/a.txt","path":"/etc/passwd"}`, ruleMalformed},
		{"trick: a name in another case", `{"path":"~/projects/a.txt","PATH":"/etc/passwd"}`, ruleArgumentCase},
		{"trick: the second path argument", `{"path":"~/projects/a.txt","to":"$/outside/x"}`, ruleOutside},
		{"trick: not JSON", `~/projects/a.txt`, ruleMalformed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := w.fileCall("generator", "coder", "fs_read", "")
			c.Tool.Paths = []string{"path", "to"}
			c.Args = json.RawMessage(quote(tt.args))
			if rule, reason, _ := judgeCall(t, w.layer(), c); rule != tt.rule {
				t.Errorf("rule %q (%s), want %q", rule, reason, tt.rule)
			}
		})
	}
}

func TestPathsOfAncestorsBind(t *testing.T) {
	w := newPathsFixture(t)
	l := w.layer()
	child := func(name, typ string) SpawnedAgent { return SpawnedAgent{Name: name, Type: typ} }
	for _, tt := range []struct {
		name, account, typ, path string
		line                     []SpawnedAgent
		level                    string
		rule, says               string
	}{
		{
			name: "a child inside both", account: "generator", typ: "reader",
			line: []SpawnedAgent{child("reader-1", "reader")}, path: "~/projects/a.txt",
		},
		{
			name: "a child of an agent that only delegates", account: "orchestrator", typ: "coder",
			line: []SpawnedAgent{child("coder-1", "coder")}, path: "~/projects/a.txt",
		},
		{
			name: "a child of an unbound type", account: "generator", typ: "free",
			line: []SpawnedAgent{child("free-1", "free")}, path: "~/notes/n.md",
		},
		{
			name: "below an unbound type", account: "generator", typ: "reader",
			line: []SpawnedAgent{child("free-1", "free"), child("reader-1", "reader")}, path: "~/notes/n.md",
		},
		{name: "a tool without paths", account: "generator", typ: "coder", path: ""},
		{
			name: "no folder for the type", account: "committee", typ: "assistant", path: "~/projects/a.txt",
			rule: ruleOutside, says: "no folder",
		},
		{
			name: "trick: a child with more folders than its parent", account: "generator", typ: "reader",
			line: []SpawnedAgent{child("reader-1", "reader")}, path: "~/notes/n.md", rule: ruleOutsideAncestor,
			says: "generator of type coder",
		},
		{
			name: "trick: a grandchild past its grandparent", account: "orchestrator", typ: "reader",
			line: []SpawnedAgent{child("coder-1", "coder"), child("reader-1", "reader")}, path: "~/notes/n.md",
			rule: ruleOutsideAncestor, says: "coder-1 of type coder",
		},
		{
			name: "trick: an unbound type above a narrow caller", account: "generator", typ: "coder",
			line: []SpawnedAgent{child("free-1", "free"), child("coder-1", "coder")}, path: "~/notes/n.md",
			rule: ruleOutside,
		},
		{
			name: "trick: a parent that uses the tool without folders", account: "committee", typ: "coder",
			line: []SpawnedAgent{child("coder-1", "coder")}, path: "~/projects/a.txt", rule: ruleOutsideAncestor,
			says: "committee",
		},
		{
			name: "trick: a parent of no known type", account: "generator", typ: "coder",
			line: []SpawnedAgent{child("x-1", "x"), child("coder-1", "coder")}, path: "~/projects/a.txt",
			rule: ruleOutsideAncestor, says: "x-1",
		},
		{
			name: "trick: ALL, for a child", account: "operator", typ: "coder",
			line: []SpawnedAgent{child("coder-1", "coder")}, level: subjects.OverrideAll, path: "~/notes/n.md",
			rule: ruleOutside,
		},
		{
			name: "trick: relaxed", account: "generator", typ: "coder", level: subjects.OverrideRelax,
			path: "~/notes/n.md", rule: ruleOutside,
		},
		{
			name: "trick: ALL, and Conclave's own folder", account: "operator", typ: "operator",
			level: subjects.OverrideAll, path: "~/.conclave/keys", rule: ruleClosed,
		},
		{
			name: "trick: a type it does not have", account: "generator", typ: "operator", path: "~/notes/n.md",
			rule: ruleUnknownLineage,
		},
		{
			name: "trick: an unknown account", account: "nobody", typ: "coder", path: "~/projects/a.txt",
			rule: ruleUnknownLineage,
		},
		{
			name: "trick: an unknown account, ALL", account: "nobody", typ: "coder", level: subjects.OverrideAll,
			path: "~/projects/a.txt", rule: ruleUnknownLineage,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := w.fileCall(tt.account, tt.typ, "fs_read", tt.path, tt.line...)
			c.Override.Level = tt.level
			if tt.path == "" {
				c.Tool.Name, c.Tool.Paths = "get_datetime", nil
			}
			rule, reason, _ := judgeCall(t, l, c)
			if rule != tt.rule || !strings.Contains(reason, tt.says) {
				t.Errorf("rule %q (%s), want %q with %q", rule, reason, tt.rule, tt.says)
			}
		})
	}

	t.Run("trick: a path in the subject that the registry does not know", func(t *testing.T) {
		c := w.fileCall("generator", "coder", "fs_read", "~/projects/a.txt")
		c.Caller.Path = []string{"coder-1"}
		if rule, reason, _ := judgeCall(t, l, c); rule != ruleUnknownLineage {
			t.Errorf("rule %q (%s)", rule, reason)
		}
		c.Lineage = []SpawnedAgent{child("coder-2", "coder")}
		if rule, reason, _ := judgeCall(t, l, c); rule != ruleUnknownLineage {
			t.Errorf("rule %q (%s)", rule, reason)
		}
	})
}

func TestPathsFailClosed(t *testing.T) {
	w := newPathsFixture(t)
	broken := func(string) (string, error) { return "", errors.New("the disk is gone") }
	relative := func(string) (string, error) { return "a", nil }
	read := w.fileCall("generator", "coder", "fs_read", "~/projects/a.txt")
	for _, tt := range []struct {
		name  string
		layer pathsLayer
		call  Call
		rule  string
	}{
		{"trick: the zero layer", pathsLayer{}, read, ruleNoPaths},
		{"trick: no resolver", newPathsLayer(w.manifest, w.home, nil, nil, nil), read, ruleNoPaths},
		{
			"trick: a closed folder that is no path", newSystemPathsLayer(w.manifest, w.home, []string{"keys"}), read,
			ruleNoPaths,
		},
		{
			"trick: a closed folder that leads nowhere",
			newSystemPathsLayer(w.manifest, w.home, []string{w.home + "/projects/loop"}), read, ruleNoPaths,
		},
		{"trick: a resolver that fails", newPathsLayer(w.manifest, w.home, nil, broken, broken), read, ruleOutside},
		{
			"trick: a resolver that returns a relative path", newPathsLayer(w.manifest, w.home, nil, relative,
				relative),
			read, ruleUnresolved,
		},
		{"trick: no home", newSystemPathsLayer(w.manifest, "", nil), read, rulePathForm},
		{"trick: folders for a tool whose arguments are no paths", w.layer(), func() Call {
			c := read
			c.Tool.Paths = nil
			return c
		}(), ruleUnconfined},
		{"trick: running in a folder above Conclave's own", w.layer(), func() Call {
			c := w.fileCall("operator", "operator", "run_shell", "~/")
			c.Override.Level, c.Tool.Effects = subjects.OverrideAll, Declare(Exec)
			return c
		}(), ruleClosed},
		{"trick: changing a folder above Conclave's own", w.layer(), w.fileCall("operator", "operator", "fs_write",
			"~/"), ruleClosed},
		{"reading a folder above Conclave's own", w.layer(), w.fileCall("operator", "operator", "fs_read", "~/"), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if rule, reason, _ := judgeCall(t, tt.layer, tt.call); rule != tt.rule {
				t.Errorf("rule %q (%s), want %q", rule, reason, tt.rule)
			}
		})
	}

	t.Run("trick: the folder itself is replaced by a link after the rules were read", func(t *testing.T) {
		w := newPathsFixture(t)
		l := w.layer()
		c := w.fileCall("generator", "coder", "fs_write", "~/projects/go/secret")
		if rule, reason, _ := judgeCall(t, l, c); rule != "" {
			t.Fatal(rule, reason)
		}
		w.mustSucceed(t, os.RemoveAll(w.home+"/projects/go"))
		w.mustSucceed(t, os.Symlink(w.root+"/outside", w.home+"/projects/go"))
		if rule, reason, _ := judgeCall(t, l, c); rule != ruleOutside {
			t.Errorf("rule %q (%s)", rule, reason)
		}
	})
}

// pathParts are the parts of generated paths.
var pathParts = []string{
	"~", "", ".", "..", "projects", "go", "src", "in", "out", "up", "keys", "home", "deep", "dots",
	"er", "dangling", "loop", "self", "a.txt", "new", ".conclave", ".CONCLAVE", "notes", "outside", "secret", "code",
	"...", "proc", "dev",
}

// TestPathsNeverEscape: a path that passed resolves, by the kernel too, into the allowed folder and no closed one.
func TestPathsNeverEscape(t *testing.T) {
	w := newPathsFixture(t)
	l := w.layer()
	passed := 0
	rapid.Check(t, func(rt *rapid.T) {
		p := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pathParts), 1, 8).Draw(rt, "parts"), "/")
		start := rapid.SampledFrom([]string{"", "~/", "~/projects/", "~/projects/", w.root + "/", "/"}).Draw(rt,
			"start")
		c := w.fileCall("generator", "coder", "fs_read", start+p)
		if rule, _, _ := judgeCall(t, l, c); rule != "" {
			return
		}
		passed++
		checkContainment(rt, w, start+p)
	})
	if passed == 0 {
		t.Error("no generated path passed, so the test proves nothing")
	}
}

// checkContainment follows a path that passed in another way than the layer does: what exists by the library, and what
// does not by its nearest folder that does.
func checkContainment(t interface{ Fatalf(string, ...any) }, w pathsFixture, p string) {
	if rest, ok := strings.CutPrefix(p, "~"); ok {
		p = w.home + rest
	}
	for at := p; ; {
		// The kernel goes there: nothing is cleaned first.
		real, err := filepath.EvalSymlinks(at)
		if err == nil {
			if real != w.home+"/projects" && !strings.HasPrefix(real, w.home+"/projects/") {
				t.Fatalf("%q passed and leads to %s", p, real)
			}
			return
		}
		// A link to nothing would be followed by who creates a file there.
		if target, err := os.Readlink(strings.TrimRight(at, "/")); err == nil {
			t.Fatalf("%q passed through a link to %s", p, target)
		}
		cut := strings.LastIndexByte(strings.TrimRight(at, "/"), '/')
		if cut <= 0 {
			t.Fatalf("%q passed and leads nowhere", p)
		}
		at = at[:cut]
	}
}

func FuzzPaths(f *testing.F) {
	w := newPathsFixture(f)
	l := w.layer()
	for _, p := range []string{
		"~/projects/a.txt", "~/projects/../notes", "~/projects/out/secret", "/proc/self/root",
		"~/projects/in/../../a.txt", "~/.conclave", "\x00", "~root/x", "~/projects/%2e%2e",
	} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		c := w.fileCall("generator", "coder", "fs_read", "")
		c.Args, _ = json.Marshal(map[string]string{"path": p})
		var sent struct{ Path string }
		if err := json.Unmarshal(c.Args, &sent); err != nil {
			t.Fatal(err)
		}
		rule, reason, _ := judgeCall(t, l, c)
		if len(reason) > 400 {
			t.Errorf("%d bytes of reason: %q", len(reason), reason)
		}
		if rule == "" {
			checkContainment(t, w, sent.Path)
		}
	})
}

func BenchmarkPaths(b *testing.B) {
	w := newPathsFixture(b)
	l := w.layer()
	c := w.fileCall("generator", "coder", "fs_read", "~/projects/go/src/b.go")
	b.ReportAllocs()
	for b.Loop() {
		if l.Judge(b.Context(), c).kind != verdictPass {
			b.Fatal("denied")
		}
	}
}

// TestResolvePathLimitsSymlinks: a path resolves through as many symlinks as the kernel follows, and no more.
func TestResolvePathLimitsSymlinks(t *testing.T) {
	t.Parallel()
	dir, err := ResolvePath(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	link := func(n int) string { return filepath.Join(dir, strconv.Itoa(n)) }
	for n := range maxSymlinks + 1 {
		if err := os.Symlink(link(n), link(n+1)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := ResolvePath(link(maxSymlinks)); err != nil || got != link(0) {
		t.Errorf("%d links: %s, %v", maxSymlinks, got, err)
	}
	if got, err := ResolvePath(link(maxSymlinks + 1)); err == nil {
		t.Errorf("%d links: %s", maxSymlinks+1, got)
	}
}
