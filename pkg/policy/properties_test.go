package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"conclave/subjects"
)

// Properties that hold for every manifest, lineage and override. The tools have no effects and the arguments are valid,
// so that the override, manifest and lineage layers decide.

var (
	someTools = []string{"t0", "t1", "t2", "t3", "t4"}
	someTypes = []string{"k0", "k1", "k2", "k3", "k4", "k5"}
	manyOf    = func(from []string) *rapid.Generator[[]string] {
		return rapid.SliceOfNDistinct(rapid.SampledFrom(from), 0, len(from), rapid.ID[string])
	}
)

// drawManifest has types that spawn only those after them, so that there is no cycle. Unbound types are drawn only when
// asked for.
func drawManifest(rt *rapid.T, unbound bool) Manifest {
	m := Manifest{Types: map[string]AgentType{}, Accounts: map[string]string{"generator": "k0", "orchestrator": "k1"}}
	for i, typ := range someTypes {
		t := AgentType{
			// Mostly many tools: with few, hardly anything is left at the end of a line.
			Tools:     someTools[rapid.IntRange(0, 1).Draw(rt, "without"):],
			Delegable: manyOf(someTools).Draw(rt, "delegable"),
			Unbound:   unbound && rapid.IntRange(0, 3).Draw(rt, "unbound") == 0,
		}
		if rapid.IntRange(0, 2).Draw(rt, "sparse") == 0 {
			t.Tools = manyOf(someTools).Draw(rt, "tools")
		}
		if later := someTypes[i+1:]; len(later) > 0 {
			t.CanSpawn = later[rapid.IntRange(0, len(later)-1).Draw(rt, "spawns"):]
		}
		m.Types[typ] = t
	}
	m.Limits = Limits{Identical: 3, Calls: 50, Spawns: 32, Depth: rapid.IntRange(1, subjects.MaxDepth).Draw(rt,
		"depth")}
	return m
}

func drawOverride(rt *rapid.T) Override {
	o := Override{
		Level:   rapid.SampledFrom([]string{"", "NONE", "RELAX", "ALL"}).Draw(rt, "level"),
		Disable: rapid.SliceOfN(rapid.SampledFrom(someTools), 0, 2).Draw(rt, "disable"),
	}
	for range rapid.IntRange(0, 4).Draw(rt, "grants") {
		o.Grant = append(o.Grant, rapid.SampledFrom(someTypes).Draw(rt, "grant to")+":"+
			rapid.SampledFrom(someTools).Draw(rt, "grant"))
	}
	return o
}

// drawLineage spawns agents one below the other for as long as the manifest lets it.
func drawLineage(rt *rapid.T, m Manifest, account string, grants []string) (line []SpawnedAgent) {
	// rapid draws small numbers more often
	for i := range subjects.MaxDepth + 1 - rapid.IntRange(0, subjects.MaxDepth+1).Draw(rt, "fewer") {
		parent := m.Accounts[account]
		if len(line) > 0 {
			parent = line[len(line)-1].Type
		}
		types := m.Types[parent].CanSpawn // mostly what may be, or hardly anybody would have grandchildren
		if rapid.IntRange(0, 7).Draw(rt, "anything") == 0 || len(types) == 0 {
			types = someTypes
		}
		req := subjects.SpawnRequest{Type: rapid.SampledFrom(types).Draw(rt, "type")}
		if rapid.IntRange(0, 3).Draw(rt, "narrow") == 0 {
			req.Tools = rapid.SliceOfN(rapid.SampledFrom(someTools), 1, 3).Draw(rt, "narrowed to")
		}
		child, tools, err := m.AuthorizeSpawn(newCaller(account, line), line, req, grants...)
		if err != nil {
			continue
		}
		child.Name = fmt.Sprintf("%s-%d", child.Type, i)
		line = append(line, child)
		if got := m.EffectiveTools(account, line, grants); !slices.Equal(got, tools) {
			rt.Fatalf("spawned with %v, and has %v", tools, got)
		}
	}
	return line
}

func callFor(m Manifest, account string, line []SpawnedAgent, o Override, tool string) Call {
	c := Call{
		Caller: newCaller(account, line), Lineage: line, Type: m.Accounts[account], Override: o,
		Tool:   Tool{Name: tool, Zone: "tools", Known: true, Effects: Declare()},
		Schema: json.RawMessage(`{"type":"object"}`), Args: json.RawMessage(`{}`),
	}
	if len(line) > 0 {
		c.Type = line[len(line)-1].Type
	}
	return c
}

// TestNoChildHasMoreThanItsAncestors: whatever the whole chain lets a child do, everybody above it uses or may pass on,
// by the manifest or by a grant of the user to just that type, in whatever order the layers judge.
func TestNoChildHasMoreThanItsAncestors(t *testing.T) {
	allowed := 0
	rapid.Check(t, func(rt *rapid.T) {
		m, o := drawManifest(rt, false), drawOverride(rt)
		account := rapid.SampledFrom([]string{"generator", "orchestrator"}).Draw(rt, "account")
		line := drawLineage(rt, m, account, o.Grant)
		chain := Chain(rapid.Permutation(m.Chain(Env{Home: "/home/ada"})).Draw(rt, "order"))
		for _, tool := range someTools {
			d := chain.Decide(t.Context(), callFor(m, account, line, o, tool))
			has := func(typ string, passing bool) bool {
				k := m.Types[typ]
				return slices.Contains(k.Tools, tool) || slices.Contains(o.Grant, typ+":"+tool) || passing &&
					slices.Contains(k.Delegable, tool)
			}
			want := has(m.Accounts[account], len(line) > 0) || len(line) == 0 && o.Level == "ALL"
			for i, s := range line {
				want = want && has(s.Type, i < len(line)-1) && (!s.Narrowed || slices.Contains(s.Tools, tool))
			}
			want = want && !slices.Contains(o.Disable, tool)
			if d.Allowed() != want {
				rt.Fatalf("%s as %v with %+v: allowed %v, want %v; %+v", tool, newCaller(account, line), o, d.Allowed(),
					want, d.Denial())
			}
			if d.Allowed() && len(line) > 1 {
				allowed++
			}
		}
	})
	if allowed == 0 {
		t.Error("no grandchild was ever allowed anything: the test proves nothing")
	}
}

// TestOverrideAllGrantsSpawnedAgentsNothing: under ALL a spawned agent may do exactly what it may do without it.
func TestOverrideAllGrantsSpawnedAgentsNothing(t *testing.T) {
	judged := 0
	rapid.Check(t, func(rt *rapid.T) {
		m, o := drawManifest(rt, true), drawOverride(rt)
		line := drawLineage(rt, m, "orchestrator", o.Grant)
		if len(line) == 0 {
			return
		}
		judged++
		for _, tool := range someTools {
			var allowed []bool
			for _, level := range []string{"", "RELAX", "ALL"} {
				o.Level = level
				allowed = append(allowed, m.Chain(Env{}).Decide(t.Context(), callFor(m, "orchestrator", line, o, tool)).
					Allowed())
			}
			if allowed[0] != allowed[1] || allowed[0] != allowed[2] {
				rt.Fatalf("%s of %v: %v without, under RELAX and under ALL", tool, line, allowed)
			}
		}
	})
	if judged == 0 {
		t.Error("no agent was ever spawned: the test proves nothing")
	}
}

// TestDisabledToolStaysDisabled: no level, grant, type or line gives a tool that the user disabled.
func TestDisabledToolStaysDisabled(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m, o := drawManifest(rt, true), drawOverride(rt)
		account := rapid.SampledFrom([]string{"generator", "orchestrator"}).Draw(rt, "account")
		line := drawLineage(rt, m, account, o.Grant)
		tool := rapid.SampledFrom(someTools).Draw(rt, "tool")
		o.Disable = append(o.Disable, tool)
		chain := Chain(rapid.Permutation(m.Chain(Env{})).Draw(rt, "order"))
		if chain.Decide(t.Context(), callFor(m, account, line, o, tool)).Allowed() {
			rt.Fatalf("%s is disabled, and %v may use it with %+v", tool, newCaller(account, line), o)
		}
	})
}

// TestRelaxAddsNoTool: RELAX permits no tool that is denied without it.
func TestRelaxAddsNoTool(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m, o := drawManifest(rt, true), drawOverride(rt)
		m.HighRisk = manyOf(someTools).Draw(rt, "high risk")
		account := rapid.SampledFrom([]string{"generator", "orchestrator"}).Draw(rt, "account")
		line := drawLineage(rt, m, account, o.Grant)
		for _, tool := range someTools {
			o.Level = "NONE"
			before := m.Chain(Env{}).Decide(t.Context(), callFor(m, account, line, o, tool))
			o.Level = "RELAX"
			relaxed := m.Chain(Env{}).Decide(t.Context(), callFor(m, account, line, o, tool))
			if before.Denial() != nil && relaxed.Denial() == nil {
				rt.Fatalf("%s was denied to %v (%+v) and is not in a relaxed session", tool, newCaller(account, line),
					before.Denial())
			}
			if before.Allowed() && !relaxed.Allowed() {
				rt.Fatalf("%s of %v passes, and does not in a relaxed session: %+v", tool, newCaller(account, line),
					relaxed.Denial())
			}
		}
	})
}
