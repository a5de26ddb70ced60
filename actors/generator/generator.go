// Package generator answers questions: it sends a question, the conversation so far and a few tools to a model, runs
// the model's calls through the broker, and stores the answer.
//
// It listens on query.session.<session>, stored in TURNS, on query.cancel.<query>, and on critique.result and
// reward.event, which grade its answers; it serves session.change, which deletes or summarizes a conversation. It asks
// broker.discover, tool.request.<tool>, model.list and model.chat. It speaks on response.generation, answer.dialog,
// agent.state.<name>, response.delta.<query> and response.thinking.<query>.
//
// A turn is checkpointed before it acts. After a crash it resumes from its checkpoint, in this process or in another,
// and its answer is stored once.
//
// The same code under the name [subjects.RespondentB] answers the same questions for comparison: see respondent_b.go.
package generator

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/respondent"
	"conclave/subjects"
)

// Generator is the actor. Several may run, in one process or in many: they share the partitions of TURNS.
type Generator struct {
	respondent.Respondent[turnRecord]
	isRespondentB bool
	cfg           Config
	sessions      *sessionCache
	pendingGrades gradeBuffer
	models        agent.Models
	summaries     summaries
	mu            sync.Mutex
	background    actor.Out // the runtime's own, without the ids and the deadline of a message; nil until Start
}

// New returns a generator with the name of its account: [subjects.Generator] or [subjects.RespondentB]. cfg must be
// valid.
func New(name string, cfg Config) *Generator {
	g := &Generator{isRespondentB: name == subjects.RespondentB, cfg: cfg}
	if g.isRespondentB {
		g.cfg = cfg.forRespondentB()
	}
	g.Respondent = respondent.Respondent[turnRecord]{
		Account: name, Tokens: 2, Hidden: g.isRespondentB, Patience: cfg.Wall,
		Bucket: actor.Bucket[turnRecord]{Name: subjects.StateBucket(name), MaxSize: maxRecord},
		Key:    func(session, _ string) string { return turnKey(session) },
		Fields: func(r *turnRecord) respondent.Fields {
			return respondent.Fields{
				QueryID: &r.QueryID, Owner: &r.Owner, Stalled: &r.Stalled, Written: &r.Written, Pending: &r.Publish,
			}
		},
		New: func(t *respondent.Turn[turnRecord]) respondent.Work[turnRecord] { return g.newTurn(t) },
	}
	g.sessions = newSessionCache(g.cfg.HotSessions)
	return g
}

// Routes implements [actor.Actor]. Respondent B gets no grades: its answers are not part of a conversation.
func (g *Generator) Routes() []actor.Route {
	routes := []actor.Route{
		actor.On(subjects.QuerySession, g.onTurn, actor.Workers(g.cfg.Concurrency)),
		actor.Subscribe(subjects.QueryCancel, g.OnCancel),
	}
	if g.isRespondentB {
		return routes
	}
	return append(routes,
		actor.Serve(subjects.SessionChangeService, g.onSessionChange, actor.Workers(4)),
		actor.Serve(subjects.SessionContextService, g.onContext, actor.Workers(4)),
		actor.Subscribe(subjects.CritiqueResult, g.onCritique, actor.Workers(1)),
		actor.Subscribe(subjects.RewardEvent, g.onReward, actor.Workers(1)))
}

// Start implements [actor.Starter].
func (g *Generator) Start(_ context.Context, out actor.Out) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.background = out
	return nil
}

// Close implements [actor.Closer]: it cancels the summaries in the background and waits for them. It fails when they
// have not ended before ctx. An unfinished summary is made after a later turn.
func (g *Generator) Close(ctx context.Context) error {
	g.summaries.cancelAll()
	ended := make(chan struct{})
	go func() {
		g.summaries.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return errors.New("closing the generator: timeout waiting for a summary")
	}
}

// onTurn answers one question, see [respondent.Respondent.OnTurn]. Respondent B skips one that is too old.
func (g *Generator) onTurn(ctx context.Context, in actor.Msg[subjects.Query], out actor.Out) error {
	if g.isTooOld(in, out) {
		return nil
	}
	return g.OnTurn(ctx, in, out)
}

// systemPrompt is the system prompt of every turn: the configured one unchanged, or the shipped one.
func (g *Generator) systemPrompt() string {
	return cmp.Or(g.cfg.System, ShippedPrompt())
}
