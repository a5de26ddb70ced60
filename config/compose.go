package config

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/actors/broker"
	"conclave/actors/critic"
	"conclave/actors/gateway"
	"conclave/actors/generator"
	"conclave/actors/memory"
	"conclave/actors/reward"
	"conclave/actors/router"
	"conclave/actors/secrets"
	"conclave/actors/tools"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	keys "conclave/pkg/keyring"
	"conclave/pkg/policy"
	"conclave/pkg/webclient"
	"conclave/subjects"
)

// Actors are the names that [Config.Compose] knows, in the order in which they start: whoever is asked comes before
// whoever asks.
//
// respondent_b is among them only as far as the settings want it: see [Config.Compose].
var Actors = []string{"tools", "secrets", "broker", "model", "memory", "critic", "reward", "router", "generator", subjects.RespondentB, "gateway"}

// Wiring is what the process that runs the actors has to do with them. None of it is a setting.
type Wiring struct {
	Version  string            // of the build, as the gateway tells it
	OnListen func(addr string) // called with the gateway's address each time it starts, from the goroutine that starts it
	Web      *webclient.Client // client of the web tools; nil = one made from the settings
}

// WithWiring is c for a process with this wiring.
func (c Config) WithWiring(w Wiring) Config {
	c.wiring = w
	return c
}

// Compose says how to run the named actors, in starting order. "tools" stands for every tool of this machine; a tool's
// own name stands for that tool. respondent_b is left out when generator.yaml does not want it.
func (c Config) Compose(home bus.Home, names ...string) ([]actor.Spec, error) {
	return c.compose(home, c.NewBook(home), names)
}

// compose is Compose with a book of rules that somebody else may turn to other rules while the broker runs.
func (c Config) compose(home bus.Home, book *policy.ActiveRules, names []string) ([]actor.Spec, error) {
	ours := c.Tools()
	for _, n := range names {
		if !slices.Contains(Actors, n) && !slices.ContainsFunc(ours, func(t *tools.Tool) bool { return t.Name() == n }) {
			return nil, fmt.Errorf("there is no actor %q; choose from %v", n, Actors)
		}
	}
	var specs []actor.Spec
	for _, t := range ours {
		if slices.Contains(names, "tools") || slices.Contains(names, t.Name()) {
			specs = append(specs, actor.Spec{Name: t.Name(), Role: t.Role(), Make: func(context.Context, *nats.Conn) (actor.Actor, error) { return t, nil }})
		}
	}
	for _, s := range []actor.Spec{
		{Name: "secrets", Make: func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) { return c.newSecrets(ctx, home, nc) }},
		{Name: "broker", Make: func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) { return c.newBroker(ctx, home, book, nc) }},
		{Name: "model", Make: func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) {
			keys, err := newBrokeredKeyring(nc)
			if err != nil {
				return nil, err
			}
			return newModel(ctx, c.Models, home, nc, c.System.Actor.AuditTimeout, keys)
		}},
		{Name: "memory", Make: func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) { return c.newMemory(ctx, home, nc) }},
		{Name: "critic", Make: func(context.Context, *nats.Conn) (actor.Actor, error) { return critic.New(c.criticConfig()), nil }},
		{Name: "reward", Make: func(context.Context, *nats.Conn) (actor.Actor, error) { return reward.New(), nil }},
		{Name: "router", Make: func(context.Context, *nats.Conn) (actor.Actor, error) { return router.New(), nil }},
		{Name: subjects.Generator, Make: func(context.Context, *nats.Conn) (actor.Actor, error) { return c.newRespondent(subjects.Generator) }},
		{Name: subjects.RespondentB, Make: func(context.Context, *nats.Conn) (actor.Actor, error) { return c.newRespondent(subjects.RespondentB) }},
		{Name: "gateway", Make: func(_ context.Context, nc *nats.Conn) (actor.Actor, error) {
			cfg := c.System.Gateway
			if !c.Critic.Enabled {
				cfg.GradeWait = 0 // no grade will come
			}
			g := gateway.New(cfg, nc)
			g.OnListen, g.Version = c.wiring.OnListen, cmp.Or(c.wiring.Version, g.Version)
			g.AnyPort = c.Origin("system.gateway.listen") == Shipped // nobody asked for this one
			return g, nil
		}},
	} {
		if slices.Contains(names, s.Name) && (s.Name != subjects.RespondentB || c.Generator.RespondentB.Enabled) {
			specs = append(specs, s)
		}
	}
	if len(specs) == 0 && slices.Contains(names, subjects.RespondentB) {
		return nil, fmt.Errorf("%s is switched off: write respondent_b: {enabled: true} in generator.yaml, or start conclave with --respondent-b", subjects.RespondentB)
	}
	return specs, nil
}

// criticConfig are the critic's settings. Where nobody answers in respondent B no answer is kept to be compared with.
func (c Config) criticConfig() critic.Config {
	cfg := c.Critic
	if !c.Generator.RespondentB.Enabled {
		cfg.PairWait = 0
	}
	return cfg
}

// newRespondent is the agent that answers, or the one that answers beside it unseen.
func (c Config) newRespondent(name string) (actor.Actor, error) {
	g, err := c.Generator.Actor()
	if err != nil {
		return nil, err
	}
	return generator.New(name, g), nil
}

// Tools are the tools of this machine that are turned on.
func (c Config) Tools() []*tools.Tool {
	return tools.Configured(tools.Config{WebSearch: c.WebSearch, WebFetch: c.WebFetch, Own: c.listenAddresses(), Web: c.wiring.Web})
}

// listenAddresses are where this system itself listens, as far as the settings say: no page is fetched from there.
func (c Config) listenAddresses() (out []netip.AddrPort) {
	for _, listen := range []string{c.System.Listen, c.System.Gateway.Listen} {
		if at, err := netip.ParseAddrPort(listen); err == nil {
			out = append(out, at)
		}
	}
	return out
}

// ActorConfig is how each actor is bounded.
func (c Config) ActorConfig() actor.Config {
	a := c.System.Actor
	return actor.Config{
		Workers: a.Concurrency, Mailbox: a.Mailbox, DrainTimeout: a.Drain,
		Budget: actor.Budget{Intensity: a.Restarts.Intensity, Period: a.Restarts.Period},
	}
}

// ServerConfig is how the embedded server is set up.
func (c Config) ServerConfig(home bus.Home) bus.ServerConfig {
	s := c.System
	return bus.ServerConfig{Listen: s.Listen, Store: home.Store(), Sync: s.Sync, AuditMax: int64(s.AuditMax), EventMax: int64(s.EventMax)}
}

// NewBook is the manifest with the layers made of it.
func (c Config) NewBook(home bus.Home) *policy.ActiveRules {
	return policy.NewActiveRules(newRules(c.Manifest, home))
}

// newRules are a manifest's rules on this machine. Conclave's own folders are closed to every tool.
func newRules(m policy.Manifest, home bus.Home) policy.Rules {
	return policy.Rules{Manifest: m, Chain: m.Chain(policyEnv(home))}
}

// policyEnv is what the layers have to know of this machine.
func policyEnv(home bus.Home) policy.Env {
	env := policy.Env{Closed: []string{home.Data, home.Config}}
	if dir, err := os.UserHomeDir(); err == nil { // without one, paths that begin with ~ lead nowhere
		env.Home = dir
	}
	return env
}

// newSecrets is the actor that reads the keyring. A keyring that cannot be opened is no reason not to start: whoever needs a
// credential is told.
func (c Config) newSecrets(ctx context.Context, home bus.Home, nc *nats.Conn) (actor.Actor, error) {
	h, err := audit.LoadHasher(home.HashKey())
	if err != nil {
		return nil, err
	}
	cfg := c.Secrets
	cfg.AuditTimeout = c.System.Actor.AuditTimeout
	once, again := splitAuditTimeout(cfg.AuditTimeout)
	w, err := audit.Open(ctx, audit.Options{Account: "secrets", Dir: home.Heads(), Log: bus.AuditLog(nc), Timeout: once, Retry: again})
	if err != nil {
		return nil, err
	}
	return secrets.New(cfg, keys.OpenLazily(cfg.Ring(home.Data)), w, h), nil
}

// newMemory is the actor that remembers. A database that cannot be opened is no reason not to start: memory then tells
// everybody why, and what there is to be remembered waits in the event stream.
func (c Config) newMemory(ctx context.Context, home bus.Home, nc *nats.Conn) (actor.Actor, error) {
	h, err := audit.LoadHasher(home.HashKey())
	if err != nil {
		return nil, err
	}
	cfg := c.Memory
	cfg.AuditTimeout = c.System.Actor.AuditTimeout
	once, again := splitAuditTimeout(cfg.AuditTimeout)
	w, err := audit.Open(ctx, audit.Options{Account: "memory", Dir: home.Heads(), Log: bus.AuditLog(nc), Timeout: once, Retry: again})
	if err != nil {
		return nil, err
	}
	return memory.Open(ctx, cfg, home.Data, w, h), nil
}

func (c Config) newBroker(ctx context.Context, home bus.Home, book *policy.ActiveRules, nc *nats.Conn) (actor.Actor, error) {
	h, err := audit.LoadHasher(home.HashKey())
	if err != nil {
		return nil, err
	}
	var build []broker.Known
	for _, t := range c.Tools() {
		build = append(build, broker.Known{Tool: t.Facts(), Pin: broker.Pin(t.Schema())})
	}
	if c.Memory.Enabled {
		for _, t := range memory.Tools() {
			build = append(build, broker.Known{Tool: t.Facts, Pin: broker.Pin(t.Schema)})
		}
	}
	if c.Critic.Enabled {
		for _, t := range critic.Tools() {
			build = append(build, broker.Known{Tool: t.Facts, Pin: broker.Pin(t.Schema)})
		}
	}
	for _, t := range reward.Tools() {
		build = append(build, broker.Known{Tool: t.Facts, Pin: broker.Pin(t.Schema)})
	}
	cfg := broker.Config{
		CallTimeout: c.System.Actor.CallTimeout, AuditTimeout: c.System.Actor.AuditTimeout,
		ShowResult: int(c.System.Broker.ShowResult), ModelTimeout: c.System.Broker.ModelTimeout, ModelKeys: modelCredentials(c.Models),
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	once, again := splitAuditTimeout(cfg.AuditTimeout)
	w, err := audit.Open(ctx, audit.Options{Account: "broker", Dir: home.Heads(), Log: bus.AuditLog(nc), Timeout: once, Retry: again})
	if err != nil {
		return nil, err
	}
	return broker.New(cfg, book, w, h, build), nil
}

// splitAuditTimeout divides the time that a record may take between the first try and the tries after it. Whoever sends a record
// sees it through for that long whatever its caller says, so audit_timeout must be said to the writer too.
func splitAuditTimeout(whole time.Duration) (once, again time.Duration) {
	once = min(whole/2, 2*time.Second)
	return once, min(whole-once, time.Minute) // the stream knows its message ids for two minutes
}
