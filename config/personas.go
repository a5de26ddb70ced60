package config

import (
	"fmt"
	"path/filepath"
	"strings"

	"conclave/actors/committee"
	"conclave/actors/critic"
	"conclave/pkg/strict"
)

// Personas is the section of the committee.
type Personas struct{ committee.Config }

// Problems returns all errors of the section, with those of the rubrics. Prompt files are read when they are used.
func (p Personas) Problems() strict.Problems {
	out := p.Config.Problems()
	for i, one := range p.Personas {
		at := fmt.Sprintf("personas[%d]", i)
		if why := critic.CheckRubric(one.Rubric); why != "" && one.Rubric != "" {
			out.Add(at+".rubric", "%s", why)
		}
		if one.PromptFile != "" && !filepath.IsAbs(one.PromptFile) {
			out.Add(at+".prompt_file", "%q is not an absolute path", one.PromptFile)
		}
	}
	return out
}

// Actor returns the settings of the actor, with the prompts read from their files. It rejects a file that is missing or
// empty, and invalid settings.
func (p Personas) Actor() (committee.Config, error) {
	c, err := p.WithPrompts(readPrompt)
	if err != nil {
		return c, err
	}
	c.Personas = append(committee.Personas{}, c.Personas...)
	for i := range c.Personas {
		c.Personas[i].PromptFile = "" // it is in the prompt
	}
	return c, c.Validate()
}

// readPrompt reads the text of a prompt file. It rejects one that is missing or empty.
func readPrompt(file string) (string, error) {
	data, ok, err := readFile(filepath.Dir(file), filepath.Base(file))
	switch {
	case err != nil:
		return "", err
	case !ok:
		return "", fmt.Errorf("%s does not exist", file)
	}
	prompt := strings.TrimSpace(strings.ToValidUTF8(string(data), "?"))
	if prompt == "" {
		return "", fmt.Errorf("%s is empty", file)
	}
	return prompt, nil
}
