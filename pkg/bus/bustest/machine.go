package bustest

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/subjects"
)

// Machine is another machine of one test: its real server, which reaches the hub through a [Link].
type Machine struct {
	*bus.Bus // of its server
	Link     *Link
	t        testing.TB
}

// StartMachines starts a hub as [Start] does, and machines that have joined it with the given actors.
func StartMachines(t testing.TB, actors []string, names ...string) (*Bus, map[string]*Machine) {
	t.Helper()
	var joined []subjects.Principal
	seeds := map[string]bus.Keys{}
	for _, name := range names {
		p := subjects.Principal{
			Name: name, Kind: subjects.MachinePrincipal, Actors: actors, Keys: map[string]string{},
			Added: time.Now(),
		}
		k := bus.Keys{Dir: filepath.Join(t.TempDir(), "seeds")}
		ensureKeys(t, k, p.Accounts())
		for _, account := range p.Accounts() {
			var err error
			if p.Keys[account], err = k.Public(account); err != nil {
				t.Fatal(err)
			}
		}
		joined, seeds[name] = append(joined, p), k
	}
	hub := Start(t, func(c *bus.ServerConfig) { c.Principals = joined })
	cert, err := bus.EnsureCertificate(filepath.Join(hub.Dir, "tls"))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := cert.Load()
	if err != nil {
		t.Fatal(err)
	}
	pin, err := bus.PinOf(pair)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*Machine{}
	for _, p := range joined {
		m := &Machine{Link: StartLink(t, hub.Server.LeafAddress()), t: t}
		roles, err := bus.LeafRoles(p)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		keys := bus.Keys{Dir: filepath.Join(dir, "keys")}
		ensureKeys(t, keys, roles)
		srv, err := bus.StartLeaf(bus.LeafConfig{
			Machine: p, Address: m.Link.Addr(), Pin: pin, Seeds: seeds[p.Name],
			Store: filepath.Join(dir, "jetstream"),
		}, keys, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { srv.Stop(context.Background()) })
		m.Bus = &bus.Bus{URL: srv.URL(), Keys: keys, Server: srv}
		all[p.Name] = m
	}
	return hub, all
}

func ensureKeys(t testing.TB, k bus.Keys, roles []string) {
	t.Helper()
	if _, err := k.Ensure(roles); err != nil {
		t.Fatal(err)
	}
}

// Run supervises an actor on the machine until the test ends.
func (m *Machine) Run(spec actor.Spec, cfg actor.Config) *actor.Supervised {
	m.t.Helper()
	return supervise(m.t, m.Bus, spec, cfg)
}
