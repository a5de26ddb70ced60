package agent

import (
	"context"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/loop"
	"conclave/pkg/model/wire"
	"conclave/subjects"
)

const (
	// DefaultWindow is assumed for a model with an unknown context window, in tokens.
	DefaultWindow = 32768
	// LookupTimeout is the timeout of requests to the broker and the model actor before a turn begins without them.
	LookupTimeout = 5 * time.Second
	// modelsTTL is how long a reply of the model actor is reused: changes of the configuration are seen soon, and not
	// every turn asks again.
	modelsTTL = 10 * time.Second
)

// Models knows the models of the roles. Its zero value is empty; one per actor.
type Models struct {
	mu    sync.Mutex
	roles []subjects.RoleModel
	at    time.Time
}

// Role returns the current model of a role and its capabilities, cached for modelsTTL. When the model actor does not
// reply within LookupTimeout, it is a default with tools and streaming, without a name. A role that is not listed has
// the assistant's model. The window is never 0.
func (m *Models) Role(ctx context.Context, out actor.Out, role string) subjects.RoleModel {
	all := m.list(ctx, out)
	for _, wanted := range []string{role, subjects.RoleAssistant} {
		for _, r := range all {
			if r.Role != wanted {
				continue
			}
			r.Role = role
			if r.Window <= 0 {
				r.Window = DefaultWindow
			}
			return r
		}
	}
	return subjects.RoleModel{Role: role, Window: DefaultWindow, Stream: true, Tools: true}
}

// list returns the models of all roles, from the cache or from the model actor. nil = it did not reply.
func (m *Models) list(ctx context.Context, out actor.Out) []subjects.RoleModel {
	m.mu.Lock()
	roles, at := m.roles, m.at
	m.mu.Unlock()
	if roles != nil && out.Now().Sub(at) <= modelsTTL {
		return roles
	}
	ctx, cancel := context.WithTimeout(ctx, LookupTimeout)
	defer cancel()
	list, err := actor.Ask(ctx, out, subjects.ModelListService, subjects.Empty{})
	if err != nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.roles, m.at = list.Roles, out.Now()
	return list.Roles
}

// NewLoop returns the agent of a loop that asks the model of a role by chat, with the clock and the ids of chat.Out.
// thinking is whether a model that can think is asked to.
func NewLoop(chat wire.Client, role subjects.RoleModel, thinking *bool, limits loop.Limits,
	settings string,
) loop.Agent {
	a := loop.Agent{
		Chat: chat, Calls: CallMode(role), Stream: role.Stream, Limits: limits, Settings: settings, Now: chat.Out.Now,
		NewID: chat.Out.NewID,
	}
	a.Options.Window = role.Window
	if role.Thinking {
		a.Think = thinking
	}
	return a
}

// CallMode is how the model of a role calls tools. A model that the user chose for a question is not known; the loop
// falls back when it does not support tool calls.
func CallMode(r subjects.RoleModel) loop.CallMode {
	switch {
	case r.Calls != "":
		return loop.CallMode(r.Calls)
	case r.Tools:
		return loop.CallNative
	}
	return loop.CallText
}
