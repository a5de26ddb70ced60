package config

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/actors/broker"
	"conclave/actors/broker/replay"
	"conclave/actors/committee"
	"conclave/actors/critic"
	"conclave/actors/gateway"
	"conclave/actors/generator"
	"conclave/actors/memory"
	"conclave/actors/model"
	"conclave/actors/orchestrator"
	"conclave/actors/registry"
	"conclave/actors/reward"
	"conclave/actors/router"
	"conclave/actors/scheduler"
	"conclave/actors/secrets"
	"conclave/actors/tools"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	keys "conclave/pkg/keyring"
	"conclave/pkg/policy"
	"conclave/pkg/strict"
	"conclave/pkg/webclient"
	"conclave/subjects"
)

// Actors are the names for [Config.Compose] in starting order: an actor starts after those it sends requests to.
// respondent_b runs only when the settings enable it.
var Actors = []string{
	subjects.Registry, "tools", "secrets", "broker", "model", "memory", "critic", "reward", "router",
	"generator", subjects.RespondentB, subjects.Committee, subjects.Orchestrator, subjects.MCP, subjects.Scheduler,
	"gateway",
}

// Wiring connects the actors with the process that runs them. None of it is a setting.
type Wiring struct {
	Version string // of the build, as the gateway and discovery report it
	// called with the gateway's address each time it starts, from the goroutine that starts it
	OnListen func(addr string)
	Web      *webclient.Client // client of the web tools; nil = one made from the settings
	// KeepHeads keeps the head of the audit log where the settings say. Only the installed system does: the keyring is
	// the user's, and outlives a test or a benchmark.
	KeepHeads bool
	// Profiles has the gateway serve profiles and counters of the process, on a loopback address only.
	Profiles bool
	// Restarts says that the process starts anew at [bus.RestartSignal].
	Restarts bool

	// Doctor runs the checks of conclave doctor for the page; nil = the page cannot.
	Doctor func(ctx context.Context) []subjects.DoctorCheck

	// Program is the file of this program, which MCP servers with hosts have in their sandbox; "" = that of the
	// process.
	Program string

	counters func() map[string]int64 // of the embedded server, for the profiles
	server   registry.Server         // the embedded one; nil = a stand-alone one
	settings *liveSettings           // of the running system; nil = c is all
	dial     actor.Dial              // connects the actors that mcp starts
	mounts   actor.Config            // limits of the actors that mcp starts
}

// WithWiring returns c with this wiring.
func (c Config) WithWiring(w Wiring) Config {
	c.wiring = w
	return c
}

// Compose returns the specs of the named actors in starting order. "tools" stands for every enabled tool, a tool's name
// for that tool. respondent_b is left out when generator.yaml does not enable it. It rejects unknown names.
func (c Config) Compose(home bus.Home, names ...string) ([]actor.Spec, error) {
	return c.compose(home, c.NewBook(home), names)
}

// compose is Compose with a rule book that may be updated while the broker runs. names are actors, "tools" for all
// tools, or single tools. It rejects an unknown name, and respondent B alone when it is switched off; beside other
// actors it is left out then.
func (c Config) compose(home bus.Home, book *policy.ActiveRules, names []string) ([]actor.Spec, error) {
	withStore := c.toolConfig()
	withStore.UndoFolder = filepath.Join(home.Data, "undo")
	ours := tools.Configured(withStore)
	now := func() Config { // a live setting may have changed since
		if c.wiring.settings == nil {
			return c
		}
		return c.wiring.settings.config()
	}
	for _, n := range names {
		if !slices.Contains(Actors, n) && !slices.ContainsFunc(ours, func(t *tools.Tool) bool {
			return t.Name() == n
		}) {
			return nil, fmt.Errorf("unknown actor %q; choose from %v", n, Actors)
		}
	}
	var specs []actor.Spec
	for _, t := range ours {
		if slices.Contains(names, "tools") || slices.Contains(names, t.Name()) {
			specs = append(specs, actor.Spec{
				Name: t.Name(), Role: t.Role(),
				Make: func(context.Context, *nats.Conn) (actor.Actor, error) { return t, nil },
			})
		}
	}
	for _, s := range []actor.Spec{
		{Name: subjects.Registry, Make: func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) {
			return c.newRegistry(ctx, home, nc)
		}},
		{Name: "secrets", Make: func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) {
			return c.newSecrets(ctx, home, nc)
		}},
		{Name: "broker", Make: func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) {
			return c.newBroker(ctx, home, book, nc)
		}},
		{Name: "model", Make: func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) {
			keys, err := newBrokeredKeyring(nc)
			if err != nil {
				return nil, err
			}
			cfg := now().modelConfig()
			cfg.AgentType = book.AgentType
			return newModel(ctx, cfg, home, nc, c.System.Actor.AuditTimeout, keys)
		}},
		{Name: "memory", Make: func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) {
			return now().newMemory(ctx, home, book, nc)
		}},
		{Name: "critic", Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
			cfg := now().Critic
			if !now().Generator.RespondentB.Enabled {
				cfg.PairWait = 0 // there is no second answer to compare
			}
			return critic.New(cfg), nil
		}},
		{Name: "reward", Make: func(context.Context, *nats.Conn) (actor.Actor, error) { return reward.New(), nil }},
		{Name: "router", Make: func(context.Context, *nats.Conn) (actor.Actor, error) { return router.New(), nil }},
		{Name: subjects.Generator, Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
			return now().newRespondent(subjects.Generator)
		}},
		{Name: subjects.RespondentB, Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
			return now().newRespondent(subjects.RespondentB)
		}},
		{Name: subjects.Committee, Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
			cfg, err := c.Personas.Actor()
			g := now().Generator
			cfg.CallTimeout, cfg.FirstToken, cfg.Result = g.CallTimeout, g.FirstToken, g.Result
			cfg.Stream, cfg.Turns = g.Stream, g.Turns
			return committee.New(cfg), err
		}},
		{Name: subjects.Orchestrator, Make: func(ctx context.Context, nc *nats.Conn) (actor.Actor, error) {
			return now().newOrchestrator(ctx, home, nc)
		}},
		{Name: subjects.MCP, Make: func(_ context.Context, nc *nats.Conn) (actor.Actor, error) {
			return c.newMCP(home, nc)
		}},
		{Name: subjects.Scheduler, Make: func(context.Context, *nats.Conn) (actor.Actor, error) {
			return scheduler.New(), nil
		}},
		{Name: "gateway", Make: func(_ context.Context, nc *nats.Conn) (actor.Actor, error) {
			g := gateway.New(c.GatewayConfig(home), nc)
			g.OnListen, g.Version = c.wiring.OnListen, cmp.Or(c.wiring.Version, g.Version)
			g.Data, g.OtherData = home.Data, c.wiring.server == nil
			g.Counters = c.wiring.counters
			g.AnyPort = c.Origin("system.gateway.listen") == Shipped // the port was not chosen by the user
			return g, nil
		}},
	} {
		if slices.Contains(names, s.Name) && (s.Name != subjects.RespondentB || c.Generator.RespondentB.Enabled) {
			specs = append(specs, s)
		}
	}
	if len(specs) == 0 && slices.Contains(names, subjects.RespondentB) {
		return nil, fmt.Errorf("%s is switched off: write respondent_b: {enabled: true} in generator.yaml, or start "+
			"conclave with --respondent-b", subjects.RespondentB)
	}
	return specs, nil
}

// modelConfig returns the model actor's settings, with the roles that the enabled actors request. The model of a role
// that the user did not choose is optional, except the assistant's.
func (c Config) modelConfig() model.Config {
	cfg := c.Models
	cfg.InUse = []string{subjects.RoleAssistant}
	if c.Critic.Enabled {
		cfg.InUse = append(cfg.InUse, subjects.RoleCritic)
	}
	if c.Memory.Enabled {
		cfg.InUse = append(cfg.InUse, subjects.RoleEmbeddings)
	}
	cfg.InUse = append(cfg.InUse, subjects.RoleSummaries, subjects.RoleTools)
	for _, role := range []string{subjects.RoleOrchestrator, subjects.RoleResearcher, subjects.RoleCoder} {
		if cfg.Roles[role] != "" { // otherwise the assistant's model
			cfg.InUse = append(cfg.InUse, role)
		}
	}
	for _, role := range cfg.InUse[1:] {
		if cfg.Roles[role] != "" && c.Origin(strict.JoinPath("models.roles", role)) == Shipped {
			cfg.Optional = append(cfg.Optional, role)
		}
	}
	return cfg
}

// GatewayConfig returns the gateway's settings. The token file and the Unix socket are in the data folder unless they
// are set; without a critic it does not wait for a grade.
func (c Config) GatewayConfig(home bus.Home) gateway.Config {
	cfg := c.System.Gateway
	cfg.TokenFile = cmp.Or(cfg.TokenFile, home.HTTPToken())
	cfg.Socket = cmp.Or(cfg.Socket, home.HTTPSocket())
	if !c.Critic.Enabled {
		cfg.GradeWait = 0
	}
	return cfg
}

// newRespondent returns the generator or respondent B.
func (c Config) newRespondent(name string) (actor.Actor, error) {
	g, err := c.Generator.Actor()
	if err != nil {
		return nil, err
	}
	return generator.New(name, g), nil
}

// Tools returns the enabled tools.
func (c Config) Tools() []*tools.Tool { return tools.Configured(c.toolConfig()) }

// ToolNames returns the names of the enabled tools.
func (c Config) ToolNames() (out []string) {
	for _, t := range c.Tools() {
		out = append(out, t.Name())
	}
	return out
}

// EnabledActors returns the actors of this build, with respondent B only where it is enabled.
func (c Config) EnabledActors() []string {
	return slices.DeleteFunc(slices.Clone(Actors), func(n string) bool {
		return n == subjects.RespondentB && !c.Generator.RespondentB.Enabled
	})
}

func (c Config) toolConfig() tools.Config {
	return tools.Config{
		WebSearch: c.WebSearch, WebFetch: c.WebFetch, Workspace: c.Workspace, Own: c.listenAddresses(),
		Web: c.wiring.Web,
	}
}

// listenAddresses returns the configured addresses of this system, from which the web tools must not fetch.
func (c Config) listenAddresses() (out []netip.AddrPort) {
	for _, listen := range []string{c.System.Listen, c.System.Gateway.Listen} {
		if at, err := netip.ParseAddrPort(listen); err == nil {
			out = append(out, at)
		}
	}
	return out
}

// ActorConfig returns how every actor runs.
func (c Config) ActorConfig() actor.Config {
	return actor.Config{DrainTimeout: c.System.Actor.Drain, Version: c.wiring.Version}
}

// ServerConfig returns the settings of the embedded server.
func (c Config) ServerConfig(home bus.Home) bus.ServerConfig {
	s := c.System
	return bus.ServerConfig{
		Listen: s.Listen, Store: home.Store(), Sync: s.Sync, AuditMax: int64(s.AuditMax),
		EventMax: int64(s.EventMax), Replicas: s.Replicas, Certificate: c.certificate(home),
	}
}

// NewBook returns a rule book of the manifest.
func (c Config) NewBook(home bus.Home) *policy.ActiveRules {
	return policy.NewActiveRules(policy.Rules{Manifest: c.Manifest, Chain: c.Manifest.Chain(c.policyEnv(home))})
}

// OmittedFolders returns why folders of the manifest give no access on this machine, see [policy.OmittedFolders].
func (c Config) OmittedFolders(home bus.Home) []error {
	return policy.OmittedFolders(c.Manifest, c.policyEnv(home).Home)
}

// policyEnv returns the facts about this machine that the layers use. No tool may use Conclave's own folders, and those
// of its backups.
func (c Config) policyEnv(home bus.Home) policy.Env {
	env := policy.Env{Closed: []string{home.Data, home.Config, home.MCP(), c.BackupFolder(home)}}
	if dir, err := os.UserHomeDir(); err == nil { // without a home, paths with ~ match nothing
		env.Home = dir
	}
	return env
}

// newSecrets returns the actor that reads the keyring. It starts even if the keyring cannot be opened; requests for a
// credential fail then. It fails without the hash key of home or an audit log that can be opened.
func (c Config) newSecrets(ctx context.Context, home bus.Home, nc *nats.Conn) (actor.Actor, error) {
	cfg := c.Secrets
	cfg.ModelKeys = modelCredentials(c.Models)
	for _, t := range tools.Known(c.toolConfig()) {
		cfg.ToolKeys = append(cfg.ToolKeys, t.Facts().Secrets...)
	}
	cfg.AuditTimeout = c.System.Actor.AuditTimeout
	w, h, err := openAudit(ctx, home, "secrets", nc, cfg.AuditTimeout)
	if err != nil {
		return nil, err
	}
	return secrets.New(cfg, keys.OpenLazily(cfg.Ring(home.Data)), w, h), nil
}

// newRegistry returns the actor that keeps the run-time principals. A stand-alone server is told of changes with the
// key of the monitoring account.
func (c Config) newRegistry(ctx context.Context, home bus.Home, nc *nats.Conn) (actor.Actor, error) {
	server := c.wiring.server
	if server == nil {
		server = bus.NewStandalone(home, nc.ConnectedUrl())
	}
	w, h, err := openAudit(ctx, home, subjects.Registry, nc, c.System.Actor.AuditTimeout)
	if err != nil {
		return nil, err
	}
	r, err := registry.New(registry.Config{AuditTimeout: c.System.Actor.AuditTimeout, Data: home.Data}, server, home,
		w, h)
	if err != nil {
		return nil, err
	}
	if links, ok := server.(registry.Links); ok {
		m, err := c.machineConfig(home, links)
		if err != nil {
			return nil, err
		}
		r.ServeMachines(m)
	}
	if c.wiring.settings != nil {
		r.ServeSettings(c.wiring.settings)
	}
	if c.wiring.Doctor != nil {
		r.ServeDoctor(c.wiring.Doctor)
	}
	return r, nil
}

// newOrchestrator returns the orchestrator. It fails without the hash key of home or an audit log that can be opened.
func (c Config) newOrchestrator(ctx context.Context, home bus.Home, nc *nats.Conn) (actor.Actor, error) {
	cfg, g := c.Orchestrator, c.Generator
	cfg.CallTimeout, cfg.FirstToken, cfg.ToolTimeout = g.CallTimeout, g.FirstToken, g.ToolTimeout
	cfg.Result = g.Result
	cfg.AuditTimeout, cfg.Workspace = c.System.Actor.AuditTimeout, c.Workspace.Folder
	w, h, err := openAudit(ctx, home, subjects.Orchestrator, nc, cfg.AuditTimeout)
	if err != nil {
		return nil, err
	}
	return orchestrator.New(cfg, w, h), nil
}

// newMemory returns the memory actor. It starts even if the database cannot be opened: requests then fail with the
// reason, and events wait in the event log. It fails without the hash key of home or an audit log that can be opened.
func (c Config) newMemory(ctx context.Context, home bus.Home, book *policy.ActiveRules, nc *nats.Conn) (actor.Actor,
	error,
) {
	cfg := c.Memory
	cfg.AuditTimeout, cfg.AgentType, cfg.Undo = c.System.Actor.AuditTimeout, book.AgentType, c.Workspace.Undo
	w, h, err := openAudit(ctx, home, "memory", nc, cfg.AuditTimeout)
	if err != nil {
		return nil, err
	}
	return memory.Open(ctx, cfg, home.Data, w, h), nil
}

// buildTools returns the facts and pinned schemas of every tool of this build; those of memory and the critic only when
// they are enabled.
func (c Config) buildTools() []broker.Known {
	var build []broker.Known
	for _, t := range tools.Known(c.toolConfig()) {
		build = append(build, broker.Known{Tool: t.Facts(), Pin: broker.Pin(t.Schema()), Disabled: t.Disabled()})
	}
	served := reward.Tools()
	if c.Memory.Enabled {
		served = append(served, memory.Tools()...)
	}
	if c.Critic.Enabled {
		served = append(served, critic.Tools()...)
	}
	for _, t := range served {
		build = append(build, broker.Known{Tool: t.Facts, Pin: broker.Pin(t.Schema)})
	}
	return build
}

// ReplayRules returns what judges recorded calls by another manifest on this machine, with the tools of run-time
// principals as the broker merges them. A principal with an invalid declaration is an error.
func (c Config) ReplayRules(m policy.Manifest, home bus.Home, principals []subjects.Principal) (replay.Rules, error) {
	var added []policy.AddedTool
	for _, p := range principals {
		tools, err := policy.ParseTools(p)
		if err != nil {
			return replay.Rules{}, err
		}
		added = append(added, tools...)
	}
	r := replay.Rules{
		Manifest: m.WithTools(added), Env: c.policyEnv(home), Build: map[string]policy.Tool{},
		InForce: c.Manifest.Tools,
	}
	for _, k := range c.buildTools() {
		r.Build[k.Name] = k.Tool
	}
	return r, nil
}

// newBroker returns the broker with the facts and pinned schemas of every tool of this build; those of memory and the
// critic only when they are enabled. It denies by the rules in book.
func (c Config) newBroker(ctx context.Context, home bus.Home, book *policy.ActiveRules, nc *nats.Conn) (actor.Actor,
	error,
) {
	cfg := broker.Config{
		CallTimeout: callTimeout, AuditTimeout: c.System.Actor.AuditTimeout,
		ShowResult: int(c.System.Broker.ShowResult), ModelTimeout: c.System.Broker.ModelTimeout,
		QuestionRate: c.System.Broker.QuestionRate, ModelKeys: modelCredentials(c.Models),
		Workspace:  c.Workspace.Folder,
		EventBytes: c.ServerConfig(home).StreamBytes("EVENTS") * subjects.CopyShare / 100,
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	w, h, err := openAudit(ctx, home, "broker", nc, cfg.AuditTimeout)
	if err != nil {
		return nil, err
	}
	return broker.New(cfg, book, w, h, c.buildTools()), nil
}

// callTimeout is the timeout of a tool call whose tool sets none.
const callTimeout = time.Minute

// openAudit opens the audit log for the records of an account, and the key of the hashes in them. The writer completes
// its attempts regardless of the caller's context: the first and the retries together take timeout.
func openAudit(ctx context.Context, home bus.Home, account string, nc *nats.Conn, timeout time.Duration) (*audit.Writer,
	*audit.Hasher, error,
) {
	h, err := audit.LoadHasher(home.HashKey())
	if err != nil {
		return nil, nil, err
	}
	once := min(timeout/2, 2*time.Second)
	w, err := audit.Open(ctx, audit.Options{
		Account: account, Dir: home.Heads(), Log: bus.NewAuditLog(nc), Timeout: once,
		Retry: min(timeout-once, time.Minute), // the stream dedupes message ids for two minutes
	})
	return w, h, err
}
