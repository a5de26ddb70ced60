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

// enforced are the layers whose rules are never only watched: without them nobody knows who may do what.
var enforced = []string{"override", "manifest", "lineage", "arguments", "paths"}

// watchable are the rules of each layer that may be watched instead of enforced, see [MonitorOnly]. Those that a layer has
// for its own failures are not among them.
var watchable = map[string][]string{
	"egress":   EgressRules,
	"flow":     FlowRules,
	"limits":   LimitsRules,
	"approval": RiskRules,
}

// Watchable lists the rules that may be watched, as layer.rule.
func Watchable() []string {
	var out []string
	for _, layer := range slices.Sorted(maps.Keys(watchable)) {
		for _, rule := range watchable[layer] {
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
		NewArgumentsLayer(),
		RealPaths(m, env.Home, env.Closed),
		EgressLayer{Fetch: m.Egress.Fetch},
		FlowLayer{},
		LimitsLayer{Same: m.Limits.Same, Calls: m.Limits.Calls},
		RiskLayer{High: m.HighRisk, Always: m.AlwaysAsk},
	}
	for i, l := range chain {
		if !slices.Contains(enforced, l.Name()) {
			chain[i] = MonitorOnly(l, m.Monitored[l.Name()]...)
		}
	}
	return chain
}
