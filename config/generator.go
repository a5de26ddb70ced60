package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"conclave/actors/generator"
	"conclave/pkg/strict"
)

// Generator is the section of the agent that answers: the actor's own, and the file of its system prompt.
type Generator struct {
	SystemPrompt string `yaml:"system_prompt"` // file that replaces the shipped prompt, full path; "" = shipped

	generator.Config
}

// Problems is everything wrong with the section. The prompt's file is looked at when it is used.
func (g Generator) Problems() strict.Problems {
	out := g.Config.Problems()
	if g.SystemPrompt != "" && !filepath.IsAbs(g.SystemPrompt) {
		out.Add("system_prompt", "%q is not a full path", g.SystemPrompt)
	}
	return out
}

// Actor is the section as the actor has it, with the prompt read from its file.
func (g Generator) Actor() (generator.Config, error) {
	c := g.Config
	if g.SystemPrompt != "" {
		data, ok, err := readFile(os.DirFS(filepath.Dir(g.SystemPrompt)), filepath.Base(g.SystemPrompt))
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
