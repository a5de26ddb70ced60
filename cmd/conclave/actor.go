package main

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"conclave/config"
	"conclave/subjects"
)

// actorCommand runs some actors against a server that is another process.
func (a *app) actorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "actor [names...]",
		Short: "Run some actors against an existing NATS server",
		Long: `Runs the named actors against a NATS server that is another process: a stand-alone one that conclave provision has
prepared (--server), or the one that conclave up runs. "tools" stands for every tool of this build, a tool's own name for
that tool. The keys are taken from the data folder; each actor reads only its own.

Stays until it is told to stop, and prints the same readiness line as conclave up. Without names it lists what can be
run.`,
		Example: `  conclave actor
  conclave actor tools broker --server nats://127.0.0.1:4222
  conclave actor generator --server nats://127.0.0.1:4222     as often as you like: they share the work
  conclave actor get_datetime`,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return a.runnable(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, v []string) error {
			if len(v) == 0 {
				return a.listActors()
			}
			for _, n := range v {
				if !slices.Contains(a.runnable(), n) {
					return usage("there is no actor %q%s: choose from %s", n, nearest(n, a.runnable()), strings.Join(a.runnable(), ", "))
				}
			}
			cfg, err := a.load(nil)
			if err != nil {
				return err
			}
			b, err := a.bus()
			if err != nil {
				return err
			}
			if r, err := a.home.Running(); err == nil && r.URL != b.URL {
				return fail(exitFailed, fmt.Sprintf("conclave runs on this data folder (process %d at %s), with the same anchors of the audit", r.PID, r.URL), "stop it first, or name its own address with --server")
			}
			log := a.logger(cfg.System.Level())
			var api atomic.Pointer[string]
			cfg = cfg.WithWiring(config.Wiring{Version: readBuild().Version, OnListen: func(addr string) { at := "http://" + addr; api.Store(&at) }})
			c, err := cfg.Join(cmd.Context(), a.home, b.URL, log, v...)
			if err != nil {
				return err
			}
			where := ""
			if at := api.Load(); at != nil {
				where = *at
			}
			a.ready(c, where)
			log.Info("ready", "url", c.Bus.URL, "api", where, "actors", names(c), "ms", time.Since(a.began).Milliseconds())
			return a.stay(cmd.Context(), c, log)
		},
	}
}

// runnable are the names that conclave actor takes.
func (a *app) runnable() []string { return append(slices.Clone(config.Actors), a.toolNames()...) }

// listed is one line of the list of actors.
type listed struct {
	Name string `json:"name"`
	Kind string `json:"kind"` // actor, or tool
	Text string `json:"text"`
}

func (a *app) listActors() error {
	texts := map[string]string{
		"tools": "every tool below", "broker": "the door between agents and tools", "model": "asks Ollama, or whoever has the models",
		"router": "puts questions into the order of their sessions", "generator": "answers", "memory": "remembers", "critic": "grades answers, and compares two",
		"reward": "counts what you think of answers", "secrets": "keeps credentials", subjects.RespondentB: "answers too, unseen, where it is switched on", "gateway": "HTTP, events as they happen, query.ask",
	}
	var all []listed
	for _, n := range config.Actors {
		all = append(all, listed{n, "actor", texts[n]})
	}
	for _, t := range a.settings().Tools() {
		text, _, _ := strings.Cut(strings.ReplaceAll(t.Schema().Description, "\n", " "), ". ")
		all = append(all, listed{t.Name(), "tool", text + "."})
	}
	if a.json {
		return a.document(all)
	}
	for _, l := range all {
		fmt.Fprintf(a.stdout, "%-14s %-6s %s\n", l.Name, l.Kind, l.Text)
	}
	return nil
}
