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
	"conclave/subjects"
)

// Generator is the actor. Several may run, in one process or in many: they share the partitions of TURNS.
type Generator struct {
	name          string // the account, and the respondent id in its events
	isRespondentB bool
	cfg           Config
	sessions      *sessionCache
	cancels       agent.Cancellations
	pendingGrades gradeBuffer
	models        agent.Models
	summaries     summaries
	mu            sync.Mutex
	background    actor.Out // the runtime's own, without the ids and the deadline of a message; nil until Start
}

// New returns a generator with the name of its account: [subjects.Generator] or [subjects.RespondentB]. cfg must be
// valid.
func New(name string, cfg Config) *Generator {
	g := &Generator{name: name, isRespondentB: name == subjects.RespondentB, cfg: cfg}
	if g.isRespondentB {
		g.cfg = cfg.forRespondentB()
	}
	g.sessions = newSessionCache(g.cfg.HotSessions)
	return g
}

// Name implements [actor.Actor].
func (g *Generator) Name() string { return g.name }

// bucket is the bucket of conversations and of the records of running turns.
func (g *Generator) bucket() string { return subjects.StateBucket(g.name) }

// Routes implements [actor.Actor]. Respondent B gets no grades: its answers are not part of a conversation.
func (g *Generator) Routes() []actor.Route {
	routes := []actor.Route{
		actor.On(subjects.QuerySession, g.onTurn, actor.Workers(g.cfg.Concurrency)),
		actor.Subscribe(subjects.QueryCancel, g.onCancel),
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

// onTurn answers one question. It returns nil when the answer is stored, also when it was stored before or by another
// process, and when respondent B skips a question that is too old. It rejects a message without a session and a query
// id: only the router may publish turns. Any other error has the message delivered again; on the last attempt a failure
// is published.
func (g *Generator) onTurn(ctx context.Context, in actor.Msg[subjects.Query], out actor.Out) error {
	if len(in.Tokens) != 2 || subjects.CheckToken(in.Tokens[1]) != nil || subjects.CheckToken(in.Body.QueryID) != nil {
		return subjects.Faultf(subjects.CodeMalformed, "a turn needs a valid session and query id; only the router "+
			"publishes turns")
	}
	if g.isTooOld(in, out) {
		return nil
	}
	t := g.newTurn(in, out)
	err := t.run(ctx)
	switch {
	case errors.Is(err, errNotOwner):
		return t.awaitOtherOwner(ctx)
	case err != nil && t.isLastAttempt:
		t.emitFailure(ctx, err)
	}
	return err
}

// onCancel cancels a query that is running here, or that will.
func (g *Generator) onCancel(_ context.Context, in actor.Msg[subjects.Cancel], _ actor.Out) error {
	if len(in.Tokens) == 1 && subjects.CheckToken(in.Tokens[0]) == nil {
		g.cancels.Cancel(in.Tokens[0])
	}
	return nil
}

// systemPrompt is the system prompt of every turn: the configured one unchanged, or the shipped one.
func (g *Generator) systemPrompt() string {
	return cmp.Or(g.cfg.System, ShippedPrompt())
}
