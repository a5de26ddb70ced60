// Package gateway serves the HTTP API: questions, answers, sessions, memory, approvals and a stream of events. It also
// serves query.ask, for users of the plain nats command, and the agent protocol, for its clients.
//
// It listens on query.ask, on the subjects of the agent protocol, on the live copies of stored events, and on the live
// tokens of answers; it speaks on query.received, query.cancel.<query> and user.feedback, and sends requests to the
// broker and memory. A live event is only a hint: the event and its author are read from the event log by sequence,
// because the headers of a copy are claims of its publisher.
//
// It has no durable consumer of the event log: a consumer is shared by all gateways, and each of them needs every
// event. Reading by sequence loses none either, however long the connection was down.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/client"
	"conclave/pkg/telemetry"
	"conclave/subjects"
)

// ErrPortTaken means that another program listens on the gateway's port.
var ErrPortTaken = errors.New("another program has this port")

// Link is the state of the gateway's connection to the bus.
type Link interface {
	IsConnected() bool
	Servers() []string // addresses that it may connect to: several of a cluster
}

// Gateway is the actor. Its memory is a copy of the event log: a restart loses nothing.
type Gateway struct {
	// OnListen, when set before the start, is called with the address of the server, which port 0 leaves open.
	OnListen func(addr string)
	// AnyPort allows any free port when the configured one is taken.
	AnyPort bool
	// Version is the build that /health reports.
	Version string
	// Data is the data folder, whose damage /health reports; "" = not reported.
	Data string
	// OtherData is set when the streams or memory are in another data folder: its actors are asked for its damage.
	OtherData bool
	// Counters, when set before the start, has profiles and counters of the process served below /debug, on a loopback
	// address only and behind the same credential as everything else. It returns the counters that the Go runtime does
	// not have.
	Counters func() map[string]int64

	cfg             Config
	link            Link
	events          *client.Feed
	live            broadcaster
	recent          recentQuestions
	questions       questionLog
	conversations   conversationIndex
	tokens          clientTokens
	mcp             http.Handler
	models          cached[*ModelHealth]
	auditHead       cached[AuditStatus]
	links           cached[[]string]
	otherDamage     cached[[]string]
	pulls           pullLog
	slots           struct{ waiting, streams, clients chan struct{} }
	credentials     *credentials
	bodyTimeout     time.Duration
	outcomeTimeout  time.Duration
	sessionsTimeout time.Duration
	modelTimeout    time.Duration
	modelCacheTime  time.Duration
	criticLate      atomic.Bool                  // see [Gateway.waitForGrade]
	answerTimes     recentMap[string, time.Time] // of the latest answers, to measure the critic
	clients         clientLimits
	metrics         metricStore
	scope           *telemetry.Scope // of the requests of HTTP clients
	notes           noteIndex

	out     actor.Out
	client  *client.Client
	server  *http.Server
	serving sync.WaitGroup
	unused  sync.Map // connections without a request so far

	agentID string // of this instance, in the ids of the agent protocol
	prompts promptLog

	life context.Context // cancelled when the gateway starts to close
	end  context.CancelCauseFunc

	mu   sync.Mutex
	addr string
}

// New returns a gateway. cfg must be valid; link is the connection it runs on.
func New(cfg Config, link Link) *Gateway {
	g := &Gateway{
		cfg: cfg, link: link, events: client.NewFeed(), Version: "dev",
		bodyTimeout: defaultBodyTimeout, outcomeTimeout: outcomeTimeout, sessionsTimeout: sessionsTimeout,
		modelTimeout: modelTimeout, modelCacheTime: modelCacheTime,
	}
	g.slots.waiting = make(chan struct{}, g.cfg.MaxWaiting)
	g.slots.streams = make(chan struct{}, g.cfg.MaxStreams)
	g.slots.clients = make(chan struct{}, max(g.cfg.MaxWaiting/2, maxClientRequests))
	g.tokens.changed, g.tokens.renewed = make(chan struct{}, 1), make(chan struct{}, 1)
	g.agentID, g.prompts.started = actor.NewID()[:12], time.Now().UTC()
	g.life, g.end = context.WithCancelCause(context.Background())
	return g
}

// Name implements [actor.Actor].
func (g *Gateway) Name() string { return "gateway" }

// Describe implements [actor.Describer].
func (g *Gateway) Describe() (metadata map[string]string) {
	return map[string]string{"address": g.Addr()}
}

// Routes implements [actor.Actor]: questions on the bus, live tokens, questions of every source, and one wake-up
// subscription per stored topic. Payloads of the latter are ignored, because the events themselves are read from the
// event log.
func (g *Gateway) Routes() []actor.Route {
	routes := []actor.Route{
		actor.ServeStream(subjects.QueryAsk, g.onAsk, actor.Workers(g.cfg.MaxWaiting)),
		actor.ServeStream(subjects.AgentsPrompt, g.onPrompt, actor.Workers(g.cfg.MaxWaiting)),
		actor.Serve(subjects.AgentsStatus, g.onAgentStatus, actor.MaxRate(maxAgentRequests)),
		actor.Serve(subjects.AgentsReply, g.onQueryReply, actor.EveryInstance(), actor.MaxRate(maxAgentRequests)),
		actor.ServeStream(subjects.AgentsService, g.onAgentDiscovery, actor.EveryInstance(),
			actor.MaxRate(maxAgentRequests)),
		actor.ServeStream(subjects.AgentsInstance, g.onAgentDiscovery, actor.EveryInstance(),
			actor.MaxRate(maxAgentRequests)),
		actor.Subscribe(subjects.ResponseDelta, g.onDelta, actor.Workers(1)),
		actor.Subscribe(subjects.ResponseThinking, g.onDelta, actor.Workers(1)),
		actor.Subscribe(subjects.PrincipalChanged, g.onPrincipalChanged, actor.Workers(1)),
	}
	for _, t := range []subjects.Topic[subjects.Query]{
		subjects.QueryReceived, subjects.QueryCommittee,
		subjects.QueryTask,
	} {
		routes = append(routes, actor.Subscribe(t, g.onQuestion, actor.Workers(1)))
	}
	for _, s := range subjects.AllSpecs() {
		if s.Stream == "EVENTS" {
			routes = append(routes, actor.Notify(s, g.events.WakeUp))
		}
	}
	return routes
}

// Start implements [actor.Starter]: it reads the token file, or creates it, finds the end of the event log, reads the
// list of sessions, then listens and serves. It fails when one of these fails, except the list; a port that is taken is
// replaced by a free one only with AnyPort. A Unix socket that cannot be opened is logged: the API is served without
// it. OnListen is called last.
func (g *Gateway) Start(ctx context.Context, out actor.Out) error {
	g.out, g.client, g.scope = out, client.Wrap(out), telemetry.ScopeOf(ctx)
	err := g.checkProfiles()
	if err != nil {
		return err
	}
	g.credentials, err = openCredentials(g.cfg.TokenFile, g.cfg.URL, func(err error) { out.LogError(err) })
	if err != nil {
		return err
	}
	if err := g.events.Open(ctx, g.client); err != nil {
		return err
	}
	g.readSessions(ctx)
	ln, err := openListener(ctx, g.cfg.Listen)
	if errors.Is(err, ErrPortTaken) && g.AnyPort {
		host, _, _ := net.SplitHostPort(g.cfg.Listen)
		ln, err = openListener(ctx, net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return err
	}
	g.mcp = g.newMCPHandler()
	g.server = &http.Server{
		Handler:                      g.handler(),
		ReadHeaderTimeout:            g.cfg.HeaderTimeout,
		IdleTimeout:                  2 * time.Minute,
		MaxHeaderBytes:               maxHeader,
		DisableGeneralOptionsHandler: true, // "OPTIONS *" is checked like everything else
		ErrorLog:                     log.New(io.Discard, "", 0),
		ConnState:                    g.trackUnused,
	}
	g.server.RegisterOnShutdown(func() { g.end(errClosing) })
	g.server.RegisterOnShutdown(g.closeUnused)
	g.mu.Lock()
	g.addr = ln.Addr().String()
	g.mu.Unlock()
	g.serving.Go(func() { g.events.Follow(g.life, g.trackCritic) })
	g.serving.Go(func() { g.tokens.follow(g.life, out) })
	g.serving.Go(func() { g.sendHeartbeats(g.life) })
	g.serving.Go(func() { g.writeTitles(g.life) })
	g.serve(ln)
	if g.cfg.Socket != "" {
		socket, err := ListenSocket(ctx, g.cfg.Socket)
		if err != nil {
			out.LogError(fmt.Errorf("%w; serving without it", err))
		} else {
			g.serve(socket)
		}
	}
	if g.OnListen != nil {
		g.OnListen(g.Addr())
	}
	return nil
}

// sessionsTimeout bounds how long the start waits for the list of sessions. 10,000 sessions take 0.2 s.
const sessionsTimeout = 2 * time.Second

// readSessions reads the list of sessions, so that the first request for it reads only what changed since. A read that
// fails or takes too long keeps what it has read, and the first request reads the rest.
func (g *Gateway) readSessions(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, g.sessionsTimeout)
	defer cancel()
	_, _, _ = g.client.Sessions(ctx, maxSessions, nil)
}

// serve serves the connections of ln in the background until the server shuts down.
func (g *Gateway) serve(ln net.Listener) {
	g.serving.Go(func() {
		if err := g.server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			g.out.LogError(fmt.Errorf("serving HTTP on %s: %w", ln.Addr(), err))
		}
	})
}

// Addr is the address of the server, "" before it listens.
func (g *Gateway) Addr() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.addr
}

// errClosing ends the waits of a gateway that stops.
var errClosing = errors.New("the gateway is stopping")

// Close implements [actor.Closer]. It stops accepting requests, ends the event streams, tells waiting clients where to
// find their answer later, and lets running requests finish for 4 seconds at most; connections that remain are cut,
// which is an error. It may be called without a successful Start.
func (g *Gateway) Close(ctx context.Context) error {
	var err error
	if g.server != nil {
		// Leave time to cut connections that do not finish.
		grace, cancel := context.WithTimeout(ctx, 4*time.Second)
		defer cancel()
		if err = g.server.Shutdown(grace); err != nil {
			err = errors.Join(fmt.Errorf("finishing HTTP requests: %w", err), g.server.Close())
		}
	}
	g.end(errClosing)
	g.serving.Wait()
	return err
}

// trackUnused notes connections on which no request has come: browsers open them in advance, and a server that shuts
// down would wait for them.
func (g *Gateway) trackUnused(c net.Conn, s http.ConnState) {
	if s == http.StateNew {
		g.unused.Store(c, nil)
	} else {
		g.unused.Delete(c)
	}
}

func (g *Gateway) closeUnused() {
	g.unused.Range(func(c, _ any) bool {
		_ = c.(net.Conn).Close() // nobody waits on it
		return true
	})
}

// openListener listens on addr, host:port; port 0 selects a free one. A port in use is [ErrPortTaken]. Every error says
// which setting to change.
func openListener(ctx context.Context, addr string) (net.Listener, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	switch {
	case err == nil:
		return ln, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listening on %s: %w; stop it, or choose another with --api-port or gateway.listen "+
			"(port 0 takes any that is free)", addr, ErrPortTaken)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listening on %s: the system does not permit this port; set gateway.listen to one "+
			"above 1023: %w", addr, err)
	}
	return nil, fmt.Errorf("listening on %s: set gateway.listen to an address of this machine: %w", addr, err)
}
