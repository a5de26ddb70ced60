package generator

import (
	"slices"
	"time"

	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// settingsFile is the file of [Config], for messages that name a setting.
const settingsFile = "generator.yaml"

// Config is the generator's section of the configuration. Its defaults are in the shipped generator.yaml.
type Config struct {
	System string // replaces the shipped system prompt; "" = as shipped. Package config reads it from a file

	Steps       int           `yaml:"steps"`        // model calls of a turn that may ask for tools
	Tokens      int           `yaml:"tokens"`       // token budget of all model calls of a turn; 0 = no budget
	Wall        time.Duration `yaml:"wall"`         // timeout of a turn
	CallTimeout time.Duration `yaml:"call_timeout"` // between two tokens of a model call
	// before the first token, at least; longer for a long prompt on a slow machine
	FirstToken  time.Duration `yaml:"first_token_timeout"`
	ToolTimeout time.Duration `yaml:"tool_timeout"` // of one tool call
	Predict     int           `yaml:"predict"`      // output tokens while tools are offered
	Answer      int           `yaml:"answer"`       // output tokens of the answer
	Result      strict.Size   `yaml:"result"`       // most bytes of one tool result sent to the model
	Nudges      int           `yaml:"nudges"`       // 0 = none
	Retries     int           `yaml:"-"`            // after an unusable reply; 0 = none; see [Defaults]
	// the call with this number is refused when all have the same arguments and result
	Repeats  int   `yaml:"repeats"`
	Hedge    Hedge `yaml:"hedge"`
	MaxTools int   `yaml:"max_tools"` // tools offered for a question; 0 = none
	// recall the user's statements before the first model call: always, auto (pinned facts only, unless calls are
	// constrained) or never
	RecallFirst string `yaml:"recall_first"`
	// publish the answer as it is generated, where the model supports it
	Stream      bool `yaml:"stream"`
	Thinking    bool `yaml:"thinking"`    // request thinking, where the model supports it
	Turns       int  `yaml:"turns"`       // latest turns of a session that a prompt may have
	HotSessions int  `yaml:"-"`           // sessions cached in memory, see [Defaults]
	Concurrency int  `yaml:"concurrency"` // questions that one process answers at once
	// percent of the window at which old turns are summarized; 0 = never
	CompactAt   int         `yaml:"compact_at"`
	Grades      Grades      `yaml:"grades"`
	RespondentB RespondentB `yaml:"respondent_b"`
}

// Grades says what the model is told about the grades of its last answer.
type Grades struct {
	Prompt bool `yaml:"prompt"` // send the grades to the model before the next question
	Retry  bool `yaml:"retry"`  // after a bad grade, also ask it to offer another attempt
}

// RespondentB configures the second answer to each question, which is for comparison. Everything else is as for the
// first.
type RespondentB struct {
	Enabled     bool           `yaml:"enabled"`
	Model       string         `yaml:"model"`       // "" = the assistant's model
	Temperature strict.Decimal `yaml:"temperature"` // of its model calls
	MaxAge      time.Duration  `yaml:"-"`           // older questions are skipped, see [Defaults]
}

// Hedge is what to do about an answer that says it cannot know current facts.
type Hedge struct {
	Search string `yaml:"search"` // tool for one search when no tool ran; "" = never
	Reask  bool   `yaml:"reask"`  // ask once more when there are results
}

// Defaults are the values that are no settings. A third unusable reply in a row is reported and not retried. A user has
// fewer sessions than fifty in use at once; the others are read from disk. A question that is older than minutes was
// asked while respondent B did not run.
func Defaults() Config {
	return Config{Retries: 2, HotSessions: 50, RespondentB: RespondentB{MaxAge: 5 * time.Minute}}
}

// Problems lists everything invalid in c, by the fields of generator.yaml: numbers, sizes and durations out of bounds,
// and names that cannot be those of a model or a tool. None = c is valid.
func (c Config) Problems() (out strict.Problems) {
	agent.CheckLimits(&out, c.loopLimits(), c.ToolTimeout, 50)
	out.CheckInt("concurrency", c.Concurrency, 1, subjects.Partitions)
	out.CheckInt("tokens", c.Tokens, 0, 10_000_000)
	out.CheckInt("nudges", c.Nudges, 0, 10)
	out.CheckInt("repeats", c.Repeats, 2, 10)
	out.CheckInt("max_tools", c.MaxTools, 0, 12)
	out.CheckInt("turns", c.Turns, 1, 1000)
	out.CheckInt("compact_at", c.CompactAt, 0, 90)
	if b := c.RespondentB; b.Temperature < 0 || b.Temperature > maxTemperature {
		out.Add("respondent_b.temperature", "%s is not between 0 and %d", b.Temperature, maxTemperature)
	}
	if m := c.RespondentB.Model; m != text.OneLine(m, maxModel) {
		out.Add("respondent_b.model", "%q is not the name of a model", text.OneLine(m, 40))
	}
	if c.Hedge.Search != "" && subjects.CheckToken(c.Hedge.Search) != nil {
		out.Add("hedge.search", "%q is not the name of a tool", text.Clip(c.Hedge.Search, 40))
	}
	if !slices.Contains([]string{recallAuto, recallAlways, recallNever}, c.RecallFirst) {
		out.Add("recall_first", "%q is not one of auto, always and never", text.Clip(c.RecallFirst, 40))
	}
	if len(c.System) > maxSystem {
		out.Add("system_prompt", "%d bytes, at most %d", len(c.System), maxSystem)
	}
	return out
}

const (
	maxSystem      = 64 << 10 // of the system prompt, in bytes
	maxModel       = 200      // of a model's name, in bytes
	maxTemperature = 2
)

// Validate is [Config.Problems] as an error, nil when there are none.
func (c Config) Validate() error { return c.Problems().Err() }

// loopLimits converts c to limits of the loop. In c 0 means none; the loop takes 0 for its default and a negative
// number for none.
func (c Config) loopLimits() loop.Limits {
	none := func(n int) int {
		if n == 0 {
			return -1
		}
		return n
	}
	return loop.Limits{
		Steps: c.Steps, TokenBudget: none(c.Tokens), TurnTimeout: c.Wall, CallTimeout: c.CallTimeout,
		FirstToken: c.FirstToken, Nudges: none(c.Nudges), Retries: none(c.Retries), Repeats: c.Repeats,
		StepTokens: c.Predict, AnswerTokens: c.Answer, ResultBytes: int(c.Result), ReplyBytes: maxReply,
	}
}

// maxReply bounds one reply in bytes, so that a turn fits into its record.
const maxReply = 96 << 10
