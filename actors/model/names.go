package model

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// onNames lists the models of the reachable servers, and the model that would answer now in each role in use. The role
// of a model that cannot answer has the reason in its notice. It fails only when ctx ends.
func (m *Model) onNames(ctx context.Context, _ actor.Msg[subjects.Empty], out actor.Out) (subjects.ModelList, error) {
	now := out.Now()
	list := subjects.ModelList{
		Models: m.listModels(ctx, now), Roles: []subjects.RoleModel{},
		Machines: m.machines.describe(),
	}
	roles := m.cfg.InUse
	if roles == nil {
		roles = strict.SortedKeys(m.cfg.Roles)
	}
	for _, role := range roles {
		list.Roles = append(list.Roles, m.resolveRole(ctx, role, now))
	}
	if ctx.Err() != nil {
		return subjects.ModelList{}, toFault(ctx, context.Cause(ctx))
	}
	return list, nil
}

// resolveRole returns the model that would answer in a role now, or the configured one with an error in its notice.
func (m *Model) resolveRole(ctx context.Context, role string, now time.Time) subjects.RoleModel {
	var t target
	var err error
	if role == subjects.RoleEmbeddings {
		t, err = m.findEmbedder(ctx, m.cfg.Roles[role], now)
	} else {
		t, err = m.selectModel(ctx, selection{role: role, now: now})
	}
	if err != nil {
		name := cmp.Or(m.cfg.Roles[role], m.cfg.Roles[subjects.RoleAssistant])
		r := subjects.RoleModel{
			Role: role, Model: name, Notice: text.Clip(toFault(ctx, err).Text, maxText),
			Window: m.cfg.OptionsFor(name).Window,
		}
		if errors.Is(err, model.ErrMissing) && role == subjects.RoleEmbeddings {
			r.Wanted, r.Improves = name, m.improvement(role)
		}
		return r
	}
	r := subjects.RoleModel{
		Role: role, Model: t.name, Wanted: t.wanted, Notice: t.notice, Window: t.window(), Stream: t.streams(),
		Tools: t.info.Tools, Thinking: t.info.Thinking, Vision: t.info.Vision, Calls: t.callMode(), DemoModel: t.isDemo,
	}
	if err := m.checkSwap(ctx, t); err != nil {
		r.Notice = joinNotices(r.Notice, text.Clip(err.Error(), maxText))
	}
	if t.wanted != "" && !t.isDemo {
		r.Improves = m.improvement(role)
	}
	return r
}

// improvement returns what the missing model of an optional role would improve, "" for other roles.
func (m *Model) improvement(role string) string {
	if !slices.Contains(m.cfg.Optional, role) {
		return ""
	}
	return improvements[role]
}

// listModels lists the models of all reachable servers; those that may not be used have the reason in Refused. While
// the demo model answers, it is the only one. A remote server is not contacted unless a remote model is allowed; it and
// unreachable servers are left out.
func (m *Model) listModels(ctx context.Context, now time.Time) []subjects.ModelInfo {
	models := []subjects.ModelInfo{}
	if m.cfg.DemoModel == DemoAlways && m.demo != nil || m.usesDemoModel(ctx, now) {
		if i, err := m.demo.lookupInfo(ctx, Scripted, now); err == nil {
			models = append(models, newModelInfo(m.demo, Scripted, i, nil))
		}
		return models
	}
	for _, serverName := range strict.SortedKeys(m.servers) {
		s := m.servers[serverName]
		if s.remoteHost != "" && len(m.cfg.Remote) == 0 {
			continue // not even the request for the list leaves the machine
		}
		infos, err := s.listModels(ctx)
		if err != nil {
			continue // the notices of its roles have the reason
		}
		for _, i := range infos {
			name := qualifiedName(serverName, i.Name)
			i.Remote = cmp.Or(i.Remote, s.remoteHost)
			refused, calls := m.checkRemote(name, i.Name, i.Remote), ""
			var test *subjects.CallTest
			if refused == nil {
				t, err := m.findLocal(ctx, name, now)
				refused = err
				if err == nil {
					more := t.info
					i.Window = max(i.Window, more.Window)
					i.Tools, i.Thinking = more.Tools, more.Thinking
					i.Vision, i.Embedding = more.Vision, more.Embedding
					calls, test = t.callMode(), t.describeCallTest()
				}
			}
			info, speed := newModelInfo(s, name, i, refused), m.meter.of(name)
			info.Calls, info.CallTest, info.PromptSpeed, info.OutputSpeed = calls, test, speed.Prompt, speed.Output
			models = append(models, info)
		}
	}
	return append(models, m.listMachineModels()...)
}

// listMachineModels lists the models of connected machines.
func (m *Model) listMachineModels() (models []subjects.ModelInfo) {
	for _, c := range m.machines.list() {
		infos, err := c.List(context.Background())
		if err != nil {
			continue
		}
		for _, i := range infos {
			t := m.newTarget(c.server, i.Name, i.Name, i, c.name)
			info, speed := newModelInfo(c.server, i.Name, i, nil), m.meter.of(t.key())
			info.Backend, info.Machine = Ollama, c.name
			info.Calls, info.CallTest, info.PromptSpeed, info.OutputSpeed = t.callMode(), t.describeCallTest(),
				speed.Prompt, speed.Output
			models = append(models, info)
		}
	}
	return models
}

// newModelInfo converts what a backend reports of a model. refused is why the model may not be used, nil if it may.
func newModelInfo(s *server, name string, i model.Info, refused error) subjects.ModelInfo {
	info := subjects.ModelInfo{
		Name: name, Backend: s.name, Size: i.Size, Family: text.Clip(i.Family, 100), Parameters: text.Clip(i.Parameters,
			100), Window: i.Window,
		Tools: i.Tools, Thinking: i.Thinking, Vision: i.Vision, Embedding: i.Embedding, Loaded: i.Loaded,
		Remote: text.Clip(i.Remote, 200), Queue: s.countRequests(),
	}
	if refused != nil {
		info.Refused = text.Clip(refused.Error(), maxText)
	}
	return info
}

// qualifiedName is the name under which this system knows a model of a server: see [Config.SplitName].
func qualifiedName(serverName, backendName string) string {
	if serverName == Ollama {
		return backendName
	}
	return serverName + "/" + backendName
}
