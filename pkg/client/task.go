package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// taskBucket has the tasks of the orchestrator.
var taskBucket = subjects.StateBucket(subjects.Orchestrator)

// taskTimeout is the timeout of a change of a task.
const taskTimeout = 20 * time.Second

// Progress is a change of a task or of one of its subtasks; an [Update] of a question to the orchestrator.
type Progress struct{ subjects.TaskProgress }

// TaskIDs lists the ids of all stored tasks, in no order.
func (c *Client) TaskIDs(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	keys, err := c.out.Store(taskBucket).Keys(ctx, subjects.TaskPrefix)
	if err != nil {
		return nil, fmt.Errorf("listing the tasks: %w", err)
	}
	ids := make([]string, 0, len(keys))
	for _, key := range keys {
		ids = append(ids, strings.TrimPrefix(key, subjects.TaskPrefix+"."))
	}
	return ids, nil
}

// Tasks reads all stored tasks, the latest first, at most most; 0 = all.
func (c *Client) Tasks(ctx context.Context, most int) ([]subjects.Task, error) {
	ids, err := c.TaskIDs(ctx)
	if err != nil {
		return nil, err
	}
	all := []subjects.Task{}
	for _, id := range ids {
		t, err := c.Task(ctx, id)
		switch {
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrUnreadable):
			continue
		case err != nil:
			return nil, err
		}
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b subjects.Task) int {
		return cmp.Or(b.Began.Compare(a.Began), cmp.Compare(a.TaskID, b.TaskID))
	})
	if most > 0 && len(all) > most {
		all = all[:most]
	}
	return all, nil
}

// Task reads the task with this complete id: [ErrNotFound] when there is none or the id is no valid token,
// [ErrUnreadable] when it cannot be decoded.
func (c *Client) Task(ctx context.Context, id string) (subjects.Task, error) {
	if subjects.CheckToken(id) != nil {
		return subjects.Task{}, fmt.Errorf("task %q: %w", id, ErrNotFound)
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	data, _, err := c.out.Store(taskBucket).Get(ctx, subjects.TaskKey(id))
	switch {
	case errors.Is(err, actor.ErrNotFound):
		return subjects.Task{}, fmt.Errorf("task %s: %w", id, ErrNotFound)
	case err != nil:
		return subjects.Task{}, err
	}
	t, err := subjects.DecodeTask(data)
	if err != nil {
		return subjects.Task{}, fmt.Errorf("task %s: %w: %w", id, ErrUnreadable, err)
	}
	t.TaskID = id // the key decides
	return t, nil
}

// FindTask returns the complete id of the stored task with this id, or with this prefix of at least [IDPrefix]
// characters. None is [ErrNotFound], several are an [*AmbiguousError].
func (c *Client) FindTask(ctx context.Context, id string) (string, error) {
	ids, err := c.TaskIDs(ctx)
	if err != nil {
		return "", err
	}
	return findID("task", id, ids)
}

// ChangeTask pauses, resumes or cancels a task. A cancellation is also published for the model and the broker, which
// stop calls that wait. A [subjects.Fault] says why nothing was changed.
func (c *Client) ChangeTask(ctx context.Context, id, action string) (subjects.TaskChanged, error) {
	ctx, cancel := context.WithTimeout(ctx, taskTimeout)
	defer cancel()
	changed, err := actor.Ask(ctx, c.out, subjects.TaskChangeService, subjects.TaskChange{TaskID: id, Action: action})
	if err == nil && action == subjects.ChangeCancel {
		topic, terr := subjects.QueryCancel.With(id)
		if terr == nil {
			terr = actor.Emit(ctx, c.out, topic, subjects.Cancel{Reason: "the task was canceled"})
		}
		err = terr
	}
	return changed, err
}
