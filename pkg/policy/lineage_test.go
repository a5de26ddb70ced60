package policy

import (
	"slices"
	"strings"
	"testing"

	"conclave/subjects"
)

// lineageManifest has an orchestrator that delegates tools it does not use, and an assistant that delegates nothing.
const lineageManifest = `types:
  orchestrator:
    tools: [search_memory]
    delegable: [fs_read, run_code, run_shell]
    can_spawn: [sysadmin, coder, guard]
  sysadmin:
    tools: [run_shell, fs_read]
    delegable: [run_code]
    can_spawn: [coder]
  coder:
    tools: [fs_read, run_code, web_search, search_memory]
    can_spawn: [researcher]
  researcher:
    tools: [fs_read, web_search]
    can_spawn: [clerk]
  clerk:
    tools: [fs_read]
    can_spawn: [scribe]
  scribe:
    tools: [fs_read]
  assistant:
    tools: [web_search, search_memory]
    can_spawn: [researcher]
  guard:
    tools: [web_search, get_datetime]
    can_spawn: [researcher]
    inherit_constraints: false
accounts:
  orchestrator: orchestrator
  generator: assistant
`

// newLineage returns a lineage: "coder-1" is of type coder, "coder-1=fs_read+run_code" is narrowed to these tools.
func newLineage(agents ...string) (line []SpawnedAgent) {
	for _, a := range agents {
		name, tools, narrowed := strings.Cut(a, "=")
		typ, _, _ := strings.Cut(name, "-")
		s := SpawnedAgent{Name: name, Type: typ, Narrowed: narrowed}
		if tools != "" {
			s.Tools = strings.Split(tools, "+")
		}
		line = append(line, s)
	}
	return line
}

// newCaller returns the last agent of a lineage as a caller.
func newCaller(account string, line []SpawnedAgent) subjects.Caller {
	c := subjects.Caller{Account: account}
	for _, s := range line {
		c.Path = append(c.Path, s.Name)
	}
	return c
}

func TestLineageLayer(t *testing.T) {
	m := mustParse(t, lineageManifest)
	for _, tt := range []struct {
		name, account string
		line          []SpawnedAgent
		path          []string // when it is not that of the lineage
		typ           string   // when it is not that of the lineage
		tool, level   string
		grant         []string
		rule          string // "" = passes
		who           string // named in the reason
	}{
		{name: "an account itself", account: "orchestrator", tool: "run_shell"},
		{name: "the parent uses it", account: "generator", line: newLineage("researcher-1"), tool: "web_search"},
		{name: "the parent delegates it", account: "orchestrator", line: newLineage("coder-1"), tool: "run_code"},
		{name: "delegated twice", account: "orchestrator", line: newLineage("sysadmin-1", "coder-1"), tool: "run_code"},
		{name: "narrowed to it", account: "orchestrator", line: newLineage("sysadmin-1=run_code+fs_read",
			"coder-1=run_code"), tool: "run_code"},
		{name: "an unbound type", account: "orchestrator", line: newLineage("guard-1"), tool: "get_datetime"},
		{
			name: "below an unbound type", account: "orchestrator", line: newLineage("guard-1", "researcher-1"),
			tool: "web_search",
		},
		{name: "four deep", account: "orchestrator", line: newLineage("sysadmin-1", "coder-1", "researcher-1",
			"clerk-1"), tool: "fs_read"},
		{
			name: "granted to parent and child", account: "generator", line: newLineage("researcher-1"),
			tool:  "run_shell",
			grant: []string{"assistant:run_shell", "researcher:run_shell"},
		},
		{
			name: "granted to the parent alone", account: "generator", line: newLineage("researcher-1"),
			tool:  "fs_read",
			grant: []string{"assistant:fs_read"},
		},

		{
			name: "the account lacks the tool", account: "generator", line: newLineage("researcher-1"), tool: "fs_read",
			rule: ruleNotInherited, who: "generator (assistant)",
		},
		{
			name: "the denial names the highest ancestor", account: "orchestrator",
			line: newLineage("sysadmin-1", "coder-1"), tool: "web_search", rule: ruleNotInherited,
			who: "orchestrator (orchestrator)",
		},
		{
			name: "an ancestor in the middle lacks the tool", account: "orchestrator",
			line: newLineage("sysadmin-1", "coder-1"), tool: "search_memory", rule: ruleNotInherited,
			who: "sysadmin-1 (sysadmin)",
		},
		{
			name: "trick: granted to the child and not to the parent", account: "generator",
			line: newLineage("researcher-1"), tool: "fs_read", grant: []string{"researcher:fs_read"},
			rule: ruleNotInherited, who: "generator (assistant)",
		},
		{
			name: "its own type lacks the tool", account: "orchestrator", line: newLineage("coder-1"),
			tool: "run_shell",
			rule: ruleNotInSet, who: `"coder"`,
		},
		{
			name: "narrowed to something else", account: "orchestrator", line: newLineage("coder-1=fs_read"),
			tool: "run_code", rule: ruleNarrowed, who: "coder-1 (coder)",
		},
		{
			name: "trick: the tool is missing in the narrowing of an ancestor", account: "orchestrator",
			line: newLineage("sysadmin-1=fs_read", "coder-1"), tool: "run_code", rule: ruleNarrowed,
			who: "sysadmin-1 (sysadmin)",
		},
		{
			name: "trick: an unbound type does not lift a narrowing", account: "orchestrator",
			line: newLineage("guard-1=get_datetime"), tool: "web_search", rule: ruleNarrowed, who: "guard-1 (guard)",
		},
		{name: "five deep", account: "orchestrator", line: newLineage("sysadmin-1", "coder-1", "researcher-1",
			"clerk-1", "scribe-1"), tool: "fs_read", rule: ruleDepth},
		{
			name: "trick: a spawn that the manifest no longer permits", account: "generator",
			line: newLineage("coder-1"),
			tool: "web_search", rule: ruleMayNotSpawn, who: `"coder"`,
		},
		{
			name: "trick: a type that the manifest no longer has", account: "generator", line: newLineage("painter-1"),
			tool: "web_search", rule: ruleMayNotSpawn, who: `"painter"`,
		},

		{
			name: "trick: ALL", account: "generator", line: newLineage("researcher-1"), tool: "fs_read", level: "ALL",
			rule: ruleNotInherited, who: "generator",
		},
		{
			name: "trick: RELAX", account: "generator", line: newLineage("researcher-1"), tool: "fs_read",
			level: "RELAX",
			rule:  ruleNotInherited, who: "generator",
		},
		{
			name: "trick: narrowed to nothing", account: "orchestrator", line: newLineage("coder-1="), tool: "fs_read",
			rule: ruleNarrowed, who: "coder-1",
		},
		{
			name: "trick: narrowed to more than it may have", account: "generator",
			line: newLineage("researcher-1=fs_read"), tool: "fs_read", rule: ruleNotInherited, who: "generator",
		},
		{
			name: "trick: an unregistered child", account: "generator", path: []string{"researcher-1"},
			tool: "web_search",
			rule: RuleUnregistered, who: "generator.researcher-1",
		},
		{
			name: "trick: an unregistered grandchild", account: "orchestrator", line: newLineage("coder-1"),
			path: []string{"coder-1", "researcher-9"}, tool: "fs_read", rule: RuleUnregistered,
			who: "orchestrator.coder-1.researcher-9",
		},
		{
			name: "trick: the name of another agent", account: "orchestrator", line: newLineage("coder-1"),
			path: []string{"sysadmin-1"}, tool: "fs_read", rule: RuleUnregistered, who: "orchestrator.sysadmin-1",
		},
		{
			name: "trick: a lineage that is not in the caller's path", account: "orchestrator",
			line: newLineage("coder-1"), path: []string{}, typ: "orchestrator", tool: "fs_read",
			rule: RuleUnregistered,
		},
		{
			name: "trick: a lineage longer than the caller's path", account: "orchestrator",
			line: newLineage("sysadmin-1", "coder-1"), path: []string{"sysadmin-1"}, tool: "run_shell",
			rule: RuleUnregistered,
		},
		{
			name: "trick: a child with the name of its account", account: "generator", path: []string{"generator"},
			tool: "web_search", rule: RuleUnregistered,
		},
		{
			name: "trick: a child without a name", account: "generator", line: []SpawnedAgent{{Type: "researcher"}},
			tool: "web_search", rule: RuleUnregistered,
		},
		{
			name: "trick: a child that claims another type", account: "orchestrator", line: newLineage("coder-1"),
			typ: "sysadmin", tool: "fs_read", rule: ruleWrongType,
		},
		{
			name: "trick: a child of an account without a type", account: "gateway", line: newLineage("researcher-1"),
			tool: "web_search", rule: ruleUnknownAccount, who: "gateway",
		},
		{
			name: "trick: a child of its own type", account: "generator", line: newLineage("assistant-1"),
			tool: "web_search", rule: ruleMayNotSpawn,
		},
		{
			name: "trick: an unbound type elsewhere does not unbind this lineage", account: "orchestrator",
			line: newLineage("coder-1", "researcher-1"), tool: "web_search", rule: ruleNotInherited,
			who: "orchestrator",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCall()
			c.Caller, c.Lineage, c.Tool.Name = newCaller(tt.account, tt.line), tt.line, tt.tool
			c.Override = Override{Level: tt.level, Grant: tt.grant}
			c.Type = "assistant"
			if len(tt.line) > 0 {
				c.Type = tt.line[len(tt.line)-1].Type
			}
			if tt.typ != "" {
				c.Type = tt.typ
			}
			if tt.path != nil {
				c.Caller.Path = tt.path
			}
			d := Chain{LineageLayer{Manifest: m}}.Decide(t.Context(), c)
			if d.Allowed() != (tt.rule == "") {
				t.Fatalf("allowed %v, %+v", d.Allowed(), d.Denial())
			}
			effective := m.EffectiveTools(tt.account, tt.line, tt.grant)
			if len(tt.line) > 0 && tt.path == nil && tt.typ == "" &&
				slices.Contains(effective, tt.tool) != d.Allowed() {
				t.Errorf("the layer says %v, the effective set is %v", d.Allowed(), effective)
			}
			if tt.rule == "" {
				return
			}
			got := d.Denial()
			if got.Layer != "lineage" || got.Rule != tt.rule || !strings.Contains(got.Reason, tt.who) {
				t.Errorf("denial %+v, want rule %s and %q named", got, tt.rule, tt.who)
			}
			if tt.rule == ruleNotInherited && !slices.Equal(got.Allowed, effective) {
				t.Errorf("would be allowed: %v, want %v", got.Allowed, effective)
			}
		})
	}
}

// TestLineageWithoutManifestDenies: the zero layer denies every spawned agent.
func TestLineageWithoutManifestDenies(t *testing.T) {
	c := newCall()
	c.Lineage = newLineage("researcher-1")
	c.Caller, c.Type = newCaller("generator", c.Lineage), "researcher"
	if d := (Chain{LineageLayer{}}).Decide(t.Context(), c); d.Allowed() {
		t.Error("a layer without a manifest passes a child")
	}
	if got := (Manifest{}).EffectiveTools("generator", nil, []string{"assistant:x", ":x"}); got != nil {
		t.Errorf("the zero manifest gives %v", got)
	}
}

func TestEffective(t *testing.T) {
	m := mustParse(t, lineageManifest)
	for _, tt := range []struct {
		name, account string
		line          []SpawnedAgent
		grants        []string
		want          string
	}{
		{"an account", "generator", nil, nil, "search_memory web_search"},
		{
			"an account with a grant", "generator", nil,
			[]string{"assistant:fs_read", "coder:run_code"},
			"fs_read search_memory web_search",
		},
		{"a child", "orchestrator", newLineage("coder-1"), nil, "fs_read run_code search_memory"},
		{"a narrowed child", "orchestrator", newLineage("coder-1=run_code"), nil, "run_code"},
		{
			"a child with a grant", "orchestrator", newLineage("coder-1"),
			[]string{"orchestrator:web_search"},
			"fs_read run_code search_memory web_search",
		},
		{"one that is not bound", "orchestrator", newLineage("guard-1"), nil, "get_datetime web_search"},
		{"trick: a child of an account without a type", "gateway", newLineage("coder-1"), nil, ""},
		{"trick: a link that is not allowed", "generator", newLineage("coder-1"), nil, ""},
		{"trick: delegable is not usable", "orchestrator", nil, nil, "search_memory"},
		{
			"trick: a grant that is no name", "generator", nil,
			[]string{"assistant:*", "assistant:a:b", "assistant"},
			"search_memory web_search",
		},
	} {
		if got := strings.Join(m.EffectiveTools(tt.account, tt.line, tt.grants), " "); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if !slices.Equal(m.Types["assistant"].Tools, []string{"search_memory", "web_search"}) {
		t.Error("asking for the effective set changed the manifest")
	}
}
