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
	out := Task{
		TaskID: t.TaskID, SessionID: t.SessionID, Query: t.Query, State: t.State, Subtasks: t.Subtasks,
		Report: t.Report, Error: t.Error, Tokens: t.Tokens, Began: t.Began, Updated: t.Updated,
	}
	if out.Subtasks == nil {
		out.Subtasks = []subjects.Subtask{}
	}
	return out
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
	id := r.PathValue("id")
	if err := checkID("the task id", id); err != nil {
		return subjects.Task{}, err
	}
	t, err := g.client.Task(ctx, id)
	if errors.Is(err, client.ErrNotFound) {
		return t, problemf(http.StatusNotFound, codeNotFound, "task %s not found; GET /tasks lists the tasks", id)
	}
	if err != nil {
		return t, g.mapReadError(ctx, err)
	}
	return t, nil
}

// onTaskChange returns the handler that pauses, resumes or cancels a task. An unknown task is 404, one that has ended
// 409.
func (g *Gateway) onTaskChange(action string) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if r.ContentLength != 0 {
			return problemf(http.StatusBadRequest, subjects.CodeMalformed, "%s takes no body", r.URL.Path)
		}
		ctx, cancel := g.withTimeout(context.WithoutCancel(r.Context()), lookupTimeout)
		defer cancel()
		t, err := g.findTask(ctx, r)
		if err != nil {
			return err
		}
		done, err := g.client.ChangeTask(ctx, t.TaskID, action)
		var f *subjects.Fault
		if errors.As(err, &f) && f.Code == subjects.CodeMalformed {
			return problemf(http.StatusConflict, codeConflict, "%s", f.Text)
		}
		if err != nil {
			return err
		}
		g.writeJSON(w, http.StatusOK, done)
		return nil
	}
}
