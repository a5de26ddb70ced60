// Package harness runs a story on a complete system of its own: a temporary data folder, a server with its own keys and
// ports, every actor, and a model server that replies by the story's script. Nothing in a story reaches the user's
// keyring or another machine, except for the models of a live run.
package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"go.yaml.in/yaml/v3"

	"conclave/actors/tools"
	"conclave/config"
	"conclave/pkg/bus"
	"conclave/pkg/client"
	"conclave/pkg/keyring"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/sandbox"
	"conclave/pkg/seal"
	"conclave/pkg/story"
	"conclave/pkg/strict"
	"conclave/pkg/webclient"
	"conclave/subjects"
)

// Harness is the system of one story. It implements [story.System] with the user's account.
type Harness struct {
	instance *config.Instance
	model    *scriptserver.Server // nil with a real model
	web      *webServer           // nil without pages
	dir      string
	nc       *nats.Conn
	user     *client.Client
	watching sync.WaitGroup

	mu          sync.Mutex
	stored      []story.Event            // of the event log, as far as it was read
	questions   []story.Event            // kept in a stream that the user's account cannot read
	unconfirmed map[string]chan struct{} // closed when the stored copy of a question arrives, by query id
	subscribers []chan story.Event
}

// Options change how a story runs; the zero value uses the scripted model.
type Options struct {
	Live   bool   // use the models of the configuration in place of the script
	Config string // with Live: the user's config folder; "" = the shipped configuration
	Data   string // data folder, which is created; "" = a temporary one
	Log    *slog.Logger
}

// RunStory runs one story on a harness of its own. A harness that cannot be started or stopped is a failure of the
// result. A story is skipped on a machine without a program that it needs. A live run skips a story that is only for
// scripted models, and one that needs an ability that the assistant's model lacks.
func RunStory(ctx context.Context, s *story.Story, o Options, opts story.Options) (result story.Result) {
	opts.Live = o.Live
	if o.Live && s.ScriptedOnly {
		return story.Run(ctx, s, nil, opts) // reports the story as skipped
	}
	for _, program := range s.Programs {
		if err := checkProgram(ctx, program); err != nil {
			return story.Skipped(s, err.Error())
		}
	}
	h, err := Open(ctx, s, o)
	if err != nil {
		return story.Failed(s, err)
	}
	defer func() {
		if err := h.Close(context.WithoutCancel(ctx)); err != nil && result.OK() {
			result = story.Failed(s, err)
		}
	}()
	if o.Live && len(s.Needs) > 0 {
		m, err := h.assistant(ctx)
		if err != nil {
			return story.Failed(s, err)
		}
		if need := s.Lacks(m); need != "" {
			return story.Skipped(s, fmt.Sprintf("it needs %s, which %s lacks", need, m.Model))
		}
	}
	return story.Run(ctx, s, h, opts)
}

// checkProgram returns why a program cannot be used on this machine, and how to change that; nil = it can. bwrap must
// hold what the sandbox promises.
func checkProgram(ctx context.Context, name string) error {
	if name == "bwrap" {
		return sandbox.SelfTest(ctx)
	}
	if _, err := exec.LookPath(name); err != nil {
		return fmt.Errorf("%w; install it", err)
	}
	return nil
}

// assistant returns the model of the assistant.
func (h *Harness) assistant(ctx context.Context) (subjects.RoleModel, error) {
	list, err := h.user.Models(ctx)
	if err != nil {
		return subjects.RoleModel{}, fmt.Errorf("asking for the abilities of the model: %w", err)
	}
	for _, m := range list.Roles {
		if m.Role == subjects.RoleAssistant {
			return m, nil
		}
	}
	return subjects.RoleModel{}, errors.New("the model actor has no model of the assistant")
}

// Open starts the system of a story in a temporary folder: all actors, and the scripted model and web servers it needs.
// The caller must close it; after an error it is closed already.
func Open(ctx context.Context, s *story.Story, o Options) (_ *Harness, err error) {
	h := &Harness{unconfirmed: map[string]chan struct{}{}}
	defer func() {
		if err != nil {
			_ = h.Close(context.WithoutCancel(ctx))
		}
	}()
	if h.dir, err = os.MkdirTemp("", "conclave-story-"); err != nil {
		return nil, fmt.Errorf("creating the folder of a story: %w", err)
	}
	c, err := h.configure(s, o)
	if err != nil {
		return nil, err
	}
	home := bus.Home{Data: cmp.Or(o.Data, filepath.Join(h.dir, "data")), Config: filepath.Join(h.dir, "config")}
	if h.instance, err = c.Start(ctx, home, o.Log); err != nil {
		return nil, err
	}
	if err := storeCredentials(ctx, c, home, s.Credentials); err != nil {
		return nil, err
	}
	if err := h.instance.Run(ctx, c, home, o.Log, config.Actors...); err != nil {
		return nil, err
	}
	return h, h.connect(ctx)
}

// storeCredentials stores the story's credentials in the keyring of the harness, by name. Without any it opens none.
func storeCredentials(ctx context.Context, c config.Config, home bus.Home, credentials map[string]string) error {
	if len(credentials) == 0 {
		return nil
	}
	ring, _, err := keyring.Open(ctx, c.Secrets.Ring(home.Data))
	if err != nil {
		return fmt.Errorf("opening the keyring of the story: %w", err)
	}
	for _, name := range strict.SortedKeys(credentials) {
		if err := ring.Set(ctx, name, seal.NewSecret([]byte(credentials[name]))); err != nil {
			return fmt.Errorf("storing credential %s: %w", name, err)
		}
	}
	return nil
}

// Close stops the system and removes its folder, also of a harness that was started in part. It returns all errors.
func (h *Harness) Close(ctx context.Context) error {
	var errs []error
	if h.nc != nil {
		h.nc.Close()
		h.watching.Wait()
	}
	if h.instance != nil {
		errs = append(errs, h.instance.Stop(ctx))
	}
	if h.model != nil {
		h.model.Close()
	}
	if h.web != nil {
		h.web.close()
	}
	if h.dir != "" {
		errs = append(errs, os.RemoveAll(h.dir))
	}
	return errors.Join(errs...)
}

// unusedURL is an address at which no server listens.
const unusedURL = "http://127.0.0.1:1"

// configure returns the configuration of the story: the shipped or, when live, the user's one, overlaid with the
// settings of every harness and then with those of the story. It rejects settings that would leave the harness; errors
// in the story have its file and line. It starts the servers of [Harness.ownSettings].
func (h *Harness) configure(s *story.Story, o Options) (config.Config, error) {
	dir := ""
	if o.Live {
		dir = o.Config
	}
	c, err := config.Load(dir)
	if err != nil {
		return config.Config{}, err
	}
	own := h.ownSettings(s, o)
	for _, name := range strict.SortedKeys(own) {
		if err := overlaySection(&c, filepath.Join(h.dir, "harness"), name, own[name]); err != nil {
			return config.Config{}, err
		}
	}
	locate := func(path string, err error) error {
		return &strict.Error{File: s.File(), Line: s.Line(path), Path: path, Text: err.Error()}
	}
	for _, name := range strict.SortedKeys(s.Config) {
		if err := overlaySection(&c, filepath.Join(h.dir, "story"), name, s.Config[name]); err != nil {
			return config.Config{}, locate(strict.JoinPath("config", name), err)
		}
	}
	if o.Live {
		c.Generator.RespondentB.Model = "" // a story names models of its script; the assistant's answers for both
	}
	if s.Manifest != nil {
		if err := overlaySection(&c, filepath.Join(h.dir, "story"), "manifest", s.Manifest); err != nil {
			return config.Config{}, locate("manifest", err)
		}
	}
	if path, err := h.checkIsolation(c, s); err != nil {
		return config.Config{}, locate(path, err)
	}
	if c.WebFetch.Enabled {
		c = c.WithWiring(config.Wiring{Web: h.webClient()})
	}
	return c, nil
}

// ownSettings returns the settings of every harness, by section, and starts the web and model servers that they name. A
// live run has no scripted model server, and keeps the user's settings of models, memory and critic. [Harness.Close]
// stops the servers.
func (h *Harness) ownSettings(s *story.Story, o Options) map[string]map[string]any {
	own := map[string]map[string]any{
		// Free ports, and a short drain for actors that a story makes hang.
		"system": {
			"listen": "127.0.0.1:0", "gateway": map[string]any{"listen": "127.0.0.1:0"},
			"actor": map[string]any{"drain": "2s"},
		},
		"secrets":    {"backend": keyring.File},
		"web_search": {"provider": "none"},
		"web_fetch":  {"enabled": false},
	}
	if s.Web != nil {
		h.web = startWeb(s.Web.Pages, h.publish)
		own["web_search"], own["web_fetch"] = h.web.settings()
	}
	if o.Live {
		return own
	}
	// Memory and the critic use models of their own, for which most stories have no script.
	own["memory"] = map[string]any{"model": false}
	own["critic"] = map[string]any{"enabled": s.Model[subjects.RoleCritic] != nil}
	modelURL := unusedURL
	if !s.Server.Down {
		h.model = scriptserver.Start(buildScript(s), withModels(s), withKey(s))
		modelURL = h.model.URL
	}
	own["models"] = modelSettings(s, modelURL)
	return own
}

// checkIsolation rejects a configuration with which a story could reach the user's keyring or another machine, and
// returns the field of the story that causes it, "" when there is none. Real models are the user's own choice.
func (h *Harness) checkIsolation(c config.Config, s *story.Story) (path string, err error) {
	key := map[string]string{"brave": c.WebSearch.Brave.Key, "tavily": c.WebSearch.Tavily.Key}[c.WebSearch.Provider]
	for name := range s.Credentials {
		if key != "" && strings.Contains(key, " "+name+"}") {
			return "credentials", fmt.Errorf("with the key %s a search would leave this machine; give the story "+
				"pages under web instead", name)
		}
	}
	switch {
	case c.Secrets.Backend != keyring.File:
		return "config.secrets", fmt.Errorf("a story uses the keyring %s, never the user's own", keyring.File)
	case c.WebSearch.Provider == "searxng" && (h.web == nil || c.WebSearch.SearXNG.URL != h.web.url()):
		return "config.web_search", errors.New("a search would leave the story; give the story pages under web instead")
	}
	return "", nil
}

// webClient returns a client that reaches the pages of the story and nothing else. It has no cache, so that every
// request for a page is counted.
func (h *Harness) webClient() *webclient.Client {
	hosts := map[string]netip.AddrPort{}
	if h.web != nil {
		for _, p := range h.web.pages {
			if u, err := url.Parse(p.URL); err == nil {
				hosts[u.Hostname()] = h.web.addr
			}
		}
	}
	return webclient.NewStaged(webclient.Config{Version: tools.Version}, hosts)
}

// overlaySection overlays c with the section name, as if its file were in a config folder: content is fields, or the
// text of the file. It writes the file below dir. After an error c must not be used.
func overlaySection(c *config.Config, dir, name string, content any) error {
	text, whole := content.(string)
	if !whole {
		fields, err := yaml.Marshal(content)
		if err != nil {
			return err
		}
		text = string(fields)
	}
	dir = filepath.Join(dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(text), 0o600); err != nil {
		return err
	}
	return c.Overlay(dir)
}
