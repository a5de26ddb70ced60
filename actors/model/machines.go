package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/strict"
	"conclave/subjects"
)

// machines are the other machines with models, and the calls that are assigned to each server: a model that several
// servers hold is shared out by them.
type machines struct {
	mu       sync.Mutex
	all      map[string]*machine
	assigned map[*server][priorities]int // calls that wait or run
	last     map[string]*server          // of the last call, by fairness key
	digests  map[string]string           // of the embedding models that were used, by name
}

// maxAffinities bounds the remembered servers of sessions.
const maxAffinities = 4096

// setMachines makes names the machines with models: new ones are added, others removed. Calls that run on a removed
// machine go on until they end or its link does. A name that means a configured server is not used.
func (m *Model) setMachines(names []string, out actor.Out) {
	m.machines.mu.Lock()
	defer m.machines.mu.Unlock()
	for name := range m.machines.all {
		if !slices.Contains(names, name) {
			delete(m.machines.all, name)
		}
	}
	for _, name := range names {
		if m.machines.all[name] != nil || isServerName(name) || subjects.CheckToken(name) != nil {
			continue
		}
		c := &machine{name: name, out: out, times: m.cfg.Link, spawn: m.spawn, reason: "not reached yet"}
		c.server = newServer(name, Server{URL: "http://localhost", Queue: m.cfg.Ollama.Queue}, c)
		m.machines.all[name] = c
	}
}

// isServerName reports whether a name stands for a server in model names, so that no machine can have it.
func isServerName(name string) bool {
	return slices.Contains([]string{Ollama, OpenAI, Anthropic, Google, Scripted}, name)
}

// refreshMachines asks all machines for their models, at the same time, and returns when all have replied or failed.
func (m *Model) refreshMachines(ctx context.Context) {
	var wg sync.WaitGroup
	for _, c := range m.machines.list() {
		wg.Go(func() { c.refresh(ctx) })
	}
	wg.Wait()
}

// list returns the machines by name.
func (s *machines) list() (all []*machine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range strict.SortedKeys(s.all) {
		all = append(all, s.all[name])
	}
	return all
}

// get returns a machine, nil when there is none of that name.
func (s *machines) get(name string) *machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[name]
}

// areAnyConnected reports whether a machine can be used.
func (s *machines) areAnyConnected() bool {
	return slices.ContainsFunc(s.list(), func(c *machine) bool {
		_, _, connected := c.find("")
		return connected
	})
}

// listDisconnected lists the machines that held a model and are not connected.
func (s *machines) listDisconnected(name string) (names []string) {
	for _, c := range s.list() {
		if _, held, connected := c.find(name); held && !connected {
			names = append(names, c.name)
		}
	}
	return names
}

// describe lists the machines for the user.
func (s *machines) describe() (out []subjects.ModelMachine) {
	for _, c := range s.list() {
		c.mu.Lock()
		d := subjects.ModelMachine{
			Name: c.name, Connected: c.connected, Reason: c.reason,
			Slots: c.server.large.slotCount(),
		}
		c.mu.Unlock()
		d.Queue = c.server.countRequests()
		out = append(out, d)
	}
	return out
}

// chooseTarget returns the target that is expected to answer first, and counts the call at its server when from is not
// zero: then the caller must call its release when the call has ended. targets must not be empty; the first is
// preferred among equals.
//
// A call is expected to wait for those before it of the same or a higher priority, and to take as long as the measured
// speed of the model says. A machine whose last call failed a short time ago is the last choice. Among equals the
// server that the session used last goes first, because it has the prompt in its cache, then one that used the model
// last.
func (m *Model) chooseTarget(targets []target, from requester) (t target) {
	s := &m.machines
	s.mu.Lock()
	defer s.mu.Unlock()
	speeds := make([]float64, len(targets))
	for i, t := range targets {
		speeds[i] = m.meter.of(t.key()).Output
	}
	if slices.Contains(speeds, 0) { // not all are measured: nothing to compare
		for i := range speeds {
			speeds[i] = 1
		}
	}
	now := time.Now()
	rank := func(i int) (avoided int, cost float64, notLast, notLoaded int) {
		t := targets[i]
		counts, before := s.assigned[t.server], 0
		for _, n := range counts[:from.priority+1] {
			before += n
		}
		slots := t.queue().slotCount()
		wait := float64(max(0, before-slots+1)) / float64(slots)
		return toRank(!s.all[t.machine].isAvoided(now)), (1 + wait) / speeds[i], toRank(s.last[from.key] == t.server),
			toRank(t.queue().loadedModel() == t.backendName)
	}
	best := 0
	for i := 1; i < len(targets); i++ {
		f1, c1, a1, l1 := rank(i)
		f2, c2, a2, l2 := rank(best)
		if cmp.Or(cmp.Compare(f1, f2), cmp.Compare(c1, c2), cmp.Compare(a1, a2), cmp.Compare(l1, l2)) < 0 {
			best = i
		}
	}
	t = targets[best]
	if from == (requester{}) {
		t.release = func() {}
		return t
	}
	s.countCall(t.server, from.priority, 1)
	if len(s.last) >= maxAffinities {
		clear(s.last)
	}
	s.last[from.key] = t.server
	t.release = sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.countCall(t.server, from.priority, -1)
	})
	return t
}

// countCall changes the number of calls that are assigned to a server. The caller holds mu.
func (s *machines) countCall(to *server, priority, n int) {
	counts := s.assigned[to]
	counts[priority] += n
	s.assigned[to] = counts
	if counts == [priorities]int{} {
		delete(s.assigned, to)
	}
}

// toRank sorts what is preferred first.
func toRank(preferred bool) int {
	if preferred {
		return 0
	}
	return 1
}

// findMachineTargets lists the targets of a model on connected machines. pinned is the only machine that may be used,
// "" = any.
func (m *Model) findMachineTargets(name, pinned string, s selection) (targets []target) {
	for _, c := range m.machines.list() {
		if pinned != "" && c.name != pinned || slices.Contains(s.exclude, c.name) {
			continue
		}
		info, held, connected := c.find(name)
		if !held || !connected && !(s.interrupted && c.wasConnected()) {
			continue
		}
		targets = append(targets, m.newTarget(c.server, name, info.Name, info, c.name))
	}
	return targets
}

// findModel finds one model at the servers that have it: Ollama on this machine, and other machines; of several it
// chooses one, see [Model.chooseTarget]. A name with the prefix of a machine means that machine only. It fails as
// [Model.findLocal] does when no machine has the model.
func (m *Model) findModel(ctx context.Context, name string, s selection) (target, error) {
	if pinned, rest, ok := m.splitMachine(name); ok {
		targets := m.findMachineTargets(rest, pinned.name, s)
		if len(targets) == 0 {
			_, err := pinned.Show(ctx, rest)
			if err == nil { // excluded
				err = &disconnectedError{rest, pinned.name}
			}
			return target{name: name}, err
		}
		return m.chooseTarget(targets, s.from), nil
	}
	var targets []target
	serverName, _ := m.cfg.SplitName(name)
	t, err := target{}, error(nil)
	if slices.Contains(s.exclude, serverName) {
		err = fmt.Errorf("%w: %s failed", model.ErrMissing, serverName)
	} else if t, err = m.findLocal(ctx, name, s.now); err == nil {
		if t.isDemo || serverName != Ollama {
			return t, nil
		}
		targets = append(targets, t)
	}
	if serverName != Ollama || errors.Is(err, model.ErrRemote) {
		return t, err
	}
	if targets = append(targets, m.findMachineTargets(name, "", s)...); len(targets) > 0 {
		return m.chooseTarget(targets, s.from), nil
	}
	if names := m.machines.listDisconnected(name); len(names) > 0 &&
		(errors.Is(err, model.ErrMissing) || errors.Is(err, model.ErrUnreachable)) {
		err = &disconnectedError{name, names[0]}
	}
	return t, err
}

// disconnectedError means that a model, or "" any model, is on a machine that is not connected. It is a missing model
// for a role, so that another one is used, and an unreachable one for the caller.
type disconnectedError struct{ model, machine string }

// Error implements error.
func (e *disconnectedError) Error() string {
	if e.model == "" {
		return e.machine + " is not connected; check it with: conclave machines"
	}
	return fmt.Sprintf("%s is on %s, which is not connected; check it with: conclave machines", e.model, e.machine)
}

// Unwrap returns [model.ErrUnreachable].
func (e *disconnectedError) Unwrap() error { return model.ErrUnreachable }

// splitMachine returns the machine whose name is the prefix of a model's, and the model's name there.
func (m *Model) splitMachine(name string) (*machine, string, bool) {
	prefix, rest, ok := cutServer(name)
	if !ok {
		return nil, "", false
	}
	c := m.machines.get(prefix)
	return c, rest, c != nil
}

// findEmbedder finds an embedding model, on this machine if it is there, else on another one. A model of the same name
// with other weights than the one that was used first is not used: its vectors could not be compared.
func (m *Model) findEmbedder(ctx context.Context, name string, now time.Time) (target, error) {
	s := selection{now: now}
	t, err := m.findLocal(ctx, name, now)
	if err == nil || !errors.Is(err, model.ErrMissing) && !errors.Is(err, model.ErrUnreachable) {
		m.machines.pinDigest(name, t.info.Digest, true)
		return t, err
	}
	bare, pinned := name, ""
	if c, rest, ok := m.splitMachine(name); ok {
		bare, pinned = rest, c.name
	}
	for _, t := range m.findMachineTargets(bare, pinned, s) {
		if m.machines.pinDigest(name, t.info.Digest, false) {
			return t, nil
		}
		err = fmt.Errorf("%w: %s on %s has other weights than the one that was used before; pull it there again",
			model.ErrMissing, name, t.machine)
	}
	return t, err
}

// pinDigest notes the weights of an embedding model, and reports whether they are those that were noted first, or on
// this machine. An unknown digest is compared with nothing.
func (s *machines) pinDigest(name, digest string, here bool) bool {
	if digest == "" {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name = trimLatest(name)
	if first, ok := s.digests[name]; ok && !here {
		return first == digest
	}
	if len(s.digests) < maxModels {
		s.digests[name] = digest
	}
	return true
}

// onPrincipalChanged has the list of machines read again.
func (m *Model) onPrincipalChanged(context.Context, actor.Msg[subjects.PrincipalNotice], actor.Out) error {
	select {
	case m.machinesChanged <- struct{}{}:
	default: // it will be
	}
	return nil
}

// readMachines reads the machines that run models from the registry. Without a reply the known ones stay.
func (m *Model) readMachines(ctx context.Context, out actor.Out) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	list, err := actor.Ask(ctx, out, subjects.PrincipalListService, subjects.Empty{})
	if err != nil {
		return
	}
	var names []string
	for _, p := range list.Principals {
		if p.Kind == subjects.MachinePrincipal && slices.Contains(p.Actors, "model") {
			names = append(names, p.Name)
		}
	}
	m.setMachines(names, out)
}

// listInterval is the time between two readings of the list of machines: the message that it changed may be lost.
const listInterval = 30 * time.Second

// watchMachines keeps the list of machines and their reports fresh until ctx ends.
func (m *Model) watchMachines(ctx context.Context, out actor.Out) {
	for {
		m.readMachines(ctx, out)
		for again := time.Now().Add(listInterval); time.Now().Before(again); {
			m.refreshMachines(ctx)
			next := time.Until(again)
			if len(m.machines.list()) > 0 {
				next = min(next, m.cfg.Link.Refresh)
			}
			select {
			case <-ctx.Done():
				return
			case <-m.machinesChanged:
				again = time.Now()
			case <-time.After(next):
			}
		}
	}
}
