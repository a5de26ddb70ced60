package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"conclave/config"
	"conclave/pkg/actor"
	"conclave/subjects"
)

// natsFix is how to get the nats tool.
const natsFix = "go install github.com/nats-io/natscli/nats@latest"

// greeting is what the banner tells of.
type greeting struct {
	cfg      config.Config
	c        *config.Instance
	contexts string // folder of the nats contexts
	ctxErr   error  // why they could not be written
	api      string // where the gateway is; "" = nowhere
}

// banner says where everything is, what is missing and what to try. A program that reads stderr gets it as one record.
func (a *app) banner(ctx context.Context, g greeting, log *slog.Logger) {
	cfg, c, contexts, ctxErr := g.cfg, g.c, g.contexts, g.ctxErr
	took := time.Since(a.began).Round(time.Millisecond)
	assistant, list, waiting := answering(ctx, c)
	lacking := missing(cfg, c, ctxErr, assistant, g.api)
	lacking = append(lacking, a.lacks(ctx, cfg, waiting)...)
	if b := cfg.Generator.RespondentB; b.Enabled && b.Model != "" && list.Models != nil && !assistant.DemoModel && !there(list, b.Model) {
		lacking = append(lacking, lack{"the second respondent's model " + b.Model + " is not there, so it answers nothing", "conclave model pull " + b.Model})
	}
	if cfg.Generator.RespondentB.Enabled && !cfg.Critic.Enabled {
		lacking = append(lacking, lack{"the second respondent is on and the critic is off, so nobody compares their answers", "enabled: true in critic.yaml, or leave respondent_b out"})
	}
	here := names(c)
	if !isTerminal(a.stderr) {
		log.Info("ready", "url", c.Bus.URL, "data", a.home.Data, "config", a.home.Config, "contexts", contexts, "actors", here, "tools", toolNames(cfg), "api", g.api, "model", assistant.Model, "demo_model", assistant.DemoModel, "respondent_b", describeRespondentB(cfg), "ms", took.Milliseconds())
		for _, m := range lacking {
			log.Warn("missing", "what", m.what, "fix", m.fix)
		}
		return
	}
	row := func(name, text string) { a.say("  %s %s", a.paint(a.stderr, dim, fmt.Sprintf("%-8s", name)), text) }
	head := func(s string) { a.say("\n%s", a.paint(a.stderr, bold, s)) }

	a.say("%s", a.paint(a.stderr, bold, fmt.Sprintf("Conclave is ready after %d ms.", took.Milliseconds())))
	if g.api != "" {
		row("http", g.api)
	}
	row("bus", c.Bus.URL)
	row("model", shown(assistant))
	if s := describeRespondentB(cfg); s != "" {
		row("respondent B", s)
	}
	row("data", a.home.Data)
	row("config", a.home.Config+ownFiles(a.home.Config))
	row("keys", a.home.Keys().Dir)
	row("audit", filepath.Dir(a.home.Heads())+" (anchors), check with conclave audit verify"+a.again())
	if ctxErr == nil {
		row("nats", "contexts conclave and conclave-audit in "+contexts)
	}
	row("actors", fmt.Sprintf("%d of %d ready: %s", len(here), len(c.System.Actors()), strings.Join(here, ", ")))
	row("tools", strings.Join(toolNames(cfg), ", "))

	if len(lacking) > 0 {
		head("Missing")
		for _, m := range lacking {
			row("", m.what+": "+m.fix)
		}
	}
	head("Try")
	row("", "conclave ask 'What time is it in Tokyo?'"+a.again())
	row("", "conclave call get_datetime '{\"timezone\":\"UTC\"}'"+a.again())
	row("", "conclave tap"+a.again())
	row("", "nats --context conclave micro ls")
	a.say("")
}

// lack is something that is not there, and how to get it.
type lack struct{ what, fix string }

func missing(cfg config.Config, c *config.Instance, ctxErr error, assistant subjects.RoleModel, api string) (out []lack) {
	switch wanted := cfg.Models.Roles[subjects.RoleAssistant]; {
	case assistant.DemoModel:
		out = append(out, lack{"no Ollama at " + cfg.Models.Ollama.URL + ", so a built-in demo model answers and says so", "install it (https://ollama.com/download), run ollama serve, then conclave model pull " + wanted})
	case assistant.Notice != "":
		out = append(out, lack{"the assistant's model " + or(assistant.Wanted, wanted), assistant.Notice})
	case assistant.Model == "":
		out = append(out, lack{"no model answers", "conclave doctor says why"})
	}
	if _, err := exec.LookPath("nats"); err != nil {
		out = append(out, lack{"the nats tool is not on PATH", natsFix})
	}
	if ctxErr != nil {
		out = append(out, lack{"the nats contexts could not be written", ctxErr.Error()})
	}
	_, want, _ := net.SplitHostPort(cfg.System.Listen)
	if u, err := url.Parse(c.Bus.URL); err == nil && want != "0" && u.Port() != want {
		out = append(out, lack{"port " + want + " is taken by another program, so the bus is on " + u.Port(), "nothing, or choose one with --listen"})
	}
	_, want, _ = net.SplitHostPort(cfg.System.Gateway.Listen)
	if u, err := url.Parse(api); err == nil && api != "" && want != "0" && u.Port() != want {
		out = append(out, lack{"port " + want + " is taken by another program, so HTTP is on " + u.Port(), "nothing, or choose one with --api-port"})
	}
	return out
}

// lacks is what tools are missing, and what waits for the user.
func (a *app) lacks(ctx context.Context, cfg config.Config, waiting int) (out []lack) {
	if cfg.WebSearch.Provider == "searxng" {
		if l := askSearXNG(ctx, cfg.WebSearch.SearXNG.URL, time.Second); l != nil && ctx.Err() == nil {
			out = append(out, *l)
		}
	}
	switch lost, _, err := missingCredentials(ctx, cfg, a.home.Data); {
	case ctx.Err() != nil: // told to stop while it looked: nothing is known
	case err != nil:
		out = append(out, lack{"the credentials cannot be read", "conclave secret check says why"})
	case len(lost) > 0:
		out = append(out, lack{"no credential " + strings.Join(lost, ", "), "conclave secret set " + lost[0]})
	}
	if waiting > 0 {
		out = append(out, lack{waitingCalls(waiting), "conclave approve" + a.again()})
	}
	return out
}

// ownFiles says which settings are the user's own.
func ownFiles(dir string) string {
	var own []string
	for _, name := range config.Files {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			own = append(own, name)
		}
	}
	if own == nil {
		return " (empty: everything as shipped)"
	}
	return " (" + strings.Join(own, ", ") + ")"
}

// answering asks which model answers the user, and how many calls wait for an answer of the user's. Nobody is kept
// waiting for it.
func answering(ctx context.Context, c *config.Instance) (none subjects.RoleModel, list subjects.ModelList, waiting int) {
	nc, err := c.Bus.Dial("user", quickly)
	if err != nil {
		return none, list, 0
	}
	defer nc.Close()
	out, err := actor.NewOut(nc)
	if err != nil {
		return none, list, 0
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if l, err := actor.Ask(ctx, out, subjects.ApprovalListService, subjects.ApprovalQuery{}); err == nil {
		waiting = len(l.Approvals)
	}
	list, err = actor.Ask(ctx, out, subjects.ModelListService, subjects.Empty{})
	if err != nil {
		return none, list, waiting
	}
	for _, r := range list.Roles {
		if r.Role == subjects.RoleAssistant {
			return r, list, waiting
		}
	}
	return none, list, waiting
}

// shown is a role's model in words.
func shown(r subjects.RoleModel) string {
	switch {
	case r.DemoModel:
		return r.Model + ": a script, NOT a model"
	case r.Model == "":
		return "none yet"
	}
	return r.Model
}

// describeRespondentB says with what the second respondent answers, "" when there is none.
func describeRespondentB(cfg config.Config) string {
	b := cfg.Generator.RespondentB
	if !b.Enabled {
		return ""
	}
	return subjects.RespondentB + " answers every question too, unseen, with " + or(b.Model, "the assistant's model")
}

// settings is the configuration for someone who only wants to name things: where it cannot be read, the shipped one.
func (a *app) settings() config.Config {
	cfg, err := a.load(nil)
	if err != nil {
		cfg, _ = config.Load("")
	}
	return cfg
}

func (a *app) toolNames() []string { return toolNames(a.settings()) }

// toolNames are the tools that are turned on.
func toolNames(cfg config.Config) (out []string) {
	for _, t := range cfg.Tools() {
		out = append(out, t.Name())
	}
	return out
}
