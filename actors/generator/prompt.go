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

// ShippedPrompt returns the system prompt of a configuration without one of its own.
func ShippedPrompt() string { return strings.TrimSpace(assistantPrompt) }
