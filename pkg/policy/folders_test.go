package policy

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"conclave/subjects"
)

const foldersManifest = `
types:
  root:
    delegable: [fs_read, fs_write, run_code]
    can_spawn: [wide]
  wide:
    tools: [fs_read, fs_write]
    delegable: [run_code]
    can_spawn: [narrow]
    paths:
      fs_read: [HOME/]
      fs_write: [HOME/projects/, HOME/sandbox/]
  narrow:
    tools: [fs_read, fs_write, run_code]
    paths:
      fs_read: [HOME/projects/, HOME/sandbox/, HOME/other/]
      fs_write: [HOME/projects/, HOME/sandbox/, HOME/other/]
  none:
    tools: [fs_read, run_code]
accounts:
  orchestrator: root
  committee: none
  generator: narrow
`

var (
	readFacts = Tool{
		Name: "fs_read", Zone: "tools", Known: true, Effects: Declare(ReadsPrivate, ReadsUntrusted),
		Paths: []string{"path"},
	}
	codeFacts = Tool{Name: "run_code", Zone: "tools", Known: true, Effects: Declare(Exec)}
)

func newFoldersChain(t *testing.T) (Chain, string) {
	t.Helper()
	home, err := ResolvePath(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"projects", "sandbox", "other", "data"} {
		if err := os.Mkdir(home+"/"+d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	m, err := ParseManifest([]byte(strings.ReplaceAll(foldersManifest, "HOME", home)), "manifest.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return m.Chain(Env{Home: home, Closed: []string{home + "/data"}}), home
}

func TestFolderRules(t *testing.T) {
	t.Parallel()
	ch, home := newFoldersChain(t)
	work := home + "/sandbox/q1"
	wide := SpawnedAgent{Name: "w", Type: "wide"}
	narrow := SpawnedAgent{Name: "n", Type: "narrow"}
	for _, tt := range []struct {
		name    string
		account string
		line    []SpawnedAgent
		typ     string
		tool    Tool
		all     bool // under ALL
		allowed []string
		work    string
	}{
		{"own folders", "generator", nil, "narrow", readFacts, false, []string{
			home + "/projects", home + "/sandbox",
			home + "/other",
		}, work},
		{
			"below a type that only delegates", "orchestrator",
			[]SpawnedAgent{wide},
			"wide", readFacts, false,
			[]string{home},
			work,
		},
		{
			"an ancestor has wider folders", "orchestrator",
			[]SpawnedAgent{wide, narrow},
			"narrow", readFacts, false,
			[]string{home + "/projects", home + "/sandbox", home + "/other"},
			work,
		},
		{"an ancestor has fewer folders", "orchestrator", []SpawnedAgent{wide, narrow}, "narrow", func() Tool {
			w := readFacts
			w.Name = "fs_write"
			return w
		}(), false, []string{home + "/projects", home + "/sandbox"}, work},
		{"no folders", "committee", nil, "none", readFacts, false, nil, ""},
		{"code runs in the working folder only", "generator", nil, "narrow", codeFacts, false, []string{work}, work},
		{
			"code below an ancestor that delegates it", "orchestrator",
			[]SpawnedAgent{wide, narrow},
			"narrow", codeFacts,
			false,
			[]string{work},
			work,
		},
		{"code without folders", "committee", nil, "none", codeFacts, false, nil, ""},
		{"files under ALL", "committee", nil, "none", readFacts, true, []string{"/"}, work},
		{"code under ALL", "committee", nil, "none", codeFacts, true, []string{work}, work},
		{"trick: an unknown lineage", "orchestrator", nil, "narrow", readFacts, false, nil, ""},
		{"trick: an unknown account", "stranger", nil, "narrow", readFacts, true, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Call{Caller: subjects.Caller{Account: tt.account}, Type: tt.typ, Tool: tt.tool, Lineage: tt.line}
			for _, s := range tt.line {
				c.Caller.Path = append(c.Caller.Path, s.Name)
			}
			if tt.all {
				c.Override.Level = subjects.OverrideAll
			}
			got := ch.FolderRules(c, work)
			if got == nil || !slices.Equal(got.Allowed, tt.allowed) || got.Work != tt.work ||
				!slices.Contains(got.Closed, home+"/data") {
				t.Errorf("%+v, want %v work %q", got, tt.allowed, tt.work)
			}
		})
	}
	c := Call{Caller: subjects.Caller{Account: "generator"}, Type: "narrow", Tool: readFacts}
	for _, w := range []string{home + "/data/q1", home + "/elsewhere/q1", "/proc/self", ""} {
		if got := ch.FolderRules(c, w); got.Work != "" {
			t.Errorf("the working folder %s was allowed", got.Work)
		}
	}
	if got := ch.FolderRules(Call{Tool: Tool{Name: "x", Known: true, Effects: Declare(Egress)}}, work); got != nil {
		t.Errorf("a tool without files got %+v", got)
	}
	if got := (Chain{}).FolderRules(c, work); got != nil {
		t.Errorf("a chain without a paths layer allowed %+v", got)
	}
}

func TestExpandPaths(t *testing.T) {
	t.Parallel()
	ch, home := newFoldersChain(t)
	tool := Tool{Name: "x", Known: true, Paths: []string{"path", "more"}}
	for link, target := range map[string]string{"link": "projects", "own": "data", "dangling": "other/new"} {
		if err := os.Symlink(target, home+"/"+link); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ name, args, want string }{
		{"relative", `{"path":"a/b.txt"}`, `{"path":"/space/q1/a/b.txt"}`},
		{"the folder itself", `{"path":"."}`, `{"path":"/space/q1"}`},
		{"up", `{"path":"../../etc/passwd"}`, `{"path":"/etc/passwd"}`},
		{"home", `{"path":"~/x"}`, `{"path":"` + home + `/x"}`},
		{"a list", `{"path":"/a","more":["b","/c"]}`, `{"more":["/space/q1/b","/c"],"path":"/a"}`},
		{"other arguments stay", `{"content":"<b>&","path":"a"}`, `{"content":"<b>&","path":"/space/q1/a"}`},
		{"absolute", `{"path":"/etc/x", "n":1}`, `{"path":"/etc/x", "n":1}`},
		{"a symlink", `{"path":"~/link/a"}`, `{"path":"` + home + `/projects/a"}`},
		{"a symlink in an absolute path", `{"path":"` + home + `/link"}`, `{"path":"` + home + `/projects"}`},
		{"a symlink to nothing", `{"path":"~/dangling"}`, `{"path":"` + home + `/other/new"}`},
		{"a symlink to a closed folder", `{"path":"~/own/x"}`, `{"path":"` + home + `/own/x"}`},
		{"empty", `{"path":""}`, `{"path":""}`},
		{"not a path", `{"path":7}`, `{"path":7}`},
		{"another user's home", `{"path":"~root/x"}`, `{"path":"~root/x"}`},
		{"no path", `{"n":1}`, `{"n":1}`},
		{"not JSON", `{`, `{`},
	} {
		if got := string(ch.ExpandPaths(tool, json.RawMessage(tt.args), "/space/q1")); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if got := string(ch.ExpandPaths(tool, json.RawMessage(`{"path":"a"}`), "")); got != `{"path":"a"}` {
		t.Errorf("without a working folder: %s", got)
	}
	if got := string(ch.ExpandPaths(Tool{Name: "y"}, json.RawMessage(`{"path":"a"}`), "/work")); got != `{"path":"a"}` {
		t.Errorf("a tool without paths: %s", got)
	}
}

// TestUntrustedLinks: a manifest folder or workspace that is reached through a symlink which another user could have
// made gives no access. A symlink of this user in a folder of this user does.
func TestUntrustedLinks(t *testing.T) {
	t.Parallel()
	root, err := ResolvePath(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	open, own, victim := root+"/tmp", root+"/own", root+"/victim"
	links := map[string]string{
		open + "/sandbox": victim, own + "/sandbox": victim, own + "/chain": open + "/sandbox",
		own + "/foreign": victim,
	}
	for _, d := range []string{open, own, victim} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range links {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(open, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	denied := []string{open + "/sandbox", own + "/chain"}
	if os.Geteuid() == 0 { // only root can give a file to another user
		if err := os.Lchown(own+"/foreign", 12345, 12345); err != nil {
			t.Fatal(err)
		}
		denied = append(denied, own+"/foreign")
	}
	for _, folder := range append(denied, own+"/sandbox", open+"/missing", open) {
		untrusted := slices.Contains(denied, folder)
		m, err := ParseManifest([]byte(strings.ReplaceAll(`
types:
  coder:
    tools: [fs_read]
    paths:
      fs_read: [FOLDER/]
accounts:
  generator: coder
`, "FOLDER", folder)), "manifest.yaml")
		if err != nil {
			t.Fatal(err)
		}
		c := Call{Caller: subjects.Caller{Account: "generator"}, Type: "coder", Tool: readFacts}
		if got := m.Chain(Env{Home: own}).FolderRules(c, folder+"/q1"); (len(got.Allowed) == 0) != untrusted ||
			(got.Work == "") != untrusted {
			t.Errorf("%s: %+v", folder, got)
		}
		omitted := OmittedFolders(m, own)
		if (len(omitted) == 1 && errors.Is(omitted[0], ErrUntrustedLink)) != untrusted || !untrusted &&
			len(omitted) > 0 {
			t.Errorf("%s: %v", folder, omitted)
		}
	}
	// The workspace is untrusted although the folder that its symlink leads to is allowed.
	m, err := ParseManifest([]byte("types:\n  coder:\n    tools: [fs_read]\n    paths:\n      fs_read: ["+victim+
		"/]\naccounts:\n  generator: coder\n"), "manifest.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c := Call{Caller: subjects.Caller{Account: "generator"}, Type: "coder", Tool: readFacts}
	if got := m.Chain(Env{Home: own}).FolderRules(c, open+"/sandbox/q1"); got.Work != "" {
		t.Errorf("the working folder is %s", got.Work)
	}
}

func TestWorkFolder(t *testing.T) {
	t.Parallel()
	first := WorkFolder("/space", "s1", "q1")
	if !strings.HasPrefix(first, "/space/q1-") || len(first) != len("/space/q1-")+8 ||
		first != WorkFolder("/space", "s1", "q1") {
		t.Errorf("%q", first)
	}
	for _, other := range []string{
		WorkFolder("/space", "s2", "q1"), WorkFolder("/space", "", "q1"),
		WorkFolder("/space", "s1", "q2"),
	} {
		if other == first || !strings.HasPrefix(other, "/space/q") {
			t.Errorf("%q", other)
		}
	}
	for _, query := range []string{"", "..", "a/b", "../x"} {
		if got := WorkFolder("/space", "s1", query); got != "" {
			t.Errorf("%q: %q", query, got)
		}
	}
	if got := WorkFolder("", "s1", "q1"); got != "" {
		t.Errorf("without a workspace: %q", got)
	}
}

func TestIsInAllowedFolder(t *testing.T) {
	t.Parallel()
	r := &subjects.FolderRules{Allowed: []string{"/a", "/d"}, Closed: []string{"/a/closed"}}
	for p, want := range map[string]bool{
		"/a/b": true, "/d/x/y": true, "/a": true, "/ab": false, "/a/closed/x": false,
		"/A/closed": false, "/a/CLOSED/x": false, "/a/../b": false, "a": false, "": false,
	} {
		if IsInAllowedFolder(p, r) != want {
			t.Errorf("%s: %v", p, !want)
		}
	}
	if IsInAllowedFolder("/a", nil) {
		t.Error("allowed without rules")
	}
}
