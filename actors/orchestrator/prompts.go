package orchestrator

import (
	"embed"
	"strings"
)

//go:embed prompts/*.md
var prompts embed.FS

// readPrompt returns the reviewed text of a prompt. A missing one is an error of the build, which a test finds.
func readPrompt(name string) string {
	data, err := prompts.ReadFile("prompts/" + name + ".md")
	if err != nil {
		panic(err)
	}
	return strings.TrimSpace(string(data))
}
