package policy

import (
	"testing"

	"conclave/subjects"
)

func TestRiskLayer(t *testing.T) {
	l := riskLayer{High: []string{"run_shell", "both"}, Always: []string{"package_install", "both"}}
	for _, tt := range []struct {
		name, tool, level string
		fromUser          bool
		undeclared        bool
		rule              string // "" = passes
	}{
		{name: "not marked", tool: "get_datetime"},
		{name: "marked", tool: "run_shell", rule: "ask:high_risk"},
		{name: "marked, relaxed", tool: "run_shell", level: subjects.OverrideRelax},
		{name: "marked, under ALL", tool: "run_shell", level: subjects.OverrideAll},
		{name: "marked, the user calls", tool: "run_shell", fromUser: true},
		{name: "always", tool: "package_install", rule: "ask:always"},
		{
			name: "trick: a relaxed session does not lift always_ask", tool: "package_install",
			level: subjects.OverrideRelax, rule: "ask:always",
		},
		{name: "always, under ALL", tool: "package_install", level: subjects.OverrideAll},
		{
			name: "trick: the user's own call does not lift always_ask", tool: "package_install", fromUser: true,
			rule: "ask:always",
		},

		{name: "trick: marked twice", tool: "both", level: subjects.OverrideRelax, rule: "ask:always"},
		{name: "trick: a level in lower case", tool: "run_shell", level: "all", rule: "ask:high_risk"},
		{name: "trick: a level with a trailing space", tool: "run_shell", level: "ALL ", rule: "ask:high_risk"},
		{name: "trick: two levels in one", tool: "run_shell", level: "RELAX,ALL", rule: "ask:high_risk"},
		{name: "trick: undeclared effects", tool: "harmless", undeclared: true, rule: "ask:high_risk"},
		{name: "trick: undeclared effects, relaxed", tool: "harmless", undeclared: true, level: subjects.OverrideRelax},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCall()
			c.Tool.Name, c.Override.Level, c.FromUser = tt.tool, tt.level, tt.fromUser
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
