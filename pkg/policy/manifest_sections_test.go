package policy

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"conclave/subjects"
)

const minimalTypes = "types: {a: {tools: [x]}, b: {tools: [x]}}\n"

func TestManifestSections(t *testing.T) {
	m := mustParse(t, minimalTypes+`high_risk: [fs_*, x]
always_ask: []
egress:
  fetch:
    allow: [example.org, "*.example.org"]
    deny: [evil.example.org]
limits:
  same: 5
  window: 90s
  budgets:
    a: {calls: 7, bytes: 2KB}
approvals: {expires: 30s}
monitor_only: [limits.calls, flow.fetch, flow.query]
`)
	want := Manifest{
		HighRisk: []string{"fs_list", "fs_read", "fs_search", "fs_write", "x"},
		Egress: EgressRules{Fetch: HostRules{
			Allow: []string{"example.org", "*.example.org"},
			Deny:  []string{"evil.example.org"},
		}},
		Limits: Limits{
			Identical: 5, Window: 90 * time.Second, Calls: 50, Spawns: 32, Depth: 4,
			Budgets: map[string]subjects.Budget{"a": {Calls: 7, Bytes: 2048}},
		},
		Approvals: Approvals{Expires: 30 * time.Second},
		Monitored: map[string][]string{"limits": {"calls"}, "flow": {"fetch", "query"}},
	}
	for _, tt := range []struct {
		name      string
		got, want any
	}{
		{"high_risk", m.HighRisk, want.HighRisk},
		{"always_ask", len(m.AlwaysAsk), 0},
		{"egress", m.Egress, want.Egress},
		{"limits", m.Limits, want.Limits},
		{"approvals", m.Approvals, want.Approvals},
		{"monitor_only", m.Monitored, want.Monitored},
	} {
		if !reflect.DeepEqual(tt.got, tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.name, tt.got, tt.want)
		}
	}
}

func TestInvalidSectionIsRejected(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"an unknown field", "limits: {sames: 3}\n", "m.yaml:2: limits.sames: unknown field; known here: same, window"},
		{"no repetition at all", "limits:\n  same: 1\n", "m.yaml:3: limits.same: 1 is not between 2 and 100"},
		{"no call at all", "limits: {calls: 0}\n", "m.yaml:2: limits.calls: 0 is not between"},
		{"too deep", "limits: {depth: 5}\n", "limits.depth: 5 is not between 0 and 4"},
		{"less than no spawn", "limits: {spawns: -1}\n", "limits.spawns: -1 is not between"},
		{"no window", "limits: {window: 0s}\n", "limits.window: 0s is not between"},
		{"window of a year", "limits: {window: 9000h}\n", "limits.window: 9000h is not between 1s and 24h"},
		{
			"budget of an unknown type", "limits:\n  budgets:\n    c: {calls: 1}\n",
			`m.yaml:4: limits.budgets.c: no agent type "c"; types: a, b`,
		},
		{"budget without a limit", "limits: {budgets: {a: {}}}\n", "limits.budgets.a: sets no limit"},
		{"an answer that never expires", "approvals: {expires: 48h}\n", "approvals.expires: 48h is not between 1s " +
			"and 24h"},
		{"risk twice", "high_risk: [x, x]\n", `m.yaml:2: high_risk[1]: "x" is listed twice`},
		{
			"host twice", "egress: {fetch: {allow: [a.org, a.org]}}\n",
			`m.yaml:2: egress.fetch.allow[1]: "a.org" is listed twice`,
		},
		{
			"a rule twice", "monitor_only: [limits.calls, limits.calls]\n",
			`m.yaml:2: monitor_only[1]: "limits.calls" is listed twice`,
		},
		{
			"an unknown rule", "monitor_only:\n  - limits.sleeping\n",
			`m.yaml:3: monitor_only[0]: unknown rule "limits.sleeping"; rules that may be monitor-only: approval.`,
		},
		{"an unknown layer", "monitor_only: [weather.rain]\n", "unknown rule"},

		{"trick: negative budget", "limits: {budgets: {a: {calls: -1}}}\n", "limits.budgets.a: a budget cannot be " +
			"negative"},
		{
			"trick: bytes without a unit", "limits: {budgets: {a: {bytes: 5}}}\n",
			"limits.budgets.a.bytes: 5 is not a size",
		},
		{"trick: a number in quotes", "limits: {same: '3'}\n", "limits.same: 3 is not a whole number"},
		{"trick: every tool is no risk", "high_risk: ['*']\n", `high_risk[0]: "*" is neither`},
		{
			"trick: a host that is an address", "egress: {fetch: {allow: ['http://a.org/']}}\n",
			"m.yaml:2: egress.fetch.allow[0]:",
		},
		{"trick: a host with a blank", "egress: {fetch: {deny: ['a.org b.org']}}\n", "egress.fetch.deny[0]:"},
		{"trick: monitor-only for the manifest", "monitor_only: [manifest.not_in_set]\n", "monitor_only[0]: the " +
			"rules of manifest are always enforced; rules that may be monitor-only: approval."},
		{"trick: monitor-only for the lineage", "monitor_only: [lineage.not_inherited]\n", "the rules of lineage are " +
			"always enforced"},
		{
			"trick: monitor-only for what is disabled", "monitor_only: [override.disabled]\n",
			"the rules of override are always enforced",
		},
		{"trick: monitor-only for arguments", "monitor_only: [arguments.schema]\n", "the rules of arguments are " +
			"always enforced"},
		{"trick: monitor-only for folders", "monitor_only: [paths.closed]\n", "the rules of paths are always enforced"},
		{"trick: a whole layer", "monitor_only: [flow]\n", `unknown rule "flow"`},
		{"trick: a wildcard", "monitor_only: ['flow.*']\n", `unknown rule "flow.*"`},
		{"trick: a layer in capitals", "monitor_only: [Limits.calls]\n", "unknown rule"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := ParseManifest([]byte(minimalTypes+tt.text), "m.yaml")
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if m.Types != nil {
				t.Errorf("an error, and yet a manifest: %+v", m)
			}
		})
	}
}

// TestSharedDescendantIsNoCycle: the cycle check stays linear when types share descendants.
func TestSharedDescendantIsNoCycle(t *testing.T) {
	var b strings.Builder
	b.WriteString("types:\n")
	const deep = 60
	for i := range deep {
		for _, side := range "ab" {
			fmt.Fprintf(&b, "  t%d%c: {can_spawn: [t%da, t%db]}\n", i, side, i+1, i+1)
		}
	}
	fmt.Fprintf(&b, "  t%da: {tools: [x]}\n  t%db: {tools: [x]}\n", deep, deep)
	if m := mustParse(t, b.String()); len(m.Types) != 2*deep+2 {
		t.Errorf("%d types", len(m.Types))
	}
}

// TestSpawnCycleIsRejected: each cycle is reported once, with its path.
func TestSpawnCycleIsRejected(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"itself", "a: {can_spawn: [a]}", []string{"m.yaml:2: types.a.can_spawn[0]: a would spawn itself"}},
		{"each other", "a: {can_spawn: [b]}\n  b: {can_spawn: [a]}", []string{"m.yaml:3: types.b.can_spawn[0]: a " +
			"would spawn itself through its children: a -> b -> a;"}},
		{
			"a long way round",
			"a: {can_spawn: [b]}\n  b: {can_spawn: [c]}\n  c: {can_spawn: [d]}\n  d: {can_spawn: [b]}",
			[]string{"m.yaml:5: types.d.can_spawn[0]: b would spawn itself through its children: b -> c -> d -> b;"},
		},
		{
			"two of them", "a: {can_spawn: [a, b]}\n  b: {can_spawn: [c]}\n  c: {can_spawn: [b]}",
			[]string{"a would spawn itself", "b -> c -> b"},
		},
		{"two ways into one", "a: {can_spawn: [b, c]}\n  b: {can_spawn: [d]}\n  c: {can_spawn: [b]}\n  d: " +
			"{can_spawn: [b]}", []string{"b -> d -> b"}},
		{"trick: two ways to one child are no cycle", "a: {can_spawn: [b, c]}\n  b: {can_spawn: [d]}\n  c: " +
			"{can_spawn: [d, b]}\n  d: {tools: [x]}", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseManifest([]byte("types:\n  "+tt.text+"\n"), "m.yaml")
			if tt.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || strings.Count(err.Error(), "m.yaml:") != len(tt.want) {
				t.Fatalf("want %d errors, got %v", len(tt.want), err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %q", err, want)
				}
			}
		})
	}
}

// TestManifestTools: facts about foreign tools are parsed with safe defaults, and unknown acts, effects and roles are
// rejected with their line.
func TestManifestTools(t *testing.T) {
	m := mustParse(t, minimalTypes+`tools:
  say: {act: send, args: {to: destination, text: content, mood: happy | sad}, about: [Chat], ids: [id]}
  note: {act: create, effects: [remember]}
`)
	say, note := m.Tools["say"], m.Tools["note"]
	if !say.Known || !say.Has(Egress) || !say.Has(ReadsUntrusted) || !say.Has(ReadsPrivate) || say.Has(Exec) ||
		say.Args.With(RoleDestination) != "to" || say.About[0] != "chat" {
		t.Errorf("%+v", say)
	}
	if a := say.Args["mood"]; a.Role != RoleOption || !reflect.DeepEqual(a.Values, []string{"happy", "sad"}) {
		t.Errorf("%+v", a)
	}
	if !note.Has(Mutate) || !note.Has(Remember) || note.Has(ReadsUntrusted) {
		t.Errorf("%+v", note)
	}
	for name, line := range map[string]string{
		"an unknown act": "say: {act: teleport}", "no act": "say: {args: {to: destination}}",
		"an unknown effect":        "say: {act: send, effects: [fly]}",
		"an unknown role":          "say: {act: send, args: {to: recipient}}",
		"an option without values": "say: {act: send, args: {to: option}}",
		"a name that is no token":  `"a b": {act: send}`, "an unknown field": "say: {act: send, sinks: [to]}",
	} {
		if _, err := ParseManifest([]byte(minimalTypes+"tools:\n  "+line+"\n"), "m.yaml"); err == nil ||
			!strings.Contains(err.Error(), "m.yaml:3") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
