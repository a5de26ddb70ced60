package generator

import (
	_ "embed"
	"slices"
	"strings"

	"conclave/pkg/model"
)

// assistantPrompt is the shipped system prompt. Its examples are marked with the tools they use.
//
//go:embed assistant.md
var assistantPrompt string

// Marks in the prompt. The text from one mark to the next is left out unless every tool in the mark is offered: an example
// with a missing tool teaches a small model to call it.
const (
	markWith   = "<!-- with "
	markAlways = "<!-- always -->"
	markEnd    = " -->"
)

// buildPrompt returns the prompt text without its marks. A section marked with tools is left out unless all of them are
// offered.
func buildPrompt(text string, offered []model.Tool) string {
	var b strings.Builder
	keep := true
	for line := range strings.Lines(text) {
		mark := strings.TrimSpace(line)
		names, with := strings.CutPrefix(mark, markWith)
		switch {
		case mark == markAlways:
			keep = true
		case with:
			keep = true
			for _, name := range strings.Fields(strings.TrimSuffix(names, markEnd)) {
				keep = keep && slices.ContainsFunc(offered, func(t model.Tool) bool { return t.Name == name })
			}
		case keep:
			b.WriteString(line)
		}
	}
	return strings.TrimSpace(b.String())
}
