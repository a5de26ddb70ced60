package gateway_test

import (
	"context"
	"encoding/json"
	"testing"

	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// taskStub is the orchestrator as far as it changes tasks.
type taskStub struct{ requestLog }

func (*taskStub) Name() string { return subjects.Orchestrator }

func (c *taskStub) Routes() []actor.Route {
	return []actor.Route{actor.Serve(subjects.TaskChangeService, c.change)}
}

func (c *taskStub) change(_ context.Context, in actor.Msg[subjects.TaskChange], _ actor.Out) (subjects.TaskChanged,
	error,
) {
	c.record(in.From + " " + in.Body.Action + " " + in.Body.TaskID)
	if in.Body.TaskID == "ended" {
		return subjects.TaskChanged{}, subjects.Faultf(subjects.CodeMalformed, "the task has ended: it is done")
	}
	return subjects.TaskChanged{TaskID: in.Body.TaskID, State: subjects.TaskPaused}, nil
}

// Tasks are listed, read and changed over HTTP, by their complete id only.
func TestTasks(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	c := &taskStub{}
	startActor(t, b, c)
	d, w := describe(t), startGateway(t, b, setup{})
	store := b.Out(subjects.Orchestrator).Store(subjects.StateBucket(subjects.Orchestrator))
	for _, task := range []subjects.Task{
		{
			TaskID: "t1", SessionID: "s1", Query: "do it", State: subjects.TaskRunning,
			Subtasks: []subjects.Subtask{{ID: "a", Title: "First"}}, Report: "the report",
		},
		{TaskID: "ended", SessionID: "s1", Query: "do it", State: subjects.TaskDone},
	} {
		data, err := json.Marshal(task)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Put(t.Context(), subjects.TaskKey(task.TaskID), data, 0); err != nil {
			t.Fatal(err)
		}
	}
	w.checkRoutes(d, func() string { return c.take("") }, []routeTest{
		{"list", "GET", "/tasks", "/tasks", "", 200, `"task_id":"t1"`, ""},
		{"show", "GET", "/tasks/{id}", "/tasks/t1", "", 200, `"report":"the report"`, ""},
		{"unknown", "GET", "/tasks/{id}", "/tasks/t2", "", 404, "task t2 not found", ""},
		{"pause", "POST", "/tasks/{id}/pause", "/tasks/t1/pause", "", 200, `"state":"paused"`, "gateway pause t1"},
		{"resume", "POST", "/tasks/{id}/resume", "/tasks/t1/resume", "", 200, `"task_id":"t1"`, "gateway resume t1"},
		{"cancel", "POST", "/tasks/{id}/cancel", "/tasks/t1/cancel", "", 200, `"task_id":"t1"`, "gateway cancel t1"},
		{"ended", "POST", "/tasks/{id}/pause", "/tasks/ended/pause", "", 409, "has ended", "gateway pause ended"},
		{"unknown to cancel", "POST", "/tasks/{id}/cancel", "/tasks/t2/cancel", "", 404, "not found", ""},
		{"trick: a wildcard", "POST", "/tasks/{id}/cancel", "/tasks/%2A/cancel", "", 400, "letters, digits", ""},
		{
			"trick: another task in the body", "POST", "/tasks/{id}/cancel", "/tasks/t1/cancel", `{"task_id":"ended"}`,
			400, "takes no body", "",
		},
	})
}
