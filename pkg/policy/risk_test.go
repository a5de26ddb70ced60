package policy

import (
	"testing"

	"conclave/subjects"
)

func TestRiskLayer(t *testing.T) {
	l := riskLayer{High: []string{"run_shell", "both"}, Always: []string{"package_install", "both"}}
	for _, tt := range []struct {
		name, tool, level string
		person            bool
		undeclared        bool
		rule              string // "" = passes
	}{
		{name: "not marked", tool: "get_datetime"},
		{name: "marked", tool: "run_shell", rule: "ask:high_risk"},
		{name: "marked, relaxed", tool: "run_shell", level: subjects.OverrideRelax},
		{name: "marked, everything allowed", tool: "run_shell", level: subjects.OverrideAll},
		{name: "marked, the user calls", tool: "run_shell", person: true},
		{name: "always", tool: "package_install", rule: "ask:always"},
		{name: "always, relaxed", tool: "package_install", level: subjects.OverrideRelax, rule: "ask:always"},
		{name: "always, everything allowed", tool: "package_install", level: subjects.OverrideAll},
		{name: "always, the user calls", tool: "package_install", person: true, rule: "ask:always"},

		{name: "trick: marked twice", tool: "both", level: subjects.OverrideRelax, rule: "ask:always"},
		{name: "trick: a level that is none", tool: "run_shell", level: "all", rule: "ask:high_risk"},
		{name: "trick: a level with a blank", tool: "run_shell", level: "ALL ", rule: "ask:high_risk"},
		{name: "trick: a level of both", tool: "run_shell", level: "RELAX,ALL", rule: "ask:high_risk"},
		{name: "trick: effects that nobody declared", tool: "harmless", undeclared: true, rule: "ask:high_risk"},
		{name: "trick: effects that nobody declared, relaxed", tool: "harmless", undeclared: true, level: subjects.OverrideRelax},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCall()
			c.Tool.Name, c.Override.Level, c.FromUser = tt.tool, tt.level, tt.person
			if tt.undeclared {
				c.Tool.Effects = Effects{}
			}
			if rule, reason, _ := judgeCall(t, l, c); rule != tt.rule {
				t.Errorf("rule %q (%s), want %q", rule, reason, tt.rule)
			}
			d := Chain{l}.Decide(t.Context(), c)
			for _, q := range d.Asks() {
				if len(q.Sinks) > 0 || q.Layer != "approval" || q.Reason == "" {
					t.Errorf("question %+v", q)
				}
			}
		})
	}
}
