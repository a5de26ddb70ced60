package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"conclave/actors/generator"
)

// Generator is the section of the agent that answers. Its defaults stand in the shipped generator.yaml and nowhere else.
type Generator struct {
	SystemPrompt string   `yaml:"system_prompt"` // file that replaces the shipped prompt, full path; "" = shipped
	Steps        int      `yaml:"steps"`
	Tokens       int      `yaml:"tokens"`
	Wall         Duration `yaml:"wall"`
	CallTimeout  Duration `yaml:"call_timeout"`
	ToolTimeout  Duration `yaml:"tool_timeout"`
	Predict      int      `yaml:"predict"`
	Answer       int      `yaml:"answer"`
	Result       Size     `yaml:"result"`
	Nudges       int      `yaml:"nudges"`
	Retries      int      `yaml:"retries"`
	Repeats      int      `yaml:"repeats"`
	Hedge        Hedge    `yaml:"hedge"`
	MaxTools     int      `yaml:"max_tools"`
	Stream       bool     `yaml:"stream"`
	Thinking     bool     `yaml:"thinking"`
	Turns        int      `yaml:"turns"`
	HotSessions  int      `yaml:"hot_sessions"`
	CompactAt    int      `yaml:"compact_at"` // percent
}

// Hedge is what to do about an answer that says it cannot know.
type Hedge struct {
	Search string `yaml:"search"` // tool to search with; "" = none
	Reask  bool   `yaml:"reask"`
}

// settings is the section as the actor has it, without the prompt, which is in a file.
func (g Generator) settings() generator.Config {
	return generator.Config{
		Steps: g.Steps, Tokens: g.Tokens, Wall: g.Wall.Std(), CallTimeout: g.CallTimeout.Std(), ToolTimeout: g.ToolTimeout.Std(),
		Nudges: g.Nudges, Retries: g.Retries, Repeats: g.Repeats, Predict: g.Predict, Answer: g.Answer, Result: int(g.Result),
		MaxTools: g.MaxTools, Search: g.Hedge.Search, Reask: g.Hedge.Reask, Stream: g.Stream, Thinking: g.Thinking,
		HotSessions: g.HotSessions, Turns: g.Turns, CompactAt: g.CompactAt,
	}
}

// problems are what is wrong with the section. The prompt's file is looked at when it is used.
func (g Generator) problems() []problem {
	var out []problem
	for path, text := range g.settings().Problems() {
		out = append(out, problem{path, text})
	}
	if g.SystemPrompt != "" && !filepath.IsAbs(g.SystemPrompt) {
		out = append(out, problem{"system_prompt", fmt.Sprintf("%q is not a full path", g.SystemPrompt)})
	}
	return out
}

// Validate reports everything wrong with g.
func (g Generator) Validate() error {
	var errs []error
	for _, p := range g.problems() {
		errs = append(errs, p)
	}
	return errors.Join(errs...)
}

// Actor is the section as the actor has it, with the prompt read from its file.
func (g Generator) Actor() (generator.Config, error) {
	c := g.settings()
	if g.SystemPrompt != "" {
		data, ok, err := read(os.DirFS(filepath.Dir(g.SystemPrompt)), filepath.Base(g.SystemPrompt))
		switch {
		case err != nil:
			return c, fmt.Errorf("reading the system prompt: %w", err)
		case !ok:
			return c, fmt.Errorf("reading the system prompt: there is no file %s", g.SystemPrompt)
		}
		if c.System = strings.TrimSpace(strings.ToValidUTF8(string(data), "?")); c.System == "" {
			return c, fmt.Errorf("reading the system prompt: %s is empty; leave system_prompt out to use the shipped one", g.SystemPrompt)
		}
	}
	return c, c.Validate()
}
