package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"conclave/pkg/model"
	"conclave/pkg/model/scripted"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// How long what is known of a server is believed.
const (
	freshInfo  = time.Minute     // what a model can do
	freshProbe = time.Second     // that Ollama is not there, while the script stands in
	patience   = 2 * time.Second // for Ollama to say that it is there
	lookTime   = 10 * time.Second
	mostModels = 200 // of a server's list
)

// server is where models are, with those who wait for them.
type server struct {
	name    string
	backend model.Backend
	away    string // its host, when that is another machine
	large   *queue
	small   *queue
	vectors *queue

	mu    sync.Mutex
	known map[string]*known // by the model's name there
}

func newServer(name string, cfg Server, b model.Backend) *server {
	line := func(exclusive bool) *queue {
		q := newQueue(or(cfg.Slots, defaultSlots), or(cfg.Queue, defaultQueue), exclusive, or(cfg.Batch, defaultBatch))
		q.ahead, q.rest = cfg.Ahead, cfg.Rest
		return q
	}
	s := &server{
		name: name, backend: b, away: cfg.Away(), known: map[string]*known{},
		large: line(cfg.Exclusive), small: line(false), vectors: line(false),
	}
	if s.away == "" && (name == Anthropic || name == Google) {
		s.away = name // wherever the address points to, behind it is somebody else's machine
	}
	return s
}

// known is what was last heard of a model.
type known struct {
	turn chan struct{} // one asks, the others wait for what it hears
	info model.Info
	at   time.Time // zero = nothing yet
}

// look tells what a model can do. It asks the server once in a while.
func (s *server) look(ctx context.Context, there string, now time.Time) (model.Info, error) {
	s.mu.Lock()
	k := s.known[there]
	if k == nil {
		k = &known{turn: make(chan struct{}, 1)}
		s.known[there] = k
	}
	if !k.at.IsZero() && now.Sub(k.at) < freshInfo {
		defer s.mu.Unlock()
		return k.info, nil
	}
	s.mu.Unlock()
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return model.Info{}, context.Cause(ctx)
	}
	s.mu.Lock()
	if !k.at.IsZero() && now.Sub(k.at) < freshInfo { // heard while we waited
		defer s.mu.Unlock()
		return k.info, nil
	}
	s.mu.Unlock()
	bounded, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	info, err := s.backend.Show(bounded, there)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if s.known[there] == k { // names that mean nothing are not kept
			delete(s.known, there)
		}
		if bounded.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: it did not say within %s what %s can do", model.ErrUnreachable, lookTime, there)
		}
		return model.Info{}, err
	}
	k.info, k.at = info, now
	s.known[there] = k
	return info, nil
}

// forget makes the next look ask again.
func (s *server) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.known)
}

// target is the model that will answer, and what is to be said about that.
type target struct {
	server  *server
	name    string // as people know it
	there   string // as its server knows it
	info    model.Info
	opts    Options
	wanted  string // what was to answer, when it is another
	notice  string
	standIn bool
}

// window is the context the model is always asked with. More than it has been made for does not help.
func (t target) window() int {
	if t.info.Window > 0 {
		return min(t.opts.Window, t.info.Window)
	}
	return t.opts.Window
}

// queue is where a chat with it waits.
func (t target) queue() *queue {
	if t.opts.Small != nil && *t.opts.Small {
		return t.server.small
	}
	return t.server.large
}

// wish is what somebody asks for.
type wish struct {
	role, hint, model string
	now               time.Time
}

// route finds the model that answers a wish. When the one that should is not there, the assistant's does, or any that is;
// but who named a model gets that one or none.
func (m *Model) route(ctx context.Context, w wish) (target, error) {
	names, notice := m.candidates(w)
	var missing error
	for i, name := range names {
		t, err := m.find(ctx, name, w.now)
		switch {
		case err == nil:
			if i > 0 && !t.standIn {
				t.wanted, t.notice = names[0], m.instead(names[0], t.name)
			}
			t.notice = join(notice, t.notice)
			return t, nil
		case w.model != "" || !errors.Is(err, model.ErrMissing):
			return target{name: name}, err
		case missing == nil:
			missing = err
		}
	}
	t, err := m.anyOther(ctx, names[0], w.now)
	t.notice = join(notice, t.notice)
	if errors.Is(err, model.ErrMissing) {
		err = fmt.Errorf("%w; nor is there another model that could answer", missing)
	}
	return t, err
}

// candidates are the models that may answer, the best first.
func (m *Model) candidates(w wish) (names []string, notice string) {
	if w.model != "" {
		return []string{w.model}, ""
	}
	if w.role == "" {
		w.role = subjects.RoleAssistant
	}
	role, ok := m.cfg.Roles[w.role]
	if !ok {
		role = m.cfg.Roles[subjects.RoleAssistant]
		notice = fmt.Sprintf("models.yaml has no role %s, so the assistant's model answers", w.role)
	}
	for _, name := range []string{m.cfg.Hints[w.hint], role, m.cfg.Roles[subjects.RoleAssistant]} {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, notice
}

// find looks one model up, wherever it is, and whether it may be used.
func (m *Model) find(ctx context.Context, name string, now time.Time) (target, error) {
	if m.cfg.DemoModel == DemoAlways && m.script != nil {
		return m.scripted(ctx, name, now, "demo_model is set to always in models.yaml")
	}
	at, there := m.cfg.Split(name)
	s := m.servers[at]
	if s == nil {
		return target{}, fmt.Errorf("%w: %s: %s is not configured; see models.yaml", model.ErrMissing, name, at)
	}
	if err := m.stays(name, there, s.away); err != nil {
		return target{}, err
	}
	if m.alone(ctx, now) {
		return m.scripted(ctx, name, now, "no Ollama answers at "+m.cfg.Ollama.URL+"; start it with: ollama serve")
	}
	info, err := s.look(ctx, there, now)
	if err != nil {
		return target{}, err
	}
	if err := m.stays(name, there, info.Remote); err != nil {
		return target{}, err
	}
	return target{server: s, name: name, there: there, info: info, opts: m.cfg.For(name)}, nil
}

// stays refuses a model that would leave this machine for host, unless it is allowed by name.
func (m *Model) stays(name, there, host string) error {
	low := strings.ToLower(plain(there))
	cloud := strings.HasSuffix(low, ":cloud") || strings.HasSuffix(low, "-cloud")
	if host == "" && !cloud || m.cfg.Allowed(name) {
		return nil
	}
	if host == "" {
		host = "Ollama's cloud"
	}
	return fmt.Errorf("%w: %s would send the conversation to %s; if you want that, write allow_remote: [%q] in models.yaml",
		model.ErrRemote, name, text.Clip(host, 100), name)
}

// alone reports whether there is nobody but the script: the one server is Ollama, and it was never there. It costs a
// question a second as long as that is so, and nothing afterwards.
func (m *Model) alone(ctx context.Context, now time.Time) bool {
	s := m.servers[Ollama]
	if m.cfg.DemoModel != DemoAuto || m.script == nil || len(m.servers) > 1 || s == nil || m.seen.Load() {
		return false
	}
	if s.away != "" && len(m.cfg.Remote) == 0 {
		return false // nothing may go there, not even a question
	}
	select {
	case m.probe <- struct{}{}:
		defer func() { <-m.probe }()
	case <-ctx.Done():
		return false // what it is about to ask will fail on its own
	}
	if m.seen.Load() {
		return false
	}
	if now.Sub(m.missed) < freshProbe && !now.Before(m.missed) {
		return true
	}
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := s.backend.List(bounded)
	if err == nil || !errors.Is(err, model.ErrUnreachable) && bounded.Err() == nil {
		m.seen.Store(true)
		return false
	}
	if ctx.Err() == nil {
		m.missed = now
	}
	return true
}

// Scripted is the name under which the built-in demo model answers.
const Scripted = scripted.Name

// scripted is the script in place of a model.
func (m *Model) scripted(ctx context.Context, wanted string, now time.Time, why string) (target, error) {
	info, err := m.script.look(ctx, Scripted, now)
	if err != nil {
		return target{}, err
	}
	return target{
		server: m.script, name: Scripted, there: Scripted, info: info, opts: m.cfg.For(Scripted), wanted: wanted, standIn: true,
		notice: "this is a built-in demo model, not a model: " + why,
	}, nil
}

// anyOther is some model of this machine that can chat. One that is loaded comes first.
func (m *Model) anyOther(ctx context.Context, wanted string, now time.Time) (target, error) {
	for _, at := range strict.Keys(m.servers) {
		s := m.servers[at]
		if s.away != "" {
			continue // what may be used there has a name in the configuration
		}
		infos, err := s.list(ctx)
		if err != nil {
			continue
		}
		slices.SortStableFunc(infos, func(a, b model.Info) int { return cmp.Compare(rank(a), rank(b)) })
		for _, i := range infos {
			name := i.Name
			if at != Ollama {
				name = at + "/" + i.Name
			}
			t, err := m.find(ctx, name, now)
			if err != nil || t.info.Embedding {
				continue
			}
			t.wanted, t.notice = wanted, m.instead(wanted, t.name)
			return t, nil
		}
	}
	if ctx.Err() != nil {
		return target{name: wanted}, context.Cause(ctx)
	}
	return target{name: wanted}, model.ErrMissing
}

func rank(i model.Info) int {
	if i.Loaded {
		return 0
	}
	return 1
}

// list is the server's models, bounded.
func (s *server) list(ctx context.Context) ([]model.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	infos, err := s.backend.List(ctx)
	if err != nil {
		return nil, err
	}
	infos = slices.DeleteFunc(infos, func(i model.Info) bool { return checkName(i.Name) != nil })
	return infos[:min(len(infos), mostModels)], nil
}

// instead says that another model answers, and what to do about it.
func (m *Model) instead(wanted, name string) string {
	if at, _ := m.cfg.Split(wanted); at != Ollama {
		return fmt.Sprintf("%s is not there, so %s answers; check its name in models.yaml", wanted, name)
	}
	return fmt.Sprintf("%s is not there, so %s answers; fetch it with: conclave model pull %s", wanted, name, wanted)
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// presence is whether Ollama was ever there.
type presence struct {
	seen   atomic.Bool
	probe  chan struct{} // one asks at a time
	missed time.Time     // when it was last looked for in vain; guarded by probe
}
