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
	"strings"
	"sync"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/respondent"
	"conclave/subjects"
)

// name is the actor's, its account and its respondent id.
const name = subjects.Committee

// Committee is the actor. Several may run: they share the questions.
type Committee struct {
	respondent.Respondent[record]
	cfg      Config
	sessions sessionLocks
}

// New returns a committee. cfg must be valid, and the prompt of each persona set: see [Config.WithPrompts].
func New(cfg Config) *Committee {
	c := &Committee{cfg: cfg}
	c.Respondent = respondent.Respondent[record]{
		Account: name, Tokens: 1, Bucket: records, Key: func(_, query string) string { return recordKey(query) },
		Fields: func(r *record) respondent.Fields {
			return respondent.Fields{
				QueryID: &r.QueryID, Owner: &r.Owner, Stalled: &r.Stalled, Written: &r.Written, Pending: &r.Answer,
				Published: &r.Published,
			}
		},
		New: func(t *respondent.Turn[record]) respondent.Work[record] {
			return &turn{Turn: t, c: c, labels: agent.LabelQuestion(t.Query, t.Session)}
		},
		Patience: cfg.Wall,
	}
	return c
}

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
		actor.Subscribe(subjects.QueryCancel, c.OnCancel),
		actor.Serve(subjects.SessionChangeCommittee, c.onSessionChange, actor.Workers(1)),
	}
}

// onTurn answers one question, after those of its session before it.
func (c *Committee) onTurn(ctx context.Context, in actor.Msg[subjects.Query], out actor.Out) error {
	unlock, err := c.sessions.lock(ctx, strings.Join(in.Tokens, "."))
	if err != nil {
		return err
	}
	defer unlock()
	return c.OnTurn(ctx, in, out)
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
