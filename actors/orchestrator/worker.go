package orchestrator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/firewall"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/policy"
	"conclave/pkg/respondent"
	"conclave/pkg/text"
	"conclave/subjects"
)

// worker is the work of one spawned agent on a subtask, or on checking one.
type worker struct {
	t       *task
	kind    string // kindSubtask or kindCheck
	subtask subjects.Subtask
	agent   *agent.Agent
	got     agent.Collection

	mu     sync.Mutex // guards record and rev: calls run at the same time
	record workRecord
	rev    uint64
}

// runSubtask works on a subtask until its return is stored and published. An error means that it has to be resumed; a
// subtask that cannot be done is no error but a failed return.
func (t *task) runSubtask(ctx context.Context, s subjects.Subtask) error {
	w, err := t.openWork(ctx, kindSubtask, s)
	if err != nil {
		return err
	}
	if s.Began.IsZero() || s.State != subjects.SubtaskRunning {
		if err := t.updateSubtask(ctx, "subtask.start", s.ID, func(s *subjects.Subtask) {
			s.State = subjects.SubtaskRunning
			if s.Began.IsZero() {
				s.Began = t.Out.Now().UTC()
			}
		}); err != nil {
			return err
		}
	}
	w.emitProgress(subjects.SubtaskRunning, "")
	if w.record.Return == nil {
		ret, err := w.do(ctx)
		if err != nil {
			return err
		}
		if err := w.storeReturn(ctx, ret); err != nil {
			return err
		}
	}
	if err := w.publishReturn(ctx); err != nil {
		return err
	}
	ret, doubt := *w.record.Return, ""
	if ret.Status != subjects.ReturnFailed && ret.ResultQuality == subjects.QualityUncertain {
		if ret, doubt, err = w.secondOpinion(ctx, ret); err != nil {
			return err
		}
	}
	return w.end(ctx, ret, doubt)
}

// end stores and publishes the end of the subtask.
func (w *worker) end(ctx context.Context, ret subjects.AgentReturn, doubt string) error {
	state := subjects.SubtaskDone
	if ret.Status == subjects.ReturnFailed {
		state = subjects.SubtaskFailed
	}
	labels := w.labels()
	err := w.t.update(ctx, "subtask.end", func(r *taskRecord) {
		for i := range r.Subtasks {
			if s := &r.Subtasks[i]; s.ID == w.subtask.ID {
				s.State, s.Return, s.Doubt = state, &ret, doubt
				s.Ended, s.Calls, s.Child = w.t.Out.Now().UTC(), w.countCalls(), w.record.Child
			}
		}
		r.Labels, r.Stalled = r.Labels.Join(labels), 0
	})
	if err == nil {
		w.emitProgress(state, cmp.Or(ret.FailureReason, doubt))
	}
	return err
}

// openWork loads the work on a subtask and stores it under this attempt, so that an earlier one cannot go on with it.
func (t *task) openWork(ctx context.Context, kind string, s subjects.Subtask) (*worker, error) {
	w := &worker{t: t, kind: kind, subtask: s}
	for range 8 {
		v, err := works.Load(ctx, t.Out, w.key())
		if err != nil {
			return nil, err
		}
		w.record, w.rev = v.Value, v.Revision
		w.record.Owner = t.Owner
		if err = w.store(ctx, "work.claim"); !errors.Is(err, respondent.ErrNotOwner) {
			if w.record.Child != "" {
				w.agent = w.agentOf(w.record.Child)
			}
			return w, err
		}
		if err := t.checkOwner(ctx); err != nil {
			return nil, err
		}
	}
	return nil, subjects.Faultf(subjects.CodeBusy, "claiming the work on a subtask: others kept changing it")
}

// checkOwner fails with respondent.ErrNotOwner when another process has claimed the task.
func (t *task) checkOwner(ctx context.Context) error {
	v, err := tasks.Load(ctx, t.Out, subjects.TaskKey(t.Query.QueryID))
	if err == nil && v.Value.Owner != t.Owner {
		err = respondent.ErrNotOwner
	}
	return err
}

func (w *worker) key() string { return workKey(w.t.Query.QueryID, w.kind, w.subtask.ID) }

// store writes the record, also when ctx has ended: see [respondent.StoreOwned].
func (w *worker) store(ctx context.Context, step string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	stored, err := respondent.StoreOwned(ctx, w.t.Out, works, step, w.key(), actor.Versioned[workRecord]{
		Value:    w.record,
		Revision: w.rev,
	}, func(r *workRecord) string { return r.Owner })
	if err == nil {
		w.rev = stored.Revision
	}
	return err
}

// agentOf is the agent of the account with this name, spawned before.
func (w *worker) agentOf(child string) *agent.Agent {
	a := w.rootAgent()
	a.Path, a.Scope = []string{child}, strings.TrimSpace(a.Scope+" "+child)
	return a
}

// rootAgent is the orchestrator's own account, below which agents are spawned. Call ids are made from the work and the
// agent.
func (w *worker) rootAgent() *agent.Agent {
	return &agent.Agent{
		Out: w.t.Out, Session: w.t.Session, Query: w.t.Query.QueryID, Scope: w.kind + " " + w.subtask.ID,
		ToolTimeout: w.t.o.cfg.ToolTimeout, MaxResult: int(w.t.o.cfg.Result), OnResult: w.onResult,
	}
}

// onResult collects the labels, memories and files of a result.
func (w *worker) onResult(_ string, res subjects.ToolResult) {
	w.got.Add(res)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range res.Artifacts {
		if len(w.record.Artifacts) < maxArtifacts && filepath.IsAbs(a) && !slices.Contains(w.record.Artifacts, a) {
			w.record.Artifacts = append(slices.Clone(w.record.Artifacts), filepath.Clean(a))
		}
	}
}

// maxArtifacts bounds the files of one agent.
const maxArtifacts = 100

// labels joins the labels of the results of all attempts.
func (w *worker) labels() *subjects.Labels {
	l, _ := w.got.Result()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.record.Labels.Join(l)
}

// do spawns the agent, has it work, verifies its work, and returns its return. The work resumes from its checkpoint. An
// error means that it has to be resumed later; every failure of the model, a tool or the broker is a failed return.
func (w *worker) do(ctx context.Context) (subjects.AgentReturn, error) {
	if w.t.tokensLeft() == 0 {
		return failedReturn(errNoTokens.Error()), nil
	}
	if w.agent == nil {
		child, _, err := w.rootAgent().Spawn(ctx, subjects.SpawnRequest{
			Type: w.subtask.Agent, Tools: w.subtask.Tools, Plan: w.t.planWords(),
		})
		switch {
		case ctx.Err() != nil:
			return subjects.AgentReturn{}, context.Cause(ctx)
		case err != nil:
			return failedReturn("no agent could be spawned: " + describeError(err)), nil
		}
		w.agent, w.record.Child = child, child.Path[0]
		if err := w.store(ctx, "work.spawn"); err != nil {
			return subjects.AgentReturn{}, err
		}
		w.emitProgress(subjects.SubtaskRunning, "")
	}
	for {
		if err := w.runLoop(ctx); err != nil || ctx.Err() != nil {
			return w.failOrRetry(ctx, err)
		}
		again, err := w.verify(ctx)
		if err != nil {
			return subjects.AgentReturn{}, err
		}
		if !again {
			break
		}
	}
	ret, err := w.requestReturn(ctx)
	if err != nil {
		return w.failOrRetry(ctx, err)
	}
	return ret, nil
}

// failOrRetry decides about an error of the work: a failed return for an error of the model and of limits, and the
// error itself when the work has to be resumed.
func (w *worker) failOrRetry(ctx context.Context, err error) (subjects.AgentReturn, error) {
	switch {
	case ctx.Err() != nil:
		return subjects.AgentReturn{}, cmp.Or(context.Cause(ctx), ctx.Err())
	case isAnswerable(err):
		return failedReturn(describeError(err)), nil
	}
	return subjects.AgentReturn{}, err
}

// describeError words an error for the user. An unknown error is not quoted.
func describeError(err error) string {
	fault, _ := explain(err)
	return fault.Text
}

// runLoop runs the agent's loop to its answer, from its checkpoint. Nothing is left to do after a final state.
func (w *worker) runLoop(ctx context.Context) error {
	if w.record.State != nil && w.record.State.Final {
		return nil
	}
	cfg, role := w.t.o.cfg, roleOf(w.subtask.Agent)
	info := w.t.o.models.Role(ctx, w.t.Out, role)
	tools, unavailable, err := w.agent.Discover(ctx,
		text.Clip(w.subtask.Title+"\n"+w.subtask.Instructions, 4<<10), cfg.MaxTools)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.emitNote(subjects.NoteNoBroker, "no tools could be used: asking the broker for tools failed")
	}
	w.mu.Lock()
	w.record.Unavailable = unavailable
	w.mu.Unlock()
	system := readPrompt(w.subtask.Agent)
	if len(unavailable) > 0 {
		system += "\n\n" + noSearch
	}
	a := agent.NewLoop(wire.Client{Out: w.t.Out, Role: role, Hint: w.subtask.Hint, Timeout: cfg.Wall}, info,
		&cfg.Thinking, cfg.loopLimits(w.t.tokensLeft()), settingsFile)
	a.RunTool, a.System, a.Tools, a.Question = w.agent.RunTool, system, tools, w.subtask.Instructions
	state := loop.State{Messages: []model.Message{w.taskMessage()}}
	if w.record.State != nil {
		state = *w.record.State
	}
	var stored error
	last, err := loop.RunTurn(ctx, a, loop.Input{State: state}, loop.Hooks{
		Note:    func(n loop.Note) { w.emitNote(n.Code, n.Text) },
		Started: func(int, model.Call, string) { w.emitProgress(subjects.SubtaskRunning, "") },
		Checkpoint: func(ctx context.Context, s *loop.State) error {
			stored = w.checkpoint(ctx, s)
			return stored
		},
	})
	if stored != nil {
		return stored
	}
	w.t.addUsage(loop.Usage{
		Calls: last.Usage.Calls - state.Usage.Calls, Prompt: last.Usage.Prompt - state.Usage.Prompt,
		Output: last.Usage.Output - state.Usage.Output,
	})
	return err
}

// noSearch tells an agent that has lost a tool how to go on without.
const noSearch = "The web cannot be searched now: write what you know yourself, and say that it was not looked up."

// checkpoint stores the progress of the loop, with the labels and memories of the results so far.
func (w *worker) checkpoint(ctx context.Context, s *loop.State) error {
	labels, recalls := w.got.Result()
	now := *s // the loop goes on with its own
	w.mu.Lock()
	w.record.State, w.record.Labels = &now, w.record.Labels.Join(labels)
	for _, id := range recalls {
		if !slices.Contains(w.record.Recalls, id) {
			w.record.Recalls = append(w.record.Recalls, id)
		}
	}
	w.mu.Unlock()
	return w.store(ctx, "work.step")
}

// roleOf is the model role of an agent type.
func roleOf(agentType string) string {
	switch agentType {
	case "researcher":
		return subjects.RoleResearcher
	case "coder", "sysadmin":
		return subjects.RoleCoder
	}
	return subjects.RoleAssistant
}

// taskMessage is the first message to the agent, behind the system prompt, which is the same for every subtask: the
// user's task, the agent's part, the working folder, and the results of the subtasks that it depends on, framed as
// untrusted content.
func (w *worker) taskMessage() model.Message {
	r := w.t.snapshot()
	var b strings.Builder
	fmt.Fprintf(&b, "The user's task, of which you do one part:\n%s\n\nYour part: %s\n%s\n", r.Query, w.subtask.Title,
		w.subtask.Instructions)
	if work := w.t.workFolder(); work != "" && (w.subtask.Agent == "coder" || w.subtask.Agent == "sysadmin") {
		fmt.Fprintf(&b, "\nThe task's working folder is %s.\n", work)
	}
	m := model.Message{Role: model.User}
	for _, s := range r.Subtasks {
		if slices.Contains(w.subtask.DependsOn, s.ID) && s.Return != nil {
			fmt.Fprintf(&b, "\nResult of %s:\n%s\n", s.ID, frame(describeReturn(s), r.Nonce))
		}
	}
	b.WriteString("\n" + agent.FrameAttachments(r.Attachments, r.Nonce))
	m.Images = agent.ListImages(w.t.Session, r.Attachments)
	m.Content = strings.TrimSpace(b.String())
	return m
}

// planWords is the text of the plan as it was made first, for the broker: a plan that was extended is made from
// results.
func (t *task) planWords() string {
	r := t.snapshot()
	if r.Replans > 0 {
		return ""
	}
	var b strings.Builder
	for _, s := range r.Subtasks {
		b.WriteString(s.Title + "\n" + s.Instructions + "\n")
	}
	return b.String()
}

// describeReturn is the result of a subtask, for other agents and the report.
func describeReturn(s subjects.Subtask) string {
	r := s.Return
	out := fmt.Sprintf("%s (%s, %s): %s", s.Title, r.Status, r.ResultQuality, r.Summary)
	if len(r.Artifacts) > 0 {
		out += "\nFiles: " + strings.Join(r.Artifacts, ", ")
	}
	if r.FailureReason != "" {
		out += "\nFailed: " + r.FailureReason
	}
	if s.Doubt != "" {
		out += "\nUncertain: " + s.Doubt
	}
	return out
}

// frame puts untrusted text into a frame that it cannot close.
func frame(s, nonce string) string { return firewall.Frame(s, nonce, firewall.Scan(s)) }

// workFolder is the working folder of the task; "" = there is none.
func (t *task) workFolder() string {
	return policy.WorkFolder(t.o.cfg.Workspace, t.Session, t.Query.QueryID)
}

// requestReturn asks the agent's model for the structured return. An invalid one is sent back with the error, twice;
// then it is a failed return.
func (w *worker) requestReturn(ctx context.Context) (subjects.AgentReturn, error) {
	messages := []model.Message{
		{Role: model.System, Content: readPrompt("return")},
		{Role: model.User, Content: w.describeWork()},
	}
	files := artifactRules{work: w.t.workFolder(), written: w.record.Artifacts}
	var invalid error
	for attempt := range planRetries + 1 {
		reply, err := w.t.askJSON(ctx, jsonRequest{
			role: roleOf(w.subtask.Agent), hint: w.subtask.Hint,
			messages: messages, schema: returnSchema,
		})
		if err != nil {
			return subjects.AgentReturn{}, fmt.Errorf("asking for the return: %w", err)
		}
		ret, err := parseReturn(reply, files, attempt == planRetries)
		if err == nil {
			return w.evidence().adjust(ret), nil
		}
		invalid = err
		messages = append(messages, model.Message{Role: model.Assistant, Content: text.Clip(reply, 4<<10)},
			model.Message{Role: model.User, Content: "This return is invalid: " + err.Error() +
				". Reply with the corrected JSON object only."})
	}
	return failedReturn("the agent gave no valid return: " + invalid.Error()), nil
}

// describeWork is the work of the agent for the model call that turns it into a return.
func (w *worker) describeWork() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Subtask: %s\n%s\n\n", w.subtask.Title, w.subtask.Instructions)
	for _, d := range w.record.State.Finished {
		fmt.Fprintf(&b, "Tool call: %s, %s\n", d.Call.Name, cmp.Or(d.Result.Fault, "ok"))
	}
	if len(w.record.Artifacts) > 0 {
		fmt.Fprintf(&b, "Files: %s\n", strings.Join(w.record.Artifacts, ", "))
	}
	if w.subtask.Verify != nil {
		outcome := "failed"
		if w.record.Passed {
			outcome = "passed"
		}
		fmt.Fprintf(&b, "Verification by the runtime: %s\n", outcome)
	}
	answer := w.record.State.Answer
	if w.record.State.Partial {
		answer += "\n[incomplete]"
	}
	fmt.Fprintf(&b, "\nThe agent's own words:\n%s\n\nReply with the return as JSON.",
		frame(text.Clip(answer, 8<<10), w.t.snapshot().Nonce))
	return b.String()
}

// evidence is what the runtime saw of the work.
func (w *worker) evidence() evidence {
	e := evidence{
		code: w.subtask.Agent == "coder", verify: w.subtask.Verify != nil && w.kind == kindSubtask,
		passed: w.record.Passed,
	}
	for _, d := range w.record.State.Finished {
		if d.Result.Fault != "" {
			continue
		}
		e.succeeded++
		if strings.HasPrefix(d.Call.Name, "web_") {
			e.web++
		}
	}
	return e
}

// storeReturn stores the return, with the id under which it is published.
func (w *worker) storeReturn(ctx context.Context, ret subjects.AgentReturn) error {
	ret.Subtask, ret.Agent = w.subtask.ID, w.record.Child
	ret.Artifacts = append([]string{}, ret.Artifacts...) // not null
	ret.Candidates = append([]string{}, ret.Candidates...)
	w.record.Return, w.record.ReturnID = &ret, w.t.Out.NewID()
	return w.store(ctx, "work.return")
}

// publishReturn publishes the stored return, once.
func (w *worker) publishReturn(ctx context.Context) error {
	topic, err := subjects.AgentReturnEvent.With(w.t.Query.QueryID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	return actor.EmitOnce(ctx, w.t.Out, topic, w.record.ReturnID, *w.record.Return)
}

// countCalls is the number of tool calls of the work so far.
func (w *worker) countCalls() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.record.State == nil {
		return len(w.record.Runs)
	}
	n := len(w.record.State.Finished) + len(w.record.Runs)
	for i, m := range w.record.State.Messages { // those that run now
		if i == len(w.record.State.Messages)-1 {
			n += len(m.Calls)
		}
	}
	return n
}

// emitProgress publishes a state of the subtask.
func (w *worker) emitProgress(state, words string) {
	p := subjects.TaskProgress{
		Subtask: w.subtask.ID, State: state, Text: text.OneLine(words, 400),
		Agent: w.record.Child, Calls: w.countCalls(),
	}
	for _, s := range w.t.snapshot().Subtasks {
		if s.ID == w.subtask.ID && !s.Began.IsZero() {
			p.Millis = w.t.Out.Now().Sub(s.Began).Milliseconds()
		}
	}
	w.t.emitProgress(p)
}

// emitNote publishes a note about the agent's work.
func (w *worker) emitNote(code, words string) {
	if w.record.Child != "" {
		w.t.EmitState(subjects.AgentState{To: subjects.SubtaskRunning, Code: code, Words: text.Clip(words, 1<<10)},
			w.record.Child)
	}
}

// encodeArguments encodes the arguments of a call by the runtime.
func encodeArguments(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage("{}")
	}
	return data
}
