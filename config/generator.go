package config

import (
	"fmt"
	"path/filepath"

	"conclave/actors/generator"
	"conclave/pkg/strict"
)

// Generator is the section of the generator: the actor's own settings, and the file of its system prompt.
type Generator struct {
	SystemPrompt string `yaml:"system_prompt"` // absolute path of a file that replaces the shipped prompt; "" = shipped

	generator.Config
}

// Problems returns all errors of the section. The prompt file is read when it is used.
func (g Generator) Problems() strict.Problems {
	out := g.Config.Problems()
	if g.SystemPrompt != "" && !filepath.IsAbs(g.SystemPrompt) {
		out.Add("system_prompt", "%q is not an absolute path", g.SystemPrompt)
	}
	return out
}

// Actor returns the settings of the actor, with the prompt read from its file; "" keeps the shipped prompt. It rejects
// a file that is missing or empty, and invalid settings.
func (g Generator) Actor() (generator.Config, error) {
	c := g.Config
	if g.SystemPrompt != "" {
		var err error
		if c.System, err = readPrompt(g.SystemPrompt); err != nil {
			return c, fmt.Errorf("reading the system prompt: %w; omit system_prompt to use the shipped one", err)
		}
	}
	return c, c.Validate()
}
