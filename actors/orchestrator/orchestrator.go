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

// Orchestrator is the actor. Several may run, in one process or in many: they share the consumer of tasks.
type Orchestrator struct {
	respondent.Respondent[taskRecord]
	cfg      Config
	audit    actor.Audit
	gate     *actor.Gate
	hash     actor.Hasher
	models   agent.Models
	controls controls
	slots    chan struct{} // one for each task that runs
}

// New returns an orchestrator. cfg must be valid.
func New(cfg Config, a actor.Audit, h actor.Hasher) *Orchestrator {
	gate := &actor.Gate{Log: a, Timeout: cfg.AuditTimeout, TypeOf: func(string) string {
		return "user"
	}, NotDone: "the task was not changed", Done: "the task was changed"}
	o := &Orchestrator{cfg: cfg, audit: a, gate: gate, hash: h, slots: make(chan struct{}, cfg.Tasks)}
	o.Respondent = respondent.Respondent[taskRecord]{
		Account: subjects.Orchestrator, Tokens: 1, Unlimited: true, Patience: otherOwnerPatience, Bucket: tasks,
		Key: func(_, query string) string { return subjects.TaskKey(query) },
		Fields: func(r *taskRecord) respondent.Fields {
			return respondent.Fields{
				QueryID: &r.TaskID, Owner: &r.Owner, Stalled: &r.Stalled, Written: &r.Updated, Pending: &r.Publish,
			}
		},
		New: func(t *respondent.Turn[taskRecord]) respondent.Work[taskRecord] { return &task{Turn: t, o: o} },
	}
	return o
}

// waitingTasks bounds the tasks that this process holds: those that run, those that wait for a slot, and paused ones.
const waitingTasks = 32

// Routes implements [actor.Actor].
func (o *Orchestrator) Routes() []actor.Route {
	return []actor.Route{
		actor.On(subjects.TurnTask, o.OnTurn, actor.Workers(waitingTasks)),
		actor.Subscribe(subjects.QueryCancel, o.OnCancel),
		actor.Serve(subjects.TaskChangeService, o.onChange, actor.Workers(4),
			o.gate.OnReject(subjects.ActionTaskChange, nil)),
	}
}

// Close implements [actor.Closer].
func (o *Orchestrator) Close(ctx context.Context) error {
	return errors.Join(o.gate.Close(ctx), o.audit.Close(ctx))
}

// Errors of a task that are not a model's.
var (
	errInvalidPlan    = errors.New("the model made no valid plan")
	errDemoModel      = errors.New("the built-in demo model follows fixed rules and cannot plan a task")
	errNothingPlanned = errors.New("the model found nothing to do for this task")
	errTooLong        = errors.New("the task with its attachments is too long to be stored")
	errNoTokens       = errors.New("the token budget of this session is used up (session_tokens in " +
		"orchestrator.yaml)")
)

// explain converts an error to a fault for programs and a text for the user.
func explain(err error) (*subjects.Fault, string) {
	return agent.Explain(err,
		agent.Explanation{
			Err: respondent.ErrExhausted, Code: subjects.CodeInternal,
			Say:    "carrying out this task failed each time it was tried",
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
		agent.Explanation{
			Err: context.DeadlineExceeded, Code: subjects.CodeTimeout, Say: "the time for this task is over",
			Advice: "Give it again with more time, or ask for less at once.",
		},
	)
}
