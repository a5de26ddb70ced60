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
	Tasks         int           `yaml:"tasks"`          // tasks that run at once
	Parallel      int           `yaml:"parallel"`       // subtasks of a task that run at once
	Replans       int           `yaml:"replans"`        // extensions of a plan after failed subtasks; 0 = never
	SessionTokens int           `yaml:"session_tokens"` // token budget of all tasks of a session; 0 = no budget
	Steps         int           `yaml:"steps"`          // model calls of an agent that may ask for tools
	Wall          time.Duration `yaml:"wall"`           // timeout of one agent's work
	Thinking      bool          `yaml:"thinking"`       // request thinking of agents, where the model supports it

	// What follows are no settings, see [Defaults].

	// failed verifications of a subtask that go back to its agent; 0 = none
	Checks    int `yaml:"-"`
	CompactAt int `yaml:"-"` // percent of the window at which earlier tasks are summarized; 0 = never
	Memories  int `yaml:"-"` // memory candidates that are kept of a task; 0 = none
	Rounds    int `yaml:"-"` // tool rounds of an agent that its model is sent whole
	Predict   int `yaml:"-"` // output tokens of a plan, a return or a call with tools
	Answer    int `yaml:"-"` // output tokens of an agent's result or the report
	MaxTools  int `yaml:"-"` // tools offered to an agent; 0 = none

	CallTimeout time.Duration `yaml:"-"` // between two tokens of a model call
	FirstToken  time.Duration `yaml:"-"` // before the first token, at least
	ToolTimeout time.Duration `yaml:"-"` // of one tool call
	Result      strict.Size   `yaml:"-"` // most bytes of one tool result sent to a model

	// Workspace is the folder of the tasks' working folders. Package config sets it.
	Workspace string `yaml:"-"`
	// AuditTimeout is the timeout of an audit record. Package config sets it.
	AuditTimeout time.Duration `yaml:"-"`
}

// Defaults are the values that are no settings. What a task may cost is set by steps, wall and session_tokens; these
// only divide it among attempts, prompts and tools. Package config replaces the timeouts and the size of a result by
// those of the generator: they depend on the machine, and not on who asks the model.
func Defaults() Config {
	return Config{
		Checks: 3, CompactAt: 60, Memories: 3, Rounds: 3, Predict: 2048, Answer: 4096, MaxTools: 8,
		CallTimeout: 120 * time.Second, FirstToken: 5 * time.Minute, ToolTimeout: 6 * time.Minute, Result: 16 << 10,
	}
}

// Problems lists everything invalid in c, by the fields of orchestrator.yaml. None = c is valid.
func (c Config) Problems() (out strict.Problems) {
	out.CheckInt("tasks", c.Tasks, 1, 16)
	out.CheckInt("parallel", c.Parallel, 1, 12)
	out.CheckInt("replans", c.Replans, 0, 3)
	out.CheckInt("session_tokens", c.SessionTokens, 0, 1_000_000_000)
	agent.CheckLimits(&out, c.loopLimits(0), c.ToolTimeout, 50)
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
