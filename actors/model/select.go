package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"conclave/pkg/model"
	"conclave/pkg/model/scripted"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// target is the model that answers, and the notice for the user.
type target struct {
	server      *server
	name        string // in the configuration and in messages
	backendName string // at its server
	info        model.Info
	opts        Options
	wanted      string // the model that should have answered, if that is another
	notice      string
	isDemo      bool
	callTest    *callTest // of the model as it is installed now; nil = not tested
	machine     string    // that has it; "" = this one, or a server in the configuration
	release     func()    // gives back the place of the call in the count of its server; nil = there is none
}

// key is the name under which the model is measured and recorded: a model on two machines has two.
func (t target) key() string {
	if t.machine == "" {
		return t.name
	}
	return qualifiedName(t.machine, t.name)
}

// describePlace names the model and the machine, for messages.
func (t target) describePlace() string {
	switch {
	case t.isDemo:
		return "the built-in demo model"
	case t.machine != "":
		return t.name + " on " + t.machine
	case t.server.remoteHost != "":
		return t.name
	}
	return t.name + " on this machine"
}

// host is the host that gets the prompts, "" for this machine.
func (t target) host() string {
	if t.isDemo {
		return ""
	}
	return cmp.Or(t.server.remoteHost, t.info.Remote, t.machine)
}

// end gives back the place of a call. It may be called again.
func (t target) end() {
	if t.release != nil {
		t.release()
	}
}

// window returns the context window that the model is always asked with, at most the one that it was made for.
func (t target) window() int {
	if t.info.Window > 0 {
		return min(t.opts.Window, t.info.Window)
	}
	return t.opts.Window
}

// queue returns the queue of chats with the model.
func (t target) queue() *queue {
	if t.opts.Small != nil && *t.opts.Small {
		return t.server.small
	}
	return t.server.large
}

// selection is what a request says about the model that shall answer.
type selection struct {
	role, hint, model string
	now               time.Time
	from              requester // who waits; zero = no call is made
	exclude           []string  // servers and machines that have failed the call
	// a machine whose link was interrupted a moment ago may be chosen: the call waits for it
	interrupted bool
}

// selectModel finds the model that answers. A request that names a model gets that one or an error. For others the
// first candidate that exists answers, for a background request one that was not seen to unload another if there is a
// choice, else any local model that can chat; the notice says which one was missing. Any
// error but [model.ErrMissing], such as a denied remote model or an unreachable server, ends the search. With an error
// the target still has a name, for the audit. While another machine is connected, an unreachable server does not end
// the search; a machine whose link was interrupted a moment ago is chosen when there is nothing else. The caller must
// call target.end.
func (m *Model) selectModel(ctx context.Context, s selection) (target, error) {
	t, err := m.searchModel(ctx, s)
	if err != nil && len(m.machines.list()) > 0 &&
		(errors.Is(err, model.ErrMissing) || errors.Is(err, model.ErrUnreachable)) {
		s.interrupted = true
		if t, err := m.searchModel(ctx, s); err == nil {
			return t, nil
		}
	}
	return t, err
}

// searchModel is [Model.selectModel] for one kind of machines.
func (m *Model) searchModel(ctx context.Context, s selection) (target, error) {
	names, notice := m.listCandidates(s)
	var missing error
	for i, name := range names {
		t, err := m.findModel(ctx, name, s)
		if err == nil && s.from.priority > foreground && i+1 < len(names) {
			if err = m.checkSwap(ctx, t); err != nil {
				t.end()
			}
		}
		switch {
		case err == nil:
			isGrader := t.opts.Grades != nil && *t.opts.Grades && s.role == subjects.RoleCritic
			if i > 0 && !t.isDemo && !isGrader {
				t.wanted = names[0]
				if !slices.Contains(m.cfg.Optional, s.role) { // a model that the user did not choose is not missed
					t.notice = m.substituteNotice(names[0], t.name)
				}
			}
			if errors.Is(missing, model.ErrSwap) {
				t.notice = missing.Error()
			}
			t.notice = joinNotices(notice, t.notice)
			return t, nil
		case s.model != "" || !errors.Is(err, model.ErrMissing) && !errors.Is(err, model.ErrSwap) && !m.canSkip(err):
			return target{name: name}, err
		case missing == nil:
			missing = err
		}
	}
	t, err := m.findAnyModel(ctx, names[0], s)
	t.notice = joinNotices(notice, t.notice)
	if errors.Is(err, model.ErrMissing) && errors.Is(missing, model.ErrUnreachable) ||
		errors.Is(err, model.ErrUnreachable) && errors.As(missing, new(*disconnectedError)) {
		err = missing
	} else if errors.Is(err, model.ErrMissing) {
		err = fmt.Errorf("%w; no other model is installed that could answer", missing)
	}
	return t, err
}

// canSkip reports whether the search for a model goes on after an error: another machine may have the next one.
func (m *Model) canSkip(err error) bool {
	return errors.As(err, new(*disconnectedError)) ||
		errors.Is(err, model.ErrUnreachable) && m.machines.areAnyConnected()
}

// listCandidates lists the models that may answer, the preferred one first: the requested one alone, or the role's own,
// the hint's and the assistant's, each once. The assistant's model is the one of every role without its own, so a hint
// comes before it, also for the assistant itself. For a critic with a model of its own the other models that were made
// to grade come before the assistant's, which would grade its own answers. An unknown role has a notice.
func (m *Model) listCandidates(s selection) (names []string, notice string) {
	if s.model != "" {
		return []string{s.model}, ""
	}
	if s.role != "" && !slices.Contains(Roles, s.role) {
		notice = fmt.Sprintf("unknown role %s: the assistant's model is used", s.role)
	}
	own := m.cfg.Roles[s.role]
	if s.role == subjects.RoleAssistant {
		own = ""
	}
	preferred := []string{own}
	if own != "" && s.role == subjects.RoleCritic {
		preferred = append(preferred, m.cfg.graders()...)
	}
	for _, name := range append(preferred, m.cfg.Hints[s.hint], m.cfg.Roles[subjects.RoleAssistant]) {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, notice
}

// findLocal finds one model at its server in the configuration, or the demo model where that answers. It denies a model
// that would leave this machine without permission: by its configuration before the server is contacted, and by what
// the server reports of it. A server that is not configured is [model.ErrMissing].
func (m *Model) findLocal(ctx context.Context, name string, now time.Time) (target, error) {
	if m.cfg.DemoModel == DemoAlways && m.demo != nil {
		return m.demoTarget(ctx, name, now, "demo_model is set to always in models.yaml")
	}
	serverName, backendName := m.cfg.SplitName(name)
	s := m.servers[serverName]
	if s == nil {
		return target{}, fmt.Errorf("%w: %s: %s is not configured; see models.yaml", model.ErrMissing, name, serverName)
	}
	if err := m.checkRemote(name, backendName, s.remoteHost); err != nil {
		return target{}, err
	}
	if m.usesDemoModel(ctx, now) {
		return m.demoTarget(ctx, name, now, "Ollama does not answer at "+m.cfg.Ollama.URL+"; start it with: ollama "+
			"serve")
	}
	info, err := s.lookupInfo(ctx, backendName, now)
	if err != nil {
		return target{}, err
	}
	if err := m.checkRemote(name, backendName, info.Remote); err != nil {
		return target{}, err
	}
	return m.newTarget(s, name, backendName, info, ""), nil
}

// newTarget returns a model of a server with its options and its self-test.
func (m *Model) newTarget(s *server, name, backendName string, info model.Info, machine string) target {
	t := target{
		server: s, name: name, backendName: backendName, info: info, opts: m.cfg.OptionsFor(name),
		machine: machine,
	}
	if t.opts.Vision != nil && machine == "" {
		t.info.Vision = *t.opts.Vision
	}
	if c := m.meter.of(t.key()).Calls; c != nil && c.Digest == info.Digest {
		t.callTest = c
	}
	return t
}

// checkRemote denies, with [model.ErrRemote], a model that would send the conversation to another machine, unless name
// is allowed by the configuration: one whose host is not "", and one whose backendName is that of an Ollama cloud
// model.
func (m *Model) checkRemote(name, backendName, host string) error {
	if !isRemote(backendName, host) || m.cfg.AllowsRemote(name) {
		return nil
	}
	host = cmp.Or(host, "Ollama's cloud")
	return fmt.Errorf("%w: %s would send the conversation to %s; to allow that, write allow_remote: [%q] in "+
		"models.yaml",
		model.ErrRemote, name, text.Clip(host, 100), name)
}

// isRemote reports whether a model runs on another machine: its host is not "", or its name is that of an Ollama cloud
// model.
func isRemote(backendName, host string) bool {
	low := strings.ToLower(trimLatest(backendName))
	return host != "" || strings.HasSuffix(low, ":cloud") || strings.HasSuffix(low, "-cloud")
}

// ollamaPresence is whether Ollama was ever reachable.
type ollamaPresence struct {
	ollamaSeen atomic.Bool
	probe      chan struct{} // held while Ollama is probed
	lastMiss   time.Time     // of the last failed probe; guarded by probe
}

// usesDemoModel reports whether the demo model answers: demo_model is auto, Ollama is the only server and was never
// reachable, and no machine is connected. It probes Ollama at most once in [probeTTL] until it was reachable, and never
// afterwards; it waits for a probe that runs. A remote Ollama is not probed unless a remote model is allowed. The
// result means nothing when ctx has ended: the caller's next request fails then.
func (m *Model) usesDemoModel(ctx context.Context, now time.Time) bool {
	s := m.servers[Ollama]
	if m.cfg.DemoModel != DemoAuto || m.demo == nil || len(m.servers) > 1 || s == nil || m.ollamaSeen.Load() ||
		m.machines.areAnyConnected() {
		return false
	}
	if s.remoteHost != "" && len(m.cfg.Remote) == 0 {
		return false
	}
	select {
	case m.probe <- struct{}{}:
		defer func() { <-m.probe }()
	case <-ctx.Done():
		return false // the caller's next request fails with the reason
	}
	if m.ollamaSeen.Load() {
		return false
	}
	if now.Sub(m.lastMiss) < probeTTL && !now.Before(m.lastMiss) {
		return true
	}
	bounded, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	_, err := s.backend.List(bounded)
	if err == nil || !errors.Is(err, model.ErrUnreachable) && bounded.Err() == nil {
		m.ollamaSeen.Store(true)
		return false
	}
	if ctx.Err() == nil {
		m.lastMiss = now
	}
	return true
}

// Scripted is the name of the built-in demo model.
const Scripted = scripted.Name

// demoTarget is the demo model in place of the model wanted, with the reason in its notice. m.demo must not be nil.
func (m *Model) demoTarget(ctx context.Context, wanted string, now time.Time, reason string) (target, error) {
	info, err := m.demo.lookupInfo(ctx, Scripted, now)
	if err != nil {
		return target{}, err
	}
	return target{
		server: m.demo, name: Scripted, backendName: Scripted, info: info, opts: m.cfg.OptionsFor(Scripted),
		wanted: wanted, isDemo: true,
		notice: "the built-in demo model answers, which is not a language model: " + reason,
	}, nil
}

// findAnyModel finds a model of this machine or of another one that joined, which can chat, preferably a loaded one, in
// place of wanted. Models of remote servers are left out: they are used only where the configuration names them.
// Servers that fail are skipped; without any model the error is [model.ErrMissing].
func (m *Model) findAnyModel(ctx context.Context, wanted string, s selection) (target, error) {
	var servers []*server
	for _, name := range strict.SortedKeys(m.servers) {
		if m.servers[name].remoteHost == "" && !slices.Contains(s.exclude, name) {
			servers = append(servers, m.servers[name])
		}
	}
	for _, c := range m.machines.list() {
		servers = append(servers, c.server)
	}
	for _, server := range servers {
		infos, err := server.listModels(ctx)
		if err != nil {
			continue
		}
		infos = slices.Clone(infos)
		slices.SortStableFunc(infos, func(a, b model.Info) int {
			return cmp.Compare(toRank(a.Loaded), toRank(b.Loaded))
		})
		for _, i := range infos {
			t, err := m.findModel(ctx, qualifiedName(server.name, i.Name), s)
			if err != nil || t.info.Embedding {
				t.end()
				continue
			}
			t.wanted, t.notice = wanted, m.substituteNotice(wanted, t.name)
			return t, nil
		}
	}
	if ctx.Err() != nil {
		return target{name: wanted}, context.Cause(ctx)
	}
	return target{name: wanted}, model.ErrMissing
}

// substituteNotice says that another model answers, and how to get the wanted one.
func (m *Model) substituteNotice(wanted, name string) string {
	if gone := m.machines.listDisconnected(wanted); len(gone) > 0 {
		return fmt.Sprintf("%s is on %s, which is not connected, so %s is used; check it with: conclave machines",
			wanted, gone[0], name)
	}
	if serverName, _ := m.cfg.SplitName(wanted); serverName != Ollama {
		return fmt.Sprintf("%s is not available, so %s is used; check the name in models.yaml", wanted, name)
	}
	return fmt.Sprintf("%s is not installed, so %s is used; install it with: conclave model pull %s", wanted, name,
		wanted)
}

// joinNotices joins two notices, either of which may be "".
func joinNotices(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}
