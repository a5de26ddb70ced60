package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.yaml.in/yaml/v3"

	"conclave/pkg/actor"
	"conclave/pkg/bus"
	keys "conclave/pkg/keyring"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/seal"
	"conclave/pkg/story"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// Harness is a whole Conclave of its own for one story: its own folder, server, keys and ports, every actor, and a model
// server that follows the story's script. It implements [story.System], and speaks and listens under the user's key.
type Harness struct {
	running *Instance
	model   *scriptserver.Server // nil with a real model
	web     *stageWeb            // nil without pages
	dir     string
	nc      *nats.Conn
	out     actor.Out
	events  jetstream.Stream

	mu      sync.Mutex
	read    []story.Event            // of the event stream so far
	last    uint64                   // its last sequence that was read
	asked   []story.Event            // questions: they are kept in another stream, which people do not read
	waiting map[string]chan struct{} // questions whose stored copy has not been heard yet
	hearers []chan story.Event
}

// StageOptions say how a stage differs from the usual one.
type StageOptions struct {
	Live   bool   // ask the models of the configuration instead of a script
	Config string // with Live: the folder of the user's own configuration, "" = as shipped
	Log    *slog.Logger
}

// RunStory runs one story on a stage of its own.
func RunStory(ctx context.Context, s *story.Story, o StageOptions, opts story.Options) (result story.Result) {
	opts.Live = o.Live
	if o.Live && s.ScriptedOnly {
		return story.Run(ctx, s, nil, opts) // says that it is left out
	}
	stage, err := OpenStage(ctx, s, o)
	if err != nil {
		return story.Failed(s, err)
	}
	defer func() {
		if err := stage.Close(context.WithoutCancel(ctx)); err != nil && result.OK() {
			result = story.Failed(s, err)
		}
	}()
	return story.Run(ctx, s, stage, opts)
}

// OpenStage starts everything for a story. Close it.
func OpenStage(ctx context.Context, s *story.Story, o StageOptions) (_ *Harness, err error) {
	st := &Harness{waiting: map[string]chan struct{}{}}
	defer func() {
		if err != nil {
			_ = st.Close(context.WithoutCancel(ctx))
		}
	}()
	if st.dir, err = os.MkdirTemp("", "conclave-story-"); err != nil {
		return nil, fmt.Errorf("making room for a story: %w", err)
	}
	c, err := st.configure(s, o)
	if err != nil {
		return nil, err
	}
	home := bus.Home{Data: filepath.Join(st.dir, "data"), Config: filepath.Join(st.dir, "config")}
	if st.running, err = c.Start(ctx, home, o.Log); err != nil {
		return nil, err
	}
	if err := st.keep(ctx, c, home, s.Credentials); err != nil {
		return nil, err
	}
	if err := st.cast(ctx, c, home, o.Log); err != nil {
		return nil, err
	}
	return st, st.listen(ctx)
}

// cast starts every actor, the tools first and with the story's web.
func (st *Harness) cast(ctx context.Context, c Config, home bus.Home, log *slog.Logger) error {
	cfg := c.ActorConfig()
	cfg.Log = log
	for _, t := range st.tools(c) {
		spec := actor.Spec{Name: t.Name(), Role: t.Role(), Make: func(context.Context, *nats.Conn) (actor.Actor, error) { return t, nil }}
		if err := st.running.System.Start(ctx, spec, st.running.Bus.Dial, cfg); err != nil {
			return err
		}
	}
	others := slices.DeleteFunc(slices.Clone(Actors), func(name string) bool { return name == "tools" })
	return st.running.Run(ctx, c, home, log, others...)
}

// keep puts the story's credentials into the stage's own keyring.
func (st *Harness) keep(ctx context.Context, c Config, home bus.Home, credentials map[string]string) error {
	if len(credentials) == 0 {
		return nil
	}
	ring, _, err := keys.Open(ctx, c.Secrets.Ring(home.Data))
	if err != nil {
		return fmt.Errorf("opening the stage's keyring: %w", err)
	}
	for _, name := range strict.Keys(credentials) {
		if err := ring.Set(ctx, name, seal.NewSecret([]byte(credentials[name]))); err != nil {
			return fmt.Errorf("putting a credential into the stage's keyring: %w", err)
		}
	}
	return nil
}

// Close stops everything and removes the folder.
func (st *Harness) Close(ctx context.Context) error {
	var errs []error
	if st.nc != nil {
		st.nc.Close()
	}
	if st.running != nil {
		errs = append(errs, st.running.Stop(ctx))
	}
	if st.model != nil {
		st.model.Close()
	}
	if st.web != nil {
		st.web.close()
	}
	if st.dir != "" {
		errs = append(errs, os.RemoveAll(st.dir))
	}
	return errors.Join(errs...)
}

// nobody is an address that no program listens at.
const nobody = "http://127.0.0.1:1"

// configure lays over what is shipped what every stage needs, and then what the story says.
func (st *Harness) configure(s *story.Story, o StageOptions) (Config, error) {
	dir := o.Config
	if !o.Live {
		dir = ""
	}
	c, err := Load(dir)
	if err != nil {
		return Config{}, err
	}
	own := map[string]map[string]any{
		// Free ports, and no long wait for whoever hangs on purpose.
		"system": {"listen": "127.0.0.1:0", "gateway": map[string]any{"listen": "127.0.0.1:0"}, "actor": map[string]any{"drain": "2s"}},
		// The user's own keyring is not for stories.
		"secrets": {"backend": "file"},
		// Nothing of a story leaves the machine.
		"web_search": {"provider": "none"},
		"web_fetch":  {"enabled": false},
	}
	if !o.Live {
		// Memory asks a model beside the conversation, which few scripts expect. A story that is about it says so.
		own["memory"] = map[string]any{"model": false}
		// So does the critic: without a script for it there would be nothing to judge with.
		own["critic"] = map[string]any{"enabled": s.Model[subjects.RoleCritic] != nil}
	}
	if s.Web != nil {
		if st.web, err = openWeb(s.Web.Pages, st.pass); err != nil {
			return Config{}, err
		}
		own["web_search"], own["web_fetch"] = st.web.settings()
	}
	if !o.Live {
		url := nobody
		if !s.Server.Down {
			if st.model, err = scriptserver.Start(script(s), scriptedModels(s), scriptedKey(s)); err != nil {
				return Config{}, fmt.Errorf("starting the scripted model server: %w", err)
			}
			url = st.model.URL
		}
		own["models"] = scriptedRoles(s, c.Models.Roles, url)
	}
	for _, name := range strict.Keys(own) {
		if err := c.layOver(filepath.Join(st.dir, "stage"), name, own[name]); err != nil {
			return Config{}, err
		}
	}
	blame := func(path string, err error) error {
		return &strict.Error{File: s.File(), Line: s.Line(path), Path: path, Text: err.Error()}
	}
	for _, name := range strict.Keys(s.Config) {
		if err := c.layOver(filepath.Join(st.dir, "story"), name, s.Config[name]); err != nil {
			return Config{}, blame(strict.Join("config", name), err)
		}
	}
	if s.Manifest != nil {
		if err := c.layOver(filepath.Join(st.dir, "story"), "manifest", s.Manifest); err != nil {
			return Config{}, blame("manifest", err)
		}
	}
	if path, err := st.leaves(c, s); err != nil {
		return Config{}, blame(path, err)
	}
	return c, nil
}

// leaves reports what would let a story reach the user's keyring or another machine, and where the story says so. A
// real model is the user's own choice.
func (st *Harness) leaves(c Config, s *story.Story) (path string, err error) {
	keyed := map[string]string{"brave": c.WebSearch.Brave.Key, "tavily": c.WebSearch.Tavily.Key}[c.WebSearch.Provider]
	for name := range s.Credentials {
		if keyed != "" && strings.Contains(keyed, " "+name+"}") {
			return "credentials", fmt.Errorf("with the key %s a search would leave this machine; give the story pages under web instead", name)
		}
	}
	switch {
	case c.Secrets.Backend != keys.File:
		return "config.secrets", fmt.Errorf("the keyring of a story is %s: your own is not for stories", keys.File)
	case c.WebSearch.Provider == "searxng" && (st.web == nil || c.WebSearch.SearXNG.URL != st.web.url()):
		return "config.web_search", errors.New("a search would leave the stage; give the story pages under web instead")
	}
	return "", nil
}

// layOver lays one file over c, as if it stood in a config folder: fields, or the text of the file.
func (c *Config) layOver(dir, name string, content any) (err error) {
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
	return c.loadFolder(dir, os.DirFS(dir))
}

// listen connects as the user.
func (st *Harness) listen(ctx context.Context) (err error) {
	if st.nc, err = st.running.Bus.Dial("user"); err != nil {
		return err
	}
	if st.out, err = actor.NewOut(st.nc); err != nil {
		return err
	}
	js, err := bus.Core(st.nc)
	if err != nil {
		return err
	}
	if st.events, err = js.Stream(ctx, "EVENTS"); err != nil {
		return fmt.Errorf("reading the events: %w", err)
	}
	if _, err := st.nc.Subscribe(">", st.onMessage); err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	return bus.Ready(ctx, st.nc)
}

// live are the subjects that nobody keeps.
var live = []string{subjects.ResponseDelta.Name, subjects.ResponseThinking.Name, subjects.ToolLive.Name}

// onMessage sorts what the user hears: stored copies and live tokens, and not the machinery of requests.
func (st *Harness) onMessage(m *nats.Msg) {
	e := story.Event{Subject: m.Subject, Time: time.Now()}
	switch stream := last(m.Header, jetstream.StreamHeader); {
	case stream != "":
		if stream == "EVENTS" {
			e.Seq, _ = strconv.ParseUint(last(m.Header, jetstream.SequenceHeader), 10, 64)
		}
		e.Time, _ = time.Parse(time.RFC3339Nano, last(m.Header, jetstream.TimeStampHeaer))
	case !slices.ContainsFunc(live, func(p string) bool { _, ok := subjects.Match(p, m.Subject); return ok }):
		return
	}
	fill(&e, m.Header, m.Data)
	st.mu.Lock()
	defer st.mu.Unlock()
	if heard := st.waiting[e.Query]; heard != nil && e.Subject == subjects.QueryReceived.Name {
		st.asked = append(st.asked, e)
		delete(st.waiting, e.Query)
		close(heard)
	}
	st.tell(e)
}

// pass tells of something that is on no bus.
func (st *Harness) pass(e story.Event) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.tell(e)
}

// tell passes an event on to all who listen. The caller holds the lock.
func (st *Harness) tell(e story.Event) {
	for _, h := range st.hearers {
		select {
		case h <- e:
		default: // it is live: the stream has what matters
		}
	}
}

// last is the server's own word: it appends its headers to those of the writer.
func last(h nats.Header, name string) string {
	v := h[name]
	if len(v) == 0 {
		return ""
	}
	return v[len(v)-1]
}

// fill reads body and ids, from the headers or from where the body or the subject repeats them.
func fill(e *story.Event, h nats.Header, data []byte) {
	e.Body = json.RawMessage(data)
	if !json.Valid(data) {
		e.Body, _ = json.Marshal(strings.ToValidUTF8(string(data), "\uFFFD"))
	}
	var ids struct {
		Session string `json:"session_id"`
		Query   string `json:"query_id"`
	}
	_ = json.Unmarshal(e.Body, &ids) // a body without them is fine
	e.Session, e.Query = ids.Session, ids.Query
	if id := h.Get(subjects.HeaderSession); id != "" {
		e.Session = id
	}
	if id := h.Get(subjects.HeaderQuery); id != "" {
		e.Query = id
	}
	if t, ok := subjects.Match(subjects.QueryCancel.Name, e.Subject); ok {
		e.Query = t[0]
	}
}

// Subscribe implements [story.System].
func (st *Harness) Subscribe(ctx context.Context) (<-chan story.Event, error) {
	h := make(chan story.Event, 4096)
	st.mu.Lock()
	defer st.mu.Unlock()
	st.hearers = append(st.hearers, h)
	context.AfterFunc(ctx, func() {
		st.mu.Lock()
		defer st.mu.Unlock()
		st.hearers = slices.DeleteFunc(st.hearers, func(x chan story.Event) bool { return x == h })
		close(h)
	})
	return h, nil
}

// Ask implements [story.System]. It returns when the question's stored copy was heard, so that its place among the events
// is known.
func (st *Harness) Ask(ctx context.Context, q subjects.Query) error {
	heard := make(chan struct{})
	st.mu.Lock()
	st.waiting[q.QueryID] = heard
	st.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := actor.Emit(ctx, st.out, subjects.QueryReceived, q); err != nil {
		return err
	}
	select {
	case <-heard:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the question is stored but was not passed on: %w", ctx.Err())
	}
}

// ReadEvents implements [story.System]. It asks the stream, message by message, as any person's program would.
func (st *Harness) ReadEvents(ctx context.Context, after uint64) ([]story.Event, error) {
	info, err := st.events.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the events: %w", err)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	for seq := max(st.last+1, info.State.FirstSeq); seq <= info.State.LastSeq; seq++ {
		m, err := st.events.GetMsg(ctx, seq)
		if err != nil {
			return nil, fmt.Errorf("reading event %d: %w", seq, err)
		}
		t, ok := subjects.Match("from.*.>", m.Subject)
		if !ok {
			return nil, fmt.Errorf("event %d stands under %s", seq, m.Subject)
		}
		e := story.Event{Seq: seq, Time: m.Time, From: t[0], Subject: strings.Join(t[1:], ".")}
		fill(&e, m.Header, m.Data)
		st.read, st.last = append(st.read, e), seq
	}
	var out []story.Event
	for _, e := range st.read {
		if e.Seq > after {
			out = append(out, e)
		}
	}
	out = append(out, st.asked...)
	// The same server wrote all the times, and a question is stored before anything comes of it.
	slices.SortStableFunc(out, func(a, b story.Event) int { return a.Time.Compare(b.Time) })
	return out, nil
}
