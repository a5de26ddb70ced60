package orchestrator

import (
	"time"

	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/strict"
)

// settingsFile is the file of [Config], for messages that name a setting.
const settingsFile = "orchestrator.yaml"

// Config is the orchestrator's section of the configuration. Its defaults are in the shipped orchestrator.yaml.
type Config struct {
	Tasks    int `yaml:"tasks"`    // tasks that run at once
	Parallel int `yaml:"parallel"` // subtasks of a task that run at once
	// times that a plan is extended after failed subtasks; 0 = never
	Replans int `yaml:"replans"`
	// failed verifications of a subtask that go back to its agent; 0 = none
	Checks        int `yaml:"verify_attempts"`
	SessionTokens int `yaml:"session_tokens"` // token budget of all tasks of a session; 0 = no budget
	// percent of the window at which earlier tasks are summarized; 0 = never
	CompactAt   int           `yaml:"compact_at"`
	Memories    int           `yaml:"memories"`     // memory candidates that are kept of a task; 0 = none
	Steps       int           `yaml:"steps"`        // model calls of an agent that may ask for tools
	Rounds      int           `yaml:"whole_rounds"` // tool rounds of an agent that its model is sent whole
	Wall        time.Duration `yaml:"wall"`         // timeout of one agent's work
	CallTimeout time.Duration `yaml:"call_timeout"` // between two tokens of a model call
	FirstToken  time.Duration `yaml:"first_token_timeout"`
	ToolTimeout time.Duration `yaml:"tool_timeout"` // of one tool call
	Predict     int           `yaml:"predict"`      // output tokens of a plan, a return or a call with tools
	Answer      int           `yaml:"answer"`       // output tokens of an agent's result or the report
	Result      strict.Size   `yaml:"result"`       // most bytes of one tool result sent to a model
	MaxTools    int           `yaml:"max_tools"`    // tools offered to an agent; 0 = none
	Thinking    bool          `yaml:"thinking"`     // request thinking of agents, where the model supports it

	// Workspace is the folder of the tasks' working folders. Package config sets it.
	Workspace string `yaml:"-"`
	// AuditTimeout is the timeout of an audit record. Package config sets it.
	AuditTimeout time.Duration `yaml:"-"`
}

// Problems lists everything invalid in c, by the fields of orchestrator.yaml. None = c is valid.
func (c Config) Problems() (out strict.Problems) {
	out.CheckInt("tasks", c.Tasks, 1, 16)
	out.CheckInt("parallel", c.Parallel, 1, 12)
	out.CheckInt("replans", c.Replans, 0, 3)
	out.CheckInt("verify_attempts", c.Checks, 0, 3)
	out.CheckInt("session_tokens", c.SessionTokens, 0, 1_000_000_000)
	out.CheckInt("compact_at", c.CompactAt, 0, 90)
	out.CheckInt("memories", c.Memories, 0, 20)
	agent.CheckLimits(&out, c.loopLimits(0), c.ToolTimeout, 50)
	out.CheckInt("whole_rounds", c.Rounds, 1, 10)
	out.CheckInt("max_tools", c.MaxTools, 0, 12)
	return out
}

// Validate is [Config.Problems] as an error, nil when there are none.
func (c Config) Validate() error { return c.Problems().Err() }

// loopLimits are the limits of an agent's work. tokens is what is left of the session's budget, negative = no budget.
func (c Config) loopLimits(tokens int) loop.Limits {
	return loop.Limits{
		Steps: c.Steps, TokenBudget: tokens, TurnTimeout: c.Wall, CallTimeout: c.CallTimeout, FirstToken: c.FirstToken,
		StepTokens: c.Predict, AnswerTokens: c.Answer,
		ResultBytes: int(c.Result), ReplyBytes: maxReply, WholeRounds: c.Rounds,
	}
}

// maxReply bounds one reply in bytes, so that an agent's work fits into its record.
const maxReply = 64 << 10
