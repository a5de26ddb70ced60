package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// EgressRules is the egress section of the manifest.
type EgressRules struct {
	Fetch HostRules // for tools that fetch a URL
}

// Limits is the limits section of the manifest. The zero value denies every call.
type Limits struct {
	Identical int                        // the call with this number among identical calls is denied
	Window    time.Duration              // within which calls count as identical
	Calls     int                        // most calls for one question
	Spawns    int                        // most spawned agents for one question
	Depth     int                        // most spawned agents one below the other
	Budgets   map[string]subjects.Budget // type -> budget of a spawned agent of it and all agents below
}

// Approvals is the approvals section of the manifest.
type Approvals struct {
	Expires time.Duration // a request without a decision after this time is denied
}

// Values of the section reversible.
const (
	reversiblePass = "pass" // a call that can be undone runs without a question
	reversibleAsk  = "ask"  // it is judged like any other
)

// Reversible is the section reversible of the manifest.
func (m Manifest) Reversible() string {
	if m.AskReversible {
		return reversibleAsk
	}
	return reversiblePass
}

type egressFile struct {
	Fetch hostsFile `yaml:"fetch"`
}

type hostsFile struct {
	Allow []string `yaml:"allow"`
	Deny  []string `yaml:"deny"`
}

type limitsFile struct {
	Same    int                   `yaml:"same"`
	Window  time.Duration         `yaml:"window"`
	Calls   int                   `yaml:"calls"`
	Spawns  int                   `yaml:"spawns"`
	Depth   int                   `yaml:"depth"`
	Budgets map[string]budgetFile `yaml:"budgets"`
}

type budgetFile struct {
	Calls   int         `yaml:"calls"`
	Seconds int         `yaml:"seconds"`
	Bytes   strict.Size `yaml:"bytes"`
}

type approvalsFile struct {
	Expires time.Duration `yaml:"expires"`
}

// defaultManifestFile returns the defaults of omitted sections and fields. The shipped manifest.yaml writes the same
// values out; budgets have no default.
func defaultManifestFile() manifestFile {
	return manifestFile{
		HighRisk:  []string{"calendar_add", "fs_write", "notes_add", "run_code", "run_shell"},
		AlwaysAsk: []string{"package_install"},
		Egress: egressFile{Fetch: hostsFile{
			Allow: []string{"*"},
			Deny:  []string{"localhost", "*.localhost", "*.local", "*.internal", "*.lan", "*.home.arpa"},
		}},
		Limits:    limitsFile{Same: 3, Window: 10 * time.Minute, Calls: 50, Spawns: 32, Depth: subjects.MaxDepth},
		Approvals: approvalsFile{Expires: 5 * time.Minute}, Reversible: reversiblePass,
	}
}

// parseSections validates the sections after types and accounts and sets them in m, also after an error. It rejects an
// expiry of approvals outside of 1s to 24h.
func (p *manifestParser) parseSections(f manifestFile, m *Manifest) {
	m.HighRisk, m.AlwaysAsk = p.parseTools("high_risk", f.HighRisk), p.parseTools("always_ask", f.AlwaysAsk)
	m.Egress.Fetch = HostRules{
		Allow: p.parseHostList("egress.fetch.allow", f.Egress.Fetch.Allow),
		Deny:  p.parseHostList("egress.fetch.deny", f.Egress.Fetch.Deny),
	}
	m.Limits = p.parseLimits(f.Limits, f.Types)
	m.Approvals.Expires = f.Approvals.Expires
	if e := f.Approvals.Expires; e < time.Second || e > 24*time.Hour {
		p.fail("approvals.expires", "%s is not between 1s and 24h", strict.FormatDuration(e))
	}
	m.AskReversible = f.Reversible == reversibleAsk
	if f.Reversible != reversiblePass && !m.AskReversible {
		p.fail("reversible", "%q is not one of %s, %s", text.Clip(f.Reversible, 40), reversiblePass, reversibleAsk)
	}
	m.Monitored = p.parseMonitored(f.Monitored)
	m.Tools = map[string]Tool{}
	for _, name := range strict.SortedKeys(f.Tools) {
		at := strict.JoinPath("tools", name)
		if err := subjects.CheckToken(name); err != nil {
			p.fail(at, "the name of the tool: %v", err)
			continue
		}
		t, err := f.Tools[name].Tool(name, subjects.ZoneOf(name))
		if err != nil {
			p.fail(at, "%v", err)
		}
		m.Tools[name] = t
	}
}

// parseHostList validates host patterns one by one, so that each error has its line, and returns a copy, also after an
// error. It rejects repeated entries.
func (p *manifestParser) parseHostList(at string, in []string) []string {
	for i, h := range in {
		item := fmt.Sprintf("%s[%d]", at, i)
		if slices.Index(in, h) < i {
			p.fail(item, "%q is listed twice", h)
		}
		if _, err := parseHosts([]string{h}); err != nil {
			p.fail(item, "%v", err)
		}
	}
	return slices.Clone(in)
}

// parseLimits validates the limits section. It rejects values out of range (same 2 to 100, calls 1 to 10,000, spawns 0
// to 1000, depth 0 to [subjects.MaxDepth], window 1s to 24h) and budgets that are negative, empty or of an unknown
// type. In a budget 0 is unlimited.
func (p *manifestParser) parseLimits(f limitsFile, types map[string]typeFile) Limits {
	between := func(field string, n, least, most int) {
		if n < least || n > most {
			p.fail("limits."+field, "%d is not between %d and %d", n, least, most)
		}
	}
	between("same", f.Same, 2, 100) // 1 would deny every call
	between("calls", f.Calls, 1, 10_000)
	between("spawns", f.Spawns, 0, 1000)
	between("depth", f.Depth, 0, subjects.MaxDepth)
	if f.Window < time.Second || f.Window > 24*time.Hour {
		p.fail("limits.window", "%s is not between 1s and 24h", strict.FormatDuration(f.Window))
	}
	l := Limits{
		Identical: f.Same, Window: f.Window, Calls: f.Calls, Spawns: f.Spawns, Depth: f.Depth,
		Budgets: map[string]subjects.Budget{},
	}
	for _, typ := range strict.SortedKeys(f.Budgets) {
		at, b := strict.JoinPath("limits.budgets", typ), f.Budgets[typ]
		if _, ok := types[typ]; !ok {
			p.fail(at, "no agent type %q; types: %s", typ, strings.Join(strict.SortedKeys(types), ", "))
		}
		switch {
		case b.Calls < 0 || b.Seconds < 0:
			p.fail(at, "a budget cannot be negative; omit a limit that is not needed")
		case b == budgetFile{}:
			p.fail(at, "sets no limit; set calls, seconds or bytes, or remove it")
		}
		l.Budgets[typ] = subjects.Budget{Calls: b.Calls, Seconds: b.Seconds, Bytes: int64(b.Bytes)}
	}
	return l
}

// parseMonitored parses monitor-only rules, each as layer.rule, into rules by layer. It rejects unknown and repeated
// rules and those of layers that are always enforced: without them any agent could use any tool.
func (p *manifestParser) parseMonitored(in []string) map[string][]string {
	out := map[string][]string{}
	for i, name := range in {
		item := fmt.Sprintf("monitor_only[%d]", i)
		layer, rule, _ := strings.Cut(name, ".")
		switch {
		case slices.Contains(alwaysEnforced, layer):
			p.fail(item, "the rules of %s are always enforced; rules that may be monitor-only: %s", layer,
				strings.Join(listMonitorable(), ", "))
		case !slices.Contains(monitorable[layer], rule):
			p.fail(item, "unknown rule %q; rules that may be monitor-only: %s", name,
				strings.Join(listMonitorable(), ", "))
		case slices.Contains(out[layer], rule):
			p.fail(item, "%q is listed twice", name)
		default:
			out[layer] = append(out[layer], rule)
		}
	}
	return out
}

// rejectSpawnCycles reports types that could spawn themselves, directly or through their children: only the depth limit
// would end such a chain. Each cycle is reported once, at the entry that closes it.
func (p *manifestParser) rejectSpawnCycles(types map[string]typeFile) {
	done := map[string]bool{}
	var visit func(typ string, above []string)
	visit = func(typ string, above []string) {
		above = append(above, typ)
		for i, child := range types[typ].CanSpawn {
			at := fmt.Sprintf("%s.can_spawn[%d]", strict.JoinPath("types", typ), i)
			switch start := slices.Index(above, child); {
			case child == typ:
				p.fail(at, "%s would spawn itself; remove it", typ)
			case start >= 0:
				p.fail(at, "%s would spawn itself through its children: %s; remove one of them", child,
					strings.Join(append(slices.Clone(above[start:]), child), " -> "))
			case !done[child]:
				visit(child, above)
			}
		}
		done[typ] = true
	}
	for _, typ := range strict.SortedKeys(types) {
		if !done[typ] {
			visit(typ, nil)
		}
	}
}
