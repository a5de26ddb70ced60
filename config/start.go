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

	"conclave/actors/broker"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/auditlog"
	"conclave/pkg/backup"
	"conclave/pkg/bus"
	"conclave/pkg/damage"
	"conclave/pkg/keyring"
	"conclave/pkg/policy"
	"conclave/pkg/telemetry"
	"conclave/subjects"
)

// Instance is a running system: the server, its streams and the actors of this process.
type Instance struct {
	Bus    *bus.Bus
	System actor.System

	server   *bus.Server
	links    int // connections to the hub, of a machine that joined
	unlock   func()
	book     *policy.ActiveRules
	settings *liveSettings // shared by all actors of this process
	cancel   context.CancelFunc
	watch    sync.WaitGroup // goroutines beside the actors
	tracer   *telemetry.Tracer
}

// Start runs the embedded server and the named actors on home, and reloads the manifest when the broker is among them.
// It locks the data folder until [Instance.Stop], and fails when another process has locked it. With the broker it
// fails when the user's manifest is gone, see [MissingManifest]. After an error everything is stopped, and the instance
// must not be used. log may be nil.
func (c Config) Start(ctx context.Context, home bus.Home, log *slog.Logger, names ...string) (_ *Instance, err error) {
	if err := home.CreateFolders(); err != nil {
		return nil, err
	}
	if slices.Contains(names, "broker") {
		if err := c.keepManifest(home); err != nil {
			return nil, err
		}
	}
	if c.System.Replicas > 1 {
		return nil, fmt.Errorf("system.replicas is %d, and conclave up runs one server: leave it out, or run three "+
			"stand-alone servers (conclave keys --cluster)", c.System.Replicas)
	}
	r := &Instance{book: c.NewBook(home)}
	if r.unlock, err = home.Lock(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.Stop(context.WithoutCancel(ctx))
		}
	}()
	files, lost, err := c.openStreamFiles(ctx, home) // before the server, which would repair what is damaged
	if err != nil {
		return nil, err
	}
	defer func() { logDamage(home, log) }() // with that which actors find
	if err := r.repair(ctx, c, home, lost, len(files) > 0, log); err != nil {
		return nil, err
	}
	if err := r.startServer(ctx, c, home, len(files) > 0, false, log); err != nil {
		return nil, err
	}
	if err := home.WriteRunning(bus.Running{
		URL: r.server.URL(), Actors: names, Restarts: c.wiring.Restarts,
	}); err != nil {
		return nil, err
	}
	c.wiring.server = r.server
	if c.wiring.Profiles {
		c.wiring.counters = r.server.Counters
	}
	var watching context.Context
	watching, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := r.keepHeads(watching, c, home, files, log); err != nil {
		return nil, err
	}
	r.serveBackups(watching, c, home, log)
	if slices.Contains(names, "broker") { // with --bus-only other processes have a part of the data
		r.watch.Go(func() { r.keepBackups(watching, c, home, log) })
	}
	r.watch.Go(func() { r.server.WatchDisk(watching, time.Second) })
	r.watch.Go(func() { r.server.KeepCounts(watching, home) })
	r.watch.Go(func() { holdMemory(watching) })
	r.watch.Go(func() { watchAuditCapacity(watching, r.Bus, log) })
	if slices.Contains(names, "broker") {
		r.watchManifest(watching, c, home, log)
	}
	return r, r.Run(ctx, c, home, log, names...)
}

// watchManifest reloads the manifest when it changes, until ctx ends; it returns at once. An invalid one changes
// nothing. A manifest from outside the user's folder is not watched. log may be nil.
func (r *Instance) watchManifest(ctx context.Context, c Config, home bus.Home, log *slog.Logger) {
	if c.manifest != "" && c.manifest != filepath.Join(home.Config, "manifest.yaml") {
		return
	}
	rl := NewReloader(home.Config, lastManifest(home), c.policyEnv(home), r.book, func(n Reloaded) {
		if log == nil {
			log = slog.New(slog.DiscardHandler)
		}
		if n.Err != nil {
			log.Error("the changed manifest is rejected; the previous rules stay", "file", n.File, "err", n.Err)
			return
		}
		log.Info("the changed manifest is in force", "file", n.File)
		if len(n.Unserved) > 0 {
			log.Warn("the manifest names tools that no actor serves", "tools", n.Unserved)
		}
		if err := copyManifest(home); err != nil {
			log.Error("a later start cannot tell whether the manifest is gone", "err", err)
		}
	})
	r.watch.Go(func() { rl.Run(ctx, nil) })
}

// startServer creates missing keys, starts the server and creates its streams. When the default port is taken it uses a
// free one; a taken port that the user chose is an error. hasData says that an earlier start has stored something, and
// repair that only this process may connect.
func (r *Instance) startServer(ctx context.Context, c Config, home bus.Home, hasData, repair bool,
	log *slog.Logger,
) error {
	lasting, _ := subjects.Table().Roles()
	keys := home.Keys()
	if _, err := keys.Ensure(lasting); err != nil {
		return err
	}
	server := c.ServerConfig(home)
	server.Repair = repair
	var err error
	if server.Principals, err = home.ReadPrincipals(); err != nil {
		return err
	}
	r.server, err = bus.StartServer(server, keys, log)
	if errors.Is(err, bus.ErrPortTaken) && c.Origin("system.listen") == Shipped {
		// The default port is taken, perhaps by another NATS, and the user did not choose it: use a free one.
		host, _, _ := net.SplitHostPort(server.Listen)
		server.Listen = net.JoinHostPort(host, "0")
		r.server, err = bus.StartServer(server, keys, log)
	}
	if err != nil {
		return err
	}
	r.Bus = &bus.Bus{URL: r.server.URL(), Keys: keys, Server: r.server, Log: log}
	if err := auditlog.Provision(ctx, home, r.Bus, r.server.Provision); err != nil {
		return err
	}
	if err := r.server.WriteCounts(home); err != nil { // with a version, a start expects them
		return err
	}
	before, err := home.WriteVersion()
	if err != nil {
		return err
	}
	if hasData && before != bus.DataVersion && log != nil {
		log.Warn("the data folder was upgraded; earlier builds refuse it, and open only a backup that was made before",
			"data", home.Data, "from", before, "to", bus.DataVersion)
	}
	return nil
}

// openStreamFiles opens the files of the audit log, none for a new one, moves the damaged files of all streams aside
// and takes back what a scheduled backup has of them. It reports their damage, what is missing since the last run, what
// came back, and head files of the audit log that were emptied. lost is for [Instance.repair].
func (c Config) openStreamFiles(ctx context.Context, home bus.Home) (files bus.AuditReaders, lost lostData, err error) {
	if err := damage.Add(home.Data); err != nil { // a list that cannot be read does not keep it from starting
		return files, lost, err
	}
	var found []damage.Report
	streams, folder, damaged, err := auditlog.OpenFiles(home)
	for _, d := range damaged {
		if d.Tail && d.Zeros { // nothing that was acknowledged
			continue
		}
		found = append(found, damage.Report{
			Found: time.Now(), Kept: folder,
			Text: "the audit log is damaged: " + d.String() + "; see conclave audit verify",
		})
	}
	files = bus.ReadFiles(streams)
	var emptied []string
	if err == nil {
		emptied, err = audit.FindEmptiedHeads(home.Heads(), func() (audit.Source, error) { return files.ReadAll(ctx) })
	}
	for _, name := range emptied { // its writer removes it
		found = append(found, damage.Report{
			Found: time.Now(),
			Text: "the head file " + name + " of the audit log was emptied: records at the end of its chain may be " +
				"missing; see conclave audit verify",
		})
	}
	var others []bus.StreamDamage
	if err == nil {
		others, err = bus.FindDamagedStreams(home)
	}
	if err == nil {
		err = backup.RestoreStreams(ctx, home, c.BackupFolder(home), others, broker.IsRestorable)
	}
	err = errors.Join(err, damage.Add(home.Data, found...))
	for _, d := range others {
		err = errors.Join(err, d.AddTo(home.Data))
	}
	if err == nil {
		lost, err = findLostData(ctx, home)
	}
	if err == nil && c.Memory.Enabled {
		err = c.restoreMemory(ctx, home)
	}
	return files, lost, err
}

// logDamage logs the damage that the user has not accepted. log may be nil.
func logDamage(home bus.Home, log *slog.Logger) {
	reports, err := damage.Read(home.Data)
	if log == nil {
		return
	}
	if err != nil {
		log.Error("damage", "err", err)
	}
	for _, r := range reports {
		log.Error("damage: "+r.String(), "found", r.Found, "fix", damage.Remedy)
	}
}

// HeadStores returns the stores that keep the head of the audit log outside the data folder. It rejects a file inside
// it, which would be rolled back with the log. It opens none of them.
func (c Config) HeadStores(home bus.Home) (out []auditlog.HeadStore, err error) {
	if f := c.System.AuditHead.File; f != "" {
		if rel, err := filepath.Rel(home.Data, f); err == nil && filepath.IsLocal(rel) {
			return nil, fmt.Errorf("audit_head.file in system.yaml is %s: choose a file outside the data folder %s", f,
				home.Data)
		}
		out = append(out, auditlog.NewHeadFile(f))
	}
	if c.System.AuditHead.Keyring {
		out = append(out, auditlog.NewHeadKeyring(func(ctx context.Context) (keyring.Ring, error) {
			return auditlog.OpenSystemKeyring(ctx, c.Secrets.Backend, home)
		}, home.Data))
	}
	return out, nil
}

// headInterval is how often the head of the audit log is kept outside the data folder.
const headInterval = 10 * time.Minute

// keepHeads keeps the head of the audit log in the event log and the configured stores until ctx ends, if the wiring
// says so; it returns at once. files is the log before the server started, none for a new one. log may be nil.
func (r *Instance) keepHeads(ctx context.Context, c Config, home bus.Home, files bus.AuditReaders,
	log *slog.Logger,
) error {
	if !c.wiring.KeepHeads {
		return nil
	}
	stores, err := c.HeadStores(home)
	if err != nil {
		return err
	}
	nc, err := r.Bus.Dial("auditor")
	if err != nil {
		return err
	}
	user, err := r.Bus.Dial("user")
	if err != nil {
		nc.Close()
		return err
	}
	stores = append(stores, auditlog.NewHeadEvents(user, nc))
	k := auditlog.HeadKeeper{Stores: stores, Home: home, Interval: headInterval, Log: log}
	r.watch.Go(func() {
		defer nc.Close()
		defer user.Close()
		k.Run(ctx, files, bus.NewAuditReader(nc))
	})
	return nil
}

// Join runs the named actors against the server at url of another process, or the servers of a cluster, with the keys
// of home. It neither locks the data folder nor starts a server. After an error everything is stopped.
func (c Config) Join(ctx context.Context, home bus.Home, url string, log *slog.Logger, names ...string) (*Instance,
	error,
) {
	if err := home.CreateFolders(); err != nil {
		return nil, err
	}
	if slices.Contains(names, "broker") {
		if err := c.keepManifest(home); err != nil {
			return nil, err
		}
	}
	r := &Instance{Bus: home.Connect(url, log), book: c.NewBook(home)}
	var watching context.Context
	watching, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if slices.Contains(names, "broker") {
		r.watchManifest(watching, c, home, log)
	}
	if err := r.Run(ctx, c, home, log, names...); err != nil {
		r.Stop(context.WithoutCancel(ctx))
		return nil, err
	}
	return r, nil
}

// Run starts more actors, in the order of compose. It rejects unknown names before it starts any; after another error
// those before it keep running until [Instance.Stop].
func (r *Instance) Run(ctx context.Context, c Config, home bus.Home, log *slog.Logger, names ...string) error {
	if r.server != nil {
		c.wiring.server = r.server
	}
	if r.settings == nil {
		r.settings = newLiveSettings(c, home, r.System.Restart)
	} else {
		r.settings.inForce.Store(&c)
	}
	c.wiring.settings = r.settings
	cfg, err := r.actorConfig(c, "", log)
	if err != nil {
		return err
	}
	c.wiring.dial, c.wiring.mounts = r.Bus.Dial, cfg
	specs, err := c.compose(home, r.book, names)
	if err != nil {
		return err
	}
	for _, s := range specs {
		if err := r.System.Start(ctx, s, r.Bus.Dial, cfg); err != nil {
			return err
		}
	}
	return nil
}

// actorConfig returns the settings of the actors' runtime, with the tracer of this process, which it starts if there is
// a collector. host is the name of a machine that joined.
func (r *Instance) actorConfig(c Config, host string, log *slog.Logger) (cfg actor.Config, err error) {
	if t := c.System.Telemetry; t.OTLP != "" && r.tracer == nil {
		if r.tracer, err = telemetry.NewTracer(t.OTLP, host, log); err != nil {
			return cfg, err
		}
	}
	cfg = c.ActorConfig()
	cfg.Log, cfg.Tracer, cfg.Content = log, r.tracer, c.System.Telemetry.Content
	return cfg, nil
}

// Stop stops the actors in reverse order, then the watchers and the server, and unlocks the data folder. The error is
// that of the actors; the rest is stopped in any case.
func (r *Instance) Stop(ctx context.Context) error {
	err := r.System.Stop()
	r.tracer.Close()
	r.tracer = nil
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
