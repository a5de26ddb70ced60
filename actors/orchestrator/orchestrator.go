// Package orchestrator carries out tasks: it asks a model for a plan, has spawned agents work on its subtasks, and
// reports.
//
// It listens on turn.orchestrator.<session>, stored in TURNS, and on query.cancel.<query>; it serves task.change, which
// pauses, resumes or cancels a task. It asks agent.spawn, broker.discover, tool.request.<tool>.<agent>, model.list and
// model.chat. It speaks on task.progress.<task>, agent.return.<task>, agent.state.orchestrator, response.generation,
// answer.dialog and response.delta.<query>.
//
// Its own prompts hold the user's words, the plan, states and filtered summaries, never the text of a tool, file, page
// or memory: see filter.go. The agents run here, each under the identity that the broker gave it, and hand back a
// structured return.
//
// Every step is checkpointed. After a crash the task resumes, in this process or in another: finished subtasks are not
// redone, and the broker's ledger keeps a call from running twice.
package orchestrator

import (
	"context"
	"errors"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/respondent"
	"conclave/subjects"
)

// Audit is the audit log of the actor.
type Audit interface {
	actor.AuditLog
	Close(ctx context.Context) error
}

// Hasher makes the keyed hash of a request.
type Hasher interface{ Hash(params []byte) string }

// Orchestrator is the actor. Several may run, in one process or in many: they share the consumer of tasks.
type Orchestrator struct {
	cfg      Config
	audit    Audit
	gate     *actor.Gate
	hash     Hasher
	models   agent.Models
	cancels  agent.Cancellations
	controls controls
	slots    chan struct{} // one for each task that runs
}

// New returns an orchestrator. cfg must be valid.
func New(cfg Config, a Audit, h Hasher) *Orchestrator {
	gate := &actor.Gate{Log: a, Timeout: cfg.AuditTimeout, TypeOf: func(string) string {
		return "user"
	}, NotDone: "the task was not changed", Done: "the task was changed"}
	return &Orchestrator{cfg: cfg, audit: a, gate: gate, hash: h, slots: make(chan struct{}, cfg.Tasks)}
}

// Name implements [actor.Actor].
func (o *Orchestrator) Name() string { return subjects.Orchestrator }

// waitingTasks bounds the tasks that this process holds: those that run, those that wait for a slot, and paused ones.
const waitingTasks = 32

// Routes implements [actor.Actor].
func (o *Orchestrator) Routes() []actor.Route {
	return []actor.Route{
		actor.On(subjects.TurnTask, o.onTask, actor.Workers(waitingTasks)),
		actor.Subscribe(subjects.QueryCancel, o.onCancel),
		actor.Serve(subjects.TaskChangeService, o.onChange, actor.Workers(4),
			o.gate.OnReject(subjects.ActionTaskChange, nil)),
	}
}

// Close implements [actor.Closer].
func (o *Orchestrator) Close(ctx context.Context) error {
	return errors.Join(o.gate.Close(ctx), o.audit.Close(ctx))
}

// onTask carries out one task. It returns nil when its report is published, now or before. It rejects a message without
// a session and a query id: only the router publishes tasks. Any other error has the message delivered again, and the
// task resumes.
func (o *Orchestrator) onTask(ctx context.Context, in actor.Msg[subjects.Query], out actor.Out) error {
	if len(in.Tokens) != 1 || subjects.CheckToken(in.Tokens[0]) != nil || subjects.CheckToken(in.Body.QueryID) != nil {
		return subjects.Faultf(subjects.CodeMalformed, "a task needs a valid session and query id; only the router "+
			"publishes tasks")
	}
	t := o.newTask(in, out)
	err := t.run(ctx)
	switch {
	case errors.Is(err, respondent.ErrNotOwner):
		return t.awaitOtherOwner(ctx)
	case err != nil && ctx.Err() == nil && in.Attempt >= subjects.MaxDeliver: // it is not delivered again
		out.LogError(err)
		return t.finish(ctx, subjects.TaskFailed, "", errRetriesExhausted)
	}
	return err
}

// onCancel cancels a task that runs here, or that will.
func (o *Orchestrator) onCancel(_ context.Context, in actor.Msg[subjects.Cancel], _ actor.Out) error {
	if len(in.Tokens) == 1 && subjects.CheckToken(in.Tokens[0]) == nil {
		o.cancels.Cancel(in.Tokens[0])
	}
	return nil
}

// Errors of a task that are not a model's.
var (
	errRetriesExhausted = errors.New("carrying out this task failed each time it was tried")
	errInvalidPlan      = errors.New("the model made no valid plan")
	errDemoModel        = errors.New("the built-in demo model follows fixed rules and cannot plan a task")
	errNothingPlanned   = errors.New("the model found nothing to do for this task")
	errTooLong          = errors.New("the task with its attachments is too long to be stored")
	errNoTokens         = errors.New("the token budget of this session is used up (session_tokens in " +
		"orchestrator.yaml)")
)

// explain converts an error to a fault for programs and a text for the user.
func explain(err error) (*subjects.Fault, string) {
	return agent.Explain(err,
		agent.Explanation{
			Err: errRetriesExhausted, Code: subjects.CodeInternal, Say: errRetriesExhausted.Error(),
			Advice: "What is done so far is kept. Look into the log of the orchestrator, then give the task again.",
		},
		agent.Explanation{Err: errInvalidPlan, Code: subjects.CodeModelMalformed, Advice: "Put the task differently, " +
			"or choose another model for the role orchestrator in models.yaml."},
		agent.Explanation{
			Err: errDemoModel, Code: subjects.CodeModelUnreachable, Say: errDemoModel.Error(),
			Advice: "Install Ollama and fetch a model (conclave doctor shows how), then give the task again.",
		},
		agent.Explanation{
			Err: errNothingPlanned, Code: subjects.CodeModelMalformed, Say: errNothingPlanned.Error(),
			Advice: "Put the task differently.",
		},
		agent.Explanation{
			Err: errTooLong, Code: subjects.CodeTooLarge, Say: errTooLong.Error(),
			Advice: "Shorten it, then give it again.",
		},
		agent.Explanation{
			Err: respondent.ErrTooLarge, Code: subjects.CodeTooLarge, Say: "the work has grown too large to store",
			Advice: "Ask for less at once.",
		},
		agent.Explanation{
			Err: errNoTokens, Code: subjects.CodeLimit, Say: errNoTokens.Error(),
			Advice: "Raise it, or give the rest of the task in a new session.",
		},
	)
}
