package model

import (
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

// When the built-in demo model answers in place of a model.
const (
	DemoAuto   = "auto"   // while Ollama is not there and has not been since the start
	DemoNever  = "never"  // no Ollama is an error
	DemoAlways = "always" // even if Ollama is there
)

// Roles that the system knows.
var Roles = []string{subjects.RoleAssistant, "coder", "critic", subjects.RoleEmbeddings, "orchestrator", "researcher", subjects.RoleSummaries, "tools"}

// Hints that a request may give.
var Hints = []string{"simple", "reasoning", "code"}

// Config is the model actor's section: which model for what, and where the models are. Its defaults stand in the shipped
// models.yaml, except for servers that are off there: what their sections leave out is filled in here.
type Config struct {
	Roles    map[string]string  `yaml:"roles"`    // role -> model
	Hints    map[string]string  `yaml:"hints"`    // simple, reasoning, code -> model
	Keep     []string           `yaml:"keep"`     // roles whose models stay loaded
	Defaults Options            `yaml:"defaults"` // for models that are not below
	Models   map[string]Options `yaml:"models"`   // model -> what differs from the defaults

	Remote    []string `yaml:"allow_remote"` // models that may leave this machine, by name
	DemoModel string   `yaml:"demo_model"`   // auto, never, always

	Ollama    Server  `yaml:"ollama"`
	OpenAI    *Server `yaml:"openai"` // nil = off, here and below
	Anthropic *Server `yaml:"anthropic"`
	Google    *Server `yaml:"google"`

	AuditTimeout time.Duration // how long a call waits for its audit record; not in the file
}

// Options are what a model is always asked with. Window and KeepAlive are the same for every request: another value
// would make the server load the model anew.
type Options struct {
	Window      int             `yaml:"window"`      // context in tokens; 0 = the default, as for all below
	Predict     int             `yaml:"predict"`     // most tokens of an answer, whatever a request asks for
	KeepAlive   string          `yaml:"keep_alive"`  // how long it stays loaded: 5m, or -1 for ever
	Temperature *strict.Decimal `yaml:"temperature"` // unless a request says its own; nil = the model's own
	Stream      *bool           `yaml:"stream"`      // its words come as they are written
	Small       *bool           `yaml:"small"`       // it may run beside a large one
}

// Over is o with what it leaves open taken from base.
func (o Options) Over(base Options) Options {
	if o.Window == 0 {
		o.Window = base.Window
	}
	if o.Predict == 0 {
		o.Predict = base.Predict
	}
	if o.KeepAlive == "" {
		o.KeepAlive = base.KeepAlive
	}
	if o.Temperature == nil {
		o.Temperature = base.Temperature
	}
	if o.Stream == nil {
		o.Stream = base.Stream
	}
	if o.Small == nil {
		o.Small = base.Small
	}
	return o
}

// Server is where models are and how many of their requests run at once.
type Server struct {
	URL       string        `yaml:"url"`
	Key       string        `yaml:"key"`       // name of its key in the keyring; "" = none
	Slots     int           `yaml:"slots"`     // requests at once, of large models, of small ones and for vectors each
	Ahead     int           `yaml:"ahead"`     // requests sent while all slots are taken: the server then has its next one at hand
	Queue     int           `yaml:"queue"`     // requests that wait, without those in the background; the next one is told that the model is busy
	Exclusive bool          `yaml:"exclusive"` // two large models never run at once
	Batch     int           `yaml:"batch"`     // requests for one model in a row while another is waited for
	Rest      time.Duration `yaml:"rest"`      // how long nobody may have asked before the background has another model loaded
}

// Away is the host of the server when that is another machine, "" when it is this one. A name other than localhost
// counts as another machine, because what it means is decided elsewhere.
func (s Server) Away() string {
	u, err := url.Parse(s.URL)
	if err != nil {
		return s.URL
	}
	if host := u.Hostname(); !local.Host(host) {
		return host
	}
	return ""
}

// Servers are the servers that are configured, by name.
func (c Config) Servers() map[string]Server {
	all := map[string]Server{Ollama: c.Ollama}
	for name, s := range map[string]*Server{OpenAI: c.OpenAI, Anthropic: c.Anthropic, Google: c.Google} {
		if s != nil {
			all[name] = *s
		}
	}
	return all
}

// Split says which server has a model, and what the model is called there: "anthropic/claude" is claude at anthropic,
// and whatever does not begin with the name of a configured server is Ollama's.
func (c Config) Split(name string) (server, there string) {
	if prefix, rest, ok := strings.Cut(name, "/"); ok && prefix != Ollama && rest != "" {
		if _, ok := c.Servers()[prefix]; ok {
			return prefix, rest
		}
	}
	return Ollama, name
}

// For is the one set of options a model is ever asked with.
func (c Config) For(name string) Options {
	o := c.Models[name]
	for other, set := range c.Models {
		if plain(other) == plain(name) {
			o = set
		}
	}
	if o.KeepAlive == "" && slices.ContainsFunc(c.Keep, func(role string) bool { return plain(c.Roles[role]) == plain(name) }) {
		o.KeepAlive = "-1"
	}
	return o.Over(c.Defaults)
}

// Allowed reports whether a model may leave this machine.
func (c Config) Allowed(name string) bool {
	return slices.ContainsFunc(c.Remote, func(n string) bool { return plain(n) == plain(name) })
}

// plain is a model's name without the tag that goes without saying.
func plain(name string) string { return strings.TrimSuffix(name, ":latest") }

// Validate reports everything wrong with c.
func (c Config) Validate() error { return c.Problems().Err() }

// Problems is everything wrong with c.
func (c Config) Problems() (out strict.Problems) {
	add := out.Add
	named := func(path, name string) {
		if err := checkName(name); err != nil {
			add(path, "%v", err)
		} else if prefix, _, ok := strings.Cut(name, "/"); ok && slices.Contains([]string{OpenAI, Anthropic, Google}, prefix) {
			if _, ok := c.Servers()[prefix]; !ok {
				add(path, "%s is a model of %s, which is not configured; see %s: below", name, prefix, prefix)
			}
		}
	}
	for _, role := range strict.Keys(c.Roles) {
		if !slices.Contains(Roles, role) { // most likely a misspelled one, and the real one would stay as it is
			add(strict.Join("roles", role), "there is no such role; known: %s", strings.Join(Roles, ", "))
		}
		named(strict.Join("roles", role), c.Roles[role])
	}
	for _, role := range []string{subjects.RoleAssistant, subjects.RoleEmbeddings} {
		if c.Roles[role] == "" {
			add("roles", "%s is missing: somebody has to have this role", role)
		}
	}
	for _, hint := range strict.Keys(c.Hints) {
		if !slices.Contains(Hints, hint) {
			add(strict.Join("hints", hint), "is none of %s", strings.Join(Hints, ", "))
		}
		named(strict.Join("hints", hint), c.Hints[hint])
	}
	for i, role := range c.Keep {
		if c.Roles[role] == "" {
			add(fmt.Sprintf("keep[%d]", i), "there is no role %s", text.Clip(role, 40))
		}
	}
	c.Defaults.problems("defaults", true, add)
	for _, name := range strict.Keys(c.Models) {
		named(strict.Join("models", name), name)
		c.Models[name].problems(strict.Join("models", name), false, add)
	}
	for i, name := range c.Remote {
		named(fmt.Sprintf("allow_remote[%d]", i), name)
	}
	if !slices.Contains([]string{DemoAuto, DemoNever, DemoAlways}, c.DemoModel) {
		add("demo_model", "%q is none of auto, never, always", text.Clip(c.DemoModel, 40))
	}
	servers := c.Servers()
	for _, name := range strict.Keys(servers) {
		servers[name].problems(name, add)
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
)

func (o Options) problems(path string, whole bool, add func(path, format string, a ...any)) {
	within := func(field string, n, low, high int) {
		if (n != 0 || whole) && (n < low || n > high) {
			add(path+"."+field, "%d is not between %d and %d", n, low, high)
		}
	}
	within("window", o.Window, minWindow, maxWindow)
	within("predict", o.Predict, 1, maxPredict)
	if o.KeepAlive != "" && o.KeepAlive != "-1" || whole && o.KeepAlive == "" {
		if d, err := time.ParseDuration(o.KeepAlive); err != nil || d < 0 || d > maxKeepAlive {
			add(path+".keep_alive", "%q is neither a duration of at most 30 days nor -1; write 5m, or \"-1\" for ever", text.Clip(o.KeepAlive, 40))
		}
	}
	if t := o.Temperature; t != nil && (*t < 0 || *t > maxTemperature) {
		add(path+".temperature", "%s is not between 0 and %d", *t, maxTemperature)
	}
}

func (s Server) problems(name string, add func(path, format string, a ...any)) {
	needed := name == Ollama || name == OpenAI // the others know where they are
	u, err := url.Parse(s.URL)
	switch {
	case s.URL == "" && !needed:
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "":
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
	}{{"slots", s.Slots, least, 1024}, {"ahead", s.Ahead, 0, 1024}, {"queue", s.Queue, least, 1 << 16}, {"batch", s.Batch, least, 1024}} {
		if f.n < f.min || f.n > f.max {
			add(name+"."+f.field, "%d is not between %d and %d", f.n, f.min, f.max)
		}
	}
	if s.Rest < 0 || s.Rest > maxRest {
		add(name+".rest", "%s is not between 0s and %s", strict.Short(s.Rest), strict.Short(maxRest))
	}
}

// maxRest is longer than any tool between two steps should take; a longer one would only keep the critic from its work.
const maxRest = time.Minute

// What a server is bounded by where its section does not say. Ollama's always does: it is laid over the shipped one. The
// others have none shipped.
const (
	defaultSlots = 1
	defaultQueue = 512
	defaultBatch = 4
)

func or(n, instead int) int {
	if n == 0 {
		return instead
	}
	return n
}

// maxTemperature is more than any model makes sense at.
const maxTemperature = 5

// maxName bounds the name of a model.
const maxName = 200

// checkName reports whether name may be the name of a model. It becomes part of requests, records and messages.
func checkName(name string) error {
	if name == "" {
		return errors.New("a model has no name")
	}
	if len(name) > maxName {
		return fmt.Errorf("the name of a model has at most %d characters", maxName)
	}
	for i := range len(name) {
		c := name[i]
		if !strings.ContainsRune("._:/@-+", rune(c)) && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return fmt.Errorf("%q is not the name of a model", text.Clip(name, 40))
		}
	}
	return nil
}

// looksLikeKey reports whether somebody wrote a key where its name belongs. It is not repeated anywhere.
func looksLikeKey(s string) bool {
	_, secrets := firewall.Redact(s)
	return secrets > 0 || len(s) > 40
}
