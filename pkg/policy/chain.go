package policy

import (
	"maps"
	"slices"
)

// Env describes the machine to the layers.
type Env struct {
	Home   string   // the user's home folder, which replaces ~ in paths
	Closed []string // Conclave's own folders: denied to every file and exec tool under every override
}

// alwaysEnforced lists the layers whose rules can never be monitor-only: they identify the caller, its tools and its
// arguments, and every later layer relies on them.
var alwaysEnforced = []string{"override", "manifest", "lineage", "arguments", "paths"}

// monitorable lists by layer the rules that may be monitor-only, see [monitorRules]. Rules for a layer's own failures
// (missing configuration, unparsable input) are not among them.
var monitorable = map[string][]string{
	"egress":   egressRules,
	"flow":     flowRules,
	"limits":   limitsRules,
	"approval": riskRules,
}

// listMonitorable lists the rules that may be monitor-only, as layer.rule, sorted by layer.
func listMonitorable() []string {
	var out []string
	for _, layer := range slices.Sorted(maps.Keys(monitorable)) {
		for _, rule := range monitorable[layer] {
			out = append(out, layer+"."+rule)
		}
	}
	return out
}

// Chain returns the broker's layers in the order in which they judge: the user's overrides, the tools of the caller and
// of its ancestors, arguments and paths, destinations (egress, flow), limits, and approval. Rules listed in m.Monitored
// are monitor-only, except those of layers that are always enforced.
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
