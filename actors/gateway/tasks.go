package gateway

import (
	"context"
	"errors"
	"net/http"

	"conclave/pkg/client"
	"conclave/subjects"
)

// describeTask returns a task with all of its fields.
func describeTask(t subjects.Task) object {
	return object{
		{"task_id", t.TaskID},
		{"session_id", t.SessionID},
		{"query", t.Query},
		{"state", t.State},
		{"subtasks", append([]subjects.Subtask{}, t.Subtasks...)},
		{"report", t.Report},
		{"error", t.Error},
		{"tokens", t.Tokens},
		{"began", t.Began},
		{"updated", t.Updated},
	}
}

// maxTasks bounds the list of tasks.
const maxTasks = 200

// onTasks lists at most maxTasks tasks, latest first, without their reports.
func (g *Gateway) onTasks(ctx context.Context, _ *http.Request) (any, error) {
	all, err := g.client.Tasks(ctx, maxTasks)
	list := []object{}
	for _, t := range all {
		t.Report = ""
		list = append(list, describeTask(t))
	}
	return object{{"tasks", list}}, err
}

// onTask returns one task. An unknown one is 404.
func (g *Gateway) onTask(ctx context.Context, r *http.Request) (any, error) {
	t, err := g.findTask(ctx, r)
	return describeTask(t), err
}

// findTask reads the task of the path.
func (g *Gateway) findTask(ctx context.Context, r *http.Request) (subjects.Task, error) {
	t, err := g.client.Task(ctx, r.PathValue("id"))
	if errors.Is(err, client.ErrNotFound) {
		err = notFoundf("task %s not found; GET /tasks lists the tasks", r.PathValue("id"))
	}
	return t, err
}

// onTaskChange returns the handler that pauses, resumes or cancels a task. An unknown task is 404, one that has ended
// 409.
func (g *Gateway) onTaskChange(action string) handler {
	return g.change(lookupTimeout, func(ctx context.Context, r *http.Request) (any, error) {
		t, err := g.findTask(ctx, r)
		if err != nil {
			return nil, err
		}
		done, err := g.client.ChangeTask(ctx, t.TaskID, action)
		return done, mapConflict(err, subjects.CodeMalformed)
	})
}
