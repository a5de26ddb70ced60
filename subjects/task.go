package subjects

import (
	"encoding/json"
	"slices"
	"time"
)

// Task is a task of the orchestrator with its plan, as it is stored: the task id is the query id. The user's accounts
// read it.
type Task struct {
	TaskID    string `json:"task_id"`
	SessionID string `json:"session_id"`
	Query     string `json:"query"` // the user's own words
	State     string `json:"state"` // one of the Task states
	// Subtasks is the plan in its order; empty until there is one.
	Subtasks []Subtask `json:"subtasks,omitempty"`
	Report   string    `json:"report,omitempty"` // the answer, once the task has ended
	Error    *Fault    `json:"error,omitempty"`  // why the task has no whole result
	Tokens   int       `json:"tokens"`           // prompt and output tokens of all model calls so far
	Began    time.Time `json:"began"`
	Updated  time.Time `json:"updated"`
	Ended    time.Time `json:"ended,omitzero"`
}

// Subtask is one node of a plan.
type Subtask struct {
	ID           string   `json:"id"`
	Title        string   `json:"title"`
	Instructions string   `json:"instructions"`
	Agent        string   `json:"agent"` // agent type, one of [WorkerTypes]
	DependsOn    []string `json:"depends_on,omitempty"`
	Hint         string   `json:"hint,omitempty"`  // one of [Hints]
	Tools        []string `json:"tools,omitempty"` // the only tools that it may use; empty = those of its type
	Verify       *Verify  `json:"verify,omitempty"`

	State  string       `json:"state"`           // one of the Subtask states
	Child  string       `json:"child,omitempty"` // name of the spawned agent
	Calls  int          `json:"calls,omitempty"` // tool calls
	Began  time.Time    `json:"began,omitzero"`
	Ended  time.Time    `json:"ended,omitzero"`
	Return *AgentReturn `json:"return,omitempty"`
	Doubt  string       `json:"doubt,omitempty"` // why the result is uncertain, for the user
}

// Verify is a run that shows whether a subtask is done: code in a language, or a shell command. The runtime runs it.
type Verify struct {
	Language string `json:"language,omitempty"`
	Code     string `json:"code,omitempty"`
	Command  string `json:"command,omitempty"`
}

// States of a task.
const (
	TaskPlanning  = "planning"
	TaskRunning   = "running"
	TaskPaused    = "paused"
	TaskReporting = "reporting"
	TaskDone      = "done"    // every subtask is done
	TaskPartial   = "partial" // some subtasks failed or were skipped
	TaskFailed    = "failed"  // no subtask is done
	TaskStopped   = "stopped" // by the user

	formerTaskStopped = "canceled" // in tasks that an earlier build stored
)

// HasEnded reports whether a task will not change any more.
func (t Task) HasEnded() bool {
	return slices.Contains([]string{TaskDone, TaskPartial, TaskFailed, TaskStopped, formerTaskStopped}, t.State)
}

// QuestionState is the state of the task as that of its question, or [TaskPaused].
func (t Task) QuestionState() string {
	switch t.State {
	case TaskDone, TaskPartial:
		return StateAnswered
	case TaskStopped, formerTaskStopped:
		return StateStopped
	case TaskFailed, TaskPaused:
		return t.State
	}
	return StateRunning
}

// States of a subtask.
const (
	SubtaskWaiting   = "waiting"
	SubtaskRunning   = "running"
	SubtaskVerifying = "verifying"
	SubtaskDone      = "done"
	SubtaskFailed    = "failed"
	SubtaskSkipped   = "skipped" // a subtask that it depends on failed, or the task ended before
)

// WorkerTypes are the agent types that a subtask may have.
var WorkerTypes = []string{"assistant", "researcher", "coder", "sysadmin"}

// MaxSubtasks bounds a plan.
const MaxSubtasks = 12

// TaskProgress is a change of a task or of one of its subtasks.
type TaskProgress struct {
	TaskID  string `json:"task_id"`
	Subtask string `json:"subtask,omitempty"` // "" = the task itself
	State   string `json:"state"`             // a state of the task, or of the subtask
	Text    string `json:"text,omitempty"`
	// Subtasks is the plan, when it was made or changed.
	Subtasks []Subtask `json:"subtasks,omitempty"`
	Agent    string    `json:"agent,omitempty"` // name of the spawned agent
	Calls    int       `json:"calls,omitempty"` // tool calls of the subtask so far
	Millis   int64     `json:"ms,omitempty"`    // since the subtask began
}

// AgentReturn is the structured return of a subagent. Its JSON always has the seven fields that an agent fills.
type AgentReturn struct {
	Subtask       string   `json:"subtask,omitempty"` // set by the orchestrator, as is Agent
	Agent         string   `json:"agent,omitempty"`   // name of the spawned agent
	Status        string   `json:"status"`
	Summary       string   `json:"summary"` // at most three sentences
	Artifacts     []string `json:"artifacts"`
	ResultQuality string   `json:"result_quality"`
	Source        string   `json:"source"`
	Candidates    []string `json:"new_memory_candidates"`
	FailureReason string   `json:"failure_reason"` // "" = it did not fail
}

// Values of an [AgentReturn].
const (
	ReturnSuccess = "success"
	ReturnPartial = "partial"
	ReturnFailed  = "failed"

	QualityVerified  = "verified"
	QualityInferred  = "inferred"
	QualityUncertain = "uncertain"

	SourceToolOutput     = "tool_output"
	SourceModelKnowledge = "model_knowledge"
	SourceWeb            = "web"
)

// Actions of a [TaskChange].
const (
	ChangePause  = "pause"
	ChangeResume = "resume"
	ChangeCancel = "cancel"
)

// TaskChange pauses, resumes or cancels a task.
type TaskChange struct {
	TaskID string `json:"task_id"`
	Action string `json:"action"`
}

// TaskChanged is the state of the task after the change. A running task pauses or ends a moment later.
type TaskChanged struct {
	TaskID string `json:"task_id"`
	State  string `json:"state"`
}

// TaskPrefix is the first token of the keys of tasks in the orchestrator's bucket.
const TaskPrefix = "task"

// TaskKey is the key of a task.
func TaskKey(task string) string { return TaskPrefix + "." + task }

// DecodeTask reads a stored task. Fields that are the orchestrator's own are ignored.
func DecodeTask(data []byte) (t Task, err error) {
	return t, json.Unmarshal(data, &t)
}
