// Package model serves inference on the bus. It selects the model by role and hint, asks every model with one fixed set
// of options, queues the requests for each server by priority (the critic and respondent B are preempted by requests
// that a user waits for), and denies every model that would leave the machine unless it is allowed by name.
//
// It listens on agent.<account>.model.chat, .model.embed, .model.list and .model.pull, and on query.cancel.<query> and
// principal.changed; it speaks on their reply subjects only, on those of chat and pull in a stream, and to the model
// actors of machines that joined (machine.<machine>.model.>, see [Executor]). The caller is the account that the server
// wrote into the subject. Every call is in the audit log before it is made, and its outcome afterwards.
//
// Without Ollama a built-in demo model answers and says so in every answer. By default it does so only until Ollama was
// reachable once: a user who has a model gets an error when it is unreachable, and no demo answer.
package model

import (
	"context"
	"errors"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/subjects"
)

// Model is the actor.
type Model struct {
	cfg     Config
	servers map[string]*server
	demo    *server // nil = no demo model
	audit   actor.Audit
	gate    *actor.Gate
	hash    actor.Hasher
	calls   calls
	meter   *meter
	swaps   swaps
	images  imageBudget

	machines        machines
	machinesChanged chan struct{} // a machine was added or removed
	ollamaPresence

	running sync.WaitGroup  // of the goroutines of spawn
	closing context.Context // ended by Close
	stop    context.CancelFunc
	testing sync.Map // names of the models whose self-test waits or runs
}

// New returns a model actor for the given backends, by the name of their server in cfg; a configured server without a
// backend is not used. demo is the built-in demo model, nil for none. cfg must be valid.
func New(cfg Config, backends map[string]model.Backend, demo model.Backend, a actor.Audit, h actor.Hasher) *Model {
	cfg.Link = cfg.Link.withDefaults()
	m := &Model{
		cfg: cfg, servers: map[string]*server{}, audit: a, hash: h,
		gate: &actor.Gate{
			Log: a, Timeout: cfg.AuditTimeout, TypeOf: cfg.AgentType, NotDone: "no model was asked",
			Done: "the model answered",
		},
	}
	m.closing, m.stop = context.WithCancel(context.Background())
	m.meter = newMeter(cfg.MeasuredFile)
	m.swaps.seen = map[string]swap{}
	m.probe, m.machinesChanged = make(chan struct{}, 1), make(chan struct{}, 1)
	m.machines = machines{
		all: map[string]*machine{}, assigned: map[*server][priorities]int{},
		last: map[string]*server{}, digests: map[string]string{},
	}
	for name, s := range cfg.Servers() {
		if b := backends[name]; b != nil {
			m.servers[name] = newServer(name, s, b)
		}
	}
	if demo != nil {
		m.demo = newServer(Scripted, Server{URL: "http://localhost", Slots: demoSlots}, demo)
	}
	return m
}

// demoSlots is the number of concurrent requests to the demo model, which needs no GPU.
const demoSlots = 64

// Name implements [actor.Actor].
func (m *Model) Name() string { return "model" }

// Routes implements [actor.Actor]. A chat holds a worker while it waits: the order is that of [queue], not of the
// route.
func (m *Model) Routes() []actor.Route {
	return []actor.Route{
		actor.ServeStream(subjects.ModelChat, m.onChat, actor.Workers(1024),
			m.gate.OnReject(subjects.ActionModelChat, nil)),
		actor.Serve(subjects.ModelEmbed, m.onEmbed, actor.Workers(512),
			m.gate.OnReject(subjects.ActionModelEmbed, nil)),
		actor.Serve(subjects.ModelListService, m.onNames, actor.Workers(8)),
		actor.ServeStream(subjects.ModelPull, m.onPull, actor.Workers(4),
			m.gate.OnReject(subjects.ActionModelPull, nil)),
		actor.Subscribe(subjects.QueryCancel, m.onCancel),
		actor.Subscribe(subjects.PrincipalChanged, m.onPrincipalChanged, actor.Workers(1)),
	}
}

// Close implements [actor.Closer]: it ends the work in the background, closes the backends that can be closed, stores
// what was measured and closes the audit log.
func (m *Model) Close(ctx context.Context) error {
	m.stop()
	m.running.Wait()
	for _, s := range m.servers {
		s.close()
	}
	return errors.Join(m.meter.write(time.Now(), true), m.gate.Close(ctx), m.audit.Close(ctx))
}

// Bounds of requests and replies.
const (
	maxStops  = 16
	maxTools  = 128
	maxTexts  = 128
	maxVector = 1 << 16   // numbers
	maxReply  = 16 << 20  // bytes of all chunks
	maxChunk  = 256 << 10 // bytes of one chunk
	maxText   = 1000      // bytes of an error text
)

// requester is the account that waits for a model, the fairness key by which its requests take turns, and their
// priority.
type requester struct {
	account, key string
	priority     int
}

// newRequester returns the requester of a message: turns are taken by the sessions of an account. background lowers the
// priority; nothing in a request can raise it.
func newRequester(account, session string, background bool) requester {
	r := requester{account, account + "/" + session, priorityOf(account)}
	if background {
		r.priority = max(r.priority, lowest)
	}
	return r
}

// onCancel cancels the calls of a query, waiting or running.
func (m *Model) onCancel(_ context.Context, in actor.Msg[subjects.Cancel], _ actor.Out) error {
	if len(in.Tokens) == 1 {
		m.calls.cancelQuery(in.Tokens[0])
	}
	return nil
}
