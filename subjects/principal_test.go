package subjects

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// exampleKey returns a string of the form of a public user key.
func exampleKey(n int) string {
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	b := []byte("U" + strings.Repeat("A", 55))
	for i := 55; n > 0; i-- {
		b[i], n = digits[n%32], n/32
	}
	return string(b)
}

// withExampleKeys returns p with a key for each account, made from n.
func withExampleKeys(p Principal, n int) Principal {
	p.Keys = map[string]string{}
	for i, a := range p.Accounts() {
		p.Keys[a] = exampleKey(100*n + i + 1)
	}
	return p
}

// examplePrincipals returns one principal of each kind, and a machine that runs everything that a machine may run.
func examplePrincipals() []Principal {
	return []Principal{
		withExampleKeys(Principal{
			Name: "weather", Kind: ToolPrincipal,
			Tools: []string{"forecast", "mcp_github_create_issue"},
		}, 1),
		withExampleKeys(Principal{Name: "phone", Kind: ClientPrincipal}, 2),
		withExampleKeys(Principal{Name: "gpu-box", Kind: MachinePrincipal, Actors: MachineActors()}, 3),
	}
}

func mustMerge(t testing.TB, ps ...Principal) Layout {
	t.Helper()
	l, err := Table().With(ps)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestWithRejects shows that a list with one bad principal is rejected as a whole, with a reason.
func TestWithRejects(t *testing.T) {
	t.Parallel()
	tool := func(name string, tools ...string) Principal {
		return withExampleKeys(Principal{Name: name, Kind: ToolPrincipal, Tools: tools}, 50)
	}
	machine := func(actors ...string) Principal {
		return withExampleKeys(Principal{Name: "box", Kind: MachinePrincipal, Actors: actors}, 50)
	}
	with := func(p Principal, change func(p *Principal)) Principal { change(&p); return p }
	for name, tt := range map[string]struct {
		add  Principal
		want string
	}{
		"empty":                   {Principal{}, "name"},
		"a dot":                   {tool("a.b", "x"), "name"},
		"a wildcard":              {tool("*", "x"), "name"},
		"upper case":              {tool("Weather", "x"), "name"},
		"an underscore":           {tool("model_box", "x"), "name"},
		"too long":                {tool(strings.Repeat("a", 25), "x"), "name"},
		"a line of configuration": {tool("a: {}\n", "x"), "name"},
		"an account of the table": {tool("broker", "x"), "in use"},
		"an account in capitals":  {tool("audit", "x"), "in use"},
		"a role of the table":     {tool("sys", "x"), "in use"},
		"the same name":           {tool("weather", "x"), "in use"},
		"the name of a machine":   {tool("gpu-box", "x"), "in use"},
		"an unknown kind":         {with(tool("a", "x"), func(p *Principal) { p.Kind = "admin" }), "kind"},
		"no kind":                 {with(tool("a", "x"), func(p *Principal) { p.Kind = "" }), "kind"},
		"a client with tools":     {with(tool("a", "x"), func(p *Principal) { p.Kind = ClientPrincipal }), "kind"},
		"a tool without tools":    {tool("a"), "kind"},
		"a wildcard tool":         {tool("a", ">"), "tool"},
		"a tool of the build":     {tool("a", "run_shell"), "is a tool of conclave"},
		"a tool of memory":        {tool("a", "search_memory"), "is a tool of conclave"},
		"a tool twice":            {tool("a", "x", "x"), "twice"},
		"a tool of another":       {tool("a", "forecast"), "weather serves a tool forecast"},
		"a pin that is no hash": {with(tool("a", "x"), func(p *Principal) {
			p.Declared = map[string]ToolDeclaration{"x": {Pin: "89196E"}}
		}), "pin"},
		"the store of a witness": {
			withExampleKeys(Principal{Name: "store", Kind: MachinePrincipal, Actors: []string{"witness"}}, 50),
			"in use",
		},
		"a machine with folders": {machine("fs_read"), "cannot run"},
		"a machine with a shell": {machine("run_shell"), "cannot run"},
		"the broker elsewhere":   {machine("broker"), "cannot run"},
		"an actor twice":         {machine("model", "model"), "twice"},
		"no key":                 {with(tool("a", "x"), func(p *Principal) { p.Keys = nil }), "keys"},
		"a machine without keys": {with(machine("model"), func(p *Principal) { p.Keys = nil }), "keys"},
		"half of the keys": {with(machine("model", "witness"), func(p *Principal) {
			delete(p.Keys, "model_box")
		}), "keys"},
		"the key of another": {
			with(tool("a", "x"), func(p *Principal) { p.Keys["a"] = exampleKey(101) }),
			"key of another",
		},
		"a key of an account": {with(tool("a", "x"), func(p *Principal) {
			p.Keys = map[string]string{"broker": exampleKey(9)}
		}), "public user key"},
		"a seed as key": {
			with(tool("a", "x"), func(p *Principal) { p.Keys["a"] = "S" + p.Keys["a"] }),
			"public user key",
		},
		"a key that ends the line": {with(tool("a", "x"), func(p *Principal) {
			p.Keys["a"] = exampleKey(9)[:50] + "\" } {\n"
		}), "public user key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := Table().With(append(examplePrincipals(), tt.add))
			if !errors.Is(err, ErrPrincipal) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one about %q", err, tt.want)
			}
			if len(l.Accounts) > 0 {
				t.Error("a layout besides the error")
			}
			if strings.Contains(fmt.Sprint(err), "SU") {
				t.Error("the error has the seed")
			}
		})
	}
	if _, err := Table().With(slices.Repeat([]Principal{tool("a", "x")}, MaxPrincipals+1)); !errors.Is(err,
		ErrPrincipal) {
		t.Errorf("a list that is too long: %v", err)
	}
}

// TestWithLeavesTheTable shows that the accounts of the table keep their edges and permissions, apart from the keys of
// machines, and that Table itself is unchanged.
func TestWithLeavesTheTable(t *testing.T) {
	t.Parallel()
	before := Table().Conf()
	l := mustMerge(t, examplePrincipals()...)
	if Table().Conf() != before {
		t.Error("Table changed")
	}
	if !reflect.DeepEqual(l.Edges[:len(Table().Edges)], Table().Edges) ||
		!reflect.DeepEqual(l.Streams, Table().Streams) {
		t.Error("edges or streams of the table changed")
	}
	for i, a := range Table().Accounts {
		b := l.Accounts[i]
		b.Users = slices.DeleteFunc(slices.Clone(b.Users), func(u User) bool { return u.Leaf })
		b.MaxLeafs = 0
		if !reflect.DeepEqual(a, b) {
			t.Errorf("account %s changed", a.Name)
		}
	}
	lasting, boot := Table().Roles()
	if l2, b2 := l.Roles(); !slices.Equal(lasting, l2) || !slices.Equal(boot, b2) {
		t.Error("roles with a variable changed")
	}
	if l.AccountOf("weather") != "weather" || l.AccountOf("generator_gpu-box") != Generator {
		t.Error("accounts of run-time roles are wrong")
	}
	conf := l.Conf()
	for _, want := range []string{`"model_gpu-box": {`, `limits: { max_connections: 8, max_leafnodes: 1 }`, `nkey: "` +
		exampleKey(101) + `"`, `allowed_connection_types: [LEAFNODE]`, `max_connections: 1064`} {
		if !strings.Contains(conf, want) {
			t.Errorf("no %s in nats.conf", want)
		}
	}
}

// randomPrincipal returns a valid or an invalid principal.
func randomPrincipal(r *rand.Rand, n int) Principal {
	pick := func(from []string) (out []string) {
		for range 1 + r.IntN(3) {
			out = append(out, from[r.IntN(len(from))])
		}
		return dedupe(out)
	}
	p := Principal{Name: fmt.Sprintf("p%d", r.IntN(2*n+20))}
	switch r.IntN(3) {
	case 0:
		p.Kind, p.Tools = ToolPrincipal, pick([]string{
			"forecast", "mcp_a_b", "x", "request", "schema", "list",
			"run_code",
		})
	case 1:
		p.Kind = ClientPrincipal
	case 2:
		p.Kind, p.Actors = MachinePrincipal, pick(MachineActors())
	}
	return withExampleKeys(p, n+1)
}

// FuzzWithPrincipals shows for random lists that a merged layout keeps every rule and that each principal has its
// accounts, or that the list is rejected with ErrPrincipal.
func FuzzWithPrincipals(f *testing.F) {
	for i := range uint64(12) {
		f.Add(i, uint8(1+5*i%9), "p1", "x")
	}
	f.Add(uint64(99), uint8(3), "broker", "run_shell")
	f.Fuzz(func(t *testing.T, seed uint64, count uint8, name, tool string) {
		r := rand.New(rand.NewPCG(seed, 1))
		ps := []Principal{withExampleKeys(Principal{Name: name, Kind: ToolPrincipal, Tools: []string{tool}}, 200)}
		for i := range int(count % 12) {
			ps = append(ps, randomPrincipal(r, i))
		}
		l, err := Table().With(ps)
		if err != nil {
			if !errors.Is(err, ErrPrincipal) {
				t.Errorf("error of another kind: %v", err)
			}
			var seen, tools []string
			clean := true // a list without a reason to reject it
			for _, p := range ps {
				clean = clean && p.Validate() == nil && !slices.Contains(seen, p.Name) &&
					Table().AccountOf(p.Name) == ""
				clean = clean && !slices.ContainsFunc(p.Tools, func(t string) bool { return slices.Contains(tools, t) })
				seen, tools = append(seen, p.Name), append(tools, p.Tools...)
			}
			for _, a := range Table().Accounts {
				clean = clean && !slices.ContainsFunc(seen, func(n string) bool { return strings.EqualFold(n, a.Name) })
			}
			if clean {
				t.Errorf("rejected %v: %v", ps, err)
			}
			return
		}
		if err := l.Check(); err != nil {
			t.Error(err)
		}
		for _, p := range ps {
			for _, a := range p.Accounts() {
				i := slices.IndexFunc(l.Accounts, func(x Account) bool { return x.Name == a })
				present := i >= 0 && slices.ContainsFunc(l.Accounts[i].Users, func(u User) bool {
					return u.Key != "" && u.Key == p.Keys[a]
				})
				if !present {
					t.Errorf("account %s of %s has no key", a, p.Name)
				}
			}
		}
	})
}

// TestKeyOfMachineToolIsAskedFor: the secrets actor may ask a machine that serves a tool with a credential for its key,
// and no other account of a principal.
func TestKeyOfMachineToolIsAskedFor(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		add  Principal
		want bool
	}{
		"web_search":     {Principal{Name: "box", Kind: MachinePrincipal, Actors: []string{"web_search"}}, true},
		"another tool":   {Principal{Name: "box", Kind: MachinePrincipal, Actors: []string{"get_datetime"}}, false},
		"a model":        {Principal{Name: "box", Kind: MachinePrincipal, Actors: []string{"model"}}, false},
		"the user's own": {Principal{Name: "box", Kind: ToolPrincipal, Tools: []string{"forecast"}}, false},
	} {
		l, err := Table().With([]Principal{withExampleKeys(tt.add, 50)})
		if err != nil {
			t.Fatal(err)
		}
		asked := slices.ContainsFunc(l.Edges[len(Table().Edges):], func(e Edge) bool {
			return slices.Contains(e.Callers, "secrets") && e.Local == "receiver.tools_box.seal.key.*"
		})
		reached := slices.ContainsFunc(l.Edges[len(Table().Edges):], func(e Edge) bool {
			return slices.Contains(e.Callers, "secrets")
		})
		if asked != tt.want || reached != tt.want {
			t.Errorf("%s: asked %t, reached %t", name, asked, reached)
		}
	}
}
