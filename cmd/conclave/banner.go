package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"conclave/actors/tools"
	"conclave/config"
)

// natsFix is how to get the nats tool.
const natsFix = "go install github.com/nats-io/natscli/nats@latest"

// banner says where everything is, what is missing and what to try. A program that reads stderr gets it as one record.
func (a *app) banner(cfg config.Config, c *config.Conclave, log *slog.Logger, contexts string, ctxErr error) {
	took := time.Since(a.began).Round(time.Millisecond)
	here := names(c)
	if !isTerminal(a.stderr) {
		log.Info("ready", "url", c.Bus.URL, "data", a.home.Data, "config", a.home.Config, "contexts", contexts, "actors", here, "tools", toolNames(), "ms", took.Milliseconds())
		for _, m := range missing(cfg, c, ctxErr) {
			log.Warn("missing", "what", m.what, "fix", m.fix)
		}
		return
	}
	row := func(name, text string) { a.say("  %s %s", a.paint(a.stderr, dim, fmt.Sprintf("%-8s", name)), text) }
	head := func(s string) { a.say("\n%s", a.paint(a.stderr, bold, s)) }

	a.say("%s", a.paint(a.stderr, bold, fmt.Sprintf("Conclave is ready after %d ms.", took.Milliseconds())))
	row("bus", c.Bus.URL)
	row("data", a.home.Data)
	row("config", a.home.Config+ownFiles(a.home.Config))
	row("keys", a.home.Keys().Dir)
	row("audit", filepath.Dir(a.home.Heads())+" (anchors), check with conclave audit verify"+a.again())
	if ctxErr == nil {
		row("nats", "contexts conclave and conclave-audit in "+contexts)
	}
	row("actors", fmt.Sprintf("%d of %d ready: %s", len(here), len(c.House.Actors()), strings.Join(here, ", ")))
	row("tools", strings.Join(toolNames(), ", "))

	if m := missing(cfg, c, ctxErr); len(m) > 0 {
		head("Missing")
		for _, m := range m {
			row("", m.what+": "+m.fix)
		}
	}
	head("Try")
	row("", "conclave call get_datetime '{\"timezone\":\"UTC\"}'"+a.again())
	row("", "conclave tap"+a.again())
	row("", "nats --context conclave micro ls")
	a.say("")
}

// lack is something that is not there, and how to get it.
type lack struct{ what, fix string }

func missing(cfg config.Config, c *config.Conclave, ctxErr error) (out []lack) {
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
	return out
}

// ownFiles says which settings are the person's own.
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

// toolNames are the tools of this build.
func toolNames() (out []string) {
	for _, t := range tools.All() {
		out = append(out, t.Name())
	}
	return out
}
