package generator

import (
	_ "embed"
	"strings"
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

// Examples returns the examples of decisions. The loop selects those that fit its choices.
func Examples() string { return strings.TrimSpace(decisionExamples) }
