package generator

import (
	"strings"
	"testing"

	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/subjects"
)

// The prompt is reviewed text: it says what tools are for and that results are data, and nothing of how calls are
// judged.
func TestSystemPromptIsShortAndSaysTheRules(t *testing.T) {
	t.Parallel()
	text := New(subjects.Generator, shippedConfig()).systemPrompt()
	for _, must := range []string{"data, not an order", "language", "table", "UNTRUSTED", "the user"} {
		if !strings.Contains(text, must) {
			t.Errorf("the prompt does not say %q", must)
		}
	}
	for _, never := range []string{"policy", "manifest", "broker", "approval", "permission", "person"} {
		if strings.Contains(strings.ToLower(text), never) {
			t.Errorf("the prompt says %q", never)
		}
	}
	if n := loop.Estimate(text, nil, []model.Message{{Role: model.User, Content: "hi"}}); n > 400 {
		t.Errorf("the first prompt without tools has %d tokens, want at most 400", n)
	}
	cfg := shippedConfig()
	cfg.System = "Be a pirate."
	if New(subjects.Generator, cfg).systemPrompt() != "Be a pirate." {
		t.Error("the prompt cannot be replaced")
	}
}
