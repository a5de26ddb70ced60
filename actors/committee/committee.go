// Package committee answers questions by deliberation: personas, each a model with a prompt of its own and the tools of
// memory, speak one after the other or a round at a time, and a closing persona gives the answer.
//
// It listens on turn.committee.<session>, stored in TURNS, and on query.cancel.<query>, and serves
// session.change.committee, which deletes its part of a conversation. It asks broker.discover, tool.request.<tool>,
// model.list and model.chat. It speaks on committee.deliberation.<query>, response.generation, answer.dialog,
// agent.state.committee, agent.state.committee.<persona>, response.delta.<query> and response.thinking.<query>.
//
// A turn is checkpointed after each contribution. After a crash it resumes from its checkpoint, in this process or in
// another: finished contributions are not repeated, and the answer is published once.
package committee

import (
	"context"
	"errors"
	"strings"
	"sync"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/subjects"
)

// name is the actor's, its account and its respondent id.
const name = subjects.Committee

// Committee is the actor. Several may run: they share the questions.
type Committee struct {
	cfg      Config
	cancels  agent.Cancellations
	sessions sessionLocks
}

// New returns a committee. cfg must be valid, and the prompt of each persona set: see [Config.WithPrompts].
func New(cfg Config) *Committee { return &Committee{cfg: cfg} }

// Name implements [actor.Actor].
func (c *Committee) Name() string { return name }

// Describe implements [actor.Describer].
func (c *Committee) Describe() (metadata map[string]string) {
	names := make([]string, 0, len(c.cfg.Personas))
	for _, p := range c.cfg.Personas {
		names = append(names, p.Name)
	}
	return map[string]string{"personas": strings.Join(names, ", ")}
}

// Routes implements [actor.Actor].
func (c *Committee) Routes() []actor.Route {
	return []actor.Route{
		actor.On(subjects.TurnCommittee, c.onTurn, actor.Workers(4)),
		actor.Subscribe(subjects.QueryCancel, c.onCancel),
		actor.Serve(subjects.SessionChangeCommittee, c.onSessionChange, actor.Workers(1)),
	}
}

// onTurn answers one question. It returns nil when the answer is stored, also when it was stored before or by another
// process. It rejects a message without a session and a query id: only the router publishes turns. Any other error has
// the message delivered again; on the last attempt the answer says that it failed.
func (c *Committee) onTurn(ctx context.Context, in actor.Msg[subjects.Query], out actor.Out) error {
	if len(in.Tokens) != 1 || subjects.CheckToken(in.Tokens[0]) != nil || subjects.CheckToken(in.Body.QueryID) != nil {
		return subjects.Faultf(subjects.CodeMalformed, "a turn needs a valid session and query id; only the router "+
			"publishes turns")
	}
	unlock, err := c.sessions.lock(ctx, in.Tokens[0])
	if err != nil {
		return err
	}
	defer unlock()
	t := c.newTurn(in, out)
	err = t.run(ctx)
	if errors.Is(err, errNotOwner) {
		return t.awaitOtherOwner(ctx)
	}
	return err
}

// onCancel cancels a query that is running here, or that will.
func (c *Committee) onCancel(_ context.Context, in actor.Msg[subjects.Cancel], _ actor.Out) error {
	if len(in.Tokens) == 1 && subjects.CheckToken(in.Tokens[0]) == nil {
		c.cancels.Cancel(in.Tokens[0])
	}
	return nil
}

// sessionLocks let one turn of a session run at a time in this process, so that each has the answers before it in its
// history.
type sessionLocks struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed when the turn has ended
}

// lock waits until no turn of the session runs, or fails when ctx ends. The caller must call unlock.
func (l *sessionLocks) lock(ctx context.Context, session string) (unlock func(), err error) {
	for {
		l.mu.Lock()
		running, busy := l.held[session]
		if !busy {
			if l.held == nil {
				l.held = map[string]chan struct{}{}
			}
			done := make(chan struct{})
			l.held[session] = done
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				delete(l.held, session)
				close(done)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
