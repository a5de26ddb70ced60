package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/pkg/strict"
	"conclave/subjects"
)

// The sections of the manifest that the layers after the first two go by. A section or field that a file leaves out is
// as usual says; manifest.yaml as shipped writes the same out.

// Reach says what may be reached.
type Reach struct {
	Fetch HostRules // by tools that fetch an address
}

// Limits end what would go on for ever. The zero value lets nothing through.
type Limits struct {
	Identical int                        // the so many-th identical call is refused
	Window    time.Duration              // in which calls count as identical
	Calls     int                        // for one question
	Spawns    int                        // for one question
	Depth     int                        // of spawned agents below an account
	Budgets   map[string]subjects.Budget // type -> what each agent of it may spend with all below it, when it was spawned
}

// Approvals say how the user is asked.
type Approvals struct {
	Expires time.Duration // no answer until then is a denial
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

// defaultManifestFile is what holds for a file that says nothing.
func defaultManifestFile() manifestFile {
	return manifestFile{
		HighRisk:  []string{"fs_write", "run_code", "run_shell"},
		AlwaysAsk: []string{"package_install"},
		Egress: egressFile{Fetch: hostsFile{
			Allow: []string{"*"},
			Deny:  []string{"localhost", "*.localhost", "*.local", "*.internal", "*.lan", "*.home.arpa"},
		}},
		Limits:    limitsFile{Same: 3, Window: 10 * time.Minute, Calls: 50, Spawns: 32, Depth: subjects.MaxDepth},
		Approvals: approvalsFile{Expires: 5 * time.Minute},
	}
}

// parseSections checks the sections and puts them into m, whose types are there.
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
	m.Monitored = p.parseMonitored(f.Monitored)
}

// parseHostList checks names of hosts one by one, so that each error has its line.
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

func (p *manifestParser) parseLimits(f limitsFile, types map[string]typeFile) Limits {
	between := func(field string, n, least, most int) {
		if n < least || n > most {
			p.fail("limits."+field, "%d is not between %d and %d", n, least, most)
		}
	}
	between("same", f.Same, 2, 100) // 1 would refuse every call
	between("calls", f.Calls, 1, 10_000)
	between("spawns", f.Spawns, 0, 1000)
	between("depth", f.Depth, 0, subjects.MaxDepth)
	if f.Window < time.Second || f.Window > 24*time.Hour {
		p.fail("limits.window", "%s is not between 1s and 24h", strict.FormatDuration(f.Window))
	}
	l := Limits{Identical: f.Same, Window: f.Window, Calls: f.Calls, Spawns: f.Spawns, Depth: f.Depth, Budgets: map[string]subjects.Budget{}}
	for _, typ := range strict.SortedKeys(f.Budgets) {
		at, b := strict.JoinPath("limits.budgets", typ), f.Budgets[typ]
		if _, ok := types[typ]; !ok {
			p.fail(at, "no agent type %q; types: %s", typ, strings.Join(strict.SortedKeys(types), ", "))
		}
		switch {
		case b.Calls < 0 || b.Seconds < 0:
			p.fail(at, "a budget cannot be negative; leave out what has no limit")
		case b == budgetFile{}:
			p.fail(at, "sets no limit; give calls, seconds or bytes, or leave it out")
		}
		l.Budgets[typ] = subjects.Budget{Calls: b.Calls, Seconds: b.Seconds, Bytes: int64(b.Bytes)}
	}
	return l
}

// parseMonitored reads rules to watch, each as layer.rule. Rules that say who may do what are never only watched: trying them
// out would give everything to everybody meanwhile.
func (p *manifestParser) parseMonitored(in []string) map[string][]string {
	out := map[string][]string{}
	for i, name := range in {
		item := fmt.Sprintf("monitor_only[%d]", i)
		layer, rule, _ := strings.Cut(name, ".")
		switch {
		case slices.Contains(alwaysEnforced, layer):
			p.fail(item, "the rules of %s are always enforced; those that may be watched: %s", layer, strings.Join(listMonitorable(), ", "))
		case !slices.Contains(monitorable[layer], rule):
			p.fail(item, "no layer knows the rule %q; those that may be watched: %s", name, strings.Join(listMonitorable(), ", "))
		case slices.Contains(out[layer], rule):
			p.fail(item, "%q is listed twice", name)
		default:
			out[layer] = append(out[layer], rule)
		}
	}
	return out
}

// rejectSpawnCycles reports types that could spawn themselves, directly or by way of their children: such a line has no end but
// the limit of its depth, and a type could shed what its parent took from it.
func (p *manifestParser) rejectSpawnCycles(types map[string]typeFile) {
	done := map[string]bool{}
	var visit func(typ string, above []string)
	visit = func(typ string, above []string) {
		above = append(above, typ)
		for i, child := range types[typ].CanSpawn {
			at := fmt.Sprintf("%s.can_spawn[%d]", strict.JoinPath("types", typ), i)
			switch start := slices.Index(above, child); {
			case child == typ:
				p.fail(at, "%s would spawn itself; leave it out", typ)
			case start >= 0:
				p.fail(at, "%s would come back to itself by way of its children: %s; leave one of them out", child, strings.Join(append(slices.Clone(above[start:]), child), " -> "))
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
