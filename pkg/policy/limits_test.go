package policy

import (
	"math"
	"strings"
	"testing"

	"conclave/subjects"
)

func TestLimitsLayer(t *testing.T) {
	usual := LimitsLayer{Identical: 3, Calls: 10}
	line := func(who string, budget subjects.Budget, calls int, seconds float64, bytes int64) AgentUsage {
		return AgentUsage{Agent: who, Budget: budget, Calls: calls, Seconds: seconds, Bytes: bytes}
	}
	lines := func(l ...AgentUsage) Usage { return Usage{Agents: l} }
	for _, tt := range []struct {
		name       string
		layer      LimitsLayer
		spent      Usage
		fromUser   bool
		level      string
		path       []string
		rule, says string
	}{
		{name: "the first call", layer: usual},
		{name: "the second identical call", layer: usual, spent: Usage{Identical: 1}},
		{
			name: "the third identical call", layer: usual, spent: Usage{Identical: 2}, rule: ruleRepeated,
			says: "2 times",
		},
		{name: "the hundredth", layer: usual, spent: Usage{Identical: 99}, rule: ruleRepeated},
		{name: "the user repeats", layer: usual, spent: Usage{Identical: 99, Calls: 99}, fromUser: true},
		{name: "ALL, repeated", layer: usual, spent: Usage{Identical: 2}, level: subjects.OverrideAll},
		{name: "ALL, calls", layer: usual, spent: Usage{Calls: 10}, level: subjects.OverrideAll},
		{name: "the last call of a question", layer: usual, spent: Usage{Calls: 9}},
		{name: "one call too many", layer: usual, spent: Usage{Calls: 10}, rule: ruleCalls, says: "10 calls"},
		{
			name: "below every budget", layer: usual,
			spent: lines(line("generator", subjects.Budget{Calls: 5, Seconds: 60, Bytes: 1000}, 4, 59.9, 999)),
		},
		{name: "no budget", layer: usual, spent: lines(line("generator", subjects.Budget{}, 1e6, 1e9, 1e12))},
		{
			name: "calls used up", layer: usual,
			spent: lines(line("generator.coder-1", subjects.Budget{Calls: 5}, 5, 0, 0)), rule: ruleBudget,
			says: "generator.coder-1 and the agents below it have used 5 of 5 calls",
		},
		{
			name: "seconds used up", layer: usual, spent: lines(line("generator", subjects.Budget{Seconds: 60}, 0, 60,
				0)),
			rule: ruleBudget, says: "seconds",
		},
		{
			name: "bytes used up", layer: usual, spent: lines(line("generator", subjects.Budget{Bytes: 10}, 0, 0, 11)),
			rule: ruleBudget, says: "bytes",
		},

		{name: "trick: the zero layer", rule: ruleNoLimits},
		{name: "trick: the zero layer, the user calls", fromUser: true, rule: ruleNoLimits},
		{name: "trick: no limit of calls", layer: LimitsLayer{Identical: 3}, rule: ruleNoLimits},
		{name: "trick: no limit of identical calls", layer: LimitsLayer{Calls: 3}, rule: ruleNoLimits},
		{name: "trick: a limit below zero", layer: LimitsLayer{Identical: -1, Calls: 10}, rule: ruleNoLimits},
		{
			name: "trick: RELAX, repeated", layer: usual, spent: Usage{Identical: 2}, level: subjects.OverrideRelax,
			rule: ruleRepeated,
		},
		{
			name: "trick: ALL, a spawned agent repeats", layer: usual, spent: Usage{Identical: 2},
			level: subjects.OverrideAll, path: []string{"coder-1"}, rule: ruleRepeated,
		},
		{
			name: "trick: ALL, budget of a spawned agent", layer: usual,
			spent: lines(line("a", subjects.Budget{Calls: 1}, 1, 0, 0)), level: subjects.OverrideAll,
			path: []string{"coder-1"}, rule: ruleBudget,
		},
		{name: "trick: ALL, the zero layer", level: subjects.OverrideAll, rule: ruleNoLimits},
		{
			name: "trick: the user's own call past a budget", layer: usual,
			spent: lines(line("a", subjects.Budget{Calls: 1}, 1, 0, 0)), fromUser: true, rule: ruleBudget,
		},
		{
			name: "trick: the parent has nothing left for the child", layer: usual,
			spent: lines(line("a", subjects.Budget{Calls: 5}, 5, 0, 0), line("a.b", subjects.Budget{Calls: 5}, 0, 0,
				0)), rule: ruleBudget, says: "a and",
		},
		{name: "trick: a count below zero", layer: usual, spent: Usage{Identical: math.MinInt}, rule: ruleNoLimits},
		{name: "trick: the largest count", layer: usual, spent: Usage{Identical: math.MaxInt}, rule: ruleRepeated},
		{
			name: "trick: a budget below zero", layer: usual, spent: lines(line("a", subjects.Budget{Bytes: -1}, 0, 0,
				0)),
			rule: ruleBudget,
		},
		{
			name: "trick: NaN seconds", layer: usual,
			spent: lines(line("a", subjects.Budget{Seconds: 1}, 0, math.NaN(), 0)), rule: ruleBudget,
		},
		{
			name: "trick: infinite seconds", layer: usual,
			spent: lines(line("a", subjects.Budget{Seconds: 1}, 0, math.Inf(1), 0)), rule: ruleBudget,
		},
		{
			name: "trick: bytes below zero", layer: usual, spent: lines(line("a", subjects.Budget{Bytes: 1}, 0, 0, -5)),
			rule: ruleBudget,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCall()
			c.Usage, c.FromUser, c.Override.Level, c.Caller.Path = tt.spent, tt.fromUser, tt.level, tt.path
			rule, reason, allowed := judgeCall(t, tt.layer, c)
			if rule != tt.rule || !strings.Contains(reason, tt.says) {
				t.Errorf("rule %q (%s), want %q with %q", rule, reason, tt.rule, tt.says)
			}
			if tt.says != "" && len(allowed) == 0 {
				t.Error("the denial does not list what is allowed")
			}
		})
	}
}
