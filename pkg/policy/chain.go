package policy

import (
	"maps"
	"slices"
)

// Env is what the layers have to know of the machine.
type Env struct {
	Home   string   // the user's home folder, for paths that begin with ~
	Closed []string // Conclave's own folders: closed to every file and exec tool, whatever the user sets
}

// alwaysEnforced are the layers whose rules are never only watched: without them nobody knows who may do what.
var alwaysEnforced = []string{"override", "manifest", "lineage", "arguments", "paths"}

// monitorable are the rules of each layer that may be watched instead of enforced, see [monitorRules]. Those that a layer has
// for its own failures are not among them.
var monitorable = map[string][]string{
	"egress":   egressRules,
	"flow":     flowRules,
	"limits":   limitsRules,
	"approval": riskRules,
}

// listMonitorable lists the rules that may be watched, as layer.rule.
func listMonitorable() []string {
	var out []string
	for _, layer := range slices.Sorted(maps.Keys(monitorable)) {
		for _, rule := range monitorable[layer] {
			out = append(out, layer+"."+rule)
		}
	}
	return out
}

// Chain is the broker's layers in the order they judge, made of the manifest. What the user set comes first, then who
// may do what, then what exactly is asked for, then where it goes, how often, and whether the user is asked.
func (m Manifest) Chain(env Env) Chain {
	chain := Chain{
		OverrideLayer{},
		ManifestLayer{Manifest: m},
		LineageLayer{Manifest: m},
		newArgumentsLayer(),
		newSystemPathsLayer(m, env.Home, env.Closed),
		EgressLayer{Fetch: m.Egress.Fetch},
		FlowLayer{},
		LimitsLayer{Identical: m.Limits.Identical, Calls: m.Limits.Calls},
		riskLayer{High: m.HighRisk, Always: m.AlwaysAsk},
	}
	for i, l := range chain {
		if !slices.Contains(alwaysEnforced, l.Name()) {
			chain[i] = monitorRules(l, m.Monitored[l.Name()]...)
		}
	}
	return chain
}
