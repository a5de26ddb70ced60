package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"conclave/pkg/client"
	"conclave/subjects"
)

// Task is a task of the orchestrator with all of its fields.
type Task struct {
	TaskID    string             `json:"task_id"`
	SessionID string             `json:"session_id"`
	Query     string             `json:"query"`
	State     string             `json:"state"`
	Subtasks  []subjects.Subtask `json:"subtasks"`
	Report    string             `json:"report"`
	Error     *subjects.Fault    `json:"error"`
	Tokens    int                `json:"tokens"`
	Began     time.Time          `json:"began"`
	Updated   time.Time          `json:"updated"`
}

func newTask(t subjects.Task) Task {
	return Task{
		TaskID: t.TaskID, SessionID: t.SessionID, Query: t.Query, State: t.State,
		Subtasks: append([]subjects.Subtask{}, t.Subtasks...), Report: t.Report, Error: t.Error, Tokens: t.Tokens,
		Began: t.Began, Updated: t.Updated,
	}
}

// maxTasks bounds the list of tasks.
const maxTasks = 200

// onTasks lists at most maxTasks tasks, latest first, without their reports.
func (g *Gateway) onTasks(ctx context.Context, _ *http.Request) (any, error) {
	all, err := g.client.Tasks(ctx, maxTasks)
	if err != nil {
		return nil, err
	}
	list := make([]Task, 0, len(all))
	for _, t := range all {
		t.Report = ""
		list = append(list, newTask(t))
	}
	return struct {
		Tasks []Task `json:"tasks"`
	}{list}, nil
}

// onTask returns one task. An unknown one is 404.
func (g *Gateway) onTask(ctx context.Context, r *http.Request) (any, error) {
	t, err := g.findTask(ctx, r)
	if err != nil {
		return nil, err
	}
	return newTask(t), nil
}

// findTask reads the task of the path.
func (g *Gateway) findTask(ctx context.Context, r *http.Request) (subjects.Task, error) {
	id, err := parseID(r, "the task id")
	if err != nil {
		return subjects.Task{}, err
	}
	t, err := g.client.Task(ctx, id)
	if errors.Is(err, client.ErrNotFound) {
		return t, notFoundf("task %s not found; GET /tasks lists the tasks", id)
	}
	if err != nil {
		return t, g.mapReadError(ctx, err)
	}
	return t, nil
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
