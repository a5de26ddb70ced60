package config

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/auditlog"
	"conclave/pkg/bus"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// Conclave is the running whole: a server, its streams and the actors of this process.
type Conclave struct {
	Bus   *bus.Bus
	House actor.System

	server *bus.Server
	unlock func()
	book   *policy.Book
	cancel context.CancelFunc
	watch  sync.WaitGroup // what goes on beside the actors
}

// Start runs the embedded server and the named actors on home. It holds the data folder until [Conclave.Stop].
func (c Config) Start(ctx context.Context, home bus.Home, log *slog.Logger, names ...string) (_ *Conclave, err error) {
	if err := home.Make(); err != nil {
		return nil, err
	}
	r := &Conclave{book: c.Book(home)}
	if r.unlock, err = home.Lock(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.Stop(context.WithoutCancel(ctx))
		}
	}()
	if err := r.serve(ctx, c, home, log); err != nil {
		return nil, err
	}
	var watching context.Context
	watching, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	r.watch.Go(func() { r.server.WatchDisk(watching, time.Second) })
	if slices.Contains(names, "broker") {
		r.reload(watching, c, home, log)
	}
	return r, r.Run(ctx, c, home, log, names...)
}

// reload takes in a manifest that changes while the broker runs. One that is wrong changes nothing. Rules that came from
// somewhere else than the user's folder stay as they are.
func (r *Conclave) reload(ctx context.Context, c Config, home bus.Home, log *slog.Logger) {
	if c.manifest != "" && c.manifest != filepath.Join(home.Config, "manifest.yaml") {
		return
	}
	rl := NewReloader(home.Config, environment(home), r.book, func(n Reloaded) {
		if log != nil {
			n.log(log)
		}
	})
	r.watch.Go(func() { rl.Run(ctx, nil) })
}

// serve starts the server and makes its streams.
func (r *Conclave) serve(ctx context.Context, c Config, home bus.Home, log *slog.Logger) error {
	lasting, _ := subjects.Table().Roles()
	keys := home.Keys()
	if _, err := keys.Ensure(lasting); err != nil {
		return err
	}
	server := c.Server(home)
	var err error
	r.server, err = bus.StartServer(server, keys, log)
	if errors.Is(err, bus.ErrPortTaken) && c.Origin("system.listen") == Shipped {
		// Another NATS has the usual port. Nobody asked for this one: take any, and let the banner say which.
		host, _, _ := net.SplitHostPort(server.Listen)
		server.Listen = net.JoinHostPort(host, "0")
		r.server, err = bus.StartServer(server, keys, log)
	}
	if err != nil {
		return err
	}
	r.Bus = &bus.Bus{URL: r.server.URL(), Keys: keys, Srv: r.server, Log: log}
	if err := auditlog.Provision(ctx, home, r.Bus, r.server.Provision); err != nil {
		return err
	}
	if err := home.SetRunning(r.server.URL()); err != nil {
		return err
	}
	return nil
}

// Join runs the named actors against a server that is another process.
func (c Config) Join(ctx context.Context, home bus.Home, url string, log *slog.Logger, names ...string) (*Conclave, error) {
	if err := home.Make(); err != nil {
		return nil, err
	}
	r := &Conclave{Bus: &bus.Bus{URL: url, Keys: home.Keys(), Log: log}, book: c.Book(home)}
	var watching context.Context
	watching, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if slices.Contains(names, "broker") {
		r.reload(watching, c, home, log)
	}
	if err := r.Run(ctx, c, home, log, names...); err != nil {
		r.Stop(context.WithoutCancel(ctx))
		return nil, err
	}
	return r, nil
}

// Run starts more actors.
func (r *Conclave) Run(ctx context.Context, c Config, home bus.Home, log *slog.Logger, names ...string) error {
	specs, err := c.compose(home, r.book, names)
	if err != nil {
		return err
	}
	cfg := c.Runtime()
	cfg.Log = log
	for _, s := range specs {
		if err := r.House.Start(ctx, s, r.Bus.Dial, cfg); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends the actors, last started first, then the server, then lets go of the data folder.
func (r *Conclave) Stop(ctx context.Context) error {
	err := r.House.Stop()
	if r.cancel != nil {
		r.cancel()
		r.watch.Wait()
	}
	if r.server != nil {
		r.server.Stop(ctx)
	}
	if r.unlock != nil {
		r.unlock()
		r.unlock = nil
	}
	if err != nil {
		return fmt.Errorf("stopping: %w", err)
	}
	return nil
}
