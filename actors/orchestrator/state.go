package orchestrator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/firewall"
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
	Publish     *pendingReport        `json:"publish,omitempty"`
	Published   bool                  `json:"published,omitempty"`
}

// pendingReport is a finished report with the ids of its events. Published again under the same ids it is stored once.
type pendingReport struct {
	Response   subjects.Response `json:"response"`
	ResponseID string            `json:"response_id"`
	DialogID   string            `json:"dialog_id"`
	Summary    string            `json:"summary"` // filtered, for later tasks of the session
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
}

func tasks() actor.Bucket[taskRecord] {
	return actor.Bucket[taskRecord]{Name: bucket, MaxSize: maxRecord, Timeout: storeTimeout}
}

func workBucket() actor.Bucket[workRecord] {
	return actor.Bucket[workRecord]{Name: bucket, MaxSize: maxRecord, Timeout: storeTimeout}
}

// claim loads or makes the record of the task and stores it under this owner. It reports true when the report was
// published before.
func (t *task) claim(ctx context.Context) (published bool, err error) {
	for range 8 {
		v, err := tasks().Load(ctx, t.out, subjects.TaskKey(t.id))
		if err != nil {
			return false, err
		}
		if v.Value.Published {
			return true, nil
		}
		if v.Revision == 0 {
			v.Value = t.newRecord()
		} else {
			t.resumed = true
		}
		v.Value.Owner, v.Value.Updated = t.out.NewID(), t.out.Now().UTC()
		stored, err := tasks().Store(ctx, t.out, "task.claim", subjects.TaskKey(t.id), v)
		if errors.Is(err, actor.ErrChanged) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("claiming the task: %w", err)
		}
		t.record, t.rev = stored.Value, stored.Revision
		return false, nil
	}
	return false, subjects.Faultf(subjects.CodeBusy, "claiming the task: others kept changing it; it is retried later")
}

// newRecord is the record of a new task. Credentials in attachments are removed. A task that is too long is shortened.
func (t *task) newRecord() taskRecord {
	now := t.out.Now().UTC()
	sum := sha256.Sum256([]byte(t.out.NewID()))
	r := taskRecord{
		Task: subjects.Task{
			TaskID: t.id, SessionID: t.session, Query: t.query.Query, State: subjects.TaskPlanning, Began: now,
			Updated: now,
		},
		Nonce: hex.EncodeToString(sum[:8]), Hint: t.query.Hint, Labels: agent.LabelQuestion(t.query, t.session),
	}
	if t.isTooLong() { // the report says so
		r.Query = text.Clip(r.Query, 16<<10)
		return r
	}
	for _, a := range t.query.Attachments {
		a.Text, _ = firewall.Redact(strings.ToValidUTF8(a.Text, "\uFFFD"))
		a.Name, _ = firewall.Redact(a.Name)
		r.Attachments = append(r.Attachments, a)
		r.Labels = r.Labels.Join(&subjects.Labels{
			Trust: subjects.Untrusted, Privacy: subjects.Private,
			Flags: firewall.Scan(a.Content()).Techniques(),
		})
	}
	return r
}

// update changes the record and stores it, also when ctx has ended. step names the write. Without a stored change the
// record is as before. It fails with respondent.ErrNotOwner when another process was first.
func (t *task) update(ctx context.Context, step string, change func(r *taskRecord)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := t.record
	next.Subtasks = slices.Clone(t.record.Subtasks)
	change(&next)
	next.Updated = t.out.Now().UTC()
	v := actor.Versioned[taskRecord]{Value: next, Revision: t.rev}
	stored, err := respondent.StoreOwned(ctx, t.out, tasks(), step, subjects.TaskKey(t.id), v,
		func(r *taskRecord) string { return r.Owner })
	if err != nil {
		return err
	}
	t.record, t.rev = stored.Value, stored.Revision
	return nil
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
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.record
	r.Subtasks = slices.Clone(r.Subtasks)
	return r
}

// otherOwnerPatience is how long a process waits for another that has taken over its task and writes nothing.
const otherOwnerPatience = 10 * time.Minute

// awaitOtherOwner waits until the process that has taken over the task has finished it, and returns nil. It fails with
// CodeBusy when that writes nothing for otherOwnerPatience. Acknowledging the message earlier would take it from the
// other process; returning an error at once would deliver it a third time.
func (t *task) awaitOtherOwner(ctx context.Context) error {
	for {
		v, err := tasks().Load(ctx, t.out, subjects.TaskKey(t.id))
		switch {
		case err == nil && v.Value.Published:
			return nil
		case err == nil && t.out.Now().Sub(v.Value.Updated) > otherOwnerPatience:
			return subjects.Faultf(subjects.CodeBusy, "another process has taken over this task and did not finish "+
				"it; it is retried")
		case !loop.Sleep(ctx, time.Second):
			return context.Cause(ctx)
		}
	}
}
