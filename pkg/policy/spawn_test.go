package policy

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"conclave/subjects"
)

func TestAuthorizeSpawn(t *testing.T) {
	m := mustParse(t, lineageManifest)
	for _, tt := range []struct {
		name, account string
		line          []SpawnedAgent
		path          []string // when it is not that of the line
		typ           string
		tools, grants []string
		want          string // the child's tools
		rule          string // "" = it may
	}{
		{name: "of a type it may have", account: "orchestrator", typ: "coder", want: "fs_read run_code search_memory"},
		{
			name: "below a spawned agent", account: "orchestrator", line: newLineage("sysadmin-1"), typ: "coder",
			want: "fs_read run_code",
		},
		{
			name: "narrowed", account: "orchestrator", typ: "coder", tools: []string{"run_code", "fs_read", "run_code"},
			want: "fs_read run_code",
		},
		{
			name: "narrowed to what it may pass on", account: "orchestrator", typ: "sysadmin",
			tools: []string{"run_code"},
			want:  "",
		},
		{
			name: "below a narrowed one", account: "orchestrator", line: newLineage("sysadmin-1=run_code"),
			typ:  "coder",
			want: "run_code",
		},
		{
			name: "narrowed to what was granted", account: "generator", typ: "researcher", tools: []string{"fs_read"},
			grants: []string{"assistant:fs_read"}, want: "fs_read",
		},
		{
			name: "the fourth", account: "orchestrator", line: newLineage("sysadmin-1", "coder-1", "researcher-1"),
			typ: "clerk", want: "fs_read",
		},

		{name: "an unknown type", account: "orchestrator", typ: "painter", rule: ruleUnknownType},
		{name: "a type it may not have", account: "generator", typ: "coder", rule: ruleMayNotSpawn},
		{
			name: "a fifth", account: "orchestrator", line: newLineage("sysadmin-1", "coder-1", "researcher-1",
				"clerk-1"),
			typ: "scribe", rule: ruleDepth,
		},
		{name: "its own type", account: "generator", typ: "assistant", rule: ruleSelfSpawn},
		{
			name: "the type of one above", account: "orchestrator", line: newLineage("sysadmin-1", "coder-1"),
			typ: "sysadmin", rule: ruleCycle,
		},
		{
			name: "the type of the account above", account: "orchestrator", line: newLineage("coder-1"),
			typ: "orchestrator", rule: ruleCycle,
		},
		{
			name: "narrowed to a tool that its parent lacks", account: "generator", typ: "researcher",
			tools: []string{"web_search", "fs_read"}, rule: ruleNarrowing,
		},
		{
			name: "narrowed to a tool that its type lacks", account: "orchestrator", typ: "coder",
			tools: []string{"run_shell"}, rule: ruleNarrowing,
		},

		{name: "trick: no type", account: "orchestrator", rule: ruleUnknownType},
		{name: "trick: a type in capitals", account: "orchestrator", typ: "CODER", rule: ruleUnknownType},
		{
			name: "trick: a type with a newline", account: "orchestrator", typ: "coder\nrule: allow",
			rule: ruleUnknownType,
		},
		{
			name: "trick: below an unregistered child", account: "orchestrator", path: []string{"coder-1"},
			typ: "researcher", rule: RuleUnregistered,
		},
		{
			name: "trick: above itself", account: "orchestrator", line: newLineage("sysadmin-1", "coder-1"),
			path: []string{"sysadmin-1"}, typ: "coder", rule: RuleUnregistered,
		},
		{
			name: "trick: below a link that is no longer allowed", account: "generator", line: newLineage("coder-1"),
			typ: "researcher", rule: ruleMayNotSpawn,
		},
		{name: "trick: from an account without a type", account: "gateway", typ: "coder", rule: ruleUnknownAccount},
		{
			name: "trick: narrowed to everything", account: "orchestrator", typ: "coder", tools: []string{"*"},
			rule: ruleNarrowing,
		},
		{
			name: "trick: narrowed to no name", account: "orchestrator", typ: "coder", tools: []string{""},
			rule: ruleNarrowing,
		},
		{
			name: "trick: narrowed a thousand times", account: "orchestrator", typ: "coder",
			tools: slices.Repeat([]string{"fs_read"}, 1000), rule: ruleNarrowing,
		},
		{
			name: "trick: narrowed to a tool that its narrowed parent lacks", account: "orchestrator",
			line: newLineage("sysadmin-1=fs_read"), typ: "coder", tools: []string{"run_code"}, rule: ruleNarrowing,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parent := newCaller(tt.account, tt.line)
			if tt.path != nil {
				parent.Path = tt.path
			}
			child, tools, err := m.AuthorizeSpawn(parent, tt.line, subjects.SpawnRequest{Type: tt.typ, Tools: tt.tools},
				tt.grants...)
			if tt.rule == "" {
				if err != nil {
					t.Fatal(err)
				}
				if got := strings.Join(tools, " "); got != tt.want || child.Type != tt.typ ||
					child.Narrowed != (len(tt.tools) > 0) || child.Name != "" {
					t.Errorf("child %+v with %s, want %s", child, got, tt.want)
				}
				return
			}
			var f *subjects.Fault
			if !errors.As(err, &f) || f.Denial == nil || f.Denial.Rule != tt.rule || f.Denial.Layer != "lineage" ||
				f.Text == "" {
				t.Fatalf("error %v, want a fault by rule %s", err, tt.rule)
			}
			if strings.Contains(f.Text, "\n") || len(f.Text) > 300 {
				t.Errorf("the reason repeats what was asked: %q", f.Text)
			}
			if limit := tt.rule == ruleDepth; limit != (f.Code == subjects.CodeLimit) {
				t.Errorf("code %s", f.Code)
			}
			if child.Type != "" || tools != nil {
				t.Errorf("denied, and yet a child: %+v, %v", child, tools)
			}
		})
	}
}

// TestSelfSpawnDenies: a cycle in a manifest that was not parsed from a file still cannot be spawned.
func TestSelfSpawnDenies(t *testing.T) {
	m := Manifest{
		Types: map[string]AgentType{
			"a": {Tools: []string{"x"}, CanSpawn: []string{"a", "b"}},
			"b": {Tools: []string{"x"}, CanSpawn: []string{"a"}},
		},
		Accounts: map[string]string{"generator": "a"},
		Limits:   Limits{Depth: 4},
	}
	for _, tt := range []struct {
		line []SpawnedAgent
		rule string
	}{{nil, ruleSelfSpawn}, {newLineage("b-1"), ruleCycle}} {
		_, _, err := m.AuthorizeSpawn(newCaller("generator", tt.line), tt.line, subjects.SpawnRequest{Type: "a"})
		var f *subjects.Fault
		if !errors.As(err, &f) || f.Denial.Rule != tt.rule {
			t.Errorf("%v, want rule %s", err, tt.rule)
		}
	}
}

func TestBudget(t *testing.T) {
	m := mustParse(t, lineageManifest+"limits: {budgets: {coder: {calls: 10, bytes: 1KB}}}\n")
	b := func(calls, seconds int, bytes int64) subjects.Budget {
		return subjects.Budget{Calls: calls, Seconds: seconds, Bytes: bytes}
	}
	for _, tt := range []struct {
		name, typ string
		asked     *subjects.Budget
		want      subjects.Budget
		denied    bool
	}{
		{name: "the type's", typ: "coder", want: b(10, 0, 1024)},
		{name: "a type without one", typ: "researcher"},
		{name: "less", typ: "coder", asked: &subjects.Budget{Calls: 3, Seconds: 60}, want: b(3, 60, 1024)},
		{
			name: "trick: more is not given", typ: "coder", asked: &subjects.Budget{Calls: 1000, Bytes: 1 << 40},
			want: b(10, 0, 1024),
		},
		{name: "trick: none is not no limit", typ: "coder", asked: &subjects.Budget{}, want: b(10, 0, 1024)},
		{name: "trick: less than nothing", typ: "coder", asked: &subjects.Budget{Calls: -1}, denied: true},
		{name: "trick: bytes below nothing", typ: "researcher", asked: &subjects.Budget{Bytes: -1}, denied: true},
		{name: "trick: seconds below nothing", typ: "researcher", asked: &subjects.Budget{Seconds: -5}, denied: true},
	} {
		got, err := m.SpawnBudget(tt.typ, tt.asked)
		if got != tt.want || (err != nil) != tt.denied {
			t.Errorf("%s: %+v, %v, want %+v", tt.name, got, err, tt.want)
		}
	}
}

// FuzzSpawn: whatever a model asks for is denied in one short line, or is a child of a type that its parent may have,
// with no more tools than the type has.
func FuzzSpawn(f *testing.F) {
	m, err := ParseManifest([]byte(lineageManifest), "manifest.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add("orchestrator", "", "coder", "run_code,fs_read", 3)
	f.Add("orchestrator", "sysadmin-1,coder-1", "researcher", "", 0)
	f.Add("generator", "researcher-1", "assistant", "*", -1)
	f.Add("gateway", "", "coder\nlayer: none", "fs_*,\x00", 1<<30)
	f.Add("orchestrator", "coder-1,coder-1", "\xff", strings.Repeat("a,", 100), 1)
	f.Fuzz(func(t *testing.T, account, path, typ, tools string, calls int) {
		var line []SpawnedAgent
		if path != "" {
			line = newLineage(strings.Split(path, ",")...)
		}
		req := subjects.SpawnRequest{Type: typ, Budget: &subjects.Budget{Calls: calls}}
		if tools != "" {
			req.Tools = strings.Split(tools, ",")
		}
		child, has, err := m.AuthorizeSpawn(newCaller(account, line), line, req)
		budget, err2 := m.SpawnBudget(typ, req.Budget)
		if err2 == nil && (budget.Calls < 0 || calls > 0 && budget.Calls > calls) {
			t.Fatalf("a budget of %+v for %d", budget, calls)
		}
		if err != nil {
			var fault *subjects.Fault
			if !errors.As(err, &fault) || fault.Denial == nil || fault.Denial.Rule == "" {
				t.Fatalf("not a denial: %v", err)
			}
			return
		}
		parent := m.Accounts[account]
		if len(line) > 0 {
			parent = line[len(line)-1].Type
		}
		if !slices.Contains(m.Types[parent].CanSpawn, child.Type) || len(line) >= subjects.MaxDepth {
			t.Fatalf("%s below %s %v", child.Type, account, line)
		}
		for _, tool := range has {
			if !slices.Contains(m.Types[typ].Tools, tool) || child.Narrowed && !slices.Contains(req.Tools, tool) {
				t.Fatalf("%s has %s", typ, tool)
			}
		}
	})
}
