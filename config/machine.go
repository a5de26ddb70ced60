package config

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/actors/model"
	"conclave/actors/registry"
	"conclave/actors/tools"
	"conclave/actors/witness"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/machine"
	"conclave/subjects"
)

// machineConfig returns what the registry needs to let machines join.
func (c Config) machineConfig(home bus.Home, links registry.Links) (registry.MachineConfig, error) {
	pair, err := c.certificate(home).Load()
	if err != nil {
		return registry.MachineConfig{}, err
	}
	list, err := machine.OpenInvitations(filepath.Join(home.Data, "invitations.json"))
	if err != nil {
		return registry.MachineConfig{}, err
	}
	name, err := os.Hostname()
	if err != nil {
		name = "conclave"
	}
	return registry.MachineConfig{
		Listen: c.System.Machines.Listen, Hub: name, Certificate: pair, Invitations: list,
		Links: links,
	}, nil
}

// certificate returns the files of the TLS certificate for machines: the user's own, or the one that conclave made.
func (c Config) certificate(home bus.Home) bus.Certificate {
	if m := c.System.Machines; m.Cert != "" {
		return bus.Certificate{Cert: m.Cert, Key: m.Key}
	}
	dir := filepath.Join(home.Data, "tls")
	return bus.Certificate{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
}

// StartMachine runs the actors of a machine that joined a hub, with a NATS server that connects to the hub. It locks
// the data folder until [Instance.Stop]. A hub that is not reachable is no error: the server connects when it is. The
// error wraps [machine.ErrNotJoined] when the machine has not joined. log may be nil.
func (c Config) StartMachine(ctx context.Context, home bus.Home, log *slog.Logger) (_ *Instance, state machine.State,
	err error,
) {
	if state, err = machine.ReadState(home); err != nil {
		return nil, state, err
	}
	if err := home.CreateFolders(); err != nil {
		return nil, state, err
	}
	r := &Instance{book: c.NewBook(home)}
	if r.unlock, err = home.Lock(); err != nil {
		return nil, state, err
	}
	defer func() {
		if err != nil {
			r.Stop(context.WithoutCancel(ctx))
		}
	}()
	roles, err := bus.LeafRoles(state.Principal())
	if err != nil {
		return nil, state, err
	}
	if _, err := home.Keys().Ensure(roles); err != nil {
		return nil, state, err
	}
	leaf, err := state.LeafConfig(home)
	if err != nil {
		return nil, state, err
	}
	if r.server, err = bus.StartLeaf(leaf, home.Keys(), log); err != nil {
		return nil, state, err
	}
	r.links = len(leaf.Machine.Accounts())
	r.Bus = &bus.Bus{URL: r.server.URL(), Keys: home.Keys(), Server: r.server, Log: log}
	if err := home.WriteRunning(bus.Running{URL: r.server.URL(), Actors: state.Actors}); err != nil {
		return nil, state, err
	}
	ours := slices.DeleteFunc(c.Tools(), func(t *tools.Tool) bool { return !slices.Contains(state.Actors, t.Name()) })
	specs, err := c.composeMachine(home, r, state, ours)
	if err != nil {
		return nil, state, err
	}
	cfg, err := r.actorConfig(c, state.Machine, log)
	if err != nil {
		return nil, state, err
	}
	for _, s := range specs {
		if err := r.System.Start(ctx, s, r.Bus.Dial, cfg); err != nil {
			return nil, state, err
		}
	}
	var watching context.Context
	watching, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	r.watch.Go(func() { r.announceTools(watching, ours) })
	return r, state, nil
}

// announceTools announces the tools of a machine again after each connection to the hub, several times because the
// hub's subscriptions arrive a moment after it, and then every ten seconds: what was announced without a connection is
// lost.
func (r *Instance) announceTools(ctx context.Context, ours []*tools.Tool) {
	announce := map[*tools.Tool]actor.Out{}
	for _, t := range ours {
		nc, err := r.Bus.Dial(t.Role())
		if err != nil {
			return
		}
		defer nc.Close()
		out, err := actor.NewOut(nc)
		if err != nil {
			return
		}
		announce[t] = out
	}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for ticks := 0; len(announce) > 0; {
		if !r.IsLinked() {
			ticks = 0
		} else if ticks++; ticks <= 4 || ticks%20 == 0 {
			for t, out := range announce {
				_ = t.Start(ctx, out) // repeated in any case
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// composeMachine returns the specs of the actors of a machine: its tools, which are ours, those of this build as on the
// hub, and those that exist on a machine only.
func (c Config) composeMachine(home bus.Home, r *Instance, state machine.State, ours []*tools.Tool) (specs []actor.Spec,
	err error,
) {
	for _, name := range state.Actors {
		at := slices.IndexFunc(ours, func(t *tools.Tool) bool { return t.Name() == name })
		switch {
		case at >= 0:
			t := ours[at]
			specs = append(specs,
				actor.Spec{Name: name, Role: t.Role(), Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
					return t, nil
				}})
		case name == "witness":
			specs = append(specs,
				actor.Spec{Name: "witness", Make: func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) {
					local, err := r.Bus.Dial(subjects.WitnessStore)
					if err != nil {
						return nil, err
					}
					store, err := witness.OpenStore(ctx, local, 2*int64(c.System.AuditMax))
					if err != nil {
						local.Close()
						return nil, err
					}
					return witness.New(bus.NewAuditReader(nc), store, 0), nil
				}})
		case name == "model":
			specs = append(specs, actor.Spec{Name: name, Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
				// the local Ollama and no other server: a machine has no credentials
				b, err := newBackend(c.Models, model.Ollama, c.Models.Ollama, nil)
				if err != nil {
					return nil, err
				}
				return model.NewExecutor(state.Machine, c.Models.Ollama, b)
			}})
		default:
			if !slices.Contains(Actors, name) {
				return nil, fmt.Errorf("this build or its configuration has no %s, which this machine was invited "+
					"for: enable it, or have the machine invited again without it", name)
			}
			more, err := c.compose(home, r.book, []string{name})
			if err != nil {
				return nil, err
			}
			specs = append(specs, more...)
		}
	}
	return specs, nil
}

// ReportLink calls report when the machine is connected to its hub with all accounts, and when it no longer is, until
// ctx ends. The first report of a machine that does not connect comes after some seconds.
func (r *Instance) ReportLink(ctx context.Context, report func(up bool)) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	up, reported := false, false
	for seconds := 0; ; seconds++ {
		now := r.IsLinked()
		if now != up || !reported && seconds >= 5 {
			up, reported = now, true
			report(now)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// IsLinked reports whether a machine is connected to its hub with all of its accounts.
func (r *Instance) IsLinked() bool {
	links, err := r.server.LeafLinks()
	return err == nil && r.links > 0 && len(links) == r.links
}
