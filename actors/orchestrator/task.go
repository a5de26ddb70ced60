package orchestrator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/respondent"
	"conclave/subjects"
)

// task is one attempt, in this process, to carry out one task. It implements [respondent.Work].
type task struct {
	*respondent.Turn[taskRecord]
	o       *Orchestrator
	past    sessionRecord // the session when the task began; read-only
	resumed bool          // an earlier attempt left a record
	report  string        // of the model
}

// Run implements [respondent.Work]: it carries out the task until there is a report. A pause gives its slot to others.
func (t *task) Run(ctx context.Context) error {
	switch r := t.Record(); {
	case t.isTooLong():
		return errTooLong
	case r.Stalled >= maxStalled:
		return respondent.ErrExhausted
	case t.resumed:
		t.EmitState(subjects.AgentState{To: r.State, Code: subjects.NoteResumed, Words: "resumed after an " +
			"interruption; it was " + r.State})
	}
	for {
		if err := t.awaitSlot(ctx); err != nil {
			return err
		}
		if err := t.update(ctx, "task.run", func(r *taskRecord) { r.Stalled++ }); err != nil {
			<-t.o.slots
			return err
		}
		held, stop := t.watchControl(ctx)
		report, err := t.advance(held)
		cause := context.Cause(held)
		stop()
		<-t.o.slots
		switch {
		case ctx.Err() != nil: // shutdown, or canceled
			return context.Cause(ctx)
		case errors.Is(err, respondent.ErrNotOwner):
			return err
		case errors.Is(cause, agent.ErrCanceled):
			return cause
		case errors.Is(cause, errPaused):
			if err := t.awaitResume(ctx); err != nil {
				return err
			}
		case err != nil && !isAnswerable(err):
			return errors.Join(respondent.ErrNotStored, err)
		default:
			t.report = report
			return err
		}
	}
}

// Enter implements [respondent.Work].
func (t *task) Enter(ctx context.Context, s respondent.Stage) {
	if s != respondent.Finished {
		return
	}
	r := t.snapshot()
	t.emitProgress(subjects.TaskProgress{State: r.State, Text: "finished", Subtasks: r.Subtasks})
	t.EmitState(subjects.AgentState{From: subjects.TaskReporting, To: r.State, Event: "FINISH"})
	t.shrinkWorks(ctx, r.Subtasks)
}

// isTooLong reports whether the task with its attachments does not fit into a record.
func (t *task) isTooLong() bool {
	data, err := json.Marshal(subjects.Query{Query: t.Query.Query, Attachments: t.Query.Attachments})
	return err != nil || len(data) > maxQuestion
}

// isAnswerable reports whether an error ends the task or the subtask with a report about it: an error of the model, of
// another actor's reply, or of the plan. Any other is retried.
func isAnswerable(err error) bool {
	return actor.IsReplyFault(err) || isModelError(err) ||
		model.IsAny(err, errInvalidPlan, errDemoModel, errNothingPlanned, errNoTokens, respondent.ErrTooLarge)
}

// awaitSlot waits until this process may run one more task.
func (t *task) awaitSlot(ctx context.Context) error {
	select {
	case t.o.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// advance makes the plan, carries it out, extends it after failures, and returns the model's report, "" when there is
// none. It goes on where an earlier attempt stopped. The end of ctx, also by a pause, is an error.
func (t *task) advance(ctx context.Context) (report string, err error) {
	if ctx.Err() != nil { // canceled before it began
		return "", ctx.Err()
	}
	if len(t.snapshot().Subtasks) == 0 {
		if err := t.setState(ctx, subjects.TaskPlanning); err != nil {
			return "", err
		}
		if err := t.makePlan(ctx); err != nil {
			return "", err
		}
	}
	if err := t.setState(ctx, subjects.TaskRunning); err != nil {
		return "", err
	}
	for {
		if err := t.runPlan(ctx); err != nil {
			return "", err
		}
		extended, err := t.extendPlan(ctx)
		if err != nil {
			return "", err
		}
		if !extended {
			break
		}
	}
	if err := t.setState(ctx, subjects.TaskReporting); err != nil {
		return "", err
	}
	report = t.writeReport(ctx)
	return report, ctx.Err()
}

// setState stores and publishes a state of the task, when it is another one.
func (t *task) setState(ctx context.Context, state string) error {
	before := t.snapshot().State
	if before != state {
		if err := t.update(ctx, "task.state", func(r *taskRecord) { r.State = state }); err != nil {
			return err
		}
	}
	t.State = state
	t.EmitState(subjects.AgentState{From: before, To: state, Event: strings.ToUpper(state)})
	t.emitProgress(subjects.TaskProgress{State: state})
	return nil
}

// makePlan asks the model for a plan and stores it. An invalid one is sent back with the error, twice; then the error
// is errInvalidPlan with the reason. The built-in demo model is not asked: errDemoModel.
func (t *task) makePlan(ctx context.Context) error {
	if t.o.models.Role(ctx, t.Out, subjects.RoleOrchestrator).DemoModel {
		return errDemoModel
	}
	added, err := t.askPlan(ctx, t.planMessages(), nil)
	switch {
	case errors.Is(err, errEmptyPlan):
		return errNothingPlanned
	case err != nil:
		return err
	}
	return t.storePlan(ctx, added)
}

// storePlan adds subtasks to the plan and publishes it.
func (t *task) storePlan(ctx context.Context, added []subjects.Subtask) error {
	err := t.update(ctx, "task.plan", func(r *taskRecord) {
		r.Subtasks = append(r.Subtasks, added...)
		r.Stalled = 0
	})
	if err != nil {
		return err
	}
	t.emitProgress(subjects.TaskProgress{
		State: t.snapshot().State,
		Text:  fmt.Sprintf("a plan of %d subtasks", len(t.snapshot().Subtasks)), Subtasks: t.snapshot().Subtasks,
	})
	return nil
}

// planRetries is how often an invalid plan or return is sent back to the model.
const planRetries = 2

// askPlan asks the model for subtasks, with existing as those of the plan that it extends. An invalid reply is sent
// back with the error planRetries times; then the error is errInvalidPlan. A plan without subtasks is errEmptyPlan.
func (t *task) askPlan(ctx context.Context, messages []model.Message, existing []subjects.Subtask) ([]subjects.Subtask,
	error,
) {
	var invalid error
	for range planRetries + 1 {
		reply, err := t.askJSON(ctx, jsonRequest{
			role: subjects.RoleOrchestrator, hint: t.Record().Hint,
			messages: messages, schema: planSchema,
		})
		if err != nil {
			return nil, fmt.Errorf("planning: %w", err)
		}
		added, err := parsePlan(reply, existing)
		if err == nil || errors.Is(err, errEmptyPlan) {
			return added, err
		}
		invalid = err
		messages = append(messages, model.Message{Role: model.Assistant, Content: reply},
			model.Message{Role: model.User, Content: "This plan is invalid: " + err.Error() + ". Reply with the " +
				"corrected JSON object only."})
	}
	return nil, fmt.Errorf("%w: %v", errInvalidPlan, invalid)
}

// planMessages is the prompt of a new plan: the system prompt, the earlier tasks of the session, and the user's words.
// Attachments are untrusted content, which only agents read; they are counted here.
func (t *task) planMessages() []model.Message {
	out := []model.Message{{Role: model.System, Content: readPrompt("planner")}}
	if earlier := t.past.describe(); earlier != "" {
		out = append(out, model.Message{Role: model.User, Content: "Earlier tasks of this session, for reference " +
			"only:\n" + earlier}, model.Message{Role: model.Assistant, Content: "Noted."})
	}
	question := "Task: " + t.Record().Query
	if n := len(t.Record().Attachments); n > 0 {
		question += fmt.Sprintf("\n\nThe user attached %d text(s) or image(s), which every agent is given.", n)
	}
	return append(out, model.Message{Role: model.User, Content: question + "\n\nReply with the plan as JSON."})
}

// extendPlan asks for more subtasks after some failed, at most Replans times, and reports whether there are any. The
// prompt has the plan, its states and filtered summaries. A model that fails or gives up ends the plan as it is.
func (t *task) extendPlan(ctx context.Context) (bool, error) {
	r := t.snapshot()
	failed := false
	for _, s := range r.Subtasks {
		failed = failed || s.State == subjects.SubtaskFailed
	}
	if !failed || r.Replans >= t.o.cfg.Replans || len(r.Subtasks) >= subjects.MaxSubtasks || t.tokensLeft() == 0 {
		return false, nil
	}
	f := t.newFilter()
	messages := append(t.planMessages(), model.Message{Role: model.User, Content: "The plan so far, with what became " +
		"of it:\n" + describePlan(r.Subtasks, f) +
		"\n\nSome subtasks failed. Reply with further subtasks that reach the goal in another way, with new ids; " +
		"they may depend on subtasks that are done. " +
		`If nothing else can be tried, reply with {"subtasks":[]}.`})
	added, err := t.askPlan(ctx, messages, r.Subtasks)
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if err := t.update(ctx, "task.replan", func(r *taskRecord) { r.Replans++ }); err != nil {
		return false, err
	}
	if err != nil {
		if !errors.Is(err, errEmptyPlan) {
			t.Out.LogError(fmt.Errorf("extending the plan: %w", err))
		}
		return false, nil
	}
	return true, t.storePlan(ctx, added)
}

// planLine is a subtask in the orchestrator's own prompts.
type planLine struct {
	ID        string   `json:"id"`
	Title     string   `json:"title"`
	Agent     string   `json:"agent"`
	DependsOn []string `json:"depends_on,omitempty"`
	State     string   `json:"state"`
	Quality   string   `json:"result_quality,omitempty"`
	Summary   string   `json:"summary,omitempty"`
	Reason    string   `json:"failure_reason,omitempty"`
	Files     int      `json:"files,omitempty"`
}

// describePlan is the plan with its states as JSON, one subtask a line, for the orchestrator's own prompts. Texts of
// agents are filtered; files are only counted, because an agent chose their names.
func describePlan(all []subjects.Subtask, f filter) string {
	lines := make([]string, 0, len(all))
	for _, s := range all {
		l := planLine{ID: s.ID, Title: s.Title, Agent: s.Agent, DependsOn: s.DependsOn, State: s.State}
		if r := s.Return; r != nil {
			l.Quality, l.Summary, l.Reason, l.Files = r.ResultQuality, f.apply(r.Summary), f.apply(r.FailureReason),
				len(r.Artifacts)
		}
		data, err := json.Marshal(l)
		if err == nil {
			lines = append(lines, string(data))
		}
	}
	return strings.Join(lines, "\n")
}

// newFilter is the filter of summaries: words of the user and of the plan pass.
func (t *task) newFilter() filter {
	r := t.snapshot()
	allowed := []string{r.Query}
	for _, s := range r.Subtasks {
		allowed = append(allowed, s.Title, s.Instructions)
	}
	return newFilter(allowed...)
}

// addUsage adds tokens to the task's sum. They are stored with the next write.
func (t *task) addUsage(u loop.Usage) {
	t.Edit(func(r *taskRecord) {
		r.Tokens += u.Prompt + u.Output
		r.Usage.PromptTokens += u.Prompt
		r.Usage.CompletionTokens += u.Output
		r.Usage.ModelCalls += u.Calls
		r.Usage.Hosts = subjects.AddHosts(r.Usage.Hosts, subjects.JoinHosts(u.Hosts))
	})
}

// tokensLeft is what is left of the session's token budget; -1 = there is no budget, 0 = it is used up.
func (t *task) tokensLeft() int {
	if t.o.cfg.SessionTokens == 0 {
		return -1
	}
	return max(0, t.o.cfg.SessionTokens-t.past.tokensWithout(t.Query.QueryID)-t.Record().Tokens)
}

// emitProgress publishes a change of the task without waiting: it is a view of the task, and a failure is only logged.
func (t *task) emitProgress(p subjects.TaskProgress) {
	p.TaskID = t.Query.QueryID
	actor.EmitView(context.Background(), t.Out, subjects.TaskProgressEvent, p, p.TaskID)
}
