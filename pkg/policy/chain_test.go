package policy

import (
	"slices"
	"strings"
	"testing"
)

func TestChainOrder(t *testing.T) {
	var got []string
	for _, l := range mustParse(t, lineageManifest).Chain(Env{Home: "/home/ada"}) {
		got = append(got, l.Name())
	}
	want := []string{"override", "manifest", "lineage", "arguments", "paths", "egress", "flow", "limits", "approval"}
	if !slices.Equal(got, want) {
		t.Errorf("layers %v, want %v", got, want)
	}
}

// TestEmptyManifestChainDenies: the chain of an empty manifest denies every call.
func TestEmptyManifestChainDenies(t *testing.T) {
	for _, c := range []Call{newCall(), {}} {
		if (Manifest{}).Chain(Env{}).Decide(t.Context(), c).Allowed() {
			t.Errorf("%+v is allowed by an empty manifest", c)
		}
	}
}

// TestChainMonitorOnly: a monitor-only rule is reported and not enforced; a layer that is always enforced ignores
// monitor-only rules even in a manifest that was not parsed from a file.
func TestChainMonitorOnly(t *testing.T) {
	for _, tt := range []struct {
		name      string
		monitored map[string][]string
		change    func(*Call)
		allowed   bool
		reported  string
	}{
		{name: "enforced", change: func(c *Call) { c.Usage.Calls = 50 }},
		{name: "monitor-only", monitored: map[string][]string{"limits": {ruleCalls}}, change: func(c *Call) {
			c.Usage.Calls = 50
		}, allowed: true, reported: "limits: " + ruleCalls},
		{
			name: "another rule of the layer is monitor-only", monitored: map[string][]string{"limits": {ruleBudget}},
			change: func(c *Call) { c.Usage.Calls = 50 },
		},
		{
			name: "trick: what is disabled is monitor-only", monitored: map[string][]string{"override": {ruleDisabled}},
			change: func(c *Call) { c.Override.Disable = []string{"web_search"} },
		},
		{
			name: "trick: the manifest is monitor-only", monitored: map[string][]string{"manifest": {ruleNotInSet}},
			change: func(c *Call) { c.Tool.Name = "run_shell" },
		},
		{
			name: "trick: the lineage is monitor-only", monitored: map[string][]string{"lineage": {RuleUnregistered}},
			change: func(c *Call) { c.Caller.Path, c.Type = []string{"researcher-1"}, "researcher" },
		},
	} {
		m := mustParse(t, lineageManifest)
		m.Monitored = tt.monitored
		c := callFor(m, "generator", nil, Override{}, "web_search")
		tt.change(&c)
		d := m.Chain(Env{}).Decide(t.Context(), c)
		var reported []string
		for _, s := range d.Monitored() {
			reported = append(reported, s.Layer+": "+s.Rule)
		}
		if d.Allowed() != tt.allowed || strings.Join(reported, " ") != tt.reported {
			t.Errorf("%s: allowed %v, reported %v; %+v", tt.name, d.Allowed(), reported, d.Denial())
		}
	}
}

// TestMonitorableRules: what is listed can be written into a manifest, and what is always enforced is not listed.
func TestMonitorableRules(t *testing.T) {
	all := listMonitorable()
	if len(all) < 8 {
		t.Fatalf("only %v may be monitor-only", all)
	}
	for _, layer := range []string{"approval", "egress", "flow", "limits"} {
		if !slices.ContainsFunc(all, func(r string) bool { return strings.HasPrefix(r, layer+".") }) {
			t.Errorf("no rule of %s may be monitor-only", layer)
		}
	}
	m := mustParse(t, minimalTypes+"monitor_only: ["+strings.Join(all, ", ")+"]\n")
	var back []string
	for layer, rules := range m.Monitored {
		for _, r := range rules {
			back = append(back, layer+"."+r)
		}
	}
	if slices.Sort(back); !slices.Equal(back, slices.Sorted(slices.Values(all))) {
		t.Errorf("read back %v, want %v", back, all)
	}
}
