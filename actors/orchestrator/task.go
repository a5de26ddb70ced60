package orchestrator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/respondent"
	"conclave/subjects"
)

// task is one attempt, in this process, to carry out one task.
type task struct {
	o       *Orchestrator
	out     actor.Out
	id      string // of the query
	session string
	query   subjects.Query

	mu     sync.Mutex // guards record and rev: subtasks run at the same time
	record taskRecord
	rev    uint64
	past   sessionRecord // the session when the task began; read-only

	resumed bool // an earlier attempt left a record
	notes   []subjects.Note
}

// newTask is a task for a message whose tokens and query id are valid.
func (o *Orchestrator) newTask(in actor.Msg[subjects.Query], out actor.Out) *task {
	session := in.Tokens[0]
	return &task{
		o: o, out: out.WithIDs(session, in.Body.QueryID), id: in.Body.QueryID, session: session,
		query: in.Body,
	}
}

// run carries out the task until its report is published. A pause gives its slot to others. An error means that the
// task is resumed later.
func (t *task) run(ctx context.Context) error {
	published, err := t.claim(ctx)
	if published || err != nil {
		return err
	}
	if t.past, err = t.loadSession(ctx); err != nil {
		return err
	}
	switch {
	case t.record.Publish != nil: // stored before a crash
		return t.publish(ctx)
	case t.isTooLong():
		return t.finish(ctx, subjects.TaskFailed, "", errTooLong)
	case t.record.Stalled >= maxStalled:
		return t.finish(ctx, subjects.TaskFailed, "", errRetriesExhausted)
	case t.resumed:
		t.emitState(subjects.AgentState{To: t.record.State, Code: subjects.NoteResumed, Words: "resumed after an " +
			"interruption; it was " + t.record.State})
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
		case ctx.Err() != nil: // shutdown
			return context.Cause(ctx)
		case errors.Is(err, respondent.ErrNotOwner):
			return err
		case errors.Is(cause, agent.ErrCanceled):
			return t.finish(ctx, subjects.TaskCanceled, "", nil)
		case errors.Is(cause, errPaused):
			if err := t.awaitResume(ctx); err != nil {
				return err
			}
		case err != nil && isAnswerable(err):
			return t.finish(ctx, subjects.TaskFailed, "", err)
		case err != nil:
			return err
		default:
			return t.finish(ctx, "", report, nil)
		}
	}
}

// isTooLong reports whether the task with its attachments does not fit into a record.
func (t *task) isTooLong() bool {
	data, err := json.Marshal(subjects.Query{Query: t.query.Query, Attachments: t.query.Attachments})
	return err != nil || len(data) > maxQuestion
}

// isAnswerable reports whether an error ends the task or the subtask with a report about it: an error of the model, of
// another actor's reply, or of the plan. Any other is retried.
func isAnswerable(err error) bool {
	for _, e := range []error{errInvalidPlan, errDemoModel, errNothingPlanned, errNoTokens, respondent.ErrTooLarge} {
		if errors.Is(err, e) {
			return true
		}
	}
	return actor.IsReplyFault(err) || isModelError(err)
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
	t.emitState(subjects.AgentState{From: before, To: state, Event: strings.ToUpper(state)})
	t.emitProgress(subjects.TaskProgress{State: state})
	return nil
}

// makePlan asks the model for a plan and stores it. An invalid one is sent back with the error, twice; then the error
// is errInvalidPlan with the reason. The built-in demo model is not asked: errDemoModel.
func (t *task) makePlan(ctx context.Context) error {
	if t.o.models.Role(ctx, t.out, subjects.RoleOrchestrator).DemoModel {
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
			role: subjects.RoleOrchestrator, hint: t.record.Hint,
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
	question := "Task: " + t.record.Query
	if n := len(t.record.Attachments); n > 0 {
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
			t.out.LogError(fmt.Errorf("extending the plan: %w", err))
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
	t.mu.Lock()
	defer t.mu.Unlock()
	t.record.Tokens += u.Prompt + u.Output
	t.record.Usage.PromptTokens += u.Prompt
	t.record.Usage.CompletionTokens += u.Output
	t.record.Usage.ModelCalls += u.Calls
	t.record.Usage.Hosts = subjects.AddHosts(t.record.Usage.Hosts, subjects.JoinHosts(u.Hosts))
}

// tokensLeft is what is left of the session's token budget; -1 = there is no budget, 0 = it is used up.
func (t *task) tokensLeft() int {
	if t.o.cfg.SessionTokens == 0 {
		return -1
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(0, t.o.cfg.SessionTokens-t.past.tokensWithout(t.id)-t.record.Tokens)
}

// emitProgress publishes a change of the task without waiting: it is a view of the task, and a failure is only logged.
func (t *task) emitProgress(p subjects.TaskProgress) {
	topic, err := subjects.TaskProgressEvent.With(t.id)
	if err == nil {
		p.TaskID = t.id
		err = actor.EmitAsync(context.Background(), t.out, topic, p)
	}
	if err != nil {
		t.out.LogError(err)
	}
}

// emitState publishes a state of the orchestrator, or of an agent below it.
func (t *task) emitState(s subjects.AgentState, path ...string) {
	s.SessionID, s.QueryID = t.session, t.id
	agent.EmitState(t.out, s, append([]string{subjects.Orchestrator}, path...)...)
}
