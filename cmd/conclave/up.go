package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/doctor"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
	"conclave/pkg/local"
	"conclave/pkg/machine"
	"conclave/subjects"
)

// upFlags are the flags of conclave up.
type upFlags struct {
	listen, sync, model, modelB, temperatureB string // "" = as configured
	port                                      int    // of HTTP, used only when the flag was given
	respondentB, headless                     bool
	pprof                                     bool // serve profiles of the process over HTTP
	busOnly                                   bool
	health                                    string // Unix socket of health checks, "" = none
}

// serverActors run in the process of the server, because they change its configuration.
var serverActors = []string{"registry"}

// upCommand starts the embedded server and every enabled actor, and stays until an interrupt. It rejects --server, and
// refuses a data folder that a stand-alone server uses.
func upCommand(a *cli.App) *cobra.Command {
	var o upFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the bus and every actor, and stay",
		Long: `Starts the embedded NATS server, creates missing keys and streams, runs every actor of this build
until Ctrl-C or SIGTERM. Then the actors finish the work in progress, and the server stops last. A
second signal stops everything at once. At SIGUSR1 it does the same and starts anew, with the
settings as they are then; conclave setup sends it.

stderr shows the addresses and what is missing. When stdout is not a terminal, or with --json, it
prints one JSON line when everything is ready, so that a script can wait for it:

  {"url":"nats://127.0.0.1:4222","api":"http://127.0.0.1:8765","data":"/home/me/.local/share/conclave","pid":4711,
   "actors":["get_datetime", ... ,"gateway"],"ready_ms":180}

With --respondent-b a second respondent answers every question too, for comparison: you do not see
its answers, the critic compares them with the assistant's. It calls no tool that has an effect.

With --pprof HTTP serves profiles and counters of the process below /debug, to requests with the
credential that everything else needs too: /debug/pprof/heap, goroutine, allocs, profile?seconds=10
and others for go tool pprof, /debug/counters as JSON.

  curl -s --unix-socket ~/.local/share/conclave/http.sock http://localhost/debug/pprof/heap >heap &&
    go tool pprof -top heap

With --bus-only it starts the server and only the actors that must be in its process; the others run
as conclave actor in other processes or containers. It writes no nats contexts then.

When stderr is a terminal, it also shows a login link for a browser, valid once and for ten minutes;
conclave open prints another. When it is not, the log is JSON lines, and there is no link in it.`,
		Example: `  conclave up
  conclave up --listen 127.0.0.1:0 --json         any free port, printed as JSON
  conclave up --model qwen3:8b                    another model for the assistant
  conclave up --respondent-b --model-b qwen3:8b   compare it with another model
  conclave up --sync always                       acknowledged messages survive a power cut`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := runUp(cmd, a, o)
			if errors.Is(err, errRestart) {
				return restartProgram()
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "", "`host:port` of the NATS server; port 0 for any free one (system.listen)")
	f.IntVar(&o.port, "api-port", 0, "`port` of HTTP on this machine; 0 for any free one (system.gateway.listen)")
	f.BoolVar(&o.headless, "headless", false, "serve the HTTP API without the page (system.gateway.page)")
	f.Bool("api", false, "")
	_ = f.MarkHidden("api") // fails for an unknown flag only
	f.StringVar(&o.model, "model", "", "`model` of the assistant (models.roles.assistant)")
	f.BoolVar(&o.respondentB, "respondent-b", false, "answer every question a second time for comparison "+
		"(generator.respondent_b.enabled)")
	f.StringVar(&o.modelB, "model-b", "", "`model` for respondent B (default: the assistant's) "+
		"(generator.respondent_b.model)")
	f.StringVar(&o.temperatureB, "temperature-b", "", "temperature for respondent B, a `number` from 0 to 2 "+
		"(generator.respondent_b.temperature)")
	f.BoolVar(&o.pprof, "pprof", false, "serve profiles and counters of the process below /debug of HTTP, on a "+
		"loopback address only")
	f.BoolVar(&o.busOnly, "bus-only", false, "start the server without the actors that can run elsewhere: see "+
		"conclave actor")
	f.StringVar(&o.health, "health", "", "Unix `socket` to create for conclave health")
	f.StringVar(&o.sync, "sync", "", "when acknowledged messages are flushed to disk: always, or a `duration` "+
		"(system.sync)")
	return cmd
}

// runUp checks the flags and runs the system, or the actors of a machine when the data folder is that of one that
// joined a hub.
func runUp(cmd *cobra.Command, a *cli.App, o upFlags) error {
	if a.Server != "" {
		return cli.Usage("conclave up runs its own server: use conclave actor %s --server %s",
			strings.Join(a.NamingConfig().EnabledActors(), " "), a.Server)
	}
	if cmd.Flags().Changed("api") {
		a.Say("--api is not needed: HTTP is always served")
	}
	set, err := o.settings(a, cmd)
	if err != nil {
		return err
	}
	cfg, err := a.LoadConfig(set)
	if err != nil {
		return err
	}
	if err := a.CheckNoStandalone(); err != nil {
		return err
	}
	if host, _, err := net.SplitHostPort(cfg.System.Gateway.Listen); o.pprof &&
		(err != nil || !local.IsLocalHost(host)) {
		return cli.Usage("--pprof serves profiles on a loopback address only, and system.gateway.listen is %s: add "+
			"--api-port, or leave --pprof out", cfg.System.Gateway.Listen)
	}
	// this data folder is that of a machine of a hub
	if _, err := machine.ReadState(a.Home); !errors.Is(err, machine.ErrNotJoined) {
		for _, name := range []string{"listen", "api-port", "headless", "pprof", "bus-only"} {
			if cmd.Flags().Changed(name) {
				return cli.Usage("--%s has no effect on a machine that joined a hub, which has neither HTTP nor a "+
					"port of its own: leave it out", name)
			}
		}
		return runMachine(cmd.Context(), a, cfg, o.health)
	}
	actors := cfg.EnabledActors()
	if o.busOnly {
		actors = slices.DeleteFunc(actors, func(n string) bool { return !slices.Contains(serverActors, n) })
	}
	return startSystem(cmd.Context(), a, cfg, actors, o)
}

// errRestart means that the system has stopped to start anew.
var errRestart = errors.New("restart")

// restartProgram replaces this process by the program with the same arguments. It returns an error only.
func restartProgram() error {
	self, err := os.Executable()
	if err == nil {
		err = syscall.Exec(self, os.Args, os.Environ())
	}
	return cli.Fail(cli.ExitFailed, "stopped, and not started again: "+err.Error(), "start it again with conclave up")
}

// settings maps the flags to settings by path; an empty value means that the flag was not given. It rejects a model or
// temperature for respondent B when that is off.
func (o upFlags) settings(a *cli.App, cmd *cobra.Command) (map[string]string, error) {
	set := map[string]string{"system.listen": o.listen, "system.sync": o.sync, "models.roles.assistant": o.model}
	enabled := o.respondentB
	if enabled {
		set["generator.respondent_b.enabled"] = "true"
	} else if o.modelB != "" || o.temperatureB != "" {
		// Without the flag, generator.yaml must have it on.
		enabled = a.NamingConfig().Generator.RespondentB.Enabled && !cmd.Flags().Changed("respondent-b")
		if !enabled {
			return nil, cli.Usage("--model-b and --temperature-b are for respondent B: add --respondent-b, or leave " +
				"them out")
		}
	}
	if enabled {
		set["generator.respondent_b.model"], set["generator.respondent_b.temperature"] = o.modelB, o.temperatureB
	}
	if o.headless {
		set["system.gateway.page"] = "false"
	}
	if cmd.Flags().Changed("api-port") {
		if o.port < 0 || o.port > 65535 {
			return nil, cli.Usage("--api-port %d: give a port from 1 to 65535, or 0 for any free one", o.port)
		}
		set["system.gateway.listen"] = net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port))
	}
	return set, nil
}

// startSystem starts the server and the named actors, prints the readiness line and the banner, and runs until ctx
// ends; then it stops in order and returns nil. A taken port, and an interrupt while starting, are errors. With
// o.busOnly there is no banner, because most actors start later in other processes.
func startSystem(ctx context.Context, a *cli.App, cfg config.Config, actors []string, o upFlags) error {
	log, closeLog := a.ServiceLogger(cfg.System.Level(), int64(cfg.System.LogMax), "up")
	defer closeLog()
	restart := make(chan os.Signal, 1)
	signal.Notify(restart, bus.RestartSignal)
	defer signal.Stop(restart)
	var api atomic.Pointer[string] // a restarted gateway sets it again
	wiring := config.Wiring{Version: readBuild().Version, OnListen: func(addr string) {
		api.Store(&addr)
	}, KeepHeads: true, Restarts: true, Profiles: o.pprof, Doctor: func(ctx context.Context) []subjects.DoctorCheck {
		cfg, err := config.Load(a.Home.Config)
		return doctor.Run(ctx, a, cfg, err)
	}}
	c, err := cfg.WithWiring(wiring).Start(ctx, a.Home, log, actors...)
	switch {
	case errors.Is(err, bus.ErrPortTaken):
		return cli.Fail(cli.ExitFailed, err.Error(), "choose another with --listen, or --listen 127.0.0.1:0 for any "+
			"free one")
	case err != nil && ctx.Err() != nil:
		return cli.Fail(cli.ExitFailed, "stopped while starting", "start it again")
	case err != nil:
		return err
	}
	if err := serveHealth(ctx, o.health, c); err != nil {
		return errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
	}
	address := gatewayAddress(&api)
	if o.busOnly {
		printReady(a, c, address)
		log.Info("ready", "url", c.Bus.URL, "data", a.Home.Data, "actors", readyActors(c), "ms",
			time.Since(a.Started).Milliseconds())
		return waitAndStop(ctx, restart, c, log)
	}
	contexts, contextsErr := writeContexts(a, c.Bus.Keys, c.Bus.URL, "")
	printReady(a, c, address)
	printBanner(ctx, a, cfg, c, view.Banner{API: address, Contexts: contexts}, contextsErr, log)
	return waitAndStop(ctx, restart, c, log)
}

// writeContexts writes the contexts of the nats tool and returns their folder.
func writeContexts(a *cli.App, keys bus.Keys, url, ca string) (string, error) {
	config, err := a.Home.NATSConfig()
	if err != nil {
		return "", err
	}
	return bus.WriteContexts(config, keys, url, ca)
}

// gatewayAddress is the URL of the gateway, "" when it does not listen because HTTP is off.
func gatewayAddress(addr *atomic.Pointer[string]) string {
	if at := addr.Load(); at != nil {
		return "http://" + *at
	}
	return ""
}

// readiness is the line that tells a script that the system is ready.
type readiness struct {
	URL    string   `json:"url"`
	API    string   `json:"api,omitempty"`
	Data   string   `json:"data"`
	PID    int      `json:"pid"`
	Actors []string `json:"actors"`
	Millis int64    `json:"ready_ms"`
}

// printReady prints the readiness line when stdout is no terminal, or with --json; api may be "". A failed write does
// not stop the system and is forgotten.
func printReady(a *cli.App, c *config.Instance, api string) {
	if term.IsTerminal(a.Out) && !a.JSON {
		return
	}
	_ = a.PrintLine(readiness{
		c.Bus.URL, api, a.Home.Data, os.Getpid(), readyActors(c),
		time.Since(a.Started).Milliseconds(),
	})
	a.Out.Err = nil
}

// readyActors names the actors that are ready now; the result is never nil, because it is printed as JSON.
func readyActors(c *config.Instance) []string {
	out := []string{}
	for _, s := range c.System.Actors() {
		if state, _, _ := s.Health.Snapshot(); state == actor.Ready {
			out = append(out, s.Spec.Name)
		}
	}
	return out
}

// waitAndStop waits for the end of ctx or for a signal of restart, then stops the actors and the server after running
// work is finished. It returns errors of stopping, and [errRestart] after the signal, nil when ctx ended.
func waitAndStop(ctx context.Context, restart <-chan os.Signal, c *config.Instance, log *slog.Logger) error {
	var then error
	select {
	case <-ctx.Done():
		log.Info("stopping after running work is finished; interrupt again to stop at once")
	case <-restart:
		then = errRestart
		log.Info("restarting after running work is finished")
	}
	begin := time.Now()
	if err := c.Stop(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	log.Info("stopped", "ms", time.Since(begin).Milliseconds())
	if ctx.Err() != nil { // interrupted meanwhile
		return nil
	}
	return then
}

// printBanner prints the addresses, problems and commands to try. b has API and Contexts set; the rest is filled in
// here. A stderr that is no terminal gets log records instead. contextsErr is the error of writing the nats contexts,
// which is only a problem in the list. It waits two seconds at most for what it asks.
func printBanner(ctx context.Context, a *cli.App, cfg config.Config, c *config.Instance, b view.Banner,
	contextsErr error, log *slog.Logger,
) {
	b.Took = time.Since(a.Started)
	list, problems := doctor.CheckStart(ctx, a, cfg, c.Bus)
	b.Problems = append(describePorts(cfg, c, b.API), problems...)
	if contextsErr != nil {
		b.Contexts, b.Problems = "", append(b.Problems, doctor.Check{
			Name: "contexts", Text: "the nats contexts could not be written",
			Fix: contextsErr.Error(),
		})
	}
	var assistant subjects.RoleModel
	for _, r := range list.Roles {
		if r.Role == subjects.RoleAssistant {
			assistant = r
		}
	}
	b.URL, b.Ready, b.Actors, b.Tools = c.Bus.URL, readyActors(c), len(c.System.Actors()), listTools(cfg, a.Home)
	if r := cfg.Generator.RespondentB; r.Enabled {
		b.RespondentB = "answers every question for comparison, with " + cmp.Or(r.Model, "the assistant's model")
	}
	if !term.IsTerminal(a.Err) {
		log.Info("ready", "url", b.URL, "data", a.Home.Data, "config", a.Home.Config, "contexts", b.Contexts, "actors",
			b.Ready, "tools", b.Tools, "api", b.API,
			"model", assistant.Model, "demo_model", assistant.DemoModel, "respondent_b", b.RespondentB, "ms",
			b.Took.Milliseconds())
		for _, p := range b.Problems {
			log.Warn("missing", "what", p.Name+": "+p.Text, "fix", p.Fix)
		}
		return
	}
	b.Model = cmp.Or(assistant.Model, "none yet")
	if assistant.DemoModel {
		b.Model = assistant.Model + ": the built-in demo model, not a language model"
	}
	b.Data, b.Config, b.Keys = a.Home.Data, a.Home.Config+doctor.OwnFiles(a.Home.Config), a.Home.Keys().Dir
	b.Audit = filepath.Dir(a.Home.Heads()) + " (anchors), verify with conclave audit verify" + a.FolderFlags()
	b.Flags = a.FolderFlags()
	if b.API != "" { // a terminal only: a log must not contain credentials
		if link, err := requestLoginLink(ctx, a, cfg); err == nil {
			b.Login = link.URL
		} else {
			b.Problems = append(b.Problems, doctor.Check{Name: "login", Text: "no link", Fix: err.Error()})
		}
	}
	b.Print(a.Err)
}

// listTools returns the tools of this build, with a note at those that are disabled, and those that the user added.
func listTools(cfg config.Config, home bus.Home) (out []string) {
	for _, t := range cfg.Tools() {
		name := t.Name()
		if t.Disabled() != "" {
			name += " (off)"
		}
		out = append(out, name)
	}
	principals, _ := home.ReadPrincipals() // the start has read them
	for _, p := range principals {
		if p.Kind == subjects.ToolPrincipal {
			out = append(out, p.Tools...)
		}
	}
	return out
}

// describePorts lists the ports that differ from the wanted ones; api is "" without HTTP.
func describePorts(cfg config.Config, c *config.Instance, api string) (out []doctor.Check) {
	for _, p := range []struct{ name, listen, actual, flag string }{
		{"the bus", cfg.System.Listen, c.Bus.URL, "--listen"}, {"HTTP", cfg.System.Gateway.Listen, api, "--api-port"},
	} {
		_, want, _ := net.SplitHostPort(p.listen)
		if u, err := url.Parse(p.actual); err == nil && p.actual != "" && want != "0" && u.Port() != want {
			out = append(out, doctor.Check{
				Name: "port " + want, Text: "used by another program, so " + p.name + " is on " + u.Port(),
				Fix: "nothing, or choose a port with " + p.flag,
			})
		}
	}
	return out
}
