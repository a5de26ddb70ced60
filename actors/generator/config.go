package generator

import (
	"time"

	"conclave/pkg/loop"
	"conclave/pkg/strict"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Config is the generator's section of the configuration. Its defaults stand in the shipped generator.yaml.
type Config struct {
	System string // replaces the shipped system prompt; "" = as shipped. Whoever loads the section reads it from a file

	Steps       int           `yaml:"steps"`        // model calls of a turn that may ask for tools
	Tokens      int           `yaml:"tokens"`       // of all model calls of a turn; 0 = no budget
	Wall        time.Duration `yaml:"wall"`         // of a turn
	CallTimeout time.Duration `yaml:"call_timeout"` // of one model call
	ToolTimeout time.Duration `yaml:"tool_timeout"` // of one tool call
	Predict     int           `yaml:"predict"`      // tokens to write while tools are offered
	Answer      int           `yaml:"answer"`       // tokens to write for the answer
	Result      strict.Size   `yaml:"result"`       // how much of one tool result the model is shown
	Nudges      int           `yaml:"nudges"`       // 0 = none
	Retries     int           `yaml:"retries"`      // 0 = none
	Repeats     int           `yaml:"repeats"`      // the same call with the same result: this one is refused
	Hedge       Hedge         `yaml:"hedge"`
	MaxTools    int           `yaml:"max_tools"`    // tools offered for a question; 0 = none
	Stream      bool          `yaml:"stream"`       // show the answer as it grows, where the model can
	Thinking    bool          `yaml:"thinking"`     // let the model think aloud, where it can
	Turns       int           `yaml:"turns"`        // turns kept of a session
	HotSessions int           `yaml:"hot_sessions"` // sessions kept in memory
	CompactAt   int           `yaml:"compact_at"`   // percent of the window at which old turns are summarized; 0 = never
	Grades      Grades        `yaml:"grades"`
	RespondentB RespondentB   `yaml:"respondent_b"`
}

// Grades is what becomes of what others thought of the last answer.
type Grades struct {
	Prompt bool `yaml:"prompt"` // tell the model before the next question
	Retry  bool `yaml:"retry"`  // and after a bad one, to offer another try
}

// RespondentB is the second answer to each question, for comparison. Where it says nothing, it is as the first.
type RespondentB struct {
	Enabled     bool           `yaml:"enabled"`
	Model       string         `yaml:"model"`       // "" = the one that gives the first answer
	Temperature strict.Decimal `yaml:"temperature"` // of its model calls
	MaxAge      time.Duration  `yaml:"max_age"`     // questions older than this are left alone
}

// Hedge is what to do about an answer that says it cannot know.
type Hedge struct {
	Search string `yaml:"search"` // when no tool ran: search once with this one; "" = never
	Reask  bool   `yaml:"reask"`  // when results are there: ask once more to use them
}

// Problems is everything wrong with c, by the fields of generator.yaml.
func (c Config) Problems() (out strict.Problems) {
	for _, f := range []struct {
		path        string
		n, min, max int
	}{
		{"steps", c.Steps, 1, 50},
		{"tokens", c.Tokens, 0, 10_000_000},
		{"nudges", c.Nudges, 0, 10},
		{"retries", c.Retries, 0, 10},
		{"repeats", c.Repeats, 2, 10},
		{"predict", c.Predict, 64, 1 << 20},
		{"answer", c.Answer, 64, 1 << 20},
		{"max_tools", c.MaxTools, 0, 8},
		{"hot_sessions", c.HotSessions, 1, 10_000},
		{"turns", c.Turns, 1, 1000},
		{"compact_at", c.CompactAt, 0, 90},
	} {
		if f.n < f.min || f.n > f.max {
			out.Add(f.path, "%d is not between %d and %d", f.n, f.min, f.max)
		}
	}
	if c.Result < minResult || c.Result > maxResult {
		out.Add("result", "%s is not between %s and %s", c.Result, minResult, maxResult)
	}
	for _, f := range []struct {
		path string
		d    time.Duration
	}{{"wall", c.Wall}, {"call_timeout", c.CallTimeout}, {"tool_timeout", c.ToolTimeout}} {
		if f.d < 10*time.Millisecond || f.d > 24*time.Hour {
			out.Add(f.path, "%s is not between 10ms and 24h", strict.Short(f.d))
		}
	}
	if b := c.RespondentB; b.Temperature < 0 || b.Temperature > maxTemperature {
		out.Add("respondent_b.temperature", "%s is not between 0 and %d", b.Temperature, maxTemperature)
	}
	if b := c.RespondentB; b.MaxAge < time.Second || b.MaxAge > 24*time.Hour {
		out.Add("respondent_b.max_age", "%s is not between 1s and 24h", strict.Short(b.MaxAge))
	}
	if m := c.RespondentB.Model; m != text.OneLine(m, maxModel) {
		out.Add("respondent_b.model", "%q is not the name of a model", text.OneLine(m, 40))
	}
	if c.Hedge.Search != "" && subjects.CheckToken(c.Hedge.Search) != nil {
		out.Add("hedge.search", "%q is not the name of a tool", text.Clip(c.Hedge.Search, 40))
	}
	if len(c.System) > maxSystem {
		out.Add("system_prompt", "%d bytes, at most %d", len(c.System), maxSystem)
	}
	return out
}

// Bounds of what the model is shown of one tool result.
const (
	minResult strict.Size = 256
	maxResult strict.Size = 64 << 10
)

const (
	maxSystem      = 64 << 10 // of the system prompt, in bytes
	maxModel       = 200      // of a model's name, in bytes
	maxTemperature = 2
)

// Validate reports everything wrong with c.
func (c Config) Validate() error { return c.Problems().Err() }

// loopLimits is c as the loop has it: there, zero is the default and a negative number means none.
func (c Config) loopLimits() loop.Limits {
	none := func(n int) int {
		if n == 0 {
			return -1
		}
		return n
	}
	return loop.Limits{
		Steps: c.Steps, TokenBudget: none(c.Tokens), TurnTimeout: c.Wall, CallTimeout: c.CallTimeout, Nudges: none(c.Nudges), Retries: none(c.Retries), Repeats: c.Repeats,
		StepTokens: c.Predict, AnswerTokens: c.Answer, ResultBytes: int(c.Result), ReplyBytes: maxReply,
	}
}

// maxReply bounds what is read of one reply, so that a turn can be written down.
const maxReply = 96 << 10
