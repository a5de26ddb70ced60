package generator

import (
	_ "embed"
	"slices"
	"strings"

	"conclave/pkg/model"
)

// assistantPrompt is the shipped system prompt. It is the same for every question, so that a model server finds it in
// its prompt cache, and short, because a small machine reads some tens of tokens a second.
//
//go:embed assistant.md
var assistantPrompt string

// decisionExamples are examples of decisions for models that call tools under a JSON schema: a question, an arrow and
// the choice. They hold no facts that a model could repeat as an answer.
//
//go:embed decisions.md
var decisionExamples string

// ShippedPrompt returns the system prompt of a configuration without one of its own.
func ShippedPrompt() string { return strings.TrimSpace(assistantPrompt) }

// SelectExamples returns the examples whose choice is to answer or an offered tool: an example with a missing tool
// would teach a small model to choose it.
func SelectExamples(offered []model.Tool) string {
	var b strings.Builder
	for line := range strings.Lines(decisionExamples) {
		_, choice, _ := strings.Cut(line, " -> ")
		choice = strings.TrimSpace(choice)
		if choice == "answer" || slices.ContainsFunc(offered, func(t model.Tool) bool { return t.Name == choice }) {
			b.WriteString(line)
		}
	}
	return strings.TrimSpace(b.String())
}
