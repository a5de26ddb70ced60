package model

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"conclave/pkg/firewall"
	"conclave/pkg/local"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Names of the servers that models come from.
const (
	Ollama    = "ollama"
	OpenAI    = "openai"
	Anthropic = "anthropic"
	Google    = "google"
)

// Values of [Config.DemoModel].
const (
	DemoAuto   = "auto"   // it answers while Ollama has not been reachable since the start
	DemoNever  = "never"  // an unreachable Ollama is an error
	DemoAlways = "always" // it answers even if Ollama is reachable
)

// Roles that the system knows.
var Roles = []string{
	subjects.RoleAssistant, subjects.RoleCoder, subjects.RoleCritic, subjects.RoleEmbeddings,
	subjects.RoleOrchestrator, subjects.RoleResearcher, subjects.RoleSummaries, subjects.RoleTools,
}

// improvements says what a model of its own improves, for the roles of [Config.Optional].
var improvements = map[string]string{
	subjects.RoleCritic:     "no model grades its own answers",
	subjects.RoleEmbeddings: "memory also finds entries by meaning, not only by words",
}

// Config is the model actor's section: the models by role, and their servers. Its defaults are in the shipped
// models.yaml; servers that are off there have the defaults of this file.
type Config struct {
	Roles    map[string]string  `yaml:"roles"`    // role -> model; none or "" = the assistant's
	Hints    map[string]string  `yaml:"hints"`    // simple, reasoning, code -> model, for roles without a model
	Keep     []string           `yaml:"keep"`     // roles whose models stay loaded
	Defaults Options            `yaml:"defaults"` // for models that are not in Models
	Models   map[string]Options `yaml:"models"`   // model -> options that differ from Defaults

	Remote    []string `yaml:"allow_remote"` // models that may leave this machine, by name
	DemoModel string   `yaml:"demo_model"`   // auto, never, always

	Ollama    Server  `yaml:"ollama"`
	OpenAI    *Server `yaml:"openai"` // nil = off, here and below
	Anthropic *Server `yaml:"anthropic"`
	Google    *Server `yaml:"google"`

	// Not in the file.
	AuditTimeout  time.Duration // for storing one audit record
	MeasuredFile  string        // where what was measured of models is kept; "" = nowhere
	CallTestDelay time.Duration // after its first use, before a model's tool calls are tested; 0 = 30 seconds
	// AgentType returns the agent type of an account for the audit log, see [policy.ActiveRules.AgentType]; nil = not
	// recorded.
	AgentType func(account string) string
	Link      LinkTimes
	InUse     []string // roles that the enabled actors request, in the order of [Roles]; nil = every role in Roles
	Optional  []string // roles whose missing model is no problem for the user, who did not choose it
}

// Options are the options of every request to a model. Window and KeepAlive never vary: with another value the server
// would load the model again.
type Options struct {
	// context in tokens; the zero value of each field = the default
	Window      int             `yaml:"window,omitempty"`
	Predict     int             `yaml:"predict,omitempty"`     // most tokens of an answer; a request may ask for less
	KeepAlive   string          `yaml:"keep_alive,omitempty"`  // how long it stays loaded: 5m, or -1 for ever
	Temperature *strict.Decimal `yaml:"temperature,omitempty"` // unless a request has one; nil = the model's own
	Stream      *bool           `yaml:"stream,omitempty"`      // replies are streamed
	Small       *bool           `yaml:"small,omitempty"`       // it may run beside a large one
	// how it calls tools: auto, native, constrained; "" = auto
	Calls string `yaml:"calls,omitempty"`
	// it reads images; nil = as its server reports, and false where it does not
	Vision *bool `yaml:"vision,omitempty"`
	Grades *bool `yaml:"grades,omitempty"` // it was made to grade; see [Model.listCandidates]
	// Prefixes that an embedding model was trained with, before a query and before a text that is searched.
	QueryPrefix    string `yaml:"query_prefix,omitempty"`
	DocumentPrefix string `yaml:"document_prefix,omitempty"`
}

// WithDefaults returns o with its unset fields taken from defaults.
func (o Options) WithDefaults(defaults Options) Options {
	return Options{
		Window: cmp.Or(o.Window, defaults.Window), Predict: cmp.Or(o.Predict, defaults.Predict),
		KeepAlive:   cmp.Or(o.KeepAlive, defaults.KeepAlive),
		Temperature: cmp.Or(o.Temperature, defaults.Temperature), Stream: cmp.Or(o.Stream, defaults.Stream),
		Small: cmp.Or(o.Small, defaults.Small), Calls: cmp.Or(o.Calls, defaults.Calls),
		Vision: cmp.Or(o.Vision, defaults.Vision), Grades: cmp.Or(o.Grades, defaults.Grades),
		QueryPrefix: cmp.Or(o.QueryPrefix, defaults.QueryPrefix), DocumentPrefix: cmp.Or(o.DocumentPrefix,
			defaults.DocumentPrefix),
	}
}

// Server is the address and the limits of a model server.
type Server struct {
	URL string `yaml:"url"`
	// the URL is this machine, although its host does not say so; for Ollama only
	Local bool   `yaml:"this_machine"`
	Key   string `yaml:"key"` // name of its key in the keyring; "" = none
	// concurrent requests, counted apart for large models, small ones and embeddings
	Slots int `yaml:"slots"`
	// requests sent beyond slots, so that the server has its next one at hand
	Ahead     int  `yaml:"ahead"`
	Queue     int  `yaml:"queue"`     // foreground requests that wait; further ones are rejected as busy
	Exclusive bool `yaml:"exclusive"` // two large models never run at once, and see [Model.checkSwap]
	Batch     int  `yaml:"batch"`     // requests for one model in a row while others wait for another model
}

// RemoteHost returns the host of a server on another machine, "" for this machine. Every name but localhost counts as
// another machine, because name resolution is outside of this system's control, unless the user says that it is this
// machine; so does a URL that cannot be parsed.
func (s Server) RemoteHost() string {
	if s.Local {
		return ""
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		return s.URL
	}
	if host := u.Hostname(); !local.IsLocalHost(host) {
		return host
	}
	return ""
}

// Servers returns the configured servers by name; Ollama is always one of them.
func (c Config) Servers() map[string]Server {
	all := map[string]Server{Ollama: c.Ollama}
	for name, s := range map[string]*Server{OpenAI: c.OpenAI, Anthropic: c.Anthropic, Google: c.Google} {
		if s != nil {
			all[name] = *s
		}
	}
	return all
}

// SplitName returns the server of a model and the model's name there: "anthropic/claude" is claude at anthropic. A name
// without the prefix of a configured server belongs to Ollama.
func (c Config) SplitName(name string) (server, backendName string) {
	if prefix, rest, ok := cutServer(name); ok && prefix != Ollama {
		if _, ok := c.Servers()[prefix]; ok {
			return prefix, rest
		}
	}
	return Ollama, name
}

// cutServer splits the name of a model after the first slash. The first part may be a server or a machine, or belong to
// the model's name.
func cutServer(name string) (server, backendName string, ok bool) {
	server, backendName, ok = strings.Cut(name, "/")
	return server, backendName, ok && backendName != ""
}

// OptionsFor returns the options of every request to a model: its own, with or without :latest, then the defaults. A
// model of a role in Keep stays loaded unless its own options say otherwise.
func (c Config) OptionsFor(name string) Options {
	o := c.Models[name]
	for other, set := range c.Models {
		if trimLatest(other) == trimLatest(name) {
			o = set
		}
	}
	if o.KeepAlive == "" && slices.ContainsFunc(c.Keep, func(role string) bool {
		return trimLatest(c.Roles[role]) == trimLatest(name)
	}) {
		o.KeepAlive = "-1"
	}
	return o.WithDefaults(c.Defaults)
}

// graders lists the models that were made to grade, by name.
func (c Config) graders() (names []string) {
	for _, name := range strict.SortedKeys(c.Models) {
		if g := c.Models[name].Grades; g != nil && *g {
			names = append(names, name)
		}
	}
	return names
}

// AllowsRemote reports whether a model on another machine may be used.
func (c Config) AllowsRemote(name string) bool {
	return slices.ContainsFunc(c.Remote, func(n string) bool { return trimLatest(n) == trimLatest(name) })
}

// trimLatest returns a model's name without the default tag.
func trimLatest(name string) string { return strings.TrimSuffix(name, ":latest") }

// Validate reports everything wrong with c.
func (c Config) Validate() error { return c.Problems().Err() }

// Problems returns everything wrong with c, by configuration path: unknown roles and hints, missing models of required
// roles, invalid model names, models of servers that are not configured, and options and servers out of bounds. None =
// c is valid.
func (c Config) Problems() (out strict.Problems) {
	add := out.Add
	checkModelName := func(path, name string) {
		if err := checkName(name); err != nil {
			add(path, "%v", err)
		} else if prefix, _, ok := strings.Cut(name, "/"); ok &&
			slices.Contains([]string{OpenAI, Anthropic, Google}, prefix) {
			if _, ok := c.Servers()[prefix]; !ok {
				add(path, "%s is a model of %s, which is not configured; see %s: below", name, prefix, prefix)
			}
		}
	}
	for _, role := range strict.SortedKeys(c.Roles) {
		if !slices.Contains(Roles, role) { // most likely misspelled, and the role that was meant would keep its default
			add(strict.JoinPath("roles", role), "there is no such role; known: %s", strings.Join(Roles, ", "))
		}
		if c.Roles[role] != "" { // "" = the assistant's model
			checkModelName(strict.JoinPath("roles", role), c.Roles[role])
		}
	}
	for _, role := range []string{subjects.RoleAssistant, subjects.RoleEmbeddings} {
		if c.Roles[role] == "" {
			add("roles", "%s is missing: this role needs a model", role)
		}
	}
	for _, hint := range strict.SortedKeys(c.Hints) {
		if !slices.Contains(subjects.Hints, hint) {
			add(strict.JoinPath("hints", hint), "is not one of %s", strings.Join(subjects.Hints, ", "))
		}
		checkModelName(strict.JoinPath("hints", hint), c.Hints[hint])
	}
	for i, role := range c.Keep {
		if c.Roles[role] == "" {
			add(fmt.Sprintf("keep[%d]", i), "there is no role %s", text.Clip(role, 40))
		}
	}
	c.Defaults.addProblems("defaults", true, add)
	for _, name := range strict.SortedKeys(c.Models) {
		checkModelName(strict.JoinPath("models", name), name)
		c.Models[name].addProblems(strict.JoinPath("models", name), false, add)
	}
	for i, name := range c.Remote {
		checkModelName(fmt.Sprintf("allow_remote[%d]", i), name)
	}
	if !slices.Contains([]string{DemoAuto, DemoNever, DemoAlways}, c.DemoModel) {
		add("demo_model", "%q is not one of auto, never, always", text.Clip(c.DemoModel, 40))
	}
	servers := c.Servers()
	for _, name := range strict.SortedKeys(servers) {
		servers[name].addProblems(name, add)
	}
	if c.AuditTimeout < 0 {
		add("audit_timeout", "must not be negative")
	}
	return out
}

// Bounds of the options.
const (
	minWindow, maxWindow = 1024, 4 << 20
	maxPredict           = 1 << 20
	maxKeepAlive         = 30 * 24 * time.Hour
	maxPrefix            = 200 // bytes
)

// addProblems adds everything wrong with o to the problems of the configuration. required means that no field may be
// unset.
func (o Options) addProblems(path string, required bool, add func(path, format string, a ...any)) {
	within := func(field string, n, low, high int) {
		if (n != 0 || required) && (n < low || n > high) {
			add(path+"."+field, "%d is not between %d and %d", n, low, high)
		}
	}
	within("window", o.Window, minWindow, maxWindow)
	within("predict", o.Predict, 1, maxPredict)
	if o.KeepAlive != "" && o.KeepAlive != "-1" || required && o.KeepAlive == "" {
		if d, err := time.ParseDuration(o.KeepAlive); err != nil || d < 0 || d > maxKeepAlive {
			add(path+".keep_alive", "%q is neither a duration of at most 30 days nor -1; write 5m, or \"-1\" for ever",
				text.Clip(o.KeepAlive, 40))
		}
	}
	if o.Calls != "" && !slices.Contains(callModes, o.Calls) {
		add(path+".calls", "%q is not one of %s", text.Clip(o.Calls, 40), strings.Join(callModes, ", "))
	}
	for field, prefix := range map[string]string{"query_prefix": o.QueryPrefix, "document_prefix": o.DocumentPrefix} {
		switch {
		case required && prefix != "":
			add(path+"."+field, "a prefix belongs to one embedding model: write it below models")
		case len(prefix) > maxPrefix || strings.ContainsAny(prefix, "\n\r\x00"):
			add(path+"."+field, "a prefix is one line of at most %d bytes", maxPrefix)
		}
	}
	if t := o.Temperature; t != nil && (*t < 0 || *t > maxTemperature) {
		add(path+".temperature", "%s is not between 0 and %d", *t, maxTemperature)
	}
}

// addProblems adds everything wrong with the server called name to the problems of the configuration: an invalid
// address or one with a password, a key that is missing, not allowed or not the name of a key, and limits out of
// bounds. 0 means the default, except for Ollama, whose limits must be set.
func (s Server) addProblems(name string, add func(path, format string, a ...any)) {
	if s.Local && name != Ollama {
		add(name+".this_machine", "is for ollama only; the models of another server beyond loopback must be in "+
			"allow_remote")
	}
	needed := name == Ollama || name == OpenAI // the others have a default address
	u, err := url.Parse(s.URL)
	switch {
	case s.URL == "" && !needed:
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" ||
		u.Fragment != "":
		add(name+".url", "this is not an address; write http://127.0.0.1:11434")
	case u.User != nil:
		add(name+".url", "an address holds no name and no password; put a key into the keyring and its name into key:")
	}
	switch {
	case s.Key != "" && subjects.CheckToken(s.Key) != nil:
		add(name+".key", "this is the name of a key in the keyring, not the key; it has letters, digits, - and _ only")
	case looksLikeKey(s.Key):
		add(name+".key", "this looks like the key itself: store it with conclave secret set, and write its name here")
	case s.Key != "" && name == Ollama:
		add(name+".key", "Ollama takes no key")
	case s.Key == "" && (name == Anthropic || name == Google):
		add(name+".key", "is missing: the name of its key in the keyring")
	}
	least := 0 // left out: filled in below
	if name == Ollama {
		least = 1
	}
	for _, f := range []struct {
		field       string
		n, min, max int
	}{
		{"slots", s.Slots, least, 1024},
		{"ahead", s.Ahead, 0, 1024},
		{"queue", s.Queue, least, 1 << 16},
		{"batch", s.Batch, least, 1024},
	} {
		if f.n < f.min || f.n > f.max {
			add(name+"."+f.field, "%d is not between %d and %d", f.n, f.min, f.max)
		}
	}
}

// Limits of a server whose section has none. Ollama's section always has them, from the shipped models.yaml.
const (
	defaultSlots = 1
	defaultQueue = 512
	defaultBatch = 4
)

// maxTemperature is more than any model is usable at.
const maxTemperature = 5

// maxName bounds the name of a model.
const maxName = 200

// checkName returns an error unless name is a valid model name: 1 to maxName letters, digits and ._:/@-+ characters.
// Names become part of requests, audit records and messages.
func checkName(name string) error {
	if name == "" {
		return errors.New("a model has no name")
	}
	if len(name) > maxName {
		return fmt.Errorf("the name of a model has at most %d characters", maxName)
	}
	for i := range len(name) {
		c := name[i]
		if !strings.ContainsRune("._:/@-+", rune(c)) && (c < '0' || c > '9') && (c < 'a' || c > 'z') &&
			(c < 'A' || c > 'Z') {
			return fmt.Errorf("%q is not the name of a model", text.Clip(name, 40))
		}
	}
	return nil
}

// looksLikeKey reports whether s looks like an API key instead of the name of one. Such a text must not be quoted.
func looksLikeKey(s string) bool {
	_, secrets := firewall.Redact(s)
	return secrets > 0 || len(s) > 40
}
