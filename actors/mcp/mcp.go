// Package mcp connects to MCP servers and mounts their tools behind the broker as mcp_<server>_<tool>.
//
// The actor mcp starts a [Mount] for each configured server that was added with conclave mcp add: an actor of its own,
// with the key of a principal of its own, that serves tool.request.<tool>. It requests secret.use from the broker, for
// the credentials in the settings of servers. Everything that a server sends is untrusted: names, descriptions,
// schemas, annotations, results and errors.
package mcp

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"conclave/pkg/actor"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// Wanted is a server that runs: its settings, and its principal.
type Wanted struct {
	Server Server
	Folder string   // [Config].Folder
	Tools  []string // of its principal
	Key    string   // public key of its principal; a new one restarts the server
}

// Host is the actor. It starts and stops the servers as the settings and the principals change.
type Host struct {
	Options Options // of every server; Name, Server and Folder are set here
	// Load returns the servers that should run, by name. It is called every few seconds.
	Load  func() (map[string]Wanted, error)
	Dial  actor.Dial
	Actor actor.Config // of the mounts

	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	running map[string]*mounted
}

// mounted is a running server.
type mounted struct {
	wanted Wanted
	actor  *actor.Supervised
}

// checkInterval is the time between two checks of the settings.
const checkInterval = 2 * time.Second

// Name implements [actor.Actor].
func (h *Host) Name() string { return subjects.MCP }

// Routes implements [actor.Actor]: it serves nothing itself.
func (h *Host) Routes() []actor.Route { return nil }

// Start implements [actor.Starter]. A server that cannot be started is logged, and the others run.
func (h *Host) Start(ctx context.Context, out actor.Out) error {
	h.running, h.done = map[string]*mounted{}, make(chan struct{})
	h.reconcile(ctx, out)
	ctx, h.stop = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(h.done)
		tick := time.NewTicker(checkInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				h.reconcile(ctx, out)
			}
		}
	}()
	return nil
}

// Close implements [actor.Closer]: it stops all servers.
func (h *Host) Close(context.Context) error {
	if h.stop == nil {
		return nil
	}
	h.stop()
	<-h.done
	h.mu.Lock()
	defer h.mu.Unlock()
	var all sync.WaitGroup
	for name, m := range h.running {
		delete(h.running, name)
		all.Go(func() { _ = m.actor.Stop() })
	}
	all.Wait()
	return nil
}

// reconcile stops the servers that should no longer run or whose settings changed, and starts those that are missing.
// With settings that cannot be read everything stays as it is.
func (h *Host) reconcile(ctx context.Context, out actor.Out) {
	wanted, err := h.Load()
	if err != nil {
		out.LogError(fmt.Errorf("reading the MCP servers: %w; those that run stay", err))
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, m := range h.running {
		if w, ok := wanted[name]; !ok || !reflect.DeepEqual(w, m.wanted) {
			_ = m.actor.Stop()
			delete(h.running, name)
		}
	}
	for _, name := range strict.SortedKeys(wanted) {
		if h.running[name] != nil || ctx.Err() != nil {
			continue
		}
		w, o := wanted[name], h.Options
		o.Name, o.Server, o.Folder = name, w.Server, w.Folder
		spec := actor.Spec{
			Name: subjects.MCPPrincipal(name),
			Make: func(context.Context, *nats.Conn) (actor.Actor, error) { return NewMount(o, w.Tools), nil },
		}
		started, err := actor.Supervise(ctx, spec, h.Dial, h.Actor)
		if err != nil {
			out.LogError(fmt.Errorf("starting the MCP server %s: %w; it is retried every %s", name, err, checkInterval))
			continue
		}
		h.running[name] = &mounted{w, started}
	}
}
