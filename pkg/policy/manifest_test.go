package policy

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"conclave/subjects"
)

const testManifest = `types:
  assistant:
    tools: [get_datetime, web_search]
    can_spawn: [researcher]
  researcher:
    tools: [fs_*, get_datetime]
    delegable: [run_code]
    paths:
      fs_*: [~/notes/]
    inherit_constraints: false
accounts:
  generator: assistant
  committee: researcher
`

func mustParse(t *testing.T, text string) Manifest {
	t.Helper()
	m, err := ParseManifest([]byte(text), "manifest.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestParseManifest(t *testing.T) {
	m := mustParse(t, testManifest)
	fs := []string{"fs_list", "fs_read", "fs_search", "fs_write"}
	notes := []string{"~/notes/"}
	want := map[string]AgentType{
		"assistant": {
			Tools: []string{"get_datetime", "web_search"}, CanSpawn: []string{"researcher"},
			Paths: map[string][]string{},
		},
		"researcher": {
			Tools: append(slices.Clone(fs), "get_datetime"), Delegable: []string{"run_code"}, Unbound: true,
			Paths: map[string][]string{"fs_list": notes, "fs_read": notes, "fs_search": notes, "fs_write": notes},
		},
	}
	if !reflect.DeepEqual(m.Types, want) {
		t.Errorf("types\n%+v\nwant\n%+v", m.Types, want)
	}
	if got := m.LineOf("types.researcher.tools"); got != 6 {
		t.Errorf("researcher's tools on line %d, want 6", got)
	}
	if got := m.UnservedTools(); got != nil {
		t.Errorf("unserved %v", got)
	}
}

func TestManifestLayer(t *testing.T) {
	l := ManifestLayer{Manifest: mustParse(t, testManifest)}
	for _, tt := range []struct {
		name, account, typ, tool string
		path                     []string
		level                    string
		grant                    []string
		rule                     string // "" = passes
	}{
		{name: "in the set", account: "generator", typ: "assistant", tool: "get_datetime"},
		{name: "in the set by a glob", account: "committee", typ: "researcher", tool: "fs_read"},
		{
			name: "a spawned agent of a known type", account: "generator", path: []string{"researcher-1"},
			typ: "researcher", tool: "fs_read",
		},
		{name: "not in the set", account: "generator", typ: "assistant", tool: "fs_read", rule: "not_in_set"},
		{
			name: "delegable is not usable", account: "committee", typ: "researcher", tool: "run_code",
			rule: "not_in_set",
		},
		{name: "unknown account", account: "tools", typ: "assistant", tool: "get_datetime", rule: "unknown_account"},

		{
			name: "granted to its type", account: "generator", typ: "assistant", tool: "fs_read",
			grant: []string{"assistant:fs_read"},
		},
		{
			name: "granted to the type of a spawned agent", account: "generator", path: []string{"researcher-1"},
			typ: "researcher", tool: "run_shell", grant: []string{"researcher:run_shell"},
		},
		{
			name: "ALL gives an account every tool", account: "generator", typ: "assistant", tool: "run_shell",
			level: "ALL",
		},
		{
			name: "RELAX adds nothing", account: "generator", typ: "assistant", tool: "fs_read", level: "RELAX",
			rule: "not_in_set",
		},
		{
			name: "ALL adds nothing for a spawned agent", account: "generator", path: []string{"researcher-1"},
			typ: "researcher", tool: "run_shell", level: "ALL", rule: "not_in_set",
		},

		{
			name: "trick: ALL for an account without a type", account: "gateway", typ: "assistant",
			tool:  "get_datetime",
			level: "ALL", rule: "unknown_account",
		},
		{
			name: "trick: ALL for the type of another", account: "generator", typ: "researcher", tool: "fs_read",
			level: "ALL", rule: "wrong_type",
		},
		{
			name: "trick: all in lower case", account: "generator", typ: "assistant", tool: "fs_read", level: "all",
			rule: "not_in_set",
		},
		{
			name: "trick: granted to another type", account: "generator", typ: "assistant", tool: "fs_read",
			grant: []string{"researcher:fs_read"}, rule: "not_in_set",
		},
		{
			name: "trick: a grant by account", account: "generator", typ: "assistant", tool: "fs_read",
			grant: []string{"generator:fs_read"}, rule: "not_in_set",
		},
		{
			name: "trick: a grant without a type", account: "generator", typ: "assistant", tool: "fs_read",
			grant: []string{"fs_read", ":fs_read"}, rule: "not_in_set",
		},
		{
			name: "trick: a grant with a wildcard", account: "generator", typ: "assistant", tool: "fs_read",
			grant: []string{"assistant:*", "assistant:fs_*", "*:fs_read"}, rule: "not_in_set",
		},
		{
			name: "trick: a grant of the beginning of a name", account: "generator", typ: "assistant", tool: "fs_read",
			grant: []string{"assistant:fs"}, rule: "not_in_set",
		},
		{name: "trick: empty account", typ: "assistant", tool: "get_datetime", rule: "unknown_account"},
		{
			name: "trick: account that is a type", account: "assistant", typ: "assistant", tool: "get_datetime",
			rule: "unknown_account",
		},
		{name: "trick: no type", account: "generator", tool: "get_datetime", rule: "wrong_type"},
		{
			name: "trick: the type of another", account: "generator", typ: "researcher", tool: "fs_read",
			rule: "wrong_type",
		},
		{
			name: "trick: spawned agent without a type", account: "generator", path: []string{"researcher-1"},
			tool: "get_datetime", rule: "unregistered",
		},
		{
			name: "trick: spawned agent of no known type", account: "generator", path: []string{"root-1"}, typ: "root",
			tool: "get_datetime", rule: "unknown_type",
		},
		{name: "trick: case", account: "generator", typ: "assistant", tool: "Get_Datetime", rule: "not_in_set"},
		{
			name: "trick: case of the type", account: "generator", typ: "Assistant", tool: "get_datetime",
			rule: "wrong_type",
		},
		{
			name: "trick: the glob itself as a name", account: "committee", typ: "researcher", tool: "fs_*",
			rule: "not_in_set",
		},
		{name: "trick: wildcard", account: "generator", typ: "assistant", tool: "*", rule: "not_in_set"},
		{name: "trick: prefix of a name", account: "generator", typ: "assistant", tool: "get_date", rule: "not_in_set"},
		{
			name: "trick: space behind the name", account: "generator", typ: "assistant", tool: "get_datetime ",
			rule: "not_in_set",
		},
		{name: "trick: no name", account: "generator", typ: "assistant", rule: "not_in_set"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCall()
			c.Caller = subjects.Caller{Account: tt.account, Path: tt.path}
			c.Type, c.Tool.Name = tt.typ, tt.tool
			c.Override = Override{Level: tt.level, Grant: tt.grant}
			d := Chain{l}.Decide(t.Context(), c)
			if d.Allowed() != (tt.rule == "") {
				t.Fatalf("allowed %v: %+v", d.Allowed(), d.Denial())
			}
			if tt.rule == "" || d.Denial().Layer == LayerTool { // the chain rejects invalid names
				return
			}
			if got := d.Denial(); got.Layer != "manifest" || got.Rule != tt.rule {
				t.Errorf("denial %+v, want rule %s", got, tt.rule)
			}
			if tt.rule == "not_in_set" && tt.grant == nil &&
				!slices.Equal(d.Denial().Allowed, l.Manifest.Types[tt.typ].Tools) {
				t.Errorf("allowed %v, want the type's tools", d.Denial().Allowed)
			}
		})
	}
}

func TestTypeOf(t *testing.T) {
	m := mustParse(t, testManifest)
	for _, tt := range []struct {
		name   string
		caller subjects.Caller
		want   string
	}{
		{"account", subjects.Caller{Account: "generator"}, "assistant"},
		{"unknown account", subjects.Caller{Account: "gateway"}, ""},
		{
			"trick: spawned agent borrows the type above it",
			subjects.Caller{Account: "generator", Path: []string{"coder-1"}},
			"",
		},
		{"trick: no account", subjects.Caller{}, ""},
	} {
		if got, ok := m.TypeOf(tt.caller); got != tt.want || ok != (tt.want != "") {
			t.Errorf("%s: %q, %v, want %q", tt.name, got, ok, tt.want)
		}
	}
	if (Manifest{}).HasTool("", "") {
		t.Error("the zero manifest gives a tool")
	}
}

func TestInvalidManifestIsRejected(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", "manifest.yaml: types: no agent types"},
		{"comments only", "# nothing\n", "no agent types"},
		{"unknown field", "types:\n  a:\n    tools: [x]\n    toolz: [y]\n", "manifest.yaml:4: types.a.toolz: unknown " +
			"field; known here: tools, delegable"},
		{"unknown section", "types: {a: {tools: [x]}}\ngroups: {}\n", "manifest.yaml:2: groups: unknown field; known " +
			"here: types, accounts"},
		{
			"type twice", "types:\n  a: {tools: [x]}\n  b: {tools: [x]}\n  a: {tools: [y]}\n",
			"manifest.yaml:4: types.a: written twice, first on line 2",
		},
		{"section twice", "types: {a: {tools: [x]}}\ntypes: {a: {tools: [y]}}\n", "manifest.yaml:2: types: written " +
			"twice"},
		{"empty type", "types:\n  a: {tools: [x]}\n  b: {tools: []}\n", "manifest.yaml:3: types.b: the type may do " +
			"nothing"},
		{"type without a value", "types:\n  a:\n", "manifest.yaml:2: types.a: has no value"},
		{"spawns what is not there", "types:\n  a:\n    tools: [x]\n    can_spawn:\n      - b\n      - coder\n  b: " +
			"{tools: [x]}\n", `manifest.yaml:6: types.a.can_spawn[1]: no agent type "coder"; types: a, b`},
		{"spawns twice", "types:\n  a:\n    can_spawn: [b, b]\n  b: {tools: [x]}\n", "types.a.can_spawn[1]: b is " +
			"listed twice"},
		{
			"account that calls no tools", "types: {a: {tools: [x]}}\naccounts:\n  gateway: a\n",
			"manifest.yaml:3: accounts.gateway: no such account; accounts that call tools: generator",
		},
		{
			"account of no type", "types: {a: {tools: [x]}}\naccounts:\n  generator: b\n",
			`manifest.yaml:3: accounts.generator: no agent type "b"; types: a`,
		},
		{
			"tool twice", "types:\n  a:\n    tools:\n      - x\n      - x\n",
			`manifest.yaml:5: types.a.tools[1]: "x" is listed twice`,
		},
		{"glob without a match", "types:\n  a:\n    tools: [gs_*]\n", "manifest.yaml:3: types.a.tools[0]: gs_* " +
			"matches no tool; tools: academic_search"},
		{"tools not a list", "types:\n  a:\n    tools: fs_read\n", "manifest.yaml:3: types.a.tools: must be a list"},
		{
			"folders of a tool it has not", "types:\n  a:\n    tools: [fs_read]\n    paths:\n      fs_write: [/tmp/]\n",
			"manifest.yaml:5: types.a.paths.fs_write: folders for fs_write, which",
		},
		{
			"folders twice", "types:\n  a:\n    tools: [fs_*]\n    paths:\n      fs_*: [/tmp/]\n      fs_read: " +
				"[/etc/]\n",
			"manifest.yaml:6: types.a.paths.fs_read: fs_read has folders already",
		},
		{"not YAML", "types: [", "manifest.yaml:1: did not find expected node content"},
		{"bad indentation", "types:\n  a: {tools: [x]}\n b: {}\n", "manifest.yaml:2: did not find expected key"},

		{"trick: everything", "types:\n  a:\n    tools: ['*']\n", `types.a.tools[0]: "*" is neither`},
		{"trick: wildcard inside", "types:\n  a:\n    tools: ['fs_*_all']\n", "is neither"},
		{"trick: NATS wildcard", "types:\n  a:\n    tools: ['fs.>']\n", "is neither"},
		{"trick: two names in one", "types:\n  a:\n    tools: ['fs_read fs_write']\n", "is neither"},
		{"trick: number as tool", "types:\n  a:\n    tools: [7]\n", "types.a.tools[0]: 7 is not text"},
		{
			"trick: relative folder", "types:\n  a:\n    tools: [fs_read]\n    paths: {fs_read: [notes/]}\n",
			`"notes/" is not a folder`,
		},
		{
			"trick: folder that climbs", "types:\n  a:\n    tools: [fs_read]\n    paths: {fs_read: [~/projects/../]}\n",
			"is not a plain folder",
		},
		{"trick: folder without its slash", "types:\n  a:\n    tools: [fs_read]\n    paths: {fs_read: " +
			"[/etc/managed]}\n", "end it with /"},
		{
			"trick: another user's home", "types:\n  a:\n    tools: [fs_read]\n    paths: {fs_read: [~root/]}\n",
			"is not a folder",
		},
		{
			"trick: wildcard folder", "types:\n  a:\n    tools: [fs_read]\n    paths: {fs_read: [/home/*/]}\n",
			"is not a plain folder",
		},
		{"trick: second document", testManifest + "---\ntypes: {a: {tools: [x]}}\n", "manifest.yaml:14: a second " +
			"document"},
		{"trick: anchor", "types:\n  a: &a {tools: [x]}\n  b: *a\n", "manifest.yaml:2: types.a: anchors are not " +
			"supported"},
		{
			"trick: merge key", "types:\n  a:\n    <<: {tools: [run_shell]}\n    tools: [x]\n",
			"manifest.yaml:3: types.a: merge keys are not supported",
		},
		{"trick: tag", "types:\n  a:\n    tools: !!str [x]\n", "tags are not supported"},
		{
			"trick: quoted false", "types:\n  a:\n    tools: [x]\n    inherit_constraints: 'false'\n",
			"false is neither true nor false",
		},
		{
			"trick: newline in a type's name", "types:\n  \"a\\nb\":\n    tools: [x]\n",
			`manifest.yaml:3: types."a\nb": the name of the type`,
		},
		{"trick: a huge file", strings.Repeat("#", 2<<20), "manifest.yaml: larger than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := ParseManifest([]byte(tt.text), "manifest.yaml")
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if m.Types != nil || m.Accounts != nil {
				t.Errorf("an error, and yet a manifest: %+v", m)
			}
		})
	}
}

// TestParseManifestReportsAll: all errors of a file are reported at once.
func TestParseManifestReportsAll(t *testing.T) {
	_, err := ParseManifest([]byte("types:\n  a:\n    tools: ['*', x, x]\n    can_spawn: [b]\n"), "m.yaml")
	if err == nil || strings.Count(err.Error(), "m.yaml:") != 3 {
		t.Errorf("want three errors, got %v", err)
	}
}

func TestUnserved(t *testing.T) {
	m := mustParse(t, "types:\n  a:\n    tools: [web_serach, mcp_files_read, get_datetime]\nhigh_risk: [run_shel]\n")
	if got := m.UnservedTools(); !slices.Equal(got, []string{"mcp_files_read", "run_shel", "web_serach"}) {
		t.Errorf("unserved %v", got)
	}
}

// FuzzParseManifest: every input is rejected with the file name or gives a valid manifest.
func FuzzParseManifest(f *testing.F) {
	f.Add(testManifest)
	f.Add("types:\n  a: &a {tools: [x]}\n  b: *a\n")
	f.Add("types: {a: {tools: ['*']}}")
	f.Add("types: {a: {paths: {fs_*: [/]}}}")
	f.Add("? [a]\n: b\n---\n")
	f.Add("types: {a: {can_spawn: [b]}, b: {can_spawn: [a]}}")
	f.Add("types: {a: {tools: [x]}}\nlimits: {same: 0, depth: 9, budgets: {a: {calls: -1}}}\nmonitor_only: " +
		"[manifest.not_in_set]\n")
	f.Add("types: {a: {tools: [x]}}\negress: {fetch: {allow: ['*'], deny: ['*.lan', 'x:99999']}}\napprovals: " +
		"{expires: 0s}\n")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseManifest([]byte(text), "m.yaml")
		if err != nil {
			if !strings.HasPrefix(err.Error(), "m.yaml:") {
				t.Fatalf("an error without its file: %v", err)
			}
			return
		}
		if len(m.Types) == 0 {
			t.Fatal("a manifest without types")
		}
		if l := m.Limits; l.Identical < 2 || l.Calls < 1 || l.Spawns < 0 || l.Depth < 0 ||
			l.Depth > subjects.MaxDepth || l.Window <= 0 || m.Approvals.Expires <= 0 {
			t.Fatalf("limits %+v, approvals %+v", l, m.Approvals)
		}
		for layer := range m.Monitored {
			if slices.Contains([]string{"override", "manifest", "lineage", "arguments", "paths"}, layer) {
				t.Fatalf("rules of %s are monitor-only", layer)
			}
		}
		for name, a := range m.Types {
			for _, tool := range slices.Concat([]string{name}, a.Tools, a.Delegable, a.CanSpawn) {
				if err := subjects.CheckToken(tool); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			for _, child := range a.CanSpawn {
				if _, ok := m.Types[child]; !ok {
					t.Fatalf("%s spawns %s, which is not there", name, child)
				}
			}
			for tool, folders := range a.Paths {
				if !slices.Contains(a.Tools, tool) && !slices.Contains(a.Delegable, tool) {
					t.Fatalf("%s has folders for %s", name, tool)
				}
				for _, p := range folders {
					if strings.Contains(p, "/../") || !strings.HasSuffix(p, "/") {
						t.Fatalf("%s reaches %q", name, p)
					}
				}
			}
		}
		for account, typ := range m.Accounts {
			if _, ok := m.Types[typ]; !ok || !slices.Contains(subjects.Agents, account) {
				t.Fatalf("account %s of type %s", account, typ)
			}
		}
	})
}
