package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/setup"
	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/view"
	"conclave/config"
	"conclave/pkg/bus"
	"conclave/pkg/model/ollama"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// setupFlags are the flags of conclave setup.
type setupFlags struct {
	model     string // name, auto for one that fits; "" = leave as it is
	search    string // provider; "" = leave as it is
	searchURL string // of SearXNG
	ollamaURL string // "" = leave as it is
	service   bool
	wrote     bool // a settings file was changed
}

// searchProviders are the values of --search.
var searchProviders = []string{"searxng", "brave", "tavily", "wikipedia", "none"}

// setupCommand shows what the machine has, and prepares it: on a terminal it asks about each step, with flags it asks
// nothing, so that it can run in a script.
func setupCommand(a *cli.App) *cobra.Command {
	var o setupFlags
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Prepare this machine: model, web search, service",
		Long: `Shows what this machine has (Ollama and its models, GPU, free memory, web search) and what to do
next. On a terminal it offers each step. With flags it does what they say, without questions:

--model pulls a model with Ollama, makes it the assistant's and tests it with one question and one
tool call: a name, or auto for the largest known one that fits into the free memory. --search
chooses the web search: searxng (your own; --search-url names its address, and without one it shows
how to start one in a container), brave or tavily (with a key in the keyring), wikipedia (articles
only, without a key), or none. --service installs the systemd user service.

Ollama is looked for at the address of models.yaml, and without one also at OLLAMA_HOST and where it
commonly runs. One on this machine is used; one elsewhere, such as on the host of a container, is
named, and --ollama-url uses it.

It writes models.yaml and web_search.yaml into the config folder. In a file that is there it changes
these fields only, and keeps the rest with its comments. A system that runs starts anew with the new
settings; work in progress is finished first.`,
		Example: `  conclave setup
  conclave setup --model auto --search none
  conclave setup --ollama-url http://192.168.1.20:11434
  conclave setup --model gemma3:4b --search searxng --search-url http://localhost:8888
  conclave setup --search brave && conclave secret set brave_api_key < key.txt
  conclave setup --json | jq .suggested`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.model != "" && o.model != "auto" {
				if err := cli.CheckModel(o.model); err != nil {
					return err
				}
			}
			if o.searchURL != "" && o.search != "searxng" {
				return cli.Usage("--search-url is the address of SearXNG: add --search searxng")
			}
			if err := cli.OneOf("search", o.search, searchProviders...); err != nil {
				return err
			}
			return o.run(cmd.Context(), a)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.model, "model", "", "`model` to pull and use; auto for one that fits")
	f.StringVar(&o.search, "search", "", "web search: "+strings.Join(searchProviders[:4], ", ")+" or none")
	f.StringVar(&o.searchURL, "search-url", "", "`URL` of SearXNG")
	f.StringVar(&o.ollamaURL, "ollama-url", "", "`URL` of Ollama")
	f.BoolVar(&o.service, "service", false, "install and start the systemd user service")
	cli.CompleteFlags(cmd, map[string]cli.Completion{"search": cli.Words(searchProviders...)})
	return cmd
}

// run asks on a terminal, unless flags were given, then does what the flags say, and prints what the machine has.
func (o setupFlags) run(ctx context.Context, a *cli.App) error {
	cfg, err := a.LoadConfig(nil)
	if err != nil {
		return err
	}
	m := lookAtMachine(ctx, cfg)
	if keyboard, asks := term.Keyboard(a.In); o == (setupFlags{}) && asks && term.IsTerminal(a.Err) && !a.JSON {
		m.Print(a.Err, a.Program())
		fmt.Fprintln(a.Err)
		if o, err = askSetup(ctx, a, keyboard, m); err != nil {
			return err
		}
		if o == (setupFlags{}) {
			return nil
		}
	}
	if o.model != "" && o.ollamaURL == "" && m.OnThisMachine() {
		o.ollamaURL = m.Elsewhere
	}
	if o.ollamaURL != "" {
		if err := o.changeSettings(a, "models.yaml", fileSetting{[]string{"ollama", "url"}, o.ollamaURL}); err != nil {
			return err
		}
		if cfg, err = a.LoadConfig(nil); err != nil {
			return err
		}
		m = lookAtMachine(ctx, cfg)
	}
	if o.search != "" {
		if err := o.setSearch(a); err != nil {
			return err
		}
	}
	var tested *setup.Test
	var modelErr error // the rest is done all the same
	if o.model != "" {
		tested, modelErr = o.setModel(ctx, a, cfg, m)
	}
	if err := errors.Join(modelErr, o.apply(ctx, a)); err != nil {
		return err
	}
	if cfg, err = a.LoadConfig(nil); err != nil {
		return err
	}
	m = lookAtMachine(ctx, cfg)
	m.Tested = tested
	return a.Print(m, nil, func() { m.Print(a.Out, a.Program()) })
}

// restartTimeout is how long setup waits until a running system has finished its work and starts anew.
const restartTimeout = 90 * time.Second

// apply has a running system use the changed settings, and installs the service.
func (o setupFlags) apply(ctx context.Context, a *cli.App) error {
	if r, err := a.Home.ReadRunning(); err == nil && o.wrote {
		ctx, cancel := context.WithTimeout(ctx, restartTimeout)
		defer cancel()
		switch err := a.Home.Restart(ctx); {
		case err == nil:
			a.Say("conclave has started anew with these settings")
		case errors.Is(err, bus.ErrNotRunning):
		default:
			a.Say("conclave runs with the earlier settings (process %d): restart it to use these", r.PID)
		}
	}
	if o.service {
		return installService(ctx, a, true)
	}
	return nil
}

// askSetup offers what m lacks, step by step, and returns the flags of the steps to which the user said yes.
func askSetup(ctx context.Context, a *cli.App, keyboard *os.File, m setup.Machine) (o setupFlags, err error) {
	ask := func(format string, v ...any) bool {
		yes := false
		if err == nil {
			yes, err = a.Confirm(ctx, keyboard, fmt.Sprintf(format, v...))
		}
		return yes
	}
	if m.Elsewhere != "" && ask("Ollama answers at %s. Use it?", m.Elsewhere) {
		o.ollamaURL = m.Elsewhere
		m.ListModels(ctx, m.Elsewhere)
	}
	switch {
	case !m.Ollama:
	case m.Has(m.Wanted):
		if ask("Test %s with one question and one tool call?", m.Wanted) {
			o.model = m.Wanted
		}
	case m.Best != "":
		if ask("Use %s, which Ollama has?", term.Plain(m.Best)) {
			o.model = m.Best
		}
	case m.Suggested != nil:
		if ask("Pull %s (%s) now?", m.Suggested.Name, term.Bytes(m.Suggested.Size)) {
			o.model = m.Suggested.Name
		}
	}
	if !m.SearchOK && ask("Search Wikipedia when a model searches the web? The search words go to Wikimedia.") {
		o.search = "wikipedia"
	}
	if _, running := a.Home.ReadRunning(); running != nil && canInstallService(ctx) &&
		ask("Run conclave as a service of yours, from every login on?") {
		o.service = true
	}
	return o, err
}

// lookAtMachine finds out which of the things that the settings name the machine has. Where the user has named no
// address of Ollama, it is looked for at others too.
func lookAtMachine(ctx context.Context, cfg config.Config) setup.Machine {
	var addresses []string
	if shipped, err := config.Load(""); err == nil && cfg.Models.Ollama.URL == shipped.Models.Ollama.URL {
		addresses = setup.CommonAddresses()
	}
	return setup.Look(ctx, setup.Settings{
		Addresses: addresses,
		OllamaURL: cfg.Models.Ollama.URL, Model: cfg.Models.Roles["assistant"],
		Search: cfg.WebSearch.Provider, SearXNGURL: cfg.WebSearch.SearXNG.URL,
	})
}

// setModel pulls a model unless Ollama has it, makes it the assistant's and tests it.
func (o *setupFlags) setModel(ctx context.Context, a *cli.App, cfg config.Config, m setup.Machine) (*setup.Test,
	error,
) {
	name := o.model
	switch {
	case name == "auto" && m.Suggested == nil:
		return nil, cli.Fail(cli.ExitFailed, "no known model fits into the free memory", "free some, or name one with "+
			"--model")
	case name == "auto":
		name = m.Suggested.Name
	}
	switch {
	case !m.Ollama && m.Elsewhere != "":
		return nil, cli.Fail(cli.ExitAbsent, "Ollama does not answer at "+m.OllamaURL+", but at "+m.Elsewhere,
			"add --ollama-url "+m.Elsewhere)
	case !m.Ollama:
		return nil, cli.Fail(cli.ExitAbsent, "Ollama does not answer at "+m.OllamaURL,
			"install it (https://ollama.com/download) and run ollama serve, or name its address with --ollama-url, "+
				"then try again")
	}
	if !m.Has(name) {
		if err := pullDirectly(ctx, a, m.OllamaURL, name); err != nil {
			return nil, err
		}
	}
	if cfg.Models.Roles[subjects.RoleAssistant] != name {
		if err := o.changeSettings(a, "models.yaml", fileSetting{[]string{"roles", "assistant"}, name}); err != nil {
			return nil, err
		}
	}
	a.Say("testing %s: loading it can take a minute", name)
	t := setup.TestModel(ctx, m.OllamaURL, name)
	a.Say("%s", t)
	return &t, nil
}

// setSearch chooses the web search.
func (o *setupFlags) setSearch(a *cli.App) error {
	changes := []fileSetting{{[]string{"provider"}, o.search}}
	switch {
	case o.searchURL != "":
		changes = append(changes, fileSetting{[]string{"searxng", "url"}, o.searchURL})
	case o.search == "searxng":
		a.Say("start SearXNG from the folder of the source: docker compose build searxng && docker run -d --name " +
			"searxng -p 127.0.0.1:8888:8080 conclave-searxng:local")
	case o.search == "brave", o.search == "tavily":
		a.Say("store the key: %s secret set %s_api_key", a.Program(), o.search)
	}
	return o.changeSettings(a, "web_search.yaml", changes...)
}

// fileSetting is a field of a settings file and its new value, which is text.
type fileSetting struct {
	keys  []string
	value string
}

// changeSettings changes fields of a settings file, see [config.EditFile].
func (o *setupFlags) changeSettings(a *cli.App, name string, changes ...fileSetting) error {
	changed, err := config.EditFile(a.Home.Config, name, func(data []byte, path string) (_ []byte, err error) {
		for _, c := range changes {
			if data, err = strict.SetValue(data, path, c.keys, c.value, true); err != nil {
				return nil,
					cli.Fail(cli.ExitFailed, err.Error(), fmt.Sprintf("set %s to %s in it yourself",
						strings.Join(c.keys, "."), c.value))
			}
		}
		return data, nil
	})
	if changed && err == nil {
		o.wrote = true
		a.Say("wrote %s", filepath.Join(a.Home.Config, name))
	}
	return err
}

// pullDirectly pulls a model with Ollama, without the bus, which does not run yet, and shows the progress.
func pullDirectly(ctx context.Context, a *cli.App, url, name string) error {
	b, err := ollama.New(ollama.Config{URL: url})
	if err != nil {
		return err
	}
	defer b.Close()
	progress := view.NewPullProgress(a.Streams, name)
	defer progress.Clear()
	for p, err := range b.Pull(ctx, name) {
		if err != nil {
			progress.Clear()
			return cli.Fail(cli.ExitFailed, "pulling "+name+": "+err.Error(), "what was fetched is kept; try again")
		}
		progress.Show(subjects.PullProgress{Status: p.Status, Digest: p.Digest, Total: p.Total, Completed: p.Completed})
	}
	progress.Clear()
	a.Say("%s is available", name)
	return nil
}

// showWelcome shows on the first start on a terminal what the machine has, and offers to pull a model that fits when
// Ollama has none. Everything but a clear yes goes on without.
func showWelcome(ctx context.Context, a *cli.App) error {
	keyboard, asks := term.Keyboard(a.In)
	if _, err := os.Stat(a.Home.Keys().Dir); err == nil || !asks || !term.IsTerminal(a.Err) || a.JSON {
		return nil
	}
	cfg, err := a.LoadConfig(nil)
	if err != nil {
		return err
	}
	m := lookAtMachine(ctx, cfg)
	a.Say("This is the first start here.")
	m.Print(a.Err, a.Program())
	fmt.Fprintln(a.Err)
	if !m.Missing() || m.Suggested == nil {
		return nil
	}
	yes, err := a.Confirm(ctx, keyboard, fmt.Sprintf("Pull %s (%s) now?", m.Suggested.Name,
		term.Bytes(m.Suggested.Size)))
	if err != nil || !yes {
		return err
	}
	_, err = (&setupFlags{model: m.Suggested.Name}).setModel(ctx, a, cfg, m)
	return err
}
