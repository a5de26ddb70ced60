package view

import (
	"strings"
	"testing"

	"conclave/subjects"
)

func TestTaskTree(t *testing.T) {
	t.Parallel()
	var tree taskTree
	plan := []subjects.Subtask{
		{ID: "a", Title: "First", Agent: "researcher", State: "waiting"},
		{ID: "b", Title: "Second", Agent: "coder", DependsOn: []string{"a"}, State: "waiting"},
	}
	for _, tt := range []struct {
		in   subjects.TaskProgress
		want string
	}{
		{subjects.TaskProgress{State: "planning"}, "task planning"},
		{subjects.TaskProgress{State: "planning", Subtasks: plan}, "  · a: First (researcher) waiting\n  · b: Second " +
			"(coder, after a) waiting"},
		{subjects.TaskProgress{Subtask: "a", State: "running", Agent: "researcher-1"}, "  > a: First (researcher-1) " +
			"running"},
		{subjects.TaskProgress{Subtask: "a", State: "running", Agent: "researcher-1", Calls: 1}, ""},
		{subjects.TaskProgress{
			Subtask: "a", State: "failed", Agent: "researcher-1", Calls: 2, Millis: 1500,
			Text: "no luck",
		}, "  ! a: First (researcher-1) failed, 2 tool calls, 1.5 s: no luck"},
		{subjects.TaskProgress{Subtask: "unknown", State: "done"}, ""},
		{subjects.TaskProgress{State: "paused"}, "task paused"},
		{subjects.TaskProgress{State: "done", Text: "finished", Subtasks: plan}, ""},
	} {
		if got := strings.Join(tree.follow(tt.in), "\n"); got != tt.want {
			t.Errorf("%+v\ngot  %q\nwant %q", tt.in, got, tt.want)
		}
	}
}
