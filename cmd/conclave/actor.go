package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/config"
	"conclave/subjects"
)

// actorCommand runs some actors against a server in another process, or lists them without names. An unknown name is a
// usage error.
func actorCommand(a *cli.App) *cobra.Command {
	var health string
	cmd := &cobra.Command{
		Use:   "actor [names...]",
		Short: "Run some actors against an existing NATS server",
		Long: `Runs the named actors against a NATS server in another process: a stand-alone one that conclave
provision has prepared (--server), or the one of conclave up. "tools" stands for every tool of this
build; a single tool is run by its name. Each actor reads only its own key from the data folder.

It runs until Ctrl-C or SIGTERM, and prints the same readiness line as conclave up. Without names it
lists the actors.`,
		Example: `  conclave actor
  conclave actor tools broker --server nats://127.0.0.1:4222
  conclave actor generator --server nats://127.0.0.1:4222     several share the work
  conclave actor get_datetime`,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return runnableActors(a), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, names []string) error {
			if len(names) == 0 {
				return listActors(a)
			}
			runnable := runnableActors(a)
			for _, n := range names {
				if !slices.Contains(runnable, n) {
					return cli.Usage("unknown actor %q%s: choose from %s", n, cli.Nearest(n, runnable),
						strings.Join(runnable, ", "))
				}
			}
			return runActors(cmd, a, health, names)
		},
	}
	cmd.Flags().StringVar(&health, "health", "", "Unix `socket` to create for conclave health")
	return cmd
}

// runActors runs the named actors against the server of --server or of conclave up until ctx ends. It refuses when
// conclave up runs on this data folder with another server: both would write the same audit anchors. names must be
// known; health is the socket of health checks, "" for none.
func runActors(cmd *cobra.Command, a *cli.App, health string, names []string) error {
	cfg, err := a.LoadConfig(nil)
	if err != nil {
		return err
	}
	b, err := a.Bus()
	if err != nil {
		return err
	}
	if r, err := a.Home.ReadRunning(); err == nil && r.URL != b.URL {
		return cli.Fail(cli.ExitFailed, fmt.Sprintf("conclave runs on this data folder (process %d at %s) and uses "+
			"the same audit anchors", r.PID, r.URL), "stop it first, or name its address with --server")
	}
	log, closeLog := a.ServiceLogger(cfg.System.Level(), int64(cfg.System.LogMax), "actor")
	defer closeLog()
	var listen atomic.Pointer[string]
	cfg = cfg.WithWiring(config.Wiring{Version: readBuild().Version, OnListen: func(addr string) {
		listen.Store(&addr)
	}})
	c, err := cfg.Join(cmd.Context(), a.Home, b.URL, log, names...)
	if err != nil {
		return err
	}
	if err := serveHealth(cmd.Context(), health, c); err != nil {
		return errors.Join(err, c.Stop(context.WithoutCancel(cmd.Context())))
	}
	api := gatewayAddress(&listen)
	printReady(a, c, api)
	log.Info("ready", "url", c.Bus.URL, "api", api, "actors", readyActors(c), "ms",
		time.Since(a.Started).Milliseconds())
	return waitAndStop(cmd.Context(), nil, c, log)
}

// runnableActors are the names that conclave actor accepts: the actors of this build and the enabled tools.
func runnableActors(a *cli.App) []string {
	return append(slices.Clone(config.Actors), a.NamingConfig().ToolNames()...)
}

// actorTexts describe the actors.
var actorTexts = map[string]string{
	subjects.Registry: "keeps the accounts that you add", "tools": "every tool below",
	"broker": "authorizes every tool call", "model": "serves the language models",
	"router": "orders the questions of a session", "generator": "answers", "memory": "remembers",
	"critic": "grades and compares answers",
	"reward": "counts your feedback", subjects.Committee: "personas deliberate and answer",
	subjects.Orchestrator: "plans tasks and runs agents", "secrets": "serves credentials",
	subjects.RespondentB: "answers for comparison, where enabled", "gateway": "HTTP, server-sent events, query.ask",
	subjects.MCP: "connects MCP servers", subjects.Scheduler: "says when schedules are due",
}

// listActors prints the actors and enabled tools of this build, whether they run or not.
func listActors(a *cli.App) error {
	type listed struct {
		Name string `json:"name"`
		Kind string `json:"kind"` // actor, tool
		Text string `json:"text"`
	}
	var all []listed
	for _, n := range config.Actors {
		all = append(all, listed{n, "actor", actorTexts[n]})
	}
	for _, t := range a.NamingConfig().Tools() {
		text, _, _ := strings.Cut(strings.ReplaceAll(t.Schema().Description, "\n", " "), ". ")
		all = append(all, listed{t.Name(), "tool", text + "."})
	}
	return a.Print(all, nil, func() {
		for _, l := range all {
			fmt.Fprintf(a.Out, "%-14s %-6s %s\n", l.Name, l.Kind, l.Text)
		}
	})
}
