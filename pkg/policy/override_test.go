package policy

import (
	"testing"
)

func TestOverrideLayer(t *testing.T) {
	for _, tt := range []struct {
		name string
		o    Override
		path []string
		rule string // "" = passes
	}{
		{name: "nothing set"},
		{name: "none", o: Override{Level: "NONE"}},
		{name: "relaxed", o: Override{Level: "RELAX"}},
		{name: "all", o: Override{Level: "ALL"}},
		{name: "another tool is disabled", o: Override{Disable: []string{"web_search"}}},
		{name: "disabled", o: Override{Disable: []string{"web_search", "get_datetime"}}, rule: ruleDisabled},
		{
			name: "trick: a spawned agent calls a disabled tool", o: Override{Disable: []string{"get_datetime"}},
			path: []string{"coder-1"}, rule: ruleDisabled,
		},
		{
			name: "trick: ALL for a disabled tool", o: Override{Level: "ALL", Disable: []string{"get_datetime"}},
			rule: ruleDisabled,
		},
		{name: "trick: a grant for a disabled tool", o: Override{
			Disable: []string{"get_datetime"},
			Grant:   []string{"assistant:get_datetime"},
		}, rule: ruleDisabled},

		{name: "trick: an unknown level", o: Override{Level: "EVERYTHING"}, rule: ruleUnknownLevel},
		{name: "trick: lower case", o: Override{Level: "all"}, rule: ruleUnknownLevel},
		{name: "trick: a trailing space", o: Override{Level: "ALL "}, rule: ruleUnknownLevel},
		{name: "trick: two levels", o: Override{Level: "RELAX,ALL"}, rule: ruleUnknownLevel},
		{
			name: "trick: disabled names in another case or with a wildcard match nothing",
			o:    Override{Disable: []string{"GET_DATETIME", "get_*"}},
		},
	} {
		c := newCall()
		c.Override, c.Caller.Path = tt.o, tt.path
		d := Chain{OverrideLayer{}}.Decide(t.Context(), c)
		switch {
		case d.Allowed() != (tt.rule == ""):
			t.Errorf("%s: allowed %v, %+v", tt.name, d.Allowed(), d.Denial())
		case !d.Allowed() && (d.Denial().Layer != "override" || d.Denial().Rule != tt.rule):
			t.Errorf("%s: denial %+v, want rule %s", tt.name, d.Denial(), tt.rule)
		}
	}
}

func TestCheckGrant(t *testing.T) {
	m := mustParse(t, testManifest)
	for _, tt := range []struct {
		name, grant string
		ok          bool
	}{
		{"a type and a tool", "researcher:run_shell", true},
		{"a tool that is not served yet", "researcher:mcp_files_read", true},
		{"no type", "run_shell", false},
		{"an unknown type", "root:run_shell", false},
		{"trick: an account is no type", "generator:run_shell", false},
		{"trick: empty", "", false},
		{"trick: empty type", ":run_shell", false},
		{"trick: empty tool", "researcher:", false},
		{"trick: every tool", "researcher:*", false},
		{"trick: every type", "*:run_shell", false},
		{"trick: two in one", "researcher:run_shell:fs_write", false},
		{"trick: a blank", "researcher: run_shell", false},
	} {
		if err := m.CheckGrant(tt.grant); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
