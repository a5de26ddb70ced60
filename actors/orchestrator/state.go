package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/respondent"
	"conclave/pkg/text"
	"conclave/subjects"
)

// bucket is the bucket of tasks, of the work of agents, of the user's changes and of sessions.
var bucket = subjects.StateBucket(subjects.Orchestrator)

const (
	maxRecord    = 900 << 10        // bytes; below the limit of the bucket
	storeTimeout = 10 * time.Second // of one write
	maxQuestion  = 128 << 10        // bytes of a task with its attachments
	maxStalled   = 8                // runs of a task without progress, after which it fails
)

// Keys in the bucket. A task has its own key, see [subjects.TaskKey].
func workKey(task, kind, subtask string) string { return "work." + task + "." + kind + "." + subtask }
func controlKey(task string) string             { return "ctl." + task }
func sessionKey(session string) string          { return "session." + session }

// Kinds of work.
const (
	kindSubtask = "sub"   // the work on a subtask
	kindCheck   = "check" // a second agent that checks it
)

// taskRecord is the checkpoint of a task. It is also its lock: each write names the revision of the one before, so of
// two processes with the same task only one can go on.
type taskRecord struct {
	subjects.Task

	Owner   string `json:"owner"`             // id of the attempt that holds the task
	Stalled int    `json:"stalled,omitempty"` // times it began to run since its last progress
	// of the frames around untrusted content, unpredictable
	Nonce       string                `json:"nonce"`
	Attachments []subjects.Attachment `json:"attachments,omitempty"`
	Hint        string                `json:"hint,omitempty"`
	Replans     int                   `json:"replans,omitempty"`
	Usage       subjects.Usage        `json:"usage"`
	Labels      *subjects.Labels      `json:"labels,omitempty"` // joined from all results so far
	Publish     *respondent.Pending   `json:"publish,omitempty"`
	Published   bool                  `json:"published,omitempty"`
}

// workRecord is the checkpoint of an agent's work.
type workRecord struct {
	Owner     string                `json:"owner"`
	Child     string                `json:"child,omitempty"` // the spawned agent
	State     *loop.State           `json:"state,omitempty"`
	Failed    int                   `json:"failed,omitempty"` // verifications that failed
	Runs      []string              `json:"runs,omitempty"`   // output of the verifications
	Passed    bool                  `json:"passed,omitempty"`
	Artifacts []string              `json:"artifacts,omitempty"` // files that its tools wrote
	Labels    *subjects.Labels      `json:"labels,omitempty"`
	Recalls   []string              `json:"recalls,omitempty"`
	Counted   int                   `json:"counted,omitempty"` // tokens that are in the task's sum
	Return    *subjects.AgentReturn `json:"return,omitempty"`
	ReturnID  string                `json:"return_id,omitempty"`

	// tools that the agent did not get because their backend does not answer
	Unavailable []subjects.UnavailableTool `json:"unavailable,omitempty"`
}

// Values of the bucket. Each kind has keys of its own.
var (
	tasks = actor.Bucket[taskRecord]{Name: bucket, MaxSize: maxRecord}
	works = actor.Bucket[workRecord]{Name: bucket, MaxSize: maxRecord}
)

// Load implements [respondent.Work].
func (t *task) Load(ctx context.Context, _ bool) (v actor.Versioned[taskRecord], done bool, err error) {
	v, err = tasks.Load(ctx, t.Out, subjects.TaskKey(t.Query.QueryID))
	if err != nil {
		return v, false, err
	}
	if t.past, err = t.loadSession(ctx); errors.Is(err, actor.ErrUnreadable) { // the record of the task is readable
		err = fmt.Errorf("reading the session: %v", err)
	}
	return v, v.Value.Published, err
}

// Claim implements [respondent.Work].
func (t *task) Claim(r *taskRecord, resumed bool) {
	if t.resumed = resumed; !resumed {
		*r = t.newRecord()
	}
}

// Finish implements [respondent.Work]: the events hold the report.
func (t *task) Finish(r *taskRecord) bool {
	r.Published, r.Publish, r.Attachments = true, nil, nil
	return true
}

// Shrink implements [respondent.Work].
func (t *task) Shrink(*taskRecord) bool { return false }

// newRecord is the record of a new task. Credentials in attachments are removed. A task that is too long is shortened.
func (t *task) newRecord() taskRecord {
	now := t.Out.Now().UTC()
	r := taskRecord{
		Task: subjects.Task{
			TaskID: t.Query.QueryID, SessionID: t.Session, Query: t.Query.Query, State: subjects.TaskPlanning,
			Began:   now,
			Updated: now,
		},
		Nonce: agent.NewNonce(t.Out), Hint: t.Query.Hint, Labels: agent.LabelQuestion(t.Query, t.Session),
	}
	if t.isTooLong() { // the report says so
		r.Query = text.Clip(r.Query, 16<<10)
		return r
	}
	r.Attachments = agent.RedactAttachments(t.Query.Attachments)
	r.Labels = r.Labels.Join(agent.LabelAttachments(r.Attachments))
	return r
}

// update is [respondent.Turn.Update] with subtasks that change may modify.
func (t *task) update(ctx context.Context, step string, change func(r *taskRecord)) error {
	return t.Update(ctx, step, func(r *taskRecord) {
		r.Subtasks = slices.Clone(r.Subtasks)
		change(r)
	})
}

// updateSubtask is [task.update] for one subtask of the plan.
func (t *task) updateSubtask(ctx context.Context, step, id string, change func(s *subjects.Subtask)) error {
	return t.update(ctx, step, func(r *taskRecord) {
		for i := range r.Subtasks {
			if r.Subtasks[i].ID == id {
				change(&r.Subtasks[i])
			}
		}
		r.Stalled = 0
	})
}

// snapshot is a copy of the record.
func (t *task) snapshot() taskRecord {
	r := t.Record()
	r.Subtasks = slices.Clone(r.Subtasks)
	return r
}

// otherOwnerPatience is how long a process waits for another that has taken over its task and writes nothing.
const otherOwnerPatience = 10 * time.Minute
