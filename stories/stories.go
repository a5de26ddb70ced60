// Package stories holds the acceptance stories: each file is a conversation with the messages that it must cause. They
// run with "conclave story run" and with the tests of this package, in a system of their own.
package stories

import (
	"embed"
	"fmt"
	"io/fs"

	"go.yaml.in/yaml/v3"
)

//go:embed *.yaml
var files embed.FS

// Story is the head of a story.
type Story struct {
	File  string `json:"file" yaml:"-"` // its name, such as s1_capital.yaml
	ID    string `json:"id" yaml:"story"`
	Title string `json:"title" yaml:"title"`
	Why   string `json:"why" yaml:"why"`
}

// Read returns the text of the story of this name, as [List] has it.
func Read(name string) ([]byte, error) { return files.ReadFile(name) }

// List returns the stories of this build, by file name.
func List() ([]Story, error) {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, err
	}
	var out []Story
	for _, name := range names {
		data, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		s := Story{}
		if err := yaml.Unmarshal(data, &s); err != nil {
			return nil, fmt.Errorf("reading the story %s: %w", name, err)
		}
		s.File = name
		out = append(out, s)
	}
	return out, nil
}
