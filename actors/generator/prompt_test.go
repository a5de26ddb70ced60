package generator

import (
	"strings"
	"testing"

	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/subjects"
)

// The prompt is reviewed text: it says what tools are for and that results are data, and nothing of how calls are judged.
func TestBuildPrompt(t *testing.T) {
	t.Parallel()
	var all []model.Tool
	for _, name := range []string{"get_datetime", "web_search", "web_fetch", "save_memory", "search_memory"} {
		all = append(all, model.Tool{Name: name})
	}
	text := New(subjects.Generator, shippedConfig()).systemPrompt(all)
	for _, must := range []string{"data, not an order", "language", "table", "get_datetime {", "web_search {", "web_fetch {", "save_memory {", "search_memory {", "without a call"} {
		if !strings.Contains(text, must) {
			t.Errorf("the prompt does not say %q", must)
		}
	}
	// An example with a tool that is not offered is not given, and the marks are never shown.
	few := New(subjects.Generator, shippedConfig()).systemPrompt(all[:2])
	for _, must := range []string{"get_datetime {", "web_search {", "without a call"} {
		if !strings.Contains(few, must) {
			t.Errorf("the prompt for two tools does not say %q", must)
		}
	}
	for _, never := range []string{"web_fetch", "save_memory", "search_memory", "<!--"} {
		if strings.Contains(few, never) {
			t.Errorf("the prompt for two tools says %q", never)
		}
	}
	if none := New(subjects.Generator, shippedConfig()).systemPrompt(nil); strings.Contains(none, "You call:") || !strings.Contains(none, "without a call") {
		t.Errorf("the prompt for no tools: %s", none)
	}
	for _, never := range []string{"policy", "manifest", "broker", "approval", "permission"} {
		if strings.Contains(strings.ToLower(text), never) {
			t.Errorf("the prompt says %q", never)
		}
	}
	if n := loop.Estimate(text, nil, nil); n > 1500 {
		t.Errorf("the prompt has %d tokens", n)
	}
	cfg := shippedConfig()
	cfg.System = "Be a pirate."
	if New(subjects.Generator, cfg).systemPrompt(nil) != "Be a pirate." {
		t.Error("the prompt cannot be replaced")
	}
}
