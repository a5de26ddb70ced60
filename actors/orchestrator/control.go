package orchestrator

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/subjects"
)

// A change of the user is stored under a key of its own, because only the owner of a task writes its record. The
// process that has the task reads the key: at once when the change came to the same process, otherwise within
// controlInterval.

// controlInterval is how often a process reads the user's changes to its tasks.
const controlInterval = 2 * time.Second

// errPaused is the cause of a context that ended because the user paused the task.
var errPaused = errors.New("paused by the user")

// controlRecord is the last change of a task.
type controlRecord struct {
	Action string    `json:"action"`
	By     string    `json:"by"`
	Time   time.Time `json:"time"`
}

var controlRecords = actor.Bucket[controlRecord]{Name: bucket}

// controls hands the user's changes to the tasks of this process. The zero value is ready.
type controls struct {
	mu    sync.Mutex
	tasks map[string]*func(action string)
}

// join has apply called when the task is changed here. The returned function must be called at the end.
func (c *controls) join(task string, apply func(action string)) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tasks == nil {
		c.tasks = map[string]*func(string){}
	}
	c.tasks[task] = &apply
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.tasks[task] == &apply {
			delete(c.tasks, task)
		}
	}
}

// change hands a change to the task, if it is here.
func (c *controls) change(task, action string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if apply := c.tasks[task]; apply != nil {
		(*apply)(action)
	}
}

// onChange stores a change of a task for the process that has it, under an audit record. It rejects an unknown action,
// an unknown task, and one that has ended.
func (o *Orchestrator) onChange(ctx context.Context, in actor.Msg[subjects.TaskChange],
	out actor.Out,
) (subjects.TaskChanged, error) {
	q := in.Body
	rec := subjects.AuditRecord{
		AgentID: in.From, Action: subjects.ActionTaskChange, Query: in.Query,
		Session: in.Session,
	}
	refuse := func(format string, a ...any) (subjects.TaskChanged, error) {
		o.gate.Refuse(ctx, out, rec, subjects.StatusRefused, subjects.CodeMalformed)
		return subjects.TaskChanged{}, subjects.Faultf(subjects.CodeMalformed, format, a...)
	}
	if !slices.Contains([]string{subjects.ChangePause, subjects.ChangeResume, subjects.ChangeCancel}, q.Action) {
		return refuse("the action is not one of %s, %s and %s", subjects.ChangePause, subjects.ChangeResume,
			subjects.ChangeCancel)
	}
	if subjects.CheckToken(q.TaskID) != nil {
		return refuse("the id of the task is invalid; conclave task list shows all")
	}
	v, err := tasks.Load(ctx, out, subjects.TaskKey(q.TaskID))
	switch {
	case err != nil:
		return subjects.TaskChanged{}, err
	case v.Revision == 0:
		return refuse("there is no task %s; conclave task list shows all", q.TaskID)
	case v.Value.HasEnded():
		return refuse("the task has ended: it is %s", v.Value.State)
	}
	rec.Query, rec.Session, rec.Reason = q.TaskID, v.Value.SessionID, q.Action
	if data, err := json.Marshal(q); err == nil {
		rec.ParamsHash = o.hash.Hash(data)
	}
	return actor.Audited(ctx, out, o.gate, rec, func(ctx context.Context, p *actor.Permit) (subjects.TaskChanged,
		error,
	) {
		if err := p.Check(); err != nil {
			return subjects.TaskChanged{}, err
		}
		_, err := controlRecords.Update(ctx, out, "task.change", controlKey(q.TaskID),
			func(c *controlRecord, _ bool) (bool, error) {
				if c.Action == subjects.ChangeCancel {
					return false, nil // it ends; nothing undoes that
				}
				*c = controlRecord{Action: q.Action, By: in.From, Time: out.Now().UTC()}
				return true, nil
			})
		if err != nil {
			return subjects.TaskChanged{}, err
		}
		if q.Action == subjects.ChangeCancel {
			o.Cancel(q.TaskID)
		}
		o.controls.change(q.TaskID, q.Action)
		state := map[string]string{
			subjects.ChangePause:  subjects.TaskPaused,
			subjects.ChangeResume: subjects.TaskRunning, subjects.ChangeCancel: subjects.TaskStopped,
		}[q.Action]
		return subjects.TaskChanged{TaskID: q.TaskID, State: state}, nil
	})
}

// wanted is the user's last change of the task; "" = there is none, or it cannot be read now.
func (t *task) wanted(ctx context.Context) string {
	v, err := controlRecords.Load(ctx, t.Out, controlKey(t.Query.QueryID))
	if err != nil {
		return ""
	}
	return v.Value.Action
}

// watchControl returns a context that ends when the user pauses the task (errPaused) or cancels it
// ([agent.ErrCanceled]), and a function that must be called at the end.
func (t *task) watchControl(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	apply := func(action string) {
		switch action {
		case subjects.ChangePause:
			cancel(errPaused)
		case subjects.ChangeCancel:
			cancel(agent.ErrCanceled)
		}
	}
	leave := t.o.controls.join(t.Query.QueryID, apply)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(controlInterval)
		defer tick.Stop()
		for {
			apply(t.wanted(ctx))
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
		leave()
	}
}

// awaitResume stores that the task is paused and waits until the user resumes or cancels it. The end of ctx is an
// error.
func (t *task) awaitResume(ctx context.Context) error {
	if err := t.setState(ctx, subjects.TaskPaused); err != nil {
		return err
	}
	wake := make(chan struct{}, 1)
	defer t.o.controls.join(t.Query.QueryID, func(string) {
		select {
		case wake <- struct{}{}:
		default: // it is woken already
		}
	})()
	tick := time.NewTicker(controlInterval)
	defer tick.Stop()
	for t.wanted(ctx) == subjects.ChangePause && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-wake:
		case <-tick.C:
		}
	}
	return ctx.Err()
}
