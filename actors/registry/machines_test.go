package registry_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"conclave/actors/registry"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/pkg/machine"
	"conclave/subjects"
)

// fixedLinks are connections of machines.
type fixedLinks []bus.LeafLink

func (l fixedLinks) LeafLinks() ([]bus.LeafLink, error) { return l, nil }
func (fixedLinks) LeafAddress() string                  { return "" }

// TestMachineStateIsByAccount: a machine is connected when an account of its own is, whatever name the server at the
// other end gives itself. Where machines share all accounts, that name is all there is, and the list says so.
func TestMachineStateIsByAccount(t *testing.T) {
	t.Parallel()
	f := &fixture{Bus: bustest.Start(t)}
	f.home = bus.Home{Data: f.Dir}
	var stored []subjects.Principal
	for name, actors := range map[string][]string{
		"box": {"model"}, "liar": {"model", "generator"}, "a": {"generator"},
		"b": {"generator"},
	} {
		p := subjects.Principal{Name: name, Kind: subjects.MachinePrincipal, Actors: actors, Keys: map[string]string{}}
		for _, account := range p.Accounts() {
			k, err := bus.Keys{Dir: t.TempDir()}.Stage(account)
			if err != nil {
				t.Fatal(err)
			}
			p.Keys[account] = k.Public
		}
		stored = append(stored, p)
	}
	if err := f.home.WritePrincipals(stored); err != nil {
		t.Fatal(err)
	}
	invitations, err := machine.OpenInvitations(filepath.Join(t.TempDir(), "invitations.json"))
	if err != nil {
		t.Fatal(err)
	}
	links := fixedLinks{
		{Account: "model_liar", Server: "box"},
		{Account: "generator", Server: "a"},
		{Account: "generator", Server: "box"},
	}
	f.Run(f.AuditedSpec(subjects.Registry, func(_ context.Context, w *audit.Writer, h *audit.Hasher) (actor.Actor,
		error,
	) {
		r, err := registry.New(registry.Config{AuditTimeout: testTimeout}, f.Server, f.home, w, h)
		if err == nil {
			r.ServeMachines(registry.MachineConfig{Listen: "off", Invitations: invitations, Links: links})
		}
		return r, err
	}), actor.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	list, err := actor.Ask(ctx, f.Out("user"), subjects.MachineListService, subjects.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range list.Machines {
		got = append(got, fmt.Sprint(m.Name, " ", !m.Connected.IsZero(), " ", m.Claimed))
	}
	if want := []string{"a true true", "b false true", "box false false", "liar true false"}; !slices.Equal(got, want) {
		t.Errorf("name, connected, claimed: %q, want %q", got, want)
	}
}
