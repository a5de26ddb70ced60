package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"conclave/actors/gateway"
	"conclave/config"
	"conclave/pkg/actor"
	"conclave/pkg/bus"
)

// upCommand starts everything and stays.
func (a *app) upCommand() *cobra.Command {
	var listen, sync, model, modelB, temperatureB string
	var port int
	var headless, respondentB bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the bus and every actor of this build, and stay",
		Long: `Starts the embedded NATS server, makes keys and streams where they are missing, runs every actor of this build and
stays until it is told to stop (Ctrl-C or SIGTERM): then the actors finish what they have begun, and the server stops
last. A second signal ends it at once.

It says on stderr where everything is and what is missing. When stdout is not a terminal, or with --json, it prints one
JSON line as soon as it is ready, so that a script can wait for it:

  {"url":"nats://127.0.0.1:4222","api":"http://127.0.0.1:8765","data":"/home/me/.local/share/conclave","pid":4711,
   "actors":["get_datetime","web_search","web_fetch","secrets","broker","model","memory","critic","reward","router",
   "generator","gateway"],"ready_ms":180}

With --respondent-b a second respondent answers every question too, unseen: the critic compares both answers. It uses no
tool that has an effect.

When stderr is not a terminal the log is JSON lines, and the banner is one of them.`,
		Example: `  conclave up
  conclave up --listen 127.0.0.1:0 --json     any free port, and say which
  conclave up --model qwen3:8b                another model for the assistant
  conclave up --respondent-b --model-b qwen3:8b   compare it with another one, unseen
  conclave up --sync always                   what is acknowledged survives a power cut`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.server != "" {
				return usage("conclave up runs its own server: use conclave actor %s --server %s", strings.Join(staff(a.settings()), " "), a.server)
			}
			set := map[string]string{"system.listen": listen, "system.sync": sync, "models.roles.assistant": model}
			switch {
			case respondentB:
				set["generator.respondent_b.enabled"] = "true"
				set["generator.respondent_b.model"], set["generator.respondent_b.temperature"] = modelB, temperatureB
			case modelB == "" && temperatureB == "":
			case a.settings().Generator.RespondentB.Enabled && !cmd.Flags().Changed("respondent-b"): // generator.yaml has it on
				set["generator.respondent_b.model"], set["generator.respondent_b.temperature"] = modelB, temperatureB
			default:
				return usage("--model-b and --temperature-b are for the second respondent: give --respondent-b too, or leave them out")
			}
			if cmd.Flags().Changed("api-port") {
				set["system.gateway.listen"] = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			}
			cfg, err := a.load(set)
			if err != nil {
				return err
			}
			if err := a.alone(); err != nil {
				return err
			}
			actors := staff(cfg)
			if headless {
				actors = slices.DeleteFunc(actors, func(n string) bool { return n == "gateway" })
			}
			return a.up(cmd.Context(), cfg, actors)
		},
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "", "`host:port` of the NATS server; port 0 takes a free one (system.listen)")
	f.IntVar(&port, "api-port", 0, "`port` of the HTTP interface on this machine; 0 takes a free one (system.gateway.listen)")
	f.BoolVar(&headless, "headless", false, "no HTTP interface: the bus alone")
	f.StringVar(&model, "model", "", "`name` of the assistant's model (models.roles.assistant)")
	f.BoolVar(&respondentB, "respondent-b", false, "let a second respondent answer too, unseen, for comparison (generator.respondent_b.enabled)")
	f.StringVar(&modelB, "model-b", "", "`name` of its model; the assistant's when left out (generator.respondent_b.model)")
	f.StringVar(&temperatureB, "temperature-b", "", "`number` from 0 to 2: the temperature of its model (generator.respondent_b.temperature)")
	f.StringVar(&sync, "sync", "", "how soon what is acknowledged is on the disk itself: always, or a `duration` (system.sync)")
	return cmd
}

func (a *app) up(ctx context.Context, cfg config.Config, actors []string) error {
	log := a.logger(cfg.System.Level())
	var listens atomic.Pointer[string] // a gateway that is started anew says it again, whenever that is
	wiring := config.Wiring{Version: readBuild().Version, OnListen: func(addr string) { listens.Store(&addr) }}
	c, err := cfg.WithWiring(wiring).Start(ctx, a.home, log, actors...)
	switch {
	case errors.Is(err, gateway.ErrPortTaken):
		return fail(exitFailed, err.Error(), "choose another with --api-port, --api-port 0 for any free one, or --headless for none")
	case errors.Is(err, bus.ErrPortTaken):
		return fail(exitFailed, err.Error(), "choose another with --listen, or --listen 127.0.0.1:0 for any free one")
	case err != nil && ctx.Err() != nil:
		return fail(exitFailed, "stopped while starting", "start it again")
	case err != nil:
		return err
	}
	contexts, ctxErr := bus.WriteContexts(c.Bus.Keys, c.Bus.URL)
	api := ""
	if addr := listens.Load(); addr != nil {
		api = "http://" + *addr
	}
	a.ready(c, api)
	a.banner(ctx, greeting{cfg, c, contexts, ctxErr, api}, log)
	return a.stay(ctx, c, log)
}

// readiness is the line that tells a script that it can begin.
type readiness struct {
	URL    string   `json:"url"`
	API    string   `json:"api,omitempty"`
	Data   string   `json:"data"`
	PID    int      `json:"pid"`
	Actors []string `json:"actors"`
	Millis int64    `json:"ready_ms"`
}

// ready prints that line where a program reads it.
func (a *app) ready(c *config.Instance, api string) {
	if isTerminal(a.stdout) && !a.json {
		return
	}
	_ = a.line(readiness{c.Bus.URL, api, a.home.Data, os.Getpid(), names(c), time.Since(a.began).Milliseconds()})
	// Nobody has to read it: what runs does not depend on its reader.
	a.stdout.err = nil
}

// names lists the actors that are ready.
func names(c *config.Instance) []string {
	out := []string{}
	for _, s := range c.System.Actors() {
		if state, _, _ := s.Health.Snapshot(); state == actor.Ready {
			out = append(out, s.Spec.Name)
		}
	}
	return out
}

// stay waits for the end and stops in order.
func (a *app) stay(ctx context.Context, c *config.Instance, log *slog.Logger) error {
	<-ctx.Done()
	log.Info("stopping: what was begun is finished first; once more ends it at once")
	begin := time.Now()
	if err := c.Stop(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	log.Info("stopped", "ms", time.Since(begin).Milliseconds())
	return nil
}
