package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"conclave/config"
)

// Levels of a check.
const (
	levelOK   = "ok"
	levelWarn = "warn"
	levelFail = "fail"
)

// check is one look at one thing.
type check struct {
	Name  string `json:"name"`
	Level string `json:"level"`
	Text  string `json:"text"`
	Fix   string `json:"fix,omitempty"`
}

// examination collects checks.
type examination struct {
	*app
	checks []check
}

func (x *examination) ok(name, format string, v ...any) {
	x.checks = append(x.checks, check{name, levelOK, fmt.Sprintf(format, v...), ""})
}

func (x *examination) warn(name, fix, format string, v ...any) {
	x.checks = append(x.checks, check{name, levelWarn, fmt.Sprintf(format, v...), fix})
}

func (x *examination) fail(name, fix, format string, v ...any) {
	x.checks = append(x.checks, check{name, levelFail, fmt.Sprintf(format, v...), fix})
}

// failed counts what must be mended.
func (x *examination) failed() (n int) {
	for _, c := range x.checks {
		if c.Level == levelFail {
			n++
		}
	}
	return n
}

// doctorCommand looks at everything and says how to mend it.
func (a *app) doctorCommand() *cobra.Command {
	var verbose bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check everything, with a fix for each finding",
		Long: `Looks at the folders, keys, configuration, manifest, keyring, disk, the running system, its streams, actors and audit,
who grades answers, what memory holds and which way it searches, calls that wait for you, the nats tool and its contexts. It asks your SearXNG whether it can be searched, without searching,
and an Ollama on this machine whether it may use its cloud. It opens no keyring but encrypted files, and of those it reads
the names alone. One line each: ok, warn or fail, and the fix. It changes nothing.

With --verbose it also lists every setting and where its value came from. Ends with exit code 1 if anything failed.`,
		Example: `  conclave doctor
  conclave doctor --verbose
  conclave doctor --json | jq '.checks[] | select(.level != "ok")'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context(), verbose) },
	}
	cmd.Flags().BoolVar(&verbose, "verbose", false, "also list every setting and where it came from")
	return cmd
}

// setting is a value and where it came from.
type setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
}

func (a *app) doctor(ctx context.Context, verbose bool) error {
	x := &examination{app: a}
	x.clock()
	x.folders()
	x.keys()
	cfg, err := config.Load(a.home.Config)
	if err != nil {
		x.fail("config", "correct the file, or take it away to get what is shipped", "%s", oneLine(err.Error()))
	} else {
		x.ok("config", "valid%s", ownFiles(a.home.Config))
		x.manifest(cfg)
		x.ringLook(cfg)
		x.credentials(ctx, cfg)
		x.web(ctx, cfg)
		x.cloud(ctx, cfg.Models.Ollama)
	}
	x.environment()
	x.disk()
	x.anchors()
	x.tools()
	x.system(ctx)

	var settings []setting
	if verbose && err == nil {
		for _, s := range cfg.Explain() {
			settings = append(settings, setting(s))
		}
	}
	if a.json {
		err := a.document(struct {
			OK       bool      `json:"ok"`
			Checks   []check   `json:"checks"`
			Settings []setting `json:"settings,omitempty"`
		}{x.failed() == 0, x.checks, settings})
		if err != nil {
			return err
		}
	} else {
		x.print(settings)
	}
	if n := x.failed(); n > 0 {
		return fail(exitFailed, fmt.Sprintf("%d of %d checks failed", n, len(x.checks)), "follow the fixes above")
	}
	return nil
}

func (x *examination) print(settings []setting) {
	colours := map[string]string{levelOK: green, levelWarn: yellow, levelFail: red}
	for _, c := range x.checks {
		text := c.Text
		if c.Fix != "" {
			text += ": " + c.Fix
		}
		fmt.Fprintf(x.stdout, "%s  %-10s %s\n", x.paint(x.stdout, colours[c.Level], fmt.Sprintf("%-4s", c.Level)), c.Name, plain(text))
	}
	if len(settings) == 0 {
		return
	}
	fmt.Fprintln(x.stdout)
	for _, s := range settings {
		fmt.Fprintf(x.stdout, "%-44s %-40s %s\n", s.Key, plain(s.Value), x.paint(x.stdout, dim, s.Origin))
	}
}
